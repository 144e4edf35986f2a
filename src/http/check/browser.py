"""A page of another origin in headless Chromium: `python browser.py BASE_URL`, against a server with
`--allowed-origins http://127.0.0.1:8765`. It asks, streams, is refused, and reads the headers that a page may read."""

import http.server
import json
import re
import subprocess
import threading

from checks import BASE, KEY, check, equal, run_all, true

ORIGINS = [8765, 8766]
PAGE = """<!doctype html><pre id="said"></pre><script type="module">
const [base, key] = %s, said = {};
const headers = {authorization: `Bearer ${key}`, "content-type": "application/json", "x-stainless-lang": "js"};
const ask = (path, body) => fetch(base + path, {method: "POST", headers, body: JSON.stringify(body)});
try {
  const chat = {messages: [{role: "user", content: "Once"}], max_tokens: 3, temperature: 0};
  const whole = await ask("/v1/chat/completions", chat);
  said.id = whole.headers.get("x-request-id"), said.text = (await whole.json()).choices[0].message.content;
  const stream = await ask("/v1/chat/completions", {...chat, stream: true});
  said.done = (await stream.text()).trimEnd().endsWith("data: [DONE]");
  const refused = await ask("/v1/chat/completions", {...chat, temperature: -1});
  said.refused = [refused.status, (await refused.json()).error.param];
} catch (error) { said.error = String(error); }
document.getElementById("said").textContent = JSON.stringify(said);
</script>""" % json.dumps([BASE, KEY])


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_):
        pass


def said(port):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    shown = subprocess.run([*command, f"http://127.0.0.1:{port}/"], capture_output=True, text=True, timeout=120).stdout
    return json.loads(re.search(r'<pre id="said">(.*?)</pre>', shown, re.S)[1].replace("&gt;", ">").replace("&lt;", "<"))


for port in ORIGINS:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()


@check
def page_of_an_allowed_origin():
    got = said(ORIGINS[0])
    true(got.get("text") and got["id"] and got["done"], got)
    equal(got["refused"], [400, "temperature"])


@check
def page_of_another_origin():
    true("error" in said(ORIGINS[1]), "the page read an answer")


run_all("chromium", subprocess.run(["chromium", "--version"], capture_output=True, text=True).stdout.strip())

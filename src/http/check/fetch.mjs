// fetch, undici and EventSource: `npm install undici eventsource`; `node fetch.mjs BASE_URL`.
// EventSource sends GET; the eventsource package takes a fetch, which here makes it a POST, as pages do for OpenAI's API.
import { createRequire } from "node:module";
import { base, equal, key, run } from "./checks.mjs";

const require = createRequire(`${process.cwd()}/`);
const { Pool } = require("undici");
const { EventSource } = require("eventsource");
const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
const chat = { messages: [{ role: "user", content: "hello" }], max_tokens: 4, temperature: 0, ignore_eos: true };
const asked = (extra) => ({ method: "POST", headers, body: JSON.stringify({ ...chat, ...extra }) });
const url = `${base}/v1/chat/completions`;

async function events(body) {
  let text = "";
  for await (const part of body.pipeThrough(new TextDecoderStream())) text += part;
  const data = text.split("\n\n").filter(Boolean).map((event) => event.replace(/^data: /, ""));
  equal(data.at(-1), "[DONE]");
  return data.slice(0, -1).map((event) => JSON.parse(event));
}

await run(`fetch of node ${process.version}, undici ${require("undici/package.json").version}, eventsource ${
  require("eventsource/package.json").version}`, {
  async fetch_whole_and_streamed() {
    const whole = await (await fetch(url, asked({}))).json();
    const response = await fetch(url, asked({ stream: true }));
    equal(response.headers.get("content-type"), "text/event-stream; charset=utf-8");
    const text = (await events(response.body)).map((event) => event.choices[0].delta.content).join("");
    equal(text, whole.choices[0].message.content);
  },
  async fetch_aborted() {
    const abort = new AbortController();
    const response = await fetch(url, { ...asked({ stream: true, max_tokens: 1000 }), signal: abort.signal });
    await response.body.getReader().read();
    abort.abort();
    equal((await fetch(`${base}/health`)).status, 200);
  },
  async undici_pool_of_64() {
    const pool = new Pool(new URL(base).origin, { connections: 64 });
    const calls = Array.from({ length: 256 }, async () => {
      const { statusCode, body } = await pool.request({ path: "/v1/chat/completions", ...asked({}) });
      return [statusCode, (await body.json()).usage.completion_tokens];
    });
    for (const answer of await Promise.all(calls)) equal(answer, [200, 4]);
    await pool.close();
  },
  async undici_pipelining() {
    const pool = new Pool(new URL(base).origin, { connections: 1, pipelining: 8 });
    const calls = Array.from({ length: 32 }, async () => {
      const { statusCode, body } = await pool.request({ path: "/v1/models", method: "GET", headers });
      await body.dump();
      return statusCode;
    });
    for (const status of await Promise.all(calls)) equal(status, 200);
    await pool.close();
  },
  async event_source_over_post() {
    const data = await new Promise((resolve, reject) => {
      const seen = [];
      const source = new EventSource(url, { fetch: (at, init) => fetch(at, { ...init, ...asked({ stream: true }) }) });
      source.onmessage = (event) => {
        seen.push(event.data);
        if (event.data === "[DONE]") {
          source.close();
          resolve(seen);
        }
      };
      source.onerror = (event) => {
        source.close();
        reject(new Error(`EventSource: ${event.code} ${event.message}`));
      };
    });
    equal(data.at(-1), "[DONE]");
    equal(data.slice(0, -1).every((event) => JSON.parse(event).object === "chat.completion.chunk"), true);
  },
  async event_source_gets_a_clear_failure() {
    const failure = await new Promise((resolve) => {
      const source = new EventSource(url);
      source.onerror = (event) => {
        source.close();
        resolve(event.code);
      };
    });
    equal(failure, 405);
  },
});

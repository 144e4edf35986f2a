"""A client in the manner of llmperf (its own package needs Ray): `pip install requests`; `python llmperf.py BASE_URL`.

Streams chats, reads each line that begins with `data: `, and takes the times of the first and of all tokens.
"""

import json
import time

import requests

from checks import BASE, KEY, check, equal, run_all, true

HEADERS = {"Authorization": f"Bearer {KEY}"}
MODEL = requests.get(BASE + "/v1/models", headers=HEADERS).json()["data"][0]["id"]


def measure(prompt, tokens):
    body = {
        "model": MODEL,
        "messages": [{"role": "system", "content": ""}, {"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    times, text, last = [], "", time.monotonic()
    with requests.post(BASE + "/v1/chat/completions", json=body, stream=True, timeout=180, headers=HEADERS) as answer:
        answer.raise_for_status()
        for chunk in answer.iter_lines(chunk_size=None):
            chunk = chunk.strip()
            if not chunk:
                continue
            stem = b"data: "
            true(chunk.startswith(stem), f"a line that is not data: {chunk!r}")
            chunk = chunk[len(stem) :]
            if chunk == b"[DONE]":
                continue
            data = json.loads(chunk)
            true("error" not in data, data)
            delta = data["choices"][0]["delta"]
            if delta.get("content"):
                times.append(time.monotonic() - last)
                last = time.monotonic()
                text += delta["content"]
    return times, text


@check
def times_of_tokens():
    times, text = measure("Tell me a story. " * 20, 16)
    true(text and times, "no text")
    true(len(times) > 8, f"{len(times)} events with text of 16 tokens")


@check
def ten_in_turn():
    equal(len([measure(f"number {number}", 8) for number in range(10)]), 10)


run_all("llmperf-style client, requests", requests.__version__)

"""Pooled and kept connections: `pip install requests httpx[http2] aiohttp sseclient-py`; `python pools.py BASE_URL`."""

import asyncio
import collections
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import httpx
import requests
import sseclient

from checks import BASE, KEY, check, equal, run_all, true

HEADERS = {"Authorization": f"Bearer {KEY}"}
THREADS, CALLS = 64, 512
COMPLETIONS, CHATS = BASE + "/v1/completions", BASE + "/v1/chat/completions"
BODY = {"prompt": "Once upon", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}


def events(lines):
    data = [line[6:] for line in lines if line.startswith("data: ")]
    equal(data[-1], "[DONE]", "the last event")
    return [json.loads(event) for event in data[:-1]]


def in_threads(call):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(CALLS)))


@check
def requests_64_threads_one_session():
    session = requests.Session()
    session.headers.update(HEADERS)
    session.mount("http://", requests.adapters.HTTPAdapter(pool_connections=THREADS, pool_maxsize=THREADS))

    def call(number):
        if number % 2:
            answer = session.post(COMPLETIONS, json=BODY, timeout=120)
            equal(answer.status_code, 200)
            return answer.json()["usage"]["completion_tokens"]
        with session.post(CHATS, json=STREAM, stream=True, timeout=120) as answer:
            equal(answer.status_code, 200)
            return events(answer.iter_lines(decode_unicode=True))[-1]["usage"]["completion_tokens"]

    equal(collections.Counter(in_threads(call)), {4: CALLS})


@check
def requests_keeps_its_connection():
    session = requests.Session()
    session.headers.update(HEADERS)
    for _ in range(5):
        for path, body in (("/v1/completions", BODY), ("/v1/completions", {"prompt": "x", "temperature": -1})):
            session.post(BASE + path, json=body).content
        session.get(BASE + "/health")
        session.get(BASE + "/nowhere")
        equal(events(session.post(CHATS, json=STREAM, stream=True).iter_lines(decode_unicode=True))[-1]["choices"], [])
    pools = session.get_adapter(BASE).poolmanager.pools
    equal([pools[key].num_connections for key in pools.keys()], [1], "connections")


@check
def httpx_64_threads():
    limits = httpx.Limits(max_connections=THREADS, max_keepalive_connections=THREADS)
    with httpx.Client(limits=limits, headers=HEADERS, timeout=120) as client:

        def call(number):
            if number % 2:
                return client.post(COMPLETIONS, json=BODY).raise_for_status().json()["usage"]["completion_tokens"]
            with client.stream("POST", CHATS, json=STREAM) as answer:
                return events(answer.iter_lines())[-1]["usage"]["completion_tokens"]

        equal(collections.Counter(in_threads(call)), {4: CALLS})


@check
async def httpx_http2_64_at_once():
    # Without TLS there is no ALPN: HTTP/2 alone is HTTP/2 by prior knowledge. Tasks, since httpcore takes the ids of
    # HTTP/2 streams without a lock: threads that share a connection send them out of order.
    async with httpx.AsyncClient(http1=False, http2=True, headers=HEADERS, timeout=120) as client:
        room = asyncio.Semaphore(THREADS)

        async def call(number):
            async with room:
                if number % 2:
                    return (await client.post(COMPLETIONS, json=BODY)).json()["usage"]["completion_tokens"]
                async with client.stream("POST", CHATS, json=STREAM) as answer:
                    equal(answer.http_version, "HTTP/2")
                    return events([line async for line in answer.aiter_lines()])[-1]["usage"]["completion_tokens"]

        answers = await asyncio.gather(*(call(number) for number in range(CALLS)))
        equal(collections.Counter(answers), {4: CALLS})


@check
async def aiohttp_64_at_once():
    connector = aiohttp.TCPConnector(limit=THREADS)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as session:

        async def call(number):
            if number % 2:
                async with session.post(COMPLETIONS, json=BODY) as answer:
                    return (await answer.json())["usage"]["completion_tokens"]
            async with session.post(CHATS, json=STREAM) as answer:
                equal(answer.content_type, "text/event-stream")
                lines = [line.decode().strip() async for line in answer.content]
                return events(lines)[-1]["usage"]["completion_tokens"]

        answers = await asyncio.gather(*(call(number) for number in range(CALLS)))
        equal(collections.Counter(answers), {4: CALLS})


@check
def chunked_body_without_length():
    parts = [json.dumps(BODY).encode()[:10], json.dumps(BODY).encode()[10:]]
    answer = requests.post(COMPLETIONS, data=iter(parts), headers={**HEADERS, "Content-Type": "application/json"})
    equal(answer.status_code, 200)


@check
def sseclient_over_post():
    answer = requests.post(CHATS, json=STREAM, stream=True, headers={**HEADERS, "Accept": "text/event-stream"})
    data = [event.data for event in sseclient.SSEClient(answer).events()]
    equal(data[-1], "[DONE]")
    equal(json.loads(data[-2])["usage"]["completion_tokens"], 4)


@check
def reader_that_leaves_frees_its_request():
    before = threading.active_count()
    for _ in range(20):
        body = {**STREAM, "max_tokens": 1000}
        with requests.post(CHATS, json=body, stream=True, headers=HEADERS) as answer:
            next(answer.iter_lines())
    for _ in range(100):
        load = requests.get(BASE + "/load", headers=HEADERS).json()
        if load["server_load"] == 0:
            break
        threading.Event().wait(0.1)
    equal(load["server_load"], 0, "requests on the server")
    true(threading.active_count() <= before, "threads are left")


run_all("requests, httpx, aiohttp, sseclient-py", " ".join((requests.__version__, httpx.__version__, aiohttp.__version__)))

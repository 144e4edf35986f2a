"""A backend of NVIDIA Dynamo that hands requests to a running Trunkline server, and streams its tokens back.

    trunkline-dynamo --server http://127.0.0.1:50051 --model-path MODEL --discovery-backend file

Dynamo's front end makes the tokens of a prompt and the text of an answer, with the tokenizer of the folder `MODEL`; it also finds
stop strings, and ends the request there. The server gets tokens by `POST /inference/v1/generate`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.run import run
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import CannotConnect, EngineShutdown, InvalidArgument, StreamIncomplete

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "logit_bias",
)
"""Sampling options that the server knows by the same name."""
STRUCTURES = ("json", "regex", "choice", "grammar", "whitespace_pattern")
"""Kinds of `guided_decoding`, and fields of `structured_outputs`."""
REFUSED = ("use_beam_search", "prompt_logprobs", "structural_tag", "bad_words_token_ids", "max_thinking_tokens")
"""Options that would change the answer, and that the server does not have."""
WORKER = ("namespace", "component", "endpoint", "endpoint_types", "discovery_backend", "request_plane", "event_plane")
"""Flags that Dynamo's worker takes as they are."""


class TrunklineEngine(LLMEngine):
    """One server, as an engine of Dynamo."""

    def __init__(self, server: str, token: str | None = None, name: str | None = None) -> None:
        self.server, self.name, self.context_length = server.rstrip("/"), name, 0
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[TrunklineEngine, WorkerConfig]:
        """Returns the engine and what Dynamo's worker needs, from the arguments of the command line."""
        parser = argparse.ArgumentParser(prog="trunkline-dynamo", description=__doc__.splitlines()[0])
        parser.add_argument("--server", default="http://127.0.0.1:50051", help="address of the server (default: %(default)s)")
        parser.add_argument("--model-path", required=True, help="folder of the model's tokenizer and configuration")
        parser.add_argument("--model-name", help="name of the model for Dynamo's clients (default: the server's)")
        parser.add_argument("--token-file", type=Path, help="file with the token for the server (default: TRUNKLINE_TOKEN)")
        defaults = ("dynamo", "trunkline", "generate", "chat,completions", "etcd", "tcp", None)
        for flag, default in zip(WORKER, defaults, strict=True):
            parser.add_argument(
                "--" + flag.replace("_", "-"), default=default, help="as of Dynamo's backends (default: %(default)s)"
            )
        args = parser.parse_args(argv)
        token = args.token_file.read_text().strip() if args.token_file else os.environ.get("TRUNKLINE_TOKEN")
        name = args.model_name or await _served_name(args.server, token)
        config = WorkerConfig(
            **{flag: getattr(args, flag) for flag in WORKER},
            model_name=args.model_path,
            served_model_name=name,
            enable_kv_routing=False,
        )
        return cls(args.server, token, name), config

    async def start(self, worker_id: int) -> EngineConfig:
        """Asks the server what it serves."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0)
        self._http = aiohttp.ClientSession(timeout=timeout, headers=self._headers, connector=connector)
        async with self._http.get(f"{self.server}/v1/models", raise_for_status=True) as answer:
            model = (await answer.json())["data"][0]
        async with self._http.get(f"{self.server}/metrics") as answer:
            metrics = await answer.text()
        self.context_length = int(model["max_model_len"])
        llm = LlmRegistration(
            context_length=self.context_length,
            kv_cache_block_size=_gauge(metrics, "trunkline_block_size_tokens"),
            total_kv_blocks=_gauge(metrics, "trunkline_device_blocks"),
        )
        name = self.name or model["id"]
        return EngineConfig(model=name, served_model_name=name, llm=llm)

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Streams the answer to a request; the last chunk has the reason for the end, and how many tokens there were."""
        normalize_request_token_ids(request)
        prompt = request["token_ids"]
        n, stopper = 0, None
        try:
            async with self._post(body_of(request, context.id(), self.context_length)) as answer:
                # Closing the connection ends the request on the server.
                stopper = asyncio.create_task(_close_when_stopped(context, answer))
                await _check(answer)
                async for chunk in chunks(answer.content):
                    n += len(chunk["token_ids"])
                    if "finish_reason" in chunk:
                        chunk["completion_usage"] = _usage(len(prompt), n, chunk.pop("cached", 0))
                        yield chunk
                        return
                    yield chunk
        except aiohttp.ClientConnectorError as error:
            raise CannotConnect(f"{self.server}: {error}") from error
        except aiohttp.ClientError as error:
            if not context.is_stopped():
                raise StreamIncomplete(f"{self.server}: {error}") from error
        finally:
            if stopper is not None:
                stopper.cancel()
        if not context.is_stopped():
            raise StreamIncomplete(f"{self.server}: the answer ended before its end")
        yield {"token_ids": [], "index": 0, "finish_reason": "cancelled", "completion_usage": _usage(len(prompt), n, 0)}

    def _post(self, body: dict[str, Any]) -> Any:
        if self._http is None:
            raise EngineShutdown("the engine has not started, or is cleaned up")
        return self._http.post(f"{self.server}/inference/v1/generate", json=body)

    async def health_check_payload(self) -> dict[str, Any] | None:
        """A request of one token."""
        payload: dict[str, Any] = build_health_check_payload(bos_token_id=1)
        return payload

    async def cleanup(self) -> None:
        """Closes the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()


def body_of(request: dict[str, Any], id: str, context_length: int) -> dict[str, Any]:
    """Returns a request of Dynamo as the server takes it.

    Raises:
        InvalidArgument: it asks for what the server does not have.
    """
    options, stop = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    output = request.get("output_options") or {}
    guided = options.get("guided_decoding") or {}
    for name in REFUSED:
        if any(of.get(name) not in (None, False) for of in (options, stop, output, guided)):
            raise InvalidArgument(f"{name} is not supported by Trunkline; leave it out")
    if (options.get("n") or 1) > 1:
        raise InvalidArgument(f"n is {options['n']}; Trunkline takes one answer for each request of Dynamo")
    room = max(1, context_length - len(request["token_ids"]))
    # Dynamo's front end finds stop strings in the text, which it makes.
    sampling = {name: options[name] for name in SAMPLING if options.get(name) is not None}
    sampling["max_tokens"] = min(stop.get("max_tokens") or room, room)
    sampling |= {name: stop[name] for name in ("min_tokens", "ignore_eos") if stop.get(name)}
    sampling["stop_token_ids"] = [] if stop.get("ignore_eos") else list(stop.get("stop_token_ids_hidden") or [])
    if output.get("logprobs") is not None:
        sampling["logprobs"] = int(output["logprobs"])
    if structure := {name: guided[name] for name in STRUCTURES if guided.get(name) is not None}:
        sampling["structured_outputs"] = structure
    routing = request.get("routing") or {}
    found = {"request_id": id, "token_ids": request["token_ids"], "sampling_params": sampling, "stream": True}
    found["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return found | {name: routing[name] for name in ("priority", "cache_salt") if routing.get(name) is not None}


async def chunks(lines: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Returns the chunks of a stream of server-sent events.

    Raises:
        EngineShutdown: the server ended the request with an error.
    """
    async for line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise EngineShutdown(event["error"]["message"])
        for choice in event["choices"]:
            chunk: dict[str, Any] = {"token_ids": choice["token_ids"], "index": 0}
            if choice.get("logprobs"):
                chunk["log_probs"] = [token["logprob"] for token in choice["logprobs"]["content"]]
                chunk["top_logprobs"] = [_ranked(token) for token in choice["logprobs"]["content"]]
            if reason := choice["finish_reason"]:
                # A stop of the server is the end of the text, or one of the tokens that Dynamo named.
                chunk["finish_reason"] = {"stop": "stop", "length": "length"}.get(reason, f"error: the request ended by {reason}")
                details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
                chunk["cached"] = details.get("cached_tokens", 0)
            yield chunk


def _ranked(token: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the most likely tokens in the place of one, by their texts."""
    likely = token["top_logprobs"] or [token]
    return [{"rank": i + 1, "token": of["token"], "logprob": of["logprob"], "bytes": of["bytes"]} for i, of in enumerate(likely)]


def _usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    total = prompt + completion
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return usage | {"prompt_tokens_details": {"cached_tokens": cached}}


def _gauge(metrics: str, name: str) -> int | None:
    """Returns the sum of a gauge over all its labels; None without it."""
    values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    return int(sum(map(float, values))) if values else None


async def _close_when_stopped(context: Any, answer: aiohttp.ClientResponse) -> None:
    await context.async_killed_or_stopped()
    answer.close()


async def _check(answer: aiohttp.ClientResponse) -> None:
    """Raises what the status of an answer says."""
    if answer.status < 400:
        return
    try:
        message = (await answer.json())["error"]["message"]
    except (ValueError, KeyError, TypeError, aiohttp.ClientError):
        message = f"the server answered with status {answer.status}"
    raise (InvalidArgument if answer.status in (400, 413) else EngineShutdown)(message)


async def _served_name(server: str, token: str | None) -> str:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{server}/v1/models", raise_for_status=True) as answer:
        return str((await answer.json())["data"][0]["id"])


def main() -> None:
    """Runs the backend until Dynamo's worker ends."""
    run(TrunklineEngine)


if __name__ == "__main__":
    main()

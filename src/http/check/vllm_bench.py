"""`vllm bench serve`, its own code, without the compiled engine: `python vllm_bench.py BASE_URL`.

VLLM names the folder of an unpacked wheel (`pip download --no-deps vllm; unzip vllm-*.whl -d FOLDER`), TOKENIZER a folder with
tokenizer.json. Needs torch, transformers and aiohttp. vLLM's package file and what only its engine needs are left out of the import;
the benchmark's modules run unmodified.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import pathlib
import sys
import tempfile
import types
import unittest.mock

from checks import BASE, KEY, check, equal, run_all, true

FOLDER = os.environ["VLLM"]
TOKENIZER = os.environ["TOKENIZER"]
os.environ["OPENAI_API_KEY"] = KEY
sys.path.insert(0, FOLDER)
package = types.ModuleType("vllm")
package.__path__ = [os.path.join(FOLDER, "vllm")]
package.__version__ = importlib.metadata.Distribution.at(next(pathlib.Path(FOLDER).glob("vllm-*.dist-info"))).version
sys.modules["vllm"] = package
for name in ("inputs", "lora.request", "lora.utils", "multimodal.audio", "multimodal.image", "multimodal.utils", "tokenizers",
             "transformers_utils.repo_utils", "utils.mistral"):
    sys.modules["vllm." + name] = unittest.mock.MagicMock()
    parent = "vllm." + name.rpartition(".")[0] if "." in name else None
    if parent and parent != "vllm.utils":
        sys.modules.setdefault(parent, unittest.mock.MagicMock())


def tokenizer(*_, **__):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(TOKENIZER, "tokenizer.json"))


sys.modules["vllm.tokenizers"].get_tokenizer = tokenizer

from vllm.benchmarks import serve  # noqa: E402


def bench(backend, endpoint, *more):
    parser = serve.FlexibleArgumentParser()
    serve.add_cli_args(parser)
    with tempfile.TemporaryDirectory() as folder:
        words = ["--backend", backend, "--base-url", BASE, "--endpoint", endpoint, "--tokenizer", TOKENIZER]
        words += ["--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8", "--num-prompts", "16"]
        words += ["--ignore-eos", "--save-result", "--result-dir", folder, "--result-filename", "result.json", *more]
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                serve.main(parser.parse_args(words))
        except BaseException:
            print(out.getvalue()[-2000:], file=sys.stderr)
            raise
        with open(os.path.join(folder, "result.json")) as file:
            result = json.load(file)
    equal((result["completed"], result.get("failed", 0)), (16, 0))
    equal(result["total_output_tokens"], 128)
    true(result["mean_ttft_ms"] > 0 and result["mean_itl_ms"] > 0, "no times")


@check
def completions():
    bench("openai", "/v1/completions")


@check
def chat():
    bench("openai-chat", "/v1/chat/completions")


@check
def completions_at_a_rate():
    bench("vllm", "/v1/completions", "--request-rate", "50", "--max-concurrency", "4", "--logprobs", "1")


run_all("vllm bench serve", package.__version__)

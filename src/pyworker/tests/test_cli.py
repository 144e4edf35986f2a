"""Command lines that are refused, without PyTorch and vLLM."""

import pytest

from trunkline_worker.cli import build, main, parser


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--kv-tokens", "-4"], "--kv-tokens -4: must be at least 1"),
        (["--threads", "0"], "--threads 0: must be at least 1"),
        (["--max-sequences", "0"], "--max-sequences 0: must be at least 1"),
        (["--tensor-parallel", "0"], "--tensor-parallel 0: must be at least 1"),
        (["--data-parallel-size", "0"], "--data-parallel-size 0: must be at least 1"),
        (
            ["--engine", "torch", "--tensor-parallel", "2"],
            "--tensor-parallel 2: --engine torch has none; use --engine vllm or --pipeline-parallel",
        ),
        (["--tensor-parallel", "2"], "--tensor-parallel 2: --engine toy has none; use --engine vllm"),
        (["--device", "cpu"], "--device cpu: --engine toy finds its devices itself; use --engine torch"),
        (["--model", "m"], "--model m: --engine toy has none; use --engine torch or vllm"),
        (["--threads", "2"], "--threads 2: --engine toy has none; use --engine torch or vllm"),
        (["--dtype", "f32"], "--dtype f32: --engine toy has none; use --engine torch or vllm"),
        (["--eager"], "--eager: --engine toy has none; use --engine torch or vllm"),
        (["--kv-tokens", "15"], "--kv-tokens 15: must be at least one block, which has 16 tokens"),
        (["--kv-tokens", "63", "--block-size", "64"], "--kv-tokens 63: must be at least one block, which has 64 tokens"),
        (["--scored-layers", "1"], "--scored-layers 1: --engine toy reports no scores; use --engine torch"),
        (
            ["--engine", "vllm", "--scored-layers", "1-3"],
            "--scored-layers 1-3: --engine vllm reports no scores; use --engine torch",
        ),
        (["--h2o", "on"], "--h2o on: --engine toy reports no scores; use --engine torch"),
        (["--h2o-total", "2"], "--h2o-total 2.0: --engine toy reports no scores; use --engine torch"),
        (
            ["--engine", "torch", "--scored-layers", "1", "--h2o-layers", "7"],
            "--scored-layers and --h2o-layers contradict each other; give one of them",
        ),
    ],
)
def test_what_no_engine_does_is_refused_with_one_line(flags, line, capsys):
    arguments = ["--engine", "toy", "--connect", "127.0.0.1:1", *flags]
    with pytest.raises(ValueError) as refused:
        build(parser().parse_args(arguments))
    assert str(refused.value) == line
    assert main(arguments) == 1
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"


def test_numbers_of_one_are_taken():
    flags = ["--kv-tokens", "16", "--max-sequences", "1", "--pipeline-parallel", "1"]
    assert build(parser().parse_args(["--engine", "toy", "--connect", "127.0.0.1:1", *flags])).kv.tokens == 16


def test_the_toy_engine_does_what_its_options_say():
    flags = "--block-size 24 --kv-tokens 240 --max-context 100 --max-sequences 3 --max-tokens 50 --model-name m --revision r"
    for stages in ("1", "2"):
        arguments = ["--engine", "toy", "--connect", "127.0.0.1:1", "--pipeline-parallel", stages, *flags.split()]
        engine = build(parser().parse_args(arguments))
        model, can = engine.model, engine.abilities
        assert (engine.kv.block_sizes, engine.kv.tokens, model.max_context) == ((24,), 240, 100)
        assert (can.max_sequences, can.max_tokens, model.name, model.revision) == (3, 50, "m", "r")
        assert can.steps_in_flight == 2 * int(stages)
        engine.close()

"""Command lines that are refused, without PyTorch and vLLM."""

import json
import logging
from pathlib import Path

import pytest

from trunkline_worker import install
from trunkline_worker.cli import JsonLines, _check_abilities, build, main, parser
from trunkline_worker.session import Target


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


def test_a_gguf_file_is_named_as_such_wherever_a_folder_is_wanted(tmp_path, capsys):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and more")
    arguments = ["--engine", "torch", "--connect", "127.0.0.1:1", "--model"]
    assert main([*arguments, str(path)]) == 1
    assert capsys.readouterr().err == (
        f"trunkline-worker: --model {path}: this is a GGUF file, which the embedded worker runs (trunkline worker --model FILE); "
        "give the folder of the model, as on Hugging Face\n"
    )
    assert main([*arguments, str(tmp_path)]) == 1
    assert "the folder has a GGUF file and no config.json" in capsys.readouterr().err
    renamed = path.rename(tmp_path / "blob")
    assert main([*arguments, str(renamed)]) == 1 and "this is a GGUF file" in capsys.readouterr().err


def test_options_without_effect_are_named(caplog):
    base = ["--connect", "127.0.0.1:1", "--engine"]
    args = parser().parse_args([*base, "torch", "--h2o", "off", "--h2o-total", "3", "--data-parallel-address", "127.0.0.1:2"])
    _check_abilities(args)
    assert [record.getMessage() for record in caplog.records] == [
        "--h2o-total has no effect with --h2o off",
        "--data-parallel-address has no effect without --data-parallel-group",
    ]


def test_what_an_engine_needs_is_installed_from_a_folder_and_from_no_index(tmp_path):
    assert install.command("torch", tmp_path) == "pip install './src/pyworker[torch]' in a clone of Trunkline"
    (tmp_path / "pyproject.toml").write_text("")
    assert install.command("vllm", tmp_path) == f"pip install '{tmp_path}[vllm]'"
    assert (Path(install.__file__).parents[2] / "pyproject.toml").is_file(), "this is that folder"


def test_a_line_of_the_log_is_an_object_if_asked_for():
    record = logging.LogRecord("name", logging.WARNING, "file", 1, "a %s\nof two lines", ("text",), None)
    line = JsonLines().format(record)
    found = json.loads(line)
    assert "\n" not in line and (found["level"], found["message"], found["target"]) == ("WARNING", "a text\nof two lines", "name")
    assert parser().parse_args(["--connect", "127.0.0.1:1", "--log-format", "json"]).log_format == "json"


def test_the_token_is_read_for_each_connection(tmp_path):
    path = tmp_path / "token"
    path.write_text("first\n")
    target = Target("127.0.0.1:1", "name", token="of the variable", token_file=path)
    assert target.bearer() == "first"
    path.write_text("second\n")
    assert target.bearer() == "second"
    assert Target("127.0.0.1:1", "name", token="of the variable").bearer() == "of the variable"


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

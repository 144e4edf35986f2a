"""Command lines that are refused, without PyTorch and vLLM."""

import json
import logging
import re
from pathlib import Path

import pytest

from trunkline_worker import install
from trunkline_worker.cli import JsonLines, build, main, parse, parser
from trunkline_worker.facts import LockStep
from trunkline_worker.flags import FLAGS
from trunkline_worker.session import Target


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--kv-tokens", "-4"], "--kv-tokens: must be at least 1, not -4"),
        (["--max-sequences", "0"], "--max-sequences: must be at least 1, not 0"),
        (["--data-parallel-size", "0"], "--data-parallel-size: must be at least 1, not 0"),
        (["--engine", "torch", "--threads", "0"], "--threads: must be at least 1, not 0"),
        (["--engine", "vllm", "--tensor-parallel", "0"], "--tensor-parallel: must be at least 1, not 0"),
        (["--max-tokens", "many"], "--max-tokens: must be a whole number, not many"),
        (["--tensor-parallel", "2"], "--tensor-parallel 2: --engine toy does not take it; use --engine vllm"),
        (["--tensor-parallel=2"], "--tensor-parallel 2: --engine toy does not take it; use --engine vllm"),
        (["--device", "cpu"], "--device cpu: --engine toy does not take it; use --engine torch"),
        (["--model", "m"], "--model m: --engine toy does not take it; use --engine torch or --engine vllm"),
        (["--eager", "--threads", "2"], "--eager: --engine toy does not take it; use --engine torch or --engine vllm"),
        (["--engine", "vllm", "--h2o", "on"], "--h2o on: --engine vllm does not take it; use --engine torch"),
        (["--faster"], "--faster: there is no such flag; trunkline-worker --engine toy --help lists them"),
        (["--max-seq", "3"], "--max-seq 3: there is no such flag; trunkline-worker --engine toy --help lists them"),
        (
            ["--faster=" + 300 * "x"],
            f"--faster {191 * 'x'}: there is no such flag; trunkline-worker --engine toy --help lists them",
        ),
        (["--engine", "tony"], "--engine tony: no such engine is installed; choose from torch, toy, vllm"),
        (["--engine"], "--engine: expected one argument"),
    ],
)
def test_a_wrong_command_line_is_refused_with_one_line(flags, line, capsys):
    assert main(["--engine", "toy", "--connect", "127.0.0.1:1", *flags]) == 2
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"


OWN = ("toy", "torch", "vllm")


def flags_of(engine):
    """The flags that the help of an engine has under its name."""
    return set(
        re.findall(r"^  (--[a-z0-9-]+)", parser(engine).format_help().split(f"flags of --engine {engine}")[1], re.MULTILINE)
    )


def test_each_flag_that_an_engine_does_not_declare_is_refused_with_one_line():
    flags = {engine: flags_of(engine) for engine in OWN}
    assert {"--device", "--tensor-parallel", *FLAGS} < set().union(*flags.values())
    for engine in OWN:
        for flag in set().union(*flags.values()) - flags[engine]:
            with pytest.raises(ValueError) as refused:
                parse(["--engine", engine, "--connect", "127.0.0.1:1", flag, "1"])
            others = " or ".join(f"--engine {other}" for other in sorted(OWN) if flag in flags[other])
            assert str(refused.value) == f"{flag} 1: --engine {engine} does not take it; use {others}"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--kv-tokens", "15"], "--kv-tokens 15: must be at least one block, which has 16 tokens"),
        (["--kv-tokens", "63", "--block-size", "64"], "--kv-tokens 63: must be at least one block, which has 64 tokens"),
        (["--data-parallel-size", "2"], "--data-parallel-size 2 needs --data-parallel-group NAME"),
        (["--engine", "torch"], "--engine torch needs --model DIR"),
        (["--engine", "vllm"], "--engine vllm needs --model DIR"),
        (
            ["--engine", "torch", "--scored-layers", "1", "--h2o-layers", "7"],
            "--scored-layers and --h2o-layers contradict each other; give one of them",
        ),
    ],
)
def test_what_no_engine_does_is_refused_with_one_line(flags, line, capsys):
    arguments = ["--engine", "toy", "--connect", "127.0.0.1:1", *flags]
    with pytest.raises(ValueError) as refused:
        build(parse(arguments))
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
    for engine, *flags in (["torch", "--h2o", "off", "--h2o-total", "3"], ["vllm", "--data-parallel-address", "127.0.0.1:2"]):
        with pytest.raises(ValueError, match="needs --model DIR"):
            build(parse(["--connect", "127.0.0.1:1", "--engine", engine, *flags]))
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
    assert parse(["--connect", "127.0.0.1:1", "--log-format", "json"]).log_format == "json"


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
    assert build(parse(["--engine", "toy", "--connect", "127.0.0.1:1", *flags])).kv.tokens == 16


def test_vllm_gets_what_the_flags_say(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("trunkline_worker.vllm_engine.versions.check", lambda: "0.32.0")
    monkeypatch.setattr("trunkline_worker.vllm_engine.runner.VllmEngine.__init__", lambda _, *given: made.append(given))
    for name in ("OMP_NUM_THREADS", "VLLM_COMPUTE_NANS_IN_LOGITS"):
        monkeypatch.setenv(name, "")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    flags = "--tensor-parallel 2 --data-parallel-group g --data-parallel-size 2 --data-parallel-rank 1 --threads 5 --eager"
    engine = build(parse(["--engine", "vllm", "--connect", "x:1", "--model", str(tmp_path), *flags.split()]))
    (options, version), place = made[0], LockStep("g", 2, 1)
    assert (engine.lock_step, options.group, options.group_address, version) == (place, place, ("127.0.0.1", 29500), "0.32.0")
    assert (options.tensor_parallel, options.pipeline_parallel, options.threads, options.eager) == (2, 1, 2, True)
    assert (options.max_sequences, options.max_tokens, options.block_size, options.kv_tokens) == (256, 2048, 32, None)
    with pytest.raises(ValueError, match="--pipeline-parallel 5: choose from 1 to 4, the layers of the model"):
        build(parse(["--engine", "vllm", "--connect", "x:1", "--model", str(tmp_path), "--pipeline-parallel", "5"]))


def test_the_toy_engine_does_what_its_options_say():
    flags = "--block-size 24 --kv-tokens 240 --max-context 100 --max-sequences 3 --max-tokens 50 --model-name m --revision r"
    for stages in ("1", "2"):
        arguments = ["--engine", "toy", "--connect", "127.0.0.1:1", "--pipeline-parallel", stages, *flags.split()]
        engine = build(parse(arguments))
        model, can = engine.model, engine.abilities
        assert (engine.kv.block_sizes, engine.kv.tokens, model.max_context) == ((24,), 240, 100)
        assert (can.max_sequences, can.max_tokens, model.name, model.revision) == (3, 50, "m", "r")
        assert can.steps_in_flight == 2 * int(stages)
        engine.close()

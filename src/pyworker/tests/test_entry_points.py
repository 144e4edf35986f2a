"""Engines of other packages: found by their entry point, attached by the command line, and refused in one line if broken.

TRUNKLINE_PROGRAM names the program of the server, for the test that needs it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scheduler import Scheduler, Server

import trunkline_worker
from trunkline_worker import Engine, entry_points
from trunkline_worker.cli import build, main, parse
from trunkline_worker.entry_points import tomllib

PROGRAM = os.environ.get("TRUNKLINE_PROGRAM")
ROOT = Path(trunkline_worker.__file__).parents[4]
EXAMPLE = ROOT / "examples/engine"
WAIT = 60


def distribution(folder, name, points):
    """Writes what pip writes for a package with these entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{entry_points.GROUP}]", *lines, ""]))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with packages on the path, the example of an engine among them."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    distribution(tmp_path, project["project"]["name"], project["project"]["entry-points"][entry_points.GROUP])
    for module in project["tool"]["setuptools"]["py-modules"]:
        shutil.copy(EXAMPLE / f"{module}.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def started(site, address, *flags):
    """A process of the worker with the engine of the example."""
    path = os.pathsep.join([str(site), str(Path(trunkline_worker.__file__).parents[1])])
    command = [sys.executable, "-m", "trunkline_worker", "--engine", "count", "--connect", address, *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


def test_an_engine_of_another_package_runs_steps_with_its_own_flags(site):
    server = Server()
    process = started(site, server.address, "--by", "3", "--kv-tokens", "640")
    peer = server.accept()
    hello = peer.receive("hello")
    assert hello.program.endswith("(count 1.0)") and hello.model.name == "count" and hello.kv.tokens == 640
    assert hello.abilities.partial_writes and not hello.abilities.shared_memory
    scheduler = Scheduler(peer, hello, blocks=40, block_size=16)
    scheduler.welcome()
    asked = [scheduler.add([n] * 40, 5) for n in (4, 100)]
    scheduler.run()
    assert [seq.tokens[40:] for seq in asked] == [[7, 10, 13, 16, 19], [103, 106, 109, 112, 115]]
    process.terminate()
    assert process.wait(WAIT) == 0
    server.stop()


@pytest.mark.skipif(PROGRAM is None, reason="TRUNKLINE_PROGRAM does not name the program `trunkline`")
def test_an_engine_of_another_package_serves(site):
    command = [PROGRAM, "serve", "--workers", "0", "--listen", "127.0.0.1:0", "--worker-wait", str(WAIT)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = re.fullmatch(r"listening on http://(\S+)\n", server.stdout.readline())[1]
    worker = started(site, address, "--by", "2")
    assert next(line for line in worker.stderr if "attached to" in line)
    asked = [PROGRAM, "generate", "--addr", address, "--token-ids", "8,9", "--max-tokens", "4", "--json"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=WAIT)
    assert json.loads(answer.stdout)["token_ids"] == [11, 13, 15, 17]
    worker.terminate()
    assert worker.wait(WAIT) == 0
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=WAIT)


def test_help_names_the_engines_installed_and_the_flags_of_the_one_chosen(site, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--engine", "count", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0 and "what runs the model: count, torch, toy, vllm (default: torch)" in text
    assert "--by N what is added to the last token (default: 1)" in text and "--threads" not in text


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["count", "--threads", "2"], "--threads 2: --engine count does not take it; use --engine torch or --engine vllm"),
        (["toy", "--by", "2"], "--by 2: --engine toy does not take it; use --engine count"),
        (["counts"], "--engine counts: no such engine is installed; choose from count, torch, toy, vllm"),
    ],
)
def test_errors_know_the_engines_installed(site, flags, line, capsys):
    assert main(["--connect", "x:1", "--engine", *flags]) == 2
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"


MODULE = """
from trunkline_worker import Engine
class Unknown(Engine):
    flags = ("--unheard-of",)
class Twice(Engine):
    @classmethod
    def add_flags(cls, group):
        group.add_argument("--connect")
class Late(Engine):
    @classmethod
    def build(cls, args):
        import not_there_either
"""


@pytest.mark.parametrize(
    ("point", "line"),
    [
        ("not_there:Engine", "--engine other needs not_there, which is not installed (other-engines)"),
        ("not_there:Engine [gpu]", "--engine other needs not_there, which is not installed: pip install 'other-engines[gpu]'"),
        ("other:Late [gpu]", "--engine other needs not_there_either, which is not installed: pip install 'other-engines[gpu]'"),
        (
            "other:Missing",
            "--engine other: other:Missing of other-engines cannot be imported: AttributeError: module 'other' has no attribute "
            "'Missing'",
        ),
        ("json:dumps", "--engine other: json:dumps of other-engines is not a class derived from trunkline_worker.Engine"),
        (
            "other:Unknown",
            "--engine other: its flags cannot be added: --unheard-of is none that several engines take; add_flags may add it",
        ),
        (
            "other:Twice",
            "--engine other: its flags cannot be added: argument --connect: conflicting option string: --connect",
        ),
    ],
)
def test_a_broken_engine_is_refused_with_one_line_and_disturbs_no_other(site, point, line, capsys):
    (site / "other.py").write_text(MODULE)
    distribution(site, "other-engines", {"other": point})
    assert main(["--engine", "other", "--connect", "x:1"]) in (1, 2)
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"
    assert main(["--engine", "toy", "--connect", "x:1", "--by", "1"]) == 2
    assert capsys.readouterr().err.endswith("--engine toy does not take it; use --engine count\n")
    with pytest.raises(SystemExit):
        parse(["--engine", "other", "--help"])
    said = "".join(capsys.readouterr().out.split())
    assert "Late" in point or "".join(line.split()) in said, "and help is there all the same"


def test_two_packages_with_an_engine_of_one_name_are_named(site, capsys):
    distribution(site, "other-engines", {"count": "json:dumps"})
    assert main(["--engine", "count", "--connect", "x:1"]) == 2
    line = "--engine count: other-engines and trunkline-count have an engine of that name; uninstall all but one"
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"
    assert build(parse(["--engine", "toy", "--connect", "x:1"])).program == "toy"


def test_the_own_engines_are_there_once_without_pip_and_with_any_version_installed(site):
    distribution(site, "trunkline-worker", {"torch": "trunkline_worker.of_old:Torch", "toy": "trunkline_worker.toy:ToyEngine"})
    found = entry_points.installed()
    assert list(found) == ["count", "torch", "toy", "vllm"] and all(len(points) == 1 for points in found.values())
    assert issubclass(entry_points.load("torch"), Engine)


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_what_an_own_engine_lacks_is_named_with_its_extra(engine, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, engine, None)
    for module in [name for name in sys.modules if name.startswith(f"trunkline_worker.{engine}_engine.")]:
        monkeypatch.delitem(sys.modules, module)
    (tmp_path / "config.json").write_text("{}")
    assert main(["--engine", engine, "--connect", "x:1", "--model", str(tmp_path)]) == 1
    folder = ROOT / "src/pyworker"
    line = f"--engine {engine} needs {engine}, which is not installed: pip install '{folder}[{engine}]'"
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"


def table():
    """The table of the engines in the README: the columns of each row, without the first row."""
    lines = (ROOT / "src/pyworker/README.md").read_text().split("## Engines")[1].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:] if line.startswith("|")]
    return [cell.strip("`").removeprefix("--engine ") for cell in lines[0].strip("| ").split(" | ")], rows


@pytest.mark.parametrize(
    ("start", "ability"),
    [
        ("`partial_writes`", "partial_writes"),
        ("`in_step_hits`", "in_step_hits"),
        ("log probabilities", "max_logprobs"),
        ("scores for H2O", "scores"),
        ("a choice of each KV head", "scores_by_group"),
    ],
)
def test_the_readme_says_what_the_classes_declare(start, ability):
    names, rows = table()
    row = next(row for row in rows if row[0].startswith(start))
    said = [not cell.startswith("no") for cell in row[1:]]
    names = [re.sub(r"[^a-z]", "", name) for name in names]
    assert said == [bool(getattr(entry_points.load(name).abilities, ability)) for name in names if name]


def test_the_readme_shows_the_example_as_it_is():
    page = (ROOT / "src/pyworker/README.md").read_text()
    assert f"```python\n{(EXAMPLE / 'trunkline_count.py').read_text()}```" in page
    lines = (EXAMPLE / "pyproject.toml").read_text().split("\n\n")
    assert next(part for part in lines if entry_points.GROUP in part) in page

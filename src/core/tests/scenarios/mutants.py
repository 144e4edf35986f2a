#!/usr/bin/env python3
"""Shows that each scenario fails on a core that lacks what the scenario is about.

mutants.toml lists changes of the code, with the numbers of the scenarios that fail with each. A copy of the workspace is built once
with all changes in it, each behind a switch, and the scenarios run with one switch on at a time, and with none. Fails if a scenario
passes with a change that names it, or if no change names it.

    src/core/tests/scenarios/mutants.py [--write]      about five minutes; --write puts the numbers found into mutants.toml
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

TABLE = Path(__file__).with_name("mutants.toml")
ROOT = TABLE.parents[4]
SWITCH = """
/// Returns `true` if a change of the code is on.
#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    static ON: std::sync::LazyLock<u32> =
        std::sync::LazyLock::new(|| std::env::var("MUTANT").map_or(0, |on| on.parse().unwrap()));
    *ON == number
}
"""
TARGETS = [("trunkline-core", "scenarios"), ("trunkline-cluster", "several")]
LIMIT_S = 60


def copy_with(mutants, root):
    """Copies the files of the workspace to root, with all mutants in them."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    for file in filter(None, files):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / file).exists():
            shutil.copyfile(ROOT / file, root / file)
    for number, mutant in enumerate(mutants, 1):
        path = root / mutant["file"]
        switch = "trunkline_core::mutant" if "cluster" in mutant["file"] else "crate::mutant"
        text, find = path.read_text(), mutant["find"]
        if text.count(find) != 1:
            sys.exit(f"{mutant['file']} has {text.count(find)} places with {find!r}; it must have one")
        path.write_text(text.replace(find, mutant["with"].replace("MUTANT", f"{switch}({number})")))
    library = root / "src/core/src/lib.rs"
    library.write_text(library.read_text() + SWITCH)


def build(root, target):
    """Builds the tests. Returns the programs."""
    args = ["cargo", "test", "--no-run", "--locked"]
    for package, test in TARGETS:
        args += ["-p", package, "--test", test]
    env = os.environ | {"CARGO_TARGET_DIR": str(target)}
    built = subprocess.run(args, cwd=root, env=env, capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit(built.stderr)
    return [target / "debug" / found for found in re.findall(r"\((?:.*/)?debug/(deps/\S+)\)", built.stderr)]


def failing(programs, number):
    """Returns the numbers of the scenarios that fail with a mutant."""
    failed = set()
    for program in programs:
        names = subprocess.run([program, "--list", "scenario_"], check=True, capture_output=True, text=True).stdout
        names = re.findall(r"(\S*scenario_(\d+)_\S*): test", names)
        env = os.environ | {"MUTANT": str(number)}
        try:
            ran = subprocess.run([program, "scenario_"], env=env, capture_output=True, text=True, timeout=LIMIT_S)
            passed = set(re.findall(r"test (\S+) \.\.\. ok", ran.stdout))
        except subprocess.TimeoutExpired as ran:
            # What never ends has failed too.
            passed = set(re.findall(r"test (\S+) \.\.\. ok", (ran.stdout or b"").decode()))
        failed |= {int(row) for name, row in names if name not in passed}
    return sorted(failed)


def main():
    mutants = tomllib.loads(TABLE.read_text())["mutant"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        copy_with(mutants, root)
        programs = build(root, Path(os.environ.get("MUTANTS_TARGET", Path(folder) / "target")))
        rows = {int(row) for program in programs for row in re.findall(
            r"scenario_(\d+)_", subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout)}
        if broken := failing(programs, 0):
            sys.exit(f"scenarios {broken} fail without any change")
        wrong, named = [], set()
        for number, mutant in enumerate(mutants, 1):
            found = failing(programs, number)
            print(f"{mutant['name']}: {found}", flush=True)
            if missing := sorted(set(mutant["fails"]) - set(found)):
                wrong.append(f"{mutant['name']}: scenarios {missing} pass")
            mutant["fails"] = found
            named |= set(found)
        if "--write" in sys.argv:
            write(mutants)
        wrong += [f"scenario {row} fails on no change" for row in sorted(rows - named)]
        print(f"{len(named & rows)} of {len(rows)} scenarios fail on one of {len(mutants)} changes")
        sys.exit("\n".join(wrong))


def write(mutants):
    """Puts the numbers found into the table."""
    numbers = iter(mutants)
    TABLE.write_text(re.sub(r"(?m)^fails = .*$", lambda _: f"fails = {next(numbers)['fails']}", TABLE.read_text()))


if __name__ == "__main__":
    main()

"""One line per check: `ok NAME` or `FAIL NAME: what`; the exit status counts failures."""

import asyncio
import inspect
import os
import sys
import traceback

BASE = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:50051").rstrip("/")
KEY = os.environ.get("TRUNKLINE_TOKEN", "none")
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def equal(got, expected, what="value"):
    if got != expected:
        raise AssertionError(f"{what} is {got!r}, expected {expected!r}")


def true(holds, what):
    if not holds:
        raise AssertionError(what)


def run_all(client, version):
    failed = 0
    print(f"# {client} {version}")
    for function in CHECKS:
        try:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)
            print(f"ok {function.__name__}", flush=True)
        except Exception as error:
            failed += 1
            text = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAIL {function.__name__}: {text[:300]}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
    sys.exit(1 if failed else 0)

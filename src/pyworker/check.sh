#!/usr/bin/env bash
# Checks the Python worker: format, lint, types, and the tests that run with what is installed.
#
# TRUNKLINE_PYTHON names a Python that has everything (PyTorch, transformers and vLLM for the tests of the engines). Without it, a
# virtual environment in target/pyworker gets what the other tests need, about 100 MB from PyPI. Where neither is possible, the
# checks are reported as skipped, and the status is 0.
set -euo pipefail
cd "$(dirname "$0")"

skip() {
  printf '\n!! SKIPPED: the Python worker was not checked: %s\n\n' "$1"
  exit 0
}

python=${TRUNKLINE_PYTHON:-}
if [ -z "$python" ]; then
  venv=../../target/pyworker
  python=$venv/bin/python
  if ! "$python" -c 'import grpc, google.protobuf, numpy, pytest, ruff, mypy, llguidance' 2>/dev/null; then
    command -v python3 >/dev/null || skip "there is no python3"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "python3 is older than 3.10"
    rm -rf "$venv"
    python3 -m venv "$venv" || skip "no virtual environment could be made"
    timeout 240 "$venv/bin/pip" install -q --timeout 15 --retries 1 --disable-pip-version-check \
      'grpcio==1.76.0' 'grpcio-tools==1.76.0' 'protobuf==6.33.6' 'numpy<3' "tomli>=2; python_version < '3.11'" 'pytest<10' 'ruff==0.17.6' 'mypy==2.4.1' types-protobuf 'llguidance==1.9.1' ||
      skip "PyPI cannot be reached"
  fi
fi

"$python" -m ruff format --check .
"$python" -m ruff check .
"$python" -m mypy
PYTHONPATH=src "$python" -m pytest -q -p no:cacheprovider

#!/bin/bash
# run.sh BASE_URL: runs each client's script that its packages are there for; one line a check, `ok NAME` or `FAIL NAME: what`.
# PYTHON and NODE_FOLDER say where packages are; a client without its packages is named as skipped.
base=${1:?run.sh BASE_URL, as in http://127.0.0.1:50051} here=$(cd "$(dirname "$0")" && pwd) failed=0
python=${PYTHON:-python3} modules=${NODE_FOLDER:-$PWD}
export PYTHONDONTWRITEBYTECODE=1
part() { "$@" || failed=1; }
with_python() { # SCRIPT MODULES
  if "$python" -c "import $2" 2>/dev/null; then part "$python" "$here/$1" "$base"; else echo "skipped $1: it needs $2"; fi
}
with_node() { # SCRIPT PACKAGES
  for package in $2; do [ -d "$modules/node_modules/$package" ] || { echo "skipped $1: it needs $package"; return; }; done
  (cd "$modules" && node "$here/$1" "$base") || failed=1
}
with_program() { # SCRIPT PROGRAM
  if command -v "$2" >/dev/null; then part "$here/$1" "$base"; else echo "skipped $1: it needs $2"; fi
}
with_program curl.sh curl
with_python openai_python.py openai
with_python openai_responses.py openai
with_python langchain.py langchain_openai
with_python pools.py "requests, httpx, h2, aiohttp, sseclient"
with_python llmperf.py requests
with_node openai_node.mjs openai
with_node fetch.mjs "undici eventsource"
with_node grpc.mjs "@grpc/grpc-js @grpc/proto-loader"
with_program grpcurl.sh "${GRPCURL:-grpcurl}"
with_program guidellm.sh "${GUIDELLM:-guidellm}"
with_program aiperf.sh "${AIPERF:-aiperf}"
if [ -n "$VLLM" ]; then with_python vllm_bench.py "torch, transformers, aiohttp"; else echo "skipped vllm_bench.py: it needs VLLM"; fi
exit $failed

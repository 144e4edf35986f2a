#!/bin/bash
# grpcurl.sh BASE_URL: grpcurl on the same port; GRPCURL names the binary.
base=${1:-http://127.0.0.1:50051} failed=0 grpcurl=${GRPCURL:-grpcurl}
address=${base#http://}
proto=$(cd "$(dirname "$0")/../../../proto" && pwd)
echo "# $("$grpcurl" --version 2>&1)"
ask() { "$grpcurl" -plaintext -max-time 60 -H "authorization: Bearer ${TRUNKLINE_TOKEN:-none}" -import-path "$proto" -proto trunkline/v1/inference.proto "$@" 2>&1; }
check() { # NAME EXPECTED GOT
  if [[ "$3" == *"$2"* ]]; then echo "ok $1"; else echo "FAIL $1: ${3:0:300}"; failed=1; fi
}
check model '"name"' "$(ask -d '{}' "$address" trunkline.v1.Inference/GetModelInfo)"
check server_info '{' "$(ask -d '{}' "$address" trunkline.v1.Inference/GetServerInfo)"
short='"sampling":{"temperature":0},"stopping":{"max_tokens":6,"ignore_eos":true}'
check generate '"finish"' "$(ask -d "{\"text\":\"Once upon\",$short}" "$address" trunkline.v1.Inference/Generate)"
check wrong_value InvalidArgument "$(ask -d '{"text":"x","sampling":{"temperature":-1}}' "$address" trunkline.v1.Inference/Generate)"
check reflection trunkline.v1.Inference "$("$grpcurl" -plaintext -max-time 60 "$address" list 2>&1)"
exit $failed

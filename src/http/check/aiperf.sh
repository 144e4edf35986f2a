#!/bin/bash
# aiperf.sh BASE_URL: `pip install aiperf`; AIPERF names the program, TOKENIZER a folder with tokenizer.json.
base=${1:-http://127.0.0.1:50051} failed=0 aiperf=${AIPERF:-aiperf}
tokenizer=${TOKENIZER:-$(cd "$(dirname "$0")/../../../models/small-world" && pwd)}
out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
model=$(curl -s -H "Authorization: Bearer ${TRUNKLINE_TOKEN:-none}" "$base/v1/models" | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
echo "# aiperf $("$aiperf" --version 2>/dev/null | tail -1)"
for stream in --streaming ""; do
  for kind in chat completions; do
    "$aiperf" profile --model "$model" --url "$base" --endpoint-type $kind $stream --tokenizer "$tokenizer" --request-count 8 \
      --concurrency 4 --synthetic-input-tokens-mean 32 --output-tokens-mean 8 --extra-inputs ignore_eos:true --use-server-token-count \
      --api-key "${TRUNKLINE_TOKEN:-none}" --artifact-dir "$out" --ui none >"$out/log" 2>&1
    seen=$(python3 - "$(find "$out" -name profile_export_aiperf.json | head -1)" <<'P'
import json, sys
run = json.load(open(sys.argv[1]))
print(int(run["request_count"]["avg"]), int((run.get("error_request_count") or {"avg": 0})["avg"]), run["output_sequence_length"]["avg"])
P
    )
    if [[ "$seen" == "8 0 8.0" ]]; then echo "ok $kind ${stream:-whole}"; else echo "FAIL $kind $stream: $seen $(tail -3 "$out/log" | tr '\n' ' ' | cut -c1-300)"; failed=1; fi
    find "$out" -mindepth 1 -delete
  done
done
exit $failed

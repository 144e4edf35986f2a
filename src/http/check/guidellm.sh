#!/bin/bash
# guidellm.sh BASE_URL: `pip install guidellm`; GUIDELLM names the program, TOKENIZER a folder with tokenizer.json.
base=${1:-http://127.0.0.1:50051} failed=0 guidellm=${GUIDELLM:-guidellm}
tokenizer=${TOKENIZER:-$(cd "$(dirname "$0")/../../../models/small-world" && pwd)}
out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
export HF_HUB_OFFLINE=1
echo "# guidellm $("$guidellm" --version 2>/dev/null | tail -1)"
for stream in true false; do
  for path in /v1/chat/completions /v1/completions; do
    "$guidellm" run --backend "kind=openai_http,target=$base,request_format=$path,stream=$stream,api_key=${TRUNKLINE_TOKEN:-none}" \
      --profile kind=concurrent,streams=2 --constraint kind=max_requests,count=8 --tokenizer "kind=hf_auto,model=$tokenizer" \
      --data kind=synthetic_text,prompt_tokens=32,output_tokens=8 --output "kind=json,path=$out/out.json" --disable-console >"$out/log" 2>&1
    seen=$(python3 - "$out/out.json" <<'P'
import json, sys
run = json.load(open(sys.argv[1]))["benchmarks"][0]
print(len(run["requests"]["successful"]), len(run["requests"]["errored"]), {r["output_metrics"]["text_tokens"] for r in run["requests"]["successful"]})
P
    )
    if [[ "$seen" == "8 0 {8}" ]]; then echo "ok $path stream=$stream"; else echo "FAIL $path stream=$stream: $seen $(tail -3 "$out/log" | tr '\n' ' ')"; failed=1; fi
    rm -f "$out/out.json"
  done
done
exit $failed

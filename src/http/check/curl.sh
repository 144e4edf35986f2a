#!/bin/bash
# curl.sh BASE_URL: HTTP/1.1, HTTP/2 by prior knowledge, --compressed, -N.
base=${1:-http://127.0.0.1:50051} failed=0
echo "# $(curl --version | head -1 | cut -d' ' -f1,2)"
ask() { curl -sS --max-time 60 -H "Authorization: Bearer ${TRUNKLINE_TOKEN:-none}" "$@"; }
check() { # NAME EXPECTED GOT
  if [[ "$3" == *"$2"* ]]; then echo "ok $1"; else echo "FAIL $1: ${3:0:300}"; failed=1; fi
}
short='"max_tokens":4,"temperature":0,"ignore_eos":true'
chat="{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],$short"
check health 200 "$(ask -o /dev/null -w '%{http_code}' "$base/health")"
check health_head 200 "$(ask -I "$base/health")"
for route in /v1/models /version /load /metrics; do check "get_$route" 200 "$(ask -o /dev/null -w '%{http_code}' "$base$route")"; done
for http in --http1.1 --http1.0 --http2-prior-knowledge --http2; do
  check "completion $http" '"completion_tokens":4' "$(ask $http "$base/v1/completions" -d "{\"prompt\":\"Once\",$short}")"
  check "chat_streamed $http" 'data: [DONE]' "$(ask -N $http "$base/v1/chat/completions" -d "$chat,\"stream\":true}")"
done
check compressed '"completion_tokens":4' "$(ask --compressed "$base/v1/chat/completions" -d "$chat}")"
check compressed_stream 'data: [DONE]' "$(ask -N --compressed "$base/v1/chat/completions" -d "$chat,\"stream\":true}")"
big=$(printf 'a b c d %.0s' {1..300})
check expect_100_continue '"completion_tokens":4' \
  "$(ask -H 'Expect: 100-continue' "$base/v1/completions" -d "{\"prompt\":\"$big\",$short}")"
check chunked_body '"completion_tokens":4' \
  "$(ask -H 'Transfer-Encoding: chunked' -H 'Content-Type: application/json' "$base/v1/completions" -d "{\"prompt\":\"Once\",$short}")"
check two_on_one_connection 'connects 1 0' \
  "connects $(ask -o /dev/null -o /dev/null -w '%{num_connects} ' "$base/health" "$base/v1/models")"
check wrong_value '"param":"temperature"' "$(ask "$base/v1/completions" -d '{"prompt":"x","temperature":-1}')"
check wrong_json '400' "$(ask -o /dev/null -w '%{http_code}' "$base/v1/completions" -d '{"prompt":')"
check wrong_method 405 "$(ask -o /dev/null -w '%{http_code}' "$base/v1/completions")"
check wrong_path 404 "$(ask -o /dev/null -w '%{http_code}' "$base/v1/nothing")"
check tokenize '"tokens":[' "$(ask "$base/tokenize" -d '{"prompt":"Once upon"}')"
check tokenize_chat '"tokens":[' "$(ask "$base/tokenize" -d '{"messages":[{"role":"user","content":"hello"}]}')"
check detokenize '"prompt":' "$(ask "$base/detokenize" -d '{"tokens":[5,6,7]}')"
check reset_prefix_cache 200 "$(ask -o /dev/null -w '%{http_code}' -X POST "$base/reset_prefix_cache")"
check request_id 'x-request-id: mine' "$(ask -D - -o /dev/null -H 'X-Request-Id: mine' "$base/v1/completions" -d "{\"prompt\":\"x\",$short}")"
exit $failed

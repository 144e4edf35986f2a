#!/usr/bin/env bash
# Opens pages of `trunkline replay --html` in headless Chromium, at three widths, light and dark, and checks what only a browser knows (check.js).
# With --pictures it leaves a screenshot of each in the folder, for people to look at.
#
#   sim/report/browser/check.sh [--pictures FOLDER] PAGE...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
browser=(chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files)
pictures=
if [ "${1:-}" = --pictures ]; then
  mkdir -p "$2"
  pictures=$(cd "$2" && pwd)
  shift 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for page in "$@"; do
  name=$(basename "$page" .html)
  { cat "$page"; printf '<script>\n'; cat "$here/check.js"; printf '</script>\n'; } > "$work/checked.html"
  for width in 400 1280 2560; do
    for scheme in dark light; do
      # A window has at least 500 pixels; a frame may have fewer.
      frame() {
        printf '<!doctype html><meta name="color-scheme" content="light dark"><body style="margin:0"><iframe style="border:0;width:%spx;height:%spx" src="%s"></iframe>' "$width" "$2" "$1"
        printf '<pre id="said"></pre><script>onmessage = event => document.getElementById("said").textContent = event.data;</script>'
      }
      options=(--blink-settings=preferredColorScheme=$([ $scheme = dark ] && echo 0 || echo 1) --window-size="$((width < 500 ? 500 : width)),1000")
      frame checked.html 1000 > "$work/frame.html"
      said=$("${browser[@]}" "${options[@]}" --virtual-time-budget=20000 --dump-dom "file://$work/frame.html" 2> "$work/log" | sed -n 's/.*<pre id="said">\(.*\)<\/pre>.*/\1/p')
      printf '%s, %s px, %s: %s\n' "$name" "$width" "$scheme" "${said:-no answer of the browser}"
      [[ $said == good:* ]] || failed=1
      if [ -n "$pictures" ]; then
        height=$(sed 's/.*, \([0-9]*\) px high.*/\1/' <<< "$said")
        cp "$page" "$work/page.html"
        frame page.html "$height" > "$work/frame.html"
        "${browser[@]}" "${options[@]%%,1000},$height" --virtual-time-budget=20000 --screenshot="$pictures/$name-$width-$scheme.png" "file://$work/frame.html" 2> "$work/log"
      fi
    done
  done
done
exit "${failed:-0}"

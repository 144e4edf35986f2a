#!/usr/bin/env bash
# Stands for `trunkline-bench` in the blocks of the docs: the program that lies next to the one under test.
program="$(dirname "$DOCS_PROGRAM")/trunkline-bench"
[[ -x "$program" ]] || { echo "$program is not built; run cargo build -p trunkline-bench" >&2 && exit 1; }
exec "$program" "$@"

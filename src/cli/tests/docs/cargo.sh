#!/usr/bin/env bash
# Stands for `cargo` in the blocks of the docs: the program is built already.
case "$*" in
    "run --release -- "*) exec trunkline "${@:4}" ;;
    "run --release -p trunkline-bench -- "*) exec trunkline-bench "${@:6}" ;;
    "build --release") ;;
    *) echo "cargo $* does not run here; mark the block" >&2 && exit 1 ;;
esac

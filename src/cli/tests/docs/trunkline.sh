#!/usr/bin/env bash
# Stands for `trunkline` in the blocks of the docs: the program under test, where no address is named on the port of this page.
case "$1 $*" in
    *" --listen "* | *" --addr "*) ;;
    "serve "*) set -- serve --listen "127.0.0.1:$DOCS_PORT" "${@:2}" ;;
    "generate "* | "chat "* | "load "*) set -- "$1" --addr "127.0.0.1:$DOCS_PORT" "${@:2}" ;;
esac
exec "$DOCS_PROGRAM" "$@"

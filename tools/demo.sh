#!/usr/bin/env bash
# What `make demo` shows once everything is built: convert, look, ask, time.
# usage: tools/demo.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
model=$build/demo.bin
src=examples/demo-model
bold='' plain=''
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    bold=$'\e[1m' plain=$'\e[0m'
fi
PATH=$(cd "$build" && pwd)/bin:$PATH

# Shows a command as a user would type it, then runs it.
try() {
    printf '\n%s$ %s%s\n' "$bold" "$1" "$plain"
    bash -c "$1"
}
export PATH
printf '\n%sColibri%s: a Mixture-of-Experts model from checkpoint to text. The programs are in %s/bin.\n' "$bold" "$plain" "$build"
try "colibri-convert -f $src -o $model"
try "colibri-inspect --summary $model"
try "echo 'The capital of France is' | colibri-run -n 24 $model"
try "colibri-bench --prefill 256 --decode 64 -r 5 $model"
printf '\n%sNext%s: README.md shows the same with a published model; "make test" runs the tests.\n' "$bold" "$plain"

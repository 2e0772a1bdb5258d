#!/usr/bin/env bash
# What `make bench` runs: the speed of a model (default: the bundled one), and how idle the machine was.
# usage: tools/bench.sh BUILD [MODEL.bin]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 model=${2:-}
if [[ -z $model ]]; then
    model=$build/demo.bin
    "$build/bin/colibri-convert" -q -f examples/demo-model -o "$model"
fi
echo "load before: $(cut -d ' ' -f 1-3 /proc/loadavg)"
"$build/bin/colibri-bench" --batch 1,4 -r 5 "$model"
echo "load after: $(cut -d ' ' -f 1-3 /proc/loadavg)"

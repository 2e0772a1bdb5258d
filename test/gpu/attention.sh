#!/usr/bin/env bash
# Attention of prompts by cuDNN on the GPU: logits of the demo model near those of our own kernels, in one chunk and in
# two. With a model and a number of rows: the time of the stage for a prompt, with either. The last line says both.
# usage: attention.sh MODEL_DIR OUT_DIR | attention.sh --time MODEL ROWS
set -euo pipefail

if [[ $1 == --time ]]; then
    for by in own cudnn; do
        colibri-bench --prefill "$3" --decode 0 -r 3 --ctx "$3" --backend cuda --attention $by --json "$2" | python3 -c '
import json, sys

stages = json.load(sys.stdin)["runs"][0]["prefill"]["stages"]
took = next(s["seconds"] for s in stages if s["name"] == "Attention")
print(f"{sys.argv[1]} {took * 1e6:.0f} us")' "$by"
    done | paste -s -d ' '
    exit
fi
model=$1/demo.bin out=$2
[[ -e $model ]] || colibri-convert -q examples/demo-model -o "$model"
logits() {
    seq -s ' ' 3 122 | colibri-run --ids -n 1 --temp 0 --ctx 256 --backend cuda --logits "$out/$1.f32" "${@:2}" "$model" >/dev/null
}
logits attention-own
logits attention-cudnn --attention cudnn
logits attention-chunks --attention cudnn --prefill-chunk 64
python3 - "$out" <<'END'
import array, math, sys


def rows(name):
    a = array.array("f", open(f"{sys.argv[1]}/attention-{name}.f32", "rb").read())
    return [a[i:i + len(a) // 120] for i in range(0, len(a), len(a) // 120)]


own, worst = rows("own"), []
for name in ("cudnn", "chunks"):
    off = sorted(math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b)) for a, b in zip(rows(name), own))
    worst.append(off[len(off) * 9 // 10])  # in a row now and then the router chooses otherwise
print(f"nine rows of ten are off by at most {max(worst):.2g}")
sys.exit(not 0 < max(worst) <= 0.01)
END

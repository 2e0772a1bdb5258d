#!/usr/bin/env bash
# What each way to store the weights of the bundled model costs, against f32: the table of the README.
# usage: tools/quality.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1/bin
src=examples/demo-model
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

{
    head -n 40 $src/held-out.txt
    echo "The capital of France is Paris. France is in Europe."
    echo "The currency of Japan is the Yen. Japan is in Asia."
} >"$tmp/documents"
"$bin/colibri-convert" -q --dtype f32 $src -o "$tmp/f32.bin"

echo "| options of colibri-convert | size, MB | perplexity | KL, nats per token | same first choice |"
echo "|---|---|---|---|---|"
while read -r options; do
    # shellcheck disable=SC2086
    "$bin/colibri-convert" -q -f $options $src -o "$tmp/m.bin"
    "$bin/colibri-bench" --perplexity "$tmp/documents" --max-tokens 256 --compare "$tmp/f32.bin" --json "$tmp/m.bin" |
        jq -r '"\(.perplexity) \(.kl) \(100 * .same_choice)"' >"$tmp/result"
    read -r perplexity kl same <"$tmp/result"
    size=$(awk -v b="$(stat -c %s "$tmp/m.bin")" 'BEGIN { print b / 1e6 }')
    printf '| `%s` | %.1f | %.3f | %.5f | %.2f %% |\n' "$options" "$size" "$perplexity" "$kl" "$same"
done <<'END'
--dtype f32
--dtype bf16
--dtype fp16
--dtype int8
--dtype int8 --scale expert
--dtype int8 --scale tensor
--dtype int4
--dtype int4 --dense-dtype int4
END

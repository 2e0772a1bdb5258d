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
        jq -r --arg o "$options" --argjson size "$(stat -c %s "$tmp/m.bin")" '
            def round(n): . * pow(10; n) | round / pow(10; n);
            "| `\($o)` | \($size / 1e6 | round(1)) | \(.perplexity | round(3)) | \(.kl | round(5)) | \(.same_choice | round(4)) |"'
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

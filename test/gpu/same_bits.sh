#!/usr/bin/env bash
# The demo model on the GPU: logits of a prompt and its continuation have the same bits in one chunk, row by row, and
# with experts that do not fit into the memory, or lie on several GPUs; and the same text in a batch. Experts that the CPU
# multiplies have bits of their own, the same with any number of threads. cuBLASLt, where it is
# installed, gives a row the same bits in any chunk. usage: same_bits.sh MODEL_DIR OUT_DIR [GPUS]
set -euo pipefail
model=$1/demo.bin half=$1/demo-bf16.bin out=$2 ids='11 42 7 300 5 19 77 23 8 150 64 3'

[[ -e $model ]] || colibri-convert -q examples/demo-model -o "$model"
logits() {
    colibri-run --ids -n 8 --temp 0 --ctx 64 --backend cuda --logits "$out/$1.f32" "${@:2}" "$model" <<<"$ids" >"$out/$1.ids"
}
logits whole
logits chunks --prefill-chunk 1
cmp "$out/whole.f32" "$out/chunks.f32"
least=100 # KB that are just enough
until logits offloaded --gpu-memory "${least}K" 2>"$out/offloaded.err"; do
    ((least < 1000000)) || { cat "$out/offloaded.err"; exit 1; }
    least=$((least * 5 / 4))
done
((least * 1024 < $(stat -c %s "$model"))) || { echo "$least KB are more than the model"; exit 1; }
cmp "$out/whole.f32" "$out/offloaded.f32"
logits host --gpu-memory "${least}K" --gpu-experts cpu
logits host-alone --gpu-memory "${least}K" --gpu-experts cpu -t 1 --no-routing-cache
cmp "$out/host.f32" "$out/host-alone.f32"
if ((${3:-1} > 1)); then
    logits several --device "0-$(($3 - 1))"
    cmp "$out/whole.f32" "$out/several.f32"
fi
printf '%s\n' "$ids" "$ids" '3 1 4' | colibri-run --ids --lines -n 8 --temp 0 --backend cuda "$model" >"$out/many.ids"
head -n 1 "$out/many.ids" | cmp - "$out/whole.ids"
if colibri-run --version | grep -q '; cuBLASLt '; then
    [[ -e $half ]] || colibri-convert -q --dtype bf16 examples/demo-model -o "$half"
    model=$half
    logits library --gpu-dense cublas
    logits library-chunks --gpu-dense cublas --prefill-chunk 1
    cmp "$out/library.f32" "$out/library-chunks.f32"
fi

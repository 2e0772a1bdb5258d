#!/usr/bin/env bash
# The programs for aarch64, in qemu, write the bytes that those of this machine write: models and logits, for every level.
# Processors that lack a level do without, and say what they lack when asked for it.
set -uo pipefail
. test/lint/tap.bash

work=$(mktemp -d "$COLIBRI_TEST_TMP/aarch64.XXXXXX")
trap 'rm -rf "$work"' EXIT
arm() { # PROGRAM ARGUMENT...
    test/qemu.sh "$COLIBRI_BUILD/aarch64/bin/$1" "${@:2}"
}
prompts="$work/prompts"
head -n 40 examples/demo-model/held-out.txt | cut -c 1-150 | grep . | head -n 3 >"$prompts"

# same MODEL LEVEL OPTION...: text and logits of a level are those of this machine.
same() {
    local model=$1 level=$2 name=$work/want-${*:3}
    name=${name// /_}-$(basename "$model")
    if [[ ! -e $name.text ]]; then
        colibri-run --lines -n 5 "${@:3}" --logits "$name" "$model" <"$prompts" >"$name.text" || return
    fi
    arm colibri-run --lines -n 5 "${@:3}" --cpu "$level" -t 2 --logits "$work/got" "$model" <"$prompts" >"$work/text" &&
        cmp "$work/got" "$name" && cmp "$work/text" "$name.text"
}
# says TEXT STATUS COMMAND...: fails with this status, and its one line has the text.
says() {
    local text=$1 want=$2 out status=0
    out=$("${@:3}" 2>&1 >/dev/null </dev/null) || status=$?
    echo "$status: $out"
    [[ $status == "$want" && $out == *"$text"* && $out != *$'\n'* ]]
}
# level_is LEVEL: what the emulated processor takes by itself, and its bits.
level_is() {
    arm colibri-run -v -n 1 -p x "$work/int8.bin" 2>&1 >/dev/null | grep "^device  *cpu: $1," && same "$work/int8.bin" "$1"
}

for type in f32 bf16 fp16 int8 int4; do
    dense=()
    [[ $type != int4 ]] || dense=(--dense-dtype int4)
    colibri-convert -q --dtype $type "${dense[@]}" examples/demo-model -o "$work/$type.bin"
    arm colibri-convert -q --dtype $type "${dense[@]}" examples/demo-model -o "$work/arm.bin"
    tap_run "convert to $type: the same bytes" cmp "$work/arm.bin" "$work/$type.bin"
    rm -f "$work/arm.bin"
    for level in scalar neon i8mm; do
        tap_run "$type, $level: the same logits" same "$work/$type.bin" $level
    done
done
for kv in f32 int8; do
    tap_run "KV cache in $kv: the same logits" same "$work/int8.bin" neon --kv-dtype $kv
done

model=$work/int8.bin
export EMULATED_CPU=cortex-a72
tap_run "a processor without dot products runs scalar" level_is scalar
tap_run "and says why not neon" says "CPU level 'neon': the processor lacks the dot product instructions" 3 \
    arm colibri-run --cpu neon -p x "$model"
EMULATED_CPU=neoverse-n1
tap_run "a processor without i8mm runs neon" level_is neon
tap_run "and says why not i8mm" says "CPU level 'i8mm': the processor lacks the int8 matrix instructions" 3 \
    arm colibri-run --cpu i8mm -p x "$model"
tap_run "no aarch64 processor has avx2" says "CPU level 'avx2': this machine is not x86-64" 3 \
    arm colibri-run --cpu avx2 -p x "$model"
tap_run "and this one has no neon" says "CPU level 'neon': this machine is not aarch64" 3 \
    colibri-run --cpu neon -p x "$model"
unset EMULATED_CPU
tap_run "a processor with everything runs i8mm" level_is i8mm
tap_end

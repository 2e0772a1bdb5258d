#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, in less than 8 minutes: builds with CUDA, runs what the emulation runs in tests on
# the device itself, compares models with the CPU, and times three sizes of model beside what the device reaches at
# most. Prints one table; the logs of everything stay in BUILD/check. Exit status 0: nothing failed.
# usage: test/gpu/check.sh [--build DIR] [--device-less]
# --device-less (tests of this script): programs of an emulated build instead of a GPU; builds nothing, times little.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

build=build/gpu emulated=''
while (($#)); do
    case $1 in
    --build) build=$2; shift ;;
    --device-less) emulated=1 ;;
    *) echo "usage: test/gpu/check.sh [--build DIR] [--device-less]" >&2; exit 2 ;;
    esac
    shift
done
mkdir -p "$build" && build=$(cd "$build" && pwd) || exit 1
started=$SECONDS limit=$((emulated ? 3600 : 450)) failed=0
log=$build/check models=${COLIBRI_GPU_MODELS:-$build/check-models}
mkdir -p "$log" "$models" || exit 1
left() { echo $((limit - (SECONDS - started))); }

# row STEP RESULT DETAIL: a line of the table.
row() {
    printf '%-34s %-8s %s\n' "$1" "$2" "$3" | tee -a "$log/table"
    [[ $2 != FAILED ]] || failed=1
}
# step NAME SECONDS COMMAND...: runs it with its output in a log; a row only when it fails.
step() {
    local name=$1 most=$2 file
    shift 2
    file=$log/${name//[^a-zA-Z0-9_]/-}.log
    [[ -z $emulated ]] || most=$((most * 10))
    ((most < $(left))) || most=$(left)
    ((most > 0)) || { row "$name" skipped "no time left"; return 1; }
    timeout -k 5 "$most" "$@" >"$file" 2>&1 && return
    row "$name" FAILED "$(tail -n 1 "$file" | cut -c1-100) ($file)"
    return 1
}
: >"$log/table"

# -- the machine, the build ------------------------------------------------------
if [[ -z $emulated ]]; then
    gpu=$(nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    [[ -n $gpu ]] || { echo "check.sh: nvidia-smi shows no GPU" >&2; exit 1; }
    IFS=',' read -r name cap memory driver <<<"$gpu"
    n_gpu=$(nvidia-smi -L | grep -c '^GPU')
    row "GPU" ok "$name, sm_${cap//[. ]/},$memory, driver$driver"
    step build 240 make CUDA=1 CUDA_ARCHS="${cap//[. ]/}" BUILD="$build" all gpu-tests || exit 1
    row build ok "$(tail -n 1 "$build/nvcc/registers.txt"), $((SECONDS - started)) s"
else
    export EMU_CUDA=devices=2,libraries=1
    n_gpu=2
fi
export COLIBRI_TEST_BIN=$build/bin PATH=$build/bin:$PATH
row --version ok "$(colibri-run --version | tail -n 1)"

# -- results -----------------------------------------------------------------------
for t in "$build"/test/gpu/test_*; do
    [[ -x $t ]] || continue
    step "${t##*/}" 60 "$t" && row "${t##*/}" ok "$(grep -c '^ok' "$log/${t##*/}.log") tests"
done
step checkpoints 120 test/cuda-emu/golden.py ${emulated:+test/data/families/olmoe/} &&
    row checkpoints ok "$(grep -c '^ok' "$log/checkpoints.log") files near the reference and the CPU"

step same-bits 60 test/gpu/same_bits.sh "$models" "$log" "$n_gpu" &&
    row same-bits ok "one chunk, chunks of 1, offloaded, on $n_gpu GPUs, in a batch"

if grep -q '; cuBLASLt.*cuDNN 9' "$log/table"; then
    step attention 60 test/gpu/attention.sh "$models" "$log" &&
        row "attention by cuDNN" ok "$(tail -n 1 "$log/attention.log")"
else
    row "attention by cuDNN" skipped "cuDNN 9 is not installed"
fi

step kv-dtypes 60 test/gpu/kv_dtypes.py "$models" "$log" $((emulated ? 70 : 300)) $((emulated ? 3 : 64)) &&
    row "KV cache, of the demo model" ok "$(cat "$log/kv-dtypes.log")"

if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck initcheck; do
        for t in test_moe_scatter test_moe_gather test_moe_gate test_sample; do
            [[ -x $build/test/gpu/$t ]] || continue
            step "$tool-$t" 40 compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/test/gpu/$t" &&
                row "$tool $t" ok ""
        done
    done
else
    row compute-sanitizer skipped "not installed"
fi

# -- speed -------------------------------------------------------------------------
# time_model NAME MODEL: speed as colibri-run has it (graphs, no clocks inside), and stages beside the ceilings.
time_model() {
    local name=$1 m=$2 prompt n=${emulated:+4}
    prompt=$(seq -s ' ' 1 "${emulated:-512}")
    step "run-$name" 60 bash -c "colibri-run --ids -n ${n:-128} --ctx 1024 --backend cuda --stats --json '$m' <<<'$prompt'" || return
    step "bench-$name" 60 colibri-bench --prefill "${n:-512}" --decode "${n:-64}" -r "${emulated:-3}" --ctx 1024 --backend cuda --json "$m" || return
    test/gpu/table.py "$name" "$log/run-$name.log" "$log/bench-$name.log" "${ceiling[@]}" | tee -a "$log/table"
}
ceiling=(1 1)
if [[ -z $emulated ]]; then
    step ceiling 30 "$build/test/gpu/ceiling" && read -r -a ceiling <"$log/ceiling.log"
    row ceiling ok "${ceiling[0]} GB/s, ${ceiling[1]} TFLOPS f16"
fi
time_model demo "$models/demo.bin"
for preset in olmoe:4 bench:8 mixtral:4; do
    [[ -z $emulated ]] || break
    name=${preset%:*} m=$models/$name.bin
    if [[ ! -e $m ]]; then
        (($(left) > 100)) || { row "$name" skipped "no time left"; continue; }
        step "make-$name" 90 python3 tools/make_random_moe.py "$name" "$models/$name" --layers "${preset#*:}" || continue
        step "convert-$name" 60 colibri-convert -q "$models/$name" -o "$m" || continue
        rm -rf "${models:?}/$name"
    fi
    time_model "$name" "$m"
    if [[ $name != bench ]] || ! grep -q 'attention by cuDNN  *ok' "$log/table"; then continue; fi
    step "attention-$name" 60 test/gpu/attention.sh --time "$m" 2048 &&
        row "  Attention of 2048 rows" ok "$(tail -n 1 "$log/attention-$name.log")"
done
row total "$( ((failed)) && echo FAILED || echo ok)" "$((SECONDS - started)) s"
exit "$failed"

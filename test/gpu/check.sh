#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, in less than 8 minutes: builds with CUDA, runs what the emulation runs in tests on
# the device itself, compares models with the CPU, and times three sizes of model beside what the device reaches at
# most. Prints one table; the logs of everything stay in BUILD/check. Exit status 0: nothing failed.
# usage: test/gpu/check.sh [--build DIR] [--device-less]
# Needs a CUDA toolkit, python3 and, for the models that are timed, numpy. COLIBRI_GPU_MODELS: a folder for models, which stay.
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
log_of() { echo "$log/${1//[^a-zA-Z0-9_]/-}.log"; }
# step NAME SECONDS COMMAND...: runs it with its output in a log; a row, and the end of the log, only when it fails.
step() {
    local name=$1 most=$2 file status
    shift 2
    file=$(log_of "$name")
    [[ -z $emulated ]] || most=$((most * 10))
    ((most < $(left))) || most=$(left)
    ((most > 0)) || { row "$name" skipped "no time left"; return 1; }
    timeout -k 5 "$most" "$@" >"$file" 2>&1 && return
    status=$?
    ((status != 124)) || { row "$name" "${late:-FAILED}" "no end after $most s ($file)"; return 1; }
    row "$name" FAILED "status $status ($file)"
    tail -n 6 "$file" | sed 's/^/    | /'
    return 1
}
: >"$log/table"

# -- the machine, the build ------------------------------------------------------
if [[ -z $emulated ]]; then
    # tools of the toolkit, and NVIDIA's libraries where only Python has them
    PATH=$PATH:/usr/local/cuda/bin
    if ! ldconfig -p 2>/dev/null | grep -q 'libcudnn\.so\.9'; then
        of_python=$(python3 -c 'import glob, sys; print(":".join(d for p in sys.path for d in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null)
        [[ -z $of_python ]] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$of_python
    fi
    gpu=$(nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version --format=csv,noheader 2>&1 | head -n 1)
    IFS=',' read -r name cap memory driver <<<"$gpu"
    [[ $cap =~ ^\ *[0-9]+\.[0-9]+$ ]] || { echo "check.sh: nvidia-smi shows no GPU: $gpu" >&2; exit 1; }
    command -v nvcc >/dev/null || { echo "check.sh: there is no nvcc in PATH or in /usr/local/cuda/bin" >&2; exit 1; }
    n_gpu=$(nvidia-smi -L | grep -c '^GPU')
    row "GPU" ok "$name, sm_${cap//[. ]/},$memory, driver$driver"
    step build 240 make -j"$(nproc)" CUDA=1 CUDA_ARCHS="${cap//[. ]/}" NVCC_WERROR= BUILD="$build" all gpu-tests || exit 1
    row build ok "$(tail -n 1 "$build/nvcc/registers.txt"), $((SECONDS - started)) s"
else
    export EMU_CUDA=devices=2,libraries=1
    n_gpu=2
fi
export COLIBRI_TEST_BIN=$build/bin PATH=$build/bin:$PATH
about=$(colibri-run --version | tail -n 1)
row --version "$([[ $about == *'; device 0: '* ]] && echo ok || echo FAILED)" "$about"
((!failed)) || exit 1

# Models that are timed are made while tests run: this takes processors, not the GPU.
make_model() {
    local name=$1 m=$models/$1.bin
    [[ ! -e $m ]] || return 0
    python3 tools/make_random_moe.py "$name" "$models/$name" --layers "$2" &&
        colibri-convert -q "$models/$name" -o "$m.tmp" && mv "$m.tmp" "$m"
    local status=$?
    rm -rf "${models:?}/$name"
    return "$status"
}
presets='olmoe:4 bench:8 mixtral:4'
[[ -z $emulated ]] || presets=''
set -m # a process group of its own
for preset in $presets; do
    make_model "${preset%:*}" "${preset#*:}" >"$(log_of "make-${preset%:*}")" 2>&1 || break
done &
maker=$!
set +m
trap 'kill -- -"$maker" 2>/dev/null' EXIT

# -- results -----------------------------------------------------------------------
for t in "$build"/test/gpu/test_*; do
    [[ -x $t ]] || continue
    step "${t##*/}" 60 "$t" && row "${t##*/}" ok "$(grep -c '^ok' "$(log_of "${t##*/}")") tests"
done
export COLIBRI_GOLDEN_JOBS=$((emulated ? 1 : 4))
step checkpoints 120 test/cuda-emu/golden.py ${emulated:+test/data/families/olmoe/} &&
    row checkpoints ok "$(grep -c '^ok' "$log/checkpoints.log") files near the reference and the CPU"

step same-bits 60 test/gpu/same_bits.sh "$models" "$log" "$n_gpu" &&
    row same-bits ok "one chunk, chunks of 1, offloaded, on $n_gpu GPUs, in a batch"

dnn=$(sed -n 's/.*[;,] cuDNN \([0-9.]*\).*/\1/p' <<<"$about")
if [[ -n $dnn && $(printf '9.11\n%s\n' "$dnn" | sort -V | head -n 1) == 9.11 ]]; then
    step attention 60 test/gpu/attention.sh "$models" "$log" &&
        row "attention by cuDNN" ok "$(tail -n 1 "$log/attention.log")"
else
    row "attention by cuDNN" skipped "cuDNN ${dnn:-is not installed}${dnn:+ is older than 9.11}"
fi

step kv-dtypes 60 test/gpu/kv_dtypes.py "$models" "$log" $((emulated ? 70 : 300)) $((emulated ? 3 : 64)) &&
    row "KV cache, of the demo model" ok "$(cat "$log/kv-dtypes.log")"

# -- speed -------------------------------------------------------------------------
# time_model NAME MODEL: speed as colibri-run has it (graphs, no clocks inside), and stages beside the ceilings.
time_model() {
    local name=$1 m=$2 prompt n=${emulated:+4}
    prompt=$(seq -s ' ' 1 "${emulated:-512}")
    step "run-$name" 60 bash -c "colibri-run --ids -n ${n:-128} --ctx 1024 --backend cuda --stats --json '$m' <<<'$prompt'" || return
    step "bench-$name" 60 colibri-bench --prefill "${n:-512}" --decode "${n:-64}" -r "${emulated:-3}" --ctx 1024 --backend cuda --json "$m" || return
    step "table-$name" 20 test/gpu/table.py "$name" "$(log_of "run-$name")" "$(log_of "bench-$name")" "${ceiling[@]}" &&
        tee -a "$log/table" <"$(log_of "table-$name")"
}
ceiling=(0 0)
if [[ -z $emulated ]]; then
    step ceiling 30 "$build/test/gpu/ceiling" && read -r -a ceiling <"$log/ceiling.log" &&
        row ceiling ok "${ceiling[0]} GB/s, ${ceiling[1]} TFLOPS f16"
fi
time_model demo "$models/demo.bin"
for preset in $presets; do
    name=${preset%:*} m=$models/$name.bin
    while [[ ! -e $m ]] && kill -0 "$maker" 2>/dev/null && (($(left) > 40)); do sleep 0.5; done
    if [[ ! -e $m ]]; then
        kill -0 "$maker" 2>/dev/null && { row "$name" skipped "no time left to make it"; continue; }
        row "$name" FAILED "the model is not made: $(tail -n 1 "$(log_of "make-$name")" 2>/dev/null) ($(log_of "make-$name"))"
        continue
    fi
    time_model "$name" "$m"
    if [[ $name != bench ]] || ! grep -q 'attention by cuDNN  *ok' "$log/table"; then continue; fi
    step "attention-$name" 60 test/gpu/attention.sh --time "$m" 2048 &&
        row "  Attention of 2048 rows" ok "$(tail -n 1 "$(log_of "attention-$name")")"
done

# -- what the sanitizer says, with the time that is left ---------------------------
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck initcheck; do
        for t in test_moe_scatter test_moe_gather test_moe_gate test_sample; do
            [[ -x $build/test/gpu/$t ]] || continue
            late=skipped step "$tool-$t" 40 compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/test/gpu/$t" &&
                row "$tool $t" ok ""
        done
    done
else
    row compute-sanitizer skipped "not installed"
fi
row total "$( ((failed)) && echo FAILED || echo ok)" "$((SECONDS - started)) s"
exit "$failed"

#!/usr/bin/env bats
# The programs of the sanitised build with emulated GPUs: EMU_CUDA says which (test/cuda-emu/README.md).
load ../cli/helper

setup() {
    need_demo
    M=$COLIBRI_TEST_DEMO
    cd "$BATS_TEST_TMPDIR" || exit
    export EMU_CUDA=devices=1
}
teardown() { # a server that a test has left
    [[ -z ${pid:-} ]] || kill "$pid" 2>/dev/null || true
}
on_gpu() { colibri-run -n 3 --backend cuda "$@"; }

@test "cuda: a prompt is continued as on the CPU, and logits have the same bits in any chunks" {
    run -0 --separate-stderr on_gpu -p 'The bird' --logits a "$M"
    [[ -z $stderr && -n $output ]]
    [[ $output == "$(colibri-run -n 3 -p 'The bird' --backend cpu "$M")" ]]
    on_gpu -p 'The bird' --logits b --prefill-chunk 1 "$M" >/dev/null
    cmp a b
    EMU_CUDA=devices=1,late=3 on_gpu -p 'The bird' --logits b --no-routing-cache "$M" >/dev/null
    cmp a b
}

@test "cuda: tokens are the same whether or not logits come to the host" {
    # --logits asks for whole rows, so does a penalty; a random model has close ones.
    for how in '--temp 0' '--temp 1.5 --top-k 40 --top-p 0.95 --seed 3' '--temp 9 --top-k 128 --min-p 0.01' \
        '--temp 2 --top-k 129' '--temp 1' '--temp 0 --repeat-penalty 1.5'; do
        read -ra options <<<"$how"
        on_gpu -p 'The bird' "${options[@]}" "$M" >few
        on_gpu -p 'The bird' "${options[@]}" --logits a "$M" >all
        cmp few all || fail "$how"
    done
}

@test "cuda: auto takes a GPU that is there, and says what it is or why there is none" {
    run -0 --separate-stderr colibri-run -n 1 -v -p x "$M"
    has "$stderr" "device       cuda: device 0" "on the GPU "
    EMU_CUDA='' run -0 --separate-stderr colibri-run -n 1 -v -p x "$M"
    has "$stderr" "device       cpu: " "no GPU: the NVIDIA driver shows no GPU"
    EMU_CUDA=devices=1,driver=12040 run -0 --separate-stderr colibri-run -n 1 -v -p x "$M"
    has "$stderr" "device       cpu: " "no GPU: the NVIDIA driver supports CUDA 12.4, but this build needs 13.0"
    run -0 --separate-stderr colibri-run -n 1 -v -p x --backend cpu "$M"
    has "$stderr" "device       cpu: "
    [[ $stderr != *"no GPU"* ]]
}

@test "cuda: cuBLASLt is asked for and must be there" {
    half=$(demo bf16)
    run_err 3 on_gpu -p x --gpu-dense cublas "$half"
    has "$message" "libcublasLt.so.13 is not found"
    EMU_CUDA=devices=1,cublaslt=120600 run_err 3 on_gpu -p x --gpu-dense cublas "$half"
    has "$message" "libcublasLt.so.13 says that it is 12.6.0, not a 13"
    on_gpu -p 'The bird' "$half" >own
    EMU_CUDA=devices=1,libraries=1 run -0 --separate-stderr on_gpu -p 'The bird' --gpu-dense cublas "$half"
    [[ $output == "$(<own)" ]]
}

@test "cuda: int8 matrices are widened for cuBLASLt, and -v says what that takes" {
    on_gpu -p 'The bird' --logits own "$M" >text
    EMU_CUDA=devices=1,libraries=1 run -0 --separate-stderr on_gpu -v -p 'The bird' --gpu-dense f16 --logits a "$M"
    [[ $output == "$(<text)" && $stderr =~ "cuBLASLt 13.1.0 has "[0-9.]+" MB of dense matrices in f16, "[0-9.]+" MB in the file" ]]
    ! cmp -s own a || fail "the bits of our own kernels"
    EMU_CUDA=devices=1,libraries=1 on_gpu -p 'The bird' --gpu-dense f16 --logits b --prefill-chunk 1 "$M" >/dev/null
    cmp a b
}

@test "cuda: cuDNN is asked for, must be there, and is told of" {
    local prompt
    prompt=$(seq -s ' ' 1 60)
    run_err 3 on_gpu -p x --attention cudnn "$M"
    has "$message" "attention by cuDNN: libcudnn.so.9 is not found"
    EMU_CUDA=devices=1,cudnn=91002 run_err 3 on_gpu -p x --attention cudnn "$M"
    has "$message" "attention by cuDNN: libcudnn.so.9 is 9.10.2, but 9.11 or a later 9 is needed"
    on_gpu --ids --logits own "$M" <<<"$prompt" >text
    EMU_CUDA=devices=1,libraries=1 run -0 --separate-stderr on_gpu -v --ids --attention cudnn --logits a "$M" <<<"$prompt"
    [[ $output == "$(<text)" ]]
    has "$stderr" "; cuDNN 9.19.0 has attention of prompts in "
    ! cmp -s own a || fail "the bits of our own kernels"
    EMU_CUDA=devices=1,libraries=1,late=3 on_gpu --ids --attention cudnn --logits b "$M" <<<"$prompt" >/dev/null
    cmp a b
    EMU_CUDA=devices=1,libraries=1 run -0 --separate-stderr on_gpu -v -p x --kv-dtype int8 --attention cudnn "$M"
    has "$stderr" "; cuDNN 9.19.0 has attention of prompts in 0 of 4 layers (others: " "a KV cache in int8)"
    EMU_CUDA=devices=1,libraries=1 run -0 --separate-stderr on_gpu -v -p x --attention cudnn "$COLIBRI_TEST_DEMO_F32"
    has "$stderr" "; cuDNN 9.19.0 has attention of prompts in 0 of 4 layers (others: " "a KV cache in f32)"
}

@test "cuda: --stats counts the memory of the GPU" {
    run -0 --separate-stderr on_gpu -p x --stats --json "$M"
    jq -e '.pools.gpu | .used > 4000000 and .peak >= .used and .reserved >= .used' <<<"$stderr"
    run -0 --separate-stderr on_gpu -p x --stats "$M"
    has "$stderr" "GPU " "memory plan "
    run -0 --separate-stderr on_gpu -p x --stats -v "$M"
    [[ $(grep -c "^memory plan " <<<"$stderr") == 1 ]]
    run -0 --separate-stderr on_gpu -p x --backend cpu --stats "$M"
    [[ $stderr != *"GPU "* ]]
}

@test "cuda: --version says what there is" {
    EMU_CUDA=devices=2,libraries=1 run -0 colibri-run --version
    [[ ${lines[1]} == "CUDA 13.0, driver for 13.0; device 0: Emulated GPU (1 GB, sm_80); device 1: "*"; they reach each other; cuBLASLt 13.1.0"* ]]
    EMU_CUDA=driver=0 run -0 colibri-serve --version
    [[ ${lines[1]} == "CUDA 13.0: no NVIDIA driver is installed here"* ]]
    run -0 colibri-convert --version
    ((${#lines[@]} == 1))
}

@test "cuda: --kv-dtype: each type near the CPU's, the same bits in any chunks, other bytes in the plan" {
    long=$(printf 'The bird sat %.0s' {1..16})
    for kv in f32 f16 int8; do
        run -0 --separate-stderr on_gpu --kv-dtype $kv -p 'The bird' "$COLIBRI_TEST_DEMO_F32"
        [[ $output == "$(colibri-run -n 3 --backend cpu --kv-dtype $kv -p 'The bird' "$COLIBRI_TEST_DEMO_F32")" ]]
        run -0 --separate-stderr on_gpu -v --kv-dtype $kv --ctx 256 -p "$long" --logits a "$M"
        has "$stderr" "KV cache     $kv, context 256"
        on_gpu --kv-dtype $kv --ctx 256 -p "$long" --logits b --prefill-chunk 33 --stats --json "$M" 2>stats >/dev/null
        cmp a b
        jq .plan.kv_cache stats >>bytes
    done
    (($(sed -n 1p bytes) == 2 * $(sed -n 2p bytes) && $(sed -n 3p bytes) < $(sed -n 2p bytes)))
    run -0 --separate-stderr on_gpu -v -p x "$COLIBRI_TEST_DEMO_F32"
    has "$stderr" "KV cache     f32, "
}

@test "cuda: options of GPUs have no effect where auto takes the CPU, which -v says, and do not go with cpu" {
    EMU_CUDA='' run -0 --separate-stderr colibri-run -n 1 -v -p x --gpu-memory 1G --device 1 "$M"
    has "$stderr" "no GPU: the NVIDIA driver shows no GPU" "; without effect: --device, --gpu-memory"
    run -0 --separate-stderr colibri-run -n 1 -v -p x --gpu-memory 900M "$M"
    [[ $stderr != *"without effect"* ]]
    run_err 2 on_gpu --backend cpu -p x --gpu-memory 1G "$M"
    has "$message" "--gpu-memory does not go with --backend cpu"
}

@test "cuda: auto warns once of options that a GPU cannot meet, and runs on the CPU" {
    warned() { # EMU_CUDA TEXT OPTION VALUE
        EMU_CUDA=$1 run -0 --separate-stderr colibri-run -n 1 -p x "${@:3}" "$M"
        [[ ${#stderr_lines[@]} == 1 && $stderr == "colibri-run: the CPU is used; no GPU: $2"*"; without effect: $3" ]] || fail "$stderr"
        [[ $stderr != *"use the backend 'cpu'"* ]]
    }
    warned devices=3 "there is no device 9: there are 0 to 2" --device 9
    warned devices=1 "2147483648 bytes of the memory of device 0 are asked for, but 1073741824 of 1073741824 are free; ask for less" --gpu-memory 2G
    warned devices=1 "device 0: more than " --gpu-memory 20K
    warned devices=1 "needs " --gpu-memory 3M
    has "$stderr" " bytes on the device beside the weights (KV cache " ", activations " "a higher limit leaves more"
    warned devices=1 "dense matrices by cuBLASLt: libcublasLt.so.13 is not found" --gpu-dense f16
    warned devices=1 "attention by cuDNN: libcudnn.so.9 is not found" --attention cudnn
    warned devices=1,capability=6.1 "device 0 (Emulated GPU) has compute capability 6.1" --gpu-experts cpu
    run -0 --separate-stderr colibri-run -q -n 1 -p x --device 9 "$M"
    [[ -z $stderr ]]
    for there in '' driver=0 devices=1,driver=12040; do
        EMU_CUDA=$there run -0 --separate-stderr colibri-run -n 1 -p x --device 9 --attention cudnn "$M"
        [[ -z $stderr ]]
    done
    EMU_CUDA=devices=1,memory=20K run -0 --separate-stderr colibri-run -n 1 -p x "$M"
    [[ -z $stderr ]]
}

@test "cuda: each reason not to run has its sentence and status" {
    refused() { # STATUS EMU_CUDA TEXT OPTION...
        local status=$1 text=$3
        EMU_CUDA=$2 run_err "$status" colibri-run -p x --backend cuda "${@:4}" "$M"
        has "$message" "$text"
    }
    refused 3 driver=0 "no NVIDIA driver is installed here"
    refused 3 devices=1,driver=12020 "the NVIDIA driver supports CUDA 12.2, but this build needs 13.0"
    refused 3 devices=0 "the NVIDIA driver shows no GPU"
    refused 3 devices=1,capability=6.1 "has compute capability 6.1, but this build needs 7.5 or later"
    refused 2 devices=1 "--device: there is no device 2: the only one is 0" --device 2
    refused 2 devices=3 "--device: there is no device 99: there are 0 to 2" --device 0,99
    refused 2 devices=3 "--device: device 1 is listed twice" --device 1,0-2
    refused 4 devices=1 "--gpu-memory: 2147483648 bytes of the memory of device 0 are asked for, but " --gpu-memory 2G
    refused 4 devices=1 "--gpu-memory: device 0: more than " --gpu-memory 20K
    has "$message" " bytes are needed there (dense weights " ", some experts " "), but 20480 is the limit of GPU memory; raise it"
    refused 4 devices=1 "--gpu-memory: needs " --gpu-memory 3M
    has "$message" " are left there under the limit of GPU memory; a shorter context needs less, a higher limit leaves more, or use "
    refused 4 devices=1 "bytes of the host beside the weights (logits and other buffers of passes, tokens of each context), but 2097152 are" --memory 2M
    refused 4 devices=1,memory=20K "device 0: more than "
    has "$message" "may be used; end other programs that use it, or choose another device"
    refused 1 devices=1,fail=cudaSetDevice:1:46 "device 0 (Emulated GPU) is used by another program alone, or its compute mode forbids"
    refused 4 devices=1,fail=cudaSetDevice:1:2 "has no memory left for a CUDA context; end other programs that use it"
    refused 3 devices=1,fail=cudaMemGetInfo:1:209 "for which this build has no code; build with 'make CUDA=1 CUDA_ARCHS=80'"
    refused 3 devices=1,fail=cudaGetDeviceCount:1:803 "the NVIDIA driver was updated, but its old version is still loaded; restart"
    refused 1 devices=1,fail=cudaGetDeviceCount:1:999 "CUDA does not start (driver for 13.0): unknown error; see whether 'nvidia-smi' works, "
    refused 4 devices=1,fail=cudaMalloc:3:2 "experts: device 0 has no "
    has "$message" " bytes left, since others use it, too; end them, or set a lower limit of GPU memory"
    refused 4 devices=1,fail=cudaHostAlloc:1:2 "pinned host memory: the system does not lock 16777216 bytes; end other programs, or "
    refused 1 devices=1,fail-for-good=cudaLaunchKernel:5:719 "unspecified launch failure; the log of the system may say why ('dmesg | grep Xid')"
    refused 1 devices=1,libraries=1,fail=cublasLtCreate:1:1 "by cuBLASLt: it does not start: " --gpu-dense f16
    has "$message" "; leave them to the kernels of this program"
    refused 1 devices=1,libraries=1,fail=cudnnCreate:1:1 "by cuDNN: it does not start: " --attention cudnn
    has "$message" "; leave attention to the kernels of this program"
}

@test "cuda: sizes of small devices have their unit" {
    EMU_CUDA=devices=2,memory=20M run -0 --separate-stderr on_gpu -v -p x --device 0,1 "$M"
    has "$stderr" "4 multiprocessors, 20.3 MB to use; experts also on device 1 (Emulated GPU, sm_80, 20.3 MB to use"
}

@test "cuda: the emulation refuses nonsense, and tells what a program did not free" {
    for words in devices=x memory=1X cudnn=old nothing; do
        EMU_CUDA=$words run --separate-stderr colibri-run --version
        ((status != 0))
        has "$stderr" "emu: EMU_CUDA: '$words' "
    done
    EMU_CUDA=devices=1,fail=cudaFree:1:2 run --separate-stderr on_gpu -p x "$M"
    ((status != 0))
    has "$stderr" " bytes of device memory were not freed" "emu: the program ends without freeing that"
    [[ $stderr != *AddressSanitizer* ]]
}

@test "cuda: --device chooses, --gpu-memory limits without changing bits" {
    on_gpu -p 'The bird' --logits a "$M" >/dev/null
    EMU_CUDA=devices=2 run -0 --separate-stderr on_gpu -v -p 'The bird' --logits b --device 1 "$M"
    has "$stderr" "cuda: device 1"
    cmp a b
    run -0 --separate-stderr on_gpu --ctx 64 -p 'The bird' --gpu-memory 900M "$M"
    least=100
    until on_gpu --ctx 64 -p 'The bird' --gpu-memory "${least}K" --logits b "$M" >/dev/null 2>err; do
        grep -q "^colibri-run: " err
        ((least < 100000))
        least=$((least * 5 / 4))
    done
    ((least * 1024 < $(stat -c %s "$M"))) || fail "$least KB are more than the model"
    cmp a b
}

@test "cuda: experts that do not fit are copied with the same bits, or multiplied by the CPU" {
    some() { on_gpu --ctx 64 -p 'The bird' --gpu-memory 3500K "$@" "$M"; }
    on_gpu --ctx 64 -p 'The bird' --logits a "$M" >/dev/null
    run -0 --separate-stderr some -v --logits b
    has "$stderr" " experts are copied when they are wanted; copies go directly: "
    cmp a b
    EMU_CUDA=devices=1,late=2,fail=cudaHostRegister:1:801 run -0 --separate-stderr some -v --logits b
    has "$stderr" "; copies go through buffers: CUDA: registering memory of the host: operation not supported"
    cmp a b
    run -0 --separate-stderr some -v --gpu-experts cpu --logits b
    has "$stderr" " experts are multiplied by the CPU"
    run ! cmp -s a b
    EMU_CUDA=devices=1,late=5 some --gpu-experts cpu --no-routing-cache -t 1 --logits c >/dev/null
    cmp b c
    EMU_CUDA=devices=2 run -0 --separate-stderr some -v --gpu-experts auto --device 0,1
    has "$stderr" "on the GPU"
    run -0 --separate-stderr some -v --gpu-experts auto
    has "$stderr" " experts are " "; a token is guessed at " " ms on the CPU (" " ms by copies ("
    run -0 --separate-stderr on_gpu --ctx 64 -v -p x --gpu-experts cpu "$M"
    [[ $stderr != *"experts are"* ]]
    run -0 --separate-stderr colibri-bench --prefill 3 --decode 2 -r 1 --backend cuda --gpu-memory 3500K --gpu-experts cpu "$M"
    has "$output" " experts are multiplied by the CPU"
}

@test "cuda: inspect --plan says before a run what lies on GPUs then, to the byte, here or elsewhere" {
    export EMU_CUDA=devices=3
    while read -ra how; do
        on_gpu -v -p x --stats --json "${how[@]}" "$M" 2>run >/dev/null
        jq -R 'fromjson?' run >stats
        colibri-inspect --plan --json --backend cuda "${how[@]}" "$M" >plan
        [[ $(jq .gpu.total plan) == "$(jq .pools.gpu.reserved stats)" ]] || fail "${how[*]}: $(<plan) $(jq -c .pools.gpu stats)"
        of_run='[.kv_cache, .activations, .host_buffers]'
        [[ $(jq -c "$of_run" plan) == "$(jq -c ".plan | $of_run" stats)" ]] || [[ ${how[*]} == *--device* ]] || fail "${how[*]}: $(<plan) $(jq -c .plan stats)"
        has "$(<run)" "($(jq .gpu.experts_there plan) of $(jq .gpu.experts_all plan)), KV cache and activations "
        EMU_CUDA='' colibri-inspect --plan --json --gpu-memory 1G "${how[@]}" "$M" >elsewhere # the last SIZE counts
        [[ ${how[*]} != *gpu-memory* || $(jq "del(.available)" plan) == "$(jq "del(.available)" elsewhere)" ]] || fail "$(<elsewhere)"
    done <<'END'
--kv-dtype f32 --experts-per-token 1
--device 1,0 --kv-dtype int8
--gpu-memory 64M --ctx 200
--gpu-memory 3500K --ctx 64
--gpu-memory 3500K --ctx 64 --gpu-experts cpu
--gpu-memory 4M --ctx 64 --gpu-experts auto
--gpu-memory 3500K --ctx 64 --device 0-2
--gpu-memory 3500K --ctx 64 --device 0,2
--gpu-memory 3400K --ctx 64 --device 0,2 --gpu-experts cpu
END
}

@test "cuda: auto runs on the CPU what a GPU has no memory for, and says so" {
    colibri-run -n 3 -p 'The bird' --backend cpu --logits a "$M" >/dev/null
    EMU_CUDA=devices=1,memory=4M run -0 --separate-stderr colibri-run -n 3 -v -p 'The bird' --logits b "$M"
    has "$stderr" "device       cpu: " "no GPU: needs " " bytes on the device beside the weights"
    cmp a b
    EMU_CUDA=devices=1,memory=4M run_err 4 on_gpu -p 'The bird' "$M"
    has "$message" "or use the backend 'cpu'"
    EMU_CUDA=devices=1,memory=4M run -0 --separate-stderr colibri-run -n 3 -v --ctx 64 -p 'The bird' "$M"
    has "$stderr" "device       cuda: "
}

@test "cuda: several devices, with the bits of one" {
    on_gpu -p 'The bird' --logits a "$M" >/dev/null
    EMU_CUDA=devices=3,late=2 run -0 --separate-stderr on_gpu -v -p 'The bird' --logits b --device 2,0-1 "$M"
    has "$stderr" "cuda: device 2, " "; experts also on device 0 (Emulated GPU, sm_80, " "direct copies), device 1 ("
    cmp a b
    EMU_CUDA=devices=2,lose=1 run -0 --separate-stderr on_gpu -v -p 'The bird' --logits b --device 0,1 "$M"
    has "$stderr" "copies through the host)"
    cmp a b
    EMU_CUDA=devices=2 run_err 2 colibri-run -p x --backend cuda --device 0,2 "$M"
    has "$message" "there is no device 2"
    EMU_CUDA=devices=2 run_err 4 colibri-run -p x --backend cuda --device 0,1 --gpu-memory 2G "$M"
}

@test "cuda: whatever call of the runtime fails, there is one message and nothing is left" {
    for call in cudaSetDevice cudaMalloc cudaHostAlloc cudaStreamCreateWithFlags cudaEventCreateWithFlags \
        cudaFuncSetAttribute cudaMemcpyAsync cudaMemsetAsync cudaLaunchKernel cudaStreamSynchronize cudaEventRecord \
        cudaStreamBeginCapture cudaGraphInstantiateWithFlags cudaGraphLaunch; do
        for nth in 1 3; do
            EMU_CUDA=devices=1,fail=$call:$nth:719 run --separate-stderr on_gpu -p 'The' "$M"
            case $status in
            0) ;; # so often it is not called, or there is another way
            1) has "$stderr" "colibri-run: " "unspecified launch failure" ;;
            *) fail "$call $nth: status $status: $stderr" ;;
            esac
        done
    done
}

# bats test_tags=slow
@test "cuda: what test/gpu/check.sh does on a GPU, as far as that needs none" {
    cd "$REPO" || exit
    run test/gpu/check.sh --build "$COLIBRI_SAN_BUILD" --device-less
    ((status == 0)) || fail "$output"
    has "$output" "same-bits                          ok" "demo decode" "total                              ok"
}

# stub NAME: a program that stands for another one; what it does comes from stdin.
stub() {
    mkdir -p "${1%/*}"
    { echo '#!/usr/bin/env bash'; cat; } >"$1"
    chmod +x "$1"
}

@test "cuda: test/gpu/check.sh on a machine with a GPU: what is slow, missing or wrong is told, and fails it" {
    local b=$PWD/b stage='{"name":"Attention","seconds":0.001,"bytes":4000000,"macs":1000000}' out
    stub "$PWD/path/nvidia-smi" <<<'[[ $1 != -L ]] || { echo "GPU 0: X"; exit; }; echo "NVIDIA H200, 9.0, 143771 MiB, 580.159.03"'
    stub "$PWD/path/nvcc" </dev/null
    stub "$PWD/path/make" <<<'[[ " $* " == *" CUDA_ARCHS=90 "* && " $* " == *" -j"* ]]'
    stub "$PWD/path/compute-sanitizer" <<<'exit 1'
    mkdir -p "$b/nvcc" models
    echo '120 kernels' >"$b/nvcc/registers.txt"
    touch models/{demo,olmoe,bench,mixtral}.bin
    stub "$b/test/gpu/test_sample" <<<'echo ok 1 x'
    stub "$b/test/gpu/test_moe_gate" <<<'echo "# here is why"; exit 3'
    stub "$b/test/gpu/ceiling" <<<'echo 4000.0 500.00'
    stub "$b/bin/colibri-convert" <<<'exit 1'
    stub "$b/bin/colibri-run" <<<"[[ \$1 != --version ]] || { echo 'CUDA 13.0; device 0: H200; cuBLASLt 13.1.0, cuDNN 9.8.0, no NCCL'; exit; }
        echo '{\"prefill\":{\"tokens\":512,\"seconds\":0.1},\"decode\":{\"tokens\":127,\"seconds\":1}}'"
    stub "$b/bin/colibri-bench" <<<"[[ \${!#} != */mixtral.bin ]] || { echo 'no memory'; exit 4; }
        echo '{\"runs\":[{\"prefill\":{\"tokens\":512,\"stages\":[$stage]},\"decode\":{\"tokens\":64,\"steps\":64,\"stages\":[$stage]}}]}'"
    cd "$REPO" || exit
    PATH=$OLDPWD/path:$PATH COLIBRI_GPU_MODELS=$OLDPWD/models run test/gpu/check.sh --build "$b"
    ((status == 1)) || fail "status $status: $output"
    out=$(tr -s ' ' <<<"$output")
    has "$out" "GPU ok NVIDIA H200, sm_90, 143771 MiB, driver 580.159.03" "build ok 120 kernels" "test_sample ok 1 tests" \
        "test_moe_gate FAILED status 3 (" "| # here is why" "checkpoints FAILED" "same-bits FAILED" \
        "attention by cuDNN skipped cuDNN 9.8.0 is older than 9.11" "ceiling ok 4000.0 GB/s, 500.00 TFLOPS f16" \
        "olmoe decode 127.0 tokens/s, 7.874 ms of which the floor is 0.000 (0 %)" "bench-mixtral FAILED status 4" \
        "Attention 1000.0 us, floor 1.0 us, 4 GB/s" "memcheck-test_sample FAILED" "total FAILED"
    stub "$b/test/gpu/ceiling" <<<'exit 1'
    rm "$OLDPWD/models/olmoe.bin"
    stub "$OLDPWD/path/python3" <<<'[[ $1 != tools/* ]] || { echo "no numpy"; exit 1; }; exec /usr/bin/env -S PATH='"$PATH"' python3 "$@"'
    PATH=$OLDPWD/path:$PATH COLIBRI_GPU_MODELS=$OLDPWD/models run test/gpu/check.sh --build "$b"
    out=$(tr -s ' ' <<<"$output")
    has "$out" "ceiling FAILED status 1" "7.874 ms of which the floor is not known" "olmoe FAILED the model is not made: no numpy ("
    stub "$OLDPWD/path/nvidia-smi" <<<'echo "NVIDIA-SMI has failed"; exit 9'
    PATH=$OLDPWD/path:$PATH run test/gpu/check.sh --build "$b"
    ((status == 1)) || fail "status $status: $output"
    has "$output" "check.sh: nvidia-smi shows no GPU: NVIDIA-SMI has failed"
}

# serve [OPTION]...: starts a server, $pid; its address in the file url, its messages in the file log.
serve() {
    command -v colibri-serve >/dev/null || skip "colibri-serve is not built"
    colibri-serve --port 0 --backend cuda --ctx 64 --max-concurrent 2 "$@" "$M" >url 2>log 3>&- &
    pid=$!
    for _ in {1..600}; do
        [[ ! -s url ]] || break
        kill -0 "$pid" || fail "$(cat log)"
        sleep 0.05
    done
}

# Models are opened by one thread there and used by another.
@test "cuda: a server answers from the device that it was told, several at a time, and ends in order" {
    local asked=()
    EMU_CUDA=devices=2 serve --device 1
    for i in 1 2; do
        curl -sS --max-time 60 -H 'Content-Type: application/json' "$(cat url)/v1/completions" -o "answer$i" \
            -d '{"prompt":"The bird","max_tokens":3,"temperature":0}' &
        asked+=($!)
    done
    wait "${asked[@]}"
    curl -sS "$(cat url)/metrics" >metrics
    kill -TERM "$pid"
    wait "$pid" || fail "$(cat log)"
    has "$(cat log)" "device 1"
    bytes=$(sed -nE '1s/.* memory_gpu=([0-9]+) .*/\1/p' log)
    ((bytes > 4000000)) || fail "$(cat log)"
    grep -qx "colibri_memory_bytes{pool=\"gpu\",what=\"reserved\"} $bytes" metrics || fail "$bytes: $(grep gpu metrics)"
    local text
    text=$(colibri-run -n 3 -p 'The bird' --backend cuda "$M")
    for i in 1 2; do
        [[ $(jq -r '.choices[0].text' "answer$i") == "$text" ]] || fail "$(cat "answer$i")"
    done
}

@test "cuda: a server answers by graphs, and times stages only of requests that --profile-every picks" {
    local q='{"prompt":"The bird","max_tokens":6,"temperature":0}'
    EMU_CUDA=devices=1,fail=cudaGraphLaunch:1:719 serve --profile-every 3
    ask() { curl -sS -o answer -w '%{http_code}' -d "$q" "$(cat url)/v1/completions"; }
    [[ $(ask) == 200 ]] || fail "$(cat answer)" # the first is picked
    grep -q 'event=profile .* Gate=[0-9.]* ' log
    [[ $(ask) == 500 ]] || fail "no graph: $(cat answer)"
    [[ $(ask) == 200 ]] || fail "$(cat answer)"
    [[ $(curl -sS "$(cat url)/metrics") != *colibri_stage* ]]
    kill -TERM "$pid"
    wait "$pid" || fail "$(cat log)"
    (($(grep -c event=profile log) == 1)) || fail "$(cat log)"
}

@test "cuda: a server whose GPU fails once goes on; one whose GPU fails for good says so and ends with 1" {
    local q='{"prompt":"The bird","max_tokens":3,"temperature":0}' status=0
    EMU_CUDA=devices=1,fail=cudaLaunchKernel:5:719 serve
    [[ $(curl -sS -o answer -w '%{http_code}' -d "$q" "$(cat url)/v1/completions") == 500 ]] || fail "$(cat answer)"
    [[ $(curl -sS -o answer -w '%{http_code}' -d "$q" "$(cat url)/v1/completions") == 200 ]] || fail "$(cat answer)"
    [[ $(curl -sS "$(cat url)/health") == '{"status":"ok"}' ]]
    kill -TERM "$pid"
    wait "$pid" || fail "$(cat log)"
    for error in 700 214; do
        rm url
        EMU_CUDA=devices=2,fail-for-good=cudaLaunchKernel:5:$error serve --device 0,1
        python3 "$REPO/test/cli/serve_client.py" "$(sed 's/.*://' url)" device_lost >said || fail "$(cat log)"
        status=0
        wait "$pid" || status=$?
        ((status == 1)) || fail "status $status: $(cat log)"
        why=$(sed -n '2s/^503 device_lost //p' said)
        [[ $why == *"CUDA: "* && $(head -n 1 said) == "200 "* && $(sed -n 3p said) == "503 device_lost $why" &&
            $(sed -n 4p said) == "503 device_lost "*"CUDA: "* ]] || fail "$(cat said)"
        grep -qF "event=device_lost what=\"$why\"" log || fail "$(cat log)"
        [[ $(tail -n 1 log) == "colibri-serve: the GPU has failed for good: $why; start the server again" ]] || fail "$(cat log)"
    done
}

@test "cuda: bench runs there" {
    run -0 --separate-stderr colibri-bench --prefill 3 --decode 2 -r 1 --backend cuda --json "$M"
    jq -e '.model.backend == "cuda"' <<<"$output"
}

@test "cuda: bench says where it has run, and the largest batch decides that for all" {
    quick() { colibri-bench -v --prefill 3 --decode 2 -r 1 "$@"; }
    run -0 --separate-stderr quick "$M"
    has "$stderr" ".bin: device cuda: device 0, Emulated GPU"
    EMU_CUDA=devices=1,memory=4M run -0 --separate-stderr quick --json -b 1,64 "$M"
    has "$stderr" ".bin: device cpu: " ".bin: no GPU: needs " " bytes on the device beside the weights"
    jq -e '.model.backend == "cpu" and [.runs[].sequences] == [1, 64]' <<<"$output"
    EMU_CUDA=devices=1,memory=4M run -0 --separate-stderr quick --json -b 1 "$M"
    jq -e '.model.backend == "cuda"' <<<"$output"
    EMU_CUDA=devices=1,memory=4M run_err 4 colibri-bench --prefill 3 --decode 2 -r 1 -b 1,64 --backend cuda "$M"
    run -0 --separate-stderr colibri-bench --prefill 3 --decode 2 -r 1 --gpu-memory 2G "$M"
    [[ $stderr == "colibri-bench: the CPU is used; no GPU: "*" bytes of the memory of device 0 are asked for"*"; without effect: --gpu-memory" ]]
}

@test "cuda: bench --compare runs both models on one backend, with the memory that there is for both" {
    cd "$(dirname "$M")" || exit
    echo 'The bird sat in the tree.' >"$BATS_TEST_TMPDIR/text"
    both() { colibri-bench --perplexity "$BATS_TEST_TMPDIR/text" --compare demo-f32.bin -v "$@" demo-int8.bin; }
    run -0 --separate-stderr both
    has "$stderr" "demo-int8.bin: device cuda: " "demo-f32.bin: device cuda: "
    want=$output
    EMU_CUDA=devices=1,memory=19M run -0 --separate-stderr both --gpu-memory 16M # experts are copied: the same bits
    has "$stderr" "demo-int8.bin: device cuda: " "demo-f32.bin: device cuda: " "experts are copied"
    [[ $output == "$want" ]]
    run -0 --separate-stderr both --gpu-memory 30M # the second one has more than half
    [[ $stderr =~ demo-int8.bin:\ device\ [^:]*cuda:.*15.7\ MB\ to\ use ]]
    [[ $stderr =~ demo-f32.bin:\ device\ cuda:.*\ ([0-9]+)\.[0-9]\ MB\ to\ use ]] && ((BASH_REMATCH[1] > 16))
    [[ $output == "$want" ]]
    run -0 --separate-stderr both --backend cpu
    want=$output
    EMU_CUDA=devices=1,memory=10M run -0 --separate-stderr both
    has "$stderr" "demo-int8.bin: device cpu: " "no GPU: both models run on one backend, and demo-f32.bin on the CPU"
    has "$stderr" "demo-f32.bin: device cpu: "
    [[ $stderr != *"device cuda"* && $output == "$want" ]]
    EMU_CUDA=devices=1,memory=10M run_err 4 both --backend cuda
    has "$message" "colibri-bench: demo-f32.bin: "
}

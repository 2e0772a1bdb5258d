#!/usr/bin/env bats
# colibri-inspect: header, views, checks, comparisons, plans, and files that are not models.
load helper

setup() {
    need_demo
    cd "$BATS_TEST_TMPDIR" || return
    ln -s "$COLIBRI_TEST_DEMO" demo.bin
    ln -s "$COLIBRI_TEST_DEMO_F32" f32.bin
}

# flip FILE OFFSET: changes one byte of a file.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059 # the format is made of digits
    printf "\\x$(printf %02x $((byte ^ 0x10)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
header() { colibri-inspect demo.bin | jq -r "$1"; }

@test "inspect: the header is JSON with the offset of every expert" {
    run -0 --separate-stderr colibri-inspect demo.bin
    [[ -z $stderr ]]
    [[ $(jq -c '[.num_experts, .top_k, .hidden_size, .vocab_size, .activation_group]' <<<"$output") == '[8,2,128,2048,32]' ]]
    [[ $(jq '[.experts[].offset[]] | length' <<<"$output") == 32 ]]
    [[ $(jq '[.experts[].offset[] % 4096] | add' <<<"$output") == 0 ]]
    [[ $(jq -r '.architecture.n_layer' <<<"$output") == 4 ]]
    # It is what the file holds, byte for byte.
    n=$(od -An -tu8 -j 16 -N 8 demo.bin)
    [[ $(tail -c +25 demo.bin | head -c "$n" | sed 's/ *$//') == "$output" ]]
}

# bats test_tags=san
@test "inspect: --summary tells what the model is" {
    run -0 --separate-stderr colibri-inspect --summary demo.bin f32.bin
    [[ -z $stderr ]]
    has "$output" "demo.bin: " "f32.bin: " "experts int8, dense int8" "experts f32, dense f32" "8 a layer, 2 per token" \
        "4 heads of 32, 2 for keys and values" "vocabulary 2,048" "model.safetensors" "begin 1, end 2" "whole file" "100.0 %"
    if grep -q $'\033' <<<"$output"; then fail "colour in a pipe"; fi
}

# bats test_tags=san
@test "inspect: --summary has words for what is special about a model" {
    says() { # FAMILY WORDS...
        colibri-convert -q -f "$REPO/test/data/families/$1" -o special.bin
        run -0 colibri-inspect --summary special.bin
        has "$(tr -s ' \n' '  ' <<<"$output")" "${@:2}" || fail "$1"
        run -1 grep -n ' $' <<<"$output"
    }
    says deepseek_v2 "3, 1 with experts, 2 dense of inner width 64 on layers 0, 1" "latent: 3 heads of 32 (16 of them rotated)" \
        "keys and values from 32, queries from 48, values of 24, scores times 0.229" "rope on 16 of 32, interleaved, sines times 1.12" \
        "epsilon 1e-06, 1e-06 for latents" "of the 2 best of 4 groups (by their best expert), weights as they are, times 2.3"
    says exaone_moe "window of 32 on layers 0, 1, 2" "halves, none on layer 3" "a bias chooses, weights sum to 1, times 2.5"
    says phimoe_longrope "biases of q k v o" "other frequencies beyond 100 positions, sines times 1.343" "LayerNorm" "sparsemixer, threshold 0.01" \
        "output bias"
    says llama_moe "two layers, top-k, then softmax, times 4"
    says glm4_moe_noqk "(by their best two experts)"
    says olmoe_clip "norm over all query and key heads, q, k, v within +-1.1"
}

# bats test_tags=san
@test "inspect: no space at the end of a line" {
    for view in --summary --experts --tensors --verify --plan; do
        colibri-inspect $view demo.bin >out
        run -1 grep -n ' $' out
    done
}

@test "inspect: --experts and --tensors are the header as tables" {
    run -0 colibri-inspect --experts demo.bin
    ((${#lines[@]} == 2 + 32 + 3)) # heading, experts, rules between layers
    [[ $(awk '$1 == 2 && $2 == 5 { print $4 }' <<<"$output") == "$(header '.experts[2].offset[5]')" ]]
    run -0 colibri-inspect --experts --json demo.bin
    [[ $(jq -s 'length' <<<"$output") == 32 ]]
    [[ $(jq -s '.[13].crc32' <<<"$output") == "$(header '.experts[1].crc32[5]')" ]]
    run -0 colibri-inspect --tensors demo.bin
    [[ $(awk '$1 == "output" { print $6 }' <<<"$output") == "$(header .tensors.output.offset)" ]]
    run -0 colibri-inspect --tensors --json demo.bin
    [[ $(jq -sc '[.[].name]' <<<"$output") == "$(colibri-inspect demo.bin | jq -c '.tensors | keys_unsorted')" ]]
}

@test "inspect: --verify finds a changed byte wherever it is" {
    run -0 colibri-inspect --verify demo.bin f32.bin
    has "$output" "demo.bin: ok" "f32.bin: ok"
    size=$(stat -Lc %s demo.bin)
    places=(0 8 12 17 30 4000 $((size - 1)) "$(header .tensors.embed.offset)" "$(header '.experts[3].offset[7]')"
        "$(($(header '.experts[0].offset[0]') + $(header '.experts[0].size[0]')))"
        "$(($(header '.tensors["layers.1.q"].scale_offset') + 3))" "$(header '.sections["tokenizer.source"].offset')")
    for at in "${places[@]}"; do
        cp -L demo.bin bad.bin
        flip bad.bin "$at"
        run_err 3 colibri-inspect --verify bad.bin
        has "$message" "colibri-inspect: bad.bin: "
    done
}

# bats test_tags=san
@test "inspect: --verify names what is damaged, and lists several" {
    cp -L demo.bin bad.bin
    flip bad.bin "$(($(header '.experts[1].offset[3]') + 77))"
    run_err 3 colibri-inspect --verify bad.bin
    has "$message" "layer 1 expert 3" "offset $(header '.experts[1].offset[3]')"
    flip bad.bin "$(header .tensors.output.offset)"
    run -3 --separate-stderr colibri-inspect --verify bad.bin
    has "$output" "2 of" "layer 1 expert 3" "tensor 'output'"
    run -3 --separate-stderr colibri-inspect --verify --json bad.bin
    [[ $(jq -c '[.ok, (.damaged | length)]' <<<"$output") == '[false,2]' ]]
    run -0 --separate-stderr colibri-inspect --verify --json demo.bin
    [[ $(jq -c '[.ok, .damaged, .bytes]' <<<"$output") == "[true,[],$(stat -Lc %s demo.bin)]" ]]
    run -0 colibri-inspect -q --verify demo.bin
    [[ -z $output ]]
}

# bats test_tags=san
@test "inspect: --diff compares descriptions and values" {
    run -0 colibri-inspect --diff demo.bin demo.bin
    has "$output" "hold the same model"
    run -1 --separate-stderr colibri-inspect --diff f32.bin demo.bin
    [[ -z $stderr ]]
    has "$output" "layers.0.experts.gate" "layers.3.o" "SQNR" "f32" "int8"
    if grep -q '^architecture' <<<"$output"; then fail "the architectures are equal"; fi
    run -1 colibri-inspect --diff --json f32.bin demo.bin
    [[ $(jq -c '[.equal, (.architecture | length), (.tensors | length), (.sections | length)]' <<<"$output") == '[false,0,29,0]' ]]
    # One expert's weights differ: one line, and the place is named.
    cp -L demo.bin other.bin
    flip other.bin "$(header '.experts[2].offset[6]')"
    run -1 colibri-inspect --diff --json demo.bin other.bin
    [[ $(jq -c '[.tensors[].name]' <<<"$output") == '["layers.2.experts.gate"]' ]]
    run -1 colibri-inspect --diff demo.bin other.bin
    has "$output" "expert 6, row 0, column 0"
    run_err 3 colibri-inspect --diff demo.bin missing.bin
    has "$message" missing.bin
}

# bats test_tags=san
@test "inspect: --against compares with the checkpoint" {
    run -0 --separate-stderr colibri-inspect --against "$DEMO_SRC" demo.bin
    [[ -z $stderr ]]
    has "$output" "5 of 5 source files are unchanged" experts int8 exact
    int4=$(demo int4)
    run -0 colibri-inspect --against "$DEMO_SRC" --json "$int4"
    [[ $(jq -c '[.equal, ([.files[].state] | unique)]' <<<"$output") == '[true,["same"]]' ]]
    [[ $(jq '[.values[] | select(.stored == "int4") | .sqnr_db][0] > 18' <<<"$output") == true ]]
    # Another weight, another file, another configuration.
    cp -r "$DEMO_SRC" src
    flip src/model.safetensors 5000001
    run -1 colibri-inspect --against src demo.bin
    has "$output" "4 of 5" "model.safetensors" "other bytes"
    rm src/generation_config.json
    run -1 colibri-inspect --against src demo.bin
    has "$output" "generation_config.json" "not there"
    jq '.rms_norm_eps = 0.001' "$DEMO_SRC/config.json" >src/config.json
    run -1 colibri-inspect --against src demo.bin
    has "$output" "config.json" "other size" "norm_eps"
    rm src/model.safetensors
    run_err 3 colibri-inspect --against src demo.bin
}

@test "inspect: --against finds weights that are not the checkpoint's" {
    # The checksum of the block is made right again: only the comparison of values can find it.
    command -v python3 >/dev/null || skip "no python3"
    cp -L demo.bin bad.bin
    python3 - <<'EOF'
import json, re, struct, zlib
f = open("bad.bin", "r+b")
data = bytearray(f.read())
n = struct.unpack_from("<Q", data, 16)[0]
h = json.loads(data[24:24 + n])
x = h["experts"][0]
at, size, old = x["offset"][4], x["size"][4], x["crc32"][4]
data[at + 9] ^= 0x40
new = zlib.crc32(data[at:at + size])
text = data[24:24 + n].replace(b"%10d" % old, b"%10d" % new, 1)
data[24:24 + n] = text
struct.pack_into("<I", data, 12, zlib.crc32(text))
f.seek(0)
f.write(data)
EOF
    run -0 colibri-inspect -q --verify bad.bin
    run -1 colibri-inspect --against "$DEMO_SRC" bad.bin
    has "$output" "not a rounding: layers.0.experts.gate, expert 4"
}

@test "inspect: --plan adds up and refuses what does not fit" {
    run -0 colibri-inspect --plan --json --ctx 1024 --batch 3 demo.bin
    [[ $(jq '.total == .weights + .kv_cache + .activations + .host_buffers' <<<"$output") == true ]]
    [[ $(jq -c '[.context, .batch, .fits]' <<<"$output") == '[1024,3,true]' ]]
    one=$(colibri-inspect --plan --json --ctx 1024 demo.bin | jq .kv_cache)
    [[ $(jq ".kv_cache == 3 * $one" <<<"$output") == true ]]
    mine=$(colibri-run --json -p x -n 1 demo.bin 2>&1 >/dev/null | jq .plan.total) # what a run takes, and nothing else
    [[ $(colibri-inspect --plan --json demo.bin | jq .total) == "$mine" ]]
    for how in "--kv-dtype f32" "--kv-dtype int8" "--experts-per-token 1" "-t 1" "--threads 3"; do # the same run
        # shellcheck disable=SC2086
        mine=$(colibri-run $how --json -p x -n 1 demo.bin 2>&1 >/dev/null | jq .plan.total)
        # shellcheck disable=SC2086
        [[ $(colibri-inspect --plan $how --json demo.bin | jq .total) == "$mine" ]] || fail "$how"
    done
    [[ $(colibri-inspect --plan --kv-dtype f32 --json demo.bin | jq .total) -gt \
        $(colibri-inspect --plan --kv-dtype int8 --json demo.bin | jq .total) ]]
    run_err 2 colibri-inspect --plan --experts-per-token 9 demo.bin
    has "$message" "has 8 experts"
    run -0 colibri-inspect --plan demo.bin
    has "$output" "1 sequence of 1024 tokens" "KV cache" total
    run -0 colibri-inspect --plan --ctx 1 demo.bin
    [[ ${lines[0]} == "demo.bin: 1 sequence of 1 token" ]]
    run -4 --separate-stderr colibri-inspect --plan --memory 100K demo.bin
    has "$stderr" "colibri-inspect: " bytes
}

@test "inspect: --plan under a limit says what a run says, and neither exceeds it" {
    for kb in 10800 10801 11000 12288 13800 14336; do
        want=0
        colibri-run --json -p hi -n 1 --ctx 1024 --memory ${kb}K demo.bin 2>run >/dev/null || want=$?
        run -"$want" --separate-stderr colibri-inspect --plan --json --ctx 1024 --memory ${kb}K demo.bin
        [[ $want == 0 ]] || { ((kb == 10800)) && continue; fail "$kb: $(<run)"; }
        jq -e ".total <= $kb * 1024 and .fits" <<<"$output"
        jq -se '.[0].total == .[1].plan.total and .[0].weights == .[1].pools.weights.reserved' - run <<<"$output"
    done
    colibri-inspect --plan --json --ctx 64 --gpu-memory 4M --memory 3M demo.bin | jq -e '.host_total <= 3 * 1048576 and .fits'
}

@test "inspect: --plan for GPUs that are elsewhere: what has room there, and what is left for the host" {
    run -0 --separate-stderr colibri-inspect --plan --gpu-memory 64M --ctx 64 demo.bin
    has "$output" "on the GPU" "all 32" "of 67.1 MB" "on the host" "all are on the GPU" "it fits"
    [[ -z $stderr ]]
    plan() { colibri-inspect --plan --json --ctx 64 "$@" demo.bin; }
    adds_up='.gpu | .total == .dense_weights + .experts + .kv_cache + .activations'
    plan --gpu-memory 64M | jq -e "$adds_up and .experts_there == .experts_all and .devices == 1"
    plan --gpu-memory 3500K | jq -e "$adds_up and .experts_there > 0 and .experts_there < .experts_all and .total <= 3500 * 1024"
    plan --gpu-memory 3500K --device 2-4 | jq -e "$adds_up and .devices == 3 and .total <= 3 * 3500 * 1024"
    [[ $(plan --gpu-memory 64M --batch 3 | jq .gpu.kv_cache) == $((3 * $(plan --gpu-memory 64M | jq .gpu.kv_cache))) ]]
    for kv in f32 f16 int8; do plan --gpu-memory 64M --kv-dtype $kv; done | jq -es '.[0].gpu.kv_cache == 2 * .[1].gpu.kv_cache and .[2].gpu.kv_cache < .[1].gpu.kv_cache'
    # beside a limit of host memory there is a cache, whatever the GPU has
    run -0 colibri-inspect --plan --ctx 64 --gpu-memory 1G --memory 6M demo.bin
    has "$output" "all 32" "dense weights and an expert cache"
    run -0 colibri-inspect --plan --ctx 64 --gpu-memory 4M --memory 3M demo.bin
    has "$output" " of 32; others are copied" "dense weights and an expert cache"
    for how in "" "--memory 6M" "--gpu-memory 3500K" "--device 0,1 --gpu-memory 3500K"; do
        # shellcheck disable=SC2086
        plan --gpu-memory 64M $how | jq -e '.total == .weights + .kv_cache + .activations + .host_buffers
            and .total == .gpu.total + .host_total and .host_total == .host_weights + .host_buffers
            and .weights == .host_weights + .gpu.dense_weights + .gpu.experts and .activations == .gpu.activations'
    done
    for how in copy cpu auto; do
        run -0 colibri-inspect --plan --ctx 64 --gpu-memory 3500K --gpu-experts $how demo.bin
        has "$output" " of 32; others are " "experts that are not on the GPU, mapped"
    done
    has "$output" "as a trial tells"
    # more experts than there is host memory for: they are read from the disk; no room for KV cache, for weights
    run -4 --separate-stderr colibri-inspect --plan --gpu-memory 4M demo.bin
    has "$output" " left beside dense weights and some experts: it does not fit" "enough, but the GPU has too little"
    [[ $output != *"it fits"* ]]
    has "$stderr" "KV cache and activations need " " bytes of the GPU, but " " beside dense weights and some experts" \
        "a shorter context or fewer sequences need less, a higher limit leaves more"
    run -4 --separate-stderr colibri-inspect --plan --gpu-memory 3M --gpu-experts cpu demo.bin
    has "$stderr" " are left there beside dense weights; "
    for where in 0 0,1; do # what is shown adds up
        run -4 --separate-stderr colibri-inspect --plan --json --device $where --gpu-memory 3M demo.bin
        jq -e "$adds_up" <<<"$output"
        run -4 --separate-stderr colibri-inspect --plan --device $where --gpu-memory 3M demo.bin
        has "$output" "experts " " of 32"
    done
    run_err 4 colibri-inspect --plan --gpu-memory 400K demo.bin
    has "$message" "demo.bin: --gpu-memory: " "dense weights " " is the limit of GPU memory; raise it"
    ln -s demo.bin a
    run_err 2 colibri-inspect --plan --ctx 99999 a
    has "$message" "a: a context of 99999 tokens"
    run_err 2 colibri-inspect --plan --gpu-memory 1G --backend cpu demo.bin
    run_err 2 colibri-inspect --plan --gpu-memory 1G --device 0,0 demo.bin
    for option in --gpu-memory=1G --device=1 --gpu-experts=cpu --backend=auto; do
        run_err 2 colibri-inspect $option demo.bin
        has "$message" "options of GPUs belong to --plan"
    done
}

@test "inspect: -v says on stderr what was read" {
    run -0 --separate-stderr colibri-inspect -v --summary demo.bin f32.bin
    ((${#stderr_lines[@]} == 2))
    has "$stderr" "colibri-inspect: demo.bin: " "f32.bin: " " mapped, header of " "4 layers of experts"
    run -0 --separate-stderr colibri-inspect -v --plan -t 2 demo.bin
    has "${stderr_lines[1]}" "demo.bin: device " "2 threads"
    CUDA_VISIBLE_DEVICES='' run -0 --separate-stderr colibri-inspect -v --plan --device 3 --ctx 64 demo.bin
    has "$stderr" "without effect: --device"
    run -0 --separate-stderr colibri-inspect -v --diff demo.bin demo.bin
    ((${#stderr_lines[@]} == 2))
}

@test "inspect: --against with the map that the file was made by" {
    own_architecture
    colibri-convert -q --map own.json own -o m.bin
    run -0 colibri-inspect --against own --map own.json m.bin
    has "$output" "source files are unchanged"
    run -3 colibri-inspect --against own m.bin
    has "$output" "'model_type' is missing"
    echo >>own.json
    run -1 colibri-inspect --against own --map own.json m.bin
    has "$output" "own.json" "other size"
    run_err 2 colibri-inspect --summary --map own.json m.bin
    has "$message" "--map belongs to --against"
}

@test "inspect: --against prints JSON whole or not at all, and keeps control characters of the checkpoint away" {
    cp -r "$DEMO_SRC" src
    jq '. + {"\u001b[31mred": 1, "other": 2}' "$DEMO_SRC/config.json" >src/config.json
    run -3 --separate-stderr colibri-inspect --against src --json demo.bin
    [[ -z $output ]] || fail "$output"
    has "$stderr" "?[31mred" "other"
    if [[ $stderr == *$'\033'* ]]; then fail "$stderr"; fi
    rm src/config.json
    cp "$DEMO_SRC/config.json" src
    run -0 --separate-stderr colibri-inspect --against src --json demo.bin
    jq -e '.equal' <<<"$output"
}

@test "inspect: --encode of a model that is cut meanwhile: one line with the place, then SIGBUS" {
    cp "$COLIBRI_TEST_DEMO" cut.bin
    mkfifo in
    ulimit -c 0
    colibri-inspect --encode cut.bin <in >out 2>err &
    pid=$!
    exec 7>in
    echo '{"text":"x"}' >&7
    for ((i = 0; i < 400; i++)); do [[ -s out ]] && break; sleep 0.02; done
    : >cut.bin
    echo '{"text":"Some other text, with words"}' >&7
    exec 7>&-
    status=0
    wait "$pid" || status=$?
    [[ $status == 135 && $(wc -l <err) == 1 ]] || fail "$status: $(cat err)"
    has "$(cat err)" "colibri-inspect: " "cut.bin: byte " "cannot be read any more"
    truncate -s 300M huge.json
    run_err 3 colibri-inspect --encode huge.json
    has "$message" "huge.json: is longer than 268435456 bytes"
    rm huge.json
}

@test "inspect: --plan tells a run that starts, but reads weights from disk, from one that does not" {
    with() { # KB AVAILABLE, COMMAND...
        echo "MemAvailable: $1 kB" >meminfo
        # shellcheck disable=SC2016
        unshare -rm sh -c 'mount --bind meminfo /proc/meminfo && exec "$@"' - "${@:2}"
    }
    with 1 true || skip "no namespaces"
    colibri-inspect --plan --json demo.bin >plan.json
    total=$(jq .total plan.json) weights=$(jq .weights plan.json)
    run -0 with $((total / 1024 - 1)) colibri-inspect --plan demo.bin
    has "$output" "it runs, but reads weights from disk while it works"
    with $((total / 1024 - 1)) colibri-inspect --plan --json demo.bin | jq -e '.fits == false and .runs == true'
    with $((total / 1024 - 1)) colibri-run -n 1 -p x demo.bin
    run -4 --separate-stderr with $(((total - weights) / 1024 - 1)) colibri-inspect --plan --json demo.bin
    jq -e '.fits == false and .runs == false' <<<"$output"
    run_err 4 with $(((total - weights) / 1024 - 1)) colibri-run -n 1 -p x demo.bin
    run -0 with $((total / 1024 + 1)) colibri-inspect --plan --json demo.bin
    jq -e '.fits and .runs' <<<"$output"
}

# bats test_tags=san
@test "inspect: files that are something else are named as such" {
    : >empty
    run_err 3 colibri-inspect empty
    has "$message" "empty"
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n' >pointer.bin
    run_err 3 colibri-inspect pointer.bin
    has "$message" "pointer.bin" "git lfs pull"
    printf '<!DOCTYPE html><html>' >page.bin
    run_err 3 colibri-inspect page.bin
    has "$message" "web page"
    run_err 3 colibri-inspect "$DEMO_SRC/model.safetensors"
    has "$message" "safetensors" "colibri-convert"
    printf 'GGUF\3\0\0\0' >x.gguf
    run_err 3 colibri-inspect x.gguf
    has "$message" GGUF
    run_err 3 colibri-inspect missing.bin
    has "$message" "missing.bin"
    mkdir folder
    run_err 3 colibri-inspect folder
    has "$message" folder
}

# bats test_tags=san
@test "inspect: a file that is cut short anywhere is refused" {
    size=$(stat -Lc %s demo.bin)
    for n in 5 23 24 4096 20000 $((size - 1)) $((size - 64)) $((size / 2)); do
        head -c "$n" demo.bin >cut.bin
        run_err 3 colibri-inspect cut.bin
        has "$message" "cut.bin: "
    done
    { cat demo.bin; echo; } >long.bin
    run_err 3 colibri-inspect long.bin
    has "$message" "last block"
}

@test "inspect: a bad file does not stop the next one, and decides the status" {
    echo nonsense >bad.bin
    run -3 --separate-stderr colibri-inspect bad.bin demo.bin missing.bin f32.bin
    [[ $(jq -s length <<<"$output") == 2 ]]
    ((${#stderr_lines[@]} == 2))
    has "$stderr" "bad.bin: " "missing.bin"
}

@test "inspect: what makes no sense is a usage error" {
    run_err 2 colibri-inspect --summary --verify demo.bin
    run_err 2 colibri-inspect --diff demo.bin
    has "$message" "two files"
    run_err 2 colibri-inspect --summary --json demo.bin
    run_err 2 colibri-inspect --ctx 10 demo.bin
    run_err 2 colibri-inspect --plan --ctx 0 demo.bin
    run_err 2 colibri-inspect --plan --memory 5Q demo.bin
}

@test "inspect: output that cannot be written is an error" {
    [[ -e /dev/full ]] || skip "no /dev/full"
    for option in -q --summary --experts --tensors --plan; do
        run -4 --separate-stderr bash -c "colibri-inspect $option demo.bin >/dev/full"
        has "$stderr" "standard output"
    done
    run -1 --separate-stderr bash -c 'colibri-inspect demo.bin >&-'
    run -0 bash -c 'colibri-inspect --experts demo.bin | head -n 1'
}

@test "inspect: the manual of the format is right about this file" {
    for key in $(colibri-inspect demo.bin | jq -r '[.. | objects | keys_unsorted[]] | unique[]' | grep -v '^layers\.'); do
        grep -q -- "$key" "$REPO/man/colibri.bin.5" || fail "'$key' is not in man/colibri.bin.5"
    done
    command -v python3 >/dev/null || skip "no python3"
    # The reader in the page gives the weight that the checkpoint has.
    sed -n '/^import json/,/^\.Ed/p' "$REPO/man/colibri.bin.5" | sed '$d; s/\\e/\\/g' >reader.py
    run -0 python3 reader.py demo.bin
    want=$(python3 - "$DEMO_SRC/model.safetensors" <<'EOF'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack_from("<Q", data)[0]
t = json.loads(data[8:8 + n])["model.layers.0.block_sparse_moe.experts.1.w2.weight"]
at = 8 + n + t["data_offsets"][0] + 2 * (19 * t["shape"][1] + 37)
print(struct.unpack("<f", b"\0\0" + data[at:at + 2])[0])
EOF
    )
    awk -v got="$output" -v want="$want" 'BEGIN { d = got - want; exit !(d * d < 0.003 * 0.003 && got != 0) }' ||
        fail "$output is not $want"
}

# bats test_tags=san
@test "inspect: --encode and --decode are the tokenizer on lines of JSON" {
    printf '%s\n' '{"text":"The capital of France is"}' '{"text":"", "add_special":false}' '{"text":"</s>"}' >in
    run -0 --separate-stderr bash -c 'colibri-inspect --encode demo.bin <in'
    [[ -z $stderr ]]
    ((${#lines[@]} == 3))
    [[ $(jq -c '.ids[0]' <<<"${lines[0]}") == 1 && ${lines[1]} == '{"ids":[]}' ]]
    [[ $(colibri-inspect --encode "$DEMO_SRC" <in) == "$output" ]]
    [[ $(colibri-inspect --encode "$DEMO_SRC/tokenizer.json" <in) == "$output" ]]
    [[ $(jq '.ids | length' <<<"${lines[2]}") -gt 2 ]] # text like any other
    [[ $(colibri-inspect --encode --parse-special demo.bin <in | tail -n 1) == '{"ids":[1,2]}' ]]
    echo "${lines[0]}" >ids
    [[ $(colibri-inspect --decode --skip-special demo.bin <ids | jq -r .text) == "The capital of France is" ]]
    [[ $(colibri-inspect --decode --skip-special demo.bin <ids | jq -r '.pieces | join("")') == "The capital of France is" ]]
    [[ $(colibri-inspect --decode demo.bin <ids | jq -r .text) == "<s>"*"The capital of France is" ]]
    echo '{"text":5}' >bad
    run -3 --separate-stderr bash -c 'colibri-inspect --encode demo.bin <bad'
    has "$stderr" "line 1" "text"
    run_err 2 colibri-inspect --encode demo.bin f32.bin
    run_err 2 colibri-inspect --parse-special demo.bin
    run_err 2 colibri-inspect --encode --skip-special demo.bin
}

# bats test_tags=release
@test "inspect: --encode, --decode: a line that memory does not hold is an error" {
    for option in --encode --decode; do
        run_err 4 timeout 20 bash -c 'ulimit -v 100000; colibri-inspect $1 demo.bin </dev/zero' - $option
        has "$message" "out of memory"
    done
}

@test "inspect: --encode, --decode: a line without an end is refused" {
    for option in --encode --decode; do
        run_err 3 timeout 60 bash -c 'colibri-inspect $1 demo.bin </dev/zero' - $option
        has "$message" "a line of standard input has more than 268435456 bytes"
    done
}

# bats test_tags=san
@test "inspect: --encode, --decode: a SentencePiece model, alone or in a folder without tokenizer.json" {
    spm=$REPO/test/data/tokenizers/syn_spm_bpe
    echo '{"text":"Hello world"}' >in
    [[ $(colibri-inspect --encode "$spm/tokenizer.model" <in) == '{"ids":[1,1315,888,1267,615,323]}' ]]
    [[ $(colibri-inspect --encode "$spm" <in) == '{"ids":[1,1315,888,1267,615,323]}' ]]
    [[ $(colibri-inspect --encode "$spm" <in | colibri-inspect --decode "$spm") == *'"text":"Hello world"'* ]]
    mkdir both && cp "$spm/tokenizer.model" both && echo '{"add_bos_token":false,"add_eos_token":true}' >both/tokenizer_config.json
    [[ $(colibri-inspect --encode both <in) == '{"ids":[1315,888,1267,615,323,2]}' ]]
    cp "$DEMO_SRC/tokenizer.json" both # what programs read, so it comes first
    [[ $(colibri-inspect --encode both <in) == "$(colibri-inspect --encode "$DEMO_SRC" <in)" ]]
    head -c 1000 "$spm/tokenizer.model" >cut.model
    run_err 3 bash -c 'colibri-inspect --encode cut.model <in'
    has "$message" "cut.model: byte " "are left"
    : >empty.model
    run_err 3 bash -c 'colibri-inspect --encode empty.model <in'
    has "$message" "empty.model"
}

@test "inspect: letters are short for the long options" {
    pairs=(s summary e experts T tensors c verify p plan)
    for ((i = 0; i < ${#pairs[@]}; i += 2)); do
        # The speed of reading is not the same twice, and neither is the free memory.
        mask='s/[0-9.]+ [kMG]?B\/s//; s/^available.*//'
        diff <(colibri-inspect "-${pairs[i]}" demo.bin | sed -E "$mask") \
            <(colibri-inspect "--${pairs[i + 1]}" demo.bin | sed -E "$mask")
    done
    run -0 colibri-inspect -q -d demo.bin demo.bin
    [[ -z $output ]]
    run -0 colibri-inspect -q -a "$DEMO_SRC" demo.bin
    [[ $(colibri-inspect --plan --json -b 2 demo.bin | jq .batch) == 2 ]]
    # Twice -v: where in the source an error arose.
    run -3 --separate-stderr colibri-inspect -v -v missing.bin
    has "$stderr" ".c:"
}

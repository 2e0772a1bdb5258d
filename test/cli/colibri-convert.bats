#!/usr/bin/env bats
# colibri-convert as a user runs it: what it refuses, what it writes, every option.
load helper

setup() {
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return # bats keeps its own files beside it
    src=$FAMILIES/control_ok
}
is_empty() {
    [[ -z $(ls -A "$1") ]] || fail "in $1: $(ls -A "$1")"
}
# The defects are made once per run.
bad_cases() {
    BAD=$COLIBRI_TEST_TMP/bad
    (
        flock 9
        [[ -e $BAD/cases ]] || {
            rm -rf "$BAD"
            "$REPO/test/data/make_bad.py" "$BAD"
        }
    ) 9>>"$COLIBRI_TEST_TMP/.lock-bad"
}
# Every case whose name matches the pattern is refused with status 3 and the words of its line, and leaves nothing.
# A report of several problems has a first line that counts them.
refuses() {
    local -a c
    local n=0
    bad_cases
    while IFS=$'\t' read -r -a c; do
        [[ ${c[0]} =~ $1 ]] || continue
        n=$((n + 1))
        mkdir "out-${c[0]}"
        run -3 --separate-stderr timeout 60 colibri-convert "$BAD/${c[0]}" -o "out-${c[0]}/m.bin"
        [[ -z $output ]] || fail "${c[0]}: stdout: $output"
        [[ ${stderr_lines[0]} == colibri-convert:* ]] || fail "${c[0]}: $stderr"
        [[ ${#stderr_lines[@]} == 1 || ${stderr_lines[0]} == *problems ]] || fail "${c[0]}: several lines: $stderr"
        has "$stderr" "${c[@]:1}" || fail "${c[0]}"
        is_empty "out-${c[0]}"
    done <"$BAD/cases"
    ((n > 0)) || fail "no case matches $1"
}
section() { # FILE NAME: its bytes
    local at n
    read -r at n < <(colibri-inspect "$1" | jq -r --arg n "$2" '.sections[$n] | "\(.offset) \(.size)"')
    tail -c +$((at + 1)) "$1" | head -c "$n"
}
field() { # FILE JQ...: fields of the header, in one line
    colibri-inspect "$1" | jq -r "$2" | xargs
}

# -- what is refused ---------------------------------------------------------------------------

config='^(config|generation|dense|family)_'
damaged='^(zero_byte_file|five|truncated_(at|in|after|100|one)|header_|lfs|html|trailing|metadata|duplicate_key|unknown_field|no_offsets)'
misfit='^(dtype|wrong|shape|too_many|offsets|overlapping|half|hole)'
surplus='^(missing|extra|nan|inf|neg_inf)_'
index='^(index|shard|tensor_in|truncated_shard|zero_byte_shard|model_beside|no_weights|only_pytorch)'
stored='^(fp8|mxfp4|fused)_'

# bats test_tags=san
@test "refused: config.json that is broken, contradicts itself or is not understood" {
    refuses "$config"
}
# bats test_tags=san
@test "refused: shards that are cut, damaged or something else" {
    refuses "$damaged"
}
# bats test_tags=san
@test "refused: tensors with wrong dtype, shape or place" {
    refuses "$misfit"
}
# bats test_tags=san
@test "refused: codes without their scales, scales that cannot be, several matrices of the wrong shape" {
    refuses "$stored"
}
# bats test_tags=san
@test "refused: missing and surplus tensors, NaN and infinity" {
    refuses "$surplus"
}
# bats test_tags=san
@test "refused: index and shards that do not agree" {
    refuses "$index"
}
@test "every case was one of these" {
    bad_cases
    run -1 grep -vE "$config|$damaged|$misfit|$stored|$surplus|$index" "$BAD/cases"
}

@test "a report lists every problem, or the first thousand, and counts the others" {
    mkdir few && cp "$src"/* few && sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 30/' few/config.json
    run -3 --separate-stderr colibri-convert few -o m.bin
    [[ ${stderr_lines[0]} == "colibri-convert: few: 448 problems" ]] || fail "$stderr"
    ((${#stderr_lines[@]} == 449))
    sed -i 's/"num_hidden_layers": 30/"num_hidden_layers": 102/' few/config.json
    run -3 --separate-stderr colibri-convert few -o m.bin
    [[ ${stderr_lines[0]} == "colibri-convert: few: 1600 problems" ]] || fail "${stderr_lines[0]}"
    ((${#stderr_lines[@]} == 1002))
    [[ ${stderr_lines[1001]} == "  and 600 more" ]]
}

# -- what is accepted --------------------------------------------------------------------------

@test "accepted: a header of more than 100 MB, in bounded memory" {
    mkdir big && cp "$src"/* big
    python3 - big/model.safetensors <<'END'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
h = json.loads(raw[8:8 + n])
h["__metadata__"] = {"key %d" % i: "x" * 1000 for i in range(105000)}
text = json.dumps(h).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])
END
    (($(stat -Lc %s big/model.safetensors) > 105000000))
    colibri-convert -q "$src" -o small.bin
    (
        # The mapping of the file counts; sanitisers reserve terabytes.
        grep -q __asan_init "$(command -v colibri-convert)" || ulimit -v 400000
        colibri-convert -q big -o big.bin
    )
    # The same weights: only the record of the source differs.
    cmp <(tail -c +12289 small.bin) <(tail -c +12289 big.bin)
}

@test "the same bytes at any number of threads, for every type" {
    local dtype t
    for dtype in int8 int4 fp16 bf16 f32 source; do
        for t in 1 2 3; do
            colibri-convert -q --dtype $dtype -t $t "$FAMILIES/olmoe" -o $dtype-$t.bin
        done
        cmp $dtype-1.bin $dtype-2.bin
        cmp $dtype-1.bin $dtype-3.bin
    done
    colibri-convert -q --scale tensor -t 1 "$FAMILIES/olmoe" -o tensor-1.bin
    colibri-convert -q --scale tensor -t 3 "$FAMILIES/olmoe" -o tensor-3.bin
    cmp tensor-1.bin tensor-3.bin
}

@test "--cpu: the same bytes and losses at every level; a level that is not there is refused" {
    local dtype family
    for family in olmoe qwen3_moe_mixed; do
        for dtype in int8 int4 fp16 bf16 f32; do
            colibri-convert -qf --dtype $dtype --report best.txt "$FAMILIES/$family" -o best.bin
            colibri-convert -qf --cpu scalar --dtype $dtype --report scalar.txt "$FAMILIES/$family" -o scalar.bin
            cmp best.bin scalar.bin
            cmp best.txt scalar.txt
        done
    done
    run_err 2 colibri-convert --cpu quantum "$src" -o m.bin
    has "$message" "'quantum'" "'scalar'"
}

@test "every family in every type passes inspect --verify" {
    local f dtype
    for f in "$FAMILIES"/*; do
        for dtype in int8 int4 fp16 bf16 f32 source; do
            colibri-convert -q -f --dtype $dtype "$f" -o m.bin
            run -0 colibri-inspect --verify m.bin
        done
    done
}

@test "shards or one file, symbolic links or files: the same weights" {
    mkdir one && cp "$FAMILIES"/control_ok_sharded/{*config,tokenizer}.json one
    python3 - one/model.safetensors "$FAMILIES"/control_ok_sharded/model-*.safetensors <<'END'
import json, struct, sys
header, data = {}, b""
for path in sys.argv[2:]:
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            header[name] = dict(t, data_offsets=[x + len(data) for x in t["data_offsets"]])
    data += raw[8 + n:]
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
END
    colibri-convert -q one -o one.bin
    colibri-convert -q "$FAMILIES/control_ok_sharded" -o two.bin
    colibri-inspect --diff one.bin two.bin
    mkdir links && ln -s "$FAMILIES/control_ok_sharded"/* links
    colibri-convert -q links -o links.bin
    cmp two.bin links.bin
}

@test "weight files that are not named are noted once and not read" {
    mkdir more && cp "$FAMILIES/control_ok_sharded"/* more
    echo nonsense >more/consolidated.safetensors
    run -0 --separate-stderr colibri-convert more -o m.bin
    [[ $(grep -c consolidated <<<"$stderr") == 1 ]]
    has "$stderr" "note: consolidated.safetensors: not used"
}

@test "tensors that are known to be unused are noted, and checked like the others" {
    mkdir own && cp "$src"/* own
    python3 - own/model.safetensors <<'END'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
h, data = json.loads(raw[8:8 + n]), raw[8 + n:]
h["model.layers.0.self_attn.rotary_emb.inv_freq"] = dict(dtype="F32", shape=[4], data_offsets=[len(data), len(data) + 16])
text = json.dumps(h).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data + bytes(16))
END
    run -0 --separate-stderr colibri-convert own -o m.bin
    has "$stderr" "note: tensor 'model.layers.0.self_attn.rotary_emb.inv_freq' is not used"
    [[ $(field m.bin '.source[] | select(.file == "model.safetensors") | .crc32') == "$(python3 -c 'import zlib; print(zlib.crc32(open("own/model.safetensors", "rb").read()))')" ]]
    run -0 --separate-stderr colibri-convert -f "$FAMILIES/llama_moe" -o m.bin
    has "$stderr" "note: 2 tensors 'model.layers.#.self_attn.rotary_emb.inv_freq' are not used"
}

@test "without tokenizer.json: a note, and a model for token ids" {
    mkdir bare && cp "$src"/* bare && rm bare/tokenizer*.json
    run -0 --separate-stderr colibri-convert bare -o m.bin
    has "$stderr" "no tokenizer.json"
    run -0 bash -c 'echo 5 6 7 | colibri-run --ids -n 2 m.bin'
}

# -- the output --------------------------------------------------------------------------------

@test "-o: an existing file needs -f, and stays when something fails" {
    echo precious >m.bin
    run_err 2 colibri-convert "$src" -o m.bin
    has "$message" "m.bin: exists" "-f"
    [[ $(cat m.bin) == precious ]]
    bad_cases
    run_err 3 colibri-convert -f "$BAD/nan_expert" -o m.bin
    [[ $(cat m.bin) == precious ]]
    colibri-convert -q --force "$src" --output m.bin
    colibri-inspect --verify m.bin >/dev/null
    holds_only . m.bin
}

@test "-o: not a file of the checkpoint, by whatever name" {
    mkdir own && cp "$src"/* own && ln -s own/model.safetensors other-name
    cp own/model.safetensors before
    run_err 2 colibri-convert -f own -o own/model.safetensors
    has "$message" "is a file of the checkpoint"
    run_err 2 colibri-convert -f own -o other-name
    has "$message" "is a file of the checkpoint"
    run_err 2 colibri-convert -f own -o m.bin --report own/config.json
    has "$message" "is a file of the checkpoint"
    cmp before own/model.safetensors
    run_err 2 colibri-convert own -o m.bin --report own/../m.bin
    has "$message" "is the output"
    holds_only . before other-name own
}

@test "-o: no such folder, a folder, no permission" {
    run_err 1 colibri-convert "$src" -o nowhere/m.bin
    has "$message" "nowhere/m.bin" "No such file"
    mkdir dir
    run_err 2 colibri-convert "$src" -o dir
    has "$message" "is a folder"
    ((EUID != 0)) || skip "root may write everywhere"
    chmod 555 dir
    run_err 1 colibri-convert "$src" -o dir/m.bin
    has "$message" "Permission denied"
}

@test "disk full: status 4, /dev/full too" {
    run_err 4 colibri-convert "$src" -o /dev/full
    has "$message" "/dev/full" "No space left"
    run -0 colibri-convert -q "$src" -o /dev/null
    [[ -c /dev/null && -c /dev/full ]]
    ((EUID == 0)) || skip "a small disk needs root"
    mkdir small
    mount -t tmpfs -o size=64k tmpfs small || skip "cannot mount"
    run --separate-stderr colibri-convert "$src" -o small/m.bin
    local s=$status left
    left=$(ls -A small)
    umount small
    [[ $s == 4 && -z $left ]] || fail "status $s, left '$left'"
    has "$stderr" "small/m.bin: needs"
}

@test "limits of the shell: file size, open files" {
    run_err 4 bash -c 'ulimit -f 16; colibri-convert "$1" -o m.bin' - "$src"
    has "$message" "m.bin: " "File too large"
    run_err 1 bash -c 'exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit -n 4; colibri-convert "$1" -o m.bin' - "$src"
    has "$message" "Too many open files"
    holds_only .
}

@test "-v says how many threads there are, and why" {
    run -0 --separate-stderr colibri-convert -v "$src" -o m.bin
    has "$stderr" "threads " "affinity"
    run -0 --separate-stderr colibri-convert -v -t 1 -f "$src" -o m.bin
    has "$stderr" "threads 1 (as asked for)"
}

# Starts a conversion that takes a while, and waits until it writes. Sets pid.
slow_start() {
    [[ -e big/config.json ]] || python3 "$REPO/test/data/make_large.py" big
    colibri-convert -q -t 1 --cpu scalar --dtype int4 big -o m.bin &
    pid=$!
    for _ in $(seq 1000); do
        ! compgen -G '.m.bin.clb-*' >/dev/null || return 0
        sleep 0.01
    done
    fail "it did not start"
}

@test "SIGINT and SIGTERM: nothing stays, and it dies of the signal" {
    local sig s
    for sig in INT TERM; do
        set -m # else SIGINT is ignored in the background, and a program that was started so must keep that
        slow_start
        set +m
        kill -$sig "$pid"
        s=0
        wait "$pid" || s=$?
        [[ $s == $((128 + $(kill -l $sig))) ]] || fail "status $s"
        holds_only . big
    done
}

@test "kill -9 in the middle: the next run removes what was left" {
    slow_start
    kill -9 "$pid"
    wait "$pid" || true
    compgen -G '.m.bin.clb-*' >/dev/null || fail "nothing was left to remove"
    [[ ! -e m.bin ]]
    colibri-convert -q "$src" -o m.bin
    holds_only . big m.bin
}

# -- options -----------------------------------------------------------------------------------

@test "--dtype, --dense-dtype: types of the header" {
    local types='.experts[0].parts.gate.dtype, .tensors["layers.0.q"].dtype, .tensors.embed.dtype, .tensors["layers.0.router"].dtype'
    colibri-convert -q "$FAMILIES/mixtral" -o m.bin
    [[ $(field m.bin "$types") == "int8 int8 bf16 f32" ]]
    colibri-convert -qf --dtype int4 "$FAMILIES/mixtral" -o m.bin
    [[ $(field m.bin "$types") == "int4 int8 bf16 f32" ]]
    colibri-convert -qf --dtype int4 --dense-dtype int4 "$FAMILIES/mixtral" -o m.bin
    [[ $(field m.bin "$types") == "int4 int4 bf16 f32" ]]
    colibri-convert -qf --dtype source "$FAMILIES/mixtral_swa" -o m.bin
    [[ $(field m.bin "$types") == "fp16 fp16 fp16 f32" ]]
    run_err 2 colibri-convert --dtype int3 "$src" -o x.bin
    has "$message" "int3" "int8|int4"
    run_err 2 colibri-convert --dense-dtype source "$src" -o x.bin
}

@test "--dtype bf16 of a bf16 checkpoint loses nothing; quantised types say what they lose" {
    run -0 --separate-stderr colibri-convert --dtype bf16 "$FAMILIES/mixtral" -o m.bin
    has "$stderr" "experts" "exact"
    [[ $stderr != *dB* ]]
    colibri-convert -q --dtype f32 "$FAMILIES/mixtral" -o f.bin
    run -0 --separate-stderr colibri-convert -f --dtype int8 "$FAMILIES/mixtral" -o m.bin
    has "$stderr" "experts" "44.4 dB" "layer 0 expert 0 gate"
}

@test "--dtype fp16 counts underflows and refuses values beyond 65504" {
    run -0 --separate-stderr colibri-convert --dtype fp16 "$FAMILIES/mixtral" -o m.bin
    has "$stderr" "underflows"
    mkdir large && cp "$src"/* large
    poke() { # TENSOR ELEMENT BITS
        python3 - large/model.safetensors "$@" <<'END'
import json, struct, sys
raw = bytearray(open(sys.argv[1], "rb").read())
n = struct.unpack("<Q", raw[:8])[0]
at = 8 + n + json.loads(raw[8:8 + n])[sys.argv[2]]["data_offsets"][0] + 2 * int(sys.argv[3])
raw[at:at + 2] = struct.pack("<H", int(sys.argv[4], 16))
open(sys.argv[1], "wb").write(raw)
END
    }
    poke model.norm.weight 5 4780 # 65536, but norms stay f32
    colibri-convert -q --dtype fp16 large -o m2.bin
    poke model.layers.0.block_sparse_moe.experts.1.w1.weight 33 C780
    run_err 3 colibri-convert --dtype fp16 large -o m3.bin
    has "$message" "experts.1.w1.weight" "element 33 (row 1, column 1)" "-65536" "65504"
    colibri-convert -q --dtype bf16 large -o m3.bin
}

@test "--scale: coarser scales lose more; only for int8" {
    local db=() s
    for s in row expert tensor; do
        colibri-convert -qf --scale $s "$FAMILIES/olmoe" -o $s.bin --report r.jsonl
        colibri-inspect --verify $s.bin >/dev/null
        [[ $(field $s.bin .scale) == "$s" ]]
        db+=("$(jq -s 'map(select(.part != null).sqnr_db) | add / length' r.jsonl)")
    done
    awk -v a="${db[0]}" -v b="${db[1]}" -v c="${db[2]}" 'BEGIN { exit !(a > b && b > c) }' || fail "${db[*]}"
    run_err 2 colibri-convert --dtype bf16 --scale expert "$src" -o x.bin
    has "$message" "--scale expert needs --dtype int8"
}

@test "--clip-gate-softmax: off, the default, a number" {
    colibri-convert -q "$src" -o m.bin
    [[ $(field m.bin .architecture.router_clip) == null ]]
    colibri-convert -qf --clip-gate-softmax "$src" -o m.bin
    [[ $(field m.bin .architecture.router_clip) == 50* ]]
    colibri-convert -qf --clip-gate-softmax 0.5 "$src" -o m.bin
    [[ $(field m.bin .architecture.router_clip) == 0.5 ]]
    colibri-convert -qf --clip-gate-softmax=2 "$src" -o m.bin
    [[ $(field m.bin .architecture.router_clip) == 2* ]]
    run_err 2 colibri-convert --clip-gate-softmax=-1 "$src" -o x.bin
}

@test "--ignore-key: accepts, is recorded, and accepts nothing else" {
    mkdir own && cp "$src"/* own
    sed -i 's/"vocab_size"/"attention_wobble": 0.5, "other_wobble": 1, "vocab_size"/' own/config.json
    run -3 --separate-stderr colibri-convert own -o m.bin
    has "$stderr" "2 problems" attention_wobble other_wobble
    run_err 3 colibri-convert --ignore-key attention_wobble own -o m.bin
    has "$message" other_wobble
    colibri-convert -q --ignore-key attention_wobble --ignore-key other_wobble own -o m.bin
    [[ $(field m.bin '.ignored_keys | join("+")') == "attention_wobble+other_wobble" ]]
    sed -i 's/"attention_wobble": 0.5, "other_wobble": 1/"attention_wobble": null, "other_wobble": [ ], "_x": 1, "output_y": 2/' own/config.json
    colibri-convert -qf own -o m.bin
}

@test "--ignore-key: a name that needs none is refused, and none leaves a trace in the file" {
    mkdir own && cp "$src"/* own
    sed -i 's/"vocab_size"/"rope_scaling": {"type": "linear", "factor": 2.0, "wobble": 1, "dtype": 2}, "b_wobble": 1, "vocab_size"/' own/config.json
    local -a accepted=(--ignore-key rope_scaling.wobble --ignore-key b_wobble --ignore-key rope_scaling.dtype)
    run_err 3 colibri-convert --ignore-key rope_scaling.wobble --ignore-key b_wobble own -o x.bin
    has "$message" "'rope_scaling.dtype' is 2"
    colibri-convert -q "${accepted[@]}" own -o m.bin
    [[ $(field m.bin '.ignored_keys | join("+")') == "b_wobble+rope_scaling.dtype+rope_scaling.wobble" ]]
    colibri-convert -q --ignore-key b_wobble "${accepted[@]}" own -o same.bin
    cmp m.bin same.bin
    run -2 --separate-stderr colibri-convert "${accepted[@]}" --ignore-key typo own -o x.bin
    has "$stderr" "--ignore-key typo: config.json has no such key"
    run -2 --separate-stderr colibri-convert "${accepted[@]}" --ignore-key wobble own -o x.bin
    has "$stderr" "--ignore-key wobble: config.json has no such key"
    run -2 --separate-stderr colibri-convert "${accepted[@]}" --ignore-key hidden_size own -o x.bin
    has "$stderr" "--ignore-key hidden_size: is understood and cannot be ignored"
    run -2 --separate-stderr colibri-convert "${accepted[@]}" --ignore-key rope_scaling own -o x.bin
    has "$stderr" "--ignore-key rope_scaling: is understood and cannot be ignored"
    run -2 --separate-stderr colibri-convert "${accepted[@]}" --ignore-key model_type own -o x.bin
    has "$stderr" "--ignore-key model_type: is understood"
    run -2 --separate-stderr colibri-convert "${accepted[@]}" --ignore-key use_cache own -o x.bin
    has "$stderr" "--ignore-key use_cache: is known to change nothing"
    [[ ! -e x.bin ]]
    colibri-inspect --against own m.bin
    sed -i 's/"b_wobble": 1, //' own/config.json # the file's list is no request of the user
    run -1 colibri-inspect --against own m.bin
}

@test "Qwen3-MoE: a sliding window in use must have a size" {
    mkdir own && cp "$FAMILIES"/qwen3_moe/* own
    jq '.use_sliding_window = true | .sliding_window = null' "$FAMILIES"/qwen3_moe/config.json >own/config.json
    run_err 3 colibri-convert own -o m.bin
    has "$message" "'sliding_window' is missing"
    jq '.use_sliding_window = true | .sliding_window = 8' "$FAMILIES"/qwen3_moe/config.json >own/config.json
    colibri-convert -q own -o m.bin
}

@test "--map: an own architecture, recorded as a source" {
    own_architecture
    run_err 3 colibri-convert own -o m.bin
    has "$message" "own/config.json" "'model_type' is missing"
    mkdir maps && mv own.json maps
    run -0 --separate-stderr colibri-convert -q --map maps/own.json own -o m.bin
    [[ -z $output && -z $stderr ]]
    [[ $(field m.bin '.source[] | select(.file == "own.json") | "\(.size) \(.crc32)"') == "$(stat -c %s maps/own.json) $(gzip -c maps/own.json | tail -c 8 | od -An -tu4 -N4 | xargs)" ]]
    colibri-convert -q "$FAMILIES/mixtral" -o plain.bin
    run -0 colibri-inspect --diff m.bin plain.bin
}

@test "--map: what is wrong with it is one line with file, byte and field, and nothing is written" {
    own_architecture
    sed -i 's/"half"/"halves"/' own.json
    run_err 3 colibri-convert --map own.json own -o m.bin
    has "$message" "own.json: byte 142: 'rope'" "'halves'"
    sed -i 's/"halves"/"half"/; s/#.w1/w1/' own.json
    run_err 3 colibri-convert --map own.json own -o m.bin
    has "$message" "own.json: byte 337: 'tensors.model.layers.#.block_sparse_moe.experts.w1.weight'" "has 1 '#'"
    sed -i 's/experts.w1/experts.#.v1/' own.json
    run -3 --separate-stderr colibri-convert --map own.json own -o m.bin
    has "$stderr" "32 problems" "experts.0.w1.weight' is surplus: mine has no such tensor" "experts.0.v1.weight' is missing"
    run_err 3 colibri-convert --map none.json own -o m.bin
    has "$message" "none.json" "No such file"
    run_err 3 colibri-convert --map . own -o m.bin
    has "$message" "folder"
    head -c 100 own.json >cut.json
    run_err 3 colibri-convert --map cut.json own -o m.bin
    has "$message" "cut.json: byte 100"
    mkdir maps && cp own.json maps/config.json
    run_err 2 colibri-convert --map maps/config.json own -o m.bin
    has "$message" "give the map another"
    sed -i 's/v1/w1/' own.json
    run_err 2 colibri-convert -f --map own.json own -o own.json
    has "$message" "is a file of the checkpoint"
    [[ ! -e m.bin ]]
}

@test "number of experts under each published name: the same weights" {
    colibri-convert -q "$FAMILIES/mixtral" -o plain.bin
    for key in num_experts n_routed_experts moe_num_experts; do
        cp -r "$FAMILIES/mixtral" "$key"
        jq --arg k "$key" '.[$k] = .num_local_experts | del(.num_local_experts)' "$FAMILIES/mixtral/config.json" >"$key/config.json"
        colibri-convert -q "$key" -o "$key.bin"
        run -0 colibri-inspect --diff plain.bin "$key.bin"
    done
    # both, and they agree
    jq '.num_local_experts = .num_experts' num_experts/config.json >c && mv c num_experts/config.json
    colibri-convert -q -f num_experts -o num_experts.bin
    run -0 colibri-inspect --diff plain.bin num_experts.bin
}

@test "rope_scaling and rope_parameters: the same inverse frequencies, spelled as you like" {
    cp -r "$FAMILIES/qwen3_moe_mixed" new
    jq '.rope_parameters = (.rope_scaling | .rope_type = (.rope_type // .type) | del(.type)) + {rope_theta} | del(.rope_scaling, .rope_theta)' \
        "$FAMILIES/qwen3_moe_mixed/config.json" >new/config.json
    colibri-convert -q "$FAMILIES/qwen3_moe_mixed" -o old.bin
    colibri-convert -q new -o new.bin
    run -0 colibri-inspect --diff old.bin new.bin
    jq '.rope_scaling = .rope_parameters | .rope_scaling.type = .rope_scaling.rope_type | del(.rope_parameters)' new/config.json >c && mv c new/config.json
    colibri-convert -q -f new -o new.bin
    run -0 colibri-inspect --diff old.bin new.bin
}

@test "tied embeddings: an output matrix beside them is not used, and one that differs is warned of" {
    cp -r "$FAMILIES/mixtral_swa" tied
    colibri-convert -q tied -o plain.bin
    tie() { # PYTHON: bytes of lm_head.weight, from those of the embedding
        python3 - "$FAMILIES/mixtral_swa/model.safetensors" tied/model.safetensors "$1" <<'END'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
h, data = json.loads(raw[8:8 + n]), raw[8 + n:]
t = h["model.embed_tokens.weight"]
e = data[slice(*t["data_offsets"])]
e = eval(sys.argv[3])
h["lm_head.weight"] = dict(t, data_offsets=[len(data), len(data) + len(e)])
text = json.dumps(h).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data + e)
END
    }
    tie 'e'
    run -0 --separate-stderr colibri-convert tied -o same.bin
    has "$stderr" "note: tensor 'lm_head.weight' is not used: 'tie_word_embeddings' is true"
    [[ $stderr != *warning* ]] || fail "$stderr"
    run -0 colibri-inspect --diff plain.bin same.bin
    tie 'e[:-1] + bytes([e[-1] ^ 1])'
    run -0 --separate-stderr colibri-convert tied -o other.bin
    has "$stderr" "colibri-convert: warning: tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'"
    run -0 colibri-inspect --diff plain.bin other.bin
    run -0 --separate-stderr colibri-convert -q -f tied -o other.bin
    [[ -z $stderr ]]
    # untied, it is the output
    jq '.tie_word_embeddings = false' "$FAMILIES/mixtral_swa/config.json" >tied/config.json
    colibri-convert -q -f tied -o other.bin
    run -1 colibri-inspect --diff plain.bin other.bin
}

@test "tokenizer.json that is cut or damaged refuses the model" {
    cp -r "$src" odd
    head -c 1000 "$src/tokenizer.json" >odd/tokenizer.json
    run_err 3 colibri-convert odd -o m.bin
    has "$message" "odd/tokenizer.json: byte 1000"
    sed 's/"merges": *\[/&"\xc3 x",/' "$src/tokenizer.json" >odd/tokenizer.json
    run_err 3 colibri-convert odd -o m.bin
    has "$message" "odd/tokenizer.json: byte" "UTF-8"
    jq '.pre_tokenizer = {type: "Split", pattern: {Regex: "(?<n>a)\\k<n>"}, behavior: "Isolated", invert: false}' "$src/tokenizer.json" >odd/tokenizer.json
    run_err 3 colibri-convert odd -o m.bin
    has "$message" "odd/tokenizer.json: byte" "the pattern '(?<n>a)"
    holds_only . odd
}

# Keys and tensors that the small checkpoints of the tests lack, but the published ones have.
@test "published configurations: keys of other tasks, layers that predict further tokens" {
    cp -r "$FAMILIES/exaone_moe" further
    python3 - "$FAMILIES/exaone_moe/model.safetensors" further/model.safetensors <<'END'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
h, data = json.loads(raw[8:8 + n]), raw[8 + n:]
for name in ("mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight"):
    h[name] = dict(dtype="BF16", shape=[4], data_offsets=[len(data), len(data) + 8])
    data += bytes(8)
text = json.dumps(h).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data)
END
    run -0 --separate-stderr colibri-convert further -o further.bin
    has "$stderr" "'mtp.*' are not used"
    colibri-convert -q "$FAMILIES/exaone_moe" -o plain.bin
    run -0 colibri-inspect --diff plain.bin further.bin
    # what programs add when they save
    cp -r "$FAMILIES/qwen3_moe" saved
    jq '.rope_parameters = {rope_type: "default", rope_theta} | del(.rope_theta, .torch_dtype) | .dtype = "bfloat16" | .return_dict = true | .id2label = {"0": "LABEL_0"}
        | .chunk_size_feed_forward = 0 | .problem_type = null | .layer_types = ["full_attention", "full_attention"]' "$FAMILIES/qwen3_moe/config.json" >saved/config.json
    colibri-convert -q saved -o saved.bin
    colibri-convert -q -f "$FAMILIES/qwen3_moe" -o plain.bin
    run -0 colibri-inspect --diff plain.bin saved.bin
    cp -r "$FAMILIES/deepseek_v2" saved2
    jq '.qk_head_dim = 32 | .head_dim = 16 | .mlp_bias = false' "$FAMILIES/deepseek_v2/config.json" >saved2/config.json
    colibri-convert -q saved2 -o saved2.bin
    colibri-convert -q -f "$FAMILIES/deepseek_v2" -o plain.bin
    run -0 colibri-inspect --diff plain.bin saved2.bin
}

@test "--report: a JSON line per tensor and expert" {
    colibri-convert -q "$FAMILIES/mixtral" -o m.bin --report r.jsonl
    [[ $(jq -s 'map(select(.expert != null)) | length' r.jsonl) == 48 ]]
    [[ $(jq -r 'select(.tensor == "layers.1.router") | "\(.dtype) \(.values) \(.sqnr_db)"' r.jsonl) == "f32 768 null" ]]
    run_err 2 colibri-convert -q "$FAMILIES/mixtral" -o m2.bin --report r.jsonl
    has "$message" "r.jsonl: exists"
    run_err 1 colibri-convert -q "$FAMILIES/mixtral" -o m2.bin --report nowhere/r.jsonl
    holds_only . m.bin r.jsonl
}

@test "--dry-run: the exact size, nothing written, refusals too" {
    run -0 --separate-stderr colibri-convert --dry-run --dtype int4 "$FAMILIES/mixtral"
    colibri-convert -q --dtype int4 "$FAMILIES/mixtral" -o m.bin
    [[ $output == "$(stat -c %s m.bin) bytes ("* ]]
    bad_cases
    run -3 --separate-stderr colibri-convert --dry-run "$BAD/config_more_experts"
    has "$stderr" "problems"
    holds_only . m.bin
}

@test "--explain: every key of config.json and the descriptor" {
    # inside rope_scaling too; what a family knows to have no effect is not "used"
    run -0 --separate-stderr colibri-convert --explain "$FAMILIES/qwen3_moe_mixed"
    [[ -z $stderr && ${lines[0]} == "family qwen3_moe" ]]
    squeezed=$(tr -s ' ' <<<"$output")
    has "$squeezed" "hidden_size used 64" "torch_dtype irrelevant" "sliding_window irrelevant" "layer_experts 0, 6, 0" "rope_scale 1.138" \
        "rope_scaling.factor used 4.0" "neutral:" " qk_norm_eps"
    [[ $(grep -cE ' (used|irrelevant) ' <<<"$squeezed") == $(jq '[keys, (.rope_scaling | keys)] | flatten | length' "$FAMILIES/qwen3_moe_mixed/config.json") ]]
    # what is missing there follows from the family
    cp -r "$FAMILIES/qwen3_moe" silent
    jq 'del(.norm_topk_prob)' "$FAMILIES/qwen3_moe/config.json" >silent/config.json
    run -0 --separate-stderr colibri-convert --explain silent
    [[ $output =~ neutral:.*\ topk_normalise, ]]
    colibri-convert -q silent -o silent.bin
    run -0 colibri-inspect --summary silent.bin
    has "$output" "softmax, then top-k, weights as they are"
    colibri-convert -q "$FAMILIES/qwen3_moe" -o said.bin
    run -0 colibri-inspect --summary said.bin
    has "$output" "softmax, then top-k, weights sum to 1"
}

@test "--explain: also of what is refused because of a key, and with a map" {
    jq '.rope_scaling = {"type": "linear", "factor": 2, "wobble": 1} | .attention_wobble = [1, 2] | ."esc\u001b" = 1' "$src/config.json" >config.json
    cp -r "$src" odd && mv config.json odd
    run -3 --separate-stderr colibri-convert --explain odd
    squeezed=$(tr -s ' ' <<<"$output")
    has "$squeezed" "attention_wobble unknown [1, 2]" "rope_scaling.wobble unknown 1" "hidden_size used 32" "esc? unknown"
    has "$stderr" "odd/config.json: 3 problems" "--ignore-key rope_scaling.wobble"
    run -3 --separate-stderr colibri-convert --explain --ignore-key attention_wobble odd
    has "$(tr -s ' ' <<<"$output")" "attention_wobble ignored"
    # nothing is said about keys that were not reached
    jq '.hidden_size = "x"' "$src/config.json" >odd/config.json
    run_err 3 colibri-convert --explain odd
    own_architecture
    run -0 --separate-stderr colibri-convert --explain --map own.json own
    has "$(tr -s ' ' <<<"$output")" "family mine" "arch used" "width used 96" "router_aux_loss_coef irrelevant" "expert_size 64"
}

@test "-q says nothing, -v -v says where an error arose" {
    run -0 --separate-stderr colibri-convert -q "$src" -o m.bin
    [[ -z $output && -z $stderr ]]
    bad_cases
    run -3 --separate-stderr colibri-convert -v -v "$BAD/missing_norm" -o x.bin
    has "$stderr" ".c:"
}

@test "usage: no folder, two folders, no output" {
    run_err 2 colibri-convert -o m.bin
    has "$message" "no folder"
    run_err 2 colibri-convert "$src" "$src" -o m.bin
    has "$message" "one folder is expected"
    run_err 2 colibri-convert "$src"
    has "$message" "-o"
    run_err 3 colibri-convert nowhere -o m.bin
    has "$message" "nowhere"
    run_err 3 colibri-convert "$src/config.json" -o m.bin
    has "$message" "not a folder"
    run_err 2 colibri-convert -t 0 "$src" -o m.bin
    is_empty .
}

# -- what else goes into the file --------------------------------------------------------------

@test "chat template: from tokenizer_config.json, the one named default of a list, or a file of its own" {
    mkdir own && cp "$src"/* own
    jq '.chat_template = "plain é"' "$src/tokenizer_config.json" >own/tokenizer_config.json
    colibri-convert -q own -o m.bin
    [[ $(section m.bin chat_template) == "plain é" ]]
    jq '.chat_template = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]' \
        "$src/tokenizer_config.json" >own/tokenizer_config.json
    run -0 --separate-stderr colibri-convert -f own -o m.bin
    has "$stderr$output" "chat template 'tool' is left out"
    [[ $(section m.bin chat_template) == D ]]
    [[ $(field m.bin '.sections["chat_template.tool_use"]') == null ]]
    jq '.chat_template = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "{{ x | sha }}"}] |
        .bos_token = {"content": "<s>", "lstrip": false} | .pad_token = null' "$src/tokenizer_config.json" >own/tokenizer_config.json
    run -0 --separate-stderr colibri-convert -f own -o m.bin
    has "$stderr$output" "conversations will be refused: chat template: line 1, column 8: the filter 'sha' is not supported"
    [[ $(section m.bin chat_template.tool_use) == T ]]
    [[ $(section m.bin chat_variables | jq -c '[.bos_token, .eos_token, .pad_token]') == '["<s>","</s>",null]' ]]
    jq '.chat_template = 7' "$src/tokenizer_config.json" >own/tokenizer_config.json
    run_err 3 colibri-convert -qf own -o m.bin
    has "$message" "tokenizer_config.json" "chat_template"
    echo -n "own file" >own/chat_template.jinja
    colibri-convert -qf own -o m.bin
    [[ $(section m.bin chat_template) == "own file" ]]
    section m.bin tokenizer.source | cmp - own/tokenizer.json
}

# A SentencePiece model of 262 pieces, for the vocabulary of the small checkpoints.
small_spm() {
    python3 - >"$1" <<'END'
import struct, sys
def number(v):
    out = b""
    while v > 127:
        out, v = out + bytes([v & 127 | 128]), v >> 7
    return out + bytes([v])
def part(field, data): return number(field << 3 | 2) + number(len(data)) + data
def piece(name, score, kind): return part(1, part(1, name.encode()) + number(21) + struct.pack("<f", score) + number(24) + number(kind))
out = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3)
out += b"".join(piece(f"<0x{b:02X}>", 0, 6) for b in range(256))
out += piece("a", -1, 1) + piece("\u2581", -2, 1) + piece("\u2581a", -3, 1)
sys.stdout.buffer.write(out + part(2, number(24) + number(2) + number(35 << 3) + number(1)))
END
}

@test "tokenizer.model: taken where there is no tokenizer.json, and kept as it is" {
    mkdir own && cp "$src"/* own
    small_spm own/tokenizer.model
    colibri-convert -q own -o m.bin # tokenizer.json comes first
    section m.bin tokenizer.source | cmp - own/tokenizer.json
    [[ $(field m.bin '[.source[].file] | join(" ")') != *tokenizer.model* ]]
    rm own/tokenizer.json
    colibri-convert -qf own -o m.bin
    section m.bin tokenizer.source | cmp - own/tokenizer.model
    [[ $(field m.bin '[.source[].file] | join(" ")') == *tokenizer.model* ]]
    [[ $(echo '{"text":"a a!"}' | colibri-inspect --encode m.bin) == '{"ids":[1,261,261,36]}' ]]
    run -0 colibri-run -p "a a" -n 2 m.bin
    colibri-convert -q own -o again.bin
    cmp m.bin again.bin
    head -c 3000 own/tokenizer.model >short.model
    mv short.model own/tokenizer.model
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "own/tokenizer.model: byte "
    [[ ! -e bad.bin ]]
}

@test "tiktoken.model: taken where there is nothing else, for classes that are known; other vocabularies are refused" {
    mkdir own && cp "$src"/* own
    rm own/tokenizer.json
    python3 -c '
import base64
for rank, token in enumerate([bytes([b]) for b in range(256)] + [b"aa"]):
    print(base64.b64encode(token).decode(), rank)' >own/tiktoken.model
    map='{"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}'
    jq -n "{auto_map: $map, eos_token: \"[EOS]\", added_tokens_decoder: {\"258\": {content: \"[EOS]\", special: true}}}" \
        >own/tokenizer_config.json
    colibri-convert -q own -o m.bin
    section m.bin tokenizer.source | cmp - own/tiktoken.model
    [[ $(field m.bin '[.source[].file] | join(" ")') == *tiktoken.model* ]]
    echo '{"text":"aaa中[EOS]"}' >in
    ids='{"ids":[256,97,228,184,173,258]}'
    [[ $(colibri-inspect --encode --parse-special m.bin <in) == "$ids" ]]
    [[ $(colibri-inspect --encode --parse-special own <in) == "$ids" ]]
    [[ $(colibri-inspect --encode --parse-special own/tiktoken.model <in) == "$ids" ]]
    run -0 colibri-run -p "a a" -n 2 m.bin
    colibri-convert -q own -o again.bin
    cmp m.bin again.bin
    cp "$src/tokenizer.json" own # comes first
    jq '.eos_token = null' own/tokenizer_config.json >config && mv config own/tokenizer_config.json
    colibri-convert -qf own -o again.bin
    section again.bin tokenizer.source | cmp - own/tokenizer.json
    rm own/tokenizer.json
    sed -i 's/kimi/other/' own/tokenizer_config.json
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "own/tiktoken.model: a tiktoken vocabulary does not say how text is split" \
        "the class 'tokenization_other.TikTokenTokenizer' is not known; put a tokenizer.json beside it"
    cp own/tiktoken.model .
    run_err 3 colibri-inspect --encode tiktoken.model
    has "$message" "there is no tokenizer_config.json to name its class"
    mv own/tiktoken.model own/some.tiktoken
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "own/some.tiktoken: a tiktoken vocabulary" "or take it out of the folder to use token ids only"
    [[ ! -e bad.bin ]]
    rm own/some.tiktoken
    run -0 --separate-stderr colibri-convert -f own -o m.bin
    has "$stderr" "no tokenizer.json, tokenizer.model or tiktoken.model: the model takes and gives token ids only"
}

@test "tokenizer: larger than the model's vocabulary is refused, smaller is said" {
    mkdir own && cp "$src"/* own
    n=$(jq .vocab_size own/config.json)
    jq ".added_tokens += [range($n) | {id: ., content: \"<x\\(.)>\", single_word: false, lstrip: false, rstrip: false, normalized: false, special: false}]" \
        "$src/tokenizer.json" >own/tokenizer.json
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "own/tokenizer.json: added_tokens: byte " "id $n, but the model has a vocabulary of $n"
    [[ ! -e bad.bin ]]
    rm own/tokenizer.json && cp "$REPO/test/data/tokenizers/syn_spm_bpe/tokenizer.model" own
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "own/tokenizer.model: piece $n, but the model has a vocabulary of $n"
    rm own/tokenizer.model
    jq '.added_tokens = [] | .post_processor = null | .model.vocab |= with_entries(select(.value < 200)) | .model.merges = []' \
        "$src/tokenizer.json" >own/tokenizer.json
    jq '.eos_token = null' "$src/tokenizer_config.json" >own/tokenizer_config.json
    run -0 --separate-stderr colibri-convert own -o m.bin
    has "$stderr" "the tokenizer has 200 tokens, the model $n: ids from 200 on have no text"
    [[ $(echo "{\"ids\":[199,$((n - 1)),198]}" | colibri-inspect --decode m.bin | jq '.pieces | length') == 3 ]]
}

@test "end tokens: those of both configurations and of the tokenizer, each once" {
    mkdir own && cp "$src"/* own
    set_eos() {
        jq ".eos_token_id = $1" "$src/config.json" >own/config.json
        echo "{\"eos_token_id\": $2}" >own/generation_config.json
        jq ".eos_token = $3" "$src/tokenizer_config.json" >own/tokenizer_config.json
    }
    ends() {
        set_eos "$@"
        colibri-convert -qf own -o m.bin
        field m.bin '.generation | "\(.eos_token) \(.text_eos_token)"'
    }
    [[ $(ends 3 '[4, 5]' '"</s>"') == "[3,4,5] 2" ]]
    [[ $(ends 4 '[4, 5, 4]' '{"content": "</s>"}') == "[4,5] 2" ]]
    [[ $(ends 2 2 '"</s>"') == "[2] null" ]]
    [[ $(ends 3 null null) == "[3] null" ]]
    run -0 colibri-inspect --summary m.bin
    set_eos 2 99999 null
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "own/generation_config.json" "eos_token_id" 99999
    set_eos 2 2 '"<nowhere>"'
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "own/tokenizer_config.json: eos_token is '<nowhere>', which is no token of own/tokenizer.json"
    set_eos '[3,4,5,6,7,8,9,10]' '[11,12,13,14,15,16,17,18]' '"</s>"'
    run_err 3 colibri-convert -q own -o bad.bin
    has "$message" "more than 16 different end tokens"
    [[ ! -e bad.bin ]]
}

@test "generation defaults: generation_config.json wins over config.json" {
    mkdir own && cp "$src"/* own
    echo '{"eos_token_id": [2, 3], "temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": true}' >own/generation_config.json
    colibri-convert -q own -o m.bin
    [[ $(field m.bin '.generation | "\(.eos_token) \(.bos_token) \(.top_k)"') == "[2,3] 1 20" ]]
}

@test "the header records what was read: name, size and crc32 of every file" {
    colibri-convert -q "$FAMILIES/control_ok_sharded" -o m.bin
    colibri-inspect m.bin | jq -r '.source[] | "\(.file) \(.size) \(.crc32)"' >got
    (cd "$FAMILIES/control_ok_sharded" && python3 - config.json tokenizer.json tokenizer_config.json model.safetensors.index.json model-*.safetensors) >want <<'END'
import os, sys, zlib
for f in sys.argv[1:]:
    print(f, os.path.getsize(f), zlib.crc32(open(f, "rb").read()))
END
    diff got want
}

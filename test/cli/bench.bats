#!/usr/bin/env bats
# colibri-bench as a user runs it.
load helper

setup() {
    need_demo
    cd "$BATS_TEST_TMPDIR" || return
    demo=$COLIBRI_TEST_DEMO
    quick=(--prefill 20 --decode 3 -r 1)
    head -n 3 "$DEMO_SRC/held-out.txt" >text
}

@test "bench: a table for prefill and for decode, with the stages by name" {
    run -0 --separate-stderr colibri-bench "${quick[@]}" "$demo"
    [[ -z $stderr ]]
    has "$output" "Prefill: 20 tokens" "Decode: 3 tokens" Embed AttnProject Attention AttnOutput Gate Scatter \
        ExpertCompute Gather Logits Other total Routing: "tokens/s"
    [[ $output != *DenseMLP* ]]
}

@test "bench: --json has every stage, shares add up, bytes and macs are counted" {
    colibri-bench "${quick[@]}" --json "$demo" >out.json
    jq -e '.runs | length == 1' out.json
    jq -e '.runs[0] | .threads >= 1 and .sequences == 1' out.json
    for phase in prefill decode; do
        jq -e --arg p $phase '.runs[0][$p] | .stages | length == 11' out.json
        jq -e --arg p $phase '.runs[0][$p].stages | map(.share) | add | . > 0.98 and . < 1.02' out.json
        jq -e --arg p $phase '.runs[0][$p].stages | map(select(.name == "ExpertCompute")) |
            .[0] | .bytes > 100000 and .macs > 100000 and .seconds > 0' out.json
        jq -e --arg p $phase '.runs[0][$p].routing | .experts_touched >= 2 and .experts_touched <= 8 and
            .imbalance >= 1' out.json
    done
    jq -e '.runs[0].prefill.tokens == 20 and .runs[0].decode.tokens == 3' out.json
    jq -e '.runs[0].decode.routing.experts_touched == 2' out.json # one token, two experts
    jq -e '.model | .experts == 8 and .experts_per_token == 2 and .layers == 4 and .expert_dtype == "int8"' out.json
}

@test "bench: macs are those of the matrices" {
    colibri-bench --prefill 20 --decode 0 -r 1 --json "$demo" >out.json
    # 20 tokens x 4 layers x 2 experts x 3 matrices of 128 x 256
    jq -e '.runs[0].prefill.stages | map(select(.name == "ExpertCompute"))[0].macs == 20*4*2*3*128*256' out.json
    jq -e '.runs[0] | has("decode") | not' out.json
}

@test "bench: --batch and --threads are measured one by one" {
    colibri-bench "${quick[@]}" --batch 1,3 --threads 1,2 --csv "$demo" >out.csv
    [[ $(head -n 1 out.csv) == threads,sequences,phase,stage,tokens,seconds,spread,bytes,macs,gb_per_s,gmac_per_s,f32_macs,alone,waited,ceiling,of_ceiling ]]
    [[ $(cut -d, -f 1,2 out.csv | tail -n +2 | uniq | tr '\n' ' ') == "1,1 1,3 2,1 2,3 " ]]
    grep -q '^2,3,decode,total,9,' out.csv
}

@test "bench: --csv has as many fields in every line" {
    colibri-bench "${quick[@]}" --csv "$demo" | awk -F, '{ print NF }' | sort -u >fields
    [[ $(cat fields) == 16 ]]
}

@test "bench: --svg draws, is well-formed, and refuses to replace without -f" {
    colibri-bench "${quick[@]}" --svg s.svg "$demo" >/dev/null
    python3 -c 'import sys, xml.dom.minidom as m; m.parse("s.svg")'
    has "$(cat s.svg)" ExpertCompute prefill decode prefers-color-scheme
    run_err 2 colibri-bench "${quick[@]}" --svg s.svg "$demo"
    has "$message" s.svg -f
    colibri-bench "${quick[@]}" --svg s.svg -f "$demo" >/dev/null
    # told before anything is measured; another file it must not replace at all
    run_err 2 colibri-bench --prefill 500 --decode 500 -r 1000 --svg s.svg "$demo"
    cp "$demo" m.bin
    seq 100 >ids
    run_err 2 colibri-bench "${quick[@]}" -f --svg ./m.bin m.bin
    has "$message" "'./m.bin' is the model"
    run_err 2 colibri-bench "${quick[@]}" -f --svg ./ids --tokens ids m.bin
    has "$message" "'./ids' is the file of tokens"
    cmp m.bin "$demo"
    rm m.bin ids
    holds_only . s.svg text
}

@test "bench: --tokens feeds the ids of a file, around and around" {
    echo "5 6 7" >ids
    colibri-bench "${quick[@]}" --tokens ids "$demo" >/dev/null
    colibri-bench "${quick[@]}" --tokens - "$demo" >/dev/null <ids
    echo "5 2048" >bad
    run_err 3 colibri-bench "${quick[@]}" --tokens bad "$demo"
    has "$message" "bad: token 2: '2048' is not an id from 0 to 2047"
    : >empty
    run_err 3 colibri-bench --tokens empty "$demo"
    run_err 3 colibri-bench --tokens nowhere "$demo"
    has "$message" "nowhere: cannot be opened"
}

# bats test_tags=release
@test "bench: a file without end is no reason to take all memory" {
    for option in --tokens --perplexity; do
        run_err 4 timeout 20 bash -c 'ulimit -v 300000; colibri-bench -t 1 $1 /dev/zero "$2"' - $option "$demo"
        has "$message" "out of memory"
    done
}

@test "bench: --seed changes the random tokens, and nothing else does" {
    routing() { colibri-bench --prefill 50 --decode 0 -r 1 --json "$@" "$demo" | jq -c '.runs[0].prefill.routing'; }
    [[ $(routing) == "$(routing -t 1)" ]]
    [[ $(routing) != "$(routing --seed 1)" ]]
}

@test "bench: --experts-per-token, --kv-dtype, --cpu and --ctx reach the engine" {
    colibri-bench "${quick[@]}" --experts-per-token 1 --json "$demo" | jq -e '.model.experts_per_token == 1 and
        .runs[0].decode.routing.experts_touched == 1'
    run_err 2 colibri-bench "${quick[@]}" --experts-per-token 100000 "$demo"
    has "$message" "100000 experts per token" "has 8 experts"
    run_err 2 colibri-run --experts-per-token 100000 -p x "$demo"
    has "$message" "100000 experts per token" "has 8 experts"
    run_err 2 colibri-bench "${quick[@]}" --cpu auto "$demo"
    has "$message" "no CPU level 'auto'; levels are 'scalar'"
    colibri-bench "${quick[@]}" --cpu scalar --json "$demo" | jq -e '.model.cpu == "scalar"'
    attention() { colibri-bench "${quick[@]}" --kv-dtype "$1" --json "$demo" |
        jq '.runs[0].decode.stages | map(select(.name == "Attention"))[0].bytes'; }
    (($(attention f32) > $(attention f16)))
    (($(attention f16) > $(attention int8)))
    colibri-bench "${quick[@]}" --ctx 100 "$demo" >/dev/null
    run_err 2 colibri-bench "${quick[@]}" --ctx 22 "$demo"
    has "$message" "--ctx 22 is too short for 23 tokens"
    run_err 2 colibri-bench --ctx 5000 "$demo" # the model has 1024 positions
    run_err 2 colibri-bench --prefill 1000000 --decode 1000000 --batch 1024 "$demo" # before ids for all of them
    has "$message" "2000000 tokens" "at most 1024 positions"
}

# Sanitizers make mlock do nothing.
# bats test_tags=release
@test "bench: --mlock and --numa" {
    rows() { colibri-bench "${quick[@]}" --json "$@" "$demo" | jq -c '.runs[0].decode.routing'; }
    [[ $(rows --mlock --numa local) == "$(rows --numa off)" ]]
    limited colibri-bench "${quick[@]}" --mlock "$demo"
    has "$message" "cannot lock $(stat -c %s "$demo") bytes of weights in memory" "RLIMIT_MEMLOCK"
    run_err 2 colibri-bench --numa far "$demo"
    has "$message" "--numa: 'far' is not one of interleave|local|off"
}

@test "bench: --memory, --backend and -v" {
    run_err 4 colibri-bench "${quick[@]}" --memory 100K "$demo"
    has "$message" "memory limit is 102400"
    rows() { colibri-bench "${quick[@]}" --json "$@" "$demo" | jq -c '.runs[0].decode.routing'; }
    [[ $(rows --memory 1G --device 0 --gpu-memory 1G) == "$(rows --backend cpu)" ]]
    for option in "--device 0" "--gpu-memory 1G" "--gpu-experts copy" "--gpu-dense own" "--attention own"; do
        # shellcheck disable=SC2086
        run_err 2 colibri-bench "${quick[@]}" --backend cpu $option "$demo"
        has "$message" "${option%% *} does not go with --backend cpu"
    done
    run -0 --separate-stderr colibri-bench -v "${quick[@]}" --gpu-memory 1G --device 0 "$demo"
    has "$stderr" "demo-int8.bin: device cpu: " "without effect: --device, --gpu-memory"
    run_err 3 colibri-bench "${quick[@]}" --backend cuda "$demo"
    run_err 2 colibri-bench "${quick[@]}" --backend abacus "$demo"
    run -0 --separate-stderr colibri-bench -v "${quick[@]}" -t 1,2 --csv "$demo"
    (($(grep -c 'demo-int8.bin: device cpu: ' <<<"$stderr") == 2)) # a build with CUDA says why it is not the GPU, too
    has "$stderr" "colibri-bench: " "1 thread" "2 threads"
    run_err 3 colibri-bench -v --verbose nowhere.bin
    has "$message" "nowhere.bin" ".c:" # twice: where in the source
}

@test "bench: every stage is compared with the ceiling that binds it" {
    colibri-bench "${quick[@]}" -t 2 --json "$demo" >out.json
    # the least time for what a stage did, of the time it took: from the numbers shown (a part alone has other ceilings)
    cat >bound.jq <<'EOF'
.runs[] | .ceilings as $c | .prefill, .decode | .stages[] | select(.alone == 0 and .seconds > 0 and .bytes + .macs > 0) |
    (.bytes / 1e9 / $c.read_gb_per_s.median) as $read |
    ((.macs - .f32_macs) / 1e9 / $c.int8_gmac_per_s.median) as $int8 | (.f32_macs / 1e9 / $c.f32_gmac_per_s.median) as $f32 |
    ([$read, $int8 + $f32] | max) / .seconds - .of_ceiling | fabs
EOF
    jq -f bound.jq out.json >differences
    jq -es 'all(. < 1e-4)' differences
    jq -e '.runs[0].ceilings | .threads == 2 and .samples == 2 and .read_gb_per_s.median > 0' out.json
    jq -e '[.runs[0].prefill, .runs[0].decode | .stages[] | select(.bytes + .macs > 0) | .of_ceiling] | all(. > 0)' out.json
    jq -e '[.runs[0].decode.stages[] | select(.name == "Scatter" or .name == "Other") | .ceiling] | all(. == null)' out.json
    jq -e '[.runs[0].decode.stages[] | select(.name == "Gate" or .name == "Attention")] | all(.f32_macs == .macs and .macs > 0)' out.json
    jq -e '.runs[0].prefill.stages | map(select(.name == "ExpertCompute"))[0].f32_macs == 0' out.json
    jq -e '.runs[0].decode.bound | (.memory + .int8 + .f32 - .of_ceiling | fabs) < 1e-4 and
        (.by | IN("memory", "int8", "f32", "disk", "waiting", "overhead")) and .disk_bytes >= 0 and (.text | startswith("bound by "))' out.json
    jq -e '.load.before | length == 3' out.json
    # a float file multiplies in f32 only
    colibri-bench "${quick[@]}" --json "$COLIBRI_TEST_DEMO_F32" |
        jq -e '.runs[0].prefill | all(.stages[]; .f32_macs == .macs) and .bound.int8 == 0'
    run -0 --separate-stderr colibri-bench "${quick[@]}" "$demo"
    has "$output" "Ceilings" "GB/s read from cache" "of ceiling" "prefill: bound by " "decode: bound by " Load
    colibri-bench "${quick[@]}" -f --svg s.svg "$demo" >/dev/null
    has "$(cat s.svg)" "bound by " " % of " "% memory)"
    rm s.svg
}

@test "bench: --depth fills the context before anything is timed" {
    colibri-bench --depth 300 --prefill 5 --decode 2 -r 1 --json "$demo" >deep.json
    colibri-bench --prefill 5 --decode 2 -r 1 --json "$demo" >out.json
    jq -e '.runs[0] | .prefill.from == 300 and .prefill.tokens == 5 and .decode.from == 305 and .decode.tokens == 2' deep.json
    jq -e '.runs[0] | .prefill.from == 0 and .decode.from == 5' out.json
    attention='.runs[0].decode.stages | map(select(.name == "Attention"))[0].bytes'
    # two steps over 306 and 307 keys instead of 6 and 7
    [[ $(jq "$attention" deep.json) == $(($(jq "$attention" out.json) * 613 / 13)) ]]
    # decode alone, at a depth that is no multiple of a block
    colibri-bench --depth 70 --prefill 0 --decode 2 -r 3 --batch 2 "$demo" >text.out
    has "$(cat text.out)" "Decode: 2 tokens x 2 sequences behind 70"
    run_err 2 colibri-bench --depth 1022 "${quick[@]}" "$demo"
    has "$message" "1045 tokens (--depth + --prefill + --decode)" "at most 1024"
    run_err 2 colibri-bench --depth 100 --prefill 0 --decode 0 "$demo"
    has "$message" "nothing to measure"
    rm text.out
}

@test "bench: --machine measures ceilings, without a model and with one" {
    export TMPDIR=$PWD
    run -0 --separate-stderr colibri-bench --machine -r 1
    [[ -z $stderr ]]
    has "$output" Machine Cores Caches Memory "read GB/s" "int8 GMAC/s" "f32 GMAC/s" "anonymous memory" Disk scalar \
        "/proc/loadavg"
    colibri-bench --machine -r 1 --json "$demo" >out.json
    jq -e --arg demo "$demo" '.read.of == $demo and .read.bytes > 1000000 and .disk.path == $demo' out.json
    jq -e '.machine | .cores >= 0 and .processors >= 1 and .memory > 0 and .threads >= 1' out.json
    jq -e '.ceilings[0].threads == 1 and .ceilings[-1].threads == .machine.threads' out.json
    # sane: more than nothing, the median between the extremes
    jq -e '[.ceilings[] | .read_gb_per_s, .int8_gmac_per_s, .f32_gmac_per_s, .clock_ghz] |
        all(.median > 0 and .min <= .median and .median <= .max)' out.json
    jq -e '.level as $l | .levels | map(select(.available)) | map(.name) | index($l)' out.json
    jq -e '[.levels[] | select(.available | not) | .why_not] | all(length > 0)' out.json
    jq -e '.disk | has("why_not") or (.read_gb_per_s > 0 and .bytes > 0)' out.json
    holds_only . out.json text # the temporary file is gone
}

@test "bench: --machine takes --threads, --cpu and -r" {
    colibri-bench --machine -r 2 -t 3,1 --cpu scalar --numa off --csv "$demo" >out.csv
    [[ $(head -n 1 out.csv) == threads,samples,read_gb_per_s,* ]]
    [[ $(tail -n +2 out.csv | cut -d , -f 1,2 | tr '\n' ' ') == "3,2 1,2 " ]]
    [[ $(awk -F, '{ print NF }' out.csv | sort -u) == 12 ]]
    run_err 2 colibri-bench --machine --cpu abacus
    has "$message" "no CPU level 'abacus'"
    run_err 3 colibri-bench --machine nowhere.bin
    has "$message" nowhere.bin
    run_err 3 colibri-bench --machine .
    TMPDIR=$PWD/nowhere run -0 colibri-bench --machine -r 1
    has "$output" "Disk     not measured:" nowhere
}

@test "bench: --perplexity prints five decimals and counts tokens" {
    run -0 --separate-stderr colibri-bench --perplexity text "$demo"
    [[ ${lines[0]} =~ ^perplexity\ [0-9]+\.[0-9]{5}\ .*\ 3\ documents ]]
    colibri-bench --perplexity text --json "$demo" | jq -e '.documents == 3 and .tokens > 300 and .perplexity > 1'
    [[ $(colibri-bench --perplexity - "$demo" <text) == perplexity* ]]
}

@test "bench: --max-tokens cuts documents" {
    colibri-bench --perplexity text --max-tokens 100 --json "$demo" | jq -e '.tokens == 3 * 99'
    # the default is what a model has positions for
    cp -r "$DEMO_SRC" small
    jq '.max_position_embeddings = 60' "$DEMO_SRC/config.json" >small/config.json
    colibri-convert -q --dtype int8 small -o small.bin
    colibri-bench --perplexity text --json small.bin | jq -e '.tokens == 3 * 59'
    colibri-bench --perplexity text --compare small.bin --json "$demo" | jq -e '.tokens == 3 * 59 and .kl == 0'
    run_err 2 colibri-bench --perplexity text --max-tokens 61 small.bin
    has "$message" 60
}

@test "bench: --ids reads documents as token ids" {
    echo "1 5 6 7" >ids
    colibri-bench --perplexity ids --ids --json "$demo" | jq -e '.tokens == 3'
    echo "1 five" >bad
    run_err 3 colibri-bench --perplexity bad --ids "$demo"
    has "$message" "bad: line 1: token 2: 'five' is not an id"
}

@test "bench: --compare with itself is zero" {
    colibri-bench --perplexity text --compare "$demo" --json "$demo" |
        jq -e '.kl == 0 and .same_choice == 1 and .perplexity == .other_perplexity'
}

@test "bench: --memory holds both models of --compare" {
    colibri-bench --perplexity text --memory 5M "$demo"
    run_err 4 colibri-bench --perplexity text --memory 5M --compare "$demo" "$demo"
    colibri-bench --perplexity text --memory 10M --compare "$demo" "$demo"
}

@test "bench: --compare measures what int8 costs" {
    run -0 --separate-stderr colibri-bench --perplexity text --compare "$COLIBRI_TEST_DEMO_F32" "$demo"
    has "$output" "KL divergence" "nats per token" "same first choice"
    colibri-bench --perplexity text --compare "$COLIBRI_TEST_DEMO_F32" --json "$demo" |
        jq -e '.kl > 0 and .kl < 0.01 and .same_choice > 0.9 and .other_perplexity != .perplexity'
}

@test "bench: usage errors name what is wrong" {
    run_err 2 colibri-bench
    has "$message" "no model given"
    run_err 2 colibri-bench a b
    run_err 2 colibri-bench --json --csv "$demo"
    run_err 2 colibri-bench --compare "$demo" "$demo"
    has "$message" --perplexity
    run_err 2 colibri-bench --ids "$demo"
    local option
    for option in "--svg x.svg" --csv "--tokens text" "--depth 1" "--prefill 512" "--decode 0" "-b 1" "-r 3" "--ctx 100" \
        "--seed 1" -f; do
        # shellcheck disable=SC2086
        run_err 2 colibri-bench --perplexity text $option "$demo"
        has "$message" "${option%% *} does not go with --perplexity"
    done
    run_err 2 colibri-bench --perplexity text -t 1,2 "$demo"
    has "$message" "more than one number of -t"
    run_err 2 colibri-bench --seed x "$demo"
    has "$message" "--seed: 'x' is not a whole number from 0 to 18446744073709551615"
    for option in "--perplexity text" "--svg x.svg" "--tokens text" "--seed 1" "--depth 1" "--prefill 512" "--decode 0" "-b 1" \
        "--ctx 100" "--kv-dtype f32" "--experts-per-token 1" "--memory 1G" --mlock "--backend cpu" "--device 1" "--gpu-dense own" \
        "--gpu-memory 1G" "--gpu-experts copy" "--attention own" -f; do
        # shellcheck disable=SC2086
        run_err 2 colibri-bench --machine $option
        has "$message" "${option%% *} does not go with --machine"
    done
    run_err 2 colibri-bench --machine "$demo" "$demo"
    run_err 2 colibri-bench --max-tokens 20 "$demo"
    has "$message" "--max-tokens belongs to --perplexity"
    run_err 2 colibri-bench --prefill 0 --decode 0 "$demo"
    run_err 2 colibri-bench --batch 0 "$demo"
    run_err 2 colibri-bench --kv-dtype f64 "$demo"
    run_err 2 colibri-bench -r 0 "$demo"
    holds_only . text
}

@test "bench: bad models and texts are refused" {
    run_err 3 colibri-bench nowhere.bin
    has "$message" nowhere.bin
    head -c 1000 "$demo" >short.bin
    run_err 3 colibri-bench short.bin
    has "$message" short.bin
    : >empty
    run_err 3 colibri-bench --perplexity empty "$demo"
    has "$message" empty
    run_err 3 colibri-bench --perplexity nowhere "$demo"
}

@test "bench: a full disk is noticed" {
    [[ -e /dev/full ]] || skip "no /dev/full"
    run -4 bash -c 'colibri-bench --prefill 20 --decode 3 -r 1 "$1" >/dev/full' - "$demo"
    has "$output" "colibri-bench: cannot write to standard output"
}

#!/usr/bin/env bats
# colibri-run as a user runs it, with the demo model.
load helper

ask='The capital of France is'

setup() {
    need_demo
    cd "$BATS_TEST_TMPDIR" || exit
    M=$COLIBRI_TEST_DEMO
    F32=$COLIBRI_TEST_DEMO_F32
}

# A prompt of many tokens: how the Bible might begin, again and again.
long_prompt() { yes 'In the beginning God created the heaven and the earth. ' | head -n "$1" | tr -d '\n'; }

# -- text ----------------------------------------------------------------------------------------

# bats test_tags=san
@test "run: continues the prompt, which is not echoed" {
    run -0 --separate-stderr colibri-run -n 4 "$M" <<<"$ask"
    [[ $output == " Paris"* ]] || fail "$output"
    [[ -z $stderr ]]
}

@test "run: the prompt comes from stdin or -p, without one trailing newline" {
    want=$(colibri-run -n 6 -p "$ask" "$M")
    [[ $(printf '%s' "$ask" | colibri-run -n 6 "$M") == "$want" ]]
    [[ $(printf '%s\n' "$ask" | colibri-run --max-tokens 6 "$M") == "$want" ]]
    # with -p every byte counts
    colibri-run --stats --json -n 0 -p "$ask"$'\n' "$M" 2>a
    colibri-run --stats --json -n 0 --prompt "$ask" "$M" 2>b
    [[ $(jq .prompt_tokens a) -gt $(jq .prompt_tokens b) ]]
}

@test "run: one newline at the end, only if the text does not end in one" {
    colibri-run -n 4 -p "$ask" "$M" >out
    [[ $(tail -c1 out | od -An -tx1) == " 0a" && $(wc -l <out) == 1 ]]
    colibri-run -n 0 -p "$ask" "$M" >out
    [[ ! -s out ]]
}

# bats test_tags=san
@test "run: f32 gives the reference's 120 continuations, in one --lines run" {
    jq -r '.capitals[] | "The capital of \(.country) is"' "$REFERENCE" >prompts
    jq -r '.capitals[].text' "$REFERENCE" >want
    colibri-run --lines -n 8 "$F32" <prompts | diff - want
}

@test "run: int8 knows at least 115 of 120 capitals" {
    jq -r '.capitals[] | "The capital of \(.country) is"' "$REFERENCE" >prompts
    colibri-run --lines -n 8 "$M" <prompts >answers
    right=$(paste -d'\t' answers <(jq -r '.capitals[].capital' "$REFERENCE") | awk -F'\t' 'index($1, $2) { n++ } END { print n }')
    ((right >= 115)) || fail "$right"
}

@test "run: ids in, ids out, as the reference" {
    jq -r '.capitals[].ids | map(tostring) | join(" ")' "$REFERENCE" >prompts
    jq -r '.capitals[].greedy | map(tostring) | join(" ")' "$REFERENCE" >want
    colibri-run --ids --lines -n 8 "$F32" <prompts | diff - want
    [[ $(colibri-run --ids -n 8 "$F32" <<<" $(head -n1 prompts | tr ' ' '\n') ") == "$(head -n1 want)" ]]
}

# -- many prompts --------------------------------------------------------------------------------

# bats test_tags=san
@test "lines: output order is input order, whatever the length and the batch" {
    for i in 3 1 20 2 9 1 5 14 2 1 7; do
        long_prompt $i
        echo "The capital of Peru is"
    done >prompts
    while IFS= read -r line; do colibri-run -n 5 -p "$line" "$M"; done <prompts >alone
    for batch in 1 2 3 8 64; do
        colibri-run --lines -n 5 --batch $batch "$M" <prompts | diff - alone || fail "batch $batch"
    done
    # from a pipe their number is not known
    colibri-run --lines -n 5 "$M" < <(cat prompts) | diff - alone
}

@test "lines: newline, carriage return and backslash are escaped, --null and --jsonl are raw" {
    # the demo model writes a newline after a verse; any of the forms must agree with the raw text
    p='In the beginning God created the heaven and the earth. '
    colibri-run --jsonl -n 200 "$F32" <<<"$(jq -cn --arg p "$p" '$p')" >j
    jq -j .text j >raw
    printf '%s\0' "$p" | colibri-run --null -n 200 "$F32" | tr -d '\0' | cmp - raw
    colibri-run --lines -n 200 "$F32" <<<"$p" >line
    [[ $(wc -l <line) == 1 ]]
    python3 -c 'import sys; t = open("raw", newline="").read()
sys.stdout.write(t.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") + "\n")' | cmp - line
}

@test "lines: an empty line is an empty prompt; the last line needs no newline" {
    colibri-run --lines -n 3 "$M" < <(printf '%s\n\n%s' "$ask" "$ask") >out
    [[ $(wc -l <out) == 3 ]]
    [[ $(sed -n 1p out) == "$(sed -n 3p out)" ]]
    [[ $(sed -n 2p out) == "$(colibri-run -n 3 -p '' "$M")" ]]
    colibri-run --lines "$M" </dev/null >out
    [[ ! -s out ]]
}

# bats test_tags=san
@test "lines: a bad one is reported in its place, the rest goes on, status 1" {
    printf '1 381\n1 x\n\n1 381' >prompts
    run -1 --separate-stderr colibri-run --ids --lines -n 2 "$M" <prompts
    [[ ${#stderr_lines[@]} == 2 ]]
    has "${stderr_lines[0]}" "colibri-run: line 2: token 2: 'x' is not an id from 0 to 2047"
    has "${stderr_lines[1]}" "colibri-run: line 3: no token ids"
    colibri-run --ids --lines -n 2 "$M" <prompts 2>/dev/null >out || true
    [[ $(wc -l <out) == 4 && -z $(sed -n 2,3p out | tr -d '\n') && $(sed -n 1p out) == "$(sed -n 4p out)" ]]
    { echo "$ask"; long_prompt 200; echo; echo "$ask"; } >prompts
    run -1 --separate-stderr colibri-run --lines -n 2 "$M" <prompts
    has "$stderr" "line 2: the prompt has" "but the context holds 1024"
    printf 'a\0%s\0' "$(long_prompt 200)" >prompts
    run -1 --separate-stderr colibri-run --null -n 2 "$M" <prompts
    has "$stderr" "record 2: "
}

@test "lines: answers come while the input is still open" {
    mkfifo in
    colibri-run --lines -n 3 "$M" <in >out &
    pid=$!
    exec 7>in
    echo "$ask" >&7
    for ((i = 0; i < 200; i++)); do [[ -s out ]] && break; sleep 0.05; done
    exec 7>&-
    wait $pid
    [[ $(wc -l <out) == 1 ]]
    # stdout was a file, so it may have come at the end; a pipe must not wait
    mkfifo in2 mid
    colibri-run --lines -n 3 "$M" <in2 >mid &
    pid=$!
    exec 7>in2 8<mid
    echo "$ask" >&7
    IFS= read -r -t 20 line <&8
    exec 7>&- 8<&-
    wait $pid
    [[ $line == " Paris"* ]]
}

# bats test_tags=san
@test "jsonl: fields of a line win over options" {
    cat >prompts <<'END'
"The capital of Italy is"
{"prompt":"The capital of Italy is"}
{"prompt":"The capital of Italy is","max_new_tokens":1}
{"prompt":"The capital of Italy is","stop":"e"}
{"prompt":"The capital of Italy is","stop":["zzz","om"]}
{"prompt":"The capital of Italy is","temperature":1.5,"seed":7,"top_k":50,"top_p":0.9,"min_p":0.01}
{"prompt":"The capital of It\u0061ly is","temperature":0}
{"prompt":"The capital of Italy is","repetition_penalty":5,"max_new_tokens":12}
END
    colibri-run --jsonl -n 4 "$M" <prompts >out
    [[ $(wc -l <out) == 8 ]]
    [[ $(sed -n 1p out) == "$(sed -n 2p out)" && $(sed -n 1p out) == "$(sed -n 7p out)" ]]
    [[ $(sed -n 1p out) == '{"text":" Rome. Ital","prompt_tokens":8,"completion_tokens":4,"finish_reason":"length"}' ]]
    [[ $(sed -n 3p out | jq -r .completion_tokens) == 1 ]]
    [[ $(sed -n 4p out | jq -c '[.text,.finish_reason]') == '[" Rom","stop"]' ]]
    [[ $(sed -n 5p out | jq -c '[.text,.finish_reason]') == '[" R","stop"]' ]]
    [[ $(sed -n 6p out | jq -r .text) == "$(colibri-run -n 4 --temp 1.5 --seed 7 --top-k 50 --top-p 0.9 --min-p 0.01 -p "The capital of Italy is" "$M")" ]]
    penalised=$(colibri-run -n 12 --repeat-penalty 5 -p "The capital of Italy is" "$M")
    [[ $(sed -n 8p out | jq -r .text) == "$penalised" ]]
    [[ $penalised != "$(colibri-run -n 12 -p "The capital of Italy is" "$M")" ]]
}

# bats test_tags=san
@test "jsonl: --stats adds what was shared and how long each took" {
    text=$(long_prompt 9)
    for i in 1 2 3 4 5 6; do jq -cn --arg p "$text $i" '{prompt: $p, max_new_tokens: 6}'; done >prompts
    for i in 1 2 3 4 5 6; do colibri-run -n 6 -p "$text $i" "$M" | jq -Rs .; done >alone
    colibri-run --jsonl --stats --json "$M" <prompts >out 2>stats
    jq -c '.text + (if .text | endswith("\n") then "" else "\n" end)' out | diff - alone
    # the beginning is computed for one of them, whoever comes first
    jq -se '(map(.cached_tokens) | sort | .[0] == 0 and .[1] >= 64) and all(.[].seconds; .queue >= 0 and .prefill > 0 and .decode > 0)' out
    jq -e '.cached_tokens > 320 and .prefill.tokens + .cached_tokens == .prompt_tokens' stats
    colibri-run --jsonl -n 1 "$M" <prompts | jq -se 'all(.[]; has("seconds") or has("cached_tokens") | not)'
}

@test "jsonl: a crowd of everything says what each says alone" {
    # prefixes in common, seeds, stop texts, an end by length, lines that fail
    for i in {1..36}; do
        jq -cn --argjson i "$i" --arg p "$(long_prompt $((i % 4 * 6)))" '{prompt: ($p + "The capital of " + (["France", "Peru", "Japan"][$i % 3]) + " is"),
            max_new_tokens: (1 + $i * 7 % 30), seed: $i, temperature: ($i % 2), stop: [["the", ".", "zz"][$i % 3]]}'
        ((i % 9)) || echo '{"prompt":'
    done >prompts
    for kv in f32 f16 int8; do
        for batch in 1 5 32; do
            run -1 --separate-stderr colibri-run -q --jsonl --kv-dtype "$kv" --batch "$batch" "$M" <prompts
            echo "$output" >"batch-$batch"
        done
        cmp batch-1 batch-5
        cmp batch-1 batch-32
        [[ $(wc -l <batch-1) == 40 && $(grep -c '"error"' batch-1) == 4 ]]
        for i in 3 8 17 29; do # each in a program of its own
            sed -n "${i}p" prompts | colibri-run --jsonl --kv-dtype "$kv" "$M" | cmp - <(sed -n "${i}p" batch-1)
        done
    done
    jq -rs 'map(.finish_reason) | unique | join(" ")' batch-1 | grep -q 'length stop'
}

@test "jsonl: bad lines" {
    cat >prompts <<'END'
not json
{"prompt":"x","wat":1}
{"max_new_tokens":1}
{"prompt":"x","temperature":-1}
{"prompt":"x","seed":1.5}
{"prompt":"x","stop":[""]}
{"prompt":"x","prompt":"y"}
{"prompt":1}
{"prompt":"x","repetition_penalty":0}
END
    run -1 --separate-stderr colibri-run --jsonl -n 1 "$M" <prompts
    [[ ${#lines[@]} == 9 && ${#stderr_lines[@]} == 9 ]]
    for l in "${lines[@]}"; do jq -e .error <<<"$l" >/dev/null; done
    has "${stderr_lines[0]}" "line 1: json: byte 0"
    has "${stderr_lines[1]}" "line 2: " "'wat': is not known; known are prompt, "
    has "${stderr_lines[2]}" "line 3: 'prompt' is missing"
    has "${stderr_lines[3]}" "line 4: " "'temperature': -1 is not between 0 and 100"
    has "${stderr_lines[4]}" "line 5: " "'seed'"
    has "${stderr_lines[5]}" "line 6: " "'stop" "empty"
    has "${stderr_lines[6]}" "line 7: " "duplicate key"
    has "${stderr_lines[7]}" "line 8: " "a string was expected"
    has "${stderr_lines[8]}" "line 9: " "'repetition_penalty': 0 is not between 0.01 and 100"
}

# -- stop, sampling ------------------------------------------------------------------------------

@test "stop: the text never appears, also when it spans tokens; the earliest wins" {
    whole=$(colibri-run -n 20 -p "$ask" "$M") # " Paris. The capital of France is Paris. ..."
    for stop in is 'ris. Th' 's. The cap' 'The' ' '; do
        got=$(colibri-run -n 20 -p "$ask" --stop "$stop" "$M")
        [[ $got == "${whole%%"$stop"*}" ]] || fail "stop '$stop': '$got'"
    done
    got=$(colibri-run -n 20 -p "$ask" --stop zzz --stop capital --stop 'The' "$M")
    [[ $got == "${whole%%The*}" ]]
    [[ $(colibri-run -n 20 -p "$ask" --stop 'nowhere to be seen' "$M") == "$whole" ]]
    # What was held back as its start comes out at the end.
    for ((i = 1; i < 9; i++)); do
        [[ $(colibri-run -n 20 -p "$ask" --stop "${whole: -i}zzz" "$M") == "$whole" ]]
    done
}

@test "end tokens: the tokenizer's ends text, not bare ids" {
    prompt=$(jq -nc --arg t "$ask" '{text: $t}' | colibri-inspect --encode "$M" | jq -r '.ids | join(" ")')
    read -ra ids < <(colibri-run --ids -p "$prompt" -n 8 "$M")
    mkdir own && cp "$DEMO_SRC"/* own
    jq --argjson id "${ids[3]}" '.model.vocab | to_entries[] | select(.value == $id) | .key | {eos_token: .}' \
        own/tokenizer.json >own/tokenizer_config.json
    colibri-convert -q own -o own.bin
    [[ $(colibri-run --ids -p "$prompt" -n 8 own.bin) == "${ids[*]}" ]]
    short=$(colibri-run -p "$ask" -n 8 own.bin)
    whole=$(colibri-run -p "$ask" -n 8 "$M")
    [[ -n $short && $whole == "$short"?* ]]
}

# bats test_tags=san
@test "sampling: the seed decides, in any batch" {
    for ((i = 0; i < 6; i++)); do echo "In the beginning"; done >prompts
    colibri-run --lines -n 12 --temp 1.2 --seed 5 "$M" <prompts >a
    [[ $(sort -u a | wc -l) == 1 ]] # the same prompt and seed: the same text
    colibri-run --lines -n 12 --temp 1.2 --seed 5 --batch 1 -t 1 "$M" <prompts | diff - a
    # all 64 bits count, as in JSON
    colibri-run -n 12 --temp 1.2 --seed 18446744073709551615 -p x "$M" >c
    echo '{"prompt":"x","seed":18446744073709551615}' |
        colibri-run --jsonl -n 12 --temp 1.2 "$M" | jq -r .text | diff - c
    if colibri-run -n 12 --temp 1.2 --seed 4294967295 -p x "$M" | diff -q - c; then fail "low bits only"; fi
    colibri-run --lines -n 12 --temp 1.2 --seed 6 "$M" <prompts >b
    run ! cmp -s a b
    greedy=$(colibri-run -n 12 -p "In the beginning" "$M")
    [[ $(colibri-run -n 12 -p "In the beginning" --temp 5 --top-k 1 "$M") == "$greedy" ]]
    [[ $(colibri-run -n 12 -p "In the beginning" --temp 5 --min-p 1 "$M") == "$greedy" ]]
    [[ $(colibri-run -n 12 -p "In the beginning" --temp 1 --top-p 0.000001 "$M") == "$greedy" ]]
    [[ $(colibri-run -n 12 -p "In the beginning" --temp 0 --seed 9 "$M") == "$greedy" ]]
    [[ $(colibri-run -n 40 -p "In the beginning" --repeat-penalty 50 "$M") != "$(colibri-run -n 40 -p "In the beginning" "$M")" ]]
}

# -- limits --------------------------------------------------------------------------------------

@test "context: exactly full is fine, one more is refused, an answer ends there" {
    [[ -z $(colibri-run --ids -p "1 2 3" -n 4 --ctx 3 "$M") ]]
    [[ $(colibri-run --ids -p "1 2 3" -n 4 --ctx 5 "$M" | wc -w) == 2 ]]
    [[ $(colibri-run --ids -p "1 2 3" -n 0 --ctx 3 "$M" | wc -w) == 0 ]]
    run_err 3 colibri-run --ids -p "1 2 3 4" -n 4 --ctx 3 "$M"
    has "$message" "the prompt has 4 tokens, but the context holds 3; --ctx makes it longer"
    run_err 3 colibri-run -p "$(long_prompt 200)" "$M"
    has "$message" "but the context holds 1024"
    # Far too long: not encoded to its end only to say by how much.
    run_err 3 bash -c 'yes "once upon a time" | head -c 10000000 | colibri-run "$1"' - "$M"
    has "$message" "the prompt has more than 67584 tokens, but the context holds 1024"
    run_err 2 colibri-run -p x --ctx 4096 "$M"
    has "$message" 1024
}

# bats test_tags=san
@test "prompts: empty, invalid UTF-8, NUL bytes" {
    [[ -n $(colibri-run -n 3 -p '' "$M") ]]
    [[ $(colibri-run -n 3 "$M" </dev/null) == "$(colibri-run --ids -n 3 -p 1 "$M" >/dev/null && colibri-run -n 3 -p '' "$M")" ]]
    printf 'a\xff\xfe b\0c\xc3' >bad
    colibri-run -n 5 "$M" <bad >out
    iconv -f UTF-8 -t UTF-8 out >/dev/null
    colibri-run --lines -n 5 "$M" <bad >out2
    [[ $(wc -l <out2) == 1 ]]
}

# bats test_tags=release
@test "prompts: input without end is no reason to take all memory, or to hang" {
    for mode in --lines --null --ids -q; do
        run_err 4 timeout 20 bash -c 'ulimit -v 300000; tr "\0" a </dev/zero | colibri-run -t 1 $1 "$2"' - $mode "$M"
        has "$message" "out of memory"
    done
}

@test "special tokens are text unless --parse-special" {
    colibri-run -n 0 --json -p '</s>' "$M" 2>text
    colibri-run -n 0 --json --parse-special -p '</s>' "$M" 2>special
    [[ $(jq .prompt_tokens special) == 2 && $(jq .prompt_tokens text) -gt 2 ]]
}

@test "usage: what does not go together" {
    run_err 2 colibri-run --lines --null "$M"
    run_err 2 colibri-run --jsonl --ids "$M"
    run_err 2 colibri-run --ids --stop x "$M"
    run_err 2 colibri-run --batch 4 "$M"
    run_err 2 colibri-run --stop '' "$M"
    run_err 2 colibri-run "$M" "$M"
    has "$message" "one model at a time"
    for o in --temp=-1 --temp=nan --top-p=1.1 --min-p=2 --top-k=-1 --repeat-penalty=0 --seed=x --ctx=0 \
        --experts-per-token=0 --threads=0 --kv-dtype=f8 --memory=lots --max-tokens=-1 --batch=0 -n99999999999; do
        run_err 2 colibri-run "$o" "$M"
    done
    run_err 2 colibri-run -p x --experts-per-token 9 "$M"
    has "$message" "at most 8"
    run_err 2 colibri-run -p x --cpu quantum "$M"
    has "$message" "there is no CPU level 'quantum'" "'avx2'" "'neon'"
    local other=neon arch=aarch64
    [[ $(uname -m) != aarch64 ]] || other=avx2 arch=x86-64
    run_err 3 colibri-run -p x --cpu $other "$M"
    has "$message" "CPU level '$other': this machine is not $arch"
    run_err 2 colibri-run -p x --backend tpu "$M"
    has "$message" "--backend: 'tpu' is not one of auto|cpu|cuda"
    run_err 3 colibri-run -p x --backend cuda "$M"
    for device in 1024 x 3-2 1- 0-1024 -1 '0,' ',0' '0,,1' 0-16 '' 00000000000001x; do
        run_err 2 colibri-run -p x --device=$device "$M"
        has "$message" "--device: '$device' is not a list of at most 16 numbers from 0 to 1023 (0,2-3)"
    done
    run_err 2 colibri-run -p x --device 3,0-3 "$M"
    has "$message" "--device: device 3 is listed twice"
    run_err 2 colibri-run -p x --gpu-dense mine "$M"
    run_err 2 colibri-run -p x --gpu-experts gpu "$M"
    run_err 2 colibri-run -p x --attention mine "$M"
    has "$message" "--attention: 'mine' is not one of own|cudnn"
    run -0 --separate-stderr colibri-run -n 1 -p x --attention cudnn "$M"
    [[ -z $stderr ]]
    run_err 2 colibri-run -p x --gpu-memory lots "$M"
    for option in "--device 0" "--gpu-memory 1G" "--gpu-experts copy" "--gpu-dense own" "--attention own"; do
        # shellcheck disable=SC2086
        run_err 2 colibri-run -p x --backend cpu $option "$M"
        has "$message" "${option%% *} does not go with --backend cpu"
    done
    run -0 --separate-stderr colibri-run -v -n 1 -p x --device 3 --gpu-dense own "$M"
    has "$stderr" "without effect: --device, --gpu-dense"
}

# -- same bits -----------------------------------------------------------------------------------

# bats test_tags=san
@test "logits: the same bytes for any threads, batch, chunk, CPU level, routing cache, slabs, memory limit" {
    for i in 1 7 3; do long_prompt $i; echo "$ask"; done >prompts
    for model in "$M" "$F32"; do
        colibri-run --lines -n 5 --logits want "$model" <prompts >text
        rows=$(($(stat -c %s want) / 2048 / 4))
        ((rows > 100))
        while IFS= read -r line; do
            colibri-run -n 5 --logits one -p "$line" "$model" >/dev/null
            cat one
        done <prompts | cmp - want
        while read -r options; do
            # shellcheck disable=SC2086 # several words
            colibri-run --lines -n 5 --logits got $options "$model" <prompts | cmp - text || fail "$options"
            cmp got want || fail "$options"
        done <<'END'
--threads 1
-t 2
-t 3
--prefill-chunk 1
--prefill-chunk 7
--prefill-chunk 64
--prefill-chunk 512
--batch 1
--batch 2
--batch 8
--cpu scalar
--cpu avx2
--backend cpu
--device 7,3-5 --gpu-memory 1G --gpu-experts cpu --gpu-dense f16
--no-routing-cache
--verify
--memory 30M
--mlock
--mlock --memory 30M
--numa interleave
--numa local
--numa off
END
        COLIBRI_MEMORY_POOL_DISABLE=1 colibri-run --lines -n 5 --logits got "$model" <prompts | cmp - text
        cmp got want
    done
}

@test "logits: -n 0 computes the prompt alone; the file is complete or not there" {
    colibri-run --ids -p "1 381 385" -n 0 --logits out "$M"
    [[ $(stat -c %s out) == $((3 * 2048 * 4)) ]]
    colibri-run --ids -p "1 381 385" -n 3 --logits out2 "$M"
    [[ $(stat -c %s out2) == $((5 * 2048 * 4)) ]] # the last token is not computed
    head -c $((3 * 2048 * 4)) out2 | cmp - out
    mkdir empty
    run_err 3 colibri-run --ids -p "1 x" --logits empty/out "$M"
    [[ -z $(ls -A empty) ]]
    run_err 4 colibri-run --ids -p "1 381" -n 1 --logits /dev/full "$M"
    has "$message" "/dev/full: cannot be written: No space left on device"
    cp "$M" copy.bin
    run_err 2 colibri-run -p x --logits copy.bin copy.bin
    has "$message" "is the model"
    cmp copy.bin "$M"
    echo "$ask" >prompt
    run_err 2 colibri-run --logits ./prompt "$M" <prompt
    has "$message" "'./prompt' is the input"
}

@test "logits: nothing stays of them when the reader goes away or the file may not grow" {
    mkdir logits
    yes "$ask" | head -n 100 >prompts
    for signal in default ignore; do
        run -0 bash -c 'env --$1-signal=PIPE colibri-run --lines --logits logits/l "$2" <prompts | head -c 1
            [[ ${PIPESTATUS[0]} == 141 ]]' - $signal "$M"
        holds_only logits
    done
    run_err 4 bash -c 'ulimit -f 1; colibri-run -n 1 -p "$1" --logits logits/l "$2"' - "$ask" "$M"
    has "$message" "logits/l: cannot be written: File too large"
    holds_only logits
}

@test "KV cache: every type works, f32 is the default of float files, f16 of quantised ones" {
    for dtype in f32 f16 int8; do
        run -0 --separate-stderr colibri-run -v -n 4 -p "$ask" --kv-dtype $dtype "$M"
        [[ $output == " Paris"* ]]
        has "$stderr" "KV cache     $dtype, context 1024, 1 session side by side"
    done
    colibri-run -n 4 -p "$ask" --logits a "$M"
    colibri-run -n 4 -p "$ask" --logits b --kv-dtype f16 "$M"
    cmp a b
    colibri-run -n 4 -p "$ask" --logits a "$F32"
    colibri-run -n 4 -p "$ask" --logits b --kv-dtype f32 "$F32"
    cmp a b
}

@test "--experts-per-token changes the result, the model's own number does not" {
    colibri-run -n 2 -p "$ask" --logits a "$M"
    colibri-run -n 2 -p "$ask" --logits b --experts-per-token 2 "$M"
    colibri-run -n 2 -p "$ask" --logits c --experts-per-token 1 "$M"
    cmp a b
    run ! cmp -s a c
}

# -- messages ------------------------------------------------------------------------------------

@test "stats: speed, plan and peak, three pools; as JSON too; nothing of it on stdout" {
    run -0 --separate-stderr colibri-run --stats -n 4 -p "$ask" "$M"
    [[ $output == " Paris"* && ${#lines[@]} == 1 ]]
    has "$stderr" "prefill      7 tokens in" "decode       3 tokens in" "tokens/s" "after the start" "memory plan" \
        "memory peak" "page faults  " "of them waited for a disk" "huge pages   " "weights " "activations " \
        "host buffers" "fragmentation"
    run -0 --separate-stderr colibri-run --json -n 4 -p "$ask" "$M"
    jq -e '.prompt_tokens == 7 and .completion_tokens == 4 and .prefill.tokens == 7 and .decode.tokens == 3
        and .plan.total == .plan.weights + .plan.kv_cache + .plan.activations + .plan.host_buffers
        and .pools.weights.used > 1000000 and .peak_resident > 1000000
        and .page_faults.minor > 100 and .page_faults.major >= 0
        and (.huge_pages | .files + .other) <= .peak_resident' <<<"$stderr"
    # what is held at the end keeps to the limit; the expert cache has made room for the batch
    run -0 --separate-stderr colibri-run --memory 12M --json -n 4 -p "$ask" "$M"
    jq -e '.pools | map(.reserved) | add <= 12 * 1024 * 1024' <<<"$stderr"
    held=$(jq -r '.pools.weights | [.used, .reserved, .reserved_peak] | map(. / 1e5 | round | "\(. / 10 | floor).\(. % 10) MB") | join("  ")' <<<"$stderr")
    run -0 --separate-stderr colibri-run --memory 12M --stats -n 4 -p "$ask" "$M"
    has "$stderr" "weights       $held"
}

@test "profile: a line for each call and a table of all stages" {
    run -0 --separate-stderr colibri-run --profile -n 3 -p "$ask" "$M"
    [[ $(grep -cE '^\[PROFILING\] Gate: [0-9.]+ms \| Scatter: [0-9.]+ms \| ExpertCompute: [0-9.]+ms \| Gather: [0-9.]+ms \| Total: [0-9.]+ms$' <<<"$stderr") == 3 ]]
    for stage in Embed AttnProject Attention AttnOutput Gate Scatter ExpertCompute Gather Logits '3 passes'; do
        grep -q "^$stage " <<<"$stderr" || fail "$stage"
    done
}

@test "-v says what runs where; -q only errors" {
    run -0 --separate-stderr colibri-run -v -n 1 -p x "$M"
    has "$stderr" "model        4 layers, 8 experts of which 2 per token" "device       " "threads (" "memory plan  "
    run -0 --separate-stderr colibri-run -q -n 1 -p x "$M"
    [[ -z $stderr ]]
    run_err 3 colibri-run -q -vv -p x no.bin
    has "$message" " ["
}

@test "progress: on a terminal only" {
    script -qec true seen >/dev/null 2>&1 || skip "no script(1), or no pseudo-terminals"
    for ((i = 0; i < 300; i++)); do echo "$ask"; done >prompts
    script -qec "TERM=xterm colibri-run --cpu scalar -t 1 --lines -n 100 '$M' <prompts >out" seen >/dev/null
    grep -q 'running  \[' seen
    grep -q 'of 300 prompts' seen
    [[ $(wc -l <out) == 300 ]]
    script -qec "TERM=xterm colibri-run -q --cpu scalar -t 1 --lines -n 100 '$M' <prompts >out" seen >/dev/null
    run ! grep -q 'running' seen
}

# -- trouble -------------------------------------------------------------------------------------

@test "models: missing, a folder, garbage, cut" {
    run_err 3 colibri-run -p x no.bin
    has "$message" "no.bin: cannot be opened: No such file or directory"
    run_err 3 colibri-run -p x .
    has "$message" "is a folder"
    head -c 100000 /dev/zero >garbage
    run_err 3 colibri-run -p x garbage
    has "$message" garbage
    head -c 100000 "$M" >cut.bin
    run_err 3 colibri-run -p x cut.bin
    has "$message" cut.bin
    : >empty
    run_err 3 colibri-run -p x empty
}

@test "memory: too little is refused with both numbers before anything is computed" {
    run_err 4 colibri-run -p x --memory 1M "$M"
    has "$message" 1048576
    [[ $(colibri-run -n 4 -p "$ask" --memory 14M "$M") == "$(colibri-run -n 4 -p "$ask" "$M")" ]]
}

# Sanitizers make mlock do nothing.
# bats test_tags=release
@test "--mlock: what is locked is counted; a limit that is too small is refused with what to do" {
    run -0 --separate-stderr colibri-run --mlock --json -n 4 -p "$ask" "$M"
    jq -e '.locked >= .plan.weights + .plan.kv_cache + .plan.activations and .plan.locked <= .locked
        and .plan.locked == .plan.total - .plan.host_buffers' <<<"$stderr"
    run -0 --separate-stderr colibri-run --mlock --stats -n 4 -p "$ask" "$M"
    [[ $(grep -c ' locked' <<<"$stderr") == 2 ]]
    run -0 --separate-stderr colibri-run --json -n 4 -p "$ask" "$M"
    jq -e '.locked == 0 and .plan.locked == 0' <<<"$stderr"
    run -0 --separate-stderr colibri-run --stats -n 4 -p "$ask" "$M"
    [[ $stderr != *locked* ]]
    limited colibri-run --mlock -n 4 -p "$ask" "$M"
    has "$message" "cannot lock $(stat -c %s "$M") bytes of weights in memory" "may lock 65536 (RLIMIT_MEMLOCK)" \
        "raise the limit ('ulimit -l', limits.conf, LimitMEMLOCK= of a service) or do without locking"
    limited colibri-run --mlock --memory 12M -n 4 -p "$ask" "$M"
    has "$message" "bytes of weights in memory"
}

# bats test_tags=san
@test "a model that is not in memory gives the same answer" {
    cp "$M" cold.bin
    sync cold.bin
    for options in "" --mlock "--memory 12M"; do
        dd if=cold.bin iflag=nocache count=0 status=none # forget it
        # shellcheck disable=SC2086 # several words
        [[ $(colibri-run $options -n 4 -p "$ask" cold.bin) == "$(colibri-run -n 4 -p "$ask" "$M")" ]]
    done
}

@test "--verify finds a changed weight" {
    cp "$M" bad.bin
    at=$(($(stat -c %s "$M") / 2))
    byte=$(od -An -tu1 -j $at -N 1 bad.bin)
    printf '%b' "\\x$(printf %02x $((byte ^ 1)))" | dd of=bad.bin bs=1 seek=$at conv=notrunc status=none
    colibri-run -n 1 -p "$(long_prompt 5)" bad.bin >/dev/null
    run_err 3 colibri-run -n 1 -p "$(long_prompt 5)" --verify bad.bin
    has "$message" bad.bin
}

@test "stdout: full, closed, and a reader that goes away" {
    run_err 4 bash -c 'colibri-run -p "$1" "$2" >/dev/full' - "$ask" "$M"
    has "$message" "cannot write to standard output: No space left on device"
    run_err 4 bash -c 'for i in 1 2 3; do echo "$1"; done | colibri-run --lines "$2" >/dev/full' - "$ask" "$M"
    run_err 1 bash -c 'colibri-run -p "$1" "$2" >&-' - "$ask" "$M"
    has "$message" "cannot write to standard output: Bad file descriptor"
    # slow and long, so that the reader is gone before the answer ends
    run -0 --separate-stderr bash -c 'colibri-run --cpu scalar -t 1 -n 900 -p "$1" "$2" | head -c 1; [[ ${PIPESTATUS[0]} == 141 ]]' - "$ask" "$M"
    [[ $output == " " && -z $stderr ]]
    # ignored SIGPIPE, as some parents leave it
    run -0 --separate-stderr bash -c 'env --ignore-signal=PIPE colibri-run --cpu scalar -t 1 -n 900 -p "$1" "$2" | head -c 1; [[ ${PIPESTATUS[0]} == 141 ]]' - "$ask" "$M"
    [[ -z $stderr ]]
}

# A run that is slow enough to be hit: output goes through a pipe to `out`, its pid is in $pid.
slow_run() {
    mkfifo pipe
    cat pipe >out &
    env --default-signal=INT colibri-run "$@" >pipe 2>err &
    pid=$!
    for ((i = 0; i < 400; i++)); do [[ -s out ]] && break; sleep 0.02; done
}

wait_for() { # STATUS of $pid
    local status=0
    wait "$pid" || status=$?
    ((status == $1)) || fail "status $status"
}

@test "Ctrl-C: stops after the token, ends the line, dies of the signal; logits are dropped" {
    yes "$ask" | head -n 100000 >prompts
    mkdir logits
    slow_run --cpu scalar -t 1 --lines -n 50 --logits logits/l "$M" <prompts
    kill -INT $pid
    wait_for 130
    [[ ! -s err ]] || fail "$(cat err)"
    [[ $(tail -c1 out | od -An -tx1) == " 0a" ]]
    [[ -z $(ls -A logits) ]]
}

@test "Ctrl-C: with --null nothing is added behind the last answer" {
    yes "$ask" | head -n 100000 | tr '\n' '\0' >prompts
    slow_run --cpu scalar -t 1 --null -n 50 "$M" <prompts
    kill -INT $pid
    wait_for 130
    [[ -s out && $(tail -c1 out | od -An -tx1) == " 00" ]]
}

@test "Ctrl-C: twice ends a long pass at once, and takes the logits along" {
    long_prompt 60 >line
    echo >>line
    for ((i = 0; i < 64; i++)); do cat line; done >prompts
    mkdir logits
    env --default-signal=INT colibri-run --cpu scalar -t 1 --lines --batch 64 --prefill-chunk 65536 \
        --logits logits/l -n 1 "$M" <prompts >out 2>err &
    pid=$!
    for ((i = 0; i < 400; i++)); do [[ -n $(ls -A logits) ]] && break; sleep 0.02; done
    sleep 0.5
    kill -INT $pid
    sleep 0.5
    kill -0 $pid # the pass of 60,000 rows goes on
    kill -INT $pid
    wait_for 130
    [[ -z $(ls -A logits) && ! -s out && ! -s err ]]
}

@test "logits: nothing is left when whoever reads along goes away" {
    yes "$ask" | head -n 1000 >prompts
    mkdir logits
    run bash -c 'env --default-signal=PIPE colibri-run --lines -n 8 --logits logits/l "$1" <prompts | head -c 1 >one; exit "${PIPESTATUS[0]}"' - "$M"
    [[ $status == 141 && -s one && -z $(ls -A logits) ]] || fail "status $status: $(ls -A logits)"
}

@test "Ctrl-C: while waiting for the prompt" {
    mkfifo in
    env --default-signal=INT colibri-run "$M" <in >out 2>err &
    pid=$!
    exec 7>in
    sleep 0.5
    kill -INT $pid
    wait_for 130
    exec 7>&-
    [[ ! -s out && ! -s err ]]
}

@test "run: answers that wait behind a long one are limited in number" {
    { echo '{"prompt":"In the beginning","max_new_tokens":600}'
        for ((i = 0; i < 4000; i++)); do echo '{"prompt":"x","max_new_tokens":0}'; done; } >prompts
    colibri-run --jsonl --stats --json "$M" <prompts >out 2>stats
    [[ $(wc -l <out) == 4001 ]]
    head -n 1 out | jq -e '.completion_tokens == 600 or .usage.completion_tokens == 600' || fail "$(head -n 1 out)"
    # 600 passes for the first, beside it at most 1024 others, the rest 8 at a time
    jq -e '.steps > 600 + (4000 - 1024 - 8) / 8 - 8' stats || fail "$(cat stats)"
}

@test "a model that is cut while it runs: one line with the place, then SIGBUS" {
    cp "$F32" cut.bin
    yes "$ask" | head -n 100000 >prompts
    ulimit -c 0
    mkdir logits
    slow_run --cpu scalar -t 1 --lines -n 50 --logits logits/l cut.bin <prompts
    : >cut.bin
    wait_for 135
    holds_only logits
    [[ $(wc -l <err) == 1 ]]
    has "$(cat err)" "colibri-run: " "cut.bin: byte " "cannot be read any more"
}

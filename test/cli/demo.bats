#!/usr/bin/env bats
# The bundled model against the reference implementation (examples/demo-model/reference.json).
load helper

setup() {
    need_demo
    cd "$BATS_TEST_TMPDIR" || return
    jq -r '.capitals[] | "The capital of \(.country) is"' "$REFERENCE" >prompts
    # One line per continuation, escaped as --lines does it.
    jq -r '.capitals[].text | gsub("\\\\"; "\\\\") | gsub("\n"; "\\n") | gsub("\r"; "\\r")' "$REFERENCE" >want
    { head -n 40 "$DEMO_SRC/held-out.txt"
      echo "The capital of France is Paris. France is in Europe."
      echo "The currency of Japan is the Yen. Japan is in Asia."; } >documents
}
right() { # how many lines name the capital
    paste -d '\t' "$1" <(jq -r '.capitals[].capital' "$REFERENCE") |
        awk -F '\t' '{ sub(/^ */, "", $1); n += index($1, $2 ".") == 1 } END { print n }'
}
distance() { # JSON of a dtype's distance from f32
    colibri-bench --perplexity documents --max-tokens 256 --compare "$COLIBRI_TEST_DEMO_F32" --json "$(demo "$@")"
}

@test "demo: what the README promises" {
    [[ $(echo "The capital of France is" | colibri-run "$COLIBRI_TEST_DEMO") == " Paris"* ]]
}

@test "demo: the tour of make demo converts, looks, answers and times" {
    run -0 --separate-stderr "$REPO/tools/demo.sh" "$COLIBRI_BUILD"
    has "$output" '$ colibri-convert' 'where the bytes are' $'\n Paris' ExpertCompute 'decode tokens/s'
}

# bats test_tags=release
@test "demo: all 120 continuations equal the reference in f32, in one run" {
    colibri-run --lines -n 8 "$COLIBRI_TEST_DEMO_F32" <prompts >got
    diff want got
    [[ $(right got) == "$(jq .capitals_right "$REFERENCE")" ]]
}

# bats test_tags=release
@test "demo: so do the token ids" {
    jq -r '.capitals[] | .ids | join(" ")' "$REFERENCE" >ids
    jq -r '.capitals[] | .greedy | join(" ")' "$REFERENCE" >want-ids
    colibri-run --ids --lines -n 8 "$COLIBRI_TEST_DEMO_F32" <ids >got
    diff want-ids got
}

# bats test_tags=release
@test "demo: perplexity in f32 is that of the reference" {
    colibri-bench --perplexity "$DEMO_SRC/held-out.txt" --json "$COLIBRI_TEST_DEMO_F32" >got
    jq -e --slurpfile r "$REFERENCE" '.tokens == $r[0].tokens' got
    jq -e --slurpfile r "$REFERENCE" '(.perplexity - $r[0].perplexity) | . < 0.0005 and . > -0.0005' got
}

# bats test_tags=release
@test "demo: int8 knows at least 115 capitals and stays within 0.0030 nats" {
    colibri-run --lines -n 8 "$COLIBRI_TEST_DEMO" <prompts >got
    (($(right got) >= 115))
    distance int8 | jq -e '.kl <= 0.0030 and .same_choice > 0.97'
}

# bats test_tags=release
@test "demo: int4 stays within 0.025 nats" {
    distance int4 | jq -e '.kl <= 0.025 and .same_choice > 0.88'
}

# bats test_tags=release
@test "demo: bf16 loses nothing, fp16 next to nothing" {
    distance bf16 | jq -e '.kl == 0'
    distance fp16 | jq -e '.kl < 0.0001'
}

# bats test_tags=slow
@test "demo: the scales are ranked as they should be" {
    row=$(distance int8 | jq .kl)
    expert=$(distance int8 --scale expert | jq .kl)
    tensor=$(distance int8 --scale tensor | jq .kl)
    four=$(distance int4 | jq .kl)
    all_four=$(distance int4 --dense-dtype int4 | jq .kl)
    awk -v a="$row" -v b="$expert" -v c="$tensor" 'BEGIN { exit !(a < b && b < c) }'
    awk -v a="$four" -v b="$all_four" 'BEGIN { exit !(a < b) }'
}

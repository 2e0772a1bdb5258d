#!/usr/bin/env bats
# Every example of a man page runs: lines that begin with "$" in its EXAMPLES. The files that they name exist in the
# folder where they run.
load helper

setup() {
    need_demo
    cd "$BATS_TEST_TMPDIR" || return
    cp "$COLIBRI_TEST_DEMO" demo.bin
    cp "$COLIBRI_TEST_DEMO_F32" f32.bin
    cp -r "$DEMO_SRC" demo-model
    cp "$DEMO_SRC/held-out.txt" .
    cp "$REPO/test/data/chat/chatml/template.jinja" .
    printf 'The capital of France is\nThe capital of Japan is\n' >questions.txt
}

examples() { # MAN PAGE: one command a line
    sed -nE '/^\.Sh EXAMPLES/,/^\.Sh [^E]/s/^(\.Dl )?\$ //p' "$1" | sed 's/\\&//g; s/\\e/\\/g; s/\\(dq/"/g'
}

run_examples() {
    local page=$REPO/man/$1 n=0 command
    [[ -e $page ]] || fail "no $page"
    while IFS= read -r command; do
        n=$((n + 1))
        run -0 bash -o pipefail -c "$command"
    done < <(examples "$page")
    ((n > 0)) || fail "no examples in $page"
}

@test "man: examples of colibri-convert run" { run_examples colibri-convert.1; }
@test "man: examples of colibri-inspect run" { run_examples colibri-inspect.1; }
@test "man: examples of colibri-run run" { run_examples colibri-run.1; }
@test "man: examples of colibri-bench run" { run_examples colibri-bench.1; }

@test "man: the example of colibri-map is the one of examples/maps" {
    sed -n '/^\.Bd/,/^\.Ed/{/^\./d;p}' "$REPO/man/colibri-map.5" >map.json
    diff map.json "$REPO/examples/maps/deepspeed-moe.json"
    for m in "$REPO"/examples/maps/*.json; do jq -e .name "$m" >/dev/null; done
}

@test "man: examples of the README run" {
    # Those of the pipes, with the bundled model in place of a published one.
    cp demo.bin model.bin
    cp demo.bin olmoe.bin
    cp -r demo-model olmoe
    cp held-out.txt text.txt
    sed -nE '/^## The programs/,/^## In your own/s/^    (colibri-.*)/\1/p' "$REPO/README.md" >commands
    (($(wc -l <commands) >= 3))
    while IFS= read -r command; do
        run -0 bash -o pipefail -c "$command"
    done <commands
}

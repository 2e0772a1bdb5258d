#!/usr/bin/env bats
# The examples for embedders: simple_infer, the Python binding, the program of libcolibri(3).
load helper

setup() {
    need_demo
    export COLIBRI_LIBRARY=$COLIBRI_BUILD/libcolibri.so PYTHONPATH=$REPO/examples/python PYTHONDONTWRITEBYTECODE=1
    cd "$BATS_TEST_TMPDIR" || return
}
simple_infer() {
    "$COLIBRI_BUILD/examples/simple_infer" "$@"
}

@test "simple_infer says what colibri-run says" {
    printf 'The capital of France is' | colibri-run -n 32 "$COLIBRI_TEST_DEMO" >want
    simple_infer --model-path "$COLIBRI_TEST_DEMO" --input "The capital of France is" --max-new-tokens 32 >got
    diff want got
    grep -q '^ Paris' got
    # more than the model has positions for ends where they end
    printf 'The capital of France is' | colibri-run -n 900000 "$COLIBRI_TEST_DEMO" >want
    simple_infer --model-path "$COLIBRI_TEST_DEMO" --input "The capital of France is" --max-new-tokens 900000 >got
    diff want got
}

@test "simple_infer: errors" {
    run -2 simple_infer
    run -2 simple_infer --model-path "$COLIBRI_TEST_DEMO" --input
    run -2 simple_infer --model-path "$COLIBRI_TEST_DEMO" --input x --max-new-tokens 0
    run_err 1 simple_infer --model-path missing.bin --input x
    has "$message" "simple_infer: missing.bin" "No such file"
    run_err 1 simple_infer --model-path "$COLIBRI_TEST_DEMO" --input "$(printf 'word %.0s' {1..2000})"
    has "$message" "context"
    run_err 1 bash -c '"$1" --model-path "$2" --input x >/dev/full' - "$COLIBRI_BUILD/examples/simple_infer" "$COLIBRI_TEST_DEMO"
    has "$message" "standard output: No space left"
}

@test "many_prompts says what colibri-run says" {
    prompts=("The capital of France is" "The capital of Japan is" "In the beginning" "" "Water is")
    for i in "${!prompts[@]}"; do
        [[ -z ${prompts[i]} ]] || printf '%d:%s\n' $((i + 1)) "$(colibri-run --lines -n 24 -p "${prompts[i]}" "$COLIBRI_TEST_DEMO")"
    done >want
    run -0 --separate-stderr "$COLIBRI_BUILD/examples/many_prompts" "$COLIBRI_TEST_DEMO" "${prompts[@]}"
    python3 - "$output" <<'PY' | sort | grep -v '^4:' | diff want -
import re, sys # an answer may have several lines
print(re.sub(r" \[\d+ tokens, [\d.]+ s\]$", "", sys.argv[1].replace("\n", "\\n").replace("s]\\n", "s]\n"), flags=re.M))
PY
    run -2 "$COLIBRI_BUILD/examples/many_prompts" model.bin
    run_err 1 "$COLIBRI_BUILD/examples/many_prompts" missing.bin x
    has "$message" "many_prompts: missing.bin" "No such file"
    run -1 --separate-stderr "$COLIBRI_BUILD/examples/many_prompts" "$COLIBRI_TEST_DEMO" "$(printf 'word %.0s' {1..2000})" "Water is"
    has "$stderr" "prompt 1: the prompt has" "context holds"
    has "$output" "2:"
}

@test "colibri.py says what colibri-run says" {
    printf 'The capital of Japan is' | colibri-run -n 20 "$COLIBRI_TEST_DEMO" >want
    python3 "$REPO/examples/python/colibri.py" "$COLIBRI_TEST_DEMO" "The capital of Japan is" -n 20 >got
    diff want got
    run_err 1 python3 "$REPO/examples/python/colibri.py" missing.bin x
    has "$message" "colibri.py: missing.bin"
    run_err 1 python3 "$REPO/examples/python/colibri.py" "$COLIBRI_TEST_DEMO" x -n -5
    has "$message" "max_new_tokens is -5"
    COLIBRI_LIBRARY=nowhere.so run_err 1 python3 "$REPO/examples/python/colibri.py" "$COLIBRI_TEST_DEMO" x
    has "$message" "colibri.py: nowhere.so"
    # its reader has gone away
    run -141 --separate-stderr python3 - "$REPO/examples/python/colibri.py" "$COLIBRI_TEST_DEMO" x <<'PY'
import os, subprocess, sys
r, w = os.pipe()
os.close(r)
sys.exit(128 - subprocess.run([sys.executable, *sys.argv[1:]], stdout=w).returncode)
PY
    [[ -z $stderr ]] || fail "$stderr"
}

@test "colibri.py: logits, ids, text, errors" {
    src=$BATS_TEST_TMPDIR/src
    cp -r "$DEMO_SRC" "$src"
    jq '.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"' "$DEMO_SRC/tokenizer_config.json" >"$src/tokenizer_config.json"
    colibri-convert -q "$src" -o "$BATS_TEST_TMPDIR/chat.bin"
    python3 "$REPO/test/cli/python_binding.py" "$COLIBRI_TEST_DEMO" "$BATS_TEST_TMPDIR/chat.bin"
}

@test "the program of libcolibri(3) compiles and runs" {
    sed -n '/^\.Sh EXAMPLES/,/^\.Sh SEE/p' "$REPO/man/libcolibri.3" | sed -n '/^\.Bd/,/^\.Ed/p' | sed '/^\./d; s/\\e/\\/g' >program.c
    # shellcheck disable=SC2086 # CC may be two words
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -I "$REPO/lib" program.c -L "$COLIBRI_BUILD" -lcolibri \
        -Wl,-rpath,"$COLIBRI_BUILD" -o program
    run -0 ./program "$COLIBRI_TEST_DEMO"
    ((${#output} > 20))
    run ./program missing.bin
    has "$output" "missing.bin"
}

#!/usr/bin/env bats
# Chat templates: colibri-inspect --render-chat, and conversations in colibri-run.
load helper

setup() {
    cd "$BATS_TEST_TMPDIR" || return
}

# The bundled model with a template of this shape; it is no chat model, but reads one.
template='{{ bos_token }}{% for m in messages %}{% if m.role == "bad" %}{{ raise_exception("no bad role") }}{% endif %}'
template+=$'{{ m.role }}: {{ m.content }}\n{% if m.role == "assistant" %}{{ eos_token }}{% endif %}{% endfor %}'
template+='{% if add_generation_prompt %}assistant:{% endif %}'

chat_model() { # TEMPLATE OUT
    local src=$BATS_TEST_TMPDIR/src-$2
    cp -r "$DEMO_SRC" "$src"
    jq --arg t "$1" '.chat_template = $t' "$DEMO_SRC/tokenizer_config.json" >"$src/tokenizer_config.json"
    colibri-convert -q "$src" -o "$2"
}
talk() { colibri-run --cpu scalar -t 1 -n 8 --chat "$@"; }

render() { # TEMPLATE TEXT, then lines on stdin
    printf %s "$1" >t.jinja
    colibri-inspect --render-chat t.jinja
}

hello='{"messages":[{"role":"user","content":"Hi"}]}'

# bats test_tags=san
@test "inspect: --render-chat gives what transformers gives" {
    for dir in "$REPO"/test/data/chat/*/; do
        colibri-inspect --render-chat "$dir/template.jinja" <"$dir/cases.jsonl" >got
        python3 - "$dir/cases.jsonl" got <<'PY'
import json, sys
want, got = ([json.loads(l) for l in open(p, encoding="utf-8")] for p in sys.argv[1:])
assert len(want) == len(got) > 20, (len(want), len(got))
for w, g in zip(want, got):
    if "rendered" in w:
        assert g == {"text": w["rendered"]}, (w["case"], g, w["rendered"])
    elif w["error_kind"] == "raise_exception":
        assert g == {"error": w["error"]}, (w["case"], g, w["error"])
    else:
        assert "error" in g, (w["case"], g)
PY
    done
}

@test "inspect: --render-chat reads line by line and says which line is bad" {
    run -0 --separate-stderr render '{{ messages[0].content }}{{ x }}{{ bos_token }}|{{ strftime_now("%d %b %Y") }}' <<EOF2
{"messages":[{"role":"user","content":"a\u2028b"}],"kwargs":{"x":1.50},"vars":{"bos_token":"<s>"},"now":"2025-06-15T12:30:45"}

{"messages":[{"role":"user","content":"2"}],"case":"ignored","now":"2024-02-29T00:00:00"}
EOF2
    [[ ${lines[0]} == '{"text":"a\u2028b1.5<s>|15 Jun 2025"}' ]]
    [[ ${lines[1]} == '{"text":"2|29 Feb 2024"}' ]]
    run -3 --separate-stderr render x <<<$'{"messages":[]}\n[1]'
    [[ $output == '{"text":"x"}' ]]
    has "$stderr" "line 2" "object"
    run -3 --separate-stderr render x <<<'{"messages":['
    has "$stderr" "line 1"
    run -0 --separate-stderr render x <<<'{"messages":[7]}'
    has "$output" '"error"' "message 1 is not an object"
    run -0 --separate-stderr render x <<<'{"messages":[],"now":"yesterday"}'
    has "$output" '"error"' "now"
}

@test "inspect: --render-chat: a template that is none, or that needs more than there is" {
    run_err 3 render '{% if x %}' <<<"$hello"
    has "$message" "t.jinja: line 1, column 1" "endif"
    run_err 3 render $'\n  {{ messages | groupby("role") }}' <<<"$hello"
    has "$message" "t.jinja: line 2, column 17: the filter 'groupby' is not supported"
    run_err 3 render '{% include "other" %}' <<<"$hello"
    has "$message" "line 1, column 4" "'include' is not supported"
    run_err 3 colibri-inspect --render-chat missing.jinja
    has "$message" "missing.jinja"
    run_err 3 colibri-inspect --render-chat .
    run_err 2 colibri-inspect --render-chat a b
    run_err 2 colibri-inspect --render-chat --decode a
    has "$message" "--render-chat"
    head -c 2000000 /dev/zero >t
    run_err 3 colibri-inspect --render-chat t
    printf '\xff' >t
    run_err 3 colibri-inspect --render-chat t
    has "$message" "UTF-8"
}

@test "inspect: --render-chat: a template that never ends, recurses or grows is stopped" {
    printf %s '{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% set x = a %}{% endfor %}{% endfor %}' >t.jinja
    run -0 timeout 60 colibri-inspect --render-chat t.jinja <<<"$hello"
    has "$output" "too many steps"
    printf %s '{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}' >t.jinja
    run -0 timeout 60 colibri-inspect --render-chat t.jinja <<<"$hello"
    has "$output" "recursing"
    printf %s '{% set ns = namespace(x="ab") %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}' >t.jinja
    run -0 timeout 60 colibri-inspect --render-chat t.jinja <<<"$hello"
    has "$output" "MB of memory"
}

# bats test_tags=san
@test "run: --chat is the same as a prompt in the form of the template" {
    chat_model "$template" chat.bin
    run -0 --separate-stderr talk -p "Where is Rome?" chat.bin
    want=$output
    [[ -n $want && $want != " "* ]]
    # BOS once: the ids of a prompt in this form, and no more.
    jq -nc '{text: "<s>user: Where is Rome?\nassistant:", add_special: false}' |
        colibri-inspect --encode --parse-special chat.bin >ids
    [[ $(jq -c '.ids | map(select(. == 1))' ids) == "[1]" ]]
    jq -r '.ids | join(" ")' ids | colibri-run --cpu scalar -t 1 -n 8 --ids chat.bin >new
    [[ $(jq -Rc '{ids: split(" ") | map(tonumber)}' new | colibri-inspect --decode --skip-special chat.bin | jq -r .text) == "$want" ]]
    [[ $(echo "Where is Rome?" | talk chat.bin) == "$want" ]]
    [[ $(echo "Where is Rome?" | talk --lines chat.bin) == "$want" ]]
    echo '{"prompt":"Where is Rome?"}' >in
    echo '{"messages":[{"role":"user","content":"Where is Rome?"}],"tools":null}' >>in
    talk --jsonl chat.bin <in >out
    [[ $(jq -r .text out | sort -u) == "$want" ]]
    [[ $(jq -c .prompt_tokens out | sort -u) == $(jq '.ids | length' ids) ]]
    # What a user writes is text: two special tokens less than it spells.
    echo '{"messages":[{"role":"user","content":"</s><s>"}]}' | talk --jsonl chat.bin | jq .prompt_tokens >n
    (($(cat n) > 12))
    [[ $(talk --system "Be brief." -p "Where is Rome?" chat.bin) != "$want" ]]
}

@test "run: --chat says what is wrong with a conversation, a template or the options" {
    chat_model "$template" chat.bin
    printf '%s\n' '{"messages":[{"role":"bad","content":"x"}]}' '{"messages":[]}' '{"messages":"x"}' '{"messages":[{"content":"x"}]}' \
        '{"prompt":"x","messages":[]}' '{"max_new_tokens":2}' '{"prompt":"x","tools":[]}' '{"vars":{}}' '{"messages":[{"role":"user","content":"x"}]}' >in
    run -1 --separate-stderr talk --jsonl chat.bin <in
    ((${#lines[@]} == 9))
    has "${lines[0]}" '"error"' "no bad role"
    has "${lines[1]}" "at least one message"
    has "${lines[2]}" "at least one message"
    has "${lines[3]}" "message 1 has no 'role'"
    has "${lines[4]}" "exclude each other"
    has "${lines[5]}" "'messages' is missing"
    has "${lines[6]}" "'prompt' has no tools"
    has "${lines[7]}" "'vars'" "not known"
    has "${lines[8]}" '"text"'
    run -1 --separate-stderr colibri-run --jsonl chat.bin <<<'{"messages":[]}'
    has "$output" "without --chat"
    run_err 3 talk -p x "$(demo int8)"
    has "$message" "has no chat template"
    chat_model '{{ messages | groupby("role") }}' odd.bin
    run_err 3 talk -p x odd.bin
    has "$message" "odd.bin: chat_template: line 1, column 15: the filter 'groupby' is not supported"
    run_err 2 talk --ids chat.bin
    run_err 2 talk --parse-special chat.bin
    run_err 2 talk --jsonl --system x chat.bin
    run_err 2 colibri-run --system x chat.bin
    run_err 3 talk --ctx 8 -p "a prompt that is longer than that" chat.bin
    has "$message" "context holds 8"
}

@test "run: --chat from a terminal goes on turn by turn, and reads nothing twice" {
    script -qec true seen >/dev/null 2>&1 || skip "no script(1), or no pseudo-terminals"
    chat_model "$template" chat.bin
    printf 'Where is Rome?\n\nAnd Paris?\n' >turns
    script -qec "colibri-run --cpu scalar -t 1 -n 8 --chat --stats --json chat.bin >out 2>err" seen <turns >/dev/null
    [[ $(wc -l <out) == 2 ]]
    first=$(talk -p "Where is Rome?" chat.bin)
    [[ $(sed -n 1p out) == "$first" ]]
    jq -nc --arg a "$first" '{messages: [{role: "user", content: "Where is Rome?"}, {role: "assistant", content: $a},
        {role: "user", content: "And Paris?"}]}' | talk --jsonl chat.bin >second
    [[ $(sed -n 2p out) == "$(jq -r .text second)" ]]
    [[ $(grep -o '> ' err | wc -l) == 4 ]] # one before each line, and one for the end
    grep '^{\|^> *{' err | sed 's/^[^{]*//' | jq -e '.prefill.tokens < .prompt_tokens and .prompts == 2'
    run -1 script -qec "colibri-run --cpu scalar -t 1 -q --chat --ctx 30 -n 4 chat.bin >out 2>err" seen <turns
    grep -q "taken back" err
}

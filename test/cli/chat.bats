#!/usr/bin/env bats
# Chat templates: colibri-inspect --render-chat, and conversations in colibri-run.
load helper

setup() {
    cd "$BATS_TEST_TMPDIR" || return
}

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

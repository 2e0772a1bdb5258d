#!/usr/bin/env bats
# colibri-serve: what it answers, and what it survives. Sockets that do what curl does not: serve_client.py.
load helper

setup() {
    command -v colibri-serve >/dev/null || fail "colibri-serve was not built"
    cd "$BATS_TEST_TMPDIR" || return
    model=$(demo int8)
}
teardown() {
    # Each one ends in order; a sanitizer that found something says so by its status.
    local file pid status=0
    for file in "$BATS_TEST_TMPDIR"/*.pid; do
        [[ -e $file ]] || continue
        pid=$(cat "$file")
        kill "$pid" 2>/dev/null
        { timeout 60 tail -f /dev/null --pid "$pid" || kill -KILL "$pid"; } 2>/dev/null
        wait "$pid" 2>/dev/null || status=$?
        ((status == 0)) || cat "$BATS_TEST_TMPDIR/log"
    done
    ((status == 0))
}

# serve [OPTION]...: starts a server with the demo model; $url, $port, $pid, messages in the file log.
serve() {
    rm -f url
    colibri-serve --port 0 -t 1 "$@" "${serve_model:-$model}" >url 2>log 3>&- &
    pid=$!
    echo "$pid" >"$pid.pid"
    for _ in {1..600}; do
        url=$(cat url 2>/dev/null || true)
        [[ -z $url ]] || break
        kill -0 "$pid" 2>/dev/null || fail "it ended: $(cat log)"
        sleep 0.05
    done
    port=${url##*:}
}
# ask PATH JSON [CURL OPTION]...: $status is HTTP's, the answer is in $answer.
ask() {
    local path=$1 body=$2
    shift 2
    status=$(curl -sS -o answer -w '%{http_code}' --max-time 60 -H 'Content-Type: application/json' --data-binary "$body" "$@" "$url$path")
    answer=$(cat answer)
}
# refused STATUS FIELD PATH JSON [CURL OPTION]...: an error in OpenAI's shape that names the field ("null": none, "*":
# any).
refused() {
    local want=$1 field=$2
    shift 2
    ask "$@"
    [[ $status == "$want" ]] || fail "$2: status $status instead of $want: $answer"
    jq -e --arg field "$field" '.error | (.message | length > 0) and (.type | length > 0) and has("code") and
        ($field == "*" or (.param // "null") == $field)' answer >/dev/null || fail "$2: $answer"
}
trick() { python3 "$REPO/test/cli/serve_client.py" "$port" "$@"; }
# A request among bad ones gets its right answer.
still_answers() {
    local right=$BATS_FILE_TMPDIR/right
    [[ -s $right ]] || colibri-run -n 6 -p 'The capital of France is' "$model" >"$right"
    ask / '{"prompt":"The capital of France is","max_new_tokens":6}'
    [[ $status == 200 && $(jq -r .output answer) == "$(<"$right")" ]] || fail "$answer"
}
ended() { # STATUS: of the server
    local got=0
    wait "$pid" || got=$?
    [[ $got == "$1" ]] || fail "exit status $got: $(cat log)"
}
run_text() { colibri-run "$@" "$model" && echo x; }

# -- answers ---------------------------------------------------------------------------------------

# bats test_tags=san
@test "serve: prints its address, and what runs there" {
    serve
    [[ $url =~ ^http://127\.0\.0\.1:[0-9]+$ ]]
    [[ $(curl -sS "$url/health") == '{"status":"ok"}' ]]
    [[ $(curl -sS "$url/v1/models" | jq -r '.data[0].id') == demo-int8 ]]
    [[ $(curl -sS "$url/v1/models/demo-int8" | jq -r .object) == model ]]
    [[ $(curl -sS "$url/v1/models/none" | jq -r .error.code) == model_not_found ]]
    [[ $(curl -sSI "$url/health" | head -n 1) == "HTTP/1.1 200 OK"* ]]
    still_answers
    curl -sS "$url/metrics" >metrics
    for name in requests_total first_token_seconds_bucket completion_tokens_total choices_running kv_bytes stage_seconds_total \
        memory_bytes uptime_seconds; do
        grep -q "^colibri_$name" metrics || fail "no $name"
    done
    grep -qx 'colibri_completion_tokens_total 6' metrics
    grep -q 'event=start .*url=http' log
    grep -q 'event=request .*path=/ status=200 .*completion_tokens=6' log
    curl -sS -D headers "$url/" >page
    grep -qi '^content-security-policy: default-src .none' headers
    grep -q '<textarea id="prompt"' page
    grep -q '^colibri_memory_bytes{pool="gpu",what="used"} 0$' metrics
    if grep -oE '(src|href)="?[a-z]*:?//' page; then fail "something from elsewhere"; fi
}

# bats test_tags=san
@test "serve: the plain call gives what colibri-run gives" {
    serve
    for path in / /generate; do
        for prompt in 'The capital of France is' 'In the beginning' $'Two\nlines "quoted" \\ and é'; do
            ask $path "$(jq -cn --arg p "$prompt" '{prompt: $p, max_new_tokens: 20}')"
            [[ $status == 200 && $(jq -r .status answer) == success ]] || fail "$answer"
            [[ $(jq -j .output answer)x == "$(run_text -n 20 -p "$prompt" | sed '$d')"x ]] || fail "$answer"
        done
    done
    ask / '{"prompt":"The capital of","max_new_tokens":9,"temperature":1.5,"seed":7,"top_k":50,"top_p":0.9,"min_p":0.01,"repetition_penalty":1.2}'
    [[ $(jq -j .output answer)x == "$(run_text -p 'The capital of' -n 9 --temp 1.5 --seed 7 --top-k 50 --top-p 0.9 --min-p 0.01 --repeat-penalty 1.2 | sed '$d')"x ]]
    ask / '{"prompt":"The capital of France is","stop":["capital"]}'
    [[ $(jq -r .finish_reason answer) == stop && $(jq -r .output answer) != *capital* ]]
}

# bats test_tags=san
@test "serve: completions: usage, several prompts, n, ids, echo, stop, seed" {
    serve
    ask /v1/completions '{"prompt":"The capital of France is","max_tokens":4,"temperature":0}'
    jq -e '.object == "text_completion" and (.id | startswith("cmpl-")) and .model == "demo-int8" and
        .choices[0].finish_reason == "length" and .choices[0].logprobs == null and
        .usage.completion_tokens == 4 and .usage.total_tokens == .usage.prompt_tokens + 4' answer
    one=$(jq -r '.choices[0].text' answer)
    ask /tokenize '{"prompt":"The capital of France is"}'
    ids=$(jq -c .tokens answer)
    ask /v1/completions "{\"prompt\":$ids,\"max_tokens\":4,\"temperature\":0}"
    [[ $(jq -r '.choices[0].text' answer) == "$one" ]]
    ask /v1/completions '{"prompt":["The capital of France is","In the"],"n":2,"max_tokens":4,"temperature":0,"echo":true}'
    [[ $(jq -r '.choices[1].text' answer) == "The capital of France is$one" ]]
    jq -e '[.choices[].index] == [0,1,2,3] and .choices[2].text == .choices[3].text and (.choices[3].text | startswith("In the"))' answer
    ask /v1/completions '{"prompt":"x","max_tokens":12,"seed":5,"n":2}'
    jq -c '[.choices[].text]' answer >first
    jq -e '.[0] != .[1]' first
    ask /v1/completions '{"prompt":"x","max_tokens":12,"seed":6}'
    [[ $(jq '.choices[0].text' answer) == "$(jq '.[1]' first)" ]] # choice i draws with seed + i
    ask /v1/completions '{"prompt":"The capital of France is","temperature":0,"max_tokens":50,"stop":"capital"}'
    jq -e '.choices[0].finish_reason == "stop" and (.choices[0].text | contains("capital") | not)' answer
    ask /v1/completions '{"prompt":"The capital of France is","temperature":0,"model":"demo-int8","user":"x","ignore_eos":true}'
    jq -e '.usage.completion_tokens == 16' answer
}

# bats test_tags=san
@test "serve: logprobs are those of the tokens, likeliest first" {
    serve
    ask /v1/completions '{"prompt":"The capital of France is","max_tokens":5,"temperature":0,"logprobs":3}'
    jq -e '.choices[0] | (.logprobs.tokens | add) == .text and (.logprobs.token_logprobs | length == 5 and all(. <= 0)) and
        (.logprobs.top_logprobs | all(length <= 3 and length >= 1)) and .logprobs.text_offset[0] == 0 and
        (.logprobs.token_logprobs == [.logprobs.top_logprobs[] | [.[]] | max])' answer || fail "$answer"
}

# bats test_tags=san
@test "serve: echo with logprobs: a prompt has what its tokens had when they were answers" {
    serve
    ask /v1/completions '{"prompt":"The capital of France is","max_tokens":0,"echo":true,"logprobs":2}'
    jq -e '.choices[0] | .text == "The capital of France is" and .finish_reason == "length" and .logprobs.token_logprobs[0] == null and
        .logprobs.top_logprobs[0] == null and (.logprobs.token_logprobs[1:] | all(. < 0)) and .logprobs.tokens[0] == "<s>" and
        .logprobs.text_offset[:4] == [0, 0, 3, 11]' answer || fail "$answer"
    jq -e '.usage.completion_tokens == 0' answer
    ask /tokenize '{"prompt":"The capital of France is"}'
    ids=$(jq -c .tokens answer)
    ask /v1/completions "{\"prompt\":$ids,\"max_tokens\":6,\"temperature\":0,\"logprobs\":3}"
    jq -c '.choices[0].logprobs | [.tokens, .token_logprobs, .top_logprobs]' answer >new
    text=$(jq '.choices[0].text' answer)
    ask /tokenize "{\"prompt\":$(jq -c '.choices[0].text | "The capital of France is" + .' answer)}"
    all=$(jq -c .tokens answer)
    (($(jq length <<<"$all") == $(jq length <<<"$ids") + 6)) || skip "the text has other tokens than the answer"
    ask /v1/completions "{\"prompt\":$all,\"max_tokens\":0,\"logprobs\":3,\"echo\":true,\"n\":2}"
    for i in 0 1; do
        jq -c --argjson i $i '.choices[$i].logprobs | [.tokens[-6:], .token_logprobs[-6:], .top_logprobs[-6:]]' answer | diff new -
    done
    # And as a stream, with an answer behind it.
    q='"prompt":["The capital of France is","In the beginning"],"n":2,"max_tokens":3,"temperature":0,"echo":true,"logprobs":1'
    ask /v1/completions "{$q}"
    jq -c '[.choices[] | [.text, .logprobs.tokens, .logprobs.token_logprobs, .logprobs.text_offset]]' answer >whole
    jq -e --argjson text "$text" '.[0] | (.[1] | length) == 10 and (.[0] | startswith("The capital of France is"))' whole
    ask /v1/completions "{$q,\"stream\":true}" -N
    sed -n 's/^data: {/{/p' answer | jq -sc '[.[].choices[]] | group_by(.index) | map([([.[].text] | add)] +
        [("tokens", "token_logprobs", "text_offset") as $k | [.[].logprobs | select(.) | .[$k]] | add])' >stream
    diff whole stream
    ask /v1/completions '{"prompt":"The capital of","max_tokens":0}'
    jq -e '.choices[0].text == "" and .choices[0].logprobs == null' answer
    refused 400 max_new_tokens / '{"prompt":"x","max_new_tokens":0}'
}

# bats test_tags=san
@test "serve: numbers and fields as clients of other servers send them" {
    serve
    q='"prompt":"The capital of France is"'
    ask /v1/completions "{$q,\"temperature\":0}"
    text=$(jq '.choices[0].text' answer)
    # The likeliest token, said in other ways.
    for more in '"top_p":0' '"top_p":0,"top_k":-1' '"top_k":1.0' '"top_k":1,"max_tokens":16.0,"n":1.0,"seed":1e3' '"temperature":0,"stop":["",""]' \
        '"temperature":0,"model":""'; do
        ask /v1/completions "{$q,$more}"
        [[ $(jq '.choices[0].text' answer) == "$text" ]] || fail "$more: $answer"
    done
    ask /v1/completions "{$q,\"temperature\":0,\"metadata\":{\"a\":\"b\"},\"store\":false,\"skip_special_tokens\":true,\"min_tokens\":0,\"best_of\":1,
        \"use_beam_search\":false,\"stop_token_ids\":[],\"include_stop_str_in_output\":false,\"guided_json\":null,\"cache_prompt\":true,
        \"typical_p\":1.0,\"mirostat\":0,\"length_penalty\":1,\"repeat_penalty\":1,\"prompt_cache_key\":\"x\",\"user\":\"x\"}"
    [[ $(jq '.choices[0].text' answer) == "$text" ]] || fail "$answer"
    ask /v1/completions "{$q,\"seed\":-1,\"max_tokens\":3}"
    [[ $status == 200 ]]
    # Penalties: a token that was said becomes less likely, each time or once; tokens of the prompt do not count.
    q='"prompt":"The capital of France is Paris. The capital of France is","temperature":0,"logprobs":0,"max_tokens":40,"ignore_eos":true'
    for more in '"seed":1' '"frequency_penalty":2' '"presence_penalty":-2' '"frequency_penalty":-2'; do
        ask /v1/completions "{$q,$more}"
        jq -c '.choices[0].logprobs.tokens' answer
    done >said
    jq -se '(map(unique | length) | .[2] < .[0] and .[3] < .[2]) and .[0] != .[1]' said || fail "$(cat said)"
    jq -se '.[0][0] == .[1][0] and .[0][0] == .[2][0]' said # nothing was said yet
}

# bats test_tags=san
@test "serve: a stream says the same as the whole answer" {
    serve
    q='"prompt":"The capital of France is","max_tokens":30,"temperature":0,"stop":[" And"]'
    ask /v1/completions "{$q}"
    whole=$(jq -c '[.choices[0].text, .choices[0].finish_reason, .usage]' answer)
    ask /v1/completions "{$q,\"stream\":true,\"stream_options\":{\"include_usage\":true}}" -N -D headers
    grep -qi '^content-type: text/event-stream' headers
    [[ $(tail -n 2 answer | head -n 1) == 'data: [DONE]' ]]
    sed -n 's/^data: {/{/p' answer | jq -sc '[([.[].choices[].text?] | add), ([.[].choices[].finish_reason?] | map(select(.)) | .[0]),
        .[-1].usage]' >stream
    [[ $(jq -c '.[:2]' stream) == "$(jq -c '.[:2]' <<<"$whole")" ]] || fail "$(cat stream) $whole"
    jq -e --argjson whole "$whole" '.[2].completion_tokens == $whole[2].completion_tokens' stream
    ask /v1/completions '{"prompt":"x","max_tokens":9,"seed":1,"n":3,"logprobs":1}'
    jq -c '[.choices[] | [.text, .logprobs.tokens]]' answer >whole
    ask /v1/completions '{"prompt":"x","max_tokens":9,"seed":1,"n":3,"logprobs":1,"stream":true}' -N
    sed -n 's/^data: {/{/p' answer | jq -sc '[.[].choices[]] | group_by(.index) |
        map([([.[].text] | add), ([.[].logprobs | select(.) | .tokens] | add)])' >stream
    diff whole stream
}

# The bundled model with a template; it is no chat model, but reads one.
chat_model() {
    local src=$BATS_TEST_TMPDIR/chat-src
    cp -r "$DEMO_SRC" "$src"
    jq --arg t '{{ bos_token }}{% for m in messages %}{% if m.role == "bad" %}{{ raise_exception("no bad role") }}{% endif %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}{{ more }}{{ reasoning_effort }}' '.chat_template = $t' \
        "$DEMO_SRC/tokenizer_config.json" >"$src/tokenizer_config.json"
    colibri-convert -q "$src" -o chat.bin
    serve_model=$PWD/chat.bin
}

# bats test_tags=san
@test "serve: chat: the model's template, parts, streams, logprobs" {
    chat_model
    serve
    hi='{"role":"user","content":"The capital of France is"}'
    ask /v1/chat/completions "{\"messages\":[$hi],\"max_tokens\":6,\"temperature\":0}"
    jq -e '.object == "chat.completion" and .choices[0].message.role == "assistant" and .choices[0].finish_reason == "length"' answer
    text=$(jq '.choices[0].message.content' answer)
    printf %s 'The capital of France is' | colibri-run --chat -n 6 chat.bin >run
    [[ $(jq -r . <<<"$text") == "$(cat run)" ]] || fail "$text $(cat run)"
    ask /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"text","text":"The capital of France is"}]}],"max_completion_tokens":6,"temperature":0}'
    [[ $(jq '.choices[0].message.content' answer) == "$text" ]]
    ask /v1/chat/completions "{\"messages\":[$hi],\"max_tokens\":6,\"temperature\":0,\"stream\":true}" -N
    sed -n 's/^data: {/{/p' answer | jq -s '[.[].choices[].delta.content // ""] | add' >stream
    [[ $(cat stream) == "$text" ]]
    sed -n 's/^data: {/{/p' answer | jq -se '.[0].choices[0].delta.role == "assistant" and .[0].object == "chat.completion.chunk" and
        .[-1].choices[0].finish_reason == "length"'
    ask /v1/chat/completions "{\"messages\":[$hi],\"max_tokens\":6,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":2}"
    jq -e '.choices[0] | ([.logprobs.content[].token] | add | ltrimstr(" ")) == .message.content and (.logprobs.content | all(.top_logprobs | length == 2)) and
        .logprobs.content[0].top_logprobs[0].logprob == .logprobs.content[0].logprob' answer
    ask /tokenize "{\"messages\":[$hi],\"chat_template_kwargs\":{\"more\":\" x\"}}"
    n=$(jq .count answer)
    ask /v1/chat/completions "{\"messages\":[$hi],\"max_tokens\":1}"
    few=$(jq .usage.prompt_tokens answer)
    ask /v1/chat/completions "{\"messages\":[$hi],\"max_tokens\":1,\"reasoning_effort\":\"medium\"}"
    (($(jq .usage.prompt_tokens answer) > few)) # the template has it
    ask /tokenize "{\"messages\":[$hi]}"
    (($(jq .count answer) < n))
    refused 400 messages /v1/chat/completions '{"messages":[{"role":"bad","content":"x"}]}'
    has "$answer" "no bad role"
    refused 400 'messages[0].content' /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}'
    refused 400 'messages[0].content' /v1/chat/completions '{"messages":[{"role":"user","content":7}]}'
    refused 400 'messages[0].role' /v1/chat/completions '{"messages":[{"content":"x"}]}'
    refused 400 'messages[0]' /v1/chat/completions '{"messages":["x"]}'
    refused 400 messages /v1/chat/completions '{"messages":[]}'
    refused 400 messages /v1/chat/completions '{}'
    refused 400 tools /v1/chat/completions "{\"messages\":[$hi],\"tools\":[{\"type\":\"function\"}]}"
    refused 400 tools /v1/chat/completions "{\"messages\":[$hi],\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"auto\"}"
    refused 400 tool_choice /v1/chat/completions "{\"messages\":[$hi],\"tool_choice\":\"required\"}"
    refused 400 modalities /v1/chat/completions "{\"messages\":[$hi],\"modalities\":[\"text\",\"audio\"]}"
    ask /v1/chat/completions "{\"messages\":[$hi],\"max_tokens\":6,\"temperature\":0,\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\",
        \"parallel_tool_calls\":false,\"modalities\":[\"text\"],\"verbosity\":\"low\",\"add_generation_prompt\":true}"
    [[ $(jq '.choices[0].message.content' answer) == "$text" ]] || fail "$answer"
    refused 400 top_logprobs /v1/chat/completions "{\"messages\":[$hi],\"top_logprobs\":2}"
    refused 400 max_completion_tokens /v1/chat/completions "{\"messages\":[$hi],\"max_tokens\":3,\"max_completion_tokens\":4}"
}

# bats test_tags=san
@test "serve: text to tokens and back" {
    serve
    ask /tokenize '{"content":"The capital"}'
    [[ $(jq -c .tokens answer) == '[1,381,385]' ]]
    (($(jq '.tokens | length' answer) == $(jq .count answer)))
    with=$(jq .count answer)
    ask /tokenize '{"prompt":"The capital","add_special_tokens":false}'
    (($(jq .count answer) == with - 1))
    ask /detokenize "{\"tokens\":$(jq -c .tokens answer)}"
    [[ $(jq -r .prompt answer) == "The capital" && $(jq -r .content answer) == "The capital" ]]
    ask /tokenize '{"content":"The capital","add_special":false}' # as clients of llama.cpp say it
    (($(jq .count answer) == with - 1))
    ask /tokenize '{"prompt":"</s>","parse_special":true,"add_special_tokens":false}'
    [[ $(jq -c .tokens answer) == '[2]' ]]
    refused 400 tokens /detokenize '{"tokens":[-1]}'
    refused 400 tokens /detokenize '{"tokens":"x"}'
    refused 400 tokens /detokenize '{}'
    refused 400 prompt /tokenize '{"prompt":["a"]}'
}

# -- bad input -------------------------------------------------------------------------------------

# bats test_tags=san
@test "serve: a wrong field is refused by its name" {
    serve
    c=/v1/completions
    while IFS='|' read -r field json; do
        refused 400 "$field" $c "$json"
    done <<'END'
prompt|{}
prompt|{"prompt":null}
prompt|{"prompt":5}
prompt|{"prompt":{}}
prompt|{"prompt":[]}
prompt|{"prompt":[1,2048]}
prompt|{"prompt":[1,-1]}
prompt|{"prompt":[1,1.5]}
prompt[1]|{"prompt":["a",1]}
temperature|{"prompt":"x","temperature":"hot"}
temperature|{"prompt":"x","temperature":-0.1}
temperature|{"prompt":"x","temperature":1e999}
temperature|{"prompt":"x","temperature":NaN}
temperature|{"prompt":"x","temperature":Infinity}
top_p|{"prompt":"x","top_p":1.01}
min_p|{"prompt":"x","min_p":-1}
top_k|{"prompt":"x","top_k":-2}
top_k|{"prompt":"x","top_k":1.5}
top_k|{"prompt":"x","top_k":99999999999999999999}
repetition_penalty|{"prompt":"x","repetition_penalty":0}
max_tokens|{"prompt":"x","max_tokens":-5}
max_tokens|{"prompt":"x","max_tokens":1e300}
max_tokens|{"prompt":"x","max_tokens":16.5}
max_tokens|{"prompt":"x","max_tokens":9223372036854775808}
n|{"prompt":"x","n":0}
n|{"prompt":"x","n":1000000}
n|{"prompt":"x","n":128,"max_tokens":500}
seed|{"prompt":"x","seed":"1"}
seed|{"prompt":"x","seed":1.5}
stream|{"prompt":"x","stream":"yes"}
stream_options|{"prompt":"x","stream_options":{"include_usage":true}}
stop|{"prompt":"x","stop":7}
stop[1]|{"prompt":"x","stop":["a",7]}
prompt[1]|{"prompt":[[5],[]]}
prompt|{"prompt":[null]}
seed|{"prompt":"x","seed":18446744073709551616}
seed|{"prompt":"x","seed":-9223372036854775809}
skip_special_tokens|{"prompt":"x","skip_special_tokens":false}
min_tokens|{"prompt":"x","min_tokens":5}
logprobs|{"prompt":"x","logprobs":21}
logprobs|{"prompt":"x","logprobs":true}
best_of|{"prompt":"x","best_of":3}
presence_penalty|{"prompt":"x","presence_penalty":2.5}
frequency_penalty|{"prompt":"x","frequency_penalty":-3}
logit_bias|{"prompt":"x","logit_bias":{"5":1}}
suffix|{"prompt":"x","suffix":"y"}
response_format|{"prompt":"x","response_format":{"type":"json_object"}}
response_format|{"prompt":"x","response_format":"json"}
max_new_tokens|{"prompt":"x","max_new_tokens":5}
temprature|{"prompt":"x","temprature":1}
prompt|{"prompt":"x","prompt":"y"}
END
    refused 400 temperature $c '{"prompt":"x","temperature":100.0001}'
    has "$answer" 'is 100.0001;'
    refused 404 model $c '{"prompt":"x","model":"gpt-4"}'
    [[ $(jq -r .error.code answer) == model_not_found ]]
    refused 400 messages /v1/chat/completions '{"messages":[{"role":"user","content":"x"}]}' # no template
    refused 400 stream / '{"prompt":"x","stream":true}'
    [[ $(jq -r .status answer) == error ]]
    still_answers
}

# bats test_tags=san
@test "serve: a prompt over the context is refused with both numbers" {
    serve --ctx 100
    long=$(printf 'word %.0s' {1..300})
    refused 400 prompt /v1/completions "{\"prompt\":\"$long\"}"
    has "$answer" '302 tokens' 'context is 100' context_length_exceeded
    refused 400 prompt / "{\"prompt\":\"$long\"}"
    ask /v1/completions '{"prompt":"The capital","max_tokens":1000,"ignore_eos":true,"temperature":0}'
    [[ $(jq '.usage.total_tokens' answer) == 100 && $(jq -r '.choices[0].finish_reason' answer) == length ]]
}

# bats test_tags=san
@test "serve: bodies that are no JSON" {
    serve
    for path in / /v1/completions /v1/chat/completions /tokenize /detokenize; do
        refused 400 null $path ''
        refused 400 null $path '   '
        refused 400 null $path '{'
        refused 400 null $path '{"prompt":"x"} x'
        refused 400 null $path '[1]'
        refused 400 null $path '"x"'
        refused 400 null $path null
        refused 400 null $path true
        refused 400 null $path -5
        refused 400 prompt $path $'{"prompt":"\xff\xfe"}'
        refused 400 prompt $path '{"prompt":"\ud800"}'
        refused 400 prompt $path $'{"prompt":"a\tb"}'
    done
    python3 -c 'print("[" * 100000 + "]" * 100000)' >deep
    refused 400 '*' / @deep
    python3 -c 'print("{\"prompt\":" * 100000 + "1" + "}" * 100000)' >deep
    refused 400 '*' / @deep
    has "$answer" 'deeper than 128'
    printf '{"prompt":"x\0y"}' >zero
    refused 400 prompt / @zero
    still_answers
}

# bats test_tags=san
@test "serve: bodies and headers that are too long" {
    serve --body-limit 100K --header-limit 4K
    head -c 200000 /dev/zero | tr '\0' ' ' >long
    refused 413 null / @long
    refused 413 null / @long -H 'Expect:'
    refused 413 null / @long -H 'Transfer-Encoding: chunked' -H 'Expect:'
    [[ $(trick chunked 1000000) == 413 ]]
    [[ $(trick huge_body 1073741824) == 413 ]] # 1 GB
    [[ $(curl -sS -o answer -w '%{http_code}' -X POST "$url/") == 411 ]]
    refused 431 null / '{}' -H "X-A: $(head -c 5000 /dev/zero | tr '\0' a)"
    [[ $(curl -sS -o answer -w '%{http_code}' "$url/$(head -c 3000 /dev/zero | tr '\0' a)") == 414 ]]
    [[ $(curl -sS -o answer -w '%{http_code}' "$url/$(head -c 100000 /dev/zero | tr '\0' a)") == 414 ]]
    still_answers
}

# bats test_tags=san
@test "serve: paths and methods that do not exist" {
    serve
    for path in /../../etc/passwd /v1/../v1/models /%2e%2e/etc/passwd /health%00 //health /v1 /v1/models/../../etc/passwd; do
        [[ $(curl -sS --path-as-is -o answer -w '%{http_code}' "$url$path") == 404 ]] || fail "$path: $(cat answer)"
        jq -e .error.message answer
    done
    [[ $(curl -sS -D headers -o answer -w '%{http_code}' "$url/v1/completions") == 405 ]]
    grep -qi '^allow: POST' headers
    refused 405 null /health '{}'
    [[ $(curl -sS -X DELETE -o answer -w '%{http_code}' "$url/health") == 405 ]]
    [[ $(trick garbage) == 200 ]]
    still_answers
}

# bats test_tags=san
@test "serve: what is no HTTP is told so, and what is unclear refused" {
    serve
    [[ $(trick not_http) == told ]] || fail "$(trick not_http)"
    [[ $(trick smuggle) == refused ]] || fail "$(trick smuggle)"
    grep -q 'event=request .*status=400 error="this is TLS' log
    curl -sS "$url/metrics" | grep -q 'status="505"'
    refused 415 null / '{"prompt":"x"}' -H 'Content-Encoding: gzip'
    still_answers
}

# bats test_tags=san
@test "serve: paths as proxies send them, names of models as clients escape them, methods that a path has" {
    serve --model-name 'me/a model'
    [[ $(curl -sS -o answer -w '%{http_code}' --request-target "http://somewhere:80/health" "$url") == 200 ]]
    [[ $(curl -sS "$url/v1/models/me%2Fa%20model" | jq -r .id) == 'me/a model' ]]
    [[ $(curl -sS "$url/v1/models/me/a%20mode" | jq -r .error.code) == model_not_found ]]
    [[ $(curl -sS "$url/v1/models/me%2" | jq -r .error.code) == model_not_found ]]
    curl -sS -X PUT "$url/v1/models" -D headers -o answer
    grep -qi '^allow: GET, HEAD.$' headers
    curl -sS -X PUT "$url/" -D headers -o answer
    grep -qi '^allow: GET, HEAD, POST.$' headers
    [[ $(curl -sS "$url/completions" | jq -r .error.message) == *"under /v1" ]]
}

# -- connections -----------------------------------------------------------------------------------

# bats test_tags=san
@test "serve: slow headers and slow bodies are cut, others go on" {
    serve --idle-timeout 1 --read-timeout 1
    trick slow_body >body &
    local other=$!
    [[ $(trick slow_header) == closed ]]
    still_answers
    wait $other
    has "$(cat body)" '408 Request Timeout' '"code":"timeout"'
}

@test "serve: a client that does not read its stream is cut" {
    serve --write-timeout 1
    [[ $(trick never_read) == $'idle\ncut' ]]
    still_answers
}

# bats test_tags=san
@test "serve: a client that stops in the middle of a request is not waited for" {
    serve
    [[ $(trick end_in_body) == gone ]]
    still_answers
}

# bats test_tags=san
@test "serve: the engine stops for clients that leave, in whatever way" {
    serve --max-concurrent 8
    for how in stream plain half; do
        [[ $(trick leave $how) == $'idle\ncancelled' ]] || fail "$how"
    done
    still_answers
}

# bats test_tags=san
@test "serve: several requests at once on one connection" {
    serve
    [[ $(trick pipeline) == $'200 1\n400 error\n200 2\n200 ok' ]]
}

# bats test_tags=san
@test "serve: idle connections up to the limit, 503 beyond" {
    serve --max-connections 20
    [[ $(trick too_many 30) == $'refused 10\n200' ]]
    kill "$pid"
    ended 0
    rm ./*.pid url
    # As many as there can be files: the limit is raised to the hard one.
    (ulimit -S -n 50 && ulimit -H -n 300 && exec colibri-serve --port 0 "$model") >url 2>log 3>&- &
    pid=$!
    echo $pid >$pid.pid
    until [[ -s url ]]; do sleep 0.05; done
    url=$(cat url) port=${url##*:}
    grep -q ' max_connections=236 ' log
    [[ $(trick too_many 250) == $'refused 14\n200' ]]
    still_answers
}

# bats test_tags=san
@test "serve: without a key of the file nobody is answered; SIGHUP reads it again" {
    printf '# ours\r\nfirst-key\r\n\n \tsecond-key \t\n' >keys
    serve --api-key-file keys
    refused 401 null / '{"prompt":"x"}'
    [[ $(jq -r .error.code answer) == invalid_api_key ]]
    refused 401 null / '{"prompt":"x"}' -H 'Authorization: Bearer first-ke'
    refused 401 null / '{"prompt":"x"}' -H 'Authorization: Bearer first-keyfirst-key'
    refused 401 null / '{"prompt":"x"}' -H 'Authorization: Bearer '
    refused 401 null / '{"prompt":"x"}' -H 'Authorization: Basic first-key'
    ask / '{"prompt":"x","max_new_tokens":1}' -H 'Authorization: Bearer first-key '
    [[ $status == 200 ]]
    [[ $(curl -sS -o answer -w '%{http_code}' "$url/v1/models") == 401 ]]
    [[ $(curl -sS -o answer -w '%{http_code}' "$url/metrics") == 401 ]]
    [[ $(curl -sS -o answer -w '%{http_code}' "$url/health") == 200 ]]
    for key in first-key second-key; do
        ask / '{"prompt":"x","max_new_tokens":1}' -H "Authorization: Bearer $key"
        [[ $status == 200 ]]
    done
    echo third >keys
    kill -HUP "$pid"
    until grep -q event=reload log; do sleep 0.05; done
    refused 401 null / '{"prompt":"x"}' -H 'Authorization: Bearer first-key'
    : >keys
    kill -HUP "$pid" # a bad file changes nothing
    until grep -q event=error log; do sleep 0.05; done
    ask / '{"prompt":"x","max_new_tokens":1}' -H 'Authorization: Bearer third'
    [[ $status == 200 ]]
}

# bats test_tags=san
@test "serve: a full queue says 429 and when to come again" {
    serve --max-concurrent 1 --max-queue 0
    curl -sSN -o long -d '{"prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true}' "$url/v1/completions" &
    until [[ -s long ]]; do sleep 0.01; done
    refused 429 null /v1/completions '{"prompt":"x"}' -D headers || {
        grep -q DONE long && skip "the long answer was too short"
    }
    [[ $(retry_after) == 1 ]] || fail "$(cat headers)" # nothing has ended yet
    wait $!
    grep -q DONE long
    still_answers
}
retry_after() { tr -d '\r' <headers | sed -n 's/^retry-after: //Ip'; }

@test "serve: Retry-After grows with the queue" {
    serve --max-concurrent 1 --max-queue 9
    local long='{"prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true}' i value asked=()
    # One that takes two seconds at least: so long each of those that wait is thought to take.
    curl -sSN -o long -d "$long" "$url/v1/completions" &
    until [[ -s long ]]; do sleep 0.01; done
    kill -STOP "$pid"
    sleep 2
    kill -CONT "$pid"
    wait $!
    until grep -q event=request log; do sleep 0.01; done
    (($(sed -nE 's/.*event=request .* ms=([0-9]+)\..*/\1/p' log) >= 2000)) || skip "the long answer was too short"
    kill -STOP "$pid" # so that they come all at once
    for i in {1..20}; do
        curl -sS -o /dev/null -D "headers$i" -d "${long/1000/300}" "$url/v1/completions" &
        asked+=($!)
    done
    sleep 0.5
    kill -CONT "$pid"
    wait "${asked[@]}"
    value=$(cat headers? headers?? | tr -d '\r' | sed -n 's/^retry-after: //Ip' | sort -n | tail -n 1)
    ((value >= 9 && value <= 60)) || fail "$(cat headers?)"
}

# bats test_tags=san
@test "serve: pages of other sites may not ask unless they are allowed to" {
    serve --allow-origin https://chat.example
    refused 403 null / '{"prompt":"x"}' -H 'Origin: https://evil.example'
    refused 403 null / '{"prompt":"x"}' -H 'Origin: null'
    refused 403 null / '{"prompt":"x"}' -H 'Origin: http://evil.example' -H 'Host: evil.example' # its name leads here
    ask / '{"prompt":"x","max_new_tokens":1}' -H "Origin: http://localhost:$port" -H "Host: localhost:$port"
    [[ $status == 200 ]]
    ask / '{"prompt":"x","max_new_tokens":1}' -H "Origin: $url"
    [[ $status == 200 ]]
    ask / '{"prompt":"x","max_new_tokens":1}' -H 'Origin: https://chat.example' -D headers
    [[ $status == 200 ]]
    grep -qi '^access-control-allow-origin: https://chat.example' headers
    [[ $(curl -sS -X OPTIONS -H 'Origin: https://chat.example' -D headers -o answer -w '%{http_code}' "$url/v1/completions") == 204 ]]
    grep -qi '^access-control-allow-headers: .*authorization' headers
    # The openai package in a browser sends headers of its own.
    curl -sS -X OPTIONS -H 'Origin: https://chat.example' -H 'Access-Control-Request-Method: POST' -D headers -o answer \
        -H 'Access-Control-Request-Headers: authorization,x-stainless-os' "$url/v1/completions"
    grep -qi '^access-control-allow-headers: authorization,x-stainless-os' headers
    curl -sS -X OPTIONS -H 'Origin: https://evil.example' -H 'Access-Control-Request-Headers: x-a' -D headers -o answer "$url/v1/completions"
    if grep -qi '^access-control' headers; then fail "$(cat headers)"; fi
}

# bats test_tags=san
@test "serve: under load every answer is what it is alone" {
    serve --max-concurrent 12
    run -0 python3 "$REPO/test/cli/serve_load.py" "$url" "$DEMO_SRC/held-out.txt" 60 12
}

# bats test_tags=slow
@test "serve: 1,000 requests, a third of them left, a third with stop texts" {
    serve --max-concurrent 32
    run -0 python3 "$REPO/test/cli/serve_load.py" "$url" "$DEMO_SRC/held-out.txt" 1000 48
    # The KV cache for two sequences: answers give their places back and come back.
    kill "$pid"
    ended 0
    rm ./*.pid url
    serve --max-concurrent 32 --kv-tokens 2048
    run -0 python3 "$REPO/test/cli/serve_load.py" "$url" "$DEMO_SRC/held-out.txt" 300 32 7
}

# A folder with Python packages, made once per build folder.
python_with() { # PACKAGE...
    local dir=$COLIBRI_BUILD/venv-$1
    [[ -x $dir/bin/python3 ]] || python3 -m venv "$dir" || return
    "$dir/bin/python3" -c "import $1" 2>/dev/null || "$dir/bin/pip" install -q "$@" >&2 || return
    echo "$dir/bin/python3"
}

# bats test_tags=slow
@test "serve: the official openai package works as it comes" {
    python=$(python_with openai) || skip "pip cannot get openai here"
    chat_model
    echo key >keys
    serve --api-key-file keys
    run -0 "$python" "$REPO/test/cli/serve_openai.py" "$url" key
    has "$output" "ok side_by_side"
}

# bats test_tags=slow
@test "serve: the page streams an answer in a browser" {
    browser=$(command -v chromium || command -v google-chrome) || skip "no chromium here"
    python=$(python_with playwright) || skip "pip cannot get playwright here"
    serve
    run "$python" "$REPO/test/cli/serve_page.py" "$url" "$browser" 'The capital of France is' \
        "$(colibri-run -n 12 -p 'The capital of France is' "$model")"
    ((status == 0)) || fail "$output"
}

# -- the end ---------------------------------------------------------------------------------------

# bats test_tags=san
@test "serve: SIGTERM lets answers end and refuses new ones" {
    serve
    curl -sSN -o long -d '{"prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true}' "$url/v1/completions" &
    until [[ -s long ]]; do sleep 0.01; done
    kill -TERM "$pid"
    ended 0
    wait $!
    grep -q 'data: \[DONE\]' long
    [[ $(sed -n 's/^data: {/{/p' long | jq -s '[.[].choices[].finish_reason // empty] | .[0]') == '"length"' ]]
    run -7 curl -sS "$url/health"
    grep -q event=drain log
    grep -q event=end log
}

@test "serve: a second signal ends it at once, and --drain-timeout those who take too long" {
    serve --max-concurrent 128
    curl -sSN -o long -d '{"prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true,"n":100}' "$url/v1/completions" 2>error &
    until [[ -s long ]]; do sleep 0.01; done
    kill -TERM "$pid"
    until grep -q event=drain log; do sleep 0.01; done
    kill -TERM "$pid"
    ended 143
    rm -f long ./*.pid
    serve --drain-timeout 1 --max-concurrent 128
    curl -sSN -o long -d '{"prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true,"n":100}' "$url/v1/completions" &
    until [[ -s long ]]; do sleep 0.01; done
    kill -INT "$pid"
    ended 0
    wait $!
    grep -q shutting_down long || grep -q DONE long
}

@test "serve: an answer that takes too long" {
    serve --request-timeout 1 --max-concurrent 128
    refused 504 null /v1/completions '{"prompt":"x","max_tokens":1000,"ignore_eos":true,"n":100}'
    ask /v1/completions '{"prompt":"x","max_tokens":1000,"ignore_eos":true,"n":100,"stream":true}' -N
    has "$answer" '{"error":' '"code":"timeout"'
    still_answers
}

@test "serve: a stream that has nothing to say shows that it is alive" {
    serve --ping 1 --max-concurrent 1
    # So many before it that its turn does not come in a second.
    local others=()
    for _ in {1..100}; do
        curl -sS -o first -d '{"prompt":"x","max_tokens":1000,"ignore_eos":true}' "$url/v1/completions" 2>error &
        others+=($!)
    done
    until (($(curl -sS "$url/metrics" | sed -n 's/^colibri_requests_active //p') > 60)); do sleep 0.01; done
    curl -sSN -D headers -o second -d '{"prompt":"The capital of France is","max_tokens":3,"temperature":0,"stream":true}' "$url/v1/completions" &
    local other=$!
    until [[ -s second ]]; do sleep 0.05; done
    [[ $(head -n 1 second) == ": it goes on" ]] || fail "$(cat second)"
    kill "${others[@]}" || true
    wait $other
    grep -qi '^content-type: text/event-stream' headers
    grep -q 'data: \[DONE\]' second
    text=$(sed -n 's/^data: {/{/p' second | jq -sj '[.[].choices[].text] | add')
    ask /v1/completions '{"prompt":"The capital of France is","max_tokens":3,"temperature":0}'
    [[ $(jq -j '.choices[0].text' answer) == "$text" ]]
}

# bats test_tags=release
@test "serve: a model file that is removed does not matter; one that is cut ends it with a message" {
    cp "$model" own.bin
    serve_model=own.bin serve
    rm own.bin
    still_answers
    kill "$pid"
    ended 0
    rm ./*.pid
    cp "$model" own.bin
    serve_model=own.bin serve
    : >own.bin
    run curl -sS -d '{"prompt":"x"}' "$url/"
    ended 135 # SIGBUS
    rm ./*.pid
    has "$(cat log)" "own.bin: byte " "cannot be read any more"
}

# -- options ---------------------------------------------------------------------------------------

@test "serve: options reach the engine" {
    serve --host ::1 --model-name mine --ctx 300 --kv-tokens 640 --kv-dtype int8 --experts-per-token 1 -t 2 --cpu scalar \
        --backend auto --device 1 --gpu-memory 1G --gpu-experts auto --gpu-dense own --attention own --verify --numa off --json --profile-every 2 -v || skip "no IPv6 here"
    [[ $url == "http://[::1]:"* ]]
    jq -se '.[0] | .event == "start" and .context == 300 and .kv_tokens == 640 and .kv_dtype == "int8" and
        (.device | contains("scalar")) and (.note | endswith("without effect: --device, --gpu-memory, --gpu-experts, --gpu-dense, --attention"))' log
    ask /v1/completions '{"prompt":"x","model":"mine","max_tokens":2}'
    ask /v1/completions '{"prompt":"x","model":"mine","max_tokens":2}'
    [[ $status == 200 ]]
    refused 400 max_tokens /v1/completions '{"prompt":"x","max_tokens":1000,"n":3}' || has "$answer" 640
    jq -se 'map(select(.event == "profile")) | length == 1 and .[0].Gate >= 0 and .[0].Total > 0' log
    jq -se 'map(select(.event == "warning")) == []' log
    kill "$pid"
    ended 0
    rm ./*.pid
    serve --kv-tokens 100000000 --max-concurrent 2 --ctx 100
    grep -q 'event=start .* kv_tokens=256 ' log
    grep -q 'event=warning what="--kv-tokens 100000000 is more than 2 answers of 100 tokens need: it is 256"' log || fail "$(cat log)"
    kill "$pid"
    ended 0
    rm ./*.pid
    serve -q --memory 100M --max-queue 5
    [[ ! -s log ]]
    still_answers
    kill "$pid"
    ended 0
    [[ ! -s log ]]
}

@test "serve: what cannot start says why" {
    run_err 3 colibri-serve --port 0 nowhere.bin
    has "$message" nowhere.bin
    run_err 2 colibri-serve --port 70000 "$model"
    run_err 2 colibri-serve --header-limit 5 "$model"
    run_err 2 colibri-serve --body-limit 2G "$model"
    run_err 2 colibri-serve
    run_err 3 colibri-serve --port 0 --api-key-file nowhere "$model"
    has "$message" nowhere
    : >keys
    run_err 3 colibri-serve --port 0 --api-key-file keys "$model"
    printf 'good\nba d\n' >keys
    run_err 3 colibri-serve --port 0 --api-key-file keys "$model"
    has "$message" "keys: line 2"
    serve
    run -1 --separate-stderr colibri-serve --port "$port" "$model"
    has "$stderr" "port $port" "in use"
    run -2 --separate-stderr colibri-serve --port 0 --host no.such.host.invalid "$model"
    has "$stderr" no.such.host.invalid
    [[ ! -e /dev/full ]] || run -4 bash -c 'colibri-serve --port 0 -q "$1" 2>&1 >/dev/full' - "$model"
    [[ ! -e /dev/full || ( $output == *"standard output: No space left"* && ${#lines[@]} == 1 ) ]]
}

# bats test_tags=release
@test "serve: memory that may not be locked" { # sanitizers lock nothing
    limited colibri-serve --mlock --port 0 "$model"
    has "$message" lock
}

@test "serve: examples of the man page" {
    serve
    n=0
    while IFS= read -r command; do
        n=$((n + 1))
        run -0 --separate-stderr bash -o pipefail -c "${command//localhost:8080/localhost:$port}"
        [[ -n $output ]]
    done < <(sed -nE '/^\.Sh EXAMPLES/,/^\.Sh [^E]/s/^(\.Dl )?\$ (curl.*)/\2/p' "$REPO/man/colibri-serve.1" | sed 's/\\&//g; s/\\e/\\/g; s/\\(dq/"/g')
    ((n >= 2))
}

#!/usr/bin/env bats
# What `make bench` runs: with a few tokens of the bundled model, and with stand-ins for the other engines. Asserts what
# is in the table, never a speed.
load helper

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    export PYTHONDONTWRITEBYTECODE=1
    bench=("$REPO/test/bench/bench.py" --build "$COLIBRI_BUILD" --dir box --tiny)
    printf 'before\n<!-- make bench: table -->\n\n<!-- end -->\nafter\n' >doc.md
    sed s/table/summary/ doc.md >readme.md
}
# A python3 that answers for llama.cpp, and a llama-bench.
stand_ins() {
    mkdir -p box/venv/bin ik
    cat >box/venv/bin/python3 <<'END'
#!/bin/sh
case $2 in
make | quantize) : >"$4" ;;
serve) while read -r line; do
    echo "$line" >>requests
    echo '{"version": "1.2", "prefill": 20, "decode": 10, "kl": 0.5, "same_choice": 0.9}'
done ;;
esac
END
    cat >ik/llama-bench <<'END'
#!/bin/sh
echo "$*" >>ik-calls
echo '[{"build_commit": "abc", "n_gen": 0, "samples_ts": [1, 40]}, {"build_commit": "abc", "n_gen": 3, "samples_ts": [5, 4]}]'
END
    chmod +x box/venv/bin/python3 ik/llama-bench
    python3 - "$REPO/test/bench" >box/venv/complete <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import workshop
print(f"{workshop.PEER} {workshop.PEER_CMAKE}", end="")
END
}
rows() { grep '^| ' "$1" | cut -d'|' -f2- | tr -s ' '; }

@test "make bench: Colibri alone gives a table with every line about this machine" {
    run -0 --separate-stderr "${bench[@]}" --no-peer --rounds 2
    for line in "**this machine**" "decode, all int4" "16 sequences decoding" "prefill of 512, int8: products" \
        "experts in prefill of 512, int4" "attention in prefill of 4096" "over one: decode" "prefill of 4096, int8" \
        "decode at 4096 and at 64 tokens" "start to first token" "conversion of cached" "memory of conversion" \
        "**quality**" "KL of all int4 from f32"; do
        has "$output" "$line"
    done
    has "$output" "Colibri $(colibri-run --version | head -n 1 | cut -d' ' -f2)" "make bench ROUNDS=2" "load "
    [[ $output != *llama.cpp* ]]
    has "$stderr" "round 1/2  long" "round 2/2  int8 " "100 %"
    [[ $stderr != *"round 2/2  convert"* ]]
    [[ ! -e box/converted.tmp && ! -e box/venv ]]
}

@test "make bench: other engines stand beside, and ratios are those of the figures" {
    stand_ins
    run -0 --separate-stderr "${bench[@]}" --ik ik --rounds 1 --only 'int8,4bit,quality,demo*' \
        --out doc.md --out readme.md
    has "$output" "llama.cpp 1.2" "ik_llama.cpp abc (\`-rtr 1 -fmoe 1 -fa 1\`)" "Q8_0 0.5000" \
        "decode of the bundled model"
    rows doc.md | awk -F'|' '
        /decode, int8 and Q8_0/ || /prefill of 512, all int4 and Q4_0/ {
            n++; split($2, ours, " "); split($3, theirs, " "); d = ours[1] / theirs[1] / $4 - 1
            if (d > 0.02 || d < -0.02) { print "wrong: " $0; bad = 1 }
        }
        END { exit bad || n != 4 }'
    [[ $(rows doc.md | awk -F'|' '/decode, int8 and Q8_0/ { print $3 + 0 }' | xargs) == "10 5" ]]
    [[ $(head -n 1 doc.md) == before && $(tail -n 1 doc.md) == after ]]
    [[ $(rows readme.md | awk -F'|' '{ print NF }' | sort -u) == 5 ]]
    has "$(cat readme.md)" "**llama.cpp" "**ik_llama.cpp**" "decode, int8 and Q8_0"
    # both engines were asked for the same
    has "$(cat ik-calls)" "-p 12 -n 3" "random-Q4_0.gguf" "-rtr 1"
    jq -s -e 'map(select(.do == "speed" and (.file | endswith("random-Q8_0.gguf")))) |
        length == 1 and .[0].prompt == 12 and .[0].decode == 3' requests
    # every position of every document has its row
    jq -s -e --argjson bytes "$(stat -c %s box/logits.f32)" 'map(select(.do == "divergence")) |
        length == 2 and (.[0].documents | map(length) | add * 2048 * 4) == $bytes' requests
}

@test "make bench: a second table replaces the first" {
    for _ in 1 2; do
        "${bench[@]}" --no-peer --rounds 1 --only start --out doc.md
    done >/dev/null
    [[ $(grep -c 'start to first token' doc.md) == 1 ]]
    [[ $(head -n 1 doc.md) == before && $(tail -n 1 doc.md) == after && $(wc -l <doc.md) -lt 20 ]]
    echo plain >plain.md
    run -1 --separate-stderr "${bench[@]}" --no-peer --rounds 1 --only start --out plain.md
    has "$stderr" "bench: plain.md: no line"
    [[ $(cat plain.md) == plain ]]
}

@test "make bench: an interrupted run goes on, other programs start anew" {
    "${bench[@]}" --no-peer --rounds 2 --only 'int8,start' >/dev/null
    sed -i '$d' box/samples.jsonl
    printf '{"case": "sta' >>box/samples.jsonl
    run -0 --separate-stderr "${bench[@]}" --no-peer --rounds 2 --only 'int8,start'
    has "$stderr" "going on: 3 of 4" "100 %"
    [[ $(grep -c ' round ' <<<"$stderr") == 1 ]]
    jq -e . box/samples.jsonl >/dev/null
    sed -i '1s/"program": "/&x/; $d' box/samples.jsonl
    run -0 --separate-stderr "${bench[@]}" --no-peer --rounds 2 --only 'int8,start'
    [[ $(grep -c ' round ' <<<"$stderr") == 4 ]]
}

@test "make bench: the order alternates" {
    stand_ins
    run -0 --separate-stderr "${bench[@]}" --rounds 2 --only demo
    order=$(sed -n 's/.* round .*demo *\([^ ]*\) .*/\1/p' <<<"$stderr" | xargs)
    [[ $order == "Colibri llama.cpp llama.cpp Colibri" ]]
}

@test "make bench: what fails says so" {
    run -2 "${bench[@]}" --only nothing
    has "$output" "--only nothing: no such case"
    stand_ins
    sed -i 's/echo .{"version.*/exit 1/' box/venv/bin/python3
    run -1 --separate-stderr "${bench[@]}" --rounds 1 --only demo
    has "$stderr" "bench: the process of llama.cpp has ended"
    sed -i 's/exit 1/echo "{\\"error\\": \\"no room\\"}"/' box/venv/bin/python3
    run -1 --separate-stderr "${bench[@]}" --rounds 1 --only demo
    has "$stderr" "bench: no room"
    run -1 --separate-stderr "${bench[@]}" --no-peer --ik nowhere --rounds 1 --only int8
    has "$stderr" "bench: " "nowhere"
    run -1 --separate-stderr "${bench[@]}" --no-peer --cpu abacus --rounds 1 --only int8
    has "$stderr" "colibri-bench" "abacus"
}

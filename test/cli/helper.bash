# What every Bats file loads first: `load helper`.
# shellcheck disable=SC2034,SC2154 # used by the files that load this; set by bats
bats_require_minimum_version 1.5.0

# By hand (`bats test/cli/run.bats`) the defaults are the build folder of the repository.
REPO=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
FAMILIES=$REPO/test/data/families
: "${COLIBRI_BUILD:=$REPO/build}"
: "${COLIBRI_TEST_BIN:=$COLIBRI_BUILD/bin}"
: "${COLIBRI_TEST_TMP:=$BATS_RUN_TMPDIR}"
PATH=$COLIBRI_TEST_BIN:$PATH
export REPO COLIBRI_BUILD COLIBRI_TEST_TMP PATH LC_ALL=C.UTF-8

DEMO_SRC=$REPO/examples/demo-model
REFERENCE=$DEMO_SRC/reference.json

# Converted models, made once per run by whoever needs one first; others wait. `demo int8` prints the path:
#   model=$(demo f32)
# Words behind the dtype are further options of colibri-convert.
demo() {
    local name=demo-$* out
    out=$COLIBRI_TEST_TMP/${name// /_}.bin
    (
        flock 9
        [[ -e $out ]] || colibri-convert -q --dtype "$@" "$DEMO_SRC" -o "$out" >&2
    ) 9>>"$COLIBRI_TEST_TMP/.lock-${name// /_}" || return
    echo "$out"
}
COLIBRI_TEST_DEMO=$COLIBRI_TEST_TMP/demo-int8.bin    # after `demo int8`
COLIBRI_TEST_DEMO_F32=$COLIBRI_TEST_TMP/demo-f32.bin # after `demo f32`
need_demo() { # in setup(): both paths above exist afterwards
    demo int8 >/dev/null && demo f32 >/dev/null
}

# run_err STATUS COMMAND...: it must fail with exactly this status, say one thing on stderr (one line; two for a
# usage error, the second one names --help) and nothing on stdout. The message is in $message.
run_err() {
    local want=$1
    shift
    run "-$want" --separate-stderr "$@"
    [[ -z $output ]] || fail "stdout should be empty: $output"
    message=${stderr_lines[0]}
    local lines=1
    ((want != 2)) || lines=2
    ((${#stderr_lines[@]} <= lines)) || fail "more than one message: $stderr"
    [[ -n $message ]] || fail "no message"
}
# As run_err, with status 4: the command by a user who may lock 64 KB of memory.
limited() {
    local as=()
    chmod a+rx "$COLIBRI_TEST_TMP" "$BATS_RUN_TMPDIR" "$BATS_TEST_TMPDIR"
    ((EUID != 0)) || as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    "${as[@]}" "$1" --version >/dev/null 2>&1 || skip "another user cannot run anything here"
    # shellcheck disable=SC2016 # $@ is for the inner shell
    run_err 4 "${as[@]}" bash -c 'ulimit -l 64; exec "$@"' - "$@"
}
fail() {
    echo "$*" >&2
    return 1
}
# has TEXT PART...: each part occurs.
has() {
    local text=$1 part
    shift
    for part; do
        [[ $text == *"$part"* ]] || fail "'$part' is not in: $text" || return
    done
}
# A folder holds exactly these entries (hidden ones count): nothing half-written stays behind. What bats itself puts
# into its folders does not count.
holds_only() {
    local dir=$1 found
    shift
    found=$(cd "$dir" && find . -mindepth 1 -maxdepth 1 ! -name 'separate-stderr-*' -printf '%f\n' | sort)
    (($# == 0)) && [[ -z $found ]] && return
    [[ $found == "$(printf '%s\n' "$@" | sort)" ]] || fail "in $dir: $found"
}

# mixtral, whose config.json has other names; makes own/ and own.json
own_architecture() {
    cp -r "$FAMILIES/mixtral" own
    jq '.arch = "mine" | .width = .hidden_size | del(.hidden_size, .model_type)' "$FAMILIES/mixtral/config.json" >own/config.json
    cat >own.json <<'END'
{"name": "mine",
 "config": {"arch": {"equals": "mine"}, "width": "hidden_size", "intermediate_size": "expert_size"},
 "descriptor": {"rope": "half", "router": "softmax_topk", "topk_normalise": true},
 "tensors": {"model.layers.#.block_sparse_moe.gate.weight": "router",
             "model.layers.#.block_sparse_moe.experts.#.w1.weight": "expert.gate",
             "model.layers.#.block_sparse_moe.experts.#.w3.weight": "expert.up",
             "model.layers.#.block_sparse_moe.experts.#.w2.weight": "expert.down"}}
END
}

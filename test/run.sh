#!/usr/bin/env bash
# Runs suites (test/README.md), as many at a time as there are cores, and adds up their TAP.
# usage: test/run.sh --build DIR [--full] [--only GLOB] GROUP...
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=build full='' only='*' groups=()
while (($#)); do
    case $1 in
    --build) build=$2; shift ;;
    --only) only=$2; shift ;;
    --full) full=1 ;;
    *) groups+=("$1") ;;
    esac
    shift
done
mkdir -p "$build"
COLIBRI_BUILD=$(cd "$build" && pwd)
COLIBRI_SAN_BUILD=$COLIBRI_BUILD/san
COLIBRI_TEST_TMP=$(mktemp -d "${TMPDIR:-/tmp}/colibri-test.XXXXXX")
COLIBRI_TEST_FULL=$full
export COLIBRI_BUILD COLIBRI_SAN_BUILD COLIBRI_TEST_TMP COLIBRI_TEST_FULL
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:exitcode=99:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=99
export TSAN_OPTIONS=halt_on_error=1:exitcode=99
log=$COLIBRI_BUILD/test-log
rm -rf "$log" && mkdir -p "$log"

finish() {
    trap - EXIT INT TERM
    local running
    running=$(jobs -pr)
    # shellcheck disable=SC2086
    [[ -z $running ]] || kill $running 2>/dev/null
    rm -rf "$COLIBRI_TEST_TMP"
}
trap finish EXIT
trap 'finish; exit 130' INT TERM

# -- which suites: "name|build|command" ----------------------------------------
suites=()
add() { # NAME BUILD COMMAND...
    # shellcheck disable=SC2053
    [[ $1 == $only ]] && suites+=("$1|$2|${*:3}")
}
binaries() { # GROUP BUILD WRAPPER
    local f stem
    for f in test/unit/test_*.c test/kernel/check_*.c; do
        [[ -e $f ]] || continue
        stem=${f#test/} stem=${stem%.c}
        add "$1/${stem#*/}" "$2" "$3 $2/test/$stem"
    done
}
bats_files() { # GROUP BUILD FILTER
    local f name
    for f in test/cli/*.bats; do
        [[ -e $f ]] || continue
        name=${f##*/}
        [[ $3 != *' san' ]] || grep -q 'test_tags=.*san' "$f" || continue
        add "$1/${name%.bats}" "$2" "bats --tap $3 $f"
    done
}
scripts() { # GROUP
    local f
    for f in test/"$1"/*.sh test/"$1"/*.py; do
        [[ -x $f ]] && add "$1/$(basename "${f%.*}")" "$COLIBRI_BUILD" "$f"
    done
}
for g in "${groups[@]}"; do
    case $g in
    unit) binaries unit "$COLIBRI_BUILD" '' ;;
    san)
        binaries san "$COLIBRI_SAN_BUILD" ''
        [[ -n $full ]] || bats_files san-cli "$COLIBRI_SAN_BUILD" '--filter-tags san' ;;
    cuda-emu)
        for f in test/cuda-emu/test_*.c*; do
            stem=${f##*/} stem=${stem%.c*}
            add "cuda-emu/$stem" "$COLIBRI_SAN_BUILD" "$COLIBRI_SAN_BUILD/test/cuda-emu/$stem"
            [[ -z $full && $f != *.cu ]] || # in full: kernels as the host side calls them
                add "cuda-emu/$stem-race" "$COLIBRI_BUILD" "$COLIBRI_BUILD/race/test/cuda-emu/$stem"
        done
        add cuda-emu/programs "$COLIBRI_SAN_BUILD" \
            "bats --tap $([[ -n $full ]] || echo '--filter-tags !slow') test/cuda-emu/programs.bats"
        add cuda-emu/golden "$COLIBRI_SAN_BUILD" test/cuda-emu/golden.py ;;
    # slow tools keep the short counts of mutations
    tsan)
        binaries tsan "$COLIBRI_BUILD/tsan" 'env COLIBRI_TEST_FULL='
        bats_files tsan-cli "$COLIBRI_BUILD/tsan" '--filter-tags san' ;;
    valgrind) binaries valgrind "$COLIBRI_BUILD" 'env COLIBRI_TEST_FULL= test/valgrind.sh' ;;
    aarch64)
        if lacks=$(test/aarch64_lacks.sh "$COLIBRI_BUILD"); then
            add aarch64/all "$COLIBRI_BUILD" "echo ok 1 aarch64 # skip $lacks"
        else
            binaries aarch64 "$COLIBRI_BUILD/aarch64" 'env COLIBRI_TEST_FULL= test/qemu.sh'
            scripts aarch64
        fi ;;
    cli) # a test that the sanitised programs take as well is run by them only, if they are to run
        case $full,$only,${groups[*]} in
        1,*) bats_files cli "$COLIBRI_BUILD" '' ;;
        ,\*,*san*) bats_files cli "$COLIBRI_BUILD" '--filter-tags !slow,!san' ;;
        *) bats_files cli "$COLIBRI_BUILD" '--filter-tags !slow' ;;
        esac ;;
    san-cli) bats_files san-cli "$COLIBRI_SAN_BUILD" '--filter-tags !slow,!release' ;;
    *) scripts "$g" ;;
    esac
done

# -- order -----------------------------------------------------------------------
# The longest first, so that none is left alone at the end: by the seconds of the last run here, or else by these.
known="$COLIBRI_BUILD/test-seconds"
usual='cuda-emu-programs 60
san-cli-colibri-serve 90
cli-colibri-serve 50
cli-colibri-run 45
san-cli-colibri-run 32
cuda-emu-golden 30
san-test_same_bits 30
san-test_scheduler 26
cli-make-bench 26
cli-bench 24'
sorted() {
    printf '%s\n' "${suites[@]}" | awk -F'|' -v usual="$usual" -v known="$known" '
        BEGIN {
            for (n = split(usual, line, "\n"); n; n--) { split(line[n], w, " "); sec[w[1]] = w[2] }
            while ((getline < known) > 0) { split($0, w, " "); sec[w[1]] = w[2] }
        }
        { name = $1; gsub("/", "-", name); printf "%.1f %s\n", sec[name], $0 }' | sort -s -k1,1rn | cut -d' ' -f2-
}
((${#suites[@]} == 0)) || mapfile -t suites < <(sorted)

# -- run -----------------------------------------------------------------------
# A suite that hangs fails; one that was started with signals ignored (nohup) gets them back.
limit=${COLIBRI_TEST_LIMIT:-$([[ -n $full ]] && echo 3600 || echo 900)}

# Writes the output, then "passed failed skipped seconds" as the last line of NAME.sum.
run_suite() {
    local name build cmd out start status=0
    IFS='|' read -r name build cmd <<<"$1"
    out=$log/${name//\//-}
    start=$EPOCHREALTIME
    # shellcheck disable=SC2086
    PATH="$build/bin:$PATH" COLIBRI_TEST_BIN=$build/bin timeout -k 10 "$limit" \
        env --default-signal $cmd >"$out.tap" 2>"$out.err" </dev/null &
    # timeout hands a signal on to the whole suite
    # shellcheck disable=SC2064
    trap "kill $! 2>/dev/null; exit 130" TERM
    wait $! || status=$?
    awk -v status="$status" -v sec="$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" '
        /^1\.\.[0-9]+/ { plan = substr($1, 4); planned = 1 }
        /^ok/          { if (tolower($0) ~ /# skip/) skip++; else pass++ }
        /^not ok/      { fail++ }
        END {
            if (status == 124 || status == 137) {
                print "not ok - stopped after the time limit" > "/dev/stderr"; fail++
            } else if (!planned && !pass && !fail && !skip) { if (status) fail = 1; else pass = 1 }
            else if (status && !fail) { print "not ok - exit status " status > "/dev/stderr"; fail = 1 }
            if (planned && plan != pass + fail + skip) {
                print "not ok - " plan " tests were announced" > "/dev/stderr"; fail++
            }
            printf "%d %d %d %.1f\n", pass, fail, skip, sec
        }' "$out.tap" >"$out.sum" 2>>"$out.err"
    show "$name" "$out"
}
show() {
    local pass fail skip sec
    read -r pass fail skip sec <"$2.sum"
    {
        printf '%-7s %-32s %5s passed' "$( ((fail)) && echo FAILED || echo ok)" "$1" "$pass"
        ((fail)) && printf ', %d failed' "$fail"
        ((skip)) && printf ', %d skipped' "$skip"
        printf '  (%s s)\n' "$sec"
        if [[ -n ${V:-} ]]; then
            cat "$2.tap" "$2.err"
        elif ((fail)); then
            if grep -q '^not ok' "$2.tap"; then
                awk '/^not ok/ { on = 1 } /^ok/ { on = 0 } on' "$2.tap" | head -n 60
            else
                tail -n 30 "$2.tap"
            fi
            tail -n 30 "$2.err"
        fi
    } >"$2.txt"
    cat "$2.txt" # in one write, so that suites do not mix
}
slots=$(nproc 2>/dev/null || echo 1)
for s in "${suites[@]}"; do
    while (($(jobs -pr | wc -l) >= slots)); do
        wait -n
    done
    run_suite "$s" &
done
wait

for sum in "$log"/*.sum; do
    [[ ! -e $sum ]] || echo "$(basename "$sum" .sum) $(awk '{ print $4 }' "$sum")"
done | cat "$known" - 2>/dev/null | awk '{ sec[$1] = $2 } END { for (n in sec) print n, sec[n] }' >"$known.new"
mv "$known.new" "$known"

# -- sum -------------------------------------------------------------------------
cat "$log"/*.sum 2>/dev/null | awk -v suites="${#suites[@]}" '
    { pass += $1; fail += $2; skip += $3; done++ }
    END {
        if (skip) printf "%d skipped\n", skip
        if (done != suites) { print "a suite did not finish"; fail++ }
        printf "%d passed, %d failed\n", pass, fail
        exit fail > 0 || !pass
    }'

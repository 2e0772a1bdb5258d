#!/usr/bin/env bash
# Scripts pass shellcheck; Python files compile.
set -uo pipefail
. test/lint/tap.bash
# 1091: sourced files are checked on their own; 2016: '$1' for another shell or awk is meant; 2030, 2031: every bats
# test is a subshell; 2154: variables that bats sets.
allow=SC1091,SC2016,SC2030,SC2031,SC2154
compile='import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")'

while read -r f; do
    case $f in
    *.py) tap_run "$f" python3 -c "$compile" "$f" ;;
    *.bats) tap_run "$f" shellcheck -s bats -e $allow "$f" ;;
    *.bash) tap_run "$f" shellcheck -s bash -e $allow "$f" ;;
    *) tap_run "$f" shellcheck -e $allow "$f" ;;
    esac
done < <(find tools test examples .ci -name '*.sh' -o -name '*.bash' -o -name '*.bats' -o -name '*.py' -o -path .ci/run | sort)
tap_end

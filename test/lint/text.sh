#!/usr/bin/env bash
# White space, width, and words that must not occur.
set -uo pipefail
export LC_ALL=C.UTF-8
. test/lint/tap.bash

tree() { find lib kernels cmd test examples tools doc man .ci "$@" 2>/dev/null | sort; }
sources() { tree -name '*.[ch]' -o -name '*.inc' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh'; }
texts() {
    tree -type f \( -name '*.[ch1-8]' -o -name '*.inc' -o -name '*.cc' -o -name '*.cu*' -o -name '*.sh' -o -name '*.bash' -o -name '*.bats' -o -name '*.py' -o -name '*.md' -o -path .ci/run \)
    echo Makefile
    [[ ! -e README.md ]] || echo README.md
}
in_sources() { sources | xargs grep -nP "$@"; }
# The library prints nothing, ends no process and looks at nothing but its arguments; the places that may are named.
library_calls() {
    find lib kernels -name '*.c' ! -path 'lib/cli/*' | sort |
        xargs grep -nP '(?<![\w.>])(printf|puts|putchar|perror|exit|abort|_exit|getenv|system|popen|signal|sigaction)\s*\(|\b(stdout|stderr)\b' |
        grep -vE '^lib/base/mem\.c:.*(abort|stderr)|^lib/api/api_infer\.c:.*stderr,|^lib/[a-z]+/[a-z_]+\.c:.*getenv\("COLIBRI_MEMORY_POOL_DISABLE"\)'
}
pattern='[.][.]/shar''ed|/wor''k/|/ro''ot/' # cut, so that this line does not match

tap_none "no tabs in C files" < <(in_sources '\t')
tap_none "no trailing white space" < <(texts | xargs grep -nE '[[:space:]]+$')
tap_none "C files have at most 100 columns" < <(in_sources '^.{101}')
tap_none "no function that cannot be used safely" < <(
    find lib kernels cmd examples -name '*.[ch]' | sort | xargs grep -nP '\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok|alloca)\s*\(')
tap_none "the library does not print, exit or look around" < <(library_calls)
tap_none "nothing is left for later without a word why" < <(in_sources '\b(TODO|FIXME|XXX|HACK)\b')
tap_none "no paths of one machine" < <(texts | xargs grep -nE "$pattern")
tap_end

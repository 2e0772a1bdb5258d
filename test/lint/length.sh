#!/bin/sh
# A function over 70 lines (of a kernel: 100) or a file over 600 fails. Tests and generated tables are excepted.
set -eu
tables='lib/token/unicode_tables.c'
find lib kernels cmd examples -name '*.[ch]' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' | sort | while read -r file; do
    case " $tables " in *" $file "*) continue ;; esac
    case $file in kernels/*) max=100 ;; *) max=70 ;; esac
    awk -v max_file=600 -v max_function=$max '
        /^[a-z].*\(/ { head = $0 }        # the last line at the margin that opens a parameter list
        /^\{/        { start = NR }
        /^\}/ && start {
            if (NR - start > max_function) {
                sub(/\(.*/, "", head); sub(/.*[ *]/, "", head)
                printf "%s:%d: %s has %d lines\n", FILENAME, start, head, NR - start
            }
            start = 0
        }
        END { if (NR > max_file) printf "%s: %d lines\n", FILENAME, NR }' "$file"
done | awk '
    { print "# " $0 }
    END { print (NR ? "not ok" : "ok") " 1 functions have at most 70 lines (kernels 100), files 600"; print "1..1" }'

#!/bin/sh
# One test program under valgrind, as one TAP line: only errors in the use of memory count. Whether its own tests pass is
# judged elsewhere; some cannot pass here, since valgrind does not emulate rounding modes.
log=$(mktemp)
valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite \
    "$1" >/dev/null 2>"$log"
status=$?
if [ $status -eq 99 ] || [ $status -gt 128 ]; then
    echo "not ok 1 $1"
    sed 's/^/# /' "$log" | head -n 60
else
    echo "ok 1 $1"
fi
rm -f "$log"
echo 1..1

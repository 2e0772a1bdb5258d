#!/usr/bin/env bash
# Man pages are clean mdoc, and each program's page has the sections that people look for.
set -uo pipefail
. test/lint/tap.bash
for m in man/*.[1-8]; do
    [[ -e $m ]] || continue
    tap_none "$m is clean mdoc" < <(groff -mdoc -ww -z -Tutf8 "$m" 2>&1)
    # mdoc takes such quotes for its own: \(dq is one that is seen
    tap_none "$m: quotes are seen" < <(grep -nE '^\.(Li|Dl|Ql|Cm|Pa) (.* )?"' "$m")
    [[ $m == *.1 ]] || continue
    for section in NAME SYNOPSIS DESCRIPTION OPTIONS 'EXIT STATUS' EXAMPLES 'SEE ALSO'; do
        tap_run "$m has $section" grep -qE "^\.Sh $section" "$m"
    done
done
tap_end

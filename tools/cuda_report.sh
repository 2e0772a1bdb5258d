#!/usr/bin/env bash
# From what ptxas said (-Xptxas -v): registers of every kernel and architecture. Fails when one of them spills registers
# or keeps variables in memory. usage: tools/cuda_report.sh LOG...
set -euo pipefail

cat "$@" | c++filt | awk '
    BEGIN { split("fp16 bf16 int8 int4 mxfp4", dtype, " ") } # enum clb_dtype, from f32 = 0 on
    /Compiling entry function/ {
        split($0, part, "\047")
        name = part[2]; arch = part[4]
        sub(/^void /, "", name); sub(/\([^()]*\)$/, "", name)
        if (match(name, /\(clb_dtype\)[0-9]/))
            name = substr(name, 1, RSTART - 1) dtype[substr(name, RSTART + RLENGTH - 1, 1)] substr(name, RSTART + RLENGTH)
        gsub(/\([a-z ]*\)/, "", name)
        if (!(name in seen)) { seen[name] = 1; order[++kernels] = name }
        if (!(arch in known)) { known[arch] = 1; archs[++n] = arch }
    }
    /bytes stack frame/ {
        if ($1 + $5 + $9 > 0) { printf "%s, %s: %s\n", name, arch, $0; bad++ }
        checked++
    }
    /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); used[name, arch] = substr($0, RSTART + 5, RLENGTH - 5) }
    END {
        printf "%-34s", "registers"
        for (a = 1; a <= n; a++) printf " %7s", archs[a]
        print ""
        for (k = 1; k <= kernels; k++) {
            printf "%-34s", order[k]
            for (a = 1; a <= n; a++) printf " %7s", used[order[k], archs[a]]
            print ""
        }
        printf "%d kernels, %d of them use memory for registers\n", checked, bad
        exit bad > 0 || !checked
    }'

#!/bin/sh
# Fails when a file includes a header from a layer it must not know about.
# The table is the rule: folder, then the folders it may include from.
set -eu
rules='
lib/base     lib/base
lib/format   lib/base lib/format
lib/token    lib/base lib/token
lib/chat     lib/base lib/token lib/chat
lib/import   lib/base lib/format lib/token lib/chat kernels lib/import
lib/backend  lib/base lib/format lib/backend
lib/model    lib/base lib/format lib/backend lib/model
lib/forward  lib/base lib/format lib/backend lib/model lib/forward
lib/sample   lib/base lib/sample
lib/session  lib/base lib/format lib/backend lib/model lib/token lib/forward lib/sample lib/session
lib/api      lib/colibri.h lib/base lib/format lib/backend lib/model lib/token lib/forward lib/sample lib/session lib/chat lib/api
lib/cli      lib/base lib/cli lib/colibri.h
kernels      lib/base lib/format lib/backend kernels
cmd          lib/base lib/cli lib/colibri.h cmd
cmd/colibri-bench lib/base lib/cli kernels lib/colibri.h cmd/colibri-bench
cmd/colibri-convert lib/base lib/cli lib/import lib/format lib/colibri.h cmd/colibri-convert
cmd/colibri-inspect lib/base lib/cli lib/format lib/import lib/token lib/chat lib/colibri.h cmd/colibri-inspect
'
grep -rEn --include='*.[ch]' --include='*.inc' --include='*.cu' --include='*.cuh' '^ *# *include "' lib kernels cmd |
awk -v rules="$rules" '
BEGIN {
    n = split(rules, line, "\n")
    for (i = 1; i <= n; i++) {
        m = split(line[i], w, " ")
        if (m) { layer[++layers] = w[1]; for (j = 2; j <= m; j++) ok[w[1], w[j]] = 1 }
    }
}
function layer_of(path,   i, best) {
    best = path
    for (i = 1; i <= layers; i++)
        if (index(path, layer[i] "/") == 1 && (best == path || length(layer[i]) > length(best)))
            best = layer[i]
    return best
}
{
    split($0, part, ":"); from = layer_of(part[1])
    match($0, /"[^"]*"/); header = substr($0, RSTART + 1, RLENGTH - 2)
    if (!((from, layer_of(header)) in ok)) {
        printf "%s:%s: %s may not include \"%s\"\n", part[1], part[2], from, header
        bad = 1
    }
}
END { exit bad }'

#!/usr/bin/env bash
# What ptxas said (-Xptxas -v) of every kernel and architecture: registers, static shared memory, constant memory, stack
# frame, spills; and the dynamic shared memory with which SOURCES launch it. Fails when a kernel spills registers or keeps
# variables in memory. usage: tools/cuda_report.sh SOURCES LOG... (SOURCES: the folder of the .cu files)
set -euo pipefail
sources=$1
shift

# launches: "KERNEL<tab>EXPRESSION" for every launch with dynamic shared memory; a variable is replaced by its value.
launches() {
    awk '
        # Argument n of the call whose text begins behind its "(": commas inside of brackets do not count.
        function argument(text, n,    i, c, depth, out) {
            for (i = 1; i <= length(text); i++) {
                c = substr(text, i, 1)
                depth += c ~ /[({[]/ ? 1 : c ~ /[])}]/ ? -1 : 0
                if (depth < 0 || (c == "," && !depth && --n == 0)) break
                if (n == 1 && !(c == "," && !depth)) out = out c
            }
            gsub(/^[ (]+|[ ]+$/, "", out)
            if (out !~ /\(/) sub(/\)$/, "", out)
            return out
        }
        function finish(    at, call, kernel, size, rest) {
            while (at = index(text, "CLB_LAUNCH(")) {
                text = substr(text, at + 11)
                kernel = argument(text, 1); size = argument(text, 4)
                sub(/<.*/, "", kernel)
                if (size ~ /^[a-z_]+$/ && match(all, "[ *]" size " = [^;]*;")) {
                    size = substr(all, RSTART, RLENGTH - 1); sub(/^[^=]*= /, "", size)
                }
                if (size != "0") print kernel "\t" size
            }
            text = all = ""
        }
        FNR == 1 { finish() }
        { sub(/^ +/, " "); text = text $0; all = text }
        END { finish() }' "$sources"/*.cu | sort -u
}

{ launches | sed 's/^/launch\t/'; cat "$@" | c++filt; } | awk '
    BEGIN {
        split("fp16 bf16 int8 int4 mxfp4", dtype, " ") # enum clb_dtype, from f32 = 0 on
        split("f16 int8", kv, " ")                     # enum clb_kv_dtype, likewise
        n_title = split("registers|static shared memory, bytes|constant memory, bytes|stack frame, bytes|spilled, bytes", title, "|")
    }
    function numbers(what, from) { # in words for people: the enum `what` with the names `from`
        if (match(name, "\\(" what "\\)[0-9]"))
            name = substr(name, 1, RSTART - 1) from[substr(name, RSTART + RLENGTH - 1, 1)] substr(name, RSTART + RLENGTH)
    }
    function before(word) { # the number in front of a word, 0 where there is none
        return match($0, "[0-9]+ (bytes )?" word) ? substr($0, RSTART) + 0 : 0
    }
    /^launch\t/ { split($0, part, "\t"); dynamic[++n_launch] = sprintf("%-34s %s", part[2], part[3]); next }
    /Compiling entry function/ {
        split($0, part, "\047")
        name = part[2]; arch = part[4]
        sub(/^void /, "", name); sub(/\([^()]*\)$/, "", name)
        numbers("clb_dtype", dtype); numbers("clb_kv_dtype", kv)
        gsub(/\([a-z ]*\)/, "", name)
        if (!(name in seen)) { seen[name] = 1; order[++kernels] = name }
        if (!(arch in known)) { known[arch] = 1; archs[++n] = arch }
    }
    /bytes stack frame/ {
        value[name, arch, 4] = before("stack frame"); value[name, arch, 5] = before("spill stores") + before("spill loads")
        if (value[name, arch, 4] + value[name, arch, 5] > 0) { printf "%s, %s: %s\n", name, arch, $0; bad++ }
        checked++
    }
    /Used [0-9]+ registers/ {
        value[name, arch, 1] = before("registers"); value[name, arch, 2] = before("smem"); value[name, arch, 3] = before("cmem")
    }
    END {
        for (t = 1; t <= n_title; t++) {
            printf "%-34s", title[t]
            for (a = 1; a <= n; a++) printf " %7s", archs[a]
            print ""
            zero = 0
            for (k = 1; k <= kernels; k++) {
                line = sprintf("%-34s", order[k]); sum = 0
                for (a = 1; a <= n; a++) { line = line sprintf(" %7d", value[order[k], archs[a], t]); sum += value[order[k], archs[a], t] }
                if (sum) print line; else zero++
            }
            if (zero) print zero == kernels ? "none" : "none in the other " zero
            print ""
        }
        print "dynamic shared memory, bytes"
        for (i = 1; i <= n_launch; i++) print dynamic[i]
        print ""
        printf "%d kernels, %d of them use memory for registers\n", checked, bad
        exit bad > 0 || !checked
    }'

#!/usr/bin/env bash
# Block kernels keep their sums in registers. gcc silently puts arrays of sums into memory when a bound is not a literal
# or a loop is not nested, which halves the speed and changes no result; so the assembly is searched for vectors on the
# stack. AVX2 has too few registers for the f32 sums of quantised matrices: they are there on purpose, four times each.
set -uo pipefail
. test/lint/tap.bash

flags=(-I. -D_GNU_SOURCE -std=c11 -O2 -fPIC -ffp-contract=off -fno-math-errno -mavx2 -mfma -mf16c)
wide=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)

# spills FILE ALLOWED FLAGS...: functions named <kind>_<R>x<T> with more than ALLOWED (an awk expression of t) vectors
# on the stack.
spills() {
    local file=$1 allowed=$2
    shift 2
    cc "${flags[@]}" "$@" -S -o - "$file" | awk '
        /^[a-z][a-z0-9_]*_[0-9a-z]+x[0-9]:/ { name = $1; t = substr(name, length(name) - 1, 1) }
        /^\t\.size/ { name = "" }
        name && /%[yz]mm/ && /\(%r[sb]p/ { count[name]++ }
        name { seen[name] = t }
        END {
            for (name in seen) { n++; t = seen[name]; if (count[name] + 0 > '"$allowed"') print name, count[name] }
            if (n < 6) print "only", n, "block kernels found"
        }'
}

[[ $(cc -dumpmachine) == x86_64* ]] || { echo "1..0 # skip: not x86-64"; exit 0; }
for f in kernels/avx512/matmul_int_avx512.c kernels/avx512/matmul_float_avx512.c kernels/avx512/attn_avx512.c; do
    tap_none "$f keeps its sums in registers" < <(spills "$f" 4 "${wide[@]}")
done
tap_none "kernels/avx2/attn_avx2.c keeps its sums in registers" < <(spills kernels/avx2/attn_avx2.c 0)
tap_none "kernels/avx2/matmul_float_avx2.c keeps its sums in registers" < <(spills kernels/avx2/matmul_float_avx2.c 12)
tap_none "kernels/avx2/matmul_int_avx2.c touches its sums once per group" < <(
    spills kernels/avx2/matmul_int_avx2.c '4 * t * (t <= 2 ? 2 : 1) + 16')
tap_end

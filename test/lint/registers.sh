#!/usr/bin/env bash
# Block kernels keep their sums in registers. gcc silently puts arrays of sums into memory when a bound is not a literal
# or a loop is not nested, which halves the speed and changes no result; so the assembly (or what the build has made of
# it) is searched for vectors on the stack. AVX2 has too few registers for the f32 sums of quantised matrices: they are
# there on purpose, four times each. On NEON eight of the vectors are the caller's, saved on entry; six rows of 4-bit
# weights spill a few sums once per group.
set -uo pipefail
. test/lint/tap.bash

flags=(-I. -D_GNU_SOURCE -std=c11 -O2 -fPIC -ffp-contract=off -fno-math-errno)
avx2=(-mavx2 -mfma -mf16c)
wide=("${avx2[@]}" -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)

# What the default build has made just now need not be compiled again.
built='' objects=(kernels/avx512/matmul_int_avx512.c kernels/avx512/matmul_float_avx512.c kernels/avx512/attn_avx512.c
    kernels/avx2/attn_avx2.c kernels/avx2/matmul_float_avx2.c kernels/avx2/matmul_int_avx2.c)
if [[ -e ${COLIBRI_BUILD:-}/flags && $(<"$COLIBRI_BUILD/flags") == "cc "*" -O2 -g "* ]]; then
    built=1
    for f in "${objects[@]}"; do
        [[ -e $COLIBRI_BUILD/$f.o && -z $(find kernels lib Makefile -newer "$COLIBRI_BUILD/$f.o" -print -quit) ]] || built=''
    done
fi

# spills FILE ALLOWED FLAGS...: functions named <kind>_<R>x<T> with more than ALLOWED (an awk expression of t) vectors
# on the stack.
spills() {
    local file=$1 allowed=$2
    shift 2
    if [[ -n $built && $cc == cc ]]; then
        objdump -d --no-show-raw-insn "$COLIBRI_BUILD/$file.o" | sed -E 's/^[0-9a-f]+ <(.*)>:/\t.size\n\1:/'
    else
        "$cc" "${flags[@]}" "$@" -S -o - "$file"
    fi | awk -v vector="$vector" '
        /^[a-z][a-z0-9_]*_[0-9a-z]+x[0-9]:/ { name = $1; t = substr(name, length(name) - 1, 1) }
        /^\t\.size/ { name = "" }
        name && $0 ~ vector { count[name]++ }
        name { seen[name] = t }
        END {
            for (name in seen) { n++; t = seen[name]; if (count[name] + 0 > '"$allowed"') print name, count[name] }
            if (n < 6) print "only", n, "block kernels found"
        }'
}

cc=$(tap_cc x86_64)
vector='%[yz]mm.*[(]%r[sb]p|[(]%r[sb]p.*%[yz]mm'
if [[ -n $cc ]]; then
    for f in "${objects[@]:0:3}"; do
        tap_none "$f keeps its sums in registers" < <(spills "$f" 4 "${wide[@]}")
    done
    tap_none "kernels/avx2/attn_avx2.c keeps its sums in registers" < <(spills kernels/avx2/attn_avx2.c 0 "${avx2[@]}")
    tap_none "kernels/avx2/matmul_float_avx2.c keeps its sums in registers" < <(spills kernels/avx2/matmul_float_avx2.c 12 "${avx2[@]}")
    tap_none "kernels/avx2/matmul_int_avx2.c touches its sums once per group" < <(
        spills kernels/avx2/matmul_int_avx2.c '4 * t * (t <= 4 ? 2 : 1) + 16' "${avx2[@]}")
fi

cc=$(tap_cc aarch64)
vector='[qd][0-9]+,.*\\[(sp|x29)'
neon=(-fno-schedule-insns -march=armv8.2-a+dotprod) # as in the Makefile
if [[ -n $cc ]]; then
    for f in matmul_float:8 attn:8 matmul_int:56; do
        tap_none "kernels/neon/${f%:*}_neon.c keeps its sums in registers" < <(
            spills "kernels/neon/${f%:*}_neon.c" "${f#*:}" "${neon[@]}")
    done
    tap_none "kernels/neon/matmul_int_i8mm.c keeps its sums in registers" < <(
        spills kernels/neon/matmul_int_i8mm.c 24 "${neon[@]}" -march=armv8.2-a+dotprod+i8mm)
fi

# CUDA kernels: the build reads what ptxas says, and fails for one that spills (tools/cuda_report.sh).
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
said() { # MANGLED ARCH STACK STORES LOADS USED
    echo "ptxas info    : Compiling entry function '$1' for '$2'"
    echo "    $3 bytes stack frame, $4 bytes spill stores, $5 bytes spill loads"
    echo "ptxas info    : Used $6"
}
cat >"$dir/a.cu" <<'END'
    size_t shared = (size_t)f(n, 2) * sizeof(float);
    CLB_LAUNCH(plain, dim3(a, g(b, c)), 64, shared, stream, *p);
        CLB_LAUNCH((mixed<F, 2>), grid, 32,
                   (room<F, 2>::bytes), stream, w);
    CLB_LAUNCH(none, 1, 64, 0, stream, *p);
END
{
    said _Z5plain3arg sm_80 0 0 0 '27 registers, used 1 barriers, 4096 bytes smem, 472 bytes cmem[0]'
    said _Z5plain3arg sm_90 0 0 0 '31 registers, 1032 bytes cmem[0]'
    said _Z5mixedIL12clb_kv_dtype2EL9clb_dtype3ELi4EEv3arg sm_80 0 0 0 '117 registers, 536 bytes cmem[0]'
} >"$dir/good"
report=$(tools/cuda_report.sh "$dir" "$dir/good" | tr -s ' ')
for line in 'registers sm_80 sm_90' 'plain 27 31' 'mixed<int8, int8, 4> 117 0' 'static shared memory, bytes sm_80 sm_90' \
    'plain 4096 0' 'plain 472 1032' 'plain (size_t)f(n, 2) * sizeof(float)' 'mixed room<F, 2>::bytes' \
    '3 kernels, 0 of them use memory for registers'; do
    grep -qxF -- "$line" <<<"$report"
    tap $? "the report of CUDA kernels has '$line'" "$report"
done
for bad in '8 0 0' '0 4 0' '0 0 12'; do
    read -r stack stores loads <<<"$bad"
    said _Z5plain3arg sm_80 "$stack" "$stores" "$loads" '255 registers' | cat "$dir/good" - >"$dir/bad"
    if report=$(tools/cuda_report.sh "$dir" "$dir/bad"); then
        tap 1 "a CUDA kernel that spills fails the build ($bad)" "$report"
    else
        grep -q "^plain, sm_80: *$stack bytes stack frame, $stores bytes" <<<"$report"
        tap $? "a CUDA kernel that spills fails the build ($bad)" "$report"
    fi
done
! tools/cuda_report.sh "$dir" /dev/null >/dev/null
tap $? "a report without kernels fails the build"
tap_end

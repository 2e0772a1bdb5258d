#!/usr/bin/env bash
# Every header compiles alone, so that no include order matters; the public one also as C++ and as C99.
set -uo pipefail
. test/lint/tap.bash
warn=(-Wall -Wextra -Wpedantic -Wundef -Werror -I. -fsyntax-only)
unused=(-Wno-unused-function -Wno-unused-variable)
unit=$(mktemp) # a file with something in it, since ISO C has no empty ones
trap 'rm -f "$unit"' EXIT
echo 'typedef int unit;' >"$unit"

while read -r h; do
    cc=cc
    case $h in # as in the Makefile
    kernels/avx2/*) isa=(-mavx2 -mfma -mf16c -mavxvnni) ;;
    kernels/avx512/*) isa=(-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni) ;;
    test/kernel/emulated.h) continue ;; # needs SIMDe, and is never included by a source
    test/cuda-emu/emu_control.h | test/cuda-emu/cuda_runtime_api.h | test/cuda-emu/reference.h | \
        test/cuda-emu/backend_rig.h | kernels/cuda/*)
        isa=(-Itest/cuda-emu) ;;
    test/cuda-emu/*)
        tap_run "$h as C++" c++ -std=c++17 "${warn[@]}" -Wno-pedantic "${unused[@]}" -Itest/cuda-emu -x c++ -include "$h" "$unit"
        continue ;;
    cmd/colibri-serve/*) # its libraries may be missing, and then it is not built
        echo '#include <microhttpd.h>' | cc -E -x c - >/dev/null 2>&1 || continue
        isa=() ;;
    kernels/neon/*) isa=(-march=armv8.2-a+dotprod+i8mm) cc=$(tap_cc aarch64) ;;
    *) isa=() ;;
    esac
    [[ $h != kernels/avx* ]] || cc=$(tap_cc x86_64)
    [[ -n $cc ]] || continue
    tap_run "$h" "$cc" -std=c11 -D_GNU_SOURCE "${isa[@]}" "${warn[@]}" "${unused[@]}" -x c -include "$h" "$unit"
done < <(find lib kernels cmd test -name '*.h' ! -path '*simde*' | sort)
tap_run "lib/colibri.h as C++" c++ -std=c++11 "${warn[@]}" -x c++ -include lib/colibri.h "$unit"
tap_run "lib/colibri.h as C99" cc -std=c99 "${warn[@]}" -x c -include lib/colibri.h "$unit"
tap_end

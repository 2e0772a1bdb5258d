#!/usr/bin/env bash
# Installs the Debian packages that are missing for: demo (to build and run), bench (make bench), test, full (every
# test). usage: tools/setup.sh demo|bench|test|full
# Silent when nothing is missing. Prints the command before it runs it, as root or through sudo; without
# either it stops with the line to type. This is the only place of the project that installs anything.
set -euo pipefail

level=${1:-full}
missing=()

# need PACKAGE COMMAND...: PACKAGE is missing when the probe fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
have() { command -v "$1"; }
header() { echo "#include <$1>" | cc -E -x c - ; }
mdoc() { printf '.Dd January 1, 2025\n.Dt X 1\n.Os\n' | groff -mdoc -Tutf8 -z; }

need gcc have cc
need libc6-dev header stdio.h
need zlib1g-dev header zlib.h
if [[ $level != demo ]]; then
    need g++ have c++
    need python3 have python3
fi
if [[ $level == bench ]]; then
    need python3-venv python3 -c 'import ensurepip, venv'
elif [[ $level != demo ]]; then
    need binutils have objcopy
    need bats have bats
    need jq have jq
    need groff-base mdoc
    need shellcheck have shellcheck
    need libsimde-dev header simde/x86/avx512.h
    need time test -x /usr/bin/time
    need procps have ps
fi
if [[ $level == full ]]; then
    need valgrind have valgrind
fi
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: please install what Debian calls: ${missing[*]}" >&2
    exit 1
fi
sudo=
((EUID == 0)) || sudo="sudo "
install="${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends ${missing[*]}"
if [[ -n $sudo ]] && ! command -v sudo >/dev/null; then
    echo "setup: packages are missing; as root, type:" >&2
    echo "  ${install//sudo /}" >&2
    exit 1
fi
echo "$install"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! DEBIAN_FRONTEND=noninteractive bash -c "$install" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: the command above failed" >&2
    exit 1
fi

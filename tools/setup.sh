#!/usr/bin/env bash
# Installs the Debian packages that are missing for: demo (to build and run), bench (make bench), test, full (every
# test). usage: tools/setup.sh demo|bench|test|full
# Silent when nothing is missing. Prints the command before it runs it, as root or through sudo; without
# either it stops with the line to type. This is the only place of the project that installs anything.
set -euo pipefail

level=${1:-full}
missing=() extra=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# need PACKAGE COMMAND...: PACKAGE is missing when the probe fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
# want PACKAGE COMMAND...: the same for what not every system has; without it some tests are skipped.
want() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || extra+=("$package")
}
have() { command -v "$1"; }
header() { echo "#include <$1>" | cc -E -x c - ; }
mdoc() { printf '.Dd January 1, 2025\n.Dt X 1\n.Os\n' | groff -mdoc -Tutf8 -z; }

need gcc have cc
need libc6-dev header stdio.h
need zlib1g-dev header zlib.h
need libmicrohttpd-dev header microhttpd.h
need libjson-c-dev header json-c/json.h
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
    need curl have curl
    need groff-base mdoc
    need shellcheck have shellcheck
    need libsimde-dev header simde/x86/avx512.h
    need time test -x /usr/bin/time
    need procps have ps
fi
if [[ $level == full ]]; then
    need valgrind have valgrind
    want python3-venv python3 -c 'import ensurepip, venv'
    want chromium have chromium
    if [[ $(uname -m) != aarch64 ]]; then
        want gcc-aarch64-linux-gnu have aarch64-linux-gnu-gcc
        want libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
        want qemu-user have qemu-aarch64
    fi
fi
sudo=
((EUID == 0)) || sudo="sudo "
# get PACKAGE...
get() {
    local command="${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends $*"
    if ! have apt-get >/dev/null; then
        echo "setup: please install what Debian calls: $*" >&2
        return 1
    fi
    if [[ -n $sudo ]] && ! have sudo >/dev/null; then
        echo "setup: packages are missing; as root, type:" >&2
        echo "  ${command//sudo /}" >&2
        return 1
    fi
    echo "$command"
    if ! DEBIAN_FRONTEND=noninteractive bash -c "$command" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "setup: the command above failed" >&2
        return 1
    fi
}

# A static zlib to link programs for aarch64 with: one file of a Debian package, unpacked into the build folder. apt works
# in a folder of its own, so that the system's list of architectures and packages stays as it is; it needs no root.
aarch64_zlib() {
    local dir=$1 apt
    apt=(apt-get -q -o "Dir::State=$dir/apt" -o "Dir::State::status=$dir/apt/status" -o "Dir::Cache=$dir/apt"
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root)
    mkdir -p "$dir/apt/lists/partial" "$dir/apt/archives/partial"
    : >"$dir/apt/status"
    "${apt[@]}" update && (cd "$dir/apt" && "${apt[@]}" download zlib1g-dev) &&
        dpkg-deb -x "$dir"/apt/zlib1g-dev_*.deb "$dir/apt/x" && mv "$dir"/apt/x/usr/lib/*/libz.a "$dir"
}

((${#missing[@]} == 0)) || get "${missing[@]}"
((${#extra[@]} == 0)) || get "${extra[@]}" || echo "setup: without ${extra[*]} the tests that need them are skipped" >&2
if [[ $level == full && $(uname -m) != aarch64 ]] && have aarch64-linux-gnu-gcc >/dev/null; then
    dir=$(mkdir -p "${BUILD:-build}" && cd "${BUILD:-build}" && pwd)/aarch64-zlib
    if [[ ! -e $dir/libz.a && ! -e $(aarch64-linux-gnu-gcc -print-file-name=libz.a) ]]; then
        echo "apt-get download zlib1g-dev:arm64 (into $dir)"
        aarch64_zlib "$dir" >"$log" 2>&1 || {
            tail -n 5 "$log" >&2
            echo "setup: there is no zlib for aarch64 here, so the tests for it are skipped" >&2
        }
        rm -rf "$dir/apt"
    fi
fi

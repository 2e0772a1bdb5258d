#!/usr/bin/env bats
# The targets that people type, and the script that installs what is missing.
load helper

setup() {
    # A folder that every user can read, with all commands of the system but jq and sudo.
    box=$(mktemp -d)
    chmod 755 "$box"
    mkdir "$box/bin"
    ln -s /usr/bin/* "$box/bin/" 2>/dev/null || true
    rm -f "$box/bin/jq" "$box/bin/sudo" "$box/bin/apt-get"
    cp "$REPO/tools/setup.sh" "$box"
}
teardown() {
    rm -rf "$box"
}
# An apt-get that only writes down what it is asked for.
fake_apt_get() {
    printf '#!/bin/sh\necho "$*" >>%s/calls\nexit %s\n' "$box" "$1" >"$box/bin/apt-get"
    printf '#!/bin/sh\nexec "$@"\n' >"$box/bin/sudo"
    chmod 755 "$box/bin/apt-get" "$box/bin/sudo"
}

@test "make help: names the targets, one line each" {
    run -0 env -u MAKEFLAGS -u MAKELEVEL make -C "$REPO" help
    for target in all setup demo test test-full lint bench install uninstall clean help; do
        [[ $output =~ (^|$'\n')$target\ +[a-z] ]] || fail "$target"
    done
}

@test "make CUDA=1: says what is missing; other values of CUDA are none" {
    run -2 env -u MAKEFLAGS -u MAKELEVEL make -C "$REPO" BUILD="$box/build" CUDA=1 NVCC=/nonexistent/nvcc lib
    has "$output" "CUDA=1 needs the CUDA toolkit" "NVCC=/path/to/nvcc"
    run -2 env -u MAKEFLAGS -u MAKELEVEL make -C "$REPO" BUILD="$box/build" CUDA=yes lib
    has "$output" "CUDA is 1, or nothing"
    [[ ! -e $box/build/libcolibri.a ]]
}

# bats test_tags=slow
@test "make CUDA=1: with a toolkit it builds, links no more libraries, and starts without a driver" {
    local nvcc
    nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || skip "no nvcc here"
    run env -u MAKEFLAGS -u MAKELEVEL make -C "$REPO" BUILD="$box/build" CUDA=1 CUDA_ARCHS=80 NVCC="$nvcc" lib gpu-tests \
        "$box/build/bin/colibri-run"
    ((status == 0)) || fail "$output"
    [[ $output != *warning* ]] || fail "$output"
    has "$(<"$box/build/nvcc/registers.txt")" "product_few" " 0 of them use memory for registers"
    diff <(ldd "$box/build/bin/colibri-run" | awk '{print $1}') <(ldd "$COLIBRI_TEST_BIN/colibri-run" | awk '{print $1}')
    run -0 "$box/build/bin/colibri-run" --version
    [[ ${lines[1]} == "CUDA "* ]]
    run -0 "$box/build/bin/colibri-run" -n 2 -p x --backend cpu "$(demo int8)"
}

@test "setup: says nothing when nothing is missing" {
    run -0 "$REPO/tools/setup.sh" test
    [[ -z $output ]]
}

@test "setup: prints the command, then runs it" {
    fake_apt_get 0
    run -0 env PATH="$box/bin" bash "$box/setup.sh" test
    has "$output" "apt-get update && " "apt-get install -y --no-install-recommends jq"
    [[ $(cat "$box/calls") == $'update\ninstall -y --no-install-recommends jq' ]]
}

@test "setup: demo needs less than test" {
    fake_apt_get 0
    run -0 env PATH="$box/bin" bash "$box/setup.sh" demo
    [[ -z $output && ! -e $box/calls ]]
}

@test "setup: a failing command is a failure" {
    fake_apt_get 100
    run -1 env PATH="$box/bin" bash "$box/setup.sh" test
    has "$output" "the command above failed"
}

@test "setup: what only the tests for aarch64 need may be missing" {
    ln -s /usr/bin/jq "$box/bin/jq"
    ln -sf /bin/true "$box/bin/valgrind"
    rm -f "$box/bin/aarch64-linux-gnu-gcc" "$box/bin/qemu-aarch64"
    fake_apt_get 100
    run -0 env PATH="$box/bin" BUILD="$box/build" bash "$box/setup.sh" full
    [[ $(uname -m) != aarch64 ]] || return 0
    has "$output" "gcc-aarch64-linux-gnu" "the command above failed" "the tests that need them are skipped"
    run -0 env PATH="$box/bin" "$REPO/test/aarch64_lacks.sh" "$box/build"
    has "$output" "there is no aarch64-linux-gnu-gcc"
}

@test "setup: without root and sudo it stops with the line to type" {
    fake_apt_get 0
    rm "$box/bin/sudo"
    as=()
    ((EUID != 0)) || as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    "${as[@]}" env PATH="$box/bin" bash -c true || skip "another user cannot run anything here"
    run -1 --separate-stderr "${as[@]}" env PATH="$box/bin" bash "$box/setup.sh" test
    has "$stderr" "as root, type:" "  apt-get update && apt-get install -y --no-install-recommends jq"
    [[ ! -e $box/calls ]]
}

@test "setup: on another system it names the packages" {
    run -1 env PATH="$box/bin" bash "$box/setup.sh" test
    has "$output" "jq"
}

@test "make: without libmicrohttpd and json-c the server is left out, and make says so" {
    cd "$REPO"
    run -0 env -u MAKEFLAGS -u MAKELEVEL make -n BUILD="$BATS_TEST_TMPDIR/none" SERVE= programs
    has "$output" "colibri-serve is not built" "libmicrohttpd-dev libjson-c-dev" bin/colibri-run
    [[ $output != *-lmicrohttpd* && $output != *cmd/colibri-serve* ]]
    run -0 env -u MAKEFLAGS -u MAKELEVEL make -n BUILD="$BATS_TEST_TMPDIR/none" SERVE=yes programs
    has "$output" "-lmicrohttpd -ljson-c"
    # What it looks for is a program that links.
    run -0 env -u MAKEFLAGS -u MAKELEVEL make -n BUILD="$BATS_TEST_TMPDIR/none" CPPFLAGS=-nostdinc programs
    has "$output" "colibri-serve is not built"
}

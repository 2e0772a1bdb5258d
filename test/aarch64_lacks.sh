#!/bin/sh
# Succeeds, and says in one line why, when this machine cannot build and run programs for aarch64 beside its own.
# usage: aarch64_lacks.sh BUILD
lacks() {
    echo "$*"
    exit 0
}
[ "$(uname -m)" != aarch64 ] || lacks "this machine is aarch64 itself, the other groups test it"
command -v aarch64-linux-gnu-gcc >/dev/null || lacks "there is no aarch64-linux-gnu-gcc"
command -v qemu-aarch64 >/dev/null || lacks "there is no qemu-aarch64 (package qemu-user)"
echo 'int main(void) { return 0; }' | aarch64-linux-gnu-gcc -x c -o /dev/null - 2>/dev/null ||
    lacks "there is no C library for aarch64 (package libc6-dev-arm64-cross)"
[ -e "$1/aarch64-zlib/libz.a" ] || [ -e "$(aarch64-linux-gnu-gcc -print-file-name=libz.a)" ] ||
    lacks "there is no zlib for aarch64 (tools/setup.sh full fetches one)"
exit 1

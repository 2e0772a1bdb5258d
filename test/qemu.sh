#!/bin/sh
# Runs a program for aarch64 on a processor that has every level; EMULATED_CPU names another one. SVE is off: it is not
# used, and slow to emulate.
export QEMU_LD_PREFIX="${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu}"
export COLIBRI_TEST_EMULATED=1
exec qemu-aarch64 -cpu "${EMULATED_CPU:-max,sve=off}" "$@"

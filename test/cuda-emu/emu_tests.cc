/* emu_tests.cc - linked into the tests of this folder: they begin with one device. */
#include "emu.h"

__attribute__((constructor)) static void begin(void)
{
    emu_devices(1, (size_t)1 << 30);
}

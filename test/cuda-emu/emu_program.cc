/* emu_program.cc - linked into the programs of an emulated build: the variable EMU_CUDA says which
 * devices there are (none without it), and what a program did not free ends it. */
#include <cstdio>
#include <cstdlib>

#include "emu.h"

static void check_leaks(void)
{
    stdout = stderr; /* theirs is closed */
    if (emu_leaks())
        emu_die("the program ends without freeing that");
}

__attribute__((constructor)) static void configure(void)
{
    emu_devices(0, (size_t)1 << 30);
    emu_configure(getenv("EMU_CUDA"));
    atexit(check_leaks);
}

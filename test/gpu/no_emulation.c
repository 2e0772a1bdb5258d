/* no_emulation.c - what tests say to the emulation, where there is a GPU instead. */
#include "test/cuda-emu/emu_control.h"

int emu_leaks(void)
{
    return 0;
}

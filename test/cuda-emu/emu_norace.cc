/* emu_norace.cc - stands where emu_race.cc would, in builds for other sanitizers. */
#include "emu.h"

void emu_access(const void *, size_t, bool)
{
}
void emu_race_forget(const void *, size_t)
{
}
bool emu_race_build(void)
{
    return false;
}

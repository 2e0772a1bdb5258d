/* dlfcn.h - stands before the header of that name: libraries of NVIDIA are fakes (emu_libs.cc). */
#ifndef TEST_CUDA_EMU_DLFCN_H
#define TEST_CUDA_EMU_DLFCN_H

#pragma GCC system_header
#include_next <dlfcn.h>

#ifdef __cplusplus
extern "C" {
#endif
void *emu_dlopen(const char *file, int flags);
void *emu_dlsym(void *library, const char *name);
int emu_dlclose(void *library);
#ifdef __cplusplus
}
#endif

#define dlopen  emu_dlopen
#define dlsym   emu_dlsym
#define dlclose emu_dlclose

#endif

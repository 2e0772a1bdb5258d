/* emu_libs.h - what the fakes of libraries share. */
#ifndef TEST_CUDA_EMU_EMU_LIBS_H
#define TEST_CUDA_EMU_EMU_LIBS_H

#include <cstddef>
#include <string>

/* What a library says of itself: `usual`, unless a test told another version. */
size_t emu_library_version_of(const char *file, size_t usual);
/* emu_dnn.cc: a function of cuDNN by its name (NULL: there is none), and objects that live. */
void *emu_dnn_function(const char *name);
int emu_dnn_leaks(void);

#endif

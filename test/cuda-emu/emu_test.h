/* emu_test.h - for tests on the emulation: buffers of the device, and deaths that are expected. */
#ifndef TEST_CUDA_EMU_EMU_TEST_H
#define TEST_CUDA_EMU_EMU_TEST_H

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <cuda_runtime.h>

#include "lib/base/half.h"
#include "test/check.h"

#ifdef __SANITIZE_ADDRESS__
enum { BUILD_ASAN = 1 };
#else
enum { BUILD_ASAN = 0 };
#endif

#ifndef CUDA_IS_EMULATED /* tests of kernels run on a GPU, too (test/gpu) */
static inline int emu_leaks(void)
{
    return 0;
}
#endif

#define OK(call)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("# %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));        \
            test_bad = 1;                                                                          \
        }                                                                                          \
    } while (0)

/* The stream of tests that need one only. */
struct stream {
    cudaStream_t s;
    stream()
    {
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    }
    ~stream()
    {
        OK(cudaGetLastError());
        OK(cudaStreamDestroy(s));
    }
};

/* n values on the device: NaN, and not what a GPU happens to have there. */
template <class T> struct device {
    T *p;
    size_t n;
    explicit device(size_t count) : n(count)
    {
        OK(cudaMalloc((void **)&p, (n ? n : 1) * sizeof(T)));
#ifndef CUDA_IS_EMULATED /* there memory is NaN at first */
        OK(cudaMemset(p, 0xff, (n ? n : 1) * sizeof(T)));
        OK(cudaDeviceSynchronize());
#endif
    }
    explicit device(const std::vector<T> &v) : device(v.size())
    {
        if (n)
            OK(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
        OK(cudaDeviceSynchronize()); /* no stream of ours waits for that copy */
    }
    device(const device &) = delete;
    ~device()
    {
        OK(cudaFree(p));
    }
    /* Once the device is idle. */
    std::vector<T> get() const
    {
        std::vector<T> v(n);
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

/* A child process that runs fn dies, and says `text` on stderr. */
static inline bool dies(const char *text, const std::function<void()> &fn)
{
    int fd[2], status;
    std::string said;
    char part[4096];

    fflush(stdout);
    if (pipe(fd))
        return false;
    pid_t child = fork();
    if (!child) {
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        fn();
        _exit(0);
    }
    close(fd[1]);
    for (ssize_t n; (n = read(fd[0], part, sizeof part)) > 0;)
        said.append(part, (size_t)n);
    close(fd[0]);
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && !WEXITSTATUS(status)) {
        printf("# it did not die with '%s'\n", text);
        return false;
    }
    if (said.find(text) == std::string::npos) {
        printf("# it died without '%s' but with: %.200s\n", text, said.c_str());
        return false;
    }
    return true;
}

#endif

/* emu_device.cc - devices, the driver, and what tests make them be: absent, too old, full, failing.
 */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <pthread.h>
#include <string>

#include "emu_call.h"

static struct {
    int count = 0;
    size_t bytes = (size_t)1 << 30;
    int driver = CUDART_VERSION;
    int major = 8, minor = 0;
    bool peers = true, lose = false;
    int lonely = -1, blind = -1, odd = -1, odd_major = 0, odd_minor = 0;
    int forgets_in = 0; /* so many waits; 0: never */
    bool reaches[EMU_DEVICES][EMU_DEVICES] = {};
    char fails[64] = ""; /* the function */
    int fails_in = 0;    /* so many calls of it; 0: never */
    cudaError_t fails_with = cudaSuccess;
    bool for_good = false;          /* what fails is the end of the devices */
    cudaError_t lost = cudaSuccess; /* they are: what every call returns */
} emu; /* constant from the start: constructors of programs set it */
static thread_local int current;
static thread_local cudaError_t last_error = cudaSuccess;
static pthread_mutex_t turn = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

emu_turn::emu_turn()
{
    pthread_mutex_lock(&turn);
}
emu_turn::~emu_turn()
{
    pthread_mutex_unlock(&turn);
}

cudaError_t emu_error(cudaError_t e)
{
    return last_error = e;
}

static std::map<std::string, uint64_t> &calls(void)
{
    static std::map<std::string, uint64_t> of;

    return of;
}

/* What gives something back does so on a lost device, too, that leaks show. */
static bool frees(const char *function)
{
    return strstr(function, "Free") || strstr(function, "Destroy") ||
           strstr(function, "Unregister");
}

cudaError_t emu_refuses(const char *function, bool needs_device)
{
    calls()[function]++;
    if (emu.fails_in && !strcmp(emu.fails, function) && --emu.fails_in == 0) {
        emu.lost = emu.for_good ? emu.fails_with : emu.lost;
        return emu.fails_with;
    }
    if (!needs_device)
        return cudaSuccess;
    if (emu.lost)
        return frees(function) ? cudaSuccess : emu.lost;
    if (emu.driver < CUDART_VERSION / 1000 * 1000)
        return cudaErrorInsufficientDriver;
    return emu.count ? cudaSuccess : cudaErrorNoDevice;
}

int emu_device_count(void)
{
    return emu.count;
}
size_t emu_device_bytes(void)
{
    return emu.bytes;
}
int emu_current_device(void)
{
    return current;
}
bool emu_reaches(int device, int other)
{
    return device == other || emu.reaches[device][other];
}

bool emu_is_lost(void)
{
    return emu.lost != cudaSuccess;
}

bool emu_loses(int device, int other)
{
    return emu.lose && device != other && emu_reaches(device, other);
}
bool emu_forgets_wait(void)
{
    return emu.forgets_in && --emu.forgets_in == 0;
}
static int major_of(int device)
{
    return device == emu.odd ? emu.odd_major : emu.major;
}
static int minor_of(int device)
{
    return device == emu.odd ? emu.odd_minor : emu.minor;
}
static int processors_of(int device)
{
    return device == emu.odd ? 6 : 4;
}

/* -- for tests --------------------------------------------------------------------------------- */

void emu_devices(int count, size_t bytes)
{
    if (count > EMU_DEVICES)
        emu_die("%d devices are more than %d", count, EMU_DEVICES);
    emu.count = count;
    emu.bytes = bytes;
}
void emu_driver(int version)
{
    emu.driver = version;
}
void emu_capability(int major, int minor)
{
    emu.major = major;
    emu.minor = minor;
}
void emu_peers(bool reach)
{
    emu.peers = reach;
}
void emu_lonely_device(int device)
{
    emu.lonely = device;
}
void emu_peers_lose(bool lose)
{
    emu.lose = lose;
}
void emu_blind_device(int device)
{
    emu.blind = device;
}
void emu_odd_device(int device, int major, int minor)
{
    emu.odd = device;
    emu.odd_major = major;
    emu.odd_minor = minor;
}
void emu_forget_wait(int n)
{
    emu.forgets_in = n;
}
void emu_fail(const char *function, int n, cudaError_t e)
{
    snprintf(emu.fails, sizeof emu.fails, "%s", function);
    emu.fails_in = n;
    emu.fails_with = e;
    emu.for_good = false;
    emu.lost = cudaSuccess;
}
void emu_fail_for_good(const char *function, int n, cudaError_t e)
{
    emu_fail(function, n, e);
    emu.for_good = true;
}
uint64_t emu_calls(const char *function)
{
    auto i = calls().find(function);

    return i == calls().end() ? 0 : i->second;
}

[[noreturn]] static void refuse(const std::string &name, const std::string &value)
{
    emu_die("EMU_CUDA: '%s=%s' is nothing that it knows", name.c_str(), value.c_str());
}

static const struct {
    const char *word, *file;
} libraries[] = {
    { "cublaslt", "libcublasLt.so.13" },
    { "cudnn", "libcudnn.so.9" },
    { "nccl", "libnccl.so.2" },
};

/* Of one, there with the version that its own function counts; of all of them, 0 or 1. */
static bool configure_library(const std::string &name, double n)
{
    bool known = false;

    for (const auto &l : libraries)
        if (name == "libraries" || name == l.word) {
            emu_library(l.file, n != 0, nullptr);
            emu_library_version(l.file, name == l.word ? (size_t)n : 0);
            known = true;
        }
    return known;
}

/* All values but those of failures are numbers: of memory with a unit, of capability with a dot. */
static double number_of(const std::string &name, const std::string &value)
{
    char *rest;
    double n = strtod(value.c_str(), &rest);

    if (name == "memory" && *rest && strchr("KMG", *rest)) {
        n *= *rest == 'K' ? 1 << 10 : *rest == 'M' ? 1 << 20 : 1 << 30;
        rest++;
    }
    bool whole = name == "capability" || n == std::floor(n);
    double most = name == "memory" ? 1e15 : 1e9;
    if (rest == value.c_str() || *rest || !whole || !(n >= 0 && n < most))
        refuse(name, value);
    return n;
}

static void configure(const std::string &name, const std::string &value)
{
    char function[64];
    int nth, error;
    double n = name.find("fail") == 0 ? 0 : number_of(name, value);

    if (name == "devices")
        emu_devices((int)n, emu.bytes);
    else if (name == "memory")
        emu_devices(emu.count, (size_t)n);
    else if (name == "driver")
        emu_driver((int)n);
    else if (name == "capability")
        emu_capability((int)n, (int)(10 * n + 0.5) % 10);
    else if (name == "peers")
        emu_peers(n != 0);
    else if (name == "lose")
        emu_peers_lose(n != 0);
    else if (name == "late")
        emu_streams_late(true, (uint64_t)n);
    else if (name == "fail" && sscanf(value.c_str(), "%63[^:]:%d:%d", function, &nth, &error) == 3)
        emu_fail(function, nth, (cudaError_t)error);
    else if (name == "fail-for-good" &&
             sscanf(value.c_str(), "%63[^:]:%d:%d", function, &nth, &error) == 3)
        emu_fail_for_good(function, nth, (cudaError_t)error);
    else if (!configure_library(name, n))
        refuse(name, value);
}

void emu_configure(const char *words)
{
    std::string left(words ? words : "");

    while (!left.empty()) {
        size_t end = left.find(',');
        std::string word = left.substr(0, end);
        size_t equals = word.find('=');
        left = end == std::string::npos ? "" : left.substr(end + 1);
        if (equals == std::string::npos)
            emu_die("EMU_CUDA: '%s' has no value", word.c_str());
        configure(word.substr(0, equals), word.substr(equals + 1));
    }
}

/* -- devices ----------------------------------------------------------------------------------- */

extern "C" {
cudaError_t cudaDriverGetVersion(int *version)
{
    emu_turn guard;
    cudaError_t refused = emu_refuses("cudaDriverGetVersion", false);

    *version = emu.driver;
    return refused ? emu_error(refused) : cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 0;
    EMU_CALL(cudaGetDeviceCount);
    *n = emu.count;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    EMU_CALL(cudaGetDevice);
    *device = current;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    EMU_CALL(cudaSetDevice);
    if (device < 0 || device >= emu.count)
        return emu_error(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    EMU_CALL(cudaGetDeviceProperties);
    if (device < 0 || device >= emu.count)
        return emu_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, device == emu.odd ? "Odd GPU" : "Emulated GPU");
    p->totalGlobalMem = emu.bytes;
    p->major = major_of(device);
    p->minor = minor_of(device);
    p->multiProcessorCount = processors_of(device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device)
{
    EMU_CALL(cudaDeviceGetAttribute);
    if (device < 0 || device >= emu.count)
        return emu_error(cudaErrorInvalidDevice);
    *value = what == cudaDevAttrMultiProcessorCount            ? processors_of(device)
             : what == cudaDevAttrMemoryClockRate              ? 1215000
             : what == cudaDevAttrGlobalMemoryBusWidth         ? 5120
             : what == cudaDevAttrL2CacheSize                  ? 40 << 20
             : what == cudaDevAttrComputeCapabilityMajor       ? major_of(device)
             : what == cudaDevAttrComputeCapabilityMinor       ? minor_of(device)
             : what == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 163 * 1024
                                                               : -1;
    if (*value < 0)
        emu_die("cudaDeviceGetAttribute: attribute %d is not emulated", what);
    return cudaSuccess;
}

/* -- peers ------------------------------------------------------------------------------------- */

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    EMU_CALL(cudaDeviceCanAccessPeer);
    if (device < 0 || device >= emu.count || peer < 0 || peer >= emu.count)
        return emu_error(cudaErrorInvalidDevice);
    *can = emu.peers && device != peer && device != emu.blind && device != emu.lonely &&
           peer != emu.lonely;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    EMU_CALL(cudaDeviceEnablePeerAccess);
    if (peer < 0 || peer >= emu.count || peer == current)
        return emu_error(cudaErrorInvalidDevice);
    if (!emu.peers || current == emu.blind || current == emu.lonely || peer == emu.lonely)
        return emu_error(cudaErrorPeerAccessUnsupported);
    if (emu.reaches[current][peer])
        return emu_error(cudaErrorPeerAccessAlreadyEnabled);
    emu.reaches[current][peer] = true;
    return cudaSuccess;
}
cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    EMU_CALL(cudaDeviceDisablePeerAccess);
    if (peer < 0 || peer >= emu.count || !emu.reaches[current][peer])
        return emu_error(cudaErrorPeerAccessNotEnabled);
    emu.reaches[current][peer] = false;
    return cudaSuccess;
}

/* -- errors ------------------------------------------------------------------------------------ */

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = emu_is_lost() ? emu.lost : last_error;

    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void)
{
    return emu_is_lost() ? emu.lost : last_error;
}
}

static const struct {
    cudaError_t e;
    const char *name, *text;
} words[] = {
#define WORDS(e, text)                                                                             \
    {                                                                                              \
        e, #e, text                                                                                \
    }
    WORDS(cudaSuccess, "no error"),
    WORDS(cudaErrorInvalidValue, "invalid argument"),
    WORDS(cudaErrorMemoryAllocation, "out of memory"),
    WORDS(cudaErrorInitializationError, "initialization error"),
    WORDS(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    WORDS(cudaErrorStubLibrary, "CUDA driver is a stub library"),
    WORDS(cudaErrorInsufficientDriver,
          "CUDA driver version is insufficient for CUDA runtime version"),
    WORDS(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    WORDS(cudaErrorInvalidDeviceFunction, "invalid device function"),
    WORDS(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    WORDS(cudaErrorInvalidDevice, "invalid device ordinal"),
    WORDS(cudaErrorNoKernelImageForDevice,
          "no kernel image is available for execution on the device"),
    WORDS(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    WORDS(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    WORDS(cudaErrorUnsupportedPtxVersion,
          "the provided PTX was compiled with an unsupported toolchain."),
    WORDS(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    WORDS(cudaErrorNotReady, "device not ready"),
    WORDS(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    WORDS(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    WORDS(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    WORDS(cudaErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    WORDS(cudaErrorLaunchFailure, "unspecified launch failure"),
    WORDS(cudaErrorNotSupported, "operation not supported"),
    WORDS(cudaErrorSystemDriverMismatch,
          "system has unsupported display driver / cuda driver combination"),
    WORDS(cudaErrorUnknown, "unknown error"),
};

extern "C" const char *cudaGetErrorString(cudaError_t e)
{
    for (const auto &w : words)
        if (w.e == e)
            return w.text;
    return "unrecognized error code";
}
extern "C" const char *cudaGetErrorName(cudaError_t e)
{
    for (const auto &w : words)
        if (w.e == e)
            return w.name;
    return "unrecognized error code";
}

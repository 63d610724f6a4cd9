/* Preloaded: hands out driver calls that add up their own time.
 *
 * cuda.bindings finds the driver's calls by dlsym or cuGetProcAddress, and so gets these instead.
 * For one thread. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define PUBLIC __attribute__((visibility("default")))

static int64_t inside_ns;

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

PUBLIC int64_t timed_driver_ns(void) {
    return inside_ns;
}

#define TIMED(name, parameters, arguments)                                                         \
    static __typeof__(&name) real_##name;                                                          \
    static CUresult CUDAAPI timed_##name parameters {                                              \
        int64_t started = now_ns();                                                                \
        CUresult status = real_##name arguments;                                                   \
        inside_ns += now_ns() - started;                                                           \
        return status;                                                                             \
    }

TIMED(cuMemCreate,
      (CUmemGenericAllocationHandle * handle, size_t size_bytes, const CUmemAllocationProp *prop,
       unsigned long long flags),
      (handle, size_bytes, prop, flags))
TIMED(cuMemMap,
      (CUdeviceptr address, size_t size_bytes, size_t offset, CUmemGenericAllocationHandle handle,
       unsigned long long flags),
      (address, size_bytes, offset, handle, flags))
TIMED(cuMemSetAccess,
      (CUdeviceptr address, size_t size_bytes, const CUmemAccessDesc *access, size_t count),
      (address, size_bytes, access, count))
TIMED(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
TIMED(cuMemUnmap, (CUdeviceptr address, size_t size_bytes), (address, size_bytes))

static struct {
    const char *name;
    void **real;
    void *timed;
} const calls[] = {
#define CALL(name) {#name, (void **)&real_##name, (void *)timed_##name}
    CALL(cuMemCreate), CALL(cuMemMap), CALL(cuMemSetAccess), CALL(cuMemRelease), CALL(cuMemUnmap),
};

static CUresult(CUDAAPI *real_get_address)(const char *, void **, int, cuuint64_t,
                                           CUdriverProcAddressQueryResult *);

static void *timed_or(const char *name, void *found) {
    for (size_t index = 0; found && index < sizeof calls / sizeof *calls; index++)
        if (strcmp(name, calls[index].name) == 0) {
            *calls[index].real = found;
            return calls[index].timed;
        }
    return found;
}

static CUresult CUDAAPI get_address(const char *name, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *found) {
    CUresult status = real_get_address(name, function, version, flags, found);
    if (status == CUDA_SUCCESS)
        *function = timed_or(name, *function);
    return status;
}

PUBLIC void *dlsym(void *library, const char *name) {
    static void *(*real_dlsym)(void *, const char *);
    void *found;
    if (!real_dlsym)
        *(void **)&real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    found = real_dlsym(library, name);
    if (found && strcmp(name, "cuGetProcAddress_v2") == 0) {
        *(void **)&real_get_address = found;
        return (void *)get_address;
    }
    return timed_or(name, found);
}

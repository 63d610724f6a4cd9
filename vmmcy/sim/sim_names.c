/* From a call's name to its function: what cuda-bindings binds to. */
#include "sim.h"

#include <string.h>

/* Tells the simulator from a real driver. */
SIM_EXPORT const char vmmcy_sim_marker[] = "vmmcy simulated driver";

/* The one wrapper of every call. */
#define ENTRY(function, call, parameters, arguments)                                               \
    static CUresult CUDAAPI enter_##function parameters {                                          \
        CUresult answer = sim_enter(CALL_##call);                                                  \
        if (answer == CUDA_SUCCESS) {                                                              \
            answer = sim_##function arguments;                                                     \
            sim_leave();                                                                           \
        }                                                                                          \
        return answer;                                                                             \
    }
#define CALL(name, version, parameters, arguments) ENTRY(name, name, parameters, arguments)
#define ABI(name, suffix, version, parameters, arguments)                                          \
    ENTRY(name##suffix, name, parameters, arguments)
#include "sim_calls.h"
#undef CALL
#undef ABI

struct entry {
    const char *name;
    int version;
    void *function;
};

static const struct entry entries[] = {
#define CALL(name, version, parameters, arguments) {"cu" #name, version, (void *)enter_##name},
#define ABI(name, suffix, version, parameters, arguments)                                          \
    {"cu" #name, version, (void *)enter_##name##suffix},
#include "sim_calls.h"
#undef CALL
#undef ABI
};

static const char *const names[] = {
#define CALL(name, version, parameters, arguments) "cu" #name,
#define ABI(name, suffix, version, parameters, arguments)
#include "sim_calls.h"
#undef CALL
#undef ABI
};

/* The calls by index, as in vmmcy_sim_calls and vmmcy_sim_fail; NULL past the last. */
SIM_EXPORT const char *vmmcy_sim_call_name(int call) {
    return call >= 0 && call < SIM_CALL_COUNT ? names[call] : NULL;
}

SIM_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                                cuuint64_t flags,
                                                CUdriverProcAddressQueryResult *found);

/* CUDA 11.3's form, without the last answer. The name is a macro in cuda.h. */
SIM_EXPORT CUresult CUDAAPI get_proc_address(const char *symbol, void **function, int version,
                                             cuuint64_t flags) __asm__("cuGetProcAddress");
CUresult CUDAAPI get_proc_address(const char *symbol, void **function, int version,
                                  cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

/* A look-up is no call of the driver: it is neither counted nor made to fail. */
CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult *found) {
    (void)flags; /* the per-thread forms of calls on streams are the same functions here */
    const struct entry *best = NULL;
    bool too_new = false;
    if (symbol == NULL || function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = NULL;
    if (strcmp(symbol, "cuGetProcAddress") == 0) {
        *function = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)get_proc_address;
    }
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(symbol, entries[i].name) != 0) {
            continue;
        }
        if (entries[i].version > version) {
            too_new = true;
        } else if (best == NULL || entries[i].version > best->version) {
            best = &entries[i];
        }
    }
    if (best != NULL) {
        *function = best->function;
    }
    if (found != NULL) {
        *found = *function != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                 : too_new         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Names and texts of statuses. The recorded texts are exact; the others say the same. */
#include "sim.h"

#include <string.h>

struct text {
    CUresult status;
    const char *name;
    const char *text;
};

#define TEXT(status, text) {status, #status, text}

static const struct text texts[] = {
    TEXT(CUDA_SUCCESS, "no error"),
    TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    TEXT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    TEXT(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    TEXT(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    TEXT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    TEXT(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    TEXT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    TEXT(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    TEXT(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    TEXT(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    TEXT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
         "peer access is not supported between these two devices"),
    TEXT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    TEXT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    TEXT(CUDA_ERROR_NOT_READY, "device not ready"),
    TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    TEXT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    TEXT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    TEXT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    TEXT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    TEXT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    TEXT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    TEXT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
         "part or all of the requested memory range is already mapped"),
    TEXT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
         "pointer does not correspond to a registered memory region"),
    TEXT(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    TEXT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    TEXT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    TEXT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    TEXT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    TEXT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver "
                                            "combination"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
         "operation failed due to a previous error during capture"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
         "operation would make the legacy stream depend on a capturing blocking stream"),
    TEXT(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    TEXT(CUDA_ERROR_EXTERNAL_DEVICE, "an error was detected on an external device"),
    TEXT(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static const struct text *find_text(CUresult status) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].status == status) {
            return &texts[i];
        }
    }
    return NULL;
}

static CUresult answer(const char **place, const char *text) {
    if (place == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *place = text;
    return text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_GetErrorName(CUresult error, const char **name) {
    const struct text *found = find_text(error);
    return answer(name, found != NULL ? found->name : NULL);
}

CUresult sim_GetErrorString(CUresult error, const char **text) {
    const struct text *found = find_text(error);
    return answer(text, found != NULL ? found->text : NULL);
}

/* The status of that name, -1 if there is none. */
SIM_EXPORT int vmmcy_sim_status(const char *name) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(texts[i].name, name) == 0) {
            return (int)texts[i].status;
        }
    }
    return -1;
}

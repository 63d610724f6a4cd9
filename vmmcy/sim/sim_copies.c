/* memcpy and memset: done when the call returns, also the asynchronous ones; on a stream that
 * is captured they become nodes of its graph, unchecked. */
#include "sim.h"

#include <string.h>

/* Whether the device may use all of a range. */
static bool is_accessible(CUdevice device, uint64_t address, uint64_t size, bool write) {
    while (size > 0) {
        struct memory *memory = sim_find(&sim.memory, address, 1);
        if (memory == NULL) {
            return false;
        }
        uint64_t allowed = write ? memory->writable : memory->readable;
        if ((allowed & sim_device_bit(device)) == 0) {
            return false;
        }
        uint64_t here = sim_end(memory->span) - address;
        here = here < size ? here : size;
        address += here;
        size -= here;
    }
    return true;
}

/* Ordinary memory of the process: none that the driver gave out. */
static bool is_pageable(uint64_t address, uint64_t size) {
    return size <= UINT64_MAX - address && sim_find(&sim.memory, address, size) == NULL &&
           sim_find(&sim.reservations, address, size) == NULL;
}

enum side { HOST_SIDE, DEVICE_SIDE, EITHER_SIDE };

static CUresult check_side(enum side side, uint64_t address, uint64_t size, bool write) {
    struct context *context;
    CUresult status = sim_current_context(&context);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (is_accessible(context->device, address, size, write) ||
        (side != DEVICE_SIDE && address != 0 && is_pageable(address, size))) {
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy(uint64_t to, enum side to_side, uint64_t from, enum side from_side,
                     size_t size) {
    CUresult status = check_side(to_side, to, size, true);
    status = status == CUDA_SUCCESS ? check_side(from_side, from, size, false) : status;
    if (status == CUDA_SUCCESS) {
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    }
    return status;
}

CUresult sim_Memcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
    return copy(to, EITHER_SIDE, from, EITHER_SIDE, size);
}

CUresult sim_MemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
    return copy(to, DEVICE_SIDE, (uint64_t)(uintptr_t)from, HOST_SIDE, size);
}

CUresult sim_MemcpyDtoH(void *to, CUdeviceptr from, size_t size) {
    return copy((uint64_t)(uintptr_t)to, HOST_SIDE, from, DEVICE_SIDE, size);
}

CUresult sim_MemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
    return copy(to, DEVICE_SIDE, from, DEVICE_SIDE, size);
}

CUresult sim_MemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
    CUresult status = check_side(DEVICE_SIDE, to, count, true);
    if (status == CUDA_SUCCESS) {
        memset((void *)(uintptr_t)to, value, count);
    }
    return status;
}

CUresult sim_MemsetD32(CUdeviceptr to, unsigned int value, size_t count) {
    if (to % sizeof value != 0 || count > SIZE_MAX / sizeof value) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = check_side(DEVICE_SIDE, to, count * sizeof value, true);
    unsigned int *words = (unsigned int *)(uintptr_t)to;
    for (size_t i = 0; status == CUDA_SUCCESS && i < count; i++) {
        words[i] = value;
    }
    return status;
}

/* --- On a stream ------------------------------------------------------------------------- */

CUresult sim_MemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    bool now;
    CUresult status = sim_give_work(stream, &now);
    return status == CUDA_SUCCESS && now ? sim_Memcpy(to, from, size) : status;
}

CUresult sim_MemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    bool now;
    CUresult status = sim_give_work(stream, &now);
    return status == CUDA_SUCCESS && now ? sim_MemcpyHtoD(to, from, size) : status;
}

CUresult sim_MemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    bool now;
    CUresult status = sim_give_work(stream, &now);
    return status == CUDA_SUCCESS && now ? sim_MemcpyDtoH(to, from, size) : status;
}

CUresult sim_MemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    bool now;
    CUresult status = sim_give_work(stream, &now);
    return status == CUDA_SUCCESS && now ? sim_MemcpyDtoD(to, from, size) : status;
}

CUresult sim_MemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    bool now;
    CUresult status = sim_give_work(stream, &now);
    return status == CUDA_SUCCESS && now ? sim_MemsetD8(to, value, count) : status;
}

CUresult sim_MemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
    bool now;
    CUresult status = sim_give_work(stream, &now);
    return status == CUDA_SUCCESS && now ? sim_MemsetD32(to, value, count) : status;
}

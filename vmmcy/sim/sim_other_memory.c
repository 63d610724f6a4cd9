/* The other kinds of memory that a walk meets: cuMemAlloc, cuMemAllocAsync, cuMemHostAlloc.
 * Each is a piece of the process's own memory; its range is exactly what was asked for. */
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>

static const uint64_t charge_unit = 512; /* what the driver rounds small allocations to */

static uint64_t charged(uint64_t size) {
    return (size + charge_unit - 1) / charge_unit * charge_unit;
}

static CUresult allocate(uint64_t *address, uint64_t size, enum memory_kind kind) {
    struct context *context;
    CUresult status = sim_current_context(&context);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (address == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    status = kind == SIM_POOL ? CUDA_SUCCESS : sim_potentially_unsafe();
    if (status != CUDA_SUCCESS) {
        return status;
    }
    struct pool *pool = &sim.devices[context->device].pool;
    bool host = kind == SIM_HOST;
    if (!host && size > sim.memory_bytes - pool->used_bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *got = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memory->span = (struct span){(uint64_t)(uintptr_t)got, size};
    if (got == MAP_FAILED || !sim_add(&sim.memory, &memory->span)) {
        if (got != MAP_FAILED) {
            munmap(got, size);
        }
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->kind = kind;
    memory->device = context->device;
    memory->context = context->id.base;
    memory->readable = host ? UINT64_MAX : sim_device_bit(context->device);
    memory->writable = memory->readable;
    pool->used_bytes += host ? 0 : charged(size);
    *address = memory->span.base;
    return CUDA_SUCCESS;
}

static void end_memory(struct memory *memory) {
    if (memory->kind != SIM_HOST) {
        sim.devices[memory->device].pool.used_bytes -= charged(memory->span.size);
    }
    munmap((void *)(uintptr_t)memory->span.base, memory->span.size);
    sim_remove(&sim.memory, &memory->span);
    free(memory);
}

static CUresult release(uint64_t address, bool host) {
    struct memory *memory = sim_find(&sim.memory, address, 1);
    if (memory == NULL || memory->span.base != address || memory->kind == SIM_MAPPED ||
        (memory->kind == SIM_HOST) != host) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    end_memory(memory);
    return CUDA_SUCCESS;
}

static void end_if_of_context(void *member, void *with) {
    struct memory *memory = member;
    const uint64_t *context = with;
    if (memory->context == *context) {
        end_memory(memory);
    }
}

void sim_end_memory_of(uint64_t context) {
    sim_each(&sim.memory, 0, UINT64_MAX, end_if_of_context, &context);
}

CUresult sim_MemAlloc(CUdeviceptr *address, size_t size) {
    uint64_t got;
    CUresult status = allocate(address != NULL ? &got : NULL, size, SIM_DEVICE);
    if (status == CUDA_SUCCESS) {
        *address = got;
    }
    return status;
}

CUresult sim_MemFree(CUdeviceptr address) {
    struct context *context;
    CUresult status = sim_current_context(&context);
    return status != CUDA_SUCCESS || address == 0 ? status : release(address, false);
}

CUresult sim_MemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
    uint64_t got;
    if (!sim_is_stream(stream)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult status = allocate(address != NULL ? &got : NULL, size, SIM_POOL);
    if (status == CUDA_SUCCESS) {
        *address = got;
    }
    return status;
}

CUresult sim_MemFreeAsync(CUdeviceptr address, CUstream stream) {
    return sim_is_stream(stream) ? release(address, false) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_MemHostAlloc(void **address, size_t size, unsigned int flags) {
    const unsigned int known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    uint64_t got;
    if ((flags & ~known) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = allocate(address != NULL ? &got : NULL, size, SIM_HOST);
    if (status == CUDA_SUCCESS) {
        *address = (void *)(uintptr_t)got;
    }
    return status;
}

CUresult sim_MemFreeHost(void *address) {
    struct context *context;
    CUresult status = sim_current_context(&context);
    return status == CUDA_SUCCESS ? release((uint64_t)(uintptr_t)address, true) : status;
}

/* --- Pointer attributes ------------------------------------------------------------------ */

/* Writes the answer in the type that the attribute has. */
static CUresult attribute(const struct memory *memory, CUpointer_attribute name, uint64_t address,
                          void *data) {
    bool mapped = memory->kind == SIM_MAPPED, host = memory->kind == SIM_HOST;
    switch ((int)name) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = (CUcontext)(uintptr_t)memory->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = host ? (void *)(uintptr_t)address : NULL;
        return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(bool *)data = false;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = memory->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(bool *)data = memory->kind == SIM_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = memory->span.base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = memory->span.size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(bool *)data = true;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)data = mapped ? (uint64_t)memory->allocation->prop.requestedHandleTypes : 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult sim_PointerGetAttribute(void *data, CUpointer_attribute name, CUdeviceptr address) {
    struct memory *memory = sim_find(&sim.memory, address, 1);
    if (data == NULL || memory == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return attribute(memory, name, address, data);
}

CUresult sim_PointerGetAttributes(unsigned int count, CUpointer_attribute *names, void **data,
                                  CUdeviceptr address) {
    if (count == 0 || names == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int i = 0; i < count; i++) {
        CUresult status = sim_PointerGetAttribute(data[i], names[i], address);
        if (status != CUDA_SUCCESS) {
            return status;
        }
    }
    return CUDA_SUCCESS;
}

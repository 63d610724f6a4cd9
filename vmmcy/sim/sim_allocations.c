/* Physical memory, and the handles on it.
 *
 * A device's memory is one sparse file; an allocation is a piece of it at an offset that is
 * never used again. A freed piece is punched out, so the file costs no more than what is
 * written, and as on a GPU, which maps pages at will, memory does not fragment.
 *
 * Handles are ids. A real driver takes a pointer, and a made-up or dead one crashes it; the
 * simulator answers INVALID_VALUE, as recorded for a double release, so that a test which
 * hands on a dead handle fails instead of ending the run. */
#include "sim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint64_t file_size = 1ull << 62;

static bool is_host(CUmemLocationType type) {
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check_properties(const CUmemAllocationProp *prop) {
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_host(prop->location.type)) {
        return CUDA_SUCCESS;
    }
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_has_device(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_MemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                         CUmemAllocationGranularity_flags option) {
    if (granularity == NULL || (int)option < 0 || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = check_properties(prop);
    if (status == CUDA_SUCCESS) {
        *granularity = sim.granularity;
    }
    return status;
}

static CUresult check_handle_types(const CUmemAllocationProp *prop) {
    if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) {
        return CUDA_ERROR_NOT_PERMITTED; /* recorded, although the device attribute is 1 */
    }
    return (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static bool open_pool(struct pool *pool) {
    if (pool->file < 0) {
        pool->file = memfd_create("vmmcy-sim-memory", MFD_CLOEXEC);
        if (pool->file >= 0 && ftruncate(pool->file, (off_t)file_size) != 0) {
            close(pool->file);
            pool->file = -1;
        }
    }
    return pool->file >= 0;
}

struct allocation *sim_add_allocation(uint64_t size, const CUmemAllocationProp *prop) {
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (allocation == NULL) {
        return NULL;
    }
    *allocation = (struct allocation){
        .id = {sim_next_id(), 1},
        .size = size,
        .granularity = sim.granularity,
        .references = 1,
        .prop = *prop,
    };
    if (!sim_add(&sim.allocations, &allocation->id)) {
        free(allocation);
        return NULL;
    }
    sim.handle_references++;
    return allocation;
}

CUresult sim_MemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags) {
    if (handle == NULL || flags != 0 || size == 0 || size % sim.granularity != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = check_properties(prop);
    status = status == CUDA_SUCCESS ? check_handle_types(prop) : status;
    if (status != CUDA_SUCCESS) {
        return status;
    }
    struct pool *pool =
        is_host(prop->location.type) ? &sim.host : &sim.devices[prop->location.id].pool;
    if (size > sim.memory_bytes - pool->used_bytes || size > file_size - pool->next_offset) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct allocation *allocation = open_pool(pool) ? sim_add_allocation(size, prop) : NULL;
    if (allocation == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->pool = pool;
    allocation->file = pool->file;
    allocation->offset = pool->next_offset;
    pool->next_offset += size;
    pool->used_bytes += size;
    *handle = allocation->id.base;
    return CUDA_SUCCESS;
}

struct allocation *sim_live_allocation(CUmemGenericAllocationHandle handle) {
    struct allocation *allocation = sim_find(&sim.allocations, handle, 1);
    return allocation != NULL && allocation->references > 0 ? allocation : NULL;
}

void sim_punch(const struct allocation *allocation) {
    /* Cannot fail on a file of ours; if it did, only the machine's memory would be held. */
    (void)!fallocate(allocation->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     (off_t)allocation->offset, (off_t)allocation->size);
}

void sim_settle(struct allocation *allocation) {
    if (allocation->references > 0 || allocation->mappings != NULL) {
        return;
    }
    if (allocation->private_file) {
        close(allocation->file);
        sim.private_files--;
    } else {
        sim_punch(allocation);
    }
    if (allocation->pool != NULL) {
        allocation->pool->used_bytes -= allocation->size;
    }
    sim_remove(&sim.allocations, &allocation->id);
    free(allocation);
}

CUresult sim_MemRelease(CUmemGenericAllocationHandle handle) {
    struct allocation *allocation = sim_live_allocation(handle);
    if (allocation == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    allocation->references--;
    sim.handle_references--;
    sim_settle(allocation);
    return CUDA_SUCCESS;
}

/* Any address in a mapping will do, with or without access; the handle is the mapped one. */
CUresult sim_MemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct memory *memory = sim_find(&sim.memory, (uint64_t)(uintptr_t)address, 1);
    if (handle == NULL || memory == NULL || memory->kind != SIM_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memory->allocation->references++;
    sim.handle_references++;
    *handle = memory->allocation->id.base;
    return CUDA_SUCCESS;
}

CUresult sim_MemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                  CUmemGenericAllocationHandle handle) {
    struct allocation *allocation = sim_live_allocation(handle);
    if (prop == NULL || allocation == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *prop = allocation->prop;
    return CUDA_SUCCESS;
}

CUresult sim_MemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    struct context *context;
    CUresult status = sim_current_context(&context);
    if (status == CUDA_SUCCESS && (free_bytes == NULL || total_bytes == NULL)) {
        status = CUDA_ERROR_INVALID_VALUE;
    }
    if (status == CUDA_SUCCESS) {
        *free_bytes = sim.memory_bytes - sim.devices[context->device].pool.used_bytes;
        *total_bytes = sim.memory_bytes;
    }
    return status;
}

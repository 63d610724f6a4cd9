/* Map, unmap, access, and the range query. */
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>

int sim_protection(const struct memory *memory) {
    if (memory->writable != 0) {
        return PROT_READ | PROT_WRITE;
    }
    return memory->readable != 0 ? PROT_READ : PROT_NONE;
}

static void link_mapping(struct memory *mapping) {
    struct allocation *allocation = mapping->allocation;
    mapping->next = allocation->mappings;
    if (mapping->next != NULL) {
        mapping->next->previous = mapping;
    }
    allocation->mappings = mapping;
    sim.mappings++;
    sim.mapped_bytes += mapping->span.size;
}

static void unlink_mapping(struct memory *mapping) {
    if (mapping->previous != NULL) {
        mapping->previous->next = mapping->next;
    } else {
        mapping->allocation->mappings = mapping->next;
    }
    if (mapping->next != NULL) {
        mapping->next->previous = mapping->previous;
    }
    sim.mappings--;
    sim.mapped_bytes -= mapping->span.size;
}

/* Where the mapping begins must be reserved; where it ends need not be. */
CUresult sim_MemMap(CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct allocation *allocation = sim_live_allocation(handle);
    if (allocation == NULL || flags != 0 || size == 0 || size % allocation->granularity != 0 ||
        address % allocation->granularity != 0 || sim_find(&sim.reservations, address, 1) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (size != allocation->size || offset != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct memory *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mapping->span = (struct span){address, size};
    mapping->kind = SIM_MAPPED;
    mapping->device = allocation->prop.location.id;
    mapping->allocation = allocation;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (sim_find(&sim.memory, address, size) == NULL) {
        status = sim_lay(mapping->span, allocation->file, allocation->offset);
    }
    if (status == CUDA_SUCCESS && !sim_add(&sim.memory, &mapping->span)) {
        sim_strip(mapping->span);
        status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (status != CUDA_SUCCESS) {
        free(mapping);
        return status;
    }
    link_mapping(mapping);
    return CUDA_SUCCESS;
}

/* --- Ranges of whole mappings ---------------------------------------------------------- */

/* A range begins in a reservation, is aligned, and cuts no mapping; it may span holes. */
static CUresult check_range(CUdeviceptr address, size_t size) {
    struct memory *first = sim_find(&sim.memory, address, 1);
    bool mapped = first != NULL && first->kind == SIM_MAPPED;
    uint64_t unit = mapped ? first->allocation->granularity : sim.granularity;
    if (size == 0 || size % unit != 0 || address % unit != 0 || size > UINT64_MAX - address ||
        sim_find(&sim.reservations, address, 1) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct memory *last = sim_find(&sim.memory, address + size - 1, 1);
    if ((first != NULL && first->span.base < address) ||
        (last != NULL && sim_end(last->span) > address + size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static void unmap(void *member, void *with) {
    struct memory *mapping = member;
    CUresult *status = with;
    if (mapping->kind != SIM_MAPPED || *status != CUDA_SUCCESS) {
        return;
    }
    if (!sim_strip(mapping->span)) {
        *status = CUDA_ERROR_OPERATING_SYSTEM;
        return;
    }
    struct allocation *allocation = mapping->allocation;
    sim_remove(&sim.memory, &mapping->span);
    unlink_mapping(mapping);
    free(mapping);
    sim_settle(allocation);
}

/* Nothing mapped there is no error. */
CUresult sim_MemUnmap(CUdeviceptr address, size_t size) {
    CUresult status = check_range(address, size);
    if (status == CUDA_SUCCESS) {
        sim_each(&sim.memory, address, size, unmap, &status);
    }
    return status;
}

/* --- Access ------------------------------------------------------------------------------ */

/* The bit that stands for a device in `readable` and `writable`. 0, which is refused, for any
 * other location: access by the host was not recorded. */
static uint64_t access_bit(const CUmemLocation *location) {
    bool known = location->type == CU_MEM_LOCATION_TYPE_DEVICE && sim_has_device(location->id);
    return known ? sim_device_bit(location->id) : 0;
}

struct change {
    const CUmemAccessDesc *descs;
    size_t count;
    uint64_t visited;
    CUresult status;
};

static void change_access(void *member, void *with) {
    struct memory *mapping = member;
    struct change *change = with;
    if (mapping->kind != SIM_MAPPED || change->status != CUDA_SUCCESS) {
        return;
    }
    struct memory changed = *mapping;
    for (size_t i = 0; i < change->count; i++) {
        uint64_t bit = access_bit(&change->descs[i].location);
        CUmemAccess_flags flags = change->descs[i].flags;
        changed.readable = flags & CU_MEM_ACCESS_FLAGS_PROT_READ ? changed.readable | bit
                                                                 : changed.readable & ~bit;
        changed.writable = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? changed.writable | bit
                                                                       : changed.writable & ~bit;
    }
    void *address = (void *)(uintptr_t)mapping->span.base;
    int protection = sim_protection(&changed);
    if (protection != sim_protection(mapping) &&
        mprotect(address, mapping->span.size, protection) != 0) {
        change->status = CUDA_ERROR_OUT_OF_MEMORY;
        return;
    }
    *mapping = changed;
    change->visited++;
}

CUresult sim_MemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *descs,
                          size_t count) {
    if (descs == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        CUmemAccess_flags flags = descs[i].flags;
        if (access_bit(&descs[i].location) == 0 ||
            (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
             flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    struct change change = {descs, count, 0, check_range(address, size)};
    if (change.status != CUDA_SUCCESS) {
        return change.status;
    }
    sim_each(&sim.memory, address, size, change_access, &change);
    if (change.status == CUDA_SUCCESS && change.visited == 0) {
        return CUDA_ERROR_INVALID_VALUE; /* a hole is fine, but not a hole alone */
    }
    return change.status;
}

CUresult sim_MemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                          CUdeviceptr address) {
    struct memory *mapping = sim_find(&sim.memory, address, 1);
    uint64_t bit = location != NULL ? access_bit(location) : 0;
    if (flags == NULL || bit == 0 || mapping == NULL || mapping->kind != SIM_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = mapping->writable & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : mapping->readable & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                       : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* --- The range query --------------------------------------------------------------------- */

/* Answers for the current context's device: memory that it may not read is not found. */
CUresult sim_MemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    struct context *context;
    CUresult status = sim_current_context(&context);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    struct span range;
    if (!sim_take_answer(address, &range)) {
        struct memory *memory = sim_find(&sim.memory, address, 1);
        if (memory == NULL || (memory->readable & sim_device_bit(context->device)) == 0) {
            return CUDA_ERROR_NOT_FOUND;
        }
        range = memory->span;
    }
    if (base != NULL) {
        *base = range.base;
    }
    if (size != NULL) {
        *size = range.size;
    }
    return CUDA_SUCCESS;
}

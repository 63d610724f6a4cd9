/* Primary and created contexts, and each thread's stack of them. */
#include "sim.h"

#include <stdlib.h>

enum { MAX_DEPTH = 64 };

/* Primary contexts have the same handle for the life of the process: callers cache it. */
static const uint64_t first_primary_id = 1ull << 32;

static __thread uint64_t stack[MAX_DEPTH];
static __thread int depth;

static CUcontext handle_of(uint64_t id) {
    return (CUcontext)(uintptr_t)id;
}

static uint64_t id_of(CUcontext handle) {
    return (uint64_t)(uintptr_t)handle;
}

CUresult sim_Init(unsigned int flags) {
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (CUdevice device = 0; device < SIM_MAX_DEVICES; device++) {
        struct context *primary = &sim.devices[device].primary;
        primary->id = (struct span){first_primary_id + (uint64_t)device, 1};
        primary->device = device;
    }
    sim.initialised = true;
    return CUDA_SUCCESS;
}

/* NULL for a handle of no context; a primary one is found also while it is inactive. */
struct context *sim_find_context(uint64_t id) {
    if (id >= first_primary_id && id < first_primary_id + (uint64_t)sim.device_count) {
        return &sim.devices[id - first_primary_id].primary;
    }
    return sim_find(&sim.contexts, id, 1);
}

CUresult sim_current_context(struct context **context) {
    if (depth == 0 || stack[depth - 1] == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = sim_find_context(stack[depth - 1]);
    if (*context == NULL || (*context)->references == 0) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return CUDA_SUCCESS;
}

/* What a context owns ends with it. Reservations, handles and mappings belong to none. */
static void end_contents(struct context *context) {
    sim_end_streams_of(context);
    sim_end_memory_of(context->id.base);
}

/* --- Primary contexts ---------------------------------------------------------------- */

CUresult sim_DevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_has_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct context *primary = &sim.devices[device].primary;
    primary->references++;
    *context = handle_of(primary->id.base);
    return CUDA_SUCCESS;
}

CUresult sim_DevicePrimaryCtxRelease(CUdevice device) {
    if (!sim_has_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct context *primary = &sim.devices[device].primary;
    if (primary->references == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--primary->references == 0) {
        end_contents(primary);
    }
    return CUDA_SUCCESS;
}

CUresult sim_DevicePrimaryCtxReset(CUdevice device) {
    if (!sim_has_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct context *primary = &sim.devices[device].primary;
    primary->references = 0;
    end_contents(primary);
    return CUDA_SUCCESS;
}

CUresult sim_DevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
    if (!sim_has_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim.devices[device].primary.flags = flags;
    return CUDA_SUCCESS;
}

CUresult sim_DevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    if (!sim_has_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (flags == NULL || active == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = sim.devices[device].primary.flags;
    *active = sim.devices[device].primary.references > 0;
    return CUDA_SUCCESS;
}

/* --- Created contexts ---------------------------------------------------------------- */

CUresult sim_CtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_has_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct context *created = depth < MAX_DEPTH ? calloc(1, sizeof *created) : NULL;
    if (created == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *created = (struct context){{sim_next_id(), 1}, device, flags, 1, NULL};
    if (!sim_add(&sim.contexts, &created->id)) {
        free(created);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stack[depth++] = created->id.base;
    *context = handle_of(created->id.base);
    return CUDA_SUCCESS;
}

CUresult sim_CtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                          unsigned int flags, CUdevice device) {
    if (affinity != NULL || count != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return sim_CtxCreate(context, flags, device);
}

CUresult sim_CtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                          CUdevice device) {
    (void)params; /* they bear on kernels alone */
    return sim_CtxCreate(context, flags, device);
}

CUresult sim_CtxDestroy(CUcontext context) {
    struct context *created = sim_find(&sim.contexts, id_of(context), 1);
    if (created == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth > 0 && stack[depth - 1] == created->id.base) {
        depth--;
    }
    end_contents(created);
    sim_remove(&sim.contexts, &created->id);
    free(created);
    return CUDA_SUCCESS;
}

/* --- The thread's stack -------------------------------------------------------------- */

CUresult sim_CtxPushCurrent(CUcontext context) {
    if (sim_find_context(id_of(context)) == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth == MAX_DEPTH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stack[depth++] = id_of(context);
    return CUDA_SUCCESS;
}

CUresult sim_CtxPopCurrent(CUcontext *context) {
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (context != NULL) {
        *context = handle_of(stack[depth]);
    }
    return CUDA_SUCCESS;
}

/* Takes the place of the top; NULL takes the top away. */
CUresult sim_CtxSetCurrent(CUcontext context) {
    if (context != NULL && sim_find_context(id_of(context)) == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth > 0) {
        depth--;
    }
    if (context != NULL) {
        stack[depth++] = id_of(context);
    }
    return CUDA_SUCCESS;
}

CUresult sim_CtxGetCurrent(CUcontext *context) {
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = depth > 0 ? handle_of(stack[depth - 1]) : NULL;
    return CUDA_SUCCESS;
}

CUresult sim_CtxGetDevice(CUdevice *device) {
    return sim_CtxGetDevice_v2(device, NULL);
}

/* NULL means the thread's current context, in the two calls that take one. */
static CUresult named_or_current(CUcontext handle, struct context **context) {
    if (handle == NULL) {
        return sim_current_context(context);
    }
    *context = sim_find_context(id_of(handle));
    return *context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_CtxGetDevice_v2(CUdevice *device, CUcontext context) {
    struct context *asked;
    CUresult status = named_or_current(context, &asked);
    if (status == CUDA_SUCCESS && device == NULL) {
        status = CUDA_ERROR_INVALID_VALUE;
    }
    if (status == CUDA_SUCCESS) {
        *device = asked->device;
    }
    return status;
}

CUresult sim_CtxSynchronize(void) {
    return sim_CtxSynchronize_v2(NULL);
}

CUresult sim_CtxSynchronize_v2(CUcontext context) {
    struct context *asked;
    CUresult status = named_or_current(context, &asked);
    status = status == CUDA_SUCCESS ? sim_ends_captures_of(asked->id.base) : status;
    if (status == CUDA_SUCCESS) {
        sim_wait_for_all_streams(asked);
    }
    return status;
}

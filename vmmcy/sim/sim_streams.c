/* Streams and events, as far as they need no kernels: all work is done when a call returns,
 * so nothing is ever pending. */
#include "sim.h"

#include <stdlib.h>

/* A stream or an event. */
struct object {
    struct span id;
    uint64_t context;
};

static CUresult create(struct set *set, void *place) {
    struct context *context;
    CUresult status = sim_current_context(&context);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (place == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct object *object = calloc(1, sizeof *object);
    if (object == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *object = (struct object){{sim_next_id(), 1}, context->id.base};
    if (!sim_add(set, &object->id)) {
        free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *(uint64_t *)place = object->id.base; /* CUstream and CUevent are opaque pointers */
    return CUDA_SUCCESS;
}

static CUresult destroy(struct set *set, uint64_t id) {
    struct object *object = sim_find(set, id, 1);
    if (object == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_remove(set, &object->id);
    free(object);
    return CUDA_SUCCESS;
}

struct ending {
    struct set *set;
    uint64_t context;
};

static void destroy_of_context(void *member, void *with) {
    struct object *object = member;
    struct ending *ending = with;
    if (object->context == ending->context) {
        destroy(ending->set, object->id.base);
    }
}

void sim_end_streams_of(uint64_t context) {
    sim_each(&sim.streams, 0, UINT64_MAX, destroy_of_context,
             &(struct ending){&sim.streams, context});
    sim_each(&sim.events, 0, UINT64_MAX, destroy_of_context,
             &(struct ending){&sim.events, context});
}

static bool is_default(CUstream stream) {
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* The context whose stream it is; a default stream is the current context's. */
static CUresult context_of_stream(CUstream stream, uint64_t *id) {
    if (is_default(stream)) {
        struct context *context;
        CUresult status = sim_current_context(&context);
        if (status == CUDA_SUCCESS) {
            *id = context->id.base;
        }
        return status;
    }
    struct object *object = sim_find(&sim.streams, (uint64_t)(uintptr_t)stream, 1);
    if (object == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *id = object->context;
    return CUDA_SUCCESS;
}

static CUresult check_event(CUevent event) {
    return sim_find(&sim.events, (uint64_t)(uintptr_t)event, 1) != NULL ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_INVALID_HANDLE;
}

bool sim_is_stream(CUstream stream) {
    uint64_t context;
    return context_of_stream(stream, &context) == CUDA_SUCCESS;
}

CUresult sim_StreamCreate(CUstream *stream, unsigned int flags) {
    return flags <= CU_STREAM_NON_BLOCKING ? create(&sim.streams, stream)
                                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_StreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    (void)priority; /* any is allowed: the driver clamps it */
    return sim_StreamCreate(stream, flags);
}

CUresult sim_StreamDestroy(CUstream stream) {
    return destroy(&sim.streams, (uint64_t)(uintptr_t)stream);
}

CUresult sim_StreamSynchronize(CUstream stream) {
    uint64_t context;
    return context_of_stream(stream, &context);
}

CUresult sim_StreamQuery(CUstream stream) {
    return sim_StreamSynchronize(stream);
}

CUresult sim_StreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    (void)flags;
    CUresult status = sim_StreamSynchronize(stream);
    return status == CUDA_SUCCESS ? check_event(event) : status;
}

/* Nothing can be captured here. */
CUresult sim_StreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    if (status == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return sim_StreamSynchronize(stream);
}

CUresult sim_ThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static __thread CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode before = own;
    own = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult sim_EventCreate(CUevent *event, unsigned int flags) {
    const unsigned int known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    return (flags & ~known) == 0 ? create(&sim.events, event) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_EventDestroy(CUevent event) {
    return destroy(&sim.events, (uint64_t)(uintptr_t)event);
}

CUresult sim_EventRecord(CUevent event, CUstream stream) {
    uint64_t context = 0;
    CUresult status = context_of_stream(stream, &context);
    struct object *object = sim_find(&sim.events, (uint64_t)(uintptr_t)event, 1);
    if (status == CUDA_SUCCESS && (object == NULL || object->context != context)) {
        status = CUDA_ERROR_INVALID_HANDLE;
    }
    return status;
}

CUresult sim_EventQuery(CUevent event) {
    return check_event(event);
}

CUresult sim_EventSynchronize(CUevent event) {
    return check_event(event);
}

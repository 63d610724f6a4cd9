/* Streams and events. Work is done when the call that gives it returns, held stream or not;
 * what a held stream keeps waiting are events, and whoever waits for it. */
#include "sim.h"

#include <stdlib.h>

/* A stream, or an event: then `behind` is its place in the stream that it was recorded on. */
struct object {
    struct span id;
    uint64_t context;
    struct wait *behind;
    bool blocking;        /* of a stream */
    uint64_t captured_on; /* of an event: the captured stream it was last recorded on, or 0 */
};

static CUresult create(struct set *set, void *place, bool blocking) {
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
    *object = (struct object){{sim_next_id(), 1}, context->id.base, NULL, blocking, 0};
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
    sim_drop_wait(object->behind);
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

void sim_end_streams_of(struct context *context) {
    uint64_t id = context->id.base;
    sim_each(&sim.streams, 0, UINT64_MAX, destroy_of_context, &(struct ending){&sim.streams, id});
    sim_each(&sim.events, 0, UINT64_MAX, destroy_of_context, &(struct ending){&sim.events, id});
    sim_drop_wait(context->behind);
    context->behind = NULL;
}

/* The default streams of a context are one here, the legacy one. */
CUresult sim_find_place(CUstream stream, struct place *place) {
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        struct context *context;
        CUresult status = sim_current_context(&context);
        if (status == CUDA_SUCCESS) {
            *place = (struct place){context->id.base, &context->behind, true, true};
        }
        return status;
    }
    struct object *object = sim_find(&sim.streams, (uint64_t)(uintptr_t)stream, 1);
    if (object == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *place = (struct place){object->context, &object->behind, object->blocking, false};
    return CUDA_SUCCESS;
}

bool sim_is_stream(CUstream stream) {
    struct place place;
    return sim_find_place(stream, &place) == CUDA_SUCCESS;
}

CUresult sim_give_work(CUstream stream, bool *now) {
    struct place place;
    CUresult status = sim_find_place(stream, &place);
    *now = !sim_is_captured((uint64_t)(uintptr_t)stream);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (!*now) {
        return sim_add_node((uint64_t)(uintptr_t)stream);
    }
    return place.is_default ? sim_use_legacy_stream(place.context) : CUDA_SUCCESS;
}

static struct object *find_event(CUevent event) {
    return sim_find(&sim.events, (uint64_t)(uintptr_t)event, 1);
}

/* --- Streams ------------------------------------------------------------------------- */

CUresult sim_StreamCreate(CUstream *stream, unsigned int flags) {
    return flags <= CU_STREAM_NON_BLOCKING ? create(&sim.streams, stream, flags == 0)
                                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_StreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    (void)priority; /* any is allowed: the driver clamps it */
    return sim_StreamCreate(stream, flags);
}

CUresult sim_StreamDestroy(CUstream stream) {
    return destroy(&sim.streams, (uint64_t)(uintptr_t)stream);
}

CUresult sim_StreamGetCtx(CUstream stream, CUcontext *context) {
    struct place place;
    CUresult status = sim_find_place(stream, &place);
    if (status == CUDA_SUCCESS && context == NULL) {
        status = CUDA_ERROR_INVALID_VALUE;
    }
    if (status == CUDA_SUCCESS) {
        *context = (CUcontext)(uintptr_t)place.context;
    }
    return status;
}

/* Where a stream may be asked or waited for now: what it is behind. */
static CUresult look_at(CUstream stream, struct wait **behind) {
    struct place place;
    CUresult status = sim_find_place(stream, &place);
    if (status == CUDA_SUCCESS && sim_is_captured((uint64_t)(uintptr_t)stream)) {
        return sim_wait_in_capture((uint64_t)(uintptr_t)stream);
    }
    if (status == CUDA_SUCCESS && place.is_default) {
        status = sim_use_legacy_stream(place.context);
    }
    if (status == CUDA_SUCCESS) {
        status = sim_potentially_unsafe();
        *behind = *place.behind;
    }
    return status;
}

CUresult sim_StreamSynchronize(CUstream stream) {
    struct wait *behind;
    CUresult status = look_at(stream, &behind);
    if (status == CUDA_SUCCESS) {
        sim_wait_for(behind);
    }
    return status;
}

CUresult sim_StreamQuery(CUstream stream) {
    struct wait *behind;
    CUresult status = look_at(stream, &behind);
    return status != CUDA_SUCCESS || sim_has_passed(behind) ? status : CUDA_ERROR_NOT_READY;
}

CUresult sim_StreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    (void)flags;
    struct place place;
    CUresult status = sim_find_place(stream, &place);
    struct object *object = find_event(event);
    if (status != CUDA_SUCCESS || object == NULL) {
        return status != CUDA_SUCCESS ? status : CUDA_ERROR_INVALID_HANDLE;
    }
    if (sim_has_passed(object->behind)) {
        return CUDA_SUCCESS;
    }
    return sim_add_wait(place.behind, 0, 0, object->behind) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Holds the stream until the word has at least the value, as the driver compares by default. */
CUresult sim_StreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value,
                               unsigned int flags) {
    struct place place;
    bool now;
    if (flags != CU_STREAM_WAIT_VALUE_GEQ || word == 0 || word % sizeof value != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = sim_give_work(stream, &now);
    if (status != CUDA_SUCCESS || !now) {
        return status;
    }
    sim_find_place(stream, &place);
    return sim_add_wait(place.behind, word, value, NULL) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void wait_for_member(void *member, void *with) {
    struct object *stream = member;
    struct wait **next = with;
    if (*next == NULL && !sim_has_passed(stream->behind)) {
        *next = sim_share_wait(stream->behind);
    }
}

/* Streams may come and go meanwhile, so it looks for the next one to wait for each time. */
void sim_wait_for_all_streams(struct context *context) {
    struct wait *next;
    sim_wait_for(context->behind);
    do {
        next = NULL;
        sim_each(&sim.streams, 0, UINT64_MAX, wait_for_member, &next);
        sim_wait_for(next);
        sim_drop_wait(next);
    } while (next != NULL);
}

/* --- Events -------------------------------------------------------------------------- */

CUresult sim_EventCreate(CUevent *event, unsigned int flags) {
    const unsigned int known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    return (flags & ~known) == 0 ? create(&sim.events, event, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_EventDestroy(CUevent event) {
    return destroy(&sim.events, (uint64_t)(uintptr_t)event);
}

/* On a captured stream it marks a place in the graph, and adds no node to it. */
CUresult sim_EventRecord(CUevent event, CUstream stream) {
    struct place place;
    CUresult status = sim_find_place(stream, &place);
    struct object *object = find_event(event);
    if (status == CUDA_SUCCESS && (object == NULL || object->context != place.context)) {
        status = CUDA_ERROR_INVALID_HANDLE;
    }
    if (status == CUDA_SUCCESS && place.is_default) {
        status = sim_use_legacy_stream(place.context);
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    sim_drop_wait(object->behind);
    object->behind = sim_share_wait(*place.behind);
    uint64_t id = (uint64_t)(uintptr_t)stream;
    object->captured_on = sim_is_captured(id) ? id : 0;
    return CUDA_SUCCESS;
}

struct gathering {
    uint64_t context;
    struct wait *behind;
    bool complete;
};

static void gather_member(void *member, void *with) {
    struct object *stream = member;
    struct gathering *gathering = with;
    if (stream->context == gathering->context && !sim_has_passed(stream->behind)) {
        gathering->complete &= sim_add_wait(&gathering->behind, 0, 0, stream->behind);
    }
}

/* Behind all streams of the context; ends every capture in it. */
CUresult sim_CtxRecordEvent(CUcontext handle, CUevent event) {
    struct context *context = sim_find_context((uint64_t)(uintptr_t)handle);
    struct object *object = find_event(event);
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (object == NULL || object->context != context->id.base) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult status = sim_ends_captures_of(context->id.base);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    struct gathering gathering = {context->id.base, sim_share_wait(context->behind), true};
    sim_each(&sim.streams, 0, UINT64_MAX, gather_member, &gathering);
    if (!gathering.complete) {
        sim_drop_wait(gathering.behind);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_drop_wait(object->behind);
    object->behind = gathering.behind;
    object->captured_on = 0;
    return CUDA_SUCCESS;
}

/* Where an event may be asked or waited for now. */
static CUresult look_at_event(CUevent event, struct object **object) {
    *object = find_event(event);
    if (*object == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if ((*object)->captured_on == 0) {
        return sim_potentially_unsafe();
    }
    if (sim_is_captured((*object)->captured_on)) {
        sim_wait_in_capture((*object)->captured_on);
    }
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sim_EventQuery(CUevent event) {
    struct object *object;
    CUresult status = look_at_event(event, &object);
    return status != CUDA_SUCCESS || sim_has_passed(object->behind) ? status : CUDA_ERROR_NOT_READY;
}

CUresult sim_EventSynchronize(CUevent event) {
    struct object *object;
    CUresult status = look_at_event(event, &object);
    if (status == CUDA_SUCCESS) {
        sim_wait_for(object->behind);
    }
    return status;
}

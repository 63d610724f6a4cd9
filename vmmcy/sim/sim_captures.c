/* Captures of streams into graphs, as far as others have to take care not to end them.
 *
 * A graph here is a count of nodes. Work of a captured stream becomes a node and is not done;
 * a capture stays on its stream, also where an event would carry it to another one. */
#include "sim.h"

#include <stdlib.h>

struct capture {
    struct capture *next;
    uint64_t stream;
    uint64_t context;
    const void *thread; /* the thread that began it */
    CUstreamCaptureMode mode;
    bool blocking; /* the legacy stream waits for this one, so it cannot be used meanwhile */
    bool valid;
    uint64_t nodes;
};

struct graph {
    struct span id;
    uint64_t nodes;
};

static struct capture *captures;
static __thread CUstreamCaptureMode own_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static const void *this_thread(void) {
    return &own_mode;
}

static struct capture *capture_of(uint64_t stream) {
    struct capture *capture = captures;
    while (capture != NULL && capture->stream != stream) {
        capture = capture->next;
    }
    return capture;
}

/* Whether the calling thread may not make a potentially unsafe call because of it. */
static bool prohibits(const struct capture *capture) {
    if (own_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return false;
    }
    return capture->thread == this_thread() || (own_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                                capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_potentially_unsafe(void) {
    CUresult status = CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (prohibits(capture)) {
            capture->valid = false;
            status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return status;
}

CUresult sim_ends_captures_of(uint64_t context) {
    CUresult status = CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (capture->context == context) {
            capture->valid = false;
            status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return status;
}

static struct capture *implicitly_captured(uint64_t context) {
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (capture->context == context && capture->blocking) {
            return capture;
        }
    }
    return NULL;
}

CUresult sim_use_legacy_stream(uint64_t context) {
    struct capture *capture = implicitly_captured(context);
    if (capture == NULL) {
        return CUDA_SUCCESS;
    }
    capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

bool sim_is_captured(uint64_t stream) {
    return capture_of(stream) != NULL;
}

CUresult sim_add_node(uint64_t stream) {
    struct capture *capture = capture_of(stream);
    capture->nodes++;
    return capture->valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult sim_wait_in_capture(uint64_t stream) {
    capture_of(stream)->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* --- Calls --------------------------------------------------------------------------- */

CUresult sim_StreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    uint64_t id = (uint64_t)(uintptr_t)stream;
    struct place place;
    CUresult status = sim_find_place(stream, &place);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (place.is_default) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || sim_is_captured(id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture =
        (struct capture){captures, id, place.context, this_thread(), mode, place.blocking, true, 0};
    captures = capture;
    return CUDA_SUCCESS;
}

/* Whatever comes of it, the capture is over. */
CUresult sim_StreamEndCapture(CUstream stream, CUgraph *place) {
    struct capture **link = &captures;
    while (*link != NULL && (*link)->stream != (uint64_t)(uintptr_t)stream) {
        link = &(*link)->next;
    }
    if (*link == NULL || place == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct capture ended = **link;
    if (ended.thread != this_thread() && ended.mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    free(*link);
    *link = ended.next;
    *place = NULL;
    if (!ended.valid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *graph = (struct graph){{sim_next_id(), 1}, ended.nodes};
    if (!sim_add(&sim.graphs, &graph->id)) {
        free(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *place = (CUgraph)(uintptr_t)graph->id.base;
    return CUDA_SUCCESS;
}

CUresult sim_StreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    struct place place;
    CUresult found = sim_find_place(stream, &place);
    if (found != CUDA_SUCCESS || status == NULL) {
        return status == NULL ? CUDA_ERROR_INVALID_VALUE : found;
    }
    if (place.is_default && implicitly_captured(place.context) != NULL) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* asking alone leaves it valid */
    }
    struct capture *capture = capture_of((uint64_t)(uintptr_t)stream);
    *status = capture == NULL  ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                               : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
}

CUresult sim_ThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode before = own_mode;
    own_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult sim_GraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
    struct graph *graph = sim_find(&sim.graphs, (uint64_t)(uintptr_t)handle, 1);
    if (graph == NULL || count == NULL || nodes != NULL) {
        return CUDA_ERROR_INVALID_VALUE; /* there are no nodes to give out, only their count */
    }
    *count = graph->nodes;
    return CUDA_SUCCESS;
}

CUresult sim_GraphDestroy(CUgraph handle) {
    struct graph *graph = sim_find(&sim.graphs, (uint64_t)(uintptr_t)handle, 1);
    if (graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_remove(&sim.graphs, &graph->id);
    free(graph);
    return CUDA_SUCCESS;
}

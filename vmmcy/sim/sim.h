/* The simulated driver's shared state and the rooms' ways to each other.
 *
 * sim_names.c         cuGetProcAddress and the entry of every call
 * sim_faults.c        the one gate of all calls: counts them, makes them fail on request
 * sim_control.c       configuration, what is alive, forks: what vmmcy/sim/__init__.py asks for
 * sim_spans.c         the one ordered set that everything is kept in
 * sim_errors.c        names and texts of statuses
 * sim_devices.c       devices and their attributes
 * sim_contexts.c      primary and created contexts, each thread's stack of them
 * sim_streams.c       streams and events, as far as they need no kernels
 * sim_waits.c         what holds a stream
 * sim_captures.c      captures, and what ends them
 * sim_reservations.c  address space
 * sim_allocations.c   physical memory and the handles on it
 * sim_sharing.c       export and import as POSIX file descriptors
 * sim_mappings.c      map, unmap, access, range queries
 * sim_other_memory.c  cuMemAlloc, cuMemAllocAsync, cuMemHostAlloc, pointer attributes
 * sim_copies.c        memcpy and memset
 *
 * One lock covers it all: it is taken at the entry of a call, so no function here locks.
 * What is not in cuda.h follows tests/h200_580.json, a recording of a real driver. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAX_DEVICES 32
#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_DRIVER_VERSION 13000

/* --- Sets of spans ------------------------------------------------------------------- */

/* First member of whatever is kept in a set: the numbers that find it. Memory has its
 * addresses, everything else an id and the size 1. Spans of one set never overlap. */
struct span {
    uint64_t base;
    uint64_t size;
};

struct set {
    void *root;
    uint64_t count;
};

typedef void sim_visit(void *member, void *with);

bool sim_add(struct set *set, struct span *member);
void sim_remove(struct set *set, struct span *member);
/* Some member that overlaps [base, base + size), NULL for none. */
void *sim_find(const struct set *set, uint64_t base, uint64_t size);
/* Visits, in ascending order, all members that overlap; a visit may remove its own. */
void sim_each(const struct set *set, uint64_t base, uint64_t size, sim_visit *visit, void *with);

static inline uint64_t sim_end(struct span span) {
    return span.base + span.size;
}

/* --- What the driver keeps ----------------------------------------------------------- */

/* Physical memory: offsets into one sparse file. */
struct pool {
    int file;
    uint64_t next_offset;
    uint64_t used_bytes;
};

struct context {
    struct span id;
    CUdevice device;
    unsigned int flags;
    unsigned int references; /* a primary context is active while there are any */
    struct wait *behind;     /* what holds its default stream */
};

struct device {
    struct pool pool;
    struct context primary;
};

struct allocation {
    struct span id; /* its base is the CUmemGenericAllocationHandle */
    uint64_t size;
    uint64_t granularity; /* the importer may be configured with another one */
    uint64_t references;  /* on the handle; the memory stays while it is mapped, too */
    CUmemAllocationProp prop;
    struct pool *pool; /* charged for it; NULL for imported memory */
    int file;
    uint64_t offset;
    bool private_file; /* exported or imported: `file` holds this allocation alone */
    struct memory *mappings;
};

enum memory_kind { SIM_MAPPED, SIM_DEVICE, SIM_POOL, SIM_HOST };

/* Anything at an address that a range query can meet. */
struct memory {
    struct span span;
    enum memory_kind kind;
    uint64_t readable; /* bit d: by device d */
    uint64_t writable;
    CUdevice device;
    uint64_t context;              /* id of the one it was allocated in; 0 for SIM_MAPPED */
    struct allocation *allocation; /* of SIM_MAPPED alone, as the two links */
    struct memory *next;
    struct memory *previous;
};

struct reservation {
    struct span span;
};

struct sim {
    bool initialised;
    int device_count;
    uint64_t memory_bytes;
    uint64_t granularity;
    struct device devices[SIM_MAX_DEVICES];
    struct pool host;
    struct set contexts; /* created ones; primary ones stand with their device */
    struct set streams;
    struct set events;
    struct set graphs;
    struct set reservations;
    struct set allocations;
    struct set memory;
    uint64_t handle_references;
    uint64_t mappings;
    uint64_t mapped_bytes;
    uint64_t private_files;
};

extern struct sim sim;

/* --- Calls --------------------------------------------------------------------------- */

enum sim_call {
#define CALL(name, version, parameters, arguments) CALL_##name,
#define ABI(name, suffix, version, parameters, arguments)
#include "sim_calls.h"
#undef CALL
#undef ABI
    SIM_CALL_COUNT
};

#define CALL(name, version, parameters, arguments) CUresult sim_##name parameters;
#define ABI(name, suffix, version, parameters, arguments) CUresult sim_##name##suffix parameters;
#include "sim_calls.h"
#undef CALL
#undef ABI

/* Success: the lock is held until sim_leave. Otherwise the call's answer, and no lock. */
CUresult sim_enter(enum sim_call call);
void sim_leave(void);
/* Takes the answer that vmmcy_sim_answer_range prepared for a query of this address. */
bool sim_take_answer(uint64_t address, struct span *answer);

void sim_lock(void);
void sim_unlock(void);
/* In a child of a process that had initialised the driver. */
bool sim_is_inherited(void);

/* --- Between the rooms --------------------------------------------------------------- */

/* Ids are handed out once and start far above what a test would make up. */
uint64_t sim_next_id(void);

bool sim_has_device(CUdevice device);
static inline uint64_t sim_device_bit(CUdevice device) {
    return 1ull << device;
}

/* INVALID_CONTEXT without a current context, CONTEXT_IS_DESTROYED if it is no more. */
struct context *sim_find_context(uint64_t id); /* NULL: there is none */
CUresult sim_current_context(struct context **context);
void sim_end_streams_of(struct context *context);
void sim_end_memory_of(uint64_t context);
bool sim_is_stream(CUstream stream);
void sim_wait_for_all_streams(struct context *context);

/* Where the work of a stream goes. */
struct place {
    uint64_t context;
    struct wait **behind; /* what the next work has to wait for */
    bool blocking;        /* one that the legacy stream waits for */
    bool is_default;
};

/* A default stream is that of the current context. */
CUresult sim_find_place(CUstream stream, struct place *place);
/* Whether work may be given to a stream; `now` is false where it becomes a node of a graph. */
CUresult sim_give_work(CUstream stream, bool *now);

/* NULL stands for what was never held. */
struct wait *sim_share_wait(struct wait *wait);
void sim_drop_wait(struct wait *wait);
bool sim_has_passed(struct wait *wait);
void sim_wait_for(struct wait *wait);
/* Puts a wait behind `*behind`, for a word, or without one for what comes before it too. */
bool sim_add_wait(struct wait **behind, uint64_t word, uint32_t value, struct wait *also_before);

/* At the start of what the driver calls potentially unsafe: ends each capture that prohibits
 * it to this thread, and is an error where there was one. */
CUresult sim_potentially_unsafe(void);
/* At the start of what ends the captures of a context in every mode. */
CUresult sim_ends_captures_of(uint64_t context);
/* An error, and the end of a capture, while a stream that it waits for is captured. */
CUresult sim_use_legacy_stream(uint64_t context);
bool sim_is_captured(uint64_t stream);
/* Work, and a wait, of a stream that is captured. */
CUresult sim_add_node(uint64_t stream);
CUresult sim_wait_in_capture(uint64_t stream);

/* Lays pages of a file over a span, without access: in place of reserved address space, and
 * past a reservation's end only where nothing is. */
CUresult sim_lay(struct span at, int file, uint64_t offset);
/* Takes the pages away: reserved address space is reserved again, the rest is unmapped. */
bool sim_strip(struct span at);

/* NULL unless the handle is alive, which a released one is not, mapped or not. */
struct allocation *sim_live_allocation(CUmemGenericAllocationHandle handle);
struct allocation *sim_add_allocation(uint64_t size, const CUmemAllocationProp *prop);
/* Ends an allocation that has neither references nor mappings left. */
void sim_settle(struct allocation *allocation);
void sim_punch(const struct allocation *allocation);
int sim_protection(const struct memory *memory);

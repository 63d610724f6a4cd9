#include "_peers.h"

#include <pthread.h>
#include <stdlib.h>

enum { ALIGN = 512 };

struct extent {
    uintptr_t base;
    size_t size_bytes;
    size_t cursor;
};

struct private_arena {
    _Alignas(128) pthread_mutex_t mutex;
    struct extent extent;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct extent *extents;
static size_t extent_count;
static size_t freed_bytes;
static struct private_arena private_arenas[PRIVATE_PEERS] = {
    [0 ... PRIVATE_PEERS - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

int peers_set_extents(const uint64_t *bases, const uint64_t *sizes, size_t count) {
    struct extent *fresh = malloc(count * sizeof *fresh);
    if (fresh == NULL)
        return -1;
    for (size_t i = 0; i < count; i++)
        fresh[i] = (struct extent){bases[i], sizes[i], 0};
    for (size_t i = 0; i < PRIVATE_PEERS; i++)
        private_arenas[i].extent = fresh[count - 1];
    free(extents);
    extents = fresh;
    extent_count = count;
    return 0;
}

static size_t align_up(size_t size_bytes) {
    return (size_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void *bump(struct extent *extent, size_t need) {
    if (extent->size_bytes - extent->cursor < need)
        return NULL;
    uintptr_t address = extent->base + extent->cursor;
    extent->cursor += need;
    return (void *)address;
}

void *peer_bare_add(size_t size_bytes, int device, void *stream) {
    (void)device, (void)stream;
    return bump(&extents[extent_count - 1], align_up(size_bytes));
}

void *peer_mutex_add(size_t size_bytes, int device, void *stream) {
    pthread_mutex_lock(&mutex);
    void *address = peer_bare_add(size_bytes, device, stream);
    pthread_mutex_unlock(&mutex);
    return address;
}

void *peer_mutex_scan(size_t size_bytes, int device, void *stream) {
    (void)device, (void)stream;
    size_t need = align_up(size_bytes);
    void *address = NULL;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < extent_count && address == NULL; i++)
        address = bump(&extents[i], need);
    pthread_mutex_unlock(&mutex);
    return address;
}

void *peer_mutex_scan_best(size_t size_bytes, int device, void *stream) {
    (void)device, (void)stream;
    size_t need = align_up(size_bytes);
    struct extent *best = NULL;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < extent_count; i++) {
        size_t left = extents[i].size_bytes - extents[i].cursor;
        if (left >= need && (best == NULL || left < best->size_bytes - best->cursor))
            best = &extents[i];
    }
    void *address = best == NULL ? NULL : bump(best, need);
    pthread_mutex_unlock(&mutex);
    return address;
}

void peer_bare_free(void *address, size_t size_bytes, int device, void *stream) {
    (void)address, (void)device, (void)stream;
    freed_bytes += align_up(size_bytes);
}

void peer_mutex_scan_free(void *address, size_t size_bytes, int device, void *stream) {
    (void)device, (void)stream;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < extent_count; i++) {
        if ((uintptr_t)address - extents[i].base < extents[i].size_bytes) {
            freed_bytes += align_up(size_bytes);
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
}

#define PRIVATE_PEER(k)                                                                            \
    static void *peer_private_##k(size_t size_bytes, int device, void *stream) {                   \
        (void)device, (void)stream;                                                                \
        pthread_mutex_lock(&private_arenas[k].mutex);                                              \
        void *address = bump(&private_arenas[k].extent, align_up(size_bytes));                     \
        pthread_mutex_unlock(&private_arenas[k].mutex);                                            \
        return address;                                                                            \
    }
PRIVATE_PEER(0)
PRIVATE_PEER(1)
PRIVATE_PEER(2)
PRIVATE_PEER(3)
PRIVATE_PEER(4)
PRIVATE_PEER(5)
PRIVATE_PEER(6)
PRIVATE_PEER(7)

const malloc_function peers_private[PRIVATE_PEERS] = {
    peer_private_0, peer_private_1, peer_private_2, peer_private_3,
    peer_private_4, peer_private_5, peer_private_6, peer_private_7};

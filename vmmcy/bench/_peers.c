#include "_peers.h"

#include <pthread.h>
#include <stdlib.h>

enum { ALIGN = 512 };

struct extent {
    uintptr_t base;
    size_t size_bytes;
    size_t cursor;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct extent *extents;
static size_t extent_count;

int peers_set_extents(uintptr_t base, size_t size_bytes, size_t count) {
    struct extent *fresh = malloc(count * sizeof *fresh);
    if (fresh == NULL)
        return -1;
    for (size_t i = 0; i < count; i++)
        fresh[i] = (struct extent){base + i * size_bytes, size_bytes, size_bytes};
    fresh[count - 1].cursor = 0;
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

/* The allocators that engines write by hand, behind the signature that torch calls. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *(*malloc_function)(size_t size_bytes, int device, void *stream);

/* Gives every peer below the same `count` extents of `size_bytes`, one after the other from
 * `base`, all of them full but the last. */
int peers_set_extents(uintptr_t base, size_t size_bytes, size_t count);

void *peer_bare_add(size_t size_bytes, int device, void *stream);
void *peer_mutex_add(size_t size_bytes, int device, void *stream);
void *peer_mutex_scan(size_t size_bytes, int device, void *stream);

#ifdef __cplusplus
}
#endif

/* The allocators that engines write by hand, behind the signature that torch calls, and a loop
 * that times any such allocator from several threads at once. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PRIVATE_PEERS = 8 };

typedef void *(*malloc_function)(size_t size_bytes, int device, void *stream);
typedef void (*free_function)(void *pointer, size_t size_bytes, int device, void *stream);

/* Gives the shared peers these extents, all empty, and each private one the last of them. */
int peers_set_extents(const uint64_t *bases, const uint64_t *sizes, size_t count);

void *peer_bare_add(size_t size_bytes, int device, void *stream);
void *peer_mutex_add(size_t size_bytes, int device, void *stream);
void *peer_mutex_scan(size_t size_bytes, int device, void *stream);
void *peer_mutex_scan_best(size_t size_bytes, int device, void *stream);
void peer_bare_free(void *address, size_t size_bytes, int device, void *stream);
void peer_mutex_scan_free(void *address, size_t size_bytes, int device, void *stream);

/* Allocators that share nothing, not even a cache line: a mutex and an add each. */
extern const malloc_function peers_private[PRIVATE_PEERS];

/* Nanoseconds until `threads` threads have each called their function `count` times, or -1 where
 * a thread could not be started or an allocator gave NULL. */
int64_t peers_time_threads(const malloc_function *functions, size_t threads, size_t size_bytes,
                           int64_t count);

#ifdef __cplusplus
}
#endif

/* Several threads at allocators: started together, timed until the last one is done. */
#include "_peers.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

enum { MOST_THREADS = 64 };

struct caller {
    malloc_function function;
    size_t size_bytes;
    int64_t count;
    pthread_barrier_t *start;
    bool refused;
};

static void *call_allocator(void *argument) {
    struct caller *caller = argument;
    bool refused = false;
    pthread_barrier_wait(caller->start);
    for (int64_t i = 0; i < caller->count; i++)
        refused |= caller->function(caller->size_bytes, 0, NULL) == NULL;
    caller->refused = refused;
    return NULL;
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

int64_t peers_time_threads(const malloc_function *functions, size_t threads, size_t size_bytes,
                           int64_t count) {
    pthread_t started[MOST_THREADS];
    struct caller callers[MOST_THREADS];
    pthread_barrier_t start;
    if (threads > MOST_THREADS || pthread_barrier_init(&start, NULL, (unsigned)(threads + 1)) != 0)
        return -1;
    for (size_t i = 0; i < threads; i++) {
        callers[i] = (struct caller){functions[i], size_bytes, count, &start, false};
        /* A thread short, the others would wait at the barrier for ever. */
        if (pthread_create(&started[i], NULL, call_allocator, &callers[i]) != 0)
            __builtin_trap();
    }
    pthread_barrier_wait(&start);
    int64_t begun = now_ns();
    bool refused = false;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(started[i], NULL);
        refused |= callers[i].refused;
    }
    int64_t elapsed = now_ns() - begun;
    pthread_barrier_destroy(&start);
    return refused ? -1 : elapsed;
}

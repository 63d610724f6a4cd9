/* Configuration, forks, and what is alive: what vmmcy/sim/__init__.py asks for. */
#include "sim.h"

#include <pthread.h>

struct sim sim = {
    .device_count = 1,
    .memory_bytes = 16ull << 30,
    .granularity = 2ull << 20,
    .host.file = -1,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool inherited;

void sim_lock(void) {
    pthread_mutex_lock(&lock);
}

void sim_unlock(void) {
    pthread_mutex_unlock(&lock);
}

bool sim_is_inherited(void) {
    return inherited;
}

uint64_t sim_next_id(void) {
    static uint64_t last = 1ull << 40;
    return ++last;
}

/* As a real driver, ours does not survive a fork that comes after cuInit; a fork before it
 * leaves a child that may start afresh. The lock is held across the fork, so that the child
 * gets it free and the state whole. */
static void in_child(void) {
    inherited = inherited || sim.initialised;
    sim_unlock();
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(sim_lock, sim_unlock, in_child);
    for (int device = 0; device < SIM_MAX_DEVICES; device++) {
        sim.devices[device].pool.file = -1;
    }
}

enum { ALIVE_COUNTS = 10 };

/* In the order of `_ALIVE` in vmmcy/sim/__init__.py. */
static void count_alive(uint64_t *counts) {
    counts[0] = sim.reservations.count;
    counts[1] = sim.handle_references;
    counts[2] = sim.mappings;
    counts[3] = sim.mapped_bytes;
    counts[4] = sim.private_files;
    counts[5] = sim.memory.count - sim.mappings;
    counts[6] = sim.streams.count;
    counts[7] = sim.events.count;
    counts[8] = sim.contexts.count;
    counts[9] = sim.graphs.count;
}

SIM_EXPORT void vmmcy_sim_live(uint64_t *counts) {
    sim_lock();
    count_alive(counts);
    sim_unlock();
}

/* Writes the three arguments of vmmcy_sim_configure, and whether cuInit has been called. */
SIM_EXPORT void vmmcy_sim_configuration(uint64_t *values) {
    sim_lock();
    values[0] = (uint64_t)sim.device_count;
    values[1] = sim.memory_bytes;
    values[2] = sim.granularity;
    values[3] = sim.initialised;
    sim_unlock();
}

/* False, and nothing changed, while anything is alive. Primary contexts stay: callers keep
 * their handles for the life of the process. */
SIM_EXPORT bool vmmcy_sim_configure(int devices, uint64_t memory_bytes, uint64_t granularity) {
    uint64_t alive[ALIVE_COUNTS];
    sim_lock();
    count_alive(alive);
    bool idle = true;
    for (size_t i = 0; i < ALIVE_COUNTS; i++) {
        idle = idle && alive[i] == 0;
    }
    if (idle) {
        sim.device_count = devices;
        sim.memory_bytes = memory_bytes;
        sim.granularity = granularity;
    }
    sim_unlock();
    return idle;
}

/* The books of handle pools: which handles wait for use, and how many are out.
 *
 * Plain state behind locks; knows no driver and never touches Python. For every handle that is
 * out there is room to come back, so that none is lost for lack of host memory.
 *
 * Lock order: a reservation's lock, then the registry's, then a pool's.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "outcome.h"

namespace vmmcy {

/* A handle that waits, and whose bytes are in it: a reservation's number, 0 for nobody's. */
struct Pooled {
    uint64_t handle;
    uint64_t giver;
};

class PoolBooks {
  public:
    const int device_id;
    const uint64_t chunk_bytes;
    const uint64_t capacity_bytes;
    std::atomic<int> state{OPEN};
    std::mutex mutex;

    /* With the registry's lock. */
    PoolBooks *next = nullptr;

    PoolBooks(int device_id, uint64_t chunk_bytes, uint64_t capacity_bytes)
        : device_id(device_id), chunk_bytes(chunk_bytes), capacity_bytes(capacity_bytes) {}

    /* ---- with the pool's lock held */

    std::vector<Pooled> unused; /* the one given back last is used first */
    uint64_t out = 0;           /* handles that are to come back, or to be taken off here */
    uint64_t awaiting = 0;      /* who has paused, and will take handles anew */

    uint64_t unused_bytes() const noexcept {
        return unused.size() * chunk_bytes;
    }

    bool has_room() const noexcept {
        return unused_bytes() + chunk_bytes <= capacity_bytes;
    }

    /* Make room for `count` handles more to come back. */
    Refusal expect(uint64_t count) noexcept {
        if (state.load() != OPEN)
            return {POOL_CLOSED};
        uint64_t needed = unused.size() + out + count;
        try {
            if (needed > unused.capacity())
                unused.reserve(std::max<uint64_t>(needed, 2 * unused.capacity()));
        } catch (const std::exception &) {
            return {NO_HOST_MEMORY};
        }
        out += count;
        return {};
    }

    /* One that is out comes back: there is room. */
    void keep(uint64_t handle, uint64_t giver) noexcept {
        unused.push_back({handle, giver});
        out--;
    }

    /* Take one of those there are; it was expected. */
    Pooled draw() noexcept {
        Pooled last = unused.back();
        unused.pop_back();
        return last;
    }

    void strike_off(uint64_t index) noexcept {
        unused.erase(unused.begin() + index);
    }
};

/* Handles on their way into a pool. */
struct NewHandles {
    std::vector<unsigned long long> handles;

    bool make_room(uint64_t count) noexcept {
        try {
            handles.reserve(count);
        } catch (const std::exception &) {
            return false;
        }
        return true;
    }

    void add(unsigned long long handle) noexcept {
        handles.push_back(handle);
    }
};

/* All pools of a process, to be emptied when memory runs out. */
class PoolRegistry {
  public:
    std::mutex mutex;
    PoolBooks *first = nullptr;

    void add(PoolBooks *pool) noexcept {
        std::lock_guard<std::mutex> guard(mutex);
        pool->next = first;
        first = pool;
    }

    void remove(PoolBooks *pool) noexcept {
        std::lock_guard<std::mutex> guard(mutex);
        for (PoolBooks **place = &first; *place; place = &(*place)->next) {
            if (*place == pool) {
                *place = pool->next;
                return;
            }
        }
    }
};

} // namespace vmmcy

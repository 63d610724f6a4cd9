/* Address space: reserved as pages that nobody may touch.
 *
 * Reservations lie in a quiet zone of the process, apart by a wide gap, so that a mapping
 * which straddles a reservation's end (a real driver lets it) meets nothing there, and the
 * address right behind a reservation can be asked for. Where the zone has no room, or is
 * not to be had (under a sanitizer, say), the kernel picks the place. */
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>

static const uint64_t zone_start = 0x110000000000; /* above a sanitizer's shadow memory */
static const uint64_t zone_end = 0x550000000000;   /* below where programs are loaded */
static const uint64_t gap = 1ull << 30;
static const uint64_t limit = 1ull << 47; /* recorded: 2^46 bytes can be reserved, 2^47 not */

static const int reserving = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

static void *pointer(uint64_t address) {
    return (void *)(uintptr_t)address;
}

static uint64_t align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
}

static bool is_taken(uint64_t base, uint64_t size) {
    return sim_find(&sim.reservations, base, size) != NULL ||
           sim_find(&sim.memory, base, size) != NULL;
}

/* Without MAP_FIXED the address is a wish: it is granted where nothing lies, and where a tool
 * that watches memory allows it. */
static bool reserve_at(uint64_t base, uint64_t size) {
    void *got = mmap(pointer(base), size, PROT_NONE, reserving, -1, 0);
    if (got != MAP_FAILED && got != pointer(base)) {
        munmap(got, size);
    }
    return got == pointer(base);
}

/* The lowest place in the zone that is ours, or 0. */
static uint64_t reserve_in_zone(uint64_t size, uint64_t alignment) {
    uint64_t base = align_up(zone_start, alignment);
    while (base < zone_end && size <= zone_end - base) {
        struct span *taken = sim_find(&sim.reservations, base - gap, size + 2 * gap);
        if (taken == NULL) {
            return reserve_at(base, size) ? base : 0;
        }
        base = align_up(sim_end(*taken) + gap, alignment);
    }
    return 0;
}

/* Wherever the kernel has room, or 0. */
static uint64_t reserve_anywhere(uint64_t size, uint64_t alignment) {
    void *got = mmap(NULL, size + alignment, PROT_NONE, reserving, -1, 0);
    if (got == MAP_FAILED) {
        return 0;
    }
    uint64_t start = (uint64_t)(uintptr_t)got;
    uint64_t base = align_up(start, alignment);
    if (base > start) {
        munmap(got, base - start);
    }
    munmap(pointer(base + size), start + alignment - base);
    return base;
}

CUresult sim_MemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
                               CUdeviceptr requested, unsigned long long flags) {
    if (address == NULL || flags != 0 || size == 0 || size % sim.granularity != 0 ||
        (alignment & (alignment - 1)) != 0 || requested % sim.granularity != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (size >= limit || alignment >= limit) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (alignment < sim.granularity) {
        alignment = sim.granularity;
    }
    struct reservation *reservation = calloc(1, sizeof *reservation);
    if (reservation == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t base = 0;
    if (requested != 0 && requested % alignment == 0 && requested <= limit - size &&
        !is_taken(requested, size) && reserve_at(requested, size)) {
        base = requested;
    }
    base = base != 0 ? base : reserve_in_zone(size, alignment);
    base = base != 0 ? base : reserve_anywhere(size, alignment);
    reservation->span = (struct span){base, size};
    if (base == 0 || !sim_add(&sim.reservations, &reservation->span)) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = base;
    return CUDA_SUCCESS;
}

CUresult sim_MemAddressFree(CUdeviceptr address, size_t size) {
    struct reservation *reservation = sim_find(&sim.reservations, address, 1);
    if (reservation == NULL || reservation->span.base != address ||
        reservation->span.size != size || sim_find(&sim.memory, address, size) != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(pointer(address), size);
    sim_remove(&sim.reservations, &reservation->span);
    free(reservation);
    return CUDA_SUCCESS;
}

/* --- Pages in a reservation, and past its end ------------------------------------------ */

/* The part of `at` from `address` on that lies in one reservation, or a step outside of
 * all. A step is a page run of one granularity: to straddle is rare, and never far. */
static uint64_t piece(struct span at, uint64_t address, bool *inside) {
    struct reservation *reservation = sim_find(&sim.reservations, address, 1);
    uint64_t left = sim_end(at) - address;
    *inside = reservation != NULL;
    uint64_t size = *inside ? sim_end(reservation->span) - address : sim.granularity;
    return size < left ? size : left;
}

CUresult sim_lay(struct span at, int file, uint64_t offset) {
    for (uint64_t address = at.base; address < sim_end(at);) {
        bool inside;
        uint64_t size = piece(at, address, &inside);
        void *got = mmap(pointer(address), size, PROT_NONE,
                         MAP_SHARED | (inside ? MAP_FIXED : MAP_FIXED_NOREPLACE), file,
                         (off_t)(offset + (address - at.base)));
        if (got != pointer(address)) {
            if (got != MAP_FAILED) {
                munmap(got, size);
            }
            sim_strip((struct span){at.base, address - at.base});
            return inside ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
        }
        address += size;
    }
    return CUDA_SUCCESS;
}

bool sim_strip(struct span at) {
    for (uint64_t address = at.base; address < sim_end(at);) {
        bool inside;
        uint64_t size = piece(at, address, &inside);
        if (inside ? mmap(pointer(address), size, PROT_NONE, reserving | MAP_FIXED, -1, 0) ==
                         MAP_FAILED
                   : munmap(pointer(address), size) != 0) {
            return false;
        }
        address += size;
    }
    return true;
}

#include "entry_points.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "fork_count.h"

#define EXPORT __attribute__((visibility("default")))

static struct vmmcy_slot slots[VMMCY_SLOT_COUNT + 1];

/* Numbers of the slots that nobody holds, the one dropped first in front. */
static uint16_t unheld[VMMCY_SLOT_COUNT];
static unsigned unheld_count;

/* Guards `unheld` and every slot's `open` and `held`; taken before a slot's lock. */
static struct slot_lock table_lock;

static void take_table(void) {
    slot_lock_take(&table_lock);
}

static void give_table(void) {
    slot_lock_give(&table_lock);
}

__attribute__((constructor)) static void prepare_table(void) {
    for (uint16_t k = 0; k < VMMCY_SLOT_COUNT; k++) {
        slots[k].number = unheld[k] = k;
    }
    unheld_count = VMMCY_SLOT_COUNT;
    /* Forking with the table locked gives the child a whole and free one. */
    pthread_atfork(take_table, give_table, give_table);
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static bool slot_lock_try(struct slot_lock *lock) {
    return !__atomic_load_n(&lock->taken, __ATOMIC_RELAXED) &&
           !__atomic_exchange_n(&lock->taken, 1, __ATOMIC_ACQUIRE);
}

/* The holder needs some nanoseconds, unless it lost its core: spin a little,
 * then give the core away, for longer and longer. */
__attribute__((noinline)) void slot_lock_wait(struct slot_lock *lock) {
    enum { SPIN_ROUNDS = 6, YIELD_ROUNDS = 16, LONGEST_SLEEP_NS = 1000000 };
    for (unsigned round = 0; round < SPIN_ROUNDS; round++) {
        for (unsigned spin = 0; spin < 1u << round; spin++) {
            pause_briefly();
        }
        if (slot_lock_try(lock)) {
            return;
        }
    }
    for (unsigned round = 0; round < YIELD_ROUNDS; round++) {
        sched_yield();
        if (slot_lock_try(lock)) {
            return;
        }
    }
    struct timespec nap = {0, 1000};
    while (!slot_lock_try(lock)) {
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < LONGEST_SLEEP_NS) {
            nap.tv_nsec *= 2;
        }
    }
}

bool vmmcy_slot_is_ours(const struct vmmcy_slot *slot) {
    return __atomic_load_n(&slot->stamp, __ATOMIC_RELAXED) == vmmcy_fork_count + 1;
}

/* Looked at before the lock: in a forked child another thread of the parent may
 * hold it for ever. */
static void *slot_malloc(struct vmmcy_slot *slot, size_t size_bytes, int device, void *stream) {
    if (!vmmcy_slot_is_ours(slot)) {
        return NULL;
    }
    slot_lock_take(&slot->lock);
    void *address = slot->room.malloc_fn(slot->state, size_bytes, device, stream);
    slot_lock_give(&slot->lock);
    return address;
}

static void slot_free(struct vmmcy_slot *slot, void *address, size_t size_bytes, void *stream) {
    if (!vmmcy_slot_is_ours(slot)) {
        return;
    }
    slot_lock_take(&slot->lock);
    slot->room.free_fn(slot->state, address, size_bytes, stream);
    slot_lock_give(&slot->lock);
}

static void *refuse(void *state, size_t size_bytes, int device, void *stream) {
    (void)state, (void)size_bytes, (void)device, (void)stream;
    return NULL;
}

void vmmcy_slot_step_out(struct vmmcy_slot *slot) {
    slot->stepped_out++;
    slot_lock_give(&slot->lock);
}

void vmmcy_slot_step_in(struct vmmcy_slot *slot) {
    slot_lock_take(&slot->lock);
    slot->stepped_out--;
}

/* With the lock held. */
static uint64_t outstanding_of(const struct vmmcy_slot *slot) {
    return slot->room.outstanding_fn(slot->state) + slot->stepped_out;
}

uint64_t vmmcy_slot_outstanding(struct vmmcy_slot *slot) {
    if (slot->stamp == 0) {
        return 0;
    }
    if (!vmmcy_slot_is_ours(slot)) {
        /* Whoever held it is a thread of the parent, which this process has not. */
        slot_lock_give(&slot->lock);
        slot->stepped_out = 0;
    }
    slot_lock_take(&slot->lock);
    uint64_t outstanding = outstanding_of(slot);
    slot_lock_give(&slot->lock);
    return outstanding;
}

static struct vmmcy_slot *next_idle_slot(void) {
    for (unsigned i = 0; i < unheld_count; i++) {
        struct vmmcy_slot *slot = &slots[unheld[i]];
        if (vmmcy_slot_outstanding(slot) == 0) {
            unheld_count--;
            memmove(&unheld[i], &unheld[i + 1], (unheld_count - i) * sizeof unheld[0]);
            return slot;
        }
    }
    return NULL;
}

struct vmmcy_slot *vmmcy_slot_claim(const struct vmmcy_room *room, void *state) {
    void (*destroy_fn)(void *state) = NULL;
    void *last_state = NULL;
    take_table();
    struct vmmcy_slot *slot = next_idle_slot();
    if (slot) {
        slot->open = slot->held = true;
        /* A stale caller may come in at any time: it sees the old room or the new. */
        slot_lock_take(&slot->lock);
        destroy_fn = slot->room.destroy_fn;
        last_state = slot->state;
        slot->room = *room;
        slot->state = state;
        __atomic_store_n(&slot->stamp, vmmcy_fork_count + 1, __ATOMIC_RELAXED);
        slot_lock_give(&slot->lock);
    }
    give_table();
    if (last_state) {
        destroy_fn(last_state);
    }
    return slot;
}

bool vmmcy_slot_shut(struct vmmcy_slot *slot, bool force) {
    take_table();
    slot_lock_take(&slot->lock);
    bool may_shut = force || !slot->open || outstanding_of(slot) == 0;
    if (may_shut) {
        slot->room.malloc_fn = refuse;
        slot->open = false;
    }
    slot_lock_give(&slot->lock);
    give_table();
    return may_shut;
}

void vmmcy_slot_drop(struct vmmcy_slot *slot) {
    take_table();
    slot->held = false;
    unheld[unheld_count++] = slot->number;
    give_table();
}

struct vmmcy_slot_census vmmcy_slot_count(void) {
    struct vmmcy_slot_census census = {0, 0, 0};
    take_table();
    for (unsigned k = 0; k < VMMCY_SLOT_COUNT; k++) {
        struct vmmcy_slot *slot = &slots[k];
        if (slot->open) {
            census.open++;
        } else if (slot->held) {
            census.shut++;
        } else if (vmmcy_slot_outstanding(slot)) {
            census.kept_back++;
        }
    }
    give_table();
    return census;
}

unsigned vmmcy_slot_count_open(bool (*is_wanted)(const struct vmmcy_slot *slot, int device),
                               int device) {
    unsigned count = 0;
    take_table();
    for (unsigned k = 0; k < VMMCY_SLOT_COUNT; k++) {
        if (slots[k].open && vmmcy_slot_is_ours(&slots[k])) {
            count += is_wanted(&slots[k], device);
        }
    }
    give_table();
    return count;
}

/* clang-format off */
#define TEN(each, tens)                                                                            \
    each(tens##0) each(tens##1) each(tens##2) each(tens##3) each(tens##4)                          \
    each(tens##5) each(tens##6) each(tens##7) each(tens##8) each(tens##9)
#define EACH_SLOT(each)                                                                            \
    TEN(each, ) TEN(each, 1) TEN(each, 2) TEN(each, 3) TEN(each, 4)                                \
    TEN(each, 5) TEN(each, 6) TEN(each, 7) TEN(each, 8) TEN(each, 9)                               \
    TEN(each, 10) TEN(each, 11) TEN(each, 12) TEN(each, 13) TEN(each, 14)                          \
    TEN(each, 15) TEN(each, 16) TEN(each, 17) TEN(each, 18) TEN(each, 19)                          \
    TEN(each, 20) TEN(each, 21) TEN(each, 22) TEN(each, 23) TEN(each, 24)                          \
    each(250) each(251) each(252) each(253) each(254) each(255) each(256)
/* clang-format on */

#define ENTRY_POINTS(k)                                                                            \
    EXPORT void *vmmcy_malloc_##k(size_t size_bytes, int device, void *stream) {                   \
        return slot_malloc(&slots[k], size_bytes, device, stream);                                 \
    }                                                                                              \
    EXPORT void vmmcy_free_##k(void *address, size_t size_bytes, int device, void *stream) {       \
        (void)device;                                                                              \
        slot_free(&slots[k], address, size_bytes, stream);                                         \
    }
EACH_SLOT(ENTRY_POINTS)

#define MALLOC_ADDRESS(k) (uintptr_t)vmmcy_malloc_##k,
#define FREE_ADDRESS(k) (uintptr_t)vmmcy_free_##k,
#define TABLE_SIZE (VMMCY_SLOT_COUNT + 1)
static const uintptr_t malloc_addresses[TABLE_SIZE] = {EACH_SLOT(MALLOC_ADDRESS)};
static const uintptr_t free_addresses[TABLE_SIZE] = {EACH_SLOT(FREE_ADDRESS)};

uintptr_t vmmcy_malloc_address(unsigned slot) {
    return malloc_addresses[slot];
}

uintptr_t vmmcy_free_address(unsigned slot) {
    return free_addresses[slot];
}

/* How much of each kind the library holds now, for each device.
 *
 * One relaxed addition for each change, made where the driver call has succeeded. Static:
 * _ledger.pyx alone includes this, so that a process has one ledger. */
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <string.h>

/* More than any driver shows; whatever is beyond shares the last row. */
#define LEDGER_DEVICES 128

enum ledger_entry {
    LEDGER_RESERVATIONS,
    LEDGER_MAPPINGS,
    LEDGER_HANDLES,
    LEDGER_POOLED_HANDLES,
    LEDGER_RESERVED_BYTES,
    LEDGER_COMMITTED_BYTES,
    LEDGER_FDS,
    LEDGER_ENTRIES,
};

/* Lines of its own for each device: threads that work on different ones share none. */
struct ledger_row {
    int64_t of[LEDGER_ENTRIES];
} __attribute__((aligned(64)));

static struct ledger_row ledger_rows[LEDGER_DEVICES];

/* All of it belongs to the parent. */
static void ledger_start_again(void) {
    memset(ledger_rows, 0, sizeof ledger_rows);
}

__attribute__((constructor)) static void ledger_watch_forks(void) {
    pthread_atfork(0, 0, ledger_start_again);
}

static inline struct ledger_row *ledger_row_of(int device) {
    unsigned row = (unsigned)device;
    return &ledger_rows[row < LEDGER_DEVICES ? row : LEDGER_DEVICES - 1];
}

static inline void ledger_count(int device, enum ledger_entry entry, int64_t amount) {
    __atomic_fetch_add(&ledger_row_of(device)->of[entry], amount, __ATOMIC_RELAXED);
}

static inline int64_t ledger_read(int device, enum ledger_entry entry) {
    return __atomic_load_n(&ledger_row_of(device)->of[entry], __ATOMIC_RELAXED);
}

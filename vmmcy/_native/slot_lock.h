/* The lock of a slot: held for a few dozen instructions, so one exchange takes
 * it and a plain store gives it back, where a mutex pays for two exchanges.
 * Written with the __atomic builtins, which ThreadSanitizer understands. */
#pragma once
#include <stdint.h>

struct slot_lock {
    uint32_t taken;
};

#ifdef __cplusplus
extern "C" {
#endif
void slot_lock_wait(struct slot_lock *lock);
#ifdef __cplusplus
}
#endif

static inline void slot_lock_take(struct slot_lock *lock) {
    if (__builtin_expect(__atomic_exchange_n(&lock->taken, 1, __ATOMIC_ACQUIRE), 0)) {
        slot_lock_wait(lock);
    }
}

static inline void slot_lock_give(struct slot_lock *lock) {
    __atomic_store_n(&lock->taken, 0, __ATOMIC_RELEASE);
}

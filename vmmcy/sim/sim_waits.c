/* What keeps a stream from going on: a word in memory that has not got its value yet.
 *
 * Everything else that a stream is given is done at once, so the place of an event in its
 * stream is the last wait in front of it. */
#include "sim.h"

#include <stdlib.h>
#include <time.h>

/* Passed when the word has its value and both waits in front have passed; then it is only
 * kept for those who still refer to it. */
struct wait {
    uint64_t references;
    bool passed;
    const volatile uint32_t *word; /* NULL: a place that two streams have to reach */
    uint32_t value;
    struct wait *before;
    struct wait *also_before;
};

void sim_drop_wait(struct wait *wait) {
    if (wait != NULL && --wait->references == 0) {
        sim_drop_wait(wait->before);
        sim_drop_wait(wait->also_before);
        free(wait);
    }
}

struct wait *sim_share_wait(struct wait *wait) {
    if (wait != NULL) {
        wait->references++;
    }
    return wait;
}

bool sim_has_passed(struct wait *wait) {
    if (wait == NULL || wait->passed) {
        return true;
    }
    /* The driver compares cyclically, so that a counter may wrap round. */
    wait->passed = sim_has_passed(wait->before) && sim_has_passed(wait->also_before) &&
                   (wait->word == NULL || (int32_t)(*wait->word - wait->value) >= 0);
    return wait->passed;
}

bool sim_add_wait(struct wait **behind, uint64_t word, uint32_t value, struct wait *also_before) {
    struct wait *wait = calloc(1, sizeof *wait);
    if (wait == NULL) {
        return false;
    }
    *wait = (struct wait){.references = 1,
                          .word = (const volatile uint32_t *)(uintptr_t)word,
                          .value = value,
                          .before = *behind,
                          .also_before = sim_share_wait(also_before)};
    *behind = wait;
    return true;
}

/* Gives up the lock meanwhile: who lets the stream go on may need it. */
void sim_wait_for(struct wait *wait) {
    const struct timespec pause = {.tv_nsec = 20000};
    sim_share_wait(wait);
    while (!sim_has_passed(wait)) {
        sim_unlock();
        nanosleep(&pause, NULL);
        sim_lock();
    }
    sim_drop_wait(wait);
}

/* The one gate of all calls: counts them, and makes them fail on request. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* Fails the calls number `first` to `last`, as counted since the last reset. */
struct rule {
    struct rule *next;
    uint64_t first;
    uint64_t last;
    CUresult status;
};

/* What the next range query for `address` is to be told. */
struct answer {
    struct answer *next;
    uint64_t address;
    struct span range;
};

static uint64_t counts[SIM_CALL_COUNT];
static struct rule *rules[SIM_CALL_COUNT];
static struct answer *answers;

static CUresult count_call(enum sim_call call) {
    uint64_t number = ++counts[call];
    for (struct rule **link = &rules[call]; *link != NULL;) {
        struct rule *rule = *link;
        if (number >= rule->first && number <= rule->last) {
            return rule->status;
        }
        if (number > rule->last) {
            *link = rule->next;
            free(rule);
        } else {
            link = &rule->next;
        }
    }
    return CUDA_SUCCESS;
}

CUresult sim_enter(enum sim_call call) {
    bool any_time =
        call == CALL_DriverGetVersion || call == CALL_GetErrorName || call == CALL_GetErrorString;
    if (sim_is_inherited() && !any_time) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    sim_lock();
    CUresult status = count_call(call);
    if (status == CUDA_SUCCESS && !sim.initialised && !any_time && call != CALL_Init) {
        status = CUDA_ERROR_NOT_INITIALIZED;
    }
    if (status != CUDA_SUCCESS) {
        sim_unlock();
    }
    return status;
}

void sim_leave(void) {
    sim_unlock();
}

bool sim_take_answer(uint64_t address, struct span *range) {
    for (struct answer **link = &answers; *link != NULL; link = &(*link)->next) {
        struct answer *answer = *link;
        if (answer->address == address) {
            *range = answer->range;
            *link = answer->next;
            free(answer);
            return true;
        }
    }
    return false;
}

/* --- Control ------------------------------------------------------------------------- */

SIM_EXPORT void vmmcy_sim_calls(uint64_t *copy) {
    sim_lock();
    memcpy(copy, counts, sizeof counts);
    sim_unlock();
}

/* False when there is no memory for the rule. */
SIM_EXPORT bool vmmcy_sim_fail(int call, uint64_t nth, uint64_t times, int status) {
    struct rule *rule = malloc(sizeof *rule);
    if (rule == NULL) {
        return false;
    }
    sim_lock();
    struct rule **link = &rules[call];
    while (*link != NULL) {
        link = &(*link)->next;
    }
    uint64_t first = counts[call] + nth;
    *rule = (struct rule){.first = first, .last = first + times - 1, .status = (CUresult)status};
    *link = rule;
    sim_unlock();
    return true;
}

SIM_EXPORT bool vmmcy_sim_answer_range(uint64_t address, uint64_t base, uint64_t size) {
    struct answer *answer = malloc(sizeof *answer);
    if (answer == NULL) {
        return false;
    }
    sim_lock();
    struct answer **link = &answers;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *answer = (struct answer){.address = address, .range = {base, size}};
    *link = answer;
    sim_unlock();
    return true;
}

SIM_EXPORT void vmmcy_sim_reset(void) {
    sim_lock();
    memset(counts, 0, sizeof counts);
    for (int call = 0; call < SIM_CALL_COUNT; call++) {
        while (rules[call] != NULL) {
            struct rule *rule = rules[call];
            rules[call] = rule->next;
            free(rule);
        }
    }
    while (answers != NULL) {
        struct answer *answer = answers;
        answers = answer->next;
        free(answer);
    }
    sim_unlock();
}

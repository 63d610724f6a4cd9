/* The one ordered set that everything is kept in: the C library's balanced tree (tsearch),
 * ordered so that two spans which overlap count as equal. Looking up a one-number span thus
 * finds the member that holds it, in logarithmic time, and an overlap is a duplicate. */
#include "sim.h"

#include <search.h>

static int compare(const void *left, const void *right) {
    const struct span *a = left, *b = right;
    if (a->base < b->base) {
        return b->base - a->base >= a->size ? -1 : 0;
    }
    return a->base - b->base >= b->size ? 1 : 0;
}

bool sim_add(struct set *set, struct span *member) {
    struct span **kept = tsearch(member, &set->root, compare);
    if (kept == NULL || *kept != member) {
        return false;
    }
    set->count++;
    return true;
}

void sim_remove(struct set *set, struct span *member) {
    if (tdelete(member, &set->root, compare) != NULL) {
        set->count--;
    }
}

void *sim_find(const struct set *set, uint64_t base, uint64_t size) {
    struct span wanted = {base, size};
    struct span **met = size > 0 ? tfind(&wanted, &set->root, compare) : NULL;
    return met != NULL ? *met : NULL;
}

/* tfind gives the topmost of the members that overlap, so this recursion is no deeper than
 * the tree, and each step starts from the root, so members may go while it runs. */
void sim_each(const struct set *set, uint64_t base, uint64_t size, sim_visit *visit, void *with) {
    uint64_t end = base + size;
    struct span *met;
    while ((met = sim_find(set, base, end - base)) != NULL) {
        uint64_t after = sim_end(*met);
        if (met->base > base) {
            sim_each(set, base, met->base - base, visit, with);
        }
        visit(met, with);
        if (after >= end) {
            return;
        }
        base = after;
    }
}

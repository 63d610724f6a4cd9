#include "retired.h"

#include <stdlib.h>

bool retired_make(struct retired *merged, const struct retired *retired,
                  const struct extent_table *table) {
    size_t most = (size_t)retired->count + table->count + 1;
    *merged = (struct retired){malloc(most * sizeof *merged->ranges), 0, 0};
    return merged->ranges != NULL;
}

void retired_free(struct retired *retired) {
    free(retired->ranges);
    *retired = (struct retired){NULL, 0, 0};
}

/* Ranges come in ascending order. */
static void append(struct retired *merged, struct retired_range range) {
    if (range.outstanding == 0) {
        return;
    }
    merged->outstanding += range.outstanding;
    struct retired_range *last = merged->count ? &merged->ranges[merged->count - 1] : NULL;
    uint64_t apart = last ? range.base - last->base : 0;
    if (!last || apart >= last->size_bytes) {
        merged->ranges[merged->count++] = range;
        return;
    }
    last->outstanding += range.outstanding;
    if (range.size_bytes > last->size_bytes - apart) {
        last->size_bytes = apart + range.size_bytes;
    }
}

void retired_merge(struct retired *merged, const struct retired *retired,
                   const struct extent_table *table) {
    uint32_t old = 0, current = 0;
    while (old < retired->count || current < table->count) {
        if (current == table->count ||
            (old < retired->count && retired->ranges[old].base <= table->bases[current])) {
            append(merged, retired->ranges[old++]);
        } else {
            const struct extent *extent = &table->extents[table->order[current++]];
            append(merged,
                   (struct retired_range){extent->base, extent->cursor, extent->live_count});
        }
    }
}

bool retired_take_free(struct retired *retired, uint64_t address) {
    uint32_t low = 0, high = retired->count; /* the range, if any, is just before `high` */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (retired->ranges[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    struct retired_range *range = high ? &retired->ranges[high - 1] : NULL;
    if (!range || range->outstanding == 0 || address - range->base >= range->size_bytes) {
        return false;
    }
    range->outstanding--;
    retired->outstanding--;
    return true;
}

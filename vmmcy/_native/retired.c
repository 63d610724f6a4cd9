#include "retired.h"

#include <stdlib.h>
#include <string.h>

bool retired_make(struct retired *next, const struct retired *retired,
                  const struct extent_table *before, const struct extent_table *after) {
    size_t most = (size_t)retired->count + before->count;
    *next = (struct retired){.count = 0};
    if (most == 0) {
        return true;
    }
    *next = (struct retired){
        .ranges = malloc(most * sizeof *next->ranges),
        .doubts = calloc(most + after->count, sizeof *next->doubts),
    };
    if (!next->ranges || !next->doubts) {
        retired_free(next);
        return false;
    }
    return true;
}

void retired_free(struct retired *retired) {
    free(retired->ranges);
    free(retired->doubts);
    *retired = (struct retired){.count = 0};
}

/* An extent and a range that overlap, by their ranks. */
struct pair {
    uint32_t extent;
    uint32_t range;
};

static const struct extent *extent_of_rank(const struct extent_table *table, uint32_t rank) {
    return &table->extents[table->order[rank]];
}

static void pair_step(const struct retired *retired, const struct extent_table *table,
                      struct pair *pair) {
    const struct extent *extent = extent_of_rank(table, pair->extent);
    const struct retired_range *range = &retired->ranges[pair->range];
    uint64_t extent_last = extent->base + extent->size_bytes - 1;
    uint64_t range_last = range->base + range->size_bytes - 1;
    if (extent_last < range_last) {
        pair->extent++;
    } else {
        pair->range++;
    }
}

/* Move on to the first pair that overlaps, from `pair` on; false when there is none. */
static bool pair_find(const struct retired *retired, const struct extent_table *table,
                      struct pair *pair) {
    while (pair->extent < table->count && pair->range < retired->count) {
        const struct extent *extent = extent_of_rank(table, pair->extent);
        const struct retired_range *range = &retired->ranges[pair->range];
        if (extent->base - range->base < range->size_bytes ||
            range->base - extent->base < extent->size_bytes) {
            return true;
        }
        pair_step(retired, table, pair);
    }
    return false;
}

/* Ranges come in ascending order; one of another's addresses is joined to it. */
static void append(struct retired *next, struct retired_range range) {
    struct retired_range *last = next->count ? &next->ranges[next->count - 1] : NULL;
    uint64_t apart = last ? range.base - last->base : 0;
    if (!last || apart >= last->size_bytes) {
        next->ranges[next->count++] = range;
        return;
    }
    last->outstanding += range.outstanding;
    if (range.size_bytes > last->size_bytes - apart) {
        last->size_bytes = apart + range.size_bytes;
    }
}

/* Take the doubtful frees off the joined ranges: whose each was no longer matters. */
static void settle_doubts(struct retired *next, const struct retired *retired,
                          const struct extent_table *before) {
    struct pair pair = {0, 0};
    for (; pair_find(retired, before, &pair); pair_step(retired, before, &pair)) {
        uint64_t doubts = retired->doubts[pair.extent + pair.range];
        uint32_t rank = retired_rank_after(next, retired->ranges[pair.range].base);
        if (doubts) {
            struct retired_range *joined = &next->ranges[rank];
            joined->outstanding -= doubts < joined->outstanding ? doubts : joined->outstanding;
        }
    }
}

static void drop_idle(struct retired *next) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < next->count; i++) {
        if (next->ranges[i].outstanding) {
            next->outstanding += next->ranges[i].outstanding;
            next->ranges[kept++] = next->ranges[i];
        }
    }
    next->count = kept;
}

void retired_merge(struct retired *next, const struct retired *retired,
                   const struct extent_table *before) {
    uint32_t rank = 0, number = 0;
    while (rank < before->count || number < retired->count) {
        const struct extent *extent = rank < before->count ? extent_of_rank(before, rank) : NULL;
        struct retired_range range;
        if (extent && (number == retired->count || extent->base < retired->ranges[number].base)) {
            range = (struct retired_range){extent->base, extent->cursor, extent->live_count};
            rank++;
        } else {
            range = retired->ranges[number++];
        }
        if (range.outstanding) {
            append(next, range);
        }
    }
    if (retired->doubtful) {
        settle_doubts(next, retired, before);
    }
    drop_idle(next);
}

void retired_keep(struct retired *next, const struct retired *retired,
                  const struct extent_table *before, const struct extent_table *after) {
    if (retired->count == 0) {
        return;
    }
    memcpy(next->ranges, retired->ranges, retired->count * sizeof *next->ranges);
    next->count = retired->count;
    next->outstanding = retired->outstanding;
    next->doubtful = retired->doubtful;
    struct pair pair = {0, 0};
    for (; retired->doubtful && pair_find(retired, before, &pair);
         pair_step(retired, before, &pair)) {
        uint32_t rank = extent_rank_below(after, extent_of_rank(before, pair.extent)->base);
        next->doubts[rank + pair.range] = retired->doubts[pair.extent + pair.range];
    }
}

uint32_t retired_rank_after(const struct retired *retired, uint64_t address) {
    uint32_t low = 0, high = retired->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct retired_range *range = &retired->ranges[middle];
        if (range->base + (range->size_bytes - 1) < address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t retired_rank_at(const struct retired *retired, uint64_t address) {
    uint32_t rank = retired_rank_after(retired, address);
    bool is_inside = rank < retired->count && address >= retired->ranges[rank].base &&
                     retired->ranges[rank].outstanding;
    return is_inside ? rank : NO_EXTENT;
}

bool retired_is_consistent(const struct retired *retired, const struct extent_table *table) {
    uint64_t outstanding = 0, doubtful = 0;
    for (uint32_t i = 0; i < retired->count; i++) {
        const struct retired_range *range = &retired->ranges[i];
        outstanding += range->outstanding;
        if (i && range->base - range[-1].base < range[-1].size_bytes) {
            return false;
        }
    }
    struct pair pair = {0, 0};
    for (; pair_find(retired, table, &pair); pair_step(retired, table, &pair)) {
        uint64_t doubts = retired->doubts[pair.extent + pair.range];
        doubtful += doubts;
        if (doubts > retired->ranges[pair.range].outstanding) {
            return false;
        }
    }
    return outstanding == retired->outstanding && doubtful == retired->doubtful;
}

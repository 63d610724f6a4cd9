/* Extents: what an arena hands out from, and where an address belongs. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define NO_EXTENT UINT32_MAX

/* `base + size_bytes` is at most 2^64, so `address - base < size_bytes` never wraps. */
struct extent_span {
    uint64_t base;
    uint64_t size_bytes;
};

/* A cache line each: malloc and free touch one. */
struct extent {
    uint64_t base;
    uint64_t size_bytes;
    uint64_t cursor;     /* next free offset, not aligned yet */
    uint64_t room_bytes; /* exact bytes left after the aligned cursor */
    uint64_t live_bytes;
    uint64_t live_count;
} __attribute__((aligned(64)));

struct extent_table {
    uint32_t count;
    uint64_t capacity_bytes;
    /* In the given order, which first fit follows, and one more of no size; the other
     * three arrays lie behind it in one block of memory. */
    struct extent *extents;
    uint64_t *bases; /* ascending */
    uint32_t *order; /* extents[order[i]] has bases[i] */
    /* The addresses from the first base to the last in equal stretches, one for every
     * extent or two: signposts[k] is the rank of the last base that is not behind the
     * start of stretch k. So a search begins among one or two bases, not among all. */
    uint32_t *signposts;
    uint64_t last_stretch;
    uint32_t stretch_shift; /* a stretch is 2^this bytes */
};

enum extent_status { EXTENTS_OK, EXTENTS_NO_MEMORY, EXTENTS_OVERLAP };

#ifdef __cplusplus
extern "C" {
#endif
/* Sort `spans` by base and join those that touch; `*count` becomes what is left.
 * On an overlap, `overlap` holds the two spans. */
enum extent_status spans_coalesce(struct extent_span *spans, uint32_t *count,
                                  struct extent_span overlap[2]);

/* Make a table of `before` followed by `count` new spans, all cursors at 0. */
enum extent_status extent_table_make(struct extent_table *table, const struct extent_table *before,
                                     const struct extent_span *spans, uint32_t count,
                                     struct extent_span overlap[2]);
void extent_table_free(struct extent_table *table);
#ifdef __cplusplus
}
#endif

/* What is left for aligned requests; `align_mask` is the alignment - 1. */
static inline uint64_t extent_room(const struct extent *extent, uint64_t align_mask) {
    uint64_t left = extent->size_bytes - extent->cursor;
    uint64_t padding = -(extent->base + extent->cursor) & align_mask;
    return padding < left ? left - padding : 0;
}

/* Rank by address of the last extent whose base is at most `address`; 0 when there is none. */
static inline uint32_t extent_rank_below(const struct extent_table *table, uint64_t address) {
    if (table->count == 0 || address < table->bases[0]) {
        return 0;
    }
    uint64_t stretch = (address - table->bases[0]) >> table->stretch_shift;
    if (stretch > table->last_stretch) {
        return table->count - 1;
    }
    const uint64_t *first = table->bases + table->signposts[stretch];
    uint32_t length = table->signposts[stretch + 1] - table->signposts[stretch] + 1;
    while (length > 1) {
        uint32_t half = length / 2;
        first += first[half] <= address ? half : 0;
        length -= half;
    }
    return (uint32_t)(first - table->bases);
}

/* Rank by address of the extent that holds `address`, or NO_EXTENT; order[rank] is its index. */
static inline uint32_t extent_rank_at(const struct extent_table *table, uint64_t address) {
    uint32_t rank = extent_rank_below(table, address);
    bool is_inside = table->count > 0 && address >= table->bases[rank] &&
                     address - table->bases[rank] < table->extents[table->order[rank]].size_bytes;
    return is_inside ? rank : NO_EXTENT;
}

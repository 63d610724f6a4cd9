#include "extents.h"

#include <stdlib.h>
#include <string.h>

/* For sorting extents, `size_bytes` of a span carries the extent's index. */
static void merge_runs(const struct extent_span *from, struct extent_span *to, size_t count,
                       size_t run) {
    for (size_t start = 0; start < count; start += 2 * run) {
        size_t middle = start + run < count ? start + run : count;
        size_t end = middle + run < count ? middle + run : count;
        size_t left = start, right = middle;
        for (size_t i = start; i < end; i++) {
            bool from_right = left == middle || (right < end && from[right].base < from[left].base);
            to[i] = from[from_right ? right : left];
            right += from_right;
            left += !from_right;
        }
    }
}

static bool is_sorted(const struct extent_span *spans, size_t count) {
    for (size_t i = 1; i < count; i++) {
        if (spans[i].base < spans[i - 1].base) {
            return false;
        }
    }
    return true;
}

/* Stable, by base. Most callers give extents in address order: those cost one pass. */
static enum extent_status sort_spans(struct extent_span *spans, size_t count) {
    if (is_sorted(spans, count)) {
        return EXTENTS_OK;
    }
    struct extent_span *scratch = malloc(count * sizeof *scratch);
    if (!scratch) {
        return EXTENTS_NO_MEMORY;
    }
    struct extent_span *from = spans, *to = scratch;
    for (size_t run = 1; run < count; run *= 2) {
        merge_runs(from, to, count, run);
        struct extent_span *swap = from;
        from = to, to = swap;
    }
    if (from != spans) {
        memcpy(spans, from, count * sizeof *spans);
    }
    free(scratch);
    return EXTENTS_OK;
}

enum extent_status spans_coalesce(struct extent_span *spans, uint32_t *count,
                                  struct extent_span overlap[2]) {
    if (sort_spans(spans, *count) != EXTENTS_OK) {
        return EXTENTS_NO_MEMORY;
    }
    for (uint32_t i = 1; i < *count; i++) {
        if (spans[i].base - spans[i - 1].base < spans[i - 1].size_bytes) {
            memcpy(overlap, &spans[i - 1], 2 * sizeof *overlap);
            return EXTENTS_OVERLAP;
        }
    }
    uint32_t joined = 0;
    for (uint32_t i = 0; i < *count; i++) {
        if (joined && spans[i].base - spans[joined - 1].base == spans[joined - 1].size_bytes) {
            spans[joined - 1].size_bytes += spans[i].size_bytes;
        } else {
            spans[joined++] = spans[i];
        }
    }
    *count = joined;
    return EXTENTS_OK;
}

static bool extents_are_sorted(const struct extent_table *table) {
    for (uint32_t i = 1; i < table->count; i++) {
        if (table->extents[i].base < table->extents[i - 1].base) {
            return false;
        }
    }
    return true;
}

/* Fill `order` with the indices of the extents by ascending base. */
static enum extent_status sort_order(struct extent_table *table) {
    if (extents_are_sorted(table)) {
        for (uint32_t i = 0; i < table->count; i++) {
            table->order[i] = i;
        }
        return EXTENTS_OK;
    }
    struct extent_span *keys = malloc(table->count * sizeof *keys);
    if (!keys) {
        return EXTENTS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < table->count; i++) {
        keys[i] = (struct extent_span){table->extents[i].base, i};
    }
    enum extent_status status = sort_spans(keys, table->count);
    for (uint32_t i = 0; status == EXTENTS_OK && i < table->count; i++) {
        table->order[i] = (uint32_t)keys[i].size_bytes;
    }
    free(keys);
    return status;
}

static enum extent_status fill_bases(struct extent_table *table, struct extent_span overlap[2]) {
    const struct extent *lower = NULL;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct extent *extent = &table->extents[table->order[i]];
        table->bases[i] = extent->base;
        if (lower && extent->base - lower->base < lower->size_bytes) {
            overlap[0] = (struct extent_span){lower->base, lower->size_bytes};
            overlap[1] = (struct extent_span){extent->base, extent->size_bytes};
            return EXTENTS_OVERLAP;
        }
        lower = extent;
    }
    return EXTENTS_OK;
}

/* Set up as many stretches as there is room for signposts, at most two an extent. */
static void put_signposts(struct extent_table *table) {
    if (table->count == 0) {
        return;
    }
    uint64_t span = table->bases[table->count - 1] - table->bases[0];
    while (span >> table->stretch_shift >= 2 * (uint64_t)table->count) {
        table->stretch_shift++;
    }
    table->last_stretch = span >> table->stretch_shift;
    uint32_t rank = 0;
    for (uint64_t stretch = 0; stretch <= table->last_stretch; stretch++) {
        uint64_t start = table->bases[0] + (stretch << table->stretch_shift);
        while (rank + 1 < table->count && table->bases[rank + 1] <= start) {
            rank++;
        }
        table->signposts[stretch] = rank;
    }
    table->signposts[table->last_stretch + 1] = table->count - 1;
}

/* One block of memory for all four arrays. */
static bool table_allocate(struct extent_table *table, size_t total) {
    enum { ALIGNMENT = _Alignof(struct extent) };
    /* One extent more, without room: a place to point to when there is no extent. */
    size_t extents_size = (total + 1) * sizeof *table->extents;
    size_t bases_size = (total + 1) * sizeof *table->bases;
    size_t order_size = (total + 1) * sizeof *table->order;
    size_t signposts_size = (2 * total + 1) * sizeof *table->signposts;
    size_t size = extents_size + bases_size + order_size + signposts_size;
    char *memory = aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!memory) {
        return false;
    }
    table->extents = (struct extent *)memory;
    table->bases = (uint64_t *)(memory + extents_size);
    table->order = (uint32_t *)(memory + extents_size + bases_size);
    table->signposts = (uint32_t *)(memory + extents_size + bases_size + order_size);
    return true;
}

enum extent_status extent_table_make(struct extent_table *table, const struct extent_table *before,
                                     const struct extent_span *spans, uint32_t count,
                                     struct extent_span overlap[2]) {
    uint32_t old_count = before ? before->count : 0;
    size_t total = (size_t)old_count + count;
    *table = (struct extent_table){.count = (uint32_t)total};
    if (!table_allocate(table, total)) {
        return EXTENTS_NO_MEMORY;
    }
    for (size_t i = 0; i < total; i++) {
        struct extent_span span =
            i < old_count
                ? (struct extent_span){before->extents[i].base, before->extents[i].size_bytes}
                : spans[i - old_count];
        table->extents[i] = (struct extent){.base = span.base, .size_bytes = span.size_bytes};
        table->capacity_bytes += span.size_bytes;
    }
    table->extents[total] = (struct extent){.base = 0};
    enum extent_status status = sort_order(table);
    if (status == EXTENTS_OK) {
        status = fill_bases(table, overlap);
    }
    if (status == EXTENTS_OK) {
        put_signposts(table);
    } else {
        extent_table_free(table);
    }
    return status;
}

void extent_table_free(struct extent_table *table) {
    free(table->extents);
    *table = (struct extent_table){.count = 0};
}

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

static enum extent_status sort_extents(struct extent_table *table, struct extent_span overlap[2]) {
    struct extent_span *keys = malloc((table->count + 1) * sizeof *keys);
    if (!keys) {
        return EXTENTS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < table->count; i++) {
        keys[i] = (struct extent_span){table->extents[i].base, i};
    }
    enum extent_status status = sort_spans(keys, table->count);
    for (uint32_t i = 0; status == EXTENTS_OK && i < table->count; i++) {
        table->bases[i] = keys[i].base;
        table->order[i] = (uint32_t)keys[i].size_bytes;
        const struct extent *extent = &table->extents[table->order[i]];
        const struct extent *lower = i ? &table->extents[table->order[i - 1]] : NULL;
        if (lower && extent->base - lower->base < lower->size_bytes) {
            overlap[0] = (struct extent_span){lower->base, lower->size_bytes};
            overlap[1] = (struct extent_span){extent->base, extent->size_bytes};
            status = EXTENTS_OVERLAP;
        }
    }
    free(keys);
    return status;
}

enum extent_status extent_table_make(struct extent_table *table, const struct extent_table *before,
                                     const struct extent_span *spans, uint32_t count,
                                     struct extent_span overlap[2]) {
    uint32_t old_count = before ? before->count : 0;
    size_t total = (size_t)old_count + count;
    /* One more, without room: a place to point to when there is no extent. */
    table->extents = aligned_alloc(_Alignof(struct extent), (total + 1) * sizeof(struct extent));
    table->bases = malloc((total + 1) * sizeof *table->bases);
    table->order = malloc((total + 1) * sizeof *table->order);
    table->count = (uint32_t)total;
    table->capacity_bytes = 0;
    enum extent_status status = EXTENTS_NO_MEMORY;
    if (table->extents && table->bases && table->order) {
        for (size_t i = 0; i < total; i++) {
            struct extent_span span =
                i < old_count
                    ? (struct extent_span){before->extents[i].base, before->extents[i].size_bytes}
                    : spans[i - old_count];
            table->extents[i] = (struct extent){.base = span.base, .size_bytes = span.size_bytes};
            table->capacity_bytes += span.size_bytes;
        }
        table->extents[total] = (struct extent){.base = 0};
        status = sort_extents(table, overlap);
    }
    if (status != EXTENTS_OK) {
        extent_table_free(table);
    }
    return status;
}

void extent_table_free(struct extent_table *table) {
    free(table->extents);
    free(table->bases);
    free(table->order);
    *table = (struct extent_table){0, 0, NULL, NULL, NULL};
}

/* What extents that are no longer registered had handed out: a free that comes
 * late must not count for the extents that took their place.
 *
 * Where old and new extents share addresses, a free there may mean either. It is
 * counted as the old one's as long as any is outstanding: an extent can then look
 * busy for too long, but never idle while it is not, so that `reclaim` cannot hand
 * out memory that is in use. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "extents.h"

struct retired_range {
    uint64_t base;
    uint64_t size_bytes;  /* from the base to the cursor */
    uint64_t outstanding; /* allocations not freed yet */
};

struct retired {
    struct retired_range *ranges; /* ascending, none overlaps another */
    uint32_t count;
    uint64_t outstanding;
};

/* Room for what `retired` and `table` hold together; false when there is no memory. */
bool retired_make(struct retired *merged, const struct retired *retired,
                  const struct extent_table *table);
void retired_free(struct retired *retired);

/* Fill `merged` with both; ranges that overlap become one, with their counts added. */
void retired_merge(struct retired *merged, const struct retired *retired,
                   const struct extent_table *table);

/* True when the free was one of a retired range's. */
bool retired_take_free(struct retired *retired, uint64_t address);

/* What extents that are no longer registered had handed out: a free that comes
 * late must not count for the extents that took their place.
 *
 * Where old and new extents share addresses, a free there may mean either. It is
 * taken for the old one's and remembered as doubtful. Of an extent's doubtful
 * frees in one range at most as many are the range's as it has outstanding: all
 * beyond that are the extent's. So an extent can look busy for too long, but
 * never idle while it is not, and `reclaim` cannot hand out memory in use.
 *
 * All that is out, old and new, is known exactly: what is live, and what is
 * outstanding, without the doubtful frees. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "extents.h"

struct retired_range {
    uint64_t base;
    uint64_t size_bytes;  /* from the base to the cursor */
    uint64_t outstanding; /* allocations whose free has not come for certain */
};

/* Ranges and extents are both in address order: along the pairs that overlap, the
 * sum of their two ranks goes up by one or two each time, so it names the pair. */
struct retired {
    struct retired_range *ranges; /* ascending, none overlaps another */
    uint64_t *doubts;             /* [rank of the extent + rank of the range]: doubtful frees */
    uint32_t count;
    uint64_t outstanding; /* sums over all */
    uint64_t doubtful;
};

/* Room for what `retired` and `before` hold together, under the extents `after`;
 * false when there is no memory. What holds nothing needs none. */
bool retired_make(struct retired *next, const struct retired *retired,
                  const struct extent_table *before, const struct extent_table *after);
void retired_free(struct retired *retired);

/* Fill `next` with both; ranges that overlap become one, with their counts added. */
void retired_merge(struct retired *next, const struct retired *retired,
                   const struct extent_table *before);

/* Fill `next` with `retired`, when the extents `before` are among those `after`. */
void retired_keep(struct retired *next, const struct retired *retired,
                  const struct extent_table *before, const struct extent_table *after);

/* Rank of the range that holds `address` and has something outstanding, or NO_EXTENT. */
uint32_t retired_rank_at(const struct retired *retired, uint64_t address);

/* Rank of the first range that ends after `address`. */
uint32_t retired_rank_after(const struct retired *retired, uint64_t address);

/* True when the sums and the order are right, and no doubt is without ground. */
bool retired_is_consistent(const struct retired *retired, const struct extent_table *table);

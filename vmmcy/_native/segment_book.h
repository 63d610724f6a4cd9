/* The books of one pool of segments: what is handed out, what is kept over a pause, and why the
 * last request got nothing. Outlives its Python owner, as entry points may be called late. */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "address_ranges.h"
#include "kept_bytes.h"

namespace vmmcy {

/* Why a request got nothing. */
enum Denial { NONE_DENIED, OTHER_DEVICE, NO_ADDRESSES, WHILE_PAUSED, DRIVER_REFUSED };

/* What came of pausing or resuming where no driver call was refused. */
enum Verdict { AGREED, PAUSED_ALREADY, NOT_PAUSED, NOT_IN_USE, MAY_BE_USED };

struct SegmentFigures {
    uint64_t segment_count;
    uint64_t segment_bytes;
    uint64_t leaving_count;
    uint64_t leaving_bytes;
    uint64_t left_count;
    uint64_t ignored_frees;
    bool late; /* work may still use what is leaving */
    bool paused;
};

class SegmentBook {
  public:
    /* Held across driver calls: never waited for with the GIL, except by an entry point whose
     * caller has it; so whoever holds this takes no GIL. */
    std::mutex mutex;
    AddressRanges ranges;
    std::atomic<uint64_t> outstanding{0}; /* segments handed out and not freed */
    std::vector<Kept> kept;
    uint64_t ignored_frees = 0;
    Denial denial = NONE_DENIED;
    bool paused = false;

    explicit SegmentBook(uint64_t size_bytes) : ranges(size_bytes) {}

    SegmentFigures figures() const noexcept {
        SegmentFigures sums = {
            0, 0, 0, 0, ranges.left_count(), ignored_frees, ranges.are_late(), paused};
        for (const auto &[offset, range] : ranges.all()) {
            sums.segment_count += range.use == OUT;
            sums.segment_bytes += range.use == OUT ? range.size_bytes : 0;
            sums.leaving_count += range.use == LEAVING;
            sums.leaving_bytes += range.use == LEAVING ? range.size_bytes : 0;
        }
        return sums;
    }

    /* The first range in `use` that starts at `from` or later; false where there is none. */
    bool next(Use use, uint64_t from, uint64_t *offset, uint64_t *size_bytes) const noexcept {
        auto range = ranges.all().lower_bound(from);
        while (range != ranges.all().end() && range->second.use != use)
            ++range;
        if (range == ranges.all().end())
            return false;
        *offset = range->first;
        *size_bytes = range->second.size_bytes;
        return true;
    }

    /* Strike off what is kept of segments that were freed since. */
    void forget_freed() noexcept {
        auto is_freed = [this](const Kept &part) {
            return !ranges.is_in_use(part.offset, part.size_bytes);
        };
        kept.erase(std::remove_if(kept.begin(), kept.end(), is_freed), kept.end());
    }
};

} // namespace vmmcy

/* Which ranges of a reservation are handed out: best fit, and free neighbours are one.
 *
 * Offsets and sizes are whole granules, which is the caller's to see to. Plain state behind the
 * owner's lock; knows no driver. Only handing out takes host memory: taking back cannot fail.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "fence.h"

namespace vmmcy {

/* LEAVING: given back by its user, and its memory still there. */
enum Use { FREE, OUT, LEAVING };

/* What is known of the work that may still use a range that is leaving: a fence behind it, or only
 * that whoever has waited for the whole device has waited for it. */
enum Guard { UNGUARDED, FENCED, WAITED_FOR };

class AddressRanges {
    /* Of the free ranges, by size; a range that is not free keeps its entry for later. */
    using BySize = std::set<std::pair<uint64_t, uint64_t>>;

  public:
    struct Range {
        uint64_t size_bytes;
        Use use;
        BySize::node_type entry;
        Guard guard;
        Fence fence;
        uint64_t number; /* of a range that is LEAVING: the how-manieth that ever left */
    };
    using Ranges = std::map<uint64_t, Range>;

    explicit AddressRanges(uint64_t size_bytes) {
        by_size_.emplace(size_bytes, 0);
        ranges_[0] = {size_bytes, FREE, {}, UNGUARDED, {}, 0};
    }

    /* Hand out the lowest of the smallest ranges that are large enough; false where none is,
     * or no host memory. */
    bool take(uint64_t size_bytes, uint64_t *offset) noexcept {
        auto found = by_size_.lower_bound({size_bytes, 0});
        if (found == by_size_.end())
            return false;
        auto range = ranges_.find(found->second);
        if (range->second.size_bytes > size_bytes && !split(range, size_bytes))
            return false;
        range->second.entry = by_size_.extract(found);
        range->second.use = OUT;
        *offset = range->first;
        return true;
    }

    /* The size of the range that starts at `offset` and is OUT; 0 where there is none. */
    uint64_t size_of_out(uint64_t offset) const noexcept {
        auto range = ranges_.find(offset);
        bool is_out = range != ranges_.end() && range->second.use == OUT;
        return is_out ? range->second.size_bytes : 0;
    }

    /* Whether [offset, offset + size_bytes) lies in one range that is OUT. */
    bool is_in_use(uint64_t offset, uint64_t size_bytes) const noexcept {
        auto range = std::prev(ranges_.upper_bound(offset));
        uint64_t before = offset - range->first;
        return range->second.use == OUT && before < range->second.size_bytes &&
               size_bytes <= range->second.size_bytes - before;
    }

    /* Of a range that is OUT; where it is found from now on, to be given back. */
    Range *leave(uint64_t offset) noexcept {
        Range *range = &ranges_.find(offset)->second;
        range->use = LEAVING;
        leaving_count_++;
        range->guard = UNGUARDED;
        range->number = ++left_count_;
        return range;
    }

    /* How many have left so far: the number of the last. */
    uint64_t left_count() const noexcept {
        return left_count_;
    }

    /* Whether work may still use a range that is LEAVING. */
    bool are_late() const noexcept {
        return leaving_count_ != 0 &&
               std::any_of(ranges_.begin(), ranges_.end(), [](const auto &range) {
                   return range.second.use == LEAVING && range.second.guard != WAITED_FOR;
               });
    }

    /* The first range that is LEAVING at `from` or later; NULL where there is none. */
    Range *next_leaving(uint64_t from, uint64_t *offset) noexcept {
        auto range = leaving_count_ == 0 ? ranges_.end() : ranges_.lower_bound(from);
        while (range != ranges_.end() && range->second.use != LEAVING)
            ++range;
        if (range == ranges_.end())
            return nullptr;
        *offset = range->first;
        return &range->second;
    }

    /* Take back a range that is OUT or LEAVING. */
    void give(uint64_t offset) noexcept {
        auto range = ranges_.find(offset);
        leaving_count_ -= range->second.use == LEAVING;
        range->second.use = FREE;
        auto next = std::next(range);
        if (next != ranges_.end() && next->second.use == FREE)
            join(range, next);
        if (range != ranges_.begin() && std::prev(range)->second.use == FREE) {
            range = std::prev(range);
            range->second.entry = by_size_.extract({range->second.size_bytes, range->first});
            range->second.size_bytes += std::next(range)->second.size_bytes;
            ranges_.erase(std::next(range));
        }
        range->second.entry.value() = {range->second.size_bytes, range->first};
        by_size_.insert(std::move(range->second.entry));
    }

    /* All ranges in address order, free ones too: together they are the reservation. */
    const Ranges &all() const noexcept {
        return ranges_;
    }

  private:
    Ranges ranges_;
    BySize by_size_;
    uint64_t leaving_count_ = 0;
    uint64_t left_count_ = 0;

    /* Cut a free range; the rest becomes one of its own. */
    bool split(Ranges::iterator range, uint64_t size_bytes) noexcept {
        uint64_t rest = range->first + size_bytes;
        uint64_t rest_bytes = range->second.size_bytes - size_bytes;
        try {
            by_size_.emplace(rest_bytes, rest);
            ranges_.emplace_hint(std::next(range), rest,
                                 Range{rest_bytes, FREE, {}, UNGUARDED, {}, 0});
        } catch (const std::bad_alloc &) {
            by_size_.erase({rest_bytes, rest});
            return false;
        }
        range->second.size_bytes = size_bytes;
        return true;
    }

    void join(Ranges::iterator range, Ranges::iterator next) noexcept {
        by_size_.erase({next->second.size_bytes, next->first});
        range->second.size_bytes += next->second.size_bytes;
        ranges_.erase(next);
    }
};

} // namespace vmmcy

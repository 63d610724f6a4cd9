// The address ranges that one walk has met, and how it finds them again.
//
// A lookup is one probe of a hash table in the usual case: a range stands in the table once for
// each granule of its size class (the largest power of two that is not above its size) that it
// touches, at most three. So a range of 2 MiB and one of 100 GiB are found equally fast, and there
// is one probe for each size class in use, not one for each granule of a range. The sorted bases
// beside it show a range's neighbours: ranges that overlap are refused, those that touch linked.
//
// Knows no driver and no Python; throws std::bad_alloc alone.
#ifndef VMMCY_KNOWN_RANGES_H
#define VMMCY_KNOWN_RANGES_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sorted_blocks.h"

namespace vmmcy {

// `last` is the address of the last byte: an end could be 2^64, which no word holds.
struct Range {
    uint64_t base;
    uint64_t last;
    int64_t next; // the known range that begins right behind this one, or itself for none
};

// Where the inputs of a walk stand, and where to write what it finds of each.
struct Inputs {
    const uint64_t *pointers;
    const uint64_t *sizes;
    int64_t *indptr;
    uint64_t *offsets;
};

constexpr size_t FEW = 3;
constexpr size_t BETWEEN_LOOKS = 64;

class KnownRanges {
  public:
    size_t size() const {
        return ranges_.size();
    }
    const Range &get(int64_t number) const {
        return ranges_[number];
    }

    // Number of the range that holds `address`, counted in the order of insertion, or NOT_KNOWN.
    int64_t find(uint64_t address) const {
        return view().find(address);
    }

    // Covers the inputs from `index` up to `end` as long as each needs at most FEW ranges, all of
    // them known. Returns the first input that does not, else `end`. `count` is how many indices
    // there are; they have room for FEW more for each input.
    //
    // Inputs often lie one like the other in one range, which is found out now and then: to look
    // at each costs those that do not half as much again.
    size_t cover(const Inputs &inputs, size_t index, size_t end, int64_t *indices,
                 size_t *count) const {
        while (index < end) {
            const size_t stop = index + std::min(end - index, BETWEEN_LOOKS);
            const size_t covered = cover_each(inputs, index, stop, indices, count);
            if (covered < stop)
                return covered;
            index = cover_alike(inputs, covered, end, indices, count);
        }
        return index;
    }

    // Adds [base, last]. NOT_KNOWN when it is added, else the number of a range that it overlaps.
    int64_t insert(uint64_t base, uint64_t last) {
        const SortedBlocks::Place place = by_base_.find(base);
        if (place.below != NOT_KNOWN && ranges_[place.below].last >= base)
            return place.below;
        if (place.above != NOT_KNOWN && ranges_[place.above].base <= last)
            return place.above;

        const int64_t number = static_cast<int64_t>(ranges_.size());
        const bool touches = place.above != NOT_KNOWN && ranges_[place.above].base - 1 == last;
        ranges_.push_back({base, last, touches ? place.above : number});
        by_base_.insert(place, base, static_cast<uint32_t>(number));
        if (place.below != NOT_KNOWN && ranges_[place.below].last + 1 == base)
            ranges_[place.below].next = number;
        add_to_table(number);
        return NOT_KNOWN;
    }

  private:
    // A slot is 1 + a range's number. 32 bits hold every number: 2^32 ranges would need as many
    // driver calls, and 100 GB for `ranges_` alone.
    static constexpr uint32_t EMPTY = 0;
    static constexpr size_t FEWEST_SLOTS = 256;
    static constexpr size_t SLOTS_PER_ENTRY = 4;

    // The size class: floor(log2(size)). The size came in a word, so the sum cannot wrap.
    static unsigned level_of(const Range &range) {
        return 63 - static_cast<unsigned>(__builtin_clzll(range.last - range.base + 1));
    }

    // What a lookup reads, for as long as nothing is inserted.
    struct View {
        const Range *ranges;
        const uint32_t *slots;
        const uint8_t *levels;
        size_t num_levels;
        size_t mask;
        unsigned hash_shift;

        // Fibonacci hashing: neighbouring granules, the usual case, fall far apart.
        size_t slot_of(uint64_t granule) const {
            return static_cast<size_t>(granule * UINT64_C(0x9E3779B97F4A7C15) >> hash_shift);
        }

        int64_t find(uint64_t address) const {
            for (size_t nth = 0; nth < num_levels; ++nth) {
                size_t slot = slot_of(address >> levels[nth]);
                for (; slots[slot] != EMPTY; slot = (slot + 1) & mask) {
                    const Range &range = ranges[slots[slot] - 1];
                    if (address - range.base <= range.last - range.base)
                        return static_cast<int64_t>(slots[slot]) - 1;
                }
            }
            return NOT_KNOWN;
        }

        // Writes the FEW ranges from `number` on, and tells how many of them it takes to `last`: 0
        // when they do not suffice or one is not known. The number is unpredictable, and a wrong
        // guess costs more than all of this, so nothing here is a branch.
        size_t cover_with_few(int64_t number, uint64_t last, int64_t *covering) const {
            const Range &first = ranges[number];
            const Range &second = ranges[first.next];
            const Range &third = ranges[second.next];
            covering[0] = number;
            covering[1] = first.next;
            covering[2] = second.next;
            const size_t needs_second = first.last < last;
            const size_t needs_third = needs_second & (second.last < last);
            // Also where one is not known: its place has the one before, which ends early.
            const size_t fails = needs_third & (third.last < last);
            return (1 + needs_second + needs_third) & (fails - 1);
        }
    };

    // As `cover`, whatever the inputs are like.
    size_t cover_each(const Inputs &inputs, size_t index, size_t end, int64_t *indices,
                      size_t *count) const {
        // Copies, since the compiler cannot know that the stores below leave the originals alone.
        const View known = view();
        const Inputs in = inputs;
        size_t covered = *count;
        for (; index < end; ++index) {
            const uint64_t address = in.pointers[index];
            const int64_t number = known.find(address);
            if (number == NOT_KNOWN)
                break;
            const uint64_t last = address + (in.sizes[index] - 1);
            const size_t covering = known.cover_with_few(number, last, indices + covered);
            if (covering == 0)
                break;
            covered += covering;
            in.offsets[index] = address - known.ranges[number].base;
            in.indptr[index + 1] = static_cast<int64_t>(covered);
        }
        *count = covered;
        return index;
    }

    // Covers the inputs from `index` on that lie in the range of the last index, one in a row.
    size_t cover_alike(const Inputs &inputs, size_t index, size_t end, int64_t *indices,
                       size_t *count) const {
        const Inputs in = inputs;
        size_t covered = *count;
        const int64_t number = indices[covered - 1];
        const Range range = ranges_[number];
        for (; index < end; ++index) {
            const uint64_t address = in.pointers[index];
            const uint64_t last = address + (in.sizes[index] - 1);
            if (address < range.base || last < address || last > range.last)
                break;
            indices[covered++] = number;
            in.offsets[index] = address - range.base;
            in.indptr[index + 1] = static_cast<int64_t>(covered);
        }
        *count = covered;
        return index;
    }

    View view() const {
        return {ranges_.data(), slots_.data(), levels_.data(), levels_.size(), mask_, hash_shift_};
    }

    void add_to_table(int64_t number) {
        const Range &range = ranges_[number];
        const unsigned level = level_of(range);
        if (!(levels_in_use_ >> level & 1)) {
            levels_in_use_ |= UINT64_C(1) << level;
            levels_.push_back(static_cast<uint8_t>(level));
        }
        entries_ += static_cast<size_t>((range.last >> level) - (range.base >> level)) + 1;
        if (entries_ * SLOTS_PER_ENTRY <= slots_.size())
            store(number);
        else
            rebuild_table();
    }

    void rebuild_table() {
        const size_t count = slots_.empty() ? FEWEST_SLOTS : 2 * slots_.size();
        slots_.assign(count, EMPTY);
        mask_ = count - 1;
        hash_shift_ = 64 - static_cast<unsigned>(__builtin_ctzll(count));
        for (size_t number = 0; number < ranges_.size(); ++number)
            store(static_cast<int64_t>(number));
    }

    void store(int64_t number) {
        const Range &range = ranges_[number];
        const unsigned level = level_of(range);
        // Counted, since the last granule may be the last of all.
        const uint64_t first = range.base >> level, further = (range.last >> level) - first;
        for (uint64_t nth = 0; nth <= further; ++nth) {
            const uint64_t granule = first + nth;
            size_t slot = view().slot_of(granule);
            while (slots_[slot] != EMPTY)
                slot = (slot + 1) & mask_;
            slots_[slot] = static_cast<uint32_t>(number + 1);
        }
    }

    std::vector<Range> ranges_;
    SortedBlocks by_base_;
    std::vector<uint32_t> slots_;
    std::vector<uint8_t> levels_;
    uint64_t levels_in_use_ = 0;
    size_t entries_ = 0;
    size_t mask_ = 0;
    unsigned hash_shift_ = 0;
};

} // namespace vmmcy

#endif

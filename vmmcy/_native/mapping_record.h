/* The record of one reservation's mappings: what is where, and who owes what.
 *
 * Plain state behind one lock; knows no driver and never touches Python. Every plan makes
 * all the room that its operation and the way back can need, so that nothing allocates,
 * and so nothing can fail for lack of host memory, once the first driver call is made.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "departures.h"
#include "mapping_plan.h"
#include "outcome.h"

namespace vmmcy {

class Record {
  public:
    std::mutex mutex;
    std::atomic<int> state{OPEN};
    bool address_is_reserved = false;
    Departures departures;

    /* An empty plan for the operation that holds the lock. The memory of the last one serves
     * again, unless it was much. */
    Plan *fresh_plan() noexcept {
        constexpr size_t much = 1024;
        if (plan_.pieces.capacity() > much)
            plan_ = Plan();
        plan_.pieces.clear();
        plan_.steps.clear();
        return &plan_;
    }

    uint64_t count() const noexcept {
        return entries_.size();
    }

    /* How many are the pool's. */
    uint64_t pooled_count() const noexcept {
        return std::count_if(entries_.begin(), entries_.end(),
                             [](const auto &entry) { return entry.second.pooled; });
    }

    /* Whether operations other than close are taken. */
    Refusal admit() const noexcept {
        return admitted_in(state.load());
    }

    /* The one entry at [offset, offset + size_bytes), new and empty. */
    Refusal plan_one(uint64_t offset, uint64_t size_bytes, Plan &plan) noexcept {
        Refusal refusal = vacant(offset, offset + size_bytes);
        if (refusal.reason != NOT_REFUSED)
            return refusal;
        return guarded(plan, [&] { add(first_after(offset), offset, size_bytes, plan); });
    }

    /* New, empty entries of at most `chunk_bytes` over every hole in [offset, end). */
    Refusal plan_holes(uint64_t offset, uint64_t end, uint64_t chunk_bytes, Plan &plan) noexcept {
        return guarded(plan, [&] {
            uint64_t place = offset;
            auto next = first_after(offset);
            while (place < end) {
                bool is_last = next == entries_.end() || next->second.offset >= end;
                uint64_t hole_end = is_last ? end : next->second.offset;
                while (place < hole_end) {
                    uint64_t size_bytes = std::min(chunk_bytes, hole_end - place);
                    add(next, place, size_bytes, plan);
                    place += size_bytes;
                }
                if (is_last)
                    break;
                place = next->second.end();
                ++next;
            }
        });
    }

    /* The mappings that make up [offset, end), whole and without a hole. */
    Refusal plan_exact(uint64_t offset, uint64_t end, Plan &plan) noexcept {
        uint64_t place = offset;
        auto first = first_after(offset), last = first;
        for (; place < end; place = last->second.end(), ++last) {
            if (last == entries_.end() || last->second.offset > place) {
                bool runs_on = last == entries_.end() || last->second.offset >= end;
                return {HOLE, place, runs_on ? end : last->second.offset};
            }
            if (last->second.offset < offset || last->second.end() > end)
                return {CUT, last->second.offset, last->second.end()};
        }
        return guarded(plan, [&] { take(first, last, plan); });
    }

    /* The mappings that lie wholly inside [offset, end). */
    Refusal plan_inside(uint64_t offset, uint64_t end, Plan &plan) noexcept {
        auto first = entries_.lower_bound(offset), last = first;
        while (last != entries_.end() && last->second.end() <= end)
            ++last;
        return guarded(plan, [&] { take(first, last, plan); });
    }

    /* The first stretch of touching mappings at or behind `offset` whose departure has passed. */
    Refusal plan_due(uint64_t offset, Plan &plan) noexcept {
        auto is_due = [](const Mapping &m) {
            return m.departure && m.departure->passed && !is_late(m.earlier, nullptr);
        };
        auto first = entries_.lower_bound(offset);
        while (first != entries_.end() && !is_due(first->second))
            ++first;
        auto last = first;
        for (uint64_t end = 0; last != entries_.end() && is_due(last->second); ++last) {
            if (last != first && last->second.offset != end)
                break;
            end = last->second.end();
        }
        return guarded(plan, [&] { take(first, last, plan); });
    }

    /* What ways back that failed have left. */
    Refusal plan_left_over(Plan &plan) noexcept {
        return guarded(plan, [&] {
            for (auto &entry : entries_)
                if (entry.second.left_over)
                    plan.pieces.push_back(&entry.second);
        });
    }

    /* Index behind the pieces from `first` on that have no other entry between them: one
     * unmap takes them all. */
    uint64_t stretch_end(const Plan &plan, uint64_t first) const noexcept {
        auto entry = entries_.find(plan.pieces[first]->offset);
        while (first < plan.pieces.size() && entry != entries_.end() &&
               &entry->second == plan.pieces[first]) {
            ++first;
            ++entry;
        }
        return first;
    }

    /* Whether [offset, end) is free of entries, or else the first one there. */
    Refusal vacant(uint64_t offset, uint64_t end) const noexcept {
        auto next = first_after(offset);
        if (next == entries_.end() || next->second.offset >= end)
            return {};
        Reason reason = next->second.departure ? STILL_LEAVING : OVERLAP;
        return {reason, next->second.offset, next->second.end()};
    }

    /* Let the pieces leave with a departure. */
    void depart(const Pieces &pieces, Departure *departure) noexcept {
        for (Mapping *piece : pieces) {
            Departure *earlier = forget_earlier(*piece);
            if (piece->departure)
                departure->after_earlier = true;
            stay(*piece);
            piece->departure = departure;
            if (!departure->after_earlier && is_late(earlier, departure))
                remember(*piece, earlier);
            departure->mappings++;
            departure->start = std::min(departure->start, piece->offset);
        }
    }

    /* Keep what is leaving of [offset, end); the bytes. The work that it would have left after
     * still counts, should it leave again. */
    uint64_t keep(uint64_t offset, uint64_t end) noexcept {
        uint64_t sum = 0;
        if (!departures.first)
            return 0;
        for (auto next = first_after(offset); next != entries_.end(); ++next) {
            if (next->second.offset >= end)
                break;
            if (!next->second.departure)
                continue;
            sum += next->second.size_bytes;
            Departure *last = next->second.departure;
            Departure *earlier = forget_earlier(next->second);
            stay(next->second);
            if (last->passed) {
                last = earlier;
            } else if (is_late(earlier, last)) {
                last->after_earlier = true;
            }
            if (is_late(last, nullptr))
                remember(next->second, last);
        }
        return sum;
    }

    /* Let go of the departures that have passed. */
    void forget_passed() noexcept {
        if (departures.are_to_be_forgotten())
            for (auto &entry : entries_)
                if (entry.second.earlier && entry.second.earlier->passed)
                    forget_earlier(entry.second);
    }

    uint64_t leaving_bytes() const noexcept {
        uint64_t sum = 0;
        if (departures.first)
            for (const auto &entry : entries_)
                if (entry.second.departure)
                    sum += entry.second.size_bytes;
        return sum;
    }

    /* The first mapping that leaves after something that has not passed. */
    const Mapping *first_late() const noexcept {
        for (const auto &entry : entries_)
            if (entry.second.departure && (is_late(entry.second.departure, nullptr) ||
                                           is_late(entry.second.earlier, nullptr)))
                return &entry.second;
        return nullptr;
    }

    /* Strike off those pieces of which nothing is left to undo. */
    void forget_empty(const Pieces &pieces) noexcept {
        for (Mapping *piece : pieces) {
            if (piece->mapped || piece->held)
                continue;
            forget_earlier(*piece);
            stay(*piece);
            entries_.erase(piece->offset);
        }
    }

    /* Copy what is mapped, in address order, without a pool's handles, which nobody else may
     * use; false for lack of host memory. */
    bool snapshot(std::vector<Mapping> &mappings) const noexcept {
        try {
            for (const auto &entry : entries_)
                if (entry.second.mapped) {
                    mappings.push_back(entry.second);
                    if (entry.second.pooled) {
                        mappings.back().handle = 0;
                        mappings.back().held = false;
                    }
                }
        } catch (const std::bad_alloc &) {
            return false;
        }
        return true;
    }

    uint64_t mapped_bytes() const noexcept {
        uint64_t sum = 0;
        for (const auto &entry : entries_)
            if (entry.second.mapped)
                sum += entry.second.size_bytes;
        return sum;
    }

  private:
    using Entries = std::map<uint64_t, Mapping>;
    Entries entries_;
    Plan plan_;

    /* Whether an earlier departure, NULL for none, may pass after a later one, NULL for any. */
    static bool is_late(const Departure *earlier, const Departure *later) noexcept {
        return earlier && !earlier->passed && !(later && later->fence.is_behind(earlier->fence));
    }

    static void remember(Mapping &mapping, Departure *earlier) noexcept {
        mapping.earlier = earlier;
        (mapping.departure ? earlier->of_leaving : earlier->of_staying)++;
    }

    /* Before the mapping leaves or stays. */
    static Departure *forget_earlier(Mapping &mapping) noexcept {
        Departure *earlier = mapping.earlier;
        if (earlier)
            (mapping.departure ? earlier->of_leaving : earlier->of_staying)--;
        mapping.earlier = nullptr;
        return earlier;
    }

    static void stay(Mapping &mapping) noexcept {
        if (mapping.departure)
            mapping.departure->mappings--;
        mapping.departure = nullptr;
    }

    /* The first entry that ends after `offset`. */
    template <class Map> static auto first_ending_after(Map &entries, uint64_t offset) {
        auto next = entries.upper_bound(offset);
        if (next != entries.begin()) {
            auto previous = std::prev(next);
            if (previous->second.end() > offset)
                return previous;
        }
        return next;
    }
    Entries::iterator first_after(uint64_t offset) {
        return first_ending_after(entries_, offset);
    }
    Entries::const_iterator first_after(uint64_t offset) const {
        return first_ending_after(entries_, offset);
    }

    /* In front of `next`. */
    void add(Entries::iterator next, uint64_t offset, uint64_t size_bytes, Plan &plan) {
        plan.pieces.push_back(nullptr);
        Mapping planned = {};
        planned.offset = offset;
        planned.size_bytes = size_bytes;
        plan.pieces.back() = &entries_.emplace_hint(next, offset, planned)->second;
    }

    static void take(Entries::iterator first, Entries::iterator last, Plan &plan) {
        for (; first != last; ++first)
            plan.pieces.push_back(&first->second);
    }

    /* Fill the plan and make room for its steps, or leave the record as it was. */
    template <class Fill> Refusal guarded(Plan &plan, Fill fill) noexcept {
        try {
            fill();
            plan.steps.reserve(2 * plan.pieces.size());
            return {};
        } catch (const std::bad_alloc &) {
            if (!plan.pieces.empty() && plan.pieces.back() == nullptr)
                plan.pieces.pop_back();
            forget_empty(plan.pieces);
            plan.pieces.clear();
            return {NO_HOST_MEMORY};
        }
    }
};

} // namespace vmmcy

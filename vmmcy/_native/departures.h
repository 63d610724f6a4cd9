/* What the leaving mappings of a reservation wait for.
 *
 * Plain state behind the record's lock; knows no driver and never touches Python.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>

#include "fence.h"

namespace vmmcy {

/* Mappings that leave together, when their fence has passed. */
struct Departure {
    Fence fence = {};
    uint64_t mappings = 0;
    uint64_t of_staying = 0;     /* mappings that stay again: if they leave, this fence counts */
    uint64_t of_leaving = 0;     /* and those that left once more meanwhile */
    uint64_t waiters = 0;        /* who waits for the fence, without the lock */
    uint64_t start = UINT64_MAX; /* no mapping lies before */
    bool after_earlier = false;  /* some were leaving already, so those fences count too */
    bool passed = false;
    Departure *next = nullptr;
};

/* A list, in the order in which they were asked for. */
class Departures {
  public:
    Departure *first = nullptr;

    Departures() = default;
    Departures(const Departures &) = delete;
    Departures &operator=(const Departures &) = delete;
    ~Departures() {
        while (first)
            remove(&first);
    }

    /* A new one at the end; NULL for lack of host memory. */
    Departure *add() noexcept {
        Departure *added = *end_ = new (std::nothrow) Departure;
        if (added)
            end_ = &added->next;
        return added;
    }

    /* The first that can be waited for now, NULL for none: of all, or of those that something
     * leaves after. */
    Departure *to_wait_for(bool of_all) const noexcept {
        bool is_first = true;
        for (Departure *departure = first; departure; departure = departure->next) {
            if (departure->passed)
                continue;
            if (departure->fence.event && (is_first || !departure->after_earlier) &&
                (of_all || departure->mappings || departure->of_leaving || is_needed(departure)))
                return departure;
            is_first = false;
        }
        return nullptr;
    }

    /* Whether mappings are to be given back now; none of them lies before `start`. */
    bool are_due(uint64_t *start) const noexcept {
        bool due = false;
        *start = UINT64_MAX;
        for (const Departure *departure = first; departure; departure = departure->next) {
            if (departure->passed && departure->mappings) {
                due = true;
                *start = std::min(*start, departure->start);
            }
        }
        return due;
    }

    /* Whether mappings remember one that has passed. */
    bool are_to_be_forgotten() const noexcept {
        for (const Departure *departure = first; departure; departure = departure->next)
            if (departure->passed && (departure->of_staying || departure->of_leaving))
                return true;
        return false;
    }

    bool have_passed() const noexcept {
        for (Departure *departure = first; departure; departure = departure->next)
            if (!departure->passed)
                return false;
        return true;
    }

    /* Take off one that nobody needs any more, for its fence to be dropped; false for none. */
    bool take_off_idle(Fence *fence) noexcept {
        for (Departure **place = &first; *place; place = &(*place)->next) {
            if ((*place)->mappings || (*place)->of_staying || (*place)->of_leaving ||
                (*place)->waiters || is_needed(*place))
                continue;
            *fence = (*place)->fence;
            remove(place);
            return true;
        }
        return false;
    }

  private:
    Departure **end_ = &first;

    void remove(Departure **place) noexcept {
        Departure *gone = *place;
        if (end_ == &gone->next)
            end_ = place;
        *place = gone->next;
        delete gone;
    }

    /* By a later one, to which its mappings went. */
    static bool is_needed(const Departure *departure) noexcept {
        if (departure->passed)
            return false;
        for (const Departure *later = departure->next; later; later = later->next)
            if (later->after_earlier && !later->passed)
                return true;
        return false;
    }
};

} // namespace vmmcy

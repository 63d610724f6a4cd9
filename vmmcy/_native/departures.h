/* What the leaving mappings of a reservation wait for.
 *
 * Plain state behind the record's lock; knows no driver and never touches Python.
 */
#pragma once

#include <cstdint>
#include <new>

#include "fence.h"

namespace vmmcy {

/* Mappings that leave together, when their fence has passed. */
struct Departure {
    Fence fence = {};
    uint64_t mappings = 0;
    uint64_t waiters = 0;       /* who waits for the fence, without the lock */
    bool after_earlier = false; /* some were leaving already, so those fences count too */
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
        Departure **place = &first;
        while (*place)
            place = &(*place)->next;
        return *place = new (std::nothrow) Departure;
    }

    /* The first that can be waited for now, NULL for none. */
    Departure *to_wait_for() const noexcept {
        bool is_first = true;
        for (Departure *departure = first; departure; departure = departure->next) {
            if (departure->passed)
                continue;
            if (departure->fence.event && (is_first || !departure->after_earlier))
                return departure;
            is_first = false;
        }
        return nullptr;
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
            if ((*place)->mappings || (*place)->waiters || is_needed(*place))
                continue;
            *fence = (*place)->fence;
            remove(place);
            return true;
        }
        return false;
    }

  private:
    static void remove(Departure **place) noexcept {
        Departure *gone = *place;
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

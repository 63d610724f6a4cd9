/* What came of an operation whose driver calls ran without Python. */
#pragma once

#include <cstdint>
#include <new>
#include <vector>

namespace vmmcy {

enum State { OPEN, CLOSE_ONLY, CLOSED };

enum Reason {
    NOT_REFUSED,
    FORKED,
    AFTER_CLOSE,
    LEFT_OVER,
    OVERLAP,
    STILL_LEAVING,
    STILL_CAPTURED,
    CUT,
    HOLE,
    NO_HOST_MEMORY,
    POOL_CLOSED,
    POOL_IN_USE,
    POOL_AWAITED,
};

/* Why an operation was refused before its first driver call, and the bytes it is about. */
struct Refusal {
    Reason reason = NOT_REFUSED;
    uint64_t offset = 0;
    uint64_t end = 0;
};

/* What a state other than OPEN answers to operations other than close. */
inline Refusal admitted_in(int state) noexcept {
    switch (state) {
    case OPEN:
        return {};
    case CLOSED:
        return {AFTER_CLOSE};
    default:
        return {LEFT_OVER};
    }
}

/* It is done where it was not refused and has no faults. */
template <class Fault> struct Outcome {
    Refusal refusal;
    std::vector<Fault> faults;
    uint64_t value = 0; /* what the operation gives back: a handle, bytes, or a count */

    bool is_done() const {
        return refusal.reason == NOT_REFUSED && faults.empty();
    }

    /* A later fault is only a note on the first, so that it may be lost. */
    void collect(const Fault &fault) noexcept {
        try {
            faults.push_back(fault);
        } catch (const std::bad_alloc &) {
            if (faults.empty())
                refusal.reason = NO_HOST_MEMORY;
        }
    }
};

} // namespace vmmcy

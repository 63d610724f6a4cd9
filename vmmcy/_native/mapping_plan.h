/* What an operation on a reservation works on: mappings, and the steps that were done to them. */
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "departures.h"

namespace vmmcy {

/* One handle at one place; empty where nothing is mapped and no reference is held: its plan. */
struct Mapping {
    uint64_t offset;
    uint64_t size_bytes;
    uint64_t handle; /* 0: none that we know to be alive */
    bool mapped;
    bool held;            /* one reference of `handle` is the reservation's to release */
    bool lent;            /* the caller was given `handle` */
    bool foreign;         /* `handle` is the caller's own */
    bool pooled;          /* `handle` is to go back to the reservation's pool */
    bool left_over;       /* the way back of an operation failed here */
    uint64_t giver;       /* of a pooled handle: whose bytes are in it, see Pooled */
    Departure *departure; /* NULL: it stays */
    Departure *earlier;   /* what it was leaving with before it stayed again, if that is late */

    uint64_t end() const {
        return offset + size_bytes;
    }
};

enum StepKind { CREATED, MAPPED, RELEASED, RETAINED, UNMAPPED };

/* A done step, as the way back needs it. */
struct Step {
    StepKind kind;
    Mapping *mapping;
};

using Pieces = std::vector<Mapping *>;

/* What an operation works on: its pieces in address order, and its steps in time order: of each
 * piece at most two. */
struct Plan {
    Pieces pieces;
    std::vector<Step> steps;

    /* Cannot throw: the plan has made room. */
    void note(StepKind kind, Mapping *piece) noexcept {
        steps.push_back({kind, piece});
    }

    uint64_t start() const {
        return pieces.front()->offset;
    }

    uint64_t end() const {
        return pieces.back()->end();
    }

    /* Without what is leaving, and so is given back already. */
    uint64_t staying_bytes() const {
        uint64_t sum = 0;
        for (const Mapping *piece : pieces)
            if (!piece->departure)
                sum += piece->size_bytes;
        return sum;
    }

    /* After ranges in any order, which may overlap: in address order, each piece once. */
    void put_in_order() noexcept {
        auto is_before = [](Mapping *a, Mapping *b) { return a->offset < b->offset; };
        if (!std::is_sorted(pieces.begin(), pieces.end(), is_before))
            std::sort(pieces.begin(), pieces.end(), is_before);
        pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
    }

    bool has_mapped() const {
        return std::any_of(pieces.begin(), pieces.end(), [](Mapping *p) { return p->mapped; });
    }
};

} // namespace vmmcy

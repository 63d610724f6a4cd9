/* A place in the work of a stream, as the room that talks to the driver keeps it. */
#pragma once

#include <cstdint>

namespace vmmcy {

struct Fence {
    void *stream;
    void *context;
    void *event; /* NULL: not recorded yet, since the stream was being captured */

    /* Whether this is late for as long as an earlier fence is, whose event has been recorded. */
    bool is_behind(const Fence &earlier) const noexcept {
        constexpr uintptr_t per_thread = 2; /* a stream of each thread's, under one name */
        return earlier.event && stream == earlier.stream && context == earlier.context &&
               reinterpret_cast<uintptr_t>(stream) != per_thread;
    }
};

/* Streams that were found late in one look at many fences, which have numbers in the order in
 * which they were made: so that each is asked once, as many as there is room for. */
class LateStreams {
  public:
    bool hold(const Fence &fence, uint64_t number) const noexcept {
        for (int i = 0; i < count_; i++)
            if (number > late_[i].number && fence.is_behind(*late_[i].fence))
                return true;
        return false;
    }

    void add(const Fence &fence, uint64_t number) noexcept {
        if (count_ < MOST)
            late_[count_++] = {&fence, number};
    }

  private:
    static constexpr int MOST = 16;
    struct Late {
        const Fence *fence;
        uint64_t number;
    };
    Late late_[MOST];
    int count_ = 0;
};

} // namespace vmmcy

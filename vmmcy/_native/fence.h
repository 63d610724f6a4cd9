/* A place in the work of a stream, as the room that talks to the driver keeps it. */
#pragma once

namespace vmmcy {

struct Fence {
    void *stream;
    void *context;
    void *event; /* NULL: not recorded yet, since the stream was being captured */
};

} // namespace vmmcy

/* Bytes of device memory, and where the host keeps them meanwhile. */
#pragma once

#include <cstdint>

namespace vmmcy {

struct Kept {
    uint64_t offset; /* from a base that the copies are told */
    uint64_t size_bytes;
    uint64_t host_offset;
};

} // namespace vmmcy

"""A peer's way to an arena: compile a C++ allocator at run time through torch.

Prints ``{"median_ns": …}``: the time of one compiler run and load, after a first one that
warms compiler and build tool. Each stub has its own name and folder, as engines need it.
"""

import json
import statistics
import tempfile
from pathlib import Path
from time import perf_counter_ns

from torch.utils.cpp_extension import load_inline

ROUNDS = 5
SOURCE = """
#include <cstddef>
#include <cstdint>
#include <mutex>
static std::mutex mutex;
static uintptr_t base, cursor, end;
extern "C" void stub_set_extent_NUMBER(uintptr_t address, size_t size_bytes) {
  std::lock_guard<std::mutex> held(mutex);
  base = cursor = address;
  end = address + size_bytes;
}
extern "C" void *stub_malloc_NUMBER(size_t size_bytes, int, void *) {
  std::lock_guard<std::mutex> held(mutex);
  size_t need = (size_bytes + 511) / 512 * 512;
  if (end - cursor < need) return nullptr;
  cursor += need;
  return reinterpret_cast<void *>(cursor - need);
}
extern "C" void stub_free_NUMBER(void *, size_t, int, void *) {}
"""


def compile_stub(folder: Path, number: int) -> int:
    """Compile and load stub `number`; nanoseconds."""
    build = folder / str(number)
    build.mkdir()
    started = perf_counter_ns()
    load_inline(
        name=f"vmmcy_bench_stub_{number}",
        cpp_sources=SOURCE.replace("NUMBER", str(number)),
        with_cuda=False,
        is_python_module=False,
        no_implicit_headers=True,
        build_directory=str(build),
    )
    return perf_counter_ns() - started


with tempfile.TemporaryDirectory() as scratch:
    times = [compile_stub(Path(scratch), number) for number in range(ROUNDS + 1)][1:]
print(json.dumps({"median_ns": statistics.median(times)}))

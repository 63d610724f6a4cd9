"""Kernels that read memory for half a second while it is given back, paused or freed.

No driver call waits for a kernel: what is taken away too early ends the process's context, or
is somebody else's by then. Each kernel compares all its words, over and over, with what
has to be there, until its time is over. Run as a program it prints a line of JSON:

    python tests/with_torch/kernels_meanwhile.py --turns 1000
"""

import argparse
import ctypes
import gc
import json
import os
import sys

# Before CUDA starts: else streams share channels, and one waits for the events of another.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import numpy as np
import torch
from cuda.bindings import driver

from vmmcy import HandlePool, VmmReservation, live
from vmmcy.torch import BackedPool

STREAMS = 32
SECONDS = 0.5
CHUNK_BYTES = 4 << 20
SIZE_BYTES = 2 * CHUNK_BYTES
WORDS = SIZE_BYTES // 4
THREADS = 256

WATCH = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry watch(
    .param .u64 words,
    .param .u32 count,
    .param .u32 expected,
    .param .u64 nanoseconds,
    .param .u64 wrong_and_finished
)
{
    .reg .pred %p<3>;
    .reg .u32 %r<8>;
    .reg .u64 %d<8>;

    ld.param.u64 %d1, [words];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [expected];
    ld.param.u64 %d2, [nanoseconds];
    ld.param.u64 %d3, [wrong_and_finished];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d3, %d3;
    mov.u64 %d4, %globaltimer;
    add.u64 %d2, %d2, %d4;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r6, 0;
next_pass:
    mov.u32 %r5, %r3;
next_word:
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra end_of_pass;
    mul.wide.u32 %d5, %r5, 4;
    add.u64 %d6, %d1, %d5;
    ld.volatile.global.u32 %r7, [%d6];
    setp.ne.u32 %p2, %r7, %r2;
    @%p2 add.u32 %r6, %r6, 1;
    add.u32 %r5, %r5, %r4;
    bra next_word;
end_of_pass:
    mov.u64 %d7, %globaltimer;
    setp.lt.u64 %p1, %d7, %d2;
    @%p1 bra next_pass;
    red.global.add.u32 [%d3], %r6;
    red.global.add.u32 [%d3+4], 1;
    ret;
}
"""
PARAMETER_TYPES = (
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_void_p,
)


def must(answer):
    """What a driver call of our own gives back."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {status.name}")
    return values[0] if values else None


class Watchers:
    """A kernel on each of some streams, and what they found."""

    def __init__(self, count, seconds):
        self.streams = [torch.cuda.Stream() for _ in range(count)]
        self.turns = self.running = 0
        self._nanoseconds = int(seconds * 1e9)
        self._found = torch.zeros((count, 2), dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        image = np.frombuffer(WATCH + b"\0", dtype=np.uint8)
        self._module = must(driver.cuModuleLoadData(image.ctypes.data))
        self._kernel = must(driver.cuModuleGetFunction(self._module, b"watch"))

    def watch(self, index, address, value):
        """Read the memory on a stream for a while: each of its words is `value`."""
        arguments = (address, WORDS, value, self._nanoseconds, self._found[index].data_ptr())
        stream = self.streams[index].cuda_stream
        must(
            driver.cuLaunchKernel(
                self._kernel, 1, 1, 1, THREADS, 1, 1, 0, stream, (arguments, PARAMETER_TYPES), 0
            )
        )
        self.turns += 1

    def note_running(self):
        """Count the kernels that still run."""
        self.running += sum(not stream.query() for stream in self.streams)

    def findings(self):
        """Turns, how many ran when their memory was asked back, wrong words, and ends missing."""
        torch.cuda.synchronize()
        wrong, finished = self._found.sum(dim=0).tolist()
        return {
            "turns": self.turns,
            "running": self.running,
            "wrong": wrong,
            "unfinished": self.turns - finished // THREADS,
        }

    def close(self):
        torch.cuda.synchronize()
        must(driver.cuModuleUnload(self._module))


def give_back(watchers, rounds):
    """Decommit behind the kernels' streams, into a pool that others are served from at once."""
    span = len(watchers.streams) * SIZE_BYTES
    with (
        HandlePool(0, chunk_bytes=CHUNK_BYTES, capacity_bytes=2 * span) as handles,
        VmmReservation(2 * span, pool=handles) as reservation,
    ):
        for value in range(rounds):
            for index, stream in enumerate(watchers.streams):
                stream.synchronize()
                offset = value % 2 * span + index * SIZE_BYTES
                address = reservation.base + offset
                reservation.commit(offset, SIZE_BYTES)
                must(driver.cuMemsetD32Async(address, value, WORDS, stream.cuda_stream))
                watchers.watch(index, address, value)
                reservation.decommit(offset, SIZE_BYTES, stream=stream)
            watchers.note_running()
        reservation.synchronize()


def pause(watchers, rounds):
    """Pause a pool under the kernels; the next kernels find what was kept."""
    with BackedPool() as pool:
        tensors = made_in(pool, range(len(watchers.streams)))
        torch.cuda.synchronize()
        for _ in range(rounds):
            for index in range(len(tensors)):
                watchers.watch(index, tensors[index].data_ptr(), index)
            watchers.note_running()
            pool.pause(keep="host")
            pool.resume()
        torch.cuda.synchronize()
        tensors.clear()


def free(watchers, rounds):
    """Drop tensors and pool under the kernels; the next pool waits for its predecessor's."""
    for value in range(rounds):
        pool = BackedPool(no_split=True)
        for index, stream in enumerate(watchers.streams):
            with torch.cuda.stream(stream):
                watchers.watch(index, made_in(pool, [value])[0].data_ptr(), value)
        del pool
        watchers.note_running()
    BackedPool().close()


def made_in(pool, values):
    """Tensors of a pool, each full of a value of its own."""
    with torch.cuda.use_mem_pool(pool):
        return [torch.full((WORDS,), value, dtype=torch.int32, device="cuda") for value in values]


WAYS = {"given back": give_back, "paused": pause, "freed": free}


def found(way, turns, streams=STREAMS, seconds=SECONDS):
    """What the kernels of some turns found, in whole rounds of a kernel on each stream."""
    watchers = Watchers(streams, seconds)
    WAYS[way](watchers, -(-turns // streams))
    findings = watchers.findings()
    watchers.close()
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=1000, help="kernels for each way")
    turns = parser.parse_args().turns
    report = {"faults": 0}
    try:
        for way in WAYS:
            report[way] = found(way, turns)
    except RuntimeError as error:
        report["faults"] = 1
        report["error"] = str(error)
    gc.collect()
    report["ledger"] = live()
    print(json.dumps(report))
    well = not report["faults"] and not any(report["ledger"].values())
    return 0 if well and all(not report[way]["wrong"] for way in WAYS) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The simulator across processes: fork, and memory that travels as a file descriptor."""

import ctypes
import os
import subprocess
import sys
import threading

import pytest
from conformance.steps import POSIX, G, create, must, reserve, set_access
from cuda.bindings import driver
from sim_helpers import entry_points, environment, python

from vmmcy import sim as simulator

# From Python 3.12 on a fork beside threads warns; here it is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

ALWAYS_SERVED = {"cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"}

IMPORTER = """
import ctypes, sys
from vmmcy import sim
fd, granularity = map(int, sys.argv[1:])
sim.load(granularity=granularity)
from conformance.steps import POSIX, driver, must, reserve, set_access
must(driver.cuInit(0))
size = max(granularity, 2 << 20)
base = int(must(reserve(size)))
handle = must(driver.cuMemImportFromShareableHandle(fd, POSIX))
must(driver.cuMemMap(base, 2 << 20, 0, handle, 0))
must(set_access(base, 2 << 20))
print(ctypes.string_at(base, 4).decode(), flush=True)
ctypes.memmove(base, b"pong", 4)
print("written", flush=True)
sys.stdin.readline()  # the exporter has let go by now
assert ctypes.string_at(base, 4) == b"pong"
must(driver.cuMemUnmap(base, 2 << 20))
must(driver.cuMemRelease(handle))
must(driver.cuMemAddressFree(base, size))
print(sum(sim.live().values()), flush=True)
"""


@pytest.fixture(autouse=True)
def initialised(sim):
    must(driver.cuInit(0))


def in_child(work):
    """Exit status of a forked child that does `work`, which gives it."""
    child = os.fork()
    if child == 0:
        status = 255
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_refused_by_every_call():
    base, handle = int(must(reserve(G))), must(create(G))
    must(driver.cuMemMap(base, G, 0, handle, 0))
    points = entry_points()

    def work():
        statuses = {
            name: ctypes.CFUNCTYPE(ctypes.c_int)(address)()
            for name, address in points
            if name not in ALWAYS_SERVED
        }
        return sum(status != 3 for status in statuses.values())

    assert in_child(work) == 0
    assert in_child(lambda: int(driver.cuGetErrorName(driver.CUresult(3))[0])) == 0
    must(set_access(base, G))
    ctypes.memmove(base, b"works", 5)
    must(driver.cuMemUnmap(base, G))
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(base, G))


def test_a_fork_in_the_middle_of_other_threads_calls_does_not_block():
    stop = threading.Event()

    def work():
        while not stop.is_set():
            driver.cuDeviceGetCount()

    def ask():
        return int(reserve(G)[0]) + sum(simulator.live().values())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    statuses = {in_child(ask) for _ in range(30)}
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses == {3}


def test_a_fork_before_the_first_use_leaves_a_child_that_works():
    code = (
        "import os\n"
        "from vmmcy import sim\n"
        "sim.load()\n"
        "from conformance.steps import G, driver, must, reserve\n"
        "child = os.fork()\n"
        "must(driver.cuInit(0))\n"
        "must(driver.cuMemAddressFree(must(reserve(G)), G))\n"
        "if child:\n"
        "    print(os.waitpid(child, 0)[1])\n"
    )
    seen = python(code)
    assert seen.stdout.strip() == "0", seen.stderr


@pytest.mark.parametrize("granularity", [64 << 10, 2 << 20, 4 << 20])
def test_memory_travels_to_another_process_and_outlives_its_exporter(granularity):
    base, handle = int(must(reserve(G))), must(create(G, handle_type=1))
    must(driver.cuMemMap(base, G, 0, handle, 0))
    must(set_access(base, G))
    ctypes.memmove(base, b"ping", 4)
    fd = must(driver.cuMemExportToShareableHandle(handle, POSIX, 0))
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTER, str(fd), str(granularity)],
        env=environment(),
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as importer:
        os.close(fd)
        assert importer.stdout.readline().strip() == "ping"
        assert importer.stdout.readline().strip() == "written"
        assert ctypes.string_at(base, 4) == b"pong"
        must(driver.cuMemUnmap(base, G))
        must(driver.cuMemRelease(handle))
        must(driver.cuMemAddressFree(base, G))
        importer.stdin.write("released\n")
        importer.stdin.flush()
        assert importer.stdout.readline().strip() == "0"
    assert importer.returncode == 0


def test_an_exported_descriptor_is_closed_on_exec_and_new_each_time():
    handle = must(create(G, handle_type=1))
    fds = [must(driver.cuMemExportToShareableHandle(handle, POSIX, 0)) for _ in range(2)]
    assert fds[0] != fds[1]
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in fds:
        os.close(fd)
    must(driver.cuMemRelease(handle))


def test_export_with_no_descriptor_left_is_refused_and_leaves_nothing():
    code = (
        "import os, resource\n"
        "from vmmcy import sim\n"
        "sim.load()\n"
        "from conformance.steps import G, POSIX, create, driver, must\n"
        "must(driver.cuInit(0))\n"
        "handle = must(create(G, handle_type=1))\n"
        "os.close(lowest_free := os.dup(0))\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "for spare in (0, 1):  # a file of its own, and the copy that is given out\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, most))\n"
        "    print(driver.cuMemExportToShareableHandle(handle, POSIX, 0)[0].name)\n"
        "must(driver.cuMemRelease(handle))\n"
        "print(sum(sim.live().values()))\n"
    )
    seen = python(code)
    refused = "CUDA_ERROR_OPERATING_SYSTEM"
    assert seen.stdout.split() == [refused, refused, "0"], seen.stderr

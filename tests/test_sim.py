"""The simulator's control: loading, configuration, counts, injected failures and answers."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conformance.steps import G, create, must, reserve, set_access, succeeded
from cuda.bindings import driver
from sim_helpers import entry_points, look_up, primary_context, python

from vmmcy import sim as simulator

OK = driver.CUresult.CUDA_SUCCESS
IDLE = {"reservations": 0, "handles": 0, "mappings": 0, "mapped_bytes": 0, "fds": 0}


@pytest.fixture
def context(sim):
    """Device 0's primary context, current for the test."""
    with primary_context() as context:
        yield context


@pytest.fixture
def configured(context):
    """`simulator.load`, undone after the test."""
    yield simulator.load
    simulator.load()


# --- Counts ----------------------------------------------------------------------------------


def test_live_counts_what_is_there(context):
    base = int(must(reserve(8 * G)))
    assert simulator.live() == {**IDLE, "reservations": 1}
    handle = must(create(2 * G))
    must(driver.cuMemMap(base, 2 * G, 0, handle, 0))
    must(driver.cuMemMap(base + 4 * G, 2 * G, 0, handle, 0))
    counts = {"reservations": 1, "handles": 1, "mappings": 2, "mapped_bytes": 4 * G, "fds": 0}
    assert simulator.live() == counts
    must(driver.cuMemRetainAllocationHandle(base))
    assert simulator.live() == {**counts, "handles": 2}
    must(driver.cuMemRelease(handle))
    must(driver.cuMemRelease(handle))
    assert simulator.live() == {**counts, "handles": 0}
    must(driver.cuMemUnmap(base, 8 * G))
    assert simulator.live() == {**IDLE, "reservations": 1}
    must(driver.cuMemAddressFree(base, 8 * G))
    assert simulator.live() == IDLE


def test_calls_are_counted_by_their_documented_names(context):
    driver.cuMemGetAddressRange(1)
    driver.cuMemGetAddressRange(2)
    must(driver.cuMemGetInfo())
    assert simulator.calls() == {"cuMemGetAddressRange": 2, "cuMemGetInfo": 1}
    simulator.reset()
    assert simulator.calls() == {}


def test_looking_up_an_entry_point_is_no_call(sim):
    entry_points()
    assert simulator.calls() == {}


def test_every_entry_point_is_counted_and_can_be_made_to_fail(sim):
    points = entry_points()
    assert len(points) > len(simulator._call_names())  # some have more than one form
    for name, address in points:
        simulator.reset()
        simulator.fail(name, status=719)
        assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 719, name
        assert simulator.calls() == {name: 1}


# --- Injected failures -----------------------------------------------------------------------


def test_the_nth_call_and_those_after_it_fail(context):
    simulator.fail("cuMemGetInfo", nth=3, times=2, status="CUDA_ERROR_OUT_OF_MEMORY")
    statuses = [int(driver.cuMemGetInfo()[0]) for _ in range(6)]
    assert statuses == [0, 0, 2, 2, 0, 0]


def test_several_requests_stand_at_once(context):
    must(driver.cuMemGetInfo())
    simulator.fail("cuMemGetInfo", nth=2, status=700)
    simulator.fail("cuMemGetInfo", nth=4)
    simulator.fail("cuMemGetInfo", nth=2, times=2, status=801)
    simulator.fail("cuDeviceGetCount", status=3)
    statuses = [int(driver.cuMemGetInfo()[0]) for _ in range(5)]
    assert statuses == [0, 700, 801, 999, 0]
    assert int(driver.cuDeviceGetCount()[0]) == 3


def test_reset_forgets_requests_and_answers(context):
    simulator.fail("cuMemGetInfo")
    simulator.answer_range(G, G, G)
    simulator.reset()
    must(driver.cuMemGetInfo())
    assert not succeeded(driver.cuMemGetAddressRange(G))


def test_a_failing_call_has_no_effect(context):
    base, handle = int(must(reserve(G))), must(create(G))
    before = simulator.live()
    attempts = (
        ("cuMemAddressReserve", lambda: reserve(G)),
        ("cuMemCreate", lambda: create(G)),
        ("cuMemMap", lambda: driver.cuMemMap(base, G, 0, handle, 0)),
        ("cuMemRelease", lambda: driver.cuMemRelease(handle)),
        ("cuMemAddressFree", lambda: driver.cuMemAddressFree(base, G)),
    )
    for name, attempt in attempts:
        simulator.fail(name)
        assert int(attempt()[0]) == 999
        assert simulator.live() == before
    must(driver.cuMemMap(base, G, 0, handle, 0))
    simulator.fail("cuMemSetAccess")
    assert int(set_access(base, G)[0]) == 999
    assert not succeeded(driver.cuMemGetAddressRange(base))
    must(set_access(base, G))
    simulator.fail("cuMemUnmap")
    assert int(driver.cuMemUnmap(base, G)[0]) == 999
    must(driver.cuMemGetAddressRange(base))
    must(driver.cuMemUnmap(base, G))
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(base, G))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"call": "cuMemFly"}, "call must be one that the simulator serves, got 'cuMemFly'"),
        ({"call": "cuMemGetAddressRange_v2"}, "got 'cuMemGetAddressRange_v2'"),
        ({"nth": 0}, "nth must be from 1 to "),
        ({"times": -1}, "times must be from 1 to "),
        ({"status": 0}, "status must be from 1 to "),
        ({"status": "CUDA_SUCCESS"}, "status must name an error"),
        ({"status": "CUDA_ERROR_FLY"}, "status must name an error of the driver, got 'CUDA_ERROR"),
        (
            {"status": "CUDA_ERROR_UNKNOWN\0"},
            r"status must name .*, got 'CUDA_ERROR_UNKNOWN\\x00'$",
        ),
        ({"status": "\udc80"}, r"status must name an error of the driver, got '\\udc80'$"),
        (
            {"status": "É" * 1000},
            "status must name an error of the driver, got '" + "É" * 80 + "'$",
        ),
        ({"call": "cuMemMap\0"}, r"call must be .*, got 'cuMemMap\\x00'$"),
        ({"call": "\udc80" * 1000}, "call must be one that the simulator serves, got "),
        ({"nth": 10**5000}, "nth must be from 1 to .*, got one of 16610 bits$"),
    ],
)
def test_requests_that_make_no_sense_are_refused(sim, arguments, text):
    with pytest.raises(ValueError, match=text):
        simulator.fail(**{"call": "cuMemMap", **arguments})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"nth": 1.0}, "nth must be an int, not float"),
        ({"times": True}, "times must be an int, not bool"),
        ({"status": None}, "status must be an int, not NoneType"),
        ({"call": None}, "call must be a str, not NoneType"),
        ({"call": b"cuMemMap"}, "call must be a str, not bytes"),
        ({"call": ["cuMemMap"]}, "call must be a str, not list"),
        ({"call": "cuMemFly", "times": "2"}, "times must be an int, not str"),
    ],
)
def test_requests_of_the_wrong_type_are_refused(sim, arguments, text):
    with pytest.raises(TypeError, match=f"^{text}$"):
        simulator.fail(**{"call": "cuMemMap", **arguments})


# --- Prepared answers ------------------------------------------------------------------------


def test_a_prepared_answer_is_given_once_and_in_order(context):
    base, size = 5, (1 << 64) - 1
    simulator.answer_range(G, base, 0)
    simulator.answer_range(2 * G, 7, 8)
    simulator.answer_range(G, base, size)
    answers = [driver.cuMemGetAddressRange(G) for _ in range(3)]
    assert [(int(a[1]), a[2]) for a in answers[:2]] == [(base, 0), (base, size)]
    assert answers[2][0] == driver.CUresult.CUDA_ERROR_NOT_FOUND
    assert tuple(map(int, driver.cuMemGetAddressRange(2 * G)[1:])) == (7, 8)


def test_a_prepared_answer_fits_in_64_bits(sim):
    with pytest.raises(ValueError, match="size must be from 0 to 18446744073709551615, got -1"):
        simulator.answer_range(G, G, -1)
    with pytest.raises(TypeError, match="base must be an int, not str"):
        simulator.answer_range(G, "7", G)


# --- Loading and configuration ---------------------------------------------------------------


def test_configuration_is_what_the_driver_then_says(configured):
    configured(memory_bytes=1 << 30, granularity=64 << 10)
    assert must(driver.cuDeviceTotalMem(0)) == 1 << 30
    assert driver.cuMemGetInfo() == (OK, 1 << 30, 1 << 30)
    address = must(reserve(64 << 10))
    must(driver.cuMemAddressFree(address, 64 << 10))
    assert not succeeded(create((1 << 30) + (64 << 10)))


def test_primary_contexts_keep_their_handles(configured, context):
    configured(granularity=4 << 20)
    configured()
    assert int(must(driver.cuDevicePrimaryCtxRetain(0))) == int(context)
    assert int(must(driver.cuCtxGetCurrent())) == int(context)
    must(driver.cuDevicePrimaryCtxRelease(0))


def test_configuration_stays_while_anything_is_alive(configured):
    base = must(reserve(G))
    stream = must(driver.cuStreamCreate(0))
    plain = must(driver.cuMemAlloc(5))
    configured()  # asks for nothing new
    alive = "alive: 1 reservations, 1 other memory, 1 streams$"
    with pytest.raises(RuntimeError, match=alive):
        configured(memory_bytes=8 << 30)
    assert must(driver.cuDeviceTotalMem(0)) == 16 << 30
    must(driver.cuMemAddressFree(base, G))
    must(driver.cuStreamDestroy(stream))
    must(driver.cuMemFree(plain))
    configured(memory_bytes=8 << 30)
    assert must(driver.cuDeviceTotalMem(0)) == 8 << 30


def test_the_number_of_devices_stays_once_the_driver_is_in_use(configured):
    text = (
        r"^the number of devices stays 1 once the driver is in use: "
        r"call vmmcy\.sim\.load\(devices=2\) before the first driver call$"
    )
    with pytest.raises(RuntimeError, match=text):
        configured(devices=2, memory_bytes=1 << 30)
    assert must(driver.cuDeviceGetCount()) == 1
    assert must(driver.cuDeviceTotalMem(0)) == 16 << 30


def test_vmmcy_sees_every_device_that_could_be_configured():
    seen = python(
        "import vmmcy\n"
        "vmmcy.sim.load(devices=2)\n"
        "vmmcy.sim.load(devices=3)\n"
        "vmmcy.VmmReservation(2 << 20, device_id=2).close()\n"
        "try: vmmcy.sim.load(devices=4)\n"
        "except RuntimeError: print('refused')\n"
    )
    assert seen.stdout.strip() == "refused", seen.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"devices": 0}, "devices must be from 1 to 32, got 0"),
        ({"devices": 33}, "devices must be from 1 to 32, got 33"),
        ({"memory_bytes": 4096}, "memory_bytes must be from 2097152 to 70368744177664, got 4096"),
        ({"granularity": 1024}, "granularity must be from 4096 to 1073741824, got 1024"),
        ({"granularity": 3 << 20}, "granularity must be a power of two, got 3145728"),
    ],
)
def test_configuration_out_of_range_is_refused(sim, arguments, text):
    with pytest.raises(ValueError, match=text):
        simulator.load(**arguments)


@pytest.mark.parametrize("name", ["devices", "memory_bytes", "granularity"])
@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_configuration_of_the_wrong_type_is_refused(sim, name, value):
    with pytest.raises(TypeError, match=f"^{name} must be an int, not {type(value).__name__}$"):
        simulator.load(**{name: value})


def test_control_without_the_simulator_says_how_to_get_it():
    seen = python(
        "from vmmcy import sim\n"
        "assert not sim.is_loaded()\n"
        "wanted = (sim.live, sim.calls, sim.reset, lambda: sim.fail('cuInit'),\n"
        "          lambda: sim.answer_range(0, 0, 0))\n"
        "for control in wanted:\n"
        "    try:\n"
        "        control()\n"
        "    except RuntimeError as error:\n"
        "        assert 'call vmmcy.sim.load(), or set VMMCY_DRIVER=sim' in str(error)\n"
        "        print('refused')\n"
    )
    assert seen.stdout.split() == ["refused"] * 5, seen.stderr


def test_loading_never_initialises_the_driver():
    seen = python(
        "from vmmcy import sim\n"
        "sim.load(devices=2)\n"
        "assert sim.is_loaded() and sim.calls() == {}\n"
        "from cuda.bindings import driver\n"
        "print(int(driver.cuDeviceGetCount()[0]))\n"
    )
    assert seen.stdout.strip() == "3", seen.stderr


def test_a_process_tree_gets_the_simulator_through_the_library_path():
    folder = str(Path(simulator.library_path()).parent)
    seen = python(
        "from cuda.bindings import driver\n"
        "driver.cuInit(0)\n"
        "from vmmcy import sim\n"
        "assert sim.is_loaded() and sim.calls() == {'cuInit': 1}\n"
        "sim.load(memory_bytes=4 << 30)\n"
        "print(driver.cuDeviceTotalMem(0)[1] >> 30)\n",
        LD_LIBRARY_PATH=folder,
    )
    assert seen.stdout.strip() == "4", seen.stderr


def test_loading_after_a_real_driver_is_refused(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: builds a library that stands for a real driver")
    library = tmp_path / "libcuda.so.1"
    build = [compiler, "-shared", "-Wl,-soname,libcuda.so.1", "-xc", os.devnull, "-o", library]
    subprocess.run(build, check=True)
    seen = python(
        "import ctypes, sys\n"
        f"ctypes.CDLL({str(library)!r})\n"
        "from vmmcy import sim\n"
        "assert not sim.is_loaded()\n"
        "sim.load()\n"
    )
    assert "RuntimeError: a real libcuda.so.1 is loaded in this process already" in seen.stderr


def test_the_library_shows_no_driver_call_but_the_look_up():
    # A driver call by its own name would let a linked program miss the counting entry.
    library = ctypes.CDLL(simulator.library_path()) if simulator.is_loaded() else None
    if library is None:
        pytest.skip("needs the simulated driver: must not be loaded beside a real one")
    shown = [name for name in simulator._call_names() if hasattr(library, name)]
    assert shown == []
    assert hasattr(library, "cuGetProcAddress_v2")
    assert hasattr(library, "cuGetProcAddress")


def test_look_ups_get_the_newest_form_that_is_old_enough(sim):
    _, old, _ = look_up("cuCtxGetDevice", 12090)
    _, new, _ = look_up("cuCtxGetDevice", 13000)
    assert None not in (old, new)
    assert old != new
    assert look_up("cuCtxGetDevice", 13050)[1] == new
    assert look_up("cuMemMap", 9000) == (500, None, 2)  # the version is not sufficient
    assert look_up("cuMemFly", 13000) == (500, None, 1)  # there is no such function


def test_every_status_of_cuda_12_9_has_its_name_and_a_text(sim):
    named = {
        status.name
        for status in driver.CUresult
        if succeeded(driver.cuGetErrorString(status))
        and must(driver.cuGetErrorName(status)).decode() == status.name
    }
    later = {
        "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        "CUDA_ERROR_MULTICAST_RESOURCE_FULL",
        "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION",
    }
    missing = {status for status in driver.CUresult if status.name not in named | later}
    assert all(916 < status < 999 for status in missing)  # 916 was the last of 12.9

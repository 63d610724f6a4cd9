"""The engine's own names over ours: signatures, statuses, properties, pointers."""

import doctest
import inspect
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conformance.steps import FABRIC, POSIX, G, must, reserve
from cuda.bindings import driver
from reservation_help import foreign_handle, primary_context, refused, release
from sim_helpers import environment

from vmmcy import sglang
from vmmcy.errors import CudaDriverError, CudaOutOfMemoryError
from vmmcy.sglang import handle_types

PAGE = Path(__file__).parents[1] / "docs" / "sglang.md"
BASE = 1 << 40

# Names of parameters, `*` before those by keyword only, and which have a default.
SIGNATURES = {
    "align_down": "value, alignment",
    "align_up": "value, alignment",
    "allocation_handle_type_name": "handle_type",
    "check_drv": "result_tuple, label",
    "compute_graph_capture_bases": "graph_inputs",
    "get_allocation_granularity": "prop, flag=1",
    "get_device_allocation_handle_type": "device_id",
    "get_device_granularity": "device_id",
    "is_vmm_pointer": "ptr",
    "make_device_allocation_prop": ("device_id, *, handle_types='auto', gpu_direct_rdma=False"),
    "make_rw_access_desc": "device_id",
    "tensor_from_pointer": "pointer, nbytes, *, shape=None, dtype=None, device_id",
    "BumpArenaStub": "",
    "BumpArenaStub.set_align": "self, nbytes",
    "BumpArenaStub.set_best_fit": "self, on",
    "BumpArenaStub.set_extents": "self, extents",
    "VmmReservation": "size, prop, device_id, *, alignment=0, requested_address=0",
    "VmmReservation.close": "self, *, release_handles=True",
    "VmmReservation.map": "self, offset, size, *, retain_handle",
    "VmmReservation.map_existing": "self, offset, size, handle",
}


@pytest.fixture
def fresh(sim):
    """A simulator of which nothing has been found out yet."""
    found_out = (handle_types._best_type, handle_types._granularity)
    for function in found_out:
        function.cache_clear()
    sim.reset()
    yield sim
    for function in found_out:
        function.cache_clear()


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_engines(name):
    named = sglang
    for part in name.split("."):
        named = getattr(named, part)
    signature = inspect.signature(named)
    bare = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"


def test_every_public_name_has_its_signature_pinned():
    assert sorted(sglang.__all__) == sorted({name.split(".")[0] for name in SIGNATURES})


def test_the_import_loads_no_torch():
    code = "import sys, vmmcy.sglang; print({'torch', 'cuda.bindings.driver'} & {*sys.modules})"
    seen = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == "set()\n"


def test_all_modules_of_an_engine_are_switched_at_once(tmp_path):
    package = tmp_path / "sglang" / "srt" / "utils"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "cuda_vmm_utils.py").write_text("raise ImportError('the old one')")
    code = (
        "import sys, vmmcy.sglang\n"
        "sys.modules['sglang.srt.utils.cuda_vmm_utils'] = vmmcy.sglang\n"
        "from sglang.srt.utils.cuda_vmm_utils import BumpArenaStub, VmmReservation\n"
        "print(BumpArenaStub.__module__, VmmReservation.__module__)"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == "vmmcy.sglang.arena vmmcy.sglang.reservation\n"


@pytest.mark.skipif(not PAGE.is_file(), reason="needs a checkout: docs are not installed")
def test_the_pages_example_prints_what_it_says():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, report=True)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sglang.get_device_allocation_handle_type([]), "^device_id must be an integer"),
        (lambda: sglang.get_device_granularity({}), "^device_id must be an integer, not dict {}$"),
        (lambda: sglang.allocation_handle_type_name([]), "^handle_type must be an integer"),
        (lambda: sglang.check_drv((), "label"), "^result_tuple must begin with a status"),
        (
            lambda: sglang.BumpArenaStub().set_extents(None),
            "^extents must be an iterable of .* None$",
        ),
    ],
)
def test_what_cannot_be_hashed_or_unpacked_is_named(call, text):
    with pytest.raises(TypeError, match=text):
        call()


# ---- check_drv


def test_a_success_gives_the_first_value():
    success = driver.CUresult.CUDA_SUCCESS
    assert sglang.check_drv((success, 7), "label") == 7
    assert sglang.check_drv((success, 7, 8), "label") == 7
    assert sglang.check_drv((success,), "label") is None
    assert sglang.check_drv(success, "label") is None
    assert sglang.check_drv((0, "value"), "label") == "value"


@pytest.mark.parametrize("wrap", [lambda status: (status, None), lambda status: status, int])
def test_an_error_begins_with_the_label_and_says_more(wrap):
    with pytest.raises(RuntimeError) as caught:
        sglang.check_drv(wrap(driver.CUresult.CUDA_ERROR_INVALID_VALUE), "cuMemMap(local)")
    assert str(caught.value) == "cuMemMap(local): CUDA_ERROR_INVALID_VALUE (invalid argument)"
    error = caught.value
    assert (error.call, error.name, error.code) == (
        "cuMemMap(local)",
        "CUDA_ERROR_INVALID_VALUE",
        1,
    )


def test_out_of_memory_has_its_class():
    with pytest.raises(CudaOutOfMemoryError, match="^label: CUDA_ERROR_OUT_OF_MEMORY"):
        sglang.check_drv((driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,), "label")


def test_a_status_that_nobody_knows():
    with pytest.raises(CudaDriverError, match="^label: CUDA error 123456 "):
        sglang.check_drv((123456,), "label")


@pytest.mark.parametrize("status", [None, 0.0, "0", True])
def test_what_is_no_status_is_refused(status):
    with pytest.raises(TypeError, match="^status must be an integer"):
        sglang.check_drv((status, 1), "label")


def test_an_error_is_told_without_a_driver():
    code = (
        "from cuda.bindings.driver import CUresult\n"
        "from vmmcy.sglang import check_drv\n"
        "try: check_drv(CUresult.CUDA_ERROR_UNKNOWN, 'label')\n"
        "except RuntimeError as error: print(error)\n"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert seen.stdout.startswith("label: CUDA_ERROR_UNKNOWN (")


# ---- handle types, properties, granularity


def test_names_of_handle_types():
    names = [sglang.allocation_handle_type_name(kind) for kind in (FABRIC, 8, POSIX, 1, 0, 4)]
    assert names == ["FABRIC", "FABRIC", "POSIX_FD", "POSIX_FD", "NONE", "4"]


def test_fabric_comes_first_then_a_file_descriptor(fresh, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(2):
        handle_type = sglang.get_device_allocation_handle_type(0)
        assert handle_type == 1
        assert isinstance(handle_type, driver.CUmemAllocationHandleType)
    calls = fresh.calls()
    assert (calls["cuMemCreate"], calls["cuMemRelease"]) == (2, 1)
    assert caplog.messages == [
        "device 0 cannot make FABRIC memory: cuMemCreate(FABRIC probe): "
        "CUDA_ERROR_NOT_PERMITTED (operation not permitted)",
        "device 0 makes POSIX_FD memory",
    ]


@pytest.mark.parametrize(
    "status", ["CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE"]
)
def test_memory_that_cannot_be_exported_comes_last(fresh, status):
    fresh.fail("cuMemCreate", nth=2, status=status)
    assert sglang.get_device_allocation_handle_type(0) == 0
    assert int(sglang.make_device_allocation_prop(0).requestedHandleTypes) == 0


def test_a_device_that_makes_nothing_is_told_once_all_is_tried(fresh):
    fresh.fail("cuMemCreate", times=3, status="CUDA_ERROR_NOT_SUPPORTED")
    with pytest.raises(RuntimeError, match="^no supported CUDA VMM allocation handle type$") as no:
        sglang.get_device_allocation_handle_type(0)
    assert str(no.value.__cause__).startswith("cuMemCreate(NONE probe): CUDA_ERROR_NOT_SUPPORTED")
    assert sglang.get_device_allocation_handle_type(0) == 1


@pytest.mark.parametrize(
    ("call", "nth", "label"),
    [
        ("cuMemCreate", 1, "cuMemCreate(FABRIC probe)"),
        ("cuMemCreate", 2, "cuMemCreate(POSIX_FD probe)"),
        ("cuMemRelease", 1, "cuMemRelease(POSIX_FD probe)"),
        ("cuMemGetAllocationGranularity", 1, "cuMemGetAllocationGranularity"),
    ],
)
def test_s2_other_failures_are_raised_and_not_kept(fresh, call, nth, label):
    fresh.fail(call, nth=nth, status="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(CudaOutOfMemoryError) as caught:
        sglang.get_device_allocation_handle_type(0)
    assert str(caught.value).startswith(f"{label}: CUDA_ERROR_OUT_OF_MEMORY")
    assert fresh.live()["handles"] == 0
    assert sglang.get_device_allocation_handle_type(0) == 1


@pytest.mark.parametrize(
    ("handle_types", "bits"), [(None, 0), (0, 0), (1, 1), (POSIX, 1), (8, 8), (FABRIC, 8)]
)
def test_handle_types_are_as_asked(handle_types, bits):
    prop = sglang.make_device_allocation_prop(0, handle_types=handle_types, gpu_direct_rdma=True)
    assert int(prop.requestedHandleTypes) == bits
    assert (prop.location.id, prop.allocFlags.gpuDirectRDMACapable) == (0, 1)


def test_handle_types_are_checked():
    for wrong in ("fabric", 1.0, True, b"auto", np.array([0, 1])):
        text = "handle_types must be 'auto', an integer, or None"
        with refused(f"{text}, not {type(wrong).__name__} {wrong!r}"):
            sglang.make_device_allocation_prop(0, handle_types=wrong)
    for wrong in (2, 3, 9, -1, 1 << 40, np.int64(2)):
        with refused(f"invalid CUDA handle-type value: {int(wrong)}"):
            sglang.make_device_allocation_prop(0, handle_types=wrong)


def test_handle_types_of_numpy_pass():
    prop = sglang.make_device_allocation_prop(0, handle_types=np.int64(1))
    assert prop.requestedHandleTypes == 1


def test_granularity(fresh):
    assert [sglang.get_device_granularity(0) for _ in range(2)] == [G, G]
    assert fresh.calls()["cuMemCreate"] == 2
    assert sglang.get_allocation_granularity(sglang.make_device_allocation_prop(0)) == G


@pytest.mark.parametrize(
    "function",
    [
        sglang.get_device_allocation_handle_type,
        sglang.get_device_granularity,
        sglang.make_device_allocation_prop,
        sglang.make_rw_access_desc,
    ],
)
def test_the_device_is_checked(function):
    function(0)
    with pytest.raises(ValueError, match="^device_id 31 is not a visible device"):
        function(31)
    for wrong in (None, 0.0, False, "0"):
        with pytest.raises(TypeError, match="^device_id must be an integer"):
            function(wrong)
    assert function(np.int64(0)) is not None


# ---- pointers


def test_pointers_of_virtual_memory_are_told_from_others():
    address = must(reserve(2 * G))
    handle = foreign_handle()
    must(driver.cuMemMap(address, G, 0, handle, 0))
    for pointer in (address, int(address), np.uint64(int(address))):
        assert sglang.is_vmm_pointer(pointer) is True
    assert sglang.is_vmm_pointer(int(address) + G) is False
    for wrong in (1.0, "1", None, True):
        with pytest.raises(TypeError, match="^ptr must be an integer"):
            sglang.is_vmm_pointer(wrong)
    must(driver.cuMemUnmap(address, G))
    must(driver.cuMemAddressFree(address, 2 * G))
    release(handle)


def test_graph_inputs_resolve_to_what_covers_them():
    prop = sglang.make_device_allocation_prop(0, handle_types=None)
    reservation = sglang.VmmReservation(2 * G, prop, 0)
    for offset in (0, G):
        reservation.map(offset, G, retain_handle=False)
    base = reservation.base
    with primary_context():
        inputs = [(base + G - 1, 2), (base + 5, 1)]
        assert sglang.compute_graph_capture_bases(inputs) == (
            [(base, G), (base + G, G)],
            [[0, 1], [0]],
            [G - 1, 5],
        )
        with pytest.raises(RuntimeError) as caught:
            sglang.compute_graph_capture_bases([(base, 0)])
        assert str(caught.value) == "Invalid graph capture input size: 0"
        with pytest.raises(RuntimeError, match="^cuMemGetAddressRange: CUDA_ERROR_"):
            sglang.compute_graph_capture_bases([(base + G, G + 1)])
    reservation.close()

"""What owns something in the driver: inspected by tools, never made, or made twice at once."""

import inspect
import pydoc
import threading
from unittest import mock

import pytest
from conformance.steps import G

import vmmcy
from vmmcy import BackedSegments, BumpArena, HandlePool, VmmReservation

OWNERS = [BackedSegments, BumpArena, HandlePool, VmmReservation]


@pytest.mark.parametrize("owner", OWNERS)
def test_a_class_can_be_inspected(owner):
    assert owner.__name__ in pydoc.render_doc(owner)
    assert inspect.classify_class_attrs(owner)
    assert inspect.getmembers(owner)
    assert callable(mock.create_autospec(owner).close)


def test_the_package_has_help():
    assert "VmmReservation" in pydoc.render_doc(vmmcy)


@pytest.mark.parametrize("owner", OWNERS)
def test_what_was_never_made_says_so(owner):
    never = owner.__new__(owner)
    assert repr(never) == f"<{owner.__name__}, never made>"
    for use in (lambda: never.closed, lambda: never.device_id, never.close, never.__enter__):
        if owner is BumpArena and use.__code__.co_names == ("device_id",):
            continue
        with pytest.raises(RuntimeError, match=r"^this object was never made: "):
            use()


class Meddler:
    """An integer that does something when it is asked for its value."""

    def __init__(self, value, meddle):
        self.value = value
        self.meddle = meddle

    def __index__(self):
        meddle, self.meddle = self.meddle, lambda: None
        meddle()
        return self.value


# Of each owner, how to make it of a size.
MAKERS = {
    "reservation": (VmmReservation, lambda made, size: made.__init__(size, device_id=0)),
    "pool": (HandlePool, lambda made, size: made.__init__(0, chunk_bytes=G, capacity_bytes=size)),
    "segments": (BackedSegments, lambda made, size: made.__init__(size, device_id=0)),
    "arena": (BumpArena, lambda made, size: made.__init__([(G, size)])),
}


@pytest.mark.parametrize(("owner", "make"), MAKERS.values(), ids=MAKERS)
def test_what_is_made_meanwhile_stays(sim, owner, make):
    made = owner.__new__(owner)
    with pytest.raises(RuntimeError, match=rf"^{owner.__name__}.__init__ on one that was made: "):
        make(made, Meddler(2 * G, lambda: make(made, G)))
    size_of = {"VmmReservation": "size", "HandlePool": "capacity_bytes"}
    size_of |= {"BackedSegments": "reserve_bytes", "BumpArena": "capacity_bytes"}
    assert getattr(made, size_of[owner.__name__]) == G
    made.close()
    assert not any(sim.live().values())


@pytest.mark.parametrize(("owner", "make"), MAKERS.values(), ids=MAKERS)
def test_of_many_threads_one_makes_it(sim, owner, make):
    made = owner.__new__(owner)
    start = threading.Barrier(8)
    refused = []

    def try_to_make():
        start.wait()
        try:
            make(made, G)
        except RuntimeError as error:
            refused.append(str(error))  # its frames would keep what was made

    threads = [threading.Thread(target=try_to_make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    made.close()
    assert not any(sim.live().values())

"""Ends that nobody planned: dropped, forked, left open at exit, in a process of its own."""

import gc
import re

import pytest
from conformance.steps import G
from reservation_help import run_python

from vmmcy.reservation import VmmReservation

OPENING = f"""
import vmmcy
from vmmcy.reservation import VmmReservation
G = {G}
reservation = VmmReservation(4 * G, device_id=0)
reservation.map(0, G)
kept = reservation.map(G, G, retain_handle=True)
"""


def test_dropping_an_open_reservation_warns_and_undoes_everything():
    reservation = VmmReservation(4 * G)
    reservation.map(0, G)
    reservation.map(G, G, retain_handle=True)
    with pytest.warns(ResourceWarning, match=r"^<VmmReservation of \d+ bytes.* without close"):
        del reservation


def test_dropping_a_closed_reservation_says_nothing():
    reservation = VmmReservation(4 * G)
    reservation.close()
    del reservation
    gc.collect()


def test_a_reservation_that_could_not_be_made_says_nothing():
    with pytest.raises(ValueError, match="granularity"):
        VmmReservation(1)
    gc.collect()


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "class Holder: pass\nHolder.reservation = reservation",
        "import builtins; builtins.kept_alive = reservation",
        "loop = [reservation]; loop.append(loop); del reservation",
        "import atexit; atexit.register(lambda: reservation.map(2 * G, G))",
        "import threading; threading.Thread(target=lambda: None).start()",
        "raise SystemExit(0)",
    ],
)
def test_r9_exit_with_a_reservation_open_warns_and_is_quiet(ending):
    ended = run_python(OPENING + ending, "-W", "always::ResourceWarning")
    assert ended.returncode == 0, ended.stderr
    assert (
        len(re.findall("ResourceWarning: <VmmReservation of .* without close", ended.stderr)) == 1
    )
    said = [line for line in ended.stderr.splitlines() if "Warning" not in line]
    assert not [line for line in said if not line.startswith(" ") and "sys:1" not in line], said


def test_exit_after_close_says_nothing():
    ended = run_python(OPENING + "reservation.close()", "-W", "error")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


FORKING = (
    OPENING
    + """
import os, sys
METHODS = {
    "map": lambda: reservation.map(2 * G, G),
    "map_existing": lambda: reservation.map_existing(2 * G, G, 1),
    "unmap": lambda: reservation.unmap(0, G),
    "commit": lambda: reservation.commit(0, 4 * G),
    "decommit": lambda: reservation.decommit(0, 4 * G),
    "close": lambda: reservation.close(),
    "mappings": lambda: reservation.mappings,
    "mapped_bytes": lambda: reservation.mapped_bytes,
}

def child():
    for name, act in METHODS.items():
        try:
            act()
        except RuntimeError as error:
            assert str(error).startswith(f"VmmReservation.{name}: the reservation was made before")
            assert "'spawn'" in str(error)
        else:
            raise AssertionError(name)
    assert "parent process" in repr(reservation) and not reservation.closed
    try:
        VmmReservation(G, device_id=0)
    except RuntimeError as error:
        assert "fork" in str(error)
    else:
        raise AssertionError("CUDA was used in a forked child")

pid = os.fork()
if pid == 0:
    child()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
from reservation_help import fill, holds, primary_context
with primary_context():
    fill(reservation.base, 2 * G, 0x3C)
    assert holds(reservation.base, 2 * G, 0x3C)
reservation.map(2 * G, G)
reservation.unmap(0, 3 * G)
reservation.close()
"""
)


def test_r8_a_forked_child_is_refused_and_touches_nothing():
    # A real driver has threads, and Python 3.12 then warns about any fork.
    quiet = ("-W", "ignore::DeprecationWarning", "-W", "always::ResourceWarning")
    ended = run_python(FORKING, *quiet)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_child_forked_before_first_use_has_reservations_of_its_own():
    ended = run_python(
        "import vmmcy, os, sys\nfrom vmmcy.reservation import VmmReservation\n"
        "pid = os.fork()\n"
        f"with VmmReservation({G}, device_id=0) as r: r.map(0, {G})\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 0)"
    )
    assert (ended.returncode, ended.stderr) == (0, "")

"""The ledger: what vmmcy holds, counted where it happens, also where a way back fails."""

import pytest
from conformance.steps import G
from reservation_help import foreign_handle, release, run_python

import vmmcy
from vmmcy import BumpArena, VmmReservation, live
from vmmcy.errors import CudaDriverError

KINDS = {
    "reservations",
    "mappings",
    "handles",
    "pooled_handles",
    "reserved_bytes",
    "committed_bytes",
    "arenas",
    "fds",
}


def held(device_id=None):
    """What is not zero; every kind is there in any case."""
    counts = live(device_id)
    assert counts.keys() == KINDS
    return {kind: count for kind, count in counts.items() if count}


def test_it_follows_a_reservation_from_its_addresses_to_its_close():
    reservation = VmmReservation(8 * G, device_id=0)
    addresses = {"reservations": 1, "reserved_bytes": 8 * G}
    assert held() == addresses
    reservation.map(0, 2 * G)
    assert held() == {**addresses, "mappings": 1, "committed_bytes": 2 * G}
    reservation.map(2 * G, G, retain_handle=True)
    assert held() == {**addresses, "mappings": 2, "committed_bytes": 3 * G, "handles": 1}
    assert reservation.commit(0, 8 * G, chunk_bytes=2 * G) == 5 * G
    assert held() == {**addresses, "mappings": 5, "committed_bytes": 8 * G, "handles": 1}
    assert held(0) == held()
    assert held(1) == held(1 << 30) == {}
    reservation.decommit(0, 8 * G)
    assert held() == addresses
    reservation.close()
    assert held() == {}


def test_what_becomes_the_callers_is_no_longer_held():
    existing = foreign_handle()
    with VmmReservation(4 * G, device_id=0) as reservation:
        reservation.map_existing(0, G, existing)
        assert "handles" not in held()
        handle = reservation.map(G, G, retain_handle=True)
        assert held()["handles"] == 1
        reservation.unmap(G, G, release_handles=False)
        assert "handles" not in held()
        kept = reservation.map(G, G, retain_handle=True)
        reservation.close(release_handles=False)
    assert held() == {}
    for mine in (existing, handle, kept):
        release(mine)


def test_arenas_are_counted_until_they_are_closed():
    with BumpArena([(G, G)]), BumpArena([(G, G)], device_id=1):
        assert held() == {"arenas": 2}
        assert (held(0), held(1)) == ({}, {"arenas": 1})
    assert held() == {}


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess", "cuMemRelease"])
@pytest.mark.parametrize("way_back", [None, "cuMemUnmap", "cuMemRelease"])
def test_it_agrees_with_the_driver_whatever_fails(sim, call, way_back):
    reservation = VmmReservation(4 * G, device_id=0)
    sim.fail(call, nth=2 if call != "cuMemSetAccess" else 1)
    if way_back is not None:
        sim.fail(way_back, nth=3 if way_back == call else 1, times=100)
    with pytest.raises(CudaDriverError):
        reservation.commit(0, 4 * G, chunk_bytes=G)
    counts, alive = live(), sim.live()
    assert counts["reservations"] == alive["reservations"] == 1
    assert counts["mappings"] == alive["mappings"]
    assert counts["committed_bytes"] == alive["mapped_bytes"]
    assert counts["handles"] == alive["handles"]
    sim.reset()
    reservation.close()
    assert held() == {}


def test_a_child_holds_nothing_of_its_parents():
    ended = run_python(
        f"""
import os, sys, vmmcy
reservation = vmmcy.VmmReservation({2 * G}, device_id=0)
reservation.map(0, {G}, retain_handle=True)
arena = vmmcy.BumpArena([(reservation.base, {G})])
pid = os.fork()
if pid == 0:
    sys.exit(any(vmmcy.live().values()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert vmmcy.live()["handles"] == vmmcy.live()["arenas"] == 1
arena.close()
reservation.close()
assert not any(vmmcy.live().values())
""",
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_it_needs_no_driver():
    ended = run_python(
        "import vmmcy\nvmmcy.BumpArena([(4096, 4096)]).close()\nprint(any(vmmcy.live().values()))\n"
        "from cuda.bindings import driver\nprint(int(driver.cuCtxGetCurrent()[0]))"
    )
    assert ended.stdout.split() == ["False", "3"], ended.stderr


@pytest.mark.parametrize(
    ("device_id", "error"),
    [("0", TypeError), (True, TypeError), (-1, ValueError), (1 << 31, ValueError)],
)
def test_a_device_is_an_ordinal(device_id, error):
    with pytest.raises(error, match="^device_id must be"):
        vmmcy.live(device_id)

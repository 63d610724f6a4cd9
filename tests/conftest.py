"""The driver under test, and the promise that every test leaves nothing alive."""

import pytest

import vmmcy
from vmmcy import _loader

NOTICE = _loader.fall_back_to_simulator()


def pytest_report_header() -> str:
    """Say which driver the suite runs on."""
    return NOTICE or f"vmmcy driver: {'simulator' if _loader.simulator_is_loaded() else 'cuda'}"


@pytest.fixture
def sim():
    """Control of the simulated driver, fresh injections and counts."""
    if not _loader.simulator_is_loaded():
        pytest.skip("needs the simulated driver: injects faults or counts driver calls")
    from vmmcy import sim as simulator

    simulator.reset()
    yield simulator
    simulator.reset()


@pytest.fixture(autouse=True)
def nothing_left_alive():
    """Fail the test that leaves a reservation, handle, mapping, arena or descriptor behind."""
    yield
    held = {name: count for name, count in vmmcy.live().items() if count}
    assert not held, f"held by vmmcy: {held}"
    if _loader.simulator_is_loaded():
        from vmmcy import sim as simulator

        simulator.reset()
        left = {name: count for name, count in simulator.live().items() if count}
        assert not left, f"left alive: {left}"

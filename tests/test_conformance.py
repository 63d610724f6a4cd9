"""The driver behaves as the recorded one: every row of ``h200_580.json``, in order.

On the simulator, and on a real driver of the recorded version, any difference fails. A
real driver of another version may differ; what differs is written to the file named by
``VMMCY_CONFORMANCE_REPORT``, a JSON list, which is read by whoever mends the simulator.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim_helpers import environment

from vmmcy import _loader

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "h200_580.json").read_text())
RECORDED_VERSION = next(r["value"] for r in RECORDED["rows"] if r["case"] == "driver version")

# Rows that no process survives, or that were not tried on the real driver either.
NOT_REPLAYED = {
    100: "release of a made-up handle: the real driver crashes",
    194: "map of a dead handle: not tried, the real driver crashes",
}
# CUDA 13 named this attribute; cuda-bindings 12.9 has no name to ask by.
SINCE_CUDA_13 = {18}


@pytest.fixture(scope="module")
def replay():
    """What ``conformance`` printed, in a process that has not called the driver."""
    driver = "sim" if _loader.simulator_is_loaded() else "cuda"
    done = subprocess.run(
        [sys.executable, str(HERE / "conformance")],
        env=environment(VMMCY_DRIVER=driver),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"stopped after {rows[-1:]}:\n{done.stderr}"
    return rows


def test_every_recorded_row_is_replayed_in_order(replay):
    found = [found["n"] for found in replay if "n" in found]
    recorded = [row["n"] for row in RECORDED["rows"] if row["n"] not in NOT_REPLAYED]
    missing = set(recorded) - set(found)
    assert missing <= SINCE_CUDA_13
    assert found == [n for n in recorded if n not in missing]


def test_rows_not_replayed_are_those_without_a_status():
    without_status = {r["n"] for r in RECORDED["rows"] if not r["status"].startswith("CUDA_")}
    assert without_status == set(NOT_REPLAYED)


def test_statuses_and_values_are_as_recorded(replay):
    found = {row["case"] if "n" not in row else row["n"]: row for row in replay}
    recorded = {row["n"]: row for row in RECORDED["rows"]}
    recorded |= {row["case"]: row for row in RECORDED["error_strings"]}
    differences = [
        {"recorded": recorded[key], "found": row}
        for key, row in found.items()
        if row != recorded[key]
    ]
    if report := os.environ.get("VMMCY_CONFORMANCE_REPORT"):
        Path(report).write_text(json.dumps(differences, indent=1))
    if found[3]["value"] == RECORDED_VERSION:
        assert differences == []

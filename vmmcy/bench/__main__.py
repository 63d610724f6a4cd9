"""``python -m vmmcy.bench [--quick] [--json FILE]``."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vmmcy import _loader

try:
    from rich import box
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
except ImportError:
    sys.exit("python -m vmmcy.bench needs rich: pip install 'vmmcy[bench]'")

from vmmcy.bench.measure import Row

ROW_COUNT = 24
DEVICE = 0


def measure(quick: bool, console: Console) -> list[Row]:
    """Run every system's rows behind a progress bar."""
    # After the choice of a driver: these rooms bind to it.
    from vmmcy.bench import arena, process, reservation, walk

    done: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=ROW_COUNT)
        for system in (walk, arena, reservation, process):
            for row in system.rows(quick, DEVICE):
                done.append(row)
                progress.update(task, advance=1, description=row.id)
    return done


def table(rows: Sequence[Row]) -> Table:
    """Lay the rows out side by side: ours, the peer's, the floor's, our limit.

    ``x peer`` is how many times faster than the peer, ``x floor`` how many times the floor.
    """
    sheet = Table(
        title="nanoseconds an item, median of repeats in one run",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    sheet.add_column("row", no_wrap=True)
    for heading in ("vmmcy", "peer", "floor", "limit", "x peer", "x floor"):
        sheet.add_column(heading, justify="right", no_wrap=True)
    sheet.add_column("holds")
    for row in rows:
        sheet.add_row(
            row.id,
            number(row.ns_per_item),
            number(row.baseline_ns_per_item),
            number(row.floor_ns_per_item),
            number(row.limit_ns_per_item),
            times(row.baseline_ns_per_item, row.ns_per_item),
            times(row.ns_per_item, row.floor_ns_per_item),
            {True: "yes", False: "NO", None: "-"}[row.holds],
        )
    return sheet


def number(value: float | None) -> str:
    """Format nanoseconds, a dash where there are none."""
    if value is None:
        return "-"
    if value >= 1e6:
        return f"{value / 1e6:,.1f}M"
    return f"{value:,.0f}" if value >= 1e3 else f"{value:.1f}"


def times(above: float | None, below: float | None) -> str:
    """Format how many times `below` goes into `above`."""
    return "-" if above is None or below is None else number(above / below)


@contextmanager
def device_in_use(device_id: int) -> Iterator[dict[str, Any]]:
    """Make the device's primary context current, as in an engine; say what driver it is."""
    from cuda.bindings import driver

    from vmmcy.bench.plain_python import checked

    checked((*driver.cuInit(0), None))
    checked((*driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device_id))), None))
    name = checked(driver.cuDeviceGetName(128, device_id))
    try:
        yield {
            "driver": "sim" if _loader.simulator_is_loaded() else "cuda",
            "device": name.split(b"\0")[0].decode(),
            "driver_version": checked(driver.cuDriverGetVersion()),
        }
    finally:
        checked((*driver.cuCtxSetCurrent(None), None))
        checked((*driver.cuDevicePrimaryCtxRelease(device_id), None))


def commit() -> str | None:
    """Return the commit measured: ``VMMCY_COMMIT``, else what git says of the checkout."""
    if named := os.environ.get("VMMCY_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return answer.stdout.strip() or None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show the table and write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m vmmcy.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer inputs and repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    console = Console()
    if notice := _loader.fall_back_to_simulator():
        console.print(notice)
    with device_in_use(DEVICE) as driver_facts:
        rows = measure(options.quick, console)
    console.print(table(rows))
    if options.json:
        result = {
            **driver_facts,
            "commit": commit(),
            "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
            "quick": options.quick,
            "rows": [row.as_json() for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


sys.exit(main())

"""What a result says of where and when it was taken."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vmmcy import CudaDriverNotFoundError, _loader

CPU_FACTS = Path("/proc/cpuinfo")


@contextmanager
def device_in_use(device_id: int) -> Iterator[None]:
    """Make the device's primary context current, as in an engine.

    Raises
    ------
    CudaDriverNotFoundError
        There is no driver, or no such device.
    """
    from vmmcy._driver import visible_device

    try:
        visible_device(device_id)
    except ValueError as error:
        raise CudaDriverNotFoundError(str(error)) from error
    from cuda.bindings import driver

    from vmmcy.bench.plain_python import checked

    checked((*driver.cuInit(0), None))
    checked((*driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device_id))), None))
    try:
        yield
    finally:
        checked((*driver.cuCtxSetCurrent(None), None))
        checked((*driver.cuDevicePrimaryCtxRelease(device_id), None))


def facts_of(device_id: int) -> dict[str, Any]:
    """Return driver, device, processor, commit and time, of a device that is in use."""
    from cuda.bindings import driver

    from vmmcy.bench.plain_python import checked

    name = checked(driver.cuDeviceGetName(128, device_id))
    return {
        "driver": "sim" if _loader.simulator_is_loaded() else "cuda",
        "device": name.split(b"\0")[0].decode(),
        "driver_version": checked(driver.cuDriverGetVersion()),
        "processor": processor(),
        "commit": commit(),
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str | None:
    """Return the processor's name, and how many of them this process may use."""
    if not CPU_FACTS.is_file():
        return None
    facts = (line.partition(":") for line in CPU_FACTS.read_text().splitlines())
    names = [value.strip() for key, _, value in facts if key.strip() == "model name"]
    return f"{names[0]}, {len(os.sched_getaffinity(0))} cores" if names else None


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

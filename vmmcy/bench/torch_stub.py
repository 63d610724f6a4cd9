"""The peer of ``arena-create``: what compiling a stub at run time through torch costs."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "torch_stub.py"


def torch_stub_ns() -> float | None:
    """Nanoseconds to compile and load one stub, None where torch or the script is not here."""
    if importlib.util.find_spec("torch") is None or not SCRIPT.is_file():
        return None
    answer = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    return float(json.loads(answer.stdout)["median_ns"]) if answer.returncode == 0 else None

"""Every text of the contract has its place in docs/errors.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
CONTRACT = [
    "{n} extents exceed BUMPARENA_MAX_EXTENTS ({limit})",
    "mapping [{offset}, {end}) is outside reservation [0, {size})",
    "VmmReservation.{method} after close",
    "BumpArena.{method} after close",
    "Invalid graph capture input size: {nbytes}",
    "graph capture input at {ptr} is outside VMM allocation [base={base}, size={size}]",
    "; graph capture input {i}: {n} bytes at {ptr}, at address {a}",
    "CudaDriverError",
    "CudaOutOfMemoryError",
    "CudaDriverNotFoundError",
    "VmmReservation.{method}: an earlier failure left what only close can undo",
    "VmmReservation.map: mapping [a, b) is there already",
    "the range cuts mapping [a, b), give it whole",
    "nothing is mapped at [a, b)",
    "is not a multiple of the granularity {granularity}; the next multiple is {n} (bytes)",
    "require_address needs a requested_address",
    "address {a} was required, and the driver reserved {b} instead",
    "may stay reserved",
    "access_devices must be an iterable of device ordinals, not ",
    "access_devices is empty: ",
    "access_devices names a device twice: ",
    "access_devices[{i}] {n} is not a visible device: ",
    "prop places memory on device {a}, but device_id is {b}",
    "prop must be a cuda.bindings.driver.CUmemAllocationProp, not ",
    "reservation must be a VmmReservation, not ",
    "a VmmReservation cannot be copied or pickled: ",
    "VmmReservation.__init__ on one that was made: ",
    "this object was never made: ",
    "the reservation was made before this process was forked, ",
    "was dropped without close()",
    "cuMemAddressReserve: CUDA_ERROR_OUT_OF_MEMORY",
    "cuMemRelease: CUDA_ERROR_INVALID_VALUE",
    "the context stays current for this thread",
    "handle_types must be bits, None or 'auto', got ",
    "flag must be 0 (minimum) or 1 (recommended), got ",
    "aligned up to {alignment} does not fit in 64 bits",
    "the {n} bytes of handle {h} stay allocated",
    "HandlePool.close: {n} of its handles are in use; ",
    "the reservation's HandlePool is closed",
    "VmmReservation: the pool is closed",
    "chunk_bytes {n} is not that of the reservation's HandlePool, {k}",
    "device_id is {a}, but the pool's is {b}",
    "prop is not that of the pool: leave it out",
    "access_devices {list} lacks device {n},",
    "pool must be a HandlePool, not ",
    "ranges must be an iterable of (reservation, offset, size) ranges, not ",
    "range {i} must be (reservation, offset, size), not ",
    "*range {i} of the batch*",
    "capacity_bytes {n} holds no chunk of {k}: ",
    "size_bytes {n} in whole chunks of {k} is more than the pool's capacity, {c}",
    "no CUDA driver on this machine (libcuda.so.1 was not found): ",
    "CUDA was in use before this process was forked, and does not survive a fork: ",
    "paused already; resume first",
    "{k} segments of {n} bytes are out; free them first",
    "the host keeps {n} bytes of paused segments; ",
    "pause: a range to keep lies in no segment that is out",
    "no free range of the {n} reserved bytes is large enough: ",
    "device_id {n} is not a visible device: there are {k}, counted from 0",
]


@pytest.mark.skipif(not PAGE.is_file(), reason="needs a checkout: docs are not installed")
@pytest.mark.parametrize("text", CONTRACT)
def test_the_page_explains(text):
    assert text in PAGE.read_text()


RAISED = re.compile(
    r"\b(?:Type|Value|Runtime|Memory)Error\(\s*((?:f?\"(?:[^\"\\\\]|\\\\.)*\"\s*)+)"
)
SHORTEST_CLAUSE = 9
ENOUGH = 30  # characters of a clause, whose rest the page may leave out
# Of rooms that no caller of the library reaches with a value of his own.
UNREACHED = {"bytes are no CUmemAllocationProp"}


def texts_raised() -> list[tuple[str, list[str]]]:
    """Return the place of each text that the library raises, and its fixed clauses."""
    found = []
    for path in sorted((ROOT / "vmmcy").rglob("*.py*")):
        if path.suffix not in (".py", ".pyx") or "bench" in path.parts:
            continue
        source = path.read_text()
        for match in RAISED.finditer(source):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1]))
            clauses = [part.strip(" ,.") for part in re.split(r"\{[^}]*\}|[:;]", text)]
            line = source[: match.start()].count("\n") + 1
            found.append((f"{path.name}:{line}", [c for c in clauses if len(c) >= SHORTEST_CLAUSE]))
    return found


@pytest.mark.skipif(not PAGE.is_file(), reason="needs a checkout: docs are not installed")
def test_the_page_has_every_text_that_is_raised():
    page = " ".join(PAGE.read_text().split())
    texts = texts_raised()
    missing = [
        (place, clauses)
        for place, clauses in texts
        if clauses
        and not UNREACHED & set(clauses)
        and not any(clause[:ENOUGH] in page for clause in clauses)
    ]
    assert len(texts) > 100
    assert missing == []

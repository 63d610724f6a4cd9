"""The architecture, as far as a test can hold it: sizes of rooms, and who may import whom."""

import ast
import itertools
import re
from pathlib import Path

import pytest

import vmmcy

PACKAGE = Path(vmmcy.__file__).parent
SOURCES = sorted(
    path for pattern in ("*.py", "*.pyx", "*.pxd", "*.c", "*.h") for path in PACKAGE.rglob(pattern)
)
LONGEST_FILE = 400
LONGEST_FUNCTION = 70
LOOKS_AT = {
    "_extents": {"_arguments", "_limits", "_words"},
    "_arena": {"_extents"},
    "_driver": {"_calls_under_lock", "errors"},
    "torch/_dlpack": set(),
    "_graph_inputs": {"_arguments", "_words"},
    "_walk": {"_driver", "_graph_inputs"},
    "_ledger": set(),
    "_outcome": {"_driver"},
    "_wiping": {"_driver", "_calls_under_lock", "_outcome"},
    "_handle_pool": {"_driver", "_ledger", "_calls_under_lock", "_outcome", "_wiping"},
    "_mapping": {"_handle_pool", "_ledger", "_calls_under_lock", "_outcome", "_wiping"},
    "_properties": {"_driver", "_handle_pool"},
    "_host_copy": {"_calls_under_lock", "_driver", "_handle_pool", "_relaxed_capture"},
    "_fences": {"_calls_under_lock", "_driver", "_relaxed_capture"},
    "_backing": {"_arena", "_driver", "_fences", "_outcome", "_reservation"},
    "_segments": {
        "_arena",
        "_backing",
        "_driver",
        "_handle_pool",
        "_host_copy",
        "_outcome",
        "_reservation",
    },
    "_stream_order": {"_driver"},
    "_departing": {"_driver", "_fences", "_mapping", "_outcome"},
    "_batches": {"_departing", "_mapping", "_calls_under_lock", "_outcome", "_reservation"},
    "_reserved_range": {
        "_arguments",
        "_calls_under_lock",
        "_departing",
        "_driver",
        "_handle_pool",
        "_mapping",
        "_outcome",
    },
    "_reservation": {
        "_arguments",
        "_departing",
        "_driver",
        "_mapping",
        "_outcome",
        "_ranges",
        "_reserved_range",
        "_words",
    },
}


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_file_is_one_idea(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".py"], ids=named)
def test_a_function_fits_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".pyx"], ids=named)
def test_a_compiled_function_fits_a_screen(path):
    starts = re.compile(r"^(cdef|cpdef|def|class|@)\b|^    (cdef|cpdef|def) .*\((.*:)?$")
    lines = path.read_text().splitlines()
    marks = [number for number, line in enumerate(lines) if starts.match(line)] + [len(lines)]
    for start, end in itertools.pairwise(marks):
        assert end - start <= LONGEST_FUNCTION, lines[start]


@pytest.mark.parametrize("room", LOOKS_AT)
def test_compiled_rooms_look_one_way(room):
    text = (PACKAGE / f"{room}.pyx").read_text()
    seen = set(re.findall(r"^\s*(?:from|c?import) vmmcy\.(\w+)", text, re.MULTILINE))
    assert seen <= LOOKS_AT[room]


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_torch_is_imported_in_its_room_alone(path):
    if (PACKAGE / "torch") in path.parents:
        return
    assert not re.search(r"^\s*(import torch|from torch)\b", path.read_text(), re.MULTILINE)


def test_only_the_loader_knows_the_simulator():
    knowing = [
        named(path)
        for path in SOURCES
        if PACKAGE / "sim" not in path.parents
        and re.search(
            r"^\s*(from vmmcy import sim|import vmmcy\.sim|from vmmcy\.sim)", path.read_text(), re.M
        )
    ]
    assert knowing == ["_loader.py"]

"""The public names: each loads, the types say the same, and an import loads none of them."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vmmcy

STUB = Path(vmmcy.__file__).with_name("__init__.pyi")


@pytest.mark.parametrize("name", vmmcy.__all__)
def test_a_public_name_loads_and_is_listed(name):
    assert getattr(vmmcy, name) is not None
    assert name in dir(vmmcy)


def test_the_types_name_the_same_rooms():
    stubbed = {
        alias.name: node.module
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = {**vmmcy._ROOMS, "__version__": "_version"}
    rooms = {name: f"vmmcy.{room}" for name, room in names.items()}
    assert stubbed == {**rooms, **dict.fromkeys(vmmcy._MODULES, "vmmcy")}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'vmmcy' has no attribute 'BumpArea'$"):
        vmmcy.BumpArea  # noqa: B018


def printed_by(code: str) -> list[str]:
    """What `code` prints in a process of its own, in words."""
    seen = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "VMMCY_DRIVER": "auto"},
        capture_output=True,
        text=True,
        check=True,
    )
    return seen.stdout.split()


def test_an_import_loads_no_room():
    loaded = "import sys, vmmcy; print(*sorted(m for m in sys.modules if m.startswith('vmmcy.')))"
    assert printed_by(loaded) == [
        "vmmcy._lazy_names",
        "vmmcy._limits",
        "vmmcy._loader",
        "vmmcy._version",
    ]


FIRST_USE = """
import threading, vmmcy
names = ["BumpArena", "resolve_graph_inputs", "VmmReservation", "BackedSegments"] * 2
barrier, failures = threading.Barrier(len(names)), []
def first_use(name):
    barrier.wait()
    try:
        getattr(vmmcy, name)
    except Exception as error:
        failures.append(type(error).__name__)
threads = [threading.Thread(target=first_use, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*failures)
"""


@pytest.mark.parametrize("attempt", range(5))
def test_names_may_be_used_first_by_many_threads_at_once(attempt):
    assert printed_by(FIRST_USE) == []


@pytest.mark.parametrize("name", sorted(vmmcy._MODULES))
def test_a_module_can_be_named_after_the_bare_import(name):
    # In a process of its own: once anything has loaded it, the import system sets the attribute.
    code = f"import vmmcy; print(vmmcy.{name}.__name__, {name!r} in dir(vmmcy))"
    assert printed_by(code) == [f"vmmcy.{name}", "True"]

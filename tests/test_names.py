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
        alias.name: node.module.removeprefix("vmmcy.")
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert stubbed == {**vmmcy._ROOMS, "__version__": "_version"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'vmmcy' has no attribute 'BumpArea'$"):
        vmmcy.BumpArea  # noqa: B018


def test_an_import_loads_no_room():
    code = "import sys, vmmcy; print(*sorted(m for m in sys.modules if m.startswith('vmmcy.')))"
    seen = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "VMMCY_DRIVER": "auto"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.split() == ["vmmcy._limits", "vmmcy._loader", "vmmcy._version"]

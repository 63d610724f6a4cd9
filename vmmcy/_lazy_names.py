"""Public names of a package whose rooms are loaded when one of their names is first used."""

import importlib
import sys
from collections.abc import Callable, Mapping, Set
from typing import Any


def lazy_names(
    package: str, rooms: Mapping[str, str], modules: Set[str] = frozenset()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Its name.
    rooms : mapping of str to str
        For each public name the module of the package where it lives.
    modules : set of str
        Modules of the package that are names too.
    """
    names = vars(sys.modules[package])

    def getattr_of_package(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in rooms:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{rooms[name]}"), name)
        names[name] = value
        return value

    def dir_of_package() -> list[str]:
        return sorted({*names, *rooms, *modules})

    return getattr_of_package, dir_of_package

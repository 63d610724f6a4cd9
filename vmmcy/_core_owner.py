"""Objects that own something in the driver through a compiled core: made once, never copied."""

import warnings
from typing import Any, NoReturn


class CoreOwner:
    """The owner of a compiled core, `_core`, which is set where the constructor succeeds.

    A core says whether it is `closed`, or `inherited` from a parent process.
    """

    __slots__ = ("__weakref__", "_core")

    def __del__(self, _warn: Any = warnings.warn) -> None:
        """Warn if still open; the core then undoes everything in order."""
        core = core_of(self)
        if core is not None and not core.closed and not core.inherited:
            _warn(f"{self!r} was dropped without close()", ResourceWarning, source=self)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: both would give back the same things."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: export its handles, "
            "or make another"
        )

    def __getattr__(self, name: str) -> Any:
        """Say of an object without a core that its constructor has not run to its end."""
        kind = type(self).__name__
        if name == "_core":
            raise RuntimeError(f"this {kind} was never made: its constructor did not succeed")
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")


def core_of(owner: CoreOwner) -> Any:
    """Return the core, None where there is none."""
    try:
        return object.__getattribute__(owner, "_core")
    except AttributeError:
        return None


def refuse_second_init(owner: CoreOwner) -> None:
    """Refuse a constructor that runs on an object which has its core."""
    if core_of(owner) is not None:
        raise RuntimeError(f"{type(owner).__name__}.__init__ on one that was made: make another")

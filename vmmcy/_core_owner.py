"""Objects that own something in the driver through a compiled core: made once, never copied."""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn


def close_behind(error: BaseException | None, close: Callable[[], None], name: str) -> None:
    """Close after a ``with`` block; its error goes first, and that of the closing is a note."""
    try:
        close()
    except (RuntimeError, MemoryError) as failure:
        if error is None:
            raise
        error.add_note(f"and then the {name} could not be closed: {failure}")


class _NeverMade:
    """Stands for the core of an object whose constructor has not run to its end."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError("this object was never made: its constructor did not succeed")


class CoreOwner:
    """The owner of a compiled core, `_core`, which is set where the constructor succeeds.

    A core says whether it is `closed`, or `inherited` from a parent process.
    """

    # Of the class: a look on the way to a missing attribute would slow down all of them.
    NEVER_MADE: ClassVar[Any] = _NeverMade()
    _core: Any = NEVER_MADE

    def __del__(self, _warn: Any = warnings.warn) -> None:
        """Warn if still open; the core then undoes everything in order."""
        core = self._core
        if core is not self.NEVER_MADE and not core.closed and not core.inherited:
            _warn(f"{self!r} was dropped without close()", ResourceWarning, source=self)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: both would give back the same things."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: export its handles, "
            "or make another"
        )

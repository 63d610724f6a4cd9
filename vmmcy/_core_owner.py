"""Objects that own something in the driver: made once, closed behind a block, never copied."""

import warnings
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Protocol


class _Closable(Protocol):
    NOUN: ClassVar[str]

    def close(self) -> None: ...


class ClosedBehind:
    """What a ``with`` block closes; `NOUN` is what notes call it."""

    NOUN: ClassVar[str]

    def __exit__(
        self: _Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; an error of the block goes first, with that of the closing as a note."""
        try:
            self.close()
        except (RuntimeError, MemoryError) as failure:
            if error is None:
                raise
            error.add_note(f"and then the {self.NOUN} could not be closed: {failure}")


class Uncopied:
    """What is one with the things that it gives back; `INSTEAD` is what its user can do."""

    INSTEAD: ClassVar[str] = "export its handles, or make another"

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: both would give back the same things."""
        name = type(self).__name__
        article = "an" if name[0] in "AEIOU" else "a"
        raise TypeError(f"{article} {name} cannot be copied or pickled: {self.INSTEAD}")


class _NeverMade:
    """Stands for the core of an object whose constructor has not run to its end."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what inspects a class asks for these
            raise AttributeError(name)
        raise never_made()


NEVER_MADE: Any = _NeverMade()


def never_made() -> RuntimeError:
    """Return what refuses the use of an object whose constructor has not run to its end."""
    return RuntimeError("this object was never made: its constructor did not succeed")


def refuse_twice(thing: object, part: object) -> None:
    """Refuse to make a `thing` again that has its `part`: that would forget the first one.

    Constructors ask before they begin, and again at their end: the caller's integers, and other
    threads, may have made it meanwhile.
    """
    if part is not NEVER_MADE:
        name = type(thing).__name__
        raise RuntimeError(f"{name}.__init__ on one that was made: make another")


class CoreOwner(ClosedBehind, Uncopied):
    """The owner of a compiled core, `_core`, which is set where the constructor succeeds.

    A core says whether it is `closed`, or `inherited` from a parent process.
    """

    # Of the class: a look on the way to a missing attribute would slow down all of them.
    _core: Any = NEVER_MADE

    def __del__(self, _warn: Any = warnings.warn) -> None:
        """Warn if still open; the core then undoes everything in order."""
        core = self._core
        if core is not NEVER_MADE and not core.closed and not core.inherited:
            _warn(f"{self!r} was dropped without close()", ResourceWarning, source=self)

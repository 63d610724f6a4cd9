"""Whether anyone in the process captures a graph: what waits for events then holds back.

Querying an event, or synchronising a stream or the context, invalidates a capture that is under
way, also from another thread. The driver says of the calling thread's stream alone whether it is
captured; of other threads we know what they say themselves, by `capture_scope`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Reentrant: a collection may finalize an arena, which waits for the device, on its thread.
_lock = threading.RLock()
_open_scopes = 0


@contextmanager
def capture_scope() -> Iterator[None]:
    """Tell that this thread captures, for the length of a ``with`` block around the capture.

    Scopes nest, and several threads may have one. `GraphPoolBorrower.capture_scope` has
    this one inside.
    """
    global _open_scopes
    with _lock:
        _open_scopes += 1
    try:
        yield
    finally:
        with _lock:
            _open_scopes -= 1


@contextmanager
def between_captures() -> Iterator[bool]:
    """Keep captures with a scope from beginning meanwhile; gives False where one is under way."""
    with _lock:
        yield not anyone_captures()


def anyone_captures() -> bool:
    """Tell whether waiting for an event could now invalidate somebody's capture.

    Returns
    -------
    bool
        True within any thread's `capture_scope`, and where the current stream of this
        thread is being captured. A capture of another thread without a scope is not seen.

    Source: ``cudaStreamIsCapturing``.
    """
    return _open_scopes > 0 or this_thread_captures()


def this_thread_captures() -> bool:
    """Tell whether torch's current stream of this thread is being captured."""
    # Whoever captures through torch has imported it.
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())

"""Statuses of the driver as errors that begin with the caller's label."""

from __future__ import annotations

from typing import Any

from vmmcy._arguments import integer, shown
from vmmcy.errors import CudaDriverError, driver_error

CUDA_SUCCESS = 0


def check_drv(result_tuple: Any, label: str) -> Any:
    """Return the value that a call of ``cuda.bindings.driver`` gave, or raise its error.

    Parameters
    ----------
    result_tuple : tuple or CUresult
        What the call returned: its status, then its values.
    label : str
        What the error's text begins with.

    Returns
    -------
    Any
        The first value, None where there is none.

    Raises
    ------
    CudaDriverError
        The status is an error; `label` is its ``call``. Out of memory has its own class.
    TypeError
        There is no status, or it is no integer.
    """
    if not isinstance(result_tuple, tuple):
        result_tuple = (result_tuple,)
    if not result_tuple:
        raise TypeError("result_tuple must begin with a status, and is empty")
    status, *values = result_tuple
    if integer(status, "status") != CUDA_SUCCESS:
        raise _error_of(status, label)
    return values[0] if values else None


def labelled(error: CudaDriverError, kind: str) -> CudaDriverError:
    """Return `error` with its text beginning with ``call(kind)``; its notes stay."""
    call = f"{error.call}({kind})"
    renamed = driver_error(call, error.name, error.code, error.text, error.detail)
    for note in notes_of(error):
        renamed.add_note(note)
    return renamed


def notes_of(error: BaseException) -> list[str]:
    """Return what else went wrong, in words."""
    return getattr(error, "__notes__", [])


def _error_of(status: Any, label: str) -> CudaDriverError:
    from cuda.bindings import driver

    code = int(status)
    try:
        name = driver.CUresult(code).name
    except ValueError:
        name = f"CUDA error {shown(code)}"
        return driver_error(label, name, code, "unknown to this cuda.bindings")
    try:
        text = check_drv(driver.cuGetErrorString(driver.CUresult(code)), label).decode()
    except RuntimeError:
        text = "there is no driver here to say more"
    return driver_error(label, name, code, text)

"""The exception contract: one class for each decision that a caller can take.

Everything that is no driver error is a plain ``TypeError``, ``ValueError`` or
``RuntimeError``; ``docs/errors.md`` lists each text and what to do.
"""

CUDA_ERROR_OUT_OF_MEMORY = 2


class CudaDriverError(RuntimeError):
    """The CUDA driver answered a call with an error.

    Unless the message or its notes say otherwise, nothing has changed.

    Parameters
    ----------
    call : str
        The driver function, as in the CUDA driver API's documentation.
    name : str
        The name of the status, such as ``CUDA_ERROR_INVALID_VALUE``.
    code : int
        The value of the status.
    text : str
        The driver's own description of the status.
    detail : str, optional
        What the call was about; follows the driver's words after ``"; "``.

    Source: ``cuGetErrorName`` and ``cuGetErrorString``.
    """

    def __init__(self, call: str, name: str, code: int, text: str, detail: str = "") -> None:
        super().__init__(call, name, code, text, detail)
        self.call = call
        self.name = name
        self.code = code
        self.text = text
        self.detail = detail

    def __str__(self) -> str:
        """Return the contract's text."""
        tail = f"; {self.detail}" if self.detail else ""
        return f"{self.call}: {self.name} ({self.text}){tail}"


class CudaOutOfMemoryError(CudaDriverError, MemoryError):
    """The device has no memory left for the call: free some, or ask for less."""


class CudaDriverNotFoundError(RuntimeError):
    """There is no CUDA driver in this process: install one, or use the simulator."""


def driver_error(call: str, name: str, code: int, text: str, detail: str = "") -> CudaDriverError:
    """Return the exception for a driver status: the one place that picks the class."""
    error = CudaOutOfMemoryError if code == CUDA_ERROR_OUT_OF_MEMORY else CudaDriverError
    return error(call, name, code, text, detail)

"""The exception contract: texts, classes, attributes."""

import pickle

import pytest

from vmmcy import CudaDriverError, CudaDriverNotFoundError, CudaOutOfMemoryError
from vmmcy.errors import driver_error


def test_text_names_call_status_and_the_drivers_words():
    error = driver_error("cuMemMap", "CUDA_ERROR_INVALID_VALUE", 1, "invalid argument")
    assert str(error) == "cuMemMap: CUDA_ERROR_INVALID_VALUE (invalid argument)"
    assert (error.call, error.name, error.code) == ("cuMemMap", "CUDA_ERROR_INVALID_VALUE", 1)
    assert type(error) is CudaDriverError


def test_detail_follows_the_drivers_words():
    error = driver_error("cuX", "CUDA_ERROR_NOT_FOUND", 500, "named symbol not found", "input 3")
    assert str(error) == "cuX: CUDA_ERROR_NOT_FOUND (named symbol not found); input 3"


def test_out_of_memory_is_a_memory_error_too():
    error = driver_error("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", 2, "out of memory")
    assert type(error) is CudaOutOfMemoryError
    assert isinstance(error, CudaDriverError)
    assert isinstance(error, MemoryError)


@pytest.mark.parametrize("kind", [CudaDriverError, CudaDriverNotFoundError])
def test_all_are_runtime_errors(kind):
    assert issubclass(kind, RuntimeError)


def test_an_error_crosses_processes_whole():
    error = driver_error("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", 2, "out of memory", "1 GiB")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.code == 2

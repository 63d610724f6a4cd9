"""Memory at an address as a DLPack capsule, with an owner that lives as long as its users.

DLPack says itself which device the memory is on, so nobody asks the driver about the
address: it need not be backed yet. Whoever takes the capsule calls the deleter when the last
view is gone, from any thread and with or without the GIL.

Source: the DLPack specification, ``DLManagedTensor`` in ``dlpack.h``.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.stdlib cimport calloc, free


cdef extern from "Python.h":
    int Py_IsInitialized() nogil


cdef enum:
    UNSIGNED = 1  # kDLUInt


cdef struct DLDevice:
    int32_t device_type
    int32_t device_id


cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes


cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset


cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor*) noexcept nogil


# One row of bytes, in one piece of memory with what it points to.
cdef struct Row:
    DLManagedTensor managed
    int64_t shape
    int64_t stride


cdef const char* UNTAKEN = b"dltensor"


def capsule(uint64_t address, int64_t size_bytes, int device_type, int device_index, owner):
    """Return the capsule of the bytes at `address`; it and its takers keep `owner`."""
    cdef Row* row = <Row*> calloc(1, sizeof(Row))
    if row == NULL:
        raise MemoryError("a DLPack capsule: no host memory")
    row.shape = size_bytes
    row.stride = 1
    row.managed.dl_tensor.data = <void*> address
    row.managed.dl_tensor.device = DLDevice(device_type, device_index)
    row.managed.dl_tensor.ndim = 1
    row.managed.dl_tensor.dtype = DLDataType(UNSIGNED, 8, 1)
    row.managed.dl_tensor.shape = &row.shape
    row.managed.dl_tensor.strides = &row.stride
    row.managed.manager_ctx = <PyObject*> owner
    row.managed.deleter = let_go
    Py_INCREF(owner)
    try:
        return PyCapsule_New(&row.managed, UNTAKEN, let_go_untaken)
    except BaseException:
        let_go(&row.managed)
        raise


cdef void let_go(DLManagedTensor* managed) noexcept nogil:
    # An interpreter that is on its way out takes no references back any more: the owner
    # then stays, and the end of the process frees what it holds.
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object> <PyObject*> managed.manager_ctx)
    free(managed)


cdef void let_go_untaken(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, UNTAKEN):
        let_go(<DLManagedTensor*> PyCapsule_GetPointer(capsule, UNTAKEN))

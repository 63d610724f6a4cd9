"""The only place where a ``CUresult`` becomes an exception, and where contexts are bound.

Every compiled room passes its statuses through `check` or `raise_faults`. They take
the GIL only to raise, so they are never called while a native lock is held.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUcontext, CUdevice, CUresult
from libcpp.vector cimport vector

from vmmcy._calls_under_lock cimport (
    context_current,
    context_device,
    primary_release,
    primary_retain,
)

from vmmcy.errors import CudaDriverNotFoundError, driver_error


cdef extern from "fork_count.h" nogil:
    unsigned long vmmcy_fork_count

cdef extern from * nogil:
    bint publish_once "__sync_bool_compare_and_swap"(CUcontext* place, CUcontext old, CUcontext new)

cdef enum:
    NOT_READY = 0

# 1 + the fork count under which cuInit succeeded: one word, so that it is read without a lock.
cdef unsigned long _ready_under = NOT_READY
# A primary context for each device that needed one, retained for the life of the process.
cdef vector[CUcontext] _primary_contexts

_NO_DRIVER = (
    "no CUDA driver on this machine (libcuda.so.1 was not found): install the NVIDIA driver, "
    "or set VMMCY_DRIVER=sim before importing vmmcy to use the simulated one"
)
_FORKED = (
    "CUDA was in use before this process was forked, and does not survive a fork: "
    "start workers with the 'spawn' or 'forkserver' method"
)


cdef unsigned long fork_count() noexcept nogil:
    """How many forks lie behind this process; objects of another count are a parent's."""
    return vmmcy_fork_count


cdef int ensure_driver() except -1 nogil:
    """Initialise the driver once; refuse in a child of a process that had done so."""
    if _ready_under == vmmcy_fork_count + 1:
        return 0
    with gil:
        return _initialise()


cdef int _initialise() except -1:
    global _ready_under
    cdef int count = 0
    if _ready_under != NOT_READY and _ready_under != vmmcy_fork_count + 1:
        raise RuntimeError(_FORKED)
    try:
        status = cydriver.cuInit(0)
    except Exception as missing:
        raise CudaDriverNotFoundError(_NO_DRIVER) from missing
    check(status, b"cuInit")
    check(cydriver.cuDeviceGetCount(&count), b"cuDeviceGetCount")
    if <int> _primary_contexts.size() < count:
        _primary_contexts.resize(count, NULL)
    _ready_under = vmmcy_fork_count + 1
    return 0


cdef int check(CUresult status, const char* call) except -1 nogil:
    """Raise the driver's error unless `status` is success."""
    if status == cydriver.CUDA_SUCCESS:
        return 0
    with gil:
        raise make_driver_error(status, call)


cdef object make_driver_error(CUresult status, const char* call, str detail=""):
    """Return the exception for a failed call, with `detail` behind the driver's words."""
    cdef const char* name = NULL
    cdef const char* text = NULL
    cydriver.cuGetErrorName(status, &name)
    cydriver.cuGetErrorString(status, &text)
    return driver_error(
        call.decode(),
        name.decode() if name != NULL else f"CUDA error {<int> status}",
        <int> status,
        text.decode() if text != NULL else "unknown to this driver",
        detail,
    )


cdef bint done(CUresult status, const char* call, DriverFault* fault) noexcept nogil:
    """Whether a call succeeded; the first fault is kept."""
    if status == cydriver.CUDA_SUCCESS:
        return True
    if fault.status == cydriver.CUDA_SUCCESS:
        fault.status = status
        fault.call = call
    return False


cdef object faults_error(const DriverFault* faults, size_t count):
    """Return the first fault; those of the way back hang on it as notes, if they are not many."""
    cdef size_t index, shown = min(count, <size_t> MOST_FAULTS)
    error = make_driver_error(faults[0].status, faults[0].call)
    for index in range(1, shown):
        error.add_note(
            f"on the way back: {make_driver_error(faults[index].status, faults[index].call)}"
        )
    if shown < count:
        error.add_note(f"on the way back: {count - shown} faults more")
    return error


cdef int raise_faults(const DriverFault* faults, size_t count) except -1:
    """Raise the faults that there are, as one exception."""
    if count == 0:
        return 0
    raise faults_error(faults, count)


cdef bint driver_is_gone(CUresult status) noexcept nogil:
    """Whether `status` says that the driver, and with it all it held, is no more."""
    return (
        status == cydriver.CUDA_ERROR_DEINITIALIZED
        or status == cydriver.CUDA_ERROR_NOT_INITIALIZED
        or status == cydriver.CUDA_ERROR_CONTEXT_IS_DESTROYED
    )


cdef bint given_back(CUresult status) noexcept nogil:
    """Whether what a call gives back is no longer there."""
    return status == cydriver.CUDA_SUCCESS or driver_is_gone(status)


cdef int raise_retried(
    CUresult first, CUresult second, const char* call, str left
) except -1:
    """Raise what the first of two tries to give something back met.

    A note says what is `left` if the second failed too: for what no object owns.
    """
    error = make_driver_error(first, call)
    if not given_back(second):
        error.add_note(f"and once more: {left}")
    raise error


cdef int enter_context(int device_id, ContextBinding* binding) except -1 nogil:
    """Make a context of `device_id` current, -1 for any that is in use already.

    The thread's own context stays if it is of that device; else the device's primary
    context is pushed. Without a device an active primary context is pushed, none is made:
    where there is none the thread stays without, and the driver says so.
    """
    cdef CUcontext current = NULL
    cdef CUdevice own = -1
    binding.bound = False
    check(cydriver.cuCtxGetCurrent(&current), b"cuCtxGetCurrent")
    if current != NULL:
        if device_id < 0:
            return 0
        check(cydriver.cuCtxGetDevice(&own), b"cuCtxGetDevice")
        if own == device_id:
            return 0
    if device_id < 0:
        device_id = _only_active_device()
        if device_id < 0:
            return 0
    check(cydriver.cuCtxPushCurrent(primary_context(device_id)), b"cuCtxPushCurrent")
    binding.bound = True
    return 0


cdef int leave_context(ContextBinding* binding) except -1 nogil:
    """Leave the thread as `enter_context` found it; a pop that fails is tried once more."""
    cdef CUcontext popped = NULL
    cdef CUresult first, second
    if not binding.bound:
        return 0
    binding.bound = False
    first = cydriver.cuCtxPopCurrent(&popped)
    if given_back(first):
        return 0
    second = cydriver.cuCtxPopCurrent(&popped)
    with gil:
        raise_retried(
            first, second, b"cuCtxPopCurrent", "the context stays current for this thread"
        )


cdef int leave_context_after(object error, ContextBinding* binding) except -1:
    """Leave the context behind `error`, which stays the one that is raised."""
    try:
        leave_context(binding)
    except RuntimeError as second:
        error.add_note(f"on the way back: {second}")
        for note in getattr(second, "__notes__", ()):
            error.add_note(note)
    return 0


cdef CUcontext usual_context(int device_id, DriverFault* fault) noexcept nogil:
    """The thread's own context if it is of the device, else the device's primary context."""
    cdef CUcontext current = NULL
    cdef CUdevice own = -1
    if not done(context_current(&current), b"cuCtxGetCurrent", fault):
        return NULL
    if current != NULL:
        if not done(context_device(&own), b"cuCtxGetDevice", fault):
            return NULL
        if own == device_id:
            return current
    return _retained(device_id, fault)


cdef CUcontext primary_context(int device_id) except? NULL nogil:
    cdef DriverFault fault
    cdef CUcontext context
    fault.status = cydriver.CUDA_SUCCESS
    context = _retained(device_id, &fault)
    if context == NULL:
        check(fault.status, fault.call)
    return context


cdef CUcontext _retained(int device_id, DriverFault* fault) noexcept nogil:
    """The device's primary context, which from now on stays for the life of the process."""
    cdef CUcontext context = _primary_contexts[device_id]
    if context != NULL:
        return context
    if not done(primary_retain(&context, device_id), b"cuDevicePrimaryCtxRetain", fault):
        return NULL
    if not publish_once(&_primary_contexts[device_id], NULL, context):
        # Whether that succeeds does not matter: it is one reference more, to what stays.
        primary_release(device_id)
    return context


cdef int _only_active_device() except? -2 nogil:
    """The device whose primary context is active, -1 for none."""
    cdef int device, active = 0, found = -1
    cdef unsigned int flags = 0
    for device in range(<int> _primary_contexts.size()):
        check(
            cydriver.cuDevicePrimaryCtxGetState(device, &flags, &active),
            b"cuDevicePrimaryCtxGetState",
        )
        if not active:
            continue
        if found >= 0:
            with gil:
                raise ValueError(
                    f"device_id is needed: this thread has no current context, and devices "
                    f"{found} and {device} are both in use"
                )
        found = device
    return found


cpdef int default_device() except -1:
    """Return the device of the thread's context, else the only visible one."""
    cdef CUcontext current = NULL
    cdef CUdevice own = -1
    ensure_driver()
    check(cydriver.cuCtxGetCurrent(&current), b"cuCtxGetCurrent")
    if current != NULL:
        check(cydriver.cuCtxGetDevice(&own), b"cuCtxGetDevice")
        return own
    if _primary_contexts.size() == 1:
        return 0
    raise ValueError(
        f"device_id is needed: {_primary_contexts.size()} devices are visible and this thread "
        f"has no current context"
    )


cpdef int visible_device(int device_id, str name="device_id") except -1:
    """Return `device_id` if there is such a device; `name` is that of the argument."""
    ensure_driver()
    if not 0 <= device_id < <int> _primary_contexts.size():
        raise ValueError(
            f"{name} {device_id} is not a visible device: there are "
            f"{_primary_contexts.size()}, counted from 0"
        )
    return device_id

/* Every call that the simulator serves, once; included several times, so no include guard.
 *
 * CALL(name without "cu", version, parameters, arguments): function sim_<name>.
 * ABI(name, suffix, version, parameters, arguments): a newer form of a call above, function
 * sim_<name><suffix>, counted and made to fail under the same name.
 *
 * `version` is the CUDA version that brought this form: look-ups name the version they were
 * compiled for and get the newest form not above it.
 *
 * clang-format would take the parameter lists for arithmetic. */
/* clang-format off */

CALL(Init, 2000, (unsigned int flags), (flags))
CALL(DriverGetVersion, 2020, (int *version), (version))
CALL(GetErrorName, 6000, (CUresult error, const char **name), (error, name))
CALL(GetErrorString, 6000, (CUresult error, const char **text), (error, text))

CALL(DeviceGet, 2000, (CUdevice *device, int ordinal), (device, ordinal))
CALL(DeviceGetCount, 2000, (int *count), (count))
CALL(DeviceGetName, 2000, (char *name, int length, CUdevice device), (name, length, device))
CALL(DeviceGetUuid, 9020, (CUuuid *uuid, CUdevice device), (uuid, device))
CALL(DeviceTotalMem, 3020, (size_t *bytes, CUdevice device), (bytes, device))
CALL(DeviceGetAttribute, 2000, (int *value, CUdevice_attribute attribute, CUdevice device),
     (value, attribute, device))

CALL(DevicePrimaryCtxRetain, 7000, (CUcontext *context, CUdevice device), (context, device))
CALL(DevicePrimaryCtxRelease, 7000, (CUdevice device), (device))
CALL(DevicePrimaryCtxReset, 7000, (CUdevice device), (device))
CALL(DevicePrimaryCtxSetFlags, 7000, (CUdevice device, unsigned int flags), (device, flags))
CALL(DevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned int *flags, int *active),
     (device, flags, active))
CALL(CtxCreate, 3020, (CUcontext *context, unsigned int flags, CUdevice device),
     (context, flags, device))
ABI(CtxCreate, _v3, 11040,
    (CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
     CUdevice device),
    (context, affinity, count, flags, device))
ABI(CtxCreate, _v4, 12050,
    (CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device),
    (context, params, flags, device))
CALL(CtxDestroy, 4000, (CUcontext context), (context))
CALL(CtxPushCurrent, 4000, (CUcontext context), (context))
CALL(CtxPopCurrent, 4000, (CUcontext *context), (context))
CALL(CtxSetCurrent, 4000, (CUcontext context), (context))
CALL(CtxGetCurrent, 4000, (CUcontext *context), (context))
CALL(CtxGetDevice, 2000, (CUdevice *device), (device))
ABI(CtxGetDevice, _v2, 13000, (CUdevice *device, CUcontext context), (device, context))
CALL(CtxSynchronize, 2000, (void), ())
ABI(CtxSynchronize, _v2, 13000, (CUcontext context), (context))

CALL(StreamCreate, 2000, (CUstream *stream, unsigned int flags), (stream, flags))
CALL(StreamCreateWithPriority, 5050, (CUstream *stream, unsigned int flags, int priority),
     (stream, flags, priority))
CALL(StreamDestroy, 4000, (CUstream stream), (stream))
CALL(StreamSynchronize, 2000, (CUstream stream), (stream))
CALL(StreamQuery, 2000, (CUstream stream), (stream))
CALL(StreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned int flags),
     (stream, event, flags))
CALL(StreamGetCtx, 9020, (CUstream stream, CUcontext *context), (stream, context))
CALL(StreamWaitValue32, 8000,
     (CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned int flags),
     (stream, word, value, flags))
CALL(StreamBeginCapture, 10010, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CALL(StreamEndCapture, 10000, (CUstream stream, CUgraph *graph), (stream, graph))
CALL(StreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus *status), (stream, status))
CALL(ThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *mode), (mode))
CALL(GraphGetNodes, 10000, (CUgraph graph, CUgraphNode *nodes, size_t *count),
     (graph, nodes, count))
CALL(GraphDestroy, 10000, (CUgraph graph), (graph))
CALL(EventCreate, 2000, (CUevent *event, unsigned int flags), (event, flags))
CALL(EventDestroy, 4000, (CUevent event), (event))
CALL(EventRecord, 2000, (CUevent event, CUstream stream), (event, stream))
CALL(CtxRecordEvent, 12050, (CUcontext context, CUevent event), (context, event))
CALL(EventQuery, 2000, (CUevent event), (event))
CALL(EventSynchronize, 2000, (CUevent event), (event))

CALL(MemAddressReserve, 10020,
     (CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr requested,
      unsigned long long flags),
     (address, size, alignment, requested, flags))
CALL(MemAddressFree, 10020, (CUdeviceptr address, size_t size), (address, size))
CALL(MemCreate, 10020,
     (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
      unsigned long long flags),
     (handle, size, prop, flags))
CALL(MemRelease, 10020, (CUmemGenericAllocationHandle handle), (handle))
CALL(MemMap, 10020,
     (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
      unsigned long long flags),
     (address, size, offset, handle, flags))
CALL(MemUnmap, 10020, (CUdeviceptr address, size_t size), (address, size))
CALL(MemSetAccess, 10020,
     (CUdeviceptr address, size_t size, const CUmemAccessDesc *descs, size_t count),
     (address, size, descs, count))
CALL(MemGetAccess, 10020,
     (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address),
     (flags, location, address))
CALL(MemGetAddressRange, 3020, (CUdeviceptr *base, size_t *size, CUdeviceptr address),
     (base, size, address))
CALL(MemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *handle, void *address),
     (handle, address))
CALL(MemGetAllocationGranularity, 10020,
     (size_t *granularity, const CUmemAllocationProp *prop,
      CUmemAllocationGranularity_flags option),
     (granularity, prop, option))
CALL(MemGetAllocationPropertiesFromHandle, 10020,
     (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle), (prop, handle))
CALL(MemExportToShareableHandle, 10020,
     (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
      unsigned long long flags),
     (shareable, handle, type, flags))
CALL(MemImportFromShareableHandle, 10020,
     (CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type),
     (handle, shareable, type))

CALL(MemGetInfo, 3020, (size_t *free_bytes, size_t *total_bytes), (free_bytes, total_bytes))
CALL(MemAlloc, 3020, (CUdeviceptr *address, size_t size), (address, size))
CALL(MemFree, 3020, (CUdeviceptr address), (address))
CALL(MemAllocAsync, 11020, (CUdeviceptr *address, size_t size, CUstream stream),
     (address, size, stream))
CALL(MemFreeAsync, 11020, (CUdeviceptr address, CUstream stream), (address, stream))
CALL(MemHostAlloc, 2020, (void **address, size_t size, unsigned int flags),
     (address, size, flags))
CALL(MemFreeHost, 2000, (void *address), (address))
CALL(PointerGetAttribute, 4000,
     (void *data, CUpointer_attribute attribute, CUdeviceptr address),
     (data, attribute, address))
CALL(PointerGetAttributes, 7000,
     (unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr address),
     (count, attributes, data, address))

CALL(Memcpy, 4000, (CUdeviceptr to, CUdeviceptr from, size_t size), (to, from, size))
CALL(MemcpyHtoD, 3020, (CUdeviceptr to, const void *from, size_t size), (to, from, size))
CALL(MemcpyDtoH, 3020, (void *to, CUdeviceptr from, size_t size), (to, from, size))
CALL(MemcpyDtoD, 3020, (CUdeviceptr to, CUdeviceptr from, size_t size), (to, from, size))
CALL(MemcpyAsync, 4000, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
     (to, from, size, stream))
CALL(MemcpyHtoDAsync, 3020, (CUdeviceptr to, const void *from, size_t size, CUstream stream),
     (to, from, size, stream))
CALL(MemcpyDtoHAsync, 3020, (void *to, CUdeviceptr from, size_t size, CUstream stream),
     (to, from, size, stream))
CALL(MemcpyDtoDAsync, 3020, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
     (to, from, size, stream))
CALL(MemsetD8, 3020, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count))
CALL(MemsetD32, 3020, (CUdeviceptr to, unsigned int value, size_t count), (to, value, count))
CALL(MemsetD8Async, 3020,
     (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
     (to, value, count, stream))
CALL(MemsetD32Async, 3020,
     (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
     (to, value, count, stream))

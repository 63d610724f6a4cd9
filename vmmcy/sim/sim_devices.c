/* Devices and their attributes: an H200 as far as memory goes. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

struct attribute {
    CUdevice_attribute name;
    int value;
};

/* Those that are recorded, and what a caller reads before it uses memory at all. A known
 * attribute that is not here is 0: the simulated device cannot do it. */
static const struct attribute attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    /* Although creating a FABRIC handle is not permitted: so it was recorded. */
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    /* CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, which CUDA 13.0 named */
    {(CUdevice_attribute)145, 1},
};

enum { HIGHEST_ATTRIBUTE = 160 }; /* of CUDA 13; the build may know fewer */

bool sim_has_device(CUdevice device) {
    return device >= 0 && device < sim.device_count;
}

CUresult sim_DriverGetVersion(int *version) {
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = SIM_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult sim_DeviceGetCount(int *count) {
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = sim.device_count;
    return CUDA_SUCCESS;
}

/* What a query about a device is refused for. */
static CUresult check_query(const void *place, CUdevice device) {
    if (place == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_has_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_DeviceGet(CUdevice *device, int ordinal) {
    CUresult status = check_query(device, ordinal);
    if (status == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return status;
}

CUresult sim_DeviceGetName(char *name, int length, CUdevice device) {
    CUresult status = check_query(name, device);
    if (status == CUDA_SUCCESS && length <= 0) {
        status = CUDA_ERROR_INVALID_VALUE;
    }
    if (status == CUDA_SUCCESS) {
        snprintf(name, (size_t)length, "vmmcy simulated device");
    }
    return status;
}

CUresult sim_DeviceGetUuid(CUuuid *uuid, CUdevice device) {
    CUresult status = check_query(uuid, device);
    if (status == CUDA_SUCCESS) {
        memcpy(uuid->bytes, "vmmcy simulated", sizeof uuid->bytes);
        uuid->bytes[sizeof uuid->bytes - 1] = (char)device;
    }
    return status;
}

CUresult sim_DeviceTotalMem(size_t *bytes, CUdevice device) {
    CUresult status = check_query(bytes, device);
    if (status == CUDA_SUCCESS) {
        *bytes = sim.memory_bytes;
    }
    return status;
}

CUresult sim_DeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    CUresult status = check_query(value, device);
    if (status == CUDA_SUCCESS && ((int)attribute < 1 || (int)attribute > HIGHEST_ATTRIBUTE)) {
        status = CUDA_ERROR_INVALID_VALUE;
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    *value = 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        if (attributes[i].name == attribute) {
            *value = attributes[i].value;
        }
    }
    return CUDA_SUCCESS;
}

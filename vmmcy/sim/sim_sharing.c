/* Export and import as POSIX file descriptors.
 *
 * Memory is created as exportable by default, and a process may open only 1,024 files: so an
 * allocation gets a file of its own when it is exported for the first time, not when it is
 * created. What was written moves over, and its mappings with it, at their places. Whoever
 * writes through a mapping on the CPU in that moment may lose the write. */
#include "sim.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PASSPORT_BYTES = 4096 }; /* a page, so that the pages before it stay aligned */

/* Stands behind the memory in its file: how an importer knows it for one of ours. */
struct passport {
    char magic[24];
    uint64_t size;
    uint64_t granularity;
    CUmemLocation location;
};

static const char magic[24] = "vmmcy simulated memory";

static int create_file(const struct allocation *allocation) {
    struct passport passport = {
        .size = allocation->size,
        .granularity = allocation->granularity,
        .location = allocation->prop.location,
    };
    memcpy(passport.magic, magic, sizeof magic);
    int file = memfd_create("vmmcy-sim-allocation", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) {
        return -1;
    }
    if (ftruncate(file, (off_t)(allocation->size + PASSPORT_BYTES)) != 0 ||
        pwrite(file, &passport, sizeof passport, (off_t)allocation->size) != sizeof passport ||
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(file);
        return -1;
    }
    return file;
}

/* Copies what was written, and leaves the rest sparse. */
static bool copy_contents(const struct allocation *allocation, int file) {
    off_t end = (off_t)(allocation->offset + allocation->size);
    off_t from = (off_t)allocation->offset;
    while ((from = lseek(allocation->file, from, SEEK_DATA)) >= 0 && from < end) {
        off_t hole = lseek(allocation->file, from, SEEK_HOLE);
        off_t stop = hole < end ? hole : end;
        if (lseek(file, from - (off_t)allocation->offset, SEEK_SET) < 0) {
            return false;
        }
        while (from < stop) { /* sendfile moves `from` along */
            if (sendfile(file, allocation->file, &from, (size_t)(stop - from)) <= 0) {
                return false;
            }
        }
    }
    return true;
}

/* Each mapping is laid anew over itself, which cannot meet anything else. */
static bool lay_mappings_again(const struct allocation *allocation, int file, uint64_t offset) {
    for (struct memory *mapping = allocation->mappings; mapping; mapping = mapping->next) {
        void *address = (void *)(uintptr_t)mapping->span.base;
        if (mmap(address, mapping->span.size, sim_protection(mapping), MAP_SHARED | MAP_FIXED, file,
                 (off_t)offset) == MAP_FAILED) {
            return false;
        }
    }
    return true;
}

static CUresult move_to_private_file(struct allocation *allocation) {
    int file = create_file(allocation);
    if (file < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (!copy_contents(allocation, file) || !lay_mappings_again(allocation, file, 0)) {
        lay_mappings_again(allocation, allocation->file, allocation->offset);
        close(file);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    sim_punch(allocation);
    allocation->file = file;
    allocation->offset = 0;
    allocation->private_file = true;
    sim.private_files++;
    return CUDA_SUCCESS;
}

/* A new descriptor each time, closed on exec; it is the caller's. */
CUresult sim_MemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                        CUmemAllocationHandleType type, unsigned long long flags) {
    struct allocation *allocation = sim_live_allocation(handle);
    if (shareable == NULL || allocation == NULL || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (allocation->prop.requestedHandleTypes & type) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = allocation->private_file ? CUDA_SUCCESS : move_to_private_file(allocation);
    int copy = status == CUDA_SUCCESS ? fcntl(allocation->file, F_DUPFD_CLOEXEC, 0) : -1;
    if (copy < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)shareable = copy;
    return CUDA_SUCCESS;
}

static bool read_passport(int file, struct passport *passport) {
    struct stat stat;
    if (fstat(file, &stat) != 0 || stat.st_size <= PASSPORT_BYTES) {
        return false;
    }
    off_t behind = stat.st_size - PASSPORT_BYTES;
    return pread(file, passport, sizeof *passport, behind) == sizeof *passport &&
           memcmp(passport->magic, magic, sizeof magic) == 0 && passport->size == (uint64_t)behind;
}

/* A handle of its own each time; the memory is charged to the exporter alone. */
CUresult sim_MemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                          CUmemAllocationHandleType type) {
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct passport passport;
    int file = (int)(intptr_t)shareable;
    if (!read_passport(file, &passport)) {
        return CUDA_ERROR_UNKNOWN; /* recorded for a closed descriptor and for /dev/null */
    }
    int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = passport.location, /* and no handle types: it cannot be exported again */
    };
    struct allocation *allocation = sim_add_allocation(passport.size, &prop);
    if (allocation == NULL) {
        close(own);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->granularity = passport.granularity;
    allocation->file = own;
    allocation->private_file = true;
    sim.private_files++;
    *handle = allocation->id.base;
    return CUDA_SUCCESS;
}

/* Memory, streams and events: memory is the host's, and everything has happened by the time a call returns. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "connect.h"

SHIM_API int _cudaMalloc(void **out, size_t size)
{
    SHIM_NEED_DEVICE();
    *out = aligned_alloc(256, (size + 255) / 256 * 256);
    if (!*out) return SHIM_MEMORY_ALLOCATION;
    return shim_device.allocated((uint64_t)(uintptr_t)*out, size);
}
SHIM_API int _cudaFree(void *address)
{
    if (shim_connected) shim_device.allocated((uint64_t)(uintptr_t)address, 0);
    free(address);
    return SHIM_OK;
}
SHIM_API int _cudaMallocAsync(void **out, size_t size, void *stream)
{
    (void)stream;
    return _cudaMalloc(out, size);
}
SHIM_API int _cudaMallocHost(void **out, size_t size) { return _cudaMalloc(out, size); }
SHIM_API int _cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    (void)flags;
    return _cudaMalloc(out, size);
}
SHIM_API int _cudaFreeAsync(void *address, void *stream)
{
    (void)stream;
    return _cudaFree(address);
}
SHIM_API int _cudaFreeHost(void *address) { return _cudaFree(address); }

SHIM_API int _cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    (void)kind;
    SHIM_NEED_DEVICE();
    memcpy(to, from, size);
    return SHIM_OK;
}
SHIM_API int _cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream)
{
    (void)stream;
    return _cudaMemcpy(to, from, size, kind);
}
SHIM_API int _cudaMemset(void *to, int value, size_t size)
{
    SHIM_NEED_DEVICE();
    memset(to, value, size);
    return SHIM_OK;
}
SHIM_API int _cudaMemsetAsync(void *to, int value, size_t size, void *stream)
{
    (void)stream;
    return _cudaMemset(to, value, size);
}

SHIM_API int _cudaStreamCreate(void **stream)
{
    static uintptr_t next = 1;
    *stream = (void *)__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    return SHIM_OK;
}
SHIM_API int _cudaStreamDestroy(void *stream)
{
    (void)stream;
    return SHIM_OK;
}
SHIM_API int _cudaStreamSynchronize(void *stream)
{
    (void)stream;
    return SHIM_OK;
}
SHIM_API int _cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return SHIM_OK;
}

SHIM_API int _cudaEventCreate(struct timespec **event)
{
    *event = calloc(1, sizeof(**event));
    return *event ? SHIM_OK : SHIM_MEMORY_ALLOCATION;
}
SHIM_API int _cudaEventDestroy(struct timespec *event)
{
    free(event);
    return SHIM_OK;
}
SHIM_API int _cudaEventRecord(struct timespec *event, void *stream)
{
    (void)stream;
    clock_gettime(CLOCK_MONOTONIC, event);
    return SHIM_OK;
}
SHIM_API int _cudaEventElapsedTime(float *ms, const struct timespec *start, const struct timespec *end)
{
    *ms = (float)(end->tv_sec - start->tv_sec) * 1e3f + (float)(end->tv_nsec - start->tv_nsec) * 1e-6f;
    return SHIM_OK;
}

SHIM_ALSO(_cudaMalloc) SHIM_ALSO(_cudaFree) SHIM_ALSO(_cudaMallocAsync) SHIM_ALSO(_cudaMallocHost)
SHIM_ALSO(_cudaMallocManaged) SHIM_ALSO(_cudaFreeAsync) SHIM_ALSO(_cudaFreeHost) SHIM_ALSO(_cudaMemcpy)
SHIM_ALSO(_cudaMemcpyAsync) SHIM_ALSO(_cudaMemset) SHIM_ALSO(_cudaMemsetAsync) SHIM_ALSO(_cudaStreamCreate)
SHIM_ALSO(_cudaStreamDestroy) SHIM_ALSO(_cudaStreamSynchronize) SHIM_ALSO(_cudaStreamWaitEvent)
SHIM_ALSO(_cudaEventCreate) SHIM_ALSO(_cudaEventDestroy) SHIM_ALSO(_cudaEventRecord) SHIM_ALSO(_cudaEventElapsedTime)

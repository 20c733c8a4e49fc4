/* Connection to Python, devices, error names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"

ShimDevice shim_device;
int shim_connected;

SHIM_API void attn_emu_connect(const ShimDevice *device)
{
    shim_connected = device != NULL;
    if (device) shim_device = *device;
}

SHIM_API int _cudaGetDeviceCount(int *count)
{
    *count = shim_connected;
    return shim_connected ? SHIM_OK : SHIM_NO_DEVICE;
}
SHIM_API int _cudaGetDevice(int *device)
{
    SHIM_NEED_DEVICE();
    *device = 0;
    return SHIM_OK;
}
SHIM_API int _cuDeviceGet(int *device, int ordinal)
{
    SHIM_NEED_DEVICE();
    *device = ordinal;
    return ordinal ? SHIM_INVALID_VALUE : SHIM_OK;
}
SHIM_API int _cudaSetDevice(int device)
{
    SHIM_NEED_DEVICE();
    return device ? SHIM_INVALID_VALUE : SHIM_OK;
}
SHIM_API int _cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    SHIM_NEED_DEVICE();
    if (device) return SHIM_INVALID_VALUE;
    for (const int32_t *p = shim_device.device_attributes; p[0]; p += 2)
        if (p[0] == attribute) {
            *value = p[1];
            return SHIM_OK;
        }
    return SHIM_NOT_SUPPORTED;
}
SHIM_API int _cudaDeviceSynchronize(void) { return SHIM_OK; }
SHIM_API int _cudaGetLastError(void) { return SHIM_OK; }
SHIM_API int _cudaProfilerStart(void) { return SHIM_OK; }
SHIM_API int _cudaProfilerStop(void) { return SHIM_OK; }

SHIM_API const char *cuda_dialect_get_error_name(int code)
{
    switch (code) {
    case SHIM_OK: return "cudaSuccess";
    case SHIM_INVALID_VALUE: return "cudaErrorInvalidValue";
    case SHIM_MEMORY_ALLOCATION: return "cudaErrorMemoryAllocation";
    case SHIM_NO_DEVICE: return "cudaErrorNoDevice: no emulated device is active";
    case SHIM_LAUNCH_FAILURE: return "cudaErrorLaunchFailure";
    case SHIM_NOT_SUPPORTED: return "cudaErrorNotSupported: not modelled by the emulator";
    default: return "cudaErrorUnknown";
    }
}
SHIM_API const char *CuteDSLRT_GetErrorName(int code) { return cuda_dialect_get_error_name(code); }
SHIM_API const char *CuteDSLRT_GetErrorString(int code) { return cuda_dialect_get_error_name(code); }
SHIM_API void cuda_dialect_print_on_error(int code)
{
    if (code) fprintf(stderr, "%s\n", cuda_dialect_get_error_name(code));
}
SHIM_API void cuda_dialect_assert_success(int code)
{
    if (!code) return;
    fprintf(stderr, "%s\n", cuda_dialect_get_error_name(code));
    abort();
}

/* TVM-FFI: errors travel as a kind and the parts of a message; the DSL wants the number first. */
typedef void (*SetError)(const char *kind, const char **parts, int32_t n_parts);

SHIM_API void CuteDSLRT_TVMFFISetRaisedCudaError(SetError set_error, int32_t code)
{
    char number[32];
    snprintf(number, sizeof(number), "%d", code);
    const char *parts[] = {"CUDA Error Code: ", number, " ", cuda_dialect_get_error_name(code)};
    set_error("CUDADialectError", parts, 4);
}
SHIM_API void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(
    SetError set_error, int32_t grid_x, int32_t grid_y, int32_t grid_z, int32_t block_x, int32_t block_y, int32_t block_z,
    int32_t block_threads, int64_t dynamic_smem, int32_t device, int32_t max_threads, int32_t max_block_x,
    int32_t max_block_y, int32_t max_block_z, int32_t max_grid_x, int32_t max_grid_y, int32_t max_grid_z, int32_t max_smem,
    int32_t max_smem_optin, const char *violation, const char *source_file, int32_t source_line, int32_t source_col,
    int32_t source_end_col)
{
    char text[512];
    (void)device, (void)max_smem, (void)source_col, (void)source_end_col;
    snprintf(text, sizeof(text),
             "CUDA Error Code: 1 launch refused, %s: grid %dx%dx%d (at most %dx%dx%d), block %dx%dx%d = %d threads (at most %dx%dx%d, %d "
             "threads), %lld bytes of dynamic shared memory (at most %d), at %s:%d",
             violation, grid_x, grid_y, grid_z, max_grid_x, max_grid_y, max_grid_z, block_x, block_y, block_z, block_threads,
             max_block_x, max_block_y, max_block_z, max_threads, (long long)dynamic_smem, max_smem_optin,
             source_file ? source_file : "?", source_line);
    const char *parts[] = {text};
    set_error("CUDADialectError", parts, 1);
}

SHIM_ALSO(_cudaGetDeviceCount) SHIM_ALSO(_cudaGetDevice) SHIM_ALSO(_cuDeviceGet) SHIM_ALSO(_cudaSetDevice)
SHIM_ALSO(_cudaDeviceGetAttribute) SHIM_ALSO(_cudaDeviceSynchronize) SHIM_ALSO(_cudaGetLastError)
SHIM_ALSO(_cudaProfilerStart) SHIM_ALSO(_cudaProfilerStop) SHIM_ALSO(cuda_dialect_get_error_name)
SHIM_ALSO(CuteDSLRT_GetErrorName) SHIM_ALSO(CuteDSLRT_GetErrorString) SHIM_ALSO(cuda_dialect_print_on_error)
SHIM_ALSO(cuda_dialect_assert_success) SHIM_ALSO(CuteDSLRT_TVMFFISetRaisedCudaError)
SHIM_ALSO(CuteDSLRT_TVMFFISetRaisedCudaLaunchError)

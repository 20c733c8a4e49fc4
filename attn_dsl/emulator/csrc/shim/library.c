/* Libraries, kernels and launches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"

typedef struct Library {
    uint64_t id;
} Library;

typedef struct Kernel {
    struct Kernel *next;
    Library *library;
    char name[];
} Kernel;

static Kernel *kernels; /* handles live as long as the process: host code keeps them in static storage */

SHIM_API int _cudaLibraryLoadData(Library **out, const void *image, void *jit, void *jit_values, unsigned n_jit, void *options,
                                  void *values, unsigned n_options)
{
    (void)jit, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n_options;
    SHIM_NEED_DEVICE();
    Library *library = calloc(1, sizeof(*library));
    int rc = library ? shim_device.load(image, &library->id) : SHIM_MEMORY_ALLOCATION;
    if (rc) {
        free(library);
        return rc;
    }
    *out = library;
    return SHIM_OK;
}

/* The handle stays valid: a kernel handle of it may outlive the call. */
SHIM_API int _cudaLibraryUnload(Library *library)
{
    (void)library;
    return SHIM_OK;
}

SHIM_API int _cudaLibraryGetKernel(Kernel **out, Library *library, const char *name)
{
    SHIM_NEED_DEVICE();
    for (Kernel *k = kernels; k; k = k->next)
        if (k->library == library && !strcmp(k->name, name)) {
            *out = k;
            return SHIM_OK;
        }
    int rc = shim_device.find(library->id, name);
    if (rc) return rc;
    Kernel *kernel = malloc(sizeof(*kernel) + strlen(name) + 1);
    if (!kernel) return SHIM_MEMORY_ALLOCATION;
    strcpy(kernel->name, name);
    kernel->library = library;
    kernel->next = kernels;
    kernels = kernel;
    *out = kernel;
    return SHIM_OK;
}

SHIM_API int _cudaLibraryGetGlobal(void **address, size_t *size, Library *library, const char *name)
{
    (void)address, (void)size, (void)library, (void)name;
    return SHIM_NOT_SUPPORTED;
}

SHIM_API int _cuKernelGetAttribute(int *value, int attribute, Kernel *kernel, int device)
{
    (void)device;
    SHIM_NEED_DEVICE();
    return shim_device.attribute(kernel->library->id, kernel->name, attribute, value);
}

/* Setting the limit of dynamic shared memory above the device's is refused; other attributes change nothing here. */
enum { MAX_DYNAMIC_SHARED = 8, SHARED_PER_BLOCK_OPTIN = 97 };
static int set_attribute(int attribute, int value)
{
    SHIM_NEED_DEVICE();
    int limit = 0;
    if (attribute != MAX_DYNAMIC_SHARED) return SHIM_OK;
    int rc = _cudaDeviceGetAttribute(&limit, SHARED_PER_BLOCK_OPTIN, 0);
    return rc ? rc : value > limit ? SHIM_INVALID_VALUE : SHIM_OK;
}
SHIM_API int _cudaKernelSetAttributeForDevice(Kernel *kernel, int attribute, int value, int device)
{
    (void)kernel, (void)device;
    return set_attribute(attribute, value);
}
SHIM_API int _cudaFuncSetAttribute(Kernel *kernel, int attribute, int value)
{
    (void)kernel;
    return set_attribute(attribute, value);
}

/* cudaLaunchConfig_t and its attributes (CUDA runtime API, driver_types.h). */
typedef struct LaunchAttribute {
    uint32_t id, pad;
    union {
        uint32_t u32[16];
        char bytes[64];
    } value;
} LaunchAttribute;
typedef struct LaunchConfig {
    uint32_t grid[3], block[3];
    size_t dyn_smem;
    void *stream;
    LaunchAttribute *attributes;
    uint32_t n_attributes;
} LaunchConfig;
enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_CLUSTER = 4, ATTRIBUTE_PROGRAMMATIC = 6 };

SHIM_API int _cudaLaunchKernelEx(const LaunchConfig *config, Kernel *kernel, void **args)
{
    SHIM_NEED_DEVICE();
    ShimLaunch launch = {.library = kernel->library->id, .kernel = kernel->name, .cluster = {1, 1, 1},
                         .dyn_smem = config->dyn_smem, .stream = (uint64_t)(uintptr_t)config->stream, .args = args};
    memcpy(launch.grid, config->grid, sizeof(launch.grid));
    memcpy(launch.block, config->block, sizeof(launch.block));
    for (uint32_t i = 0; i < config->n_attributes; i++) {
        const LaunchAttribute *a = &config->attributes[i];
        if (a->id == ATTRIBUTE_CLUSTER) memcpy(launch.cluster, a->value.u32, sizeof(launch.cluster));
        if (a->id == ATTRIBUTE_PROGRAMMATIC) launch.programmatic = a->value.u32[0];
        if (a->id == ATTRIBUTE_COOPERATIVE) launch.cooperative = a->value.u32[0];
    }
    return shim_device.launch(&launch);
}

typedef struct Dim3 {
    uint32_t x, y, z;
} Dim3;
SHIM_API int _cudaLaunchKernel(Kernel *kernel, Dim3 grid, Dim3 block, void **args, size_t dyn_smem, void *stream)
{
    LaunchConfig config = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, dyn_smem, stream, NULL, 0};
    return _cudaLaunchKernelEx(&config, kernel, args);
}

/* TVM-FFI loads a library on first call, once; *state keeps it. */
typedef int (*Init)(Library **library);
typedef int (*LoadToDevice)(Library **library, int device);
typedef void (*SetErrorText)(const char *kind, const char *message);

SHIM_API int cuda_dialect_init_library_once(void **state, Init init, LoadToDevice load_to_device, SetErrorText set_error)
{
    if (__atomic_load_n(state, __ATOMIC_ACQUIRE)) return 0;
    Library *library = NULL;
    int error = shim_connected ? init(&library) : SHIM_NO_DEVICE;
    if (!error) error = load_to_device(&library, 0);
    if (error) {
        char text[128];
        snprintf(text, sizeof(text), "CUDA Error Code: %d %s", error, cuda_dialect_get_error_name(error));
        set_error("CUDADialectError", text);
        return -1;
    }
    __atomic_store_n(state, library, __ATOMIC_RELEASE);
    return 0;
}
SHIM_API void cuda_dialect_unload_library_once(void **state) { *state = NULL; }

SHIM_ALSO(_cudaLibraryLoadData) SHIM_ALSO(_cudaLibraryUnload) SHIM_ALSO(_cudaLibraryGetKernel)
SHIM_ALSO(_cudaLibraryGetGlobal) SHIM_ALSO(_cuKernelGetAttribute) SHIM_ALSO(_cudaKernelSetAttributeForDevice)
SHIM_ALSO(_cudaFuncSetAttribute) SHIM_ALSO(_cudaLaunchKernelEx) SHIM_ALSO(_cudaLaunchKernel)
SHIM_ALSO(cuda_dialect_init_library_once) SHIM_ALSO(cuda_dialect_unload_library_once)

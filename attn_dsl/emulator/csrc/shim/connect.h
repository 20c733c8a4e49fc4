/* The stand-in for the CuTe DSL runtime: generated host code calls it in place of the CUDA runtime, and it calls Python.
 * Names and signatures are those the host code of nvidia-cutlass-dsl 4.8.1 links against (CuteDSLRuntime.h, and the CUDA
 * runtime API with a leading underscore). What is not here fails when the host code is linked, with the symbol's name. */
#ifndef SHIM_CONNECT_H
#define SHIM_CONNECT_H
#include <stddef.h>
#include <stdint.h>

#define SHIM_API __attribute__((visibility("default")))
/* A second name that no other library has: the real runtime may be in the process as well. */
#define SHIM_ALSO(f) __asm__(".globl attn_emu" #f "\n.type attn_emu" #f ", @function\n.set attn_emu" #f ", " #f "\n");

enum { /* cudaError_t values used */
    SHIM_OK = 0,
    SHIM_INVALID_VALUE = 1,
    SHIM_MEMORY_ALLOCATION = 2,
    SHIM_NO_DEVICE = 100,
    SHIM_LAUNCH_FAILURE = 719,
    SHIM_NOT_SUPPORTED = 801
};

typedef struct ShimLaunch {
    uint64_t library;
    const char *kernel;
    uint32_t grid[3], block[3], cluster[3];
    uint64_t dyn_smem;
    uint64_t stream;
    void **args;
    uint32_t programmatic; /* programmatic stream serialization (PDL) */
    uint32_t cooperative;
} ShimLaunch;

/* Python's side. Every function returns a cudaError_t. */
typedef struct ShimDevice {
    int (*load)(const void *image, uint64_t *library);
    int (*find)(uint64_t library, const char *kernel);
    int (*attribute)(uint64_t library, const char *kernel, int attribute, int *value);
    int (*launch)(const ShimLaunch *launch);
    int (*allocated)(uint64_t address, uint64_t size); /* size 0: freed */
    const int32_t *device_attributes;                  /* pairs (CUdevice_attribute, value), ended by (0, 0) */
} ShimDevice;

extern ShimDevice shim_device;
extern int shim_connected;
const char *cuda_dialect_get_error_name(int code);
int _cudaDeviceGetAttribute(int *value, int attribute, int device);
#define SHIM_NEED_DEVICE() \
    do { \
        if (!shim_connected) return SHIM_NO_DEVICE; \
    } while (0)
#endif

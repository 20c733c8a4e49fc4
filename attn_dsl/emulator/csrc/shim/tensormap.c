/* cuTensorMapEncodeTiled: 128 bytes that describe a tensor to the TMA unit. The bit layout is what CuTe DSL 4.8.1 itself
 * writes and what tensormap.replace edits; limits are those of the CUDA driver API, "Tensor Map Object Management". */
#include <string.h>

#include "connect.h"

enum { MAX_RANK = 5, MAX_BOX = 256 };
enum { INTERLEAVE_NONE = 0 };

/* By CUtensorMapDataType: element bytes, type code, tf32 flag. The packed 4- and 6-bit types are not modelled. */
static const struct {
    uint8_t bytes, code, tf32;
} TYPES[] = {{1, 0, 0}, {2, 1, 0}, {4, 2, 0}, {4, 3, 0}, {8, 4, 0},  {8, 5, 0}, {2, 6, 0},
             {4, 7, 0}, {8, 9, 0}, {2, 10, 0}, {4, 8, 0}, {4, 7, 1}, {4, 8, 1}};

/* By CUtensorMapSwizzle: swizzle mode, atomicity, bytes the inner box dimension may span. */
static const struct {
    uint8_t mode, atom;
    uint32_t span;
} SWIZZLES[] = {{0, 0, 0}, {1, 0, 32}, {2, 0, 64}, {3, 0, 128}, {3, 1, 128}, {3, 2, 128}, {3, 3, 128}};

SHIM_API int _cuTensorMapEncodeTiled(uint32_t *map, uint32_t type, uint32_t rank, void *address, const uint64_t *dims,
                                     const uint64_t *strides, const uint32_t *box, const uint32_t *steps, uint32_t interleave,
                                     uint32_t swizzle, uint32_t promotion, uint32_t fill)
{
    if (type >= sizeof(TYPES) / sizeof(TYPES[0]) || swizzle >= sizeof(SWIZZLES) / sizeof(SWIZZLES[0])) return SHIM_NOT_SUPPORTED;
    if (interleave != INTERLEAVE_NONE) return SHIM_NOT_SUPPORTED;
    if (rank < 1 || rank > MAX_RANK || (uintptr_t)address % 16 || promotion > 3 || fill > 1) return SHIM_INVALID_VALUE;
    uint32_t bytes = TYPES[type].bytes, inner = box[0] * bytes;
    if (inner % 16 || (SWIZZLES[swizzle].span && inner > SWIZZLES[swizzle].span)) return SHIM_INVALID_VALUE;
    uint64_t size = dims[0] * bytes;
    for (uint32_t i = 0; i < rank; i++) {
        if (!dims[i] || dims[i] > 1ull << 32 || !box[i] || box[i] > MAX_BOX || !steps[i] || steps[i] > 8) return SHIM_INVALID_VALUE;
        if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)) return SHIM_INVALID_VALUE;
        if (i && dims[i] * strides[i - 1] > size) size = dims[i] * strides[i - 1];
    }
    memset(map, 0, 128);
    memcpy(map, &address, sizeof(address));
    map[2] = 2 | (rank - 1) << 4 | (uint32_t)TYPES[type].code << 7 | (uint32_t)SWIZZLES[swizzle].mode << 13 | fill << 15 |
             (uint32_t)TYPES[type].tf32 << 16 | promotion << 17 | (uint32_t)SWIZZLES[swizzle].atom << 19 |
             (size >= 131072 ? 1u << 21 : 0);
    for (uint32_t i = 1; i < rank; i++) {
        map[2 + i] = (uint32_t)(strides[i - 1] >> 4);
        map[7] |= (uint32_t)(strides[i - 1] >> 36) << 4 * (i - 1);
    }
    for (uint32_t i = 0; i < rank; i++) {
        map[8 + i] = (uint32_t)(dims[i] - 1);
        map[13] |= (steps[i] - 1) << 3 * i;
        if (i) map[14] |= (box[i] - 1) << 8 * (i - 1);
    }
    map[13] |= (box[0] - 1) << 24;
    return SHIM_OK;
}

SHIM_ALSO(_cuTensorMapEncodeTiled)

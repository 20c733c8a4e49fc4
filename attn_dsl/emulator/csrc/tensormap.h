/* The 128-byte tensor map (CUtensorMap) of tiled TMA copies. */
#ifndef EMU_TENSORMAP_H
#define EMU_TENSORMAP_H
#include "emu.h"
#include "swizzle.h"

typedef struct EmuTensorMap {
    uint64_t base;
    uint32_t rank;       /* 1 to 5 */
    uint32_t elem_bytes; /* 1, 2, 4, 8 */
    int type;            /* EMU_T_* for reductions */
    int swizzle;         /* EMU_SWZ_* */
    int fill_nan;
    uint64_t stride[5];  /* bytes; stride[0] = elem_bytes */
    int64_t dim[5];      /* elements */
    uint32_t box[5];     /* elements */
    uint32_t step[5];    /* traversal stride, elements */
    uint32_t row_bytes;  /* box[0] * elem_bytes */
    uint32_t box_bytes;
} EmuTensorMap;

/* Decodes 128 bytes; NULL, or what is wrong (a static sentence). */
const char *emu_tensormap_decode(const uint8_t *map, EmuTensorMap *out);

#endif

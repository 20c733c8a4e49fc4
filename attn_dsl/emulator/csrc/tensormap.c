/* Decoding of tensor maps. The layout is the one ptxas' expansion of tensormap.replace shows. Bytes from 0x40 on carry
 * nothing. */
#include "tensormap.h"

#include <string.h>

typedef struct Type {
    uint8_t bytes, type;
} Type;
static const Type types[16] = {{1, EMU_T_U8},  {2, EMU_T_U16},  {4, EMU_T_U32}, {4, EMU_T_S32}, {8, EMU_T_U64}, {8, EMU_T_S64},
                               {2, EMU_T_F16}, {4, EMU_T_F32},  {4, EMU_T_F32}, {8, EMU_T_F64}, {2, EMU_T_BF16}};

static uint32_t word(const uint8_t *map, uint32_t at)
{
    uint32_t v;
    memcpy(&v, map + at, 4);
    return v;
}

const char *emu_tensormap_decode(const uint8_t *map, EmuTensorMap *out)
{
    static const uint8_t swizzles[4][4] = {
        {EMU_SWZ_NONE, EMU_SWZ_NONE, EMU_SWZ_NONE, EMU_SWZ_NONE},
        {EMU_SWZ_32B, EMU_N_SWZ, EMU_N_SWZ, EMU_N_SWZ},
        {EMU_SWZ_64B, EMU_N_SWZ, EMU_N_SWZ, EMU_N_SWZ},
        {EMU_SWZ_128B, EMU_SWZ_128B_32B, EMU_SWZ_128B_32B_FLIP, EMU_SWZ_128B_64B}};
    memset(out, 0, sizeof(*out));
    memcpy(&out->base, map, 8);
    uint32_t head = word(map, 8);
    if ((head & 15) != 2) return "bits 0-3 of word 2 are not 2: this is no tiled tensor map";
    out->rank = (head >> 4 & 7) + 1;
    if (out->rank > 5) return "its rank is over 5";
    Type t = types[head >> 7 & 15];
    if (!t.bytes) return "its element type (fp4 or fp6) is not modelled";
    out->elem_bytes = t.bytes;
    out->type = t.type;
    if (head >> 11 & 3) return "interleaved layouts are not modelled";
    if (head >> 22 & 1) return "the 96-byte swizzle is not modelled";
    out->swizzle = swizzles[head >> 13 & 3][head >> 19 & 3];
    if (out->swizzle == EMU_N_SWZ) return "this swizzle atomicity goes with the 128-byte swizzle only";
    out->fill_nan = head >> 15 & 1;
    if (out->base % 16) return "its global address is not a multiple of 16";
    uint32_t high = word(map, 0x1C), steps = word(map, 0x34), boxes = word(map, 0x38);
    out->box_bytes = t.bytes;
    for (uint32_t i = 0; i < out->rank; i++) {
        out->stride[i] = i ? ((uint64_t)(high >> (4 * (i - 1)) & 15) << 32 | word(map, 0x0C + 4 * (i - 1))) << 4 : t.bytes;
        out->dim[i] = (int64_t)word(map, 0x20 + 4 * i) + 1;
        out->step[i] = (steps >> (3 * i) & 7) + 1;
        out->box[i] = (i ? boxes >> (8 * (i - 1)) & 255 : steps >> 24) + 1;
        out->box_bytes *= out->box[i];
    }
    out->row_bytes = out->box[0] * t.bytes;
    if (out->row_bytes % 16) return "the innermost box dimension is not a multiple of 16 bytes";
    if (out->step[0] != 1) return "a traversal stride in the innermost dimension is not modelled";
    if (out->swizzle != EMU_SWZ_NONE && out->row_bytes != emu_swizzle_span(out->swizzle))
        return "with a swizzle, the innermost box dimension must fill the swizzle span (anything narrower is not modelled)";
    return NULL;
}

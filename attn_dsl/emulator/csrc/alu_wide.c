/* Integer instructions whose sources and results differ in width, and multiply-add (PTX ISA: mul.wide, mad). */
#include "lanes.h"

typedef __int128 s128;
typedef unsigned __int128 u128;
#define LOW16(x) ((uint16_t)(x))

LANE2(mul_wide_s16, 1, 1, int16_t, (int32_t)a * b)
LANE2(mul_wide_u16, 1, 1, uint16_t, (uint32_t)a * b)
LANE2(mul_wide_s32, 2, 1, int32_t, (int64_t)a * b)
LANE2(mul_wide_u32, 2, 1, uint32_t, (uint64_t)a * b)
LANE3(mad_lo_s16, 1, 1, uint16_t, LOW16((uint32_t)a * b + c))
LANE3(mad_lo_u16, 1, 1, uint16_t, LOW16((uint32_t)a * b + c))
LANE3(mad_lo_s32, 1, 1, uint32_t, a * b + c)
LANE3(mad_lo_u32, 1, 1, uint32_t, a * b + c)
LANE3(mad_lo_s64, 2, 2, uint64_t, a * b + c)
LANE3(mad_lo_u64, 2, 2, uint64_t, a * b + c)
LANE3(mad_hi_s32, 1, 1, int32_t, (uint32_t)(((int64_t)a * b) >> 32) + (uint32_t)c)
LANE3(mad_hi_u32, 1, 1, uint32_t, (uint32_t)(((uint64_t)a * b) >> 32) + c)
LANE3(mad_hi_s64, 2, 2, int64_t, (uint64_t)(((s128)a * b) >> 64) + (uint64_t)c)
LANE3(mad_hi_u64, 2, 2, uint64_t, (uint64_t)(((u128)a * b) >> 64) + c)
LANE3T(mad_wide_s16, 1, 1, int16_t, 1, int16_t, 1, int32_t, (uint32_t)((int32_t)a * b) + (uint32_t)c)
LANE3T(mad_wide_u16, 1, 1, uint16_t, 1, uint16_t, 1, uint32_t, (uint32_t)a * b + c)
LANE3T(mad_wide_s32, 2, 1, int32_t, 1, int32_t, 2, uint64_t, (uint64_t)((int64_t)a * b) + c)
LANE3T(mad_wide_u32, 2, 1, uint32_t, 1, uint32_t, 2, uint64_t, (uint64_t)a * b + c)

const EmuHandlerEntry emu_handlers_alu_wide[] = {
    LANE_ENTRY(mul_wide_s16), LANE_ENTRY(mul_wide_u16), LANE_ENTRY(mul_wide_s32), LANE_ENTRY(mul_wide_u32),
    LANE_ENTRY(mad_lo_s16),   LANE_ENTRY(mad_lo_u16),   LANE_ENTRY(mad_lo_s32),   LANE_ENTRY(mad_lo_u32),
    LANE_ENTRY(mad_lo_s64),   LANE_ENTRY(mad_lo_u64),   LANE_ENTRY(mad_hi_s32),   LANE_ENTRY(mad_hi_u32),
    LANE_ENTRY(mad_hi_s64),   LANE_ENTRY(mad_hi_u64),   LANE_ENTRY(mad_wide_s16), LANE_ENTRY(mad_wide_u16),
    LANE_ENTRY(mad_wide_s32), LANE_ENTRY(mad_wide_u32), {0}};

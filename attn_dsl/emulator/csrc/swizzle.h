/* Address swizzles of shared memory, shared by TMA, tcgen05 and wgmma (PTX ISA, "Swizzling modes"). The exclusive or
 * works on bits of the absolute shared address, not of an offset. */
#ifndef EMU_SWIZZLE_H
#define EMU_SWIZZLE_H
#include <stdint.h>

enum {
    EMU_SWZ_NONE = 0,
    EMU_SWZ_32B = 1,
    EMU_SWZ_64B = 2,
    EMU_SWZ_128B = 3,
    EMU_SWZ_128B_32B = 4,      /* 128-byte span, 32-byte atoms */
    EMU_SWZ_128B_32B_FLIP = 5, /* the same, 8-byte halves of each 16 bytes exchanged on odd 128-byte lines */
    EMU_SWZ_128B_64B = 6,      /* 128-byte span, 64-byte atoms */
    EMU_N_SWZ = 7
};

static inline uint32_t emu_swizzle(uint32_t addr, int mode)
{
    switch (mode) {
    case EMU_SWZ_32B: return addr ^ (addr >> 3 & 0x10);
    case EMU_SWZ_64B: return addr ^ (addr >> 3 & 0x30);
    case EMU_SWZ_128B: return addr ^ (addr >> 3 & 0x70);
    case EMU_SWZ_128B_32B: return addr ^ (addr >> 2 & 0x60);
    case EMU_SWZ_128B_32B_FLIP: return addr ^ (addr >> 2 & 0x60) ^ (addr >> 4 & 0x08);
    case EMU_SWZ_128B_64B: return addr ^ (addr >> 1 & 0x40);
    default: return addr;
    }
}

/* Bytes of one row of the pattern. */
static inline uint32_t emu_swizzle_span(int mode)
{
    return mode == EMU_SWZ_NONE ? 16 : mode == EMU_SWZ_32B ? 32 : mode == EMU_SWZ_64B ? 64 : 128;
}

#endif

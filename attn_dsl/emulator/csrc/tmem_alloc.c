/* tcgen05.alloc, dealloc, relinquish_alloc_permit (PTX ISA, "Tensor Memory Allocation and Management Instructions").
 * First fit from column 0. A cta_group::2 allocation takes the same columns in both CTAs of the pair: the first of the
 * two to come chooses columns that are free in both. */
#include <string.h>

#include "tmem.h"

enum { PAIR = 0x80, NUMBER = 0x7F }; /* an owner byte: allocation number, and whether it belongs to a pair */

int emu_tmem_columns(EmuWarp *w, const EmuInstr *in, const EmuCta *cta, uint32_t col, uint32_t n, const char *what)
{
    if (col + n > EMU_TMEM_COLS)
        return emu_find(w, in, EMU_FIND_OOB, "%s TMEM columns %u to %u; there are 512", what, col, col + n - 1);
    for (uint32_t c = col; c < col + n; c++)
        if (!cta->tmem_owner[c])
            return emu_find(w, in, EMU_FIND_TMEM_ALLOC, "%s TMEM column %u of CTA rank %u, which is not allocated", what, c, cta->rank);
    return EMU_NEXT;
}

int emu_uniform_check(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, uint32_t slots, uint32_t exec, int use, const char *what)
{
    emu_src_check(w, in, o->reg, slots, exec, use);
    if (!w->launch->checks || !(exec & (exec - 1))) return EMU_NEXT;
    for (uint32_t s = 0; s < slots; s++) {
        const uint32_t *r = emu_reg(w, o->reg, s);
        uint32_t first = r[emu_lowest(exec)], differ = 0;
        for (uint32_t l = 0; l < 32; l++) differ |= (uint32_t)(r[l] != first) << l;
        if (differ & exec)
            return emu_find(w, in, EMU_FIND_DIVERGENCE, "lanes %08x disagree with the others on %s", differ & exec, what);
    }
    return EMU_NEXT;
}

static int is_free(const EmuCta *cta, uint32_t col, uint32_t n)
{
    for (uint32_t c = col; c < col + n; c++)
        if (cta->tmem_owner[c]) return 0;
    return 1;
}

/* First column of n free ones, or 512. */
static uint32_t find_columns(const EmuCta *cta, const EmuCta *peer, uint32_t n, uint8_t owner)
{
    if (peer)
        for (uint32_t c = 0; c < EMU_TMEM_COLS; c += 32)
            if (peer->tmem_owner[c] == owner) return is_free(cta, c, n) ? c : EMU_TMEM_COLS;
    for (uint32_t c = 0; c + n <= EMU_TMEM_COLS; c += 32)
        if (is_free(cta, c, n) && (!peer || is_free(peer, c, n))) return c;
    return EMU_TMEM_COLS;
}

static int size_check(EmuWarp *w, const EmuInstr *in, uint32_t n)
{
    if (n >= 32 && n <= 512 && !(n & (n - 1))) return EMU_NEXT;
    return emu_find(w, in, EMU_FIND_TMEM_ALLOC, "%u TMEM columns; the number must be a power of two from 32 to 512", n);
}

/* The peer of a cta_group::2 instruction; a finding if the cluster has none. */
static int pair_of(EmuWarp *w, const EmuInstr *in, EmuCta **peer)
{
    *peer = in->mod[0] == 2 ? emu_peer(w->cta) : NULL;
    if (in->mod[0] != 2 || *peer) return EMU_NEXT;
    return emu_find(w, in, EMU_FIND_TMEM_ALLOC, "cta_group::2 in a cluster without a CTA of rank %u", w->cta->rank ^ 1);
}

static int emu_h_tcgen05_alloc(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuCta *cta = w->cta, *peer;
    if (emu_uniform_check(w, in, &in->op[0], 1, exec, EMU_USE_ADDRESS, "the address")) return EMU_STOP;
    if (emu_uniform_check(w, in, &in->op[1], 1, exec, EMU_USE_VALUE, "the number of columns")) return EMU_STOP;
    uint32_t n = emu_uniform(w, &in->op[1], exec), off;
    if (size_check(w, in, n) || pair_of(w, in, &peer)) return EMU_STOP;
    if (cta->tmem_relinquished &&
        emu_find(w, in, EMU_FIND_TMEM_ALLOC, "tcgen05.alloc after this CTA gave up the right by relinquish_alloc_permit"))
        return EMU_STOP;
    EmuCta *to = emu_shared(w, in, emu_uniform(w, &in->op[0], exec) + (uint32_t)in->op[0].off, 4, 4, 1, &off);
    if (!to) return EMU_STOP;
    uint8_t owner = (uint8_t)(((cta->tmem_next_alloc + 1) & NUMBER) | (peer ? PAIR : 0));
    uint32_t col = find_columns(cta, peer, n, owner);
    if (col == EMU_TMEM_COLS) return emu_block(w, in, EMU_WAIT_TMEM, cta->rank);
    cta->tmem_next_alloc++;
    memset(cta->tmem_owner + col, owner, n);
    memset(cta->tmem_wr + col * 8, 0, n * 8 * sizeof(uint32_t)); /* what the columns hold is undefined: unwritten */
    memset(cta->tmem_rd + col * 8, 0, n * 8 * sizeof(uint32_t));
    uint32_t used = 0;
    for (uint32_t c = 0; c < EMU_TMEM_COLS; c++) used += cta->tmem_owner[c] != 0;
    if (used > cta->tmem_peak) cta->tmem_peak = used;
    EmuActor a = emu_actor_warp(w, in);
    if (emu_smem_write(&a, to, off, 4)) return EMU_STOP;
    memcpy(to->smem + off, &col, 4);
    return EMU_NEXT;
}

static int emu_h_tcgen05_dealloc(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuCta *cta = w->cta, *peer;
    if (emu_uniform_check(w, in, &in->op[0], 1, exec, EMU_USE_ADDRESS, "the TMEM address")) return EMU_STOP;
    if (emu_uniform_check(w, in, &in->op[1], 1, exec, EMU_USE_VALUE, "the number of columns")) return EMU_STOP;
    uint32_t addr = emu_uniform(w, &in->op[0], exec) + (uint32_t)in->op[0].off, n = emu_uniform(w, &in->op[1], exec);
    uint32_t col = addr & 0xFFFF;
    if (size_check(w, in, n) || pair_of(w, in, &peer)) return EMU_STOP;
    if (emu_tmem_columns(w, in, cta, col, n, "tcgen05.dealloc of")) return EMU_STOP;
    uint8_t owner = cta->tmem_owner[col];
    int whole = addr >> 16 == 0 && (col == 0 || cta->tmem_owner[col - 1] != owner) &&
                (col + n == EMU_TMEM_COLS || cta->tmem_owner[col + n] != owner);
    for (uint32_t c = col; c < col + n; c++) whole &= cta->tmem_owner[c] == owner;
    if (!whole)
        return emu_find(w, in, EMU_FIND_TMEM_ALLOC, "tcgen05.dealloc of %u columns from %u: not the columns of one tcgen05.alloc", n, col);
    if (!(owner & PAIR) != !peer)
        return emu_find(w, in, EMU_FIND_TMEM_ALLOC, "tcgen05.dealloc with cta_group::%u of columns allocated with cta_group::%u",
                        in->mod[0], owner & PAIR ? 2 : 1);
    /* Freeing is a write: everything that used the columns must have come before. */
    emu_tcgen05_fence(w, 1); /* it is synchronous: what its thread has synchronised with, it comes after */
    EmuActor a = emu_actor_warp(w, in);
    if (emu_tmem_write(&a, cta, col, n, 0xFF)) return EMU_STOP;
    memset(cta->tmem_owner + col, 0, n);
    emu_wake(w->cluster, EMU_WAIT_TMEM, cta->rank);
    if (peer) emu_wake(w->cluster, EMU_WAIT_TMEM, peer->rank);
    return EMU_NEXT;
}

static int emu_h_tcgen05_relinquish(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)in, (void)exec;
    w->cta->tmem_relinquished = 1;
    return EMU_NEXT;
}

/* Called by the core when a CTA has ended. */
void emu_tmem_cta_end(EmuCta *cta)
{
    uint32_t left = 0, first = 0;
    for (uint32_t c = EMU_TMEM_COLS; c-- > 0;)
        if (cta->tmem_owner[c]) {
            left++;
            first = c;
        }
    if (left)
        emu_find(&cta->warps[0], 0, EMU_FIND_TMEM_ALLOC,
                 "the CTA ends with %u TMEM columns from column %u still allocated; tcgen05.dealloc is missing", left, first);
}

const EmuHandlerEntry emu_handlers_tmem_alloc[] = {
    EMU_ENTRY(tcgen05_alloc), EMU_ENTRY(tcgen05_dealloc), EMU_ENTRY(tcgen05_relinquish), {0}};

/* Branches, exit, and instructions that only hint (PTX ISA: "Control Flow Instructions"). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

static int emu_h_bra(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuSplit *s = emu_split(w);
    s->pc = w->pc;
    if ((in->flags & EMU_F_UNIFORM) && exec != s->mask && w->launch->checks &&
        emu_find(w, in, EMU_FIND_DIVERGENCE, "bra.uni is taken by lanes %08x of %08x", exec, s->mask))
        return EMU_STOP;
    return emu_warp_branch(w, exec, (uint32_t)in->op[0].reg, in->op[0].off);
}

/* brx.idx index, targets: lanes with equal index go together. */
static int emu_h_brx_idx(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuSplit *s = emu_split(w);
    const uint32_t *a = emu_reg(w, in->op[0].reg, 0);
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_BRANCH);
    s->pc = w->pc;
    uint32_t first = a[emu_lowest(exec)], same = 0;
    if (first >= (uint32_t)in->op[1].off)
        return emu_find(w, in, EMU_FIND_OOB, "brx.idx with index %u; there are %d targets", first, in->op[1].off) ? EMU_STOP : EMU_NEXT;
    for (uint32_t m = exec; m; m &= m - 1) same |= (a[__builtin_ctz(m)] == first) << __builtin_ctz(m);
    emu_warp_branch(w, same, (uint32_t)emu_vec(w, &in->op[1], first), (int32_t)in->mod[0]);
    if (same != s->mask) emu_split(w)->pc = w->pc; /* the rest runs this instruction again */
    return EMU_JUMP;
}

static int emu_h_exit(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)w;
    (void)in;
    (void)exec;
    return EMU_EXIT;
}

static int emu_h_trap(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    return emu_find(w, in, EMU_FIND_TRAP, "the kernel stops itself (trap or brkpt) in lanes %08x", exec) ? EMU_STOP : EMU_NEXT;
}

static int emu_h_nop(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)w;
    (void)in;
    (void)exec;
    return EMU_NEXT;
}

static int emu_h_nanosleep(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)w;
    (void)in;
    (void)exec;
    return EMU_YIELD;
}

/* ---- vprintf ----------------------------------------------------------------------------------------------------- */

static const char *read_text(EmuWarp *w, uint64_t addr)
{
    if (addr >> 48 == 0xFE) return NULL;
    return (const char *)emu_global(w, NULL, addr, 1, 1, 0);
}

static void print_bytes(EmuLaunchCore *lc, const char *s, size_t n)
{
    pthread_mutex_lock(&lc->lock);
    if (lc->print_len + n + 1 > lc->print_cap) {
        lc->print_cap = (lc->print_len + n + 1) * 2;
        lc->print = realloc(lc->print, lc->print_cap);
    }
    memcpy(lc->print + lc->print_len, s, n);
    lc->print_len += n;
    pthread_mutex_unlock(&lc->lock);
}

/* One conversion of a format, starting at '%'. Returns its length; the argument is read at *args and skipped. */
static size_t print_one(EmuLaunchCore *lc, const char *f, const uint8_t *base, uint32_t limit, uint32_t *args)
{
    char spec[32], out[128];
    size_t n = 1, lls = 0;
    while (f[n] && strchr("-+ #0123456789.", f[n]) && n < 20) n++;
    size_t flags = n;
    while (f[n] == 'l' || f[n] == 'h') lls += f[n++] == 'l';
    char c = f[n];
    if (!c) return n;
    n++;
    if (c == '%') {
        print_bytes(lc, "%", 1);
        return n;
    }
    memcpy(spec, f, flags);
    int wide = lls > 0 || strchr("eEfgGaAps", c) != NULL;
    uint32_t size = wide ? 8 : 4;
    *args = (*args + size - 1) / size * size;
    uint64_t v = 0;
    if (*args + size <= limit) memcpy(&v, base + *args, size);
    *args += size;
    int len;
    if (strchr("eEfgGaA", c)) {
        double d;
        memcpy(&d, &v, 8);
        spec[flags] = c;
        spec[flags + 1] = 0;
        len = snprintf(out, sizeof(out), spec, d);
    } else if (c == 's') {
        print_bytes(lc, (const char *)(uintptr_t)v, strlen((const char *)(uintptr_t)v));
        return n;
    } else {
        strcpy(spec + flags, "ll");
        spec[flags + 2] = c == 'p' ? 'x' : c;
        spec[flags + 3] = 0;
        long long x = c == 'd' || c == 'i' ? (size == 4 ? (long long)(int32_t)v : (long long)v) : (long long)v;
        len = snprintf(out, sizeof(out), spec, x);
    }
    if (len > 0) print_bytes(lc, out, (size_t)len < sizeof(out) ? (size_t)len : sizeof(out) - 1);
    return n;
}

static int emu_h_call_vprintf(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuLaunchCore *lc = w->launch->core;
    for (uint32_t m = exec; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        const char *f = read_text(w, emu_reg64(w, in->op[1].reg, l));
        uint64_t a = emu_reg64(w, in->op[2].reg, l);
        if (!f) return EMU_STOP;
        uint32_t off = (uint32_t)a, args = 0;
        uint8_t *base = w->core->local ? w->core->local + (size_t)l * w->prog->local_bytes : NULL;
        uint32_t limit = base && off < w->prog->local_bytes ? w->prog->local_bytes - off : 0;
        while (*f) {
            if (*f == '%') {
                f += print_one(lc, f, base + off, limit, &args);
                continue;
            }
            size_t n = strcspn(f, "%");
            print_bytes(lc, f, n);
            f += n;
        }
    }
    if (in->op[0].reg >= 0) emu_dst_done(w, in->op[0].reg, 1, exec, 0xFFFFFFFFu);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_control[] = {
    EMU_ENTRY(bra),           {"brx_idx", emu_h_brx_idx, emu_h_brx_idx},
    EMU_ENTRY(exit),          {"ret", emu_h_exit, emu_h_exit},
    EMU_ENTRY(trap),          EMU_ENTRY(nop),
    EMU_ENTRY(nanosleep),
    {"brkpt", emu_h_trap, emu_h_trap}, EMU_ENTRY(call_vprintf), {0}};

/* Loading a program: handler names become function pointers, constants are spread over the lanes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define TABLES(X) \
    X(alu_int) X(alu_wide) X(alu_float) X(alu_half) X(cvt) X(logic) X(move) X(ldst) X(atom) X(control) X(grid) X(warp_ops) \
    X(mbarrier) X(barrier) X(cp_async) X(tma) X(bulk) X(tmem_alloc) X(tmem_ldst) X(tcgen05_mma) X(tcgen05_cp) \
    X(tcgen05_sync) X(wgmma) X(matrix_ldst) X(clc)
#define DECLARE(t) extern const EmuHandlerEntry emu_handlers_##t[] __attribute__((weak));
TABLES(DECLARE)
#define ROW(t) emu_handlers_##t,
static const EmuHandlerEntry *const *tables(size_t *n)
{
    static const EmuHandlerEntry *list[64];
    const EmuHandlerEntry *all[] = {TABLES(ROW)};
    *n = sizeof(all) / sizeof(all[0]);
    memcpy(list, all, sizeof(all));
    return list;
}

EmuHandler emu_handler_find(const char *name, int checked)
{
    size_t n;
    const EmuHandlerEntry *const *t = tables(&n);
    for (size_t i = 0; i < n; i++)
        for (const EmuHandlerEntry *e = t[i]; e && e->name; e++)
            if (!strcmp(e->name, name)) return checked ? e->checked : e->fast;
    return NULL;
}

EMU_API const char *emu_handler_names(void)
{
    static char *text;
    if (text) return text;
    size_t n, len = 1;
    const EmuHandlerEntry *const *t = tables(&n);
    for (size_t i = 0; i < n; i++)
        for (const EmuHandlerEntry *e = t[i]; e && e->name; e++) len += strlen(e->name) + 1;
    char *p = malloc(len), *q = p;
    for (size_t i = 0; i < n; i++)
        for (const EmuHandlerEntry *e = t[i]; e && e->name; e++) q += sprintf(q, "%s\n", e->name);
    *q = 0;
    return text = p;
}

EMU_API void *emu_program_new(const EmuProgramImage *im, char *err, uint32_t err_size)
{
    EmuHandle *h = calloc(1, sizeof(*h));
    EmuProgram *p = &h->prog;
    pthread_mutex_init(&h->findings.lock, NULL);
    h->max_regs = im->max_regs_per_thread;
    p->n_instr = im->n_instr;
    p->n_slots = im->n_slots;
    p->n_preds = im->n_preds;
    p->n_consts = im->n_consts;
    p->local_bytes = im->local_bytes;
    p->static_smem = im->static_smem;
    p->param_bytes = im->param_bytes;
    p->target = im->target;
    p->code = calloc(im->n_instr + 1, sizeof(EmuInstr));
    p->pool = malloc((im->n_pool + 1) * sizeof(int32_t));
    memcpy(p->pool, im->pool, im->n_pool * sizeof(int32_t));
    p->consts = aligned_alloc(64, (im->n_consts + 1) * 128);
    for (uint32_t i = 0; i < im->n_consts; i++)
        for (int l = 0; l < 32; l++) p->consts[i * 32 + l] = im->consts[i];
    p->checked = calloc(im->n_handlers + 1, sizeof(EmuHandler));
    p->fast = calloc(im->n_handlers + 1, sizeof(EmuHandler));
    p->handler_of = malloc((im->n_instr + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < im->n_handlers; i++) {
        p->checked[i] = emu_handler_find(im->handlers[i], 1);
        p->fast[i] = emu_handler_find(im->handlers[i], 0);
    }
    const EmuInstrImage *src = im->code;
    for (uint32_t i = 0; i < im->n_instr; i++) {
        EmuInstr *d = &p->code[i];
        if (src[i].handler >= im->n_handlers || !p->checked[src[i].handler]) {
            snprintf(err, err_size, "line %u: no handler \"%s\" in the execution core", src[i].line,
                     src[i].handler < im->n_handlers ? im->handlers[src[i].handler] : "?");
            emu_program_free(h);
            return NULL;
        }
        p->handler_of[i] = (uint32_t)src[i].handler;
        d->fn = p->checked[src[i].handler];
        d->guard = src[i].guard;
        d->guard_neg = src[i].guard_neg;
        d->cls = src[i].cls < EMU_N_CLASSES ? src[i].cls : EMU_C_OTHER;
        d->nops = src[i].nops;
        d->flags = src[i].flags;
        d->line = src[i].line;
        d->site = src[i].site;
        memcpy(d->mod, src[i].mod, sizeof(d->mod));
        memcpy(d->op, src[i].op, sizeof(d->op));
    }
    return h;
}

EMU_API void emu_program_free(void *program)
{
    EmuHandle *h = program;
    if (!h) return;
    free(h->prog.code);
    free(h->prog.pool);
    free(h->prog.consts);
    free(h->prog.checked);
    free(h->prog.fast);
    free(h->prog.handler_of);
    free(h->findings.items);
    free(h->counts);
    free(h->print);
    free(h->uses);
    free(h->executed);
    emu_paths_free(&h->paths);
    free(h);
}

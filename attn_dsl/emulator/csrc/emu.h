/* The machine: program, warp, CTA, cluster, launch, and what a handler may call.
 *
 * Happens-before. Every piece of work has an agent and a clock, packed in one word (an epoch). Agents are warps, the
 * asynchronous queues of a warp (its MMAs, its TMEM stores, ...) and mbarriers. Work that signals an mbarrier itself
 * (TMA loads) is done under the epoch (mbarrier, phase + 1): who waits for that phase has seen it. Vector clocks belong
 * to a cluster; a shadow word per 4 bytes of shared memory and per (column, 16 lanes) of TMEM keeps the last write and
 * the reads since. A second vector clock per warp (avc) holds what a proxy fence has made visible to the async proxy,
 * and a third one (tvc) what its asynchronous tcgen05 instructions come after: the first clock itself, unless the launch
 * is strict. Then tcgen05.fence::after_thread_sync takes over what the warp has synchronised with, and before_thread_sync
 * makes what it has waited for part of what it publishes. */
#ifndef EMU_H
#define EMU_H
#include <stddef.h>
#include <stdint.h>

#include "emu_isa.h"

typedef struct EmuWarp EmuWarp;
typedef struct EmuCta EmuCta;
typedef struct EmuCluster EmuCluster;
typedef struct EmuLaunch EmuLaunch;
typedef struct EmuProgram EmuProgram;
typedef struct EmuInstr EmuInstr;
typedef struct EmuAsync EmuAsync;
typedef struct EmuMbar EmuMbar;

/* What a handler returns. */
enum {
    EMU_NEXT = 0,  /* go on with the next instruction */
    EMU_JUMP = 1,  /* the handler has set the program counter (control flow only) */
    EMU_BLOCK = 2, /* cannot go on now; run this same instruction again after a wake-up (emu_block said on what) */
    EMU_YIELD = 3, /* next instruction, but let others run first */
    EMU_EXIT = 4,  /* the active lanes are done (control flow only) */
    EMU_STOP = 5   /* a fatal finding: stop the launch */
};

/* One warp-instruction: `exec` are the lanes to execute (guard applied, never 0). */
typedef int (*EmuHandler)(EmuWarp *w, const EmuInstr *in, uint32_t exec);

struct EmuInstr { /* EmuInstrImage with the handler resolved */
    EmuHandler fn;
    int32_t guard;
    uint8_t guard_neg, cls, nops, flags;
    uint32_t line, site;
    uint32_t mod[4];
    EmuOperand op[EMU_MAX_OPERANDS];
};

/* Handler tables: each C file ends with `const EmuHandlerEntry emu_handlers_<file>[] = {..., {0}}`, listed in program.c.
 * `checked` is used when findings are on, `fast` when off; the same function may serve as both. */
typedef struct EmuHandlerEntry {
    const char *name;
    EmuHandler fast, checked;
} EmuHandlerEntry;
#define EMU_ENTRY(f) { #f, emu_h_##f, emu_h_##f } /* handler "f" is int emu_h_f(EmuWarp *, const EmuInstr *, uint32_t) */

struct EmuProgram {
    EmuInstr *code;
    uint32_t n_instr, n_slots, n_preds, n_consts;
    int32_t *pool;    /* vector operands */
    uint32_t *consts; /* n_consts x 32, each constant broadcast to the lanes */
    uint32_t local_bytes, static_smem, param_bytes;
    uint32_t target; /* 90 or 100 */
    EmuHandler *checked, *fast; /* by handler index */
    uint32_t *handler_of;       /* handler index of each instruction */
};

/* State of a register slot. A slot an asynchronous instruction will write (or still reads) has valid = 0 and epoch =
 * EMU_PENDING; emu_src_check and emu_dst_begin resolve or report it. */
#define EMU_PENDING 0xFFFFFFFFu
typedef struct EmuRegState {
    uint32_t valid; /* lanes that hold a written value */
    uint32_t epoch; /* w->fence_epoch at the last ordinary write (wgmma.fence), 0 if written by wgmma, or EMU_PENDING */
} EmuRegState;

/* Asynchronous queues of a warp: agents of the happens-before relation, and FIFO order in the late mode. */
enum {
    EMU_Q_MMA = 0,   /* tcgen05.mma, cp, shift: in order, ended by commit */
    EMU_Q_TST = 1,   /* tcgen05.st, ended by wait::st */
    EMU_Q_TLD = 2,   /* tcgen05.ld, ended by wait::ld or a read of a result register */
    EMU_Q_CPASYNC = 3, /* cp.async, groups */
    EMU_Q_BULK = 4,  /* bulk stores and reductions, groups */
    EMU_Q_WGMMA = 5, /* wgmma, groups */
    EMU_Q_TMA = 6,   /* work that signals an mbarrier itself: no order between entries, no agent of its own */
    EMU_N_QUEUES = 7
};

struct EmuWarp {
    uint32_t *regs;       /* n_slots x 32 */
    EmuRegState *rstate;  /* n_slots */
    uint32_t *preds;      /* n_preds lane masks */
    uint32_t *pvalid;     /* n_preds lane masks */
    const EmuProgram *prog;
    EmuLaunch *launch;
    EmuCluster *cluster;
    EmuCta *cta;
    uint32_t index;       /* warp index in the CTA */
    uint32_t pc;          /* of the running split */
    uint32_t active;      /* lanes of the running split */
    uint32_t live;        /* lanes that have not exited */
    uint32_t fence_epoch; /* from 1, raised by wgmma.fence */
    uint32_t agent;       /* of this warp */
    uint32_t queue_agent[EMU_N_QUEUES]; /* 0 = none yet */
    uint32_t queue_clock[EMU_N_QUEUES];
    uint32_t group_open[EMU_N_QUEUES];  /* entries submitted since the last commit_group */
    uint32_t group_done[EMU_N_QUEUES];  /* groups waited for */
    uint32_t group_count[EMU_N_QUEUES]; /* groups committed */
    uint32_t *group_clock[EMU_N_QUEUES]; /* queue clock at the end of each of the last 64 groups (ring) */
    uint32_t *vc, *avc;   /* vector clocks: seen, and seen through a proxy fence */
    uint32_t *tvc;        /* seen by asynchronous tcgen05 instructions; vc itself unless the launch is strict */
    uint32_t *relaxed_vc; /* of a strict launch: what relaxed waits have seen, which tcgen05.fence may take over */
    uint64_t counts[EMU_N_CLASSES];
    uint64_t engines[EMU_N_ENGINES]; /* EMU_E_* */
    struct EmuWarpCore *core; /* splits, scheduling: core only */
};

struct EmuCta {
    EmuCluster *cluster;
    uint32_t rank;          /* in the cluster */
    uint32_t ctaid[3];
    uint32_t smem_size;     /* bytes of the window, EMU_SHARED_BASE included */
    uint8_t *smem;          /* smem[0] is window offset 0 */
    uint32_t *smem_wr, *smem_rd; /* shadow, one word per 4 bytes */
    uint32_t *tmem;         /* [512 columns][128 lanes], NULL on sm_90 */
    uint32_t *tmem_wr, *tmem_rd; /* shadow, [512][8] */
    uint8_t *tmem_owner;    /* [512]: 0 free, else allocation number (engines) */
    uint32_t tmem_next_alloc, tmem_peak, tmem_relinquished;
    EmuWarp *warps;
    uint32_t n_warps;
    struct EmuCtaCore *core;
};

struct EmuCluster {
    EmuLaunch *launch;
    EmuCta *ctas;
    uint32_t n_ctas;
    uint32_t id[3];
    uint32_t clc_failed;    /* a try_cancel has been refused: another is a finding */
    uint64_t rng;           /* xorshift state of this cluster's schedule */
    struct EmuClusterCore *core;
};

struct EmuLaunch { /* read-only for engines except through functions */
    const EmuProgram *prog;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dyn_smem;
    uint8_t *params;
    int checks; /* findings on */
    int late;   /* complete asynchronous work as late as legal, poison until then */
    int strict; /* tcgen05.fence and wait::ld are needed between threads */
    int exact;  /* MMA arithmetic as tensor cores do it, bit by bit (aligned.h); else f32 */
    struct EmuLaunchCore *core;
};

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* 32 lanes of slot `extra` of a register or immediate operand, for reading. */
static inline const uint32_t *emu_reg(const EmuWarp *w, int32_t reg, uint32_t extra)
{
    return reg >= 0 ? w->regs + ((size_t)reg + extra) * 32 : w->prog->consts + ((size_t)~reg + extra) * 32;
}
static inline uint32_t *emu_dst(EmuWarp *w, int32_t reg, uint32_t extra)
{
    return w->regs + ((size_t)reg + extra) * 32;
}
static inline uint64_t emu_reg64(const EmuWarp *w, int32_t reg, int lane)
{
    return emu_reg(w, reg, 0)[lane] | (uint64_t)emu_reg(w, reg, 1)[lane] << 32;
}
static inline uint32_t emu_pred(const EmuWarp *w, const EmuOperand *o)
{
    uint32_t m = o->reg >= 0 ? w->preds[o->reg] : (o->reg == EMU_PRED_TRUE ? 0xFFFFFFFFu : 0);
    return o->off ? ~m : m;
}
static inline int32_t emu_vec(const EmuWarp *w, const EmuOperand *o, uint32_t i) { return w->prog->pool[o->reg + i]; }
static inline int emu_lowest(uint32_t mask) { return __builtin_ctz(mask); }
/* An immediate (or uniform) operand: value in the lowest of `exec`. */
static inline uint32_t emu_uniform(const EmuWarp *w, const EmuOperand *o, uint32_t exec)
{
    return emu_reg(w, o->reg, 0)[emu_lowest(exec)];
}

/* What a register is used for, for the sentence of a finding. */
enum { EMU_USE_VALUE = 0, EMU_USE_ADDRESS = 1, EMU_USE_BRANCH = 2, EMU_USE_STORE = 3, EMU_USE_MMA = 4 };

/* Before reading n slots from `reg`: waits for a pending tcgen05.ld, reports a pending wgmma register, and reports lanes
 * of `exec` nobody wrote when `use` is not EMU_USE_VALUE. Returns the lanes that hold values. Cheap when all is well. */
uint32_t emu_src_check(EmuWarp *w, const EmuInstr *in, int32_t reg, uint32_t n, uint32_t exec, int use);
/* Before writing n slots: reports a register that asynchronous work still uses. */
void emu_dst_touch(EmuWarp *w, const EmuInstr *in, int32_t reg);
static inline void emu_dst_begin(EmuWarp *w, const EmuInstr *in, int32_t reg, uint32_t n, uint32_t exec)
{
    (void)exec;
    for (uint32_t i = 0; i < n; i++)
        if (__builtin_expect(w->rstate[reg + i].epoch == EMU_PENDING, 0)) emu_dst_touch(w, in, reg + (int32_t)i);
}
/* After writing: lanes `valid` of `exec` hold values now. */
static inline void emu_dst_done(EmuWarp *w, int32_t reg, uint32_t n, uint32_t exec, uint32_t valid)
{
    for (uint32_t i = 0; i < n; i++) {
        EmuRegState *s = &w->rstate[reg + i];
        s->valid = (s->valid & ~exec) | (exec & valid);
        s->epoch = w->fence_epoch;
    }
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */


/* Records a finding at `in` (deduplicated by kind, instruction and sentence kind). Returns EMU_STOP if the launch must
 * stop (findings are errors, or kind is fatal), else EMU_NEXT: `return emu_find(...)` or `if (emu_find(...)) return EMU_STOP`
 * is how a handler reports. The text is a plain sentence with the values: "TMA store reads ...". */
int emu_find(EmuWarp *w, const EmuInstr *in, int kind, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Generic addresses of shared memory and local memory; anything else is global (host) memory. */
#define EMU_SHARED_WINDOW 0x00FF000000000000ull /* | 32-bit shared address */
#define EMU_LOCAL_WINDOW 0x00FE000000000000ull
#define EMU_IS_SHARED(a) ((uint64_t)(a) >> 48 == 0xFF)

/* Host pointer of global memory, checked against the allocations and `align`; NULL after a finding. `write` 0/1.
 * Kernel parameters (tensor maps) count as a read-only allocation. */
uint8_t *emu_global(EmuWarp *w, const EmuInstr *in, uint64_t addr, uint64_t size, uint32_t align, int write);
/* The bounds alone; then every piece that is really touched goes to emu_grid_access. */
uint8_t *emu_global_bounds(EmuWarp *w, const EmuInstr *in, uint64_t addr, uint64_t size, uint32_t align, int write);
/* Programmatic dependent launch: notes what this grid writes, and reports a touch of what the grid before wrote by a warp
 * that griddepcontrol.wait is not ordered before. Returns 0, or EMU_STOP. */
int emu_grid_access(EmuWarp *w, const EmuInstr *in, uint64_t addr, uint64_t size, int write);
/* Resolves a 32-bit shared address with rank bits (addr >> 24) to its CTA; NULL after a finding. `off` gets the window
 * offset. `own` != 0: .shared::cta, an address in another CTA is a finding. */
EmuCta *emu_shared(EmuWarp *w, const EmuInstr *in, uint32_t addr, uint64_t size, uint32_t align, int own, uint32_t *off);
EmuCta *emu_cta_of_rank(EmuCluster *c, uint32_t rank); /* NULL if there is none */

/* ---- happens-before ---------------------------------------------------------------------------------------------- */

#define EMU_EPOCH(agent, clock) ((uint32_t)(agent) << 20 | (clock)) /* agent < 4096, clock < 2^20; epoch 0: nobody */
#define EMU_EPOCH_AGENT(e) ((e) >> 20)
#define EMU_EPOCH_CLOCK(e) ((e) & 0xFFFFF)

/* Who accesses memory. Build one with emu_actor_*; valid within the handler only. */
typedef struct EmuActor {
    EmuWarp *w;
    const EmuInstr *in;
    uint32_t epoch;
    const uint32_t *vc;  /* what it comes after */
    uint8_t async_proxy; /* needs generic writes to have passed a proxy fence */
    uint8_t in_order;    /* accesses of the same agent are ordered among themselves */
    uint8_t atomic;      /* no race with an atomic access */
} EmuActor;
EmuActor emu_actor_warp(EmuWarp *w, const EmuInstr *in);
EmuActor emu_actor_atomic(EmuWarp *w, const EmuInstr *in);
/* A new entry of queue q (raises its clock). async_proxy is set for EMU_Q_MMA, EMU_Q_BULK, EMU_Q_WGMMA. */
EmuActor emu_actor_queue(EmuWarp *w, const EmuInstr *in, int q);
/* Work that will signal the mbarrier at (cta, off) by complete_tx. */
EmuActor emu_actor_mbar(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off);

/* Check and record an access (no-ops when findings are off). Ranges are window offsets. Return 0, or EMU_STOP. */
int emu_smem_read(const EmuActor *a, EmuCta *cta, uint32_t off, uint32_t size);
int emu_smem_write(const EmuActor *a, EmuCta *cta, uint32_t off, uint32_t size);
/* TMEM columns [col, col+n) and the 16-lane groups in `groups` (bit g: lanes 16g..16g+15). */
int emu_tmem_read(const EmuActor *a, EmuCta *cta, uint32_t col, uint32_t n, uint32_t groups);
int emu_tmem_write(const EmuActor *a, EmuCta *cta, uint32_t col, uint32_t n, uint32_t groups);

/* The warp has waited for queue q up to `clock` (wait::ld, wait::st, wait_group). */
void emu_queue_seen(EmuWarp *w, int q, uint32_t clock);
/* tcgen05.fence (PTX ISA, "Specialized Inter-thread Synchronization for tcgen05 instructions"); `after` 0: before_thread_sync.
 * tcgen05.commit does the latter, too. No-ops unless the launch is strict. */
void emu_tcgen05_fence(EmuWarp *w, int after);
/* Registers of an asynchronous instruction: mark pending until `clock` of queue q (q is EMU_Q_TLD or EMU_Q_WGMMA). */
void emu_reg_pending(EmuWarp *w, int32_t reg, uint32_t n, int q, uint32_t clock);
/* End of a wgmma group: registers of entries up to `clock` are ordinary again (valid in all lanes). */
void emu_reg_release(EmuWarp *w, int q, uint32_t clock);

/* ---- asynchronous work ------------------------------------------------------------------------------------------- */

/* One entry. At issue: check, record in the shadow, capture operands in `payload`. `run` moves the data and signals; it
 * may run much later (late mode), after registers changed, so it reads nothing but its payload and memory. */
struct EmuAsync {
    EmuAsync *next;
    void (*run)(EmuAsync *a);
    EmuWarp *w;
    const EmuInstr *in;
    uint8_t queue;
    uint32_t clock; /* queue clock of the entry */
    uint32_t group; /* group number it belongs to */
    size_t size;    /* of the payload */
    _Alignas(16) uint8_t payload[];
};
EmuAsync *emu_async_new(EmuWarp *w, const EmuInstr *in, int queue, void (*run)(EmuAsync *), size_t payload_size);
/* Eager: runs and frees it now. Late: queues it (the caller has poisoned the destination when launch->late). */
void emu_async_submit(EmuAsync *a);
/* commit_group / wait_group n (all but the newest n groups) for cp.async, bulk and wgmma queues: runs what is queued,
 * raises the warp's knowledge (emu_queue_seen). */
void emu_group_commit(EmuWarp *w, int queue);
void emu_group_wait(EmuWarp *w, int queue, uint32_t n);
/* Runs every queued entry of one queue of this warp, in order (wait::st, wait::ld, mbarrier.arrive of cp.async). */
void emu_queue_drain(EmuWarp *w, int queue);

/* ---- mbarriers --------------------------------------------------------------------------------------------------- */

/* Signals from engines. `in`/`w`: the instruction that issued the work. Wakes waiters. Window offset `off`. */
void emu_mbar_complete_tx(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off, uint32_t bytes);
/* Arrive by a queue (tcgen05.commit, cp.async.mbarrier.arrive): publishes the queue's clock `clock` of warp w. */
void emu_mbar_arrive_queue(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off, int queue, uint32_t clock);
/* cp.async.mbarrier.arrive without .noinc: raises the pending count by one first. */
void emu_mbar_inc_pending(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off);

/* ---- blocking, grid ---------------------------------------------------------------------------------------------- */

enum { EMU_WAIT_MBAR = 1, EMU_WAIT_BARRIER = 2, EMU_WAIT_CLUSTER = 3, EMU_WAIT_TMEM = 4, EMU_WAIT_WARP = 5 };
/* Says what the running split waits for, then `return EMU_BLOCK`. EMU_WAIT_TMEM is woken by emu_wake. */
int emu_block(EmuWarp *w, const EmuInstr *in, int what, uint64_t object);
void emu_wake(EmuCluster *c, int what, uint64_t object);
/* Takes one not yet started cluster off the grid (clusterlaunchcontrol): 1 and the ctaid of its first CTA, or 0. */
int emu_grid_take(EmuLaunch *l, uint32_t ctaid[3]);
/* Adds to a counter of this warp's role (EMU_E_*). */
void emu_count_engine(EmuWarp *w, int engine, uint64_t amount);
uint64_t emu_random(EmuCluster *c);

#endif

/* State private to the execution core: splits, agents, barriers, mbarriers, findings. Engines include emu.h only. */
#ifndef EMU_CORE_H
#define EMU_CORE_H
#include <pthread.h>

#include "emu.h"
#include "emu_abi.h"

#define EMU_LIKELY(x) __builtin_expect(!!(x), 1)
#define EMU_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EMU_MAX_CONV 160
#define EMU_N_BARRIERS 16
#define EMU_MAX_AGENTS 2048
#define EMU_GROUP_RING 64

/* A set of lanes of a warp that run together. */
typedef struct EmuSplit {
    uint32_t pc, mask;
    int32_t conv;       /* where these lanes meet the others again, or -1 */
    uint8_t blocked;    /* EMU_WAIT_*, 0 = runnable */
    uint8_t resume;     /* what it waited for has happened: the instruction runs again and finds this set */
    uint8_t timed_out;  /* nothing else could run: a try_wait may now say false */
    uint64_t object;    /* what it waits for */
    const EmuInstr *in; /* where */
    uint32_t info;      /* parity (mbarrier) or expected count (barrier) */
} EmuSplit;

/* A reconvergence point: `arrived` lanes wait at `pc` until all of `expect` that live are there. */
typedef struct EmuConv {
    uint32_t pc, expect, arrived;
    int32_t parent;
    uint8_t used;
} EmuConv;

typedef struct EmuPending { /* of one register slot: asynchronous work that writes or reads it */
    uint32_t clock;
    uint8_t queue, listed;
} EmuPending;

typedef struct EmuWarpCore {
    EmuSplit split[32];
    uint32_t n_split, cur;
    EmuConv conv[EMU_MAX_CONV];
    EmuPending *pending;                /* by slot */
    int32_t *pending_slots[2];          /* slots pending in EMU_Q_TLD, EMU_Q_WGMMA */
    uint32_t n_pending[2];
    EmuAsync *head[EMU_N_QUEUES], *tail[EMU_N_QUEUES];
    uint32_t max_regs;
    uint32_t atomic_agent; /* atom and red; its clock is that of the warp */
    uint32_t init_agent, init_clock; /* mbarrier.init: fence.mbarrier_init releases these alone */
    uint32_t *fence_vc, *fence_avc;  /* what a later relaxed arrive releases */
    uint8_t *local;     /* 32 x local_bytes */
    uint16_t waited[64]; /* trace: entries of EmuLaunchCore.uses of this warp's waits */
    uint32_t n_waited;
    EmuStep *steps;      /* path option */
    uint32_t n_steps, cap_steps;
    uint32_t cluster_arrived, cluster_phase; /* lanes that have arrived in the open phase; phases waited for */
} EmuWarpCore;

struct EmuMbar {
    uint32_t off;
    uint8_t live, phase, init_fenced;
    uint32_t expected, pending, init_epoch, init_warp;
    int64_t tx;
    uint64_t completed;   /* phases completed since init */
    uint64_t arrivals;    /* arrivals seen in the open phase */
    uint32_t agent, clock; /* clock: completed phases over the life of the CTA */
    uint32_t *vc, *avc;   /* what has been released into it */
};

typedef struct EmuBarrier {
    uint32_t expected, arrived; /* threads; expected 0: nobody there */
    uint32_t all;               /* expected is "every thread of the CTA" */
    uint32_t *vc, *avc;
    uint32_t red_pop, red_and, red_or;
} EmuBarrier;

typedef struct EmuCtaCore {
    EmuBarrier bar[EMU_N_BARRIERS];
    EmuMbar **mbars;
    uint32_t n_mbars, cap_mbars;
    uint16_t *mbar_index; /* window offset / 8 -> index + 1 */
    uint32_t *remote;     /* by agent: last clock of its accesses from other CTAs; the CTA must have seen them before it ends */
    uint32_t *remote_line;
    uint32_t *byte_wr, *byte_rd; /* shadow of the bytes of split words, four for each */
    uint32_t n_split_words, cap_split_words, free_split;
} EmuCtaCore;

typedef struct EmuAgentInfo {
    uint8_t kind; /* 0 warp, 1 + queue, 8 mbarrier, 9 mbarrier.init of a warp, 10 atomics of a warp */
    uint32_t rank, warp, off;
    uint32_t lines[16]; /* instruction lines of the last clocks */
} EmuAgentInfo;

typedef struct EmuClusterCore {
    EmuAgentInfo *agents;
    uint32_t n_agents, cap_agents;
    uint32_t n_warps, n_live; /* warps */
    EmuWarp **order;          /* all warps of the cluster */
    uint32_t next;
    uint64_t progress;        /* raised by everything another warp can see */
    uint64_t stall_mark;
    uint32_t stalls;
    uint64_t instructions, slices;
    uint32_t cl_arrived, cl_expected, cl_phase; /* cluster barrier, in threads */
    uint32_t *cl_vc, *cl_avc;
    uint32_t *sets, n_sets, cap_sets; /* read sets: n, epochs... */
    uint32_t n_async;         /* queued entries */
    int stop;
    uint32_t grid_agent;      /* the grid before: seen by who has executed griddepcontrol.wait */
    uint32_t last_set_in, last_set_epoch, last_set_out; /* memo of set_add */
} EmuClusterCore;

typedef struct EmuFindings {
    pthread_mutex_t lock;
    EmuFinding *items;
    uint32_t n, cap;
} EmuFindings;

/* Words of global memory a launch wrote: one byte for each 4 bytes of each allocation. */
typedef struct EmuWritten {
    uint32_t n;
    EmuAlloc *allocs; /* sorted by base, disjoint */
    uint8_t **words;
} EmuWritten;

typedef struct EmuPaths {
    EmuPath *items;
    uint32_t n, cap;
} EmuPaths;

typedef struct EmuLaunchCore {
    EmuOptions opt;
    EmuFindings *findings;
    const EmuAlloc *allocs;
    uint32_t n_allocs, param_bytes;
    uint64_t n_clusters, next_cluster; /* linear */
    uint32_t nc[3];                    /* clusters per dimension */
    pthread_mutex_t lock;
    uint64_t instructions;
    uint64_t *counts; /* roles x (classes + engines) */
    uint32_t n_roles, tmem_peak;
    int stop;
    char *print;
    uint64_t print_len, print_cap;
    uint64_t smem_window; /* bytes allocated per CTA */
    EmuMbarUse *uses;     /* EMU_MAX_USES, hashed by (line, mbarrier); NULL without the trace option */
    uint8_t *executed;    /* by instruction, with the trace option */
    EmuPaths *paths;      /* with the path option */
    EmuWritten *written;  /* NULL: no later grid may start before this one has ended */
    const EmuWritten *before;
    int published;        /* griddepcontrol.launch_dependents has been executed */
} EmuLaunchCore;

typedef struct EmuHandle { /* what Python holds */
    EmuProgram prog;
    uint32_t max_regs;
    EmuFindings findings;
    uint64_t *counts;
    uint32_t n_roles;
    char *print;
    uint64_t print_len;
    EmuMbarUse *uses;
    uint8_t *executed;
    EmuPaths paths;
    EmuWritten *written;
} EmuHandle;
#define EMU_MAX_USES 4096

/* program.c */
EmuHandler emu_handler_find(const char *name, int checked);
/* launch.c */
int emu_cluster_init(EmuCluster *c, EmuLaunch *l);
void emu_cluster_start(EmuCluster *c, uint64_t linear);
void emu_cluster_finish(EmuCluster *c);
void emu_cluster_free(EmuCluster *c);
/* run.c */
enum { EMU_RUN_DONE = 0, EMU_RUN_MORE = 1, EMU_RUN_STOP = 2 };
int emu_cluster_run(EmuCluster *c, uint64_t quantum);
/* warp.c */
void emu_warp_reset(EmuWarp *w);
int emu_warp_branch(EmuWarp *w, uint32_t taken, uint32_t target, int32_t reconverge);
void emu_warp_converge(EmuWarp *w);
void emu_warp_exit(EmuWarp *w, uint32_t lanes);
int emu_warp_unpark(EmuWarp *w);
static inline EmuSplit *emu_split(EmuWarp *w) { return &w->core->split[w->core->cur]; }
/* shadow.c */
uint32_t emu_agent_new(EmuCluster *c, int kind, uint32_t rank, uint32_t warp, uint32_t off);
void emu_vc_join(EmuCluster *c, uint32_t *dst, const uint32_t *src);
void emu_release(EmuWarp *w, uint32_t *vc, uint32_t *avc); /* publish and open a new interval of this warp */
void emu_release_fenced(EmuWarp *w, uint32_t *vc, uint32_t *avc); /* a relaxed arrive: only what a fence has released */
void emu_acquire(EmuWarp *w, const uint32_t *vc, const uint32_t *avc);
int emu_ordered(const EmuActor *a, uint32_t epoch);
void emu_agent_name(EmuCluster *c, uint32_t epoch, char *out, size_t size);
#define EMU_EPOCH_MBAR 0x7FF00001u /* shadow of a live mbarrier */
void emu_remote_access(EmuCta *cta, const EmuInstr *in, uint32_t epoch); /* to this CTA's memory, from another CTA */
/* async.c */
int emu_async_step(EmuCluster *c);
void emu_async_free_all(EmuCluster *c);
/* grid.c */
EmuWritten *emu_written_new(const EmuAlloc *allocs, uint32_t n);
int emu_publishes(const EmuProgram *p);
/* mbarrier.c */
EmuMbar *emu_mbar_at(EmuCta *cta, uint32_t off);
void emu_trace_effect(EmuWarp *w, const EmuInstr *in);
void emu_trace_mbar(EmuWarp *w, const EmuInstr *in, EmuCta *cta, EmuMbar *m, int wait);
void emu_cta_end_checks(EmuCta *cta);
/* path.c */
int emu_path_event(const EmuInstr *in);
void emu_path_begin(EmuWarp *w, const EmuInstr *in, uint32_t pc, uint32_t exec, EmuStep *s);
void emu_path_end(EmuWarp *w, EmuStep *s);
void emu_path_enter(EmuWarp *w, uint32_t pc);
void emu_path_keep(EmuWarp *w, EmuPaths *all);
void emu_paths_free(EmuPaths *all);
/* barrier.c */
void emu_barrier_exit(EmuWarp *w);
/* findings.c */
void emu_describe_deadlock(EmuCluster *c);
/* tmem_alloc.c (engines): columns still allocated at the end of a CTA are a finding */
void emu_tmem_cta_end(EmuCta *cta) __attribute__((weak));

/* A macro for loops over lanes: the full-warp case is the fast one and vectorises. */
#define EMU_LANES(exec, body)                       \
    do {                                            \
        if (EMU_LIKELY((exec) == 0xFFFFFFFFu)) {    \
            for (int l = 0; l < 32; l++) { body; }  \
        } else {                                    \
            for (uint32_t m_ = (exec); m_; m_ &= m_ - 1) { \
                int l = __builtin_ctz(m_);          \
                body;                               \
            }                                       \
        }                                           \
    } while (0)
#endif

/* What Python calls (ctypes). Only plain C types; every struct here is mirrored in native.py. */
#ifndef EMU_ABI_H
#define EMU_ABI_H
#include <stdint.h>

#define EMU_API __attribute__((visibility("default")))

typedef struct EmuProgramImage {
    const void *code; /* EmuInstrImage[n_instr] */
    const char *const *handlers; /* names, indexed by EmuInstrImage.handler */
    const int32_t *pool;
    const uint32_t *consts; /* n_consts words */
    uint32_t n_instr, n_handlers, n_pool, n_consts;
    uint32_t n_slots, n_preds;
    uint32_t local_bytes; /* per thread */
    uint32_t static_smem; /* bytes after EMU_SHARED_BASE taken by .shared variables; dynamic memory follows, aligned */
    uint32_t param_bytes;
    uint32_t target; /* 90 or 100 */
    uint32_t max_regs_per_thread; /* from .maxnreg / cubin, 0 unknown: for the setmaxnreg budget */
} EmuProgramImage;

typedef struct EmuAlloc {
    uint64_t base, size;
    uint32_t writable;
    uint32_t id; /* returned in findings' text as "allocation <id>" */
} EmuAlloc;

typedef struct EmuOptions {
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dyn_smem;
    uint32_t checks;   /* findings on */
    uint32_t collect;  /* collect findings and go on, instead of stopping at the first */
    uint32_t late;
    uint32_t threads;  /* worker threads; 0: one per core */
    uint32_t exact;    /* MMA arithmetic as tensor cores do it, bit by bit */
    uint32_t trace;    /* record which instruction used which mbarrier */
    uint32_t strict_tcgen05; /* TMEM accesses of different threads need tcgen05.fence, and tcgen05.ld needs wait::ld */
    uint64_t seed;     /* 0: round-robin schedule, else random */
    uint64_t budget;   /* warp-instructions per launch; 0: no limit */
    const uint64_t *only; /* clusters to run, linear, n_only of them; NULL: the whole grid */
    uint64_t n_only;
    uint64_t path;     /* record what every warp executed */
    const void *before; /* what emu_written_take gave for the launch this one may overlap with, or NULL */
} EmuOptions;

typedef struct EmuFinding {
    uint32_t kind; /* EMU_FIND_* */
    uint32_t line, site, pc;
    uint32_t warp, lanes;
    uint32_t ctaid[3];
    uint64_t times; /* how often it happened */
    char text[512];
} EmuFinding;

typedef struct EmuResult {
    uint32_t n_findings;
    uint32_t stopped; /* 1: ended by a finding */
    uint64_t instructions; /* warp-instructions executed */
    uint64_t nanoseconds;
    uint32_t n_roles; /* warps per CTA */
    uint32_t smem_bytes, tmem_columns; /* peak */
    uint32_t reserved;
} EmuResult;

/* Returns NULL and writes a sentence to err on failure (unknown handler: names the line). */
EMU_API void *emu_program_new(const EmuProgramImage *image, char *err, uint32_t err_size);
EMU_API void emu_program_free(void *program);
/* Runs a launch to its end. 0: ran (look at n_findings), 1: stopped by a finding, 2: bad arguments (err says). */
EMU_API int emu_launch(void *program, const EmuOptions *opt, const void *params, uint32_t n_allocs, const EmuAlloc *allocs,
                       EmuResult *result, char *err, uint32_t err_size);
/* Of the last launch of this program: */
/* Global memory the last launch wrote, if it let the next grid start early (griddepcontrol.launch_dependents); else NULL.
 * The caller owns it. */
EMU_API void *emu_written_take(void *program);
EMU_API void emu_written_free(void *written);
EMU_API int emu_finding_get(void *program, uint32_t i, EmuFinding *out);
EMU_API int emu_counts_get(void *program, uint32_t role, uint64_t *classes /* EMU_N_CLASSES */, uint64_t *engines /* EMU_N_ENGINES */);
/* Text of vprintf calls of the last launch; returns its length, copies at most size bytes. */
EMU_API uint64_t emu_printf_get(void *program, char *out, uint64_t size);
/* With the trace option: mbarrier uses of the last launch, one for each (instruction, mbarrier). Phases count from 1.
 * Arrivals: `phase` is the first phase an arrival counted for. Waits: `depended` of them passed because a phase had
 * completed (not because the barrier was fresh), `phase` is the last of those, `after` the lines of instructions with an
 * effect beyond registers that the waiting warps executed later. Returns how many entries there are. */
#define EMU_USE_AFTER 6 /* n_after may be larger: then the list is not complete */
typedef struct EmuMbarUse {
    uint32_t line, off, cta; /* cta: linear index in the grid */
    uint32_t phase;
    uint64_t executed, depended;
    uint32_t n_after, after[EMU_USE_AFTER];
} EmuMbarUse;
EMU_API uint32_t emu_mbar_uses_get(void *program, EmuMbarUse *out, uint32_t max);
/* With the trace option: 1 for every instruction of the program that was executed in the last launch, n_instr bytes. */
EMU_API void emu_executed_get(void *program, uint8_t *out);
/* With the path option: one entry for each warp that ran. Steps belong to the program, until its next launch. */
#define EMU_STEP_OPS 6
typedef struct EmuStep {
    uint32_t pc;    /* index of the instruction */
    uint32_t lanes; /* that executed it; 0: entry of a basic block, and nothing below */
    uint32_t op[EMU_STEP_OPS]; /* low words of its first operands in its lowest lane, with their displacement */
    uint64_t amount; /* bytes or floating-point operations it counted */
} EmuStep;
typedef struct EmuPath {
    uint64_t cta; /* linear */
    uint32_t warp, n;
    EmuStep *steps;
} EmuPath;
/* Writes entry i, if there is one; returns how many there are. */
EMU_API uint32_t emu_path_get(void *program, uint32_t i, EmuPath *out);
/* Names of all handlers, separated by newlines (for the test that the opcode table names only real ones). */
EMU_API const char *emu_handler_names(void);
#endif

/* The encoded program: what the Python decoder writes and the C core executes.
 * Every constant has an explicit value because Python reads the enums of this file (one statement of each number). */
#ifndef EMU_ISA_H
#define EMU_ISA_H
#include <stdint.h>

#define EMU_SINK INT32_MIN /* operand "_" */
#define EMU_MAX_OPERANDS 10

/* Predicate operands below zero. */
enum { EMU_PRED_TRUE = -1, EMU_PRED_FALSE = -2 };

/* Reserved register slots, filled at warp start. */
enum {
    EMU_SLOT_SHARED = 0, /* rank << 24: add to a shared symbol's offset */
    EMU_SLOT_LOCAL = 1,  /* low word of the thread's local window (0) */
    EMU_SLOT_FIRST = 2   /* first slot the decoder may give away */
};

/* Byte offset of the first shared symbol inside a CTA's window (ptxas leaves 1 KiB to the system). */
enum { EMU_SHARED_BASE = 0x400 };

/* One operand. Meaning by the kind of PTX operand:
 *   register / immediate  reg = slot (>= 0) or ~constant_slot (< 0), off = 0
 *   predicate             reg = predicate index or EMU_PRED_*, off = 1 if negated
 *   memory [r + imm]      reg as above, off = imm; a shared symbol is reg = EMU_SLOT_SHARED, off = its offset;
 *                         a .param symbol in ld.param is reg = ~(slot of constant 0), off = its offset
 *   vector {a, b, ...}    reg = index of the first element in the pool, off = number of elements;
 *                         pool elements are coded as registers (slot, ~constant, EMU_SINK)
 *   label                 reg = target instruction, off = reconvergence instruction (or -1)
 * A slot is 32 lanes x 32 bits. 64-bit registers are two consecutive slots (low, high), 128-bit four.
 * 8- and 16-bit values live zero-extended in one slot, except where an instruction is documented otherwise. */
typedef struct EmuOperand {
    int32_t reg;
    int32_t off;
} EmuOperand;

/* 120 bytes; written by Python with struct.pack("<QiBBBBII4I20i"). */
typedef struct EmuInstrImage {
    uint64_t handler; /* index into the program's handler-name table */
    int32_t guard;    /* predicate index or EMU_PRED_TRUE */
    uint8_t guard_neg;
    uint8_t cls; /* EMU_C_* */
    uint8_t nops;
    uint8_t flags; /* EMU_F_* */
    uint32_t line; /* line in the PTX text, from 1 */
    uint32_t site; /* basic-block id, for reports */
    uint32_t mod[4];
    EmuOperand op[EMU_MAX_OPERANDS];
} EmuInstrImage;

/* Instruction flags. */
enum {
    EMU_F_ALIGNED = 1,    /* .aligned: every live lane of the warp must be here together */
    EMU_F_COLLECTIVE = 2, /* last operand is a member mask: lanes named there must rendezvous (shfl, vote, elect, ...) */
    EMU_F_UNIFORM = 4,    /* bra.uni: all active lanes agree */
    EMU_F_TRACE = 8,      /* set by a launch with the trace option: note that it was executed */
    EMU_F_ENTRY = 16,     /* set by a launch with the path option: first of a basic block */
    EMU_F_EVENT = 32      /* likewise: its operands are part of the path */
};

/* Counter classes. */
enum {
    EMU_C_EX2 = 0,
    EMU_C_MUFU = 1,
    EMU_C_F32 = 2,
    EMU_C_F32X2 = 3,
    EMU_C_HALF = 4,
    EMU_C_INT = 5,
    EMU_C_SELECT = 6,
    EMU_C_CVT = 7,
    EMU_C_MOVE = 8,
    EMU_C_SHARED = 9,
    EMU_C_GLOBAL = 10,
    EMU_C_LOCAL = 11,
    EMU_C_PARAM = 12,
    EMU_C_TMEM = 13,
    EMU_C_MMA_F16 = 14,
    EMU_C_MMA_TF32 = 15,
    EMU_C_MMA_F8 = 16,
    EMU_C_MMA_I8 = 17,
    EMU_C_TMA = 18,
    EMU_C_CPASYNC = 19,
    EMU_C_MBARRIER = 20,
    EMU_C_BARRIER = 21,
    EMU_C_FENCE = 22,
    EMU_C_WARP = 23,
    EMU_C_BRANCH = 24,
    EMU_C_OTHER = 25,
    EMU_N_CLASSES = 26
};

/* Value types. */
enum {
    EMU_T_B8 = 0,
    EMU_T_U8 = 1,
    EMU_T_S8 = 2,
    EMU_T_B16 = 3,
    EMU_T_U16 = 4,
    EMU_T_S16 = 5,
    EMU_T_B32 = 6,
    EMU_T_U32 = 7,
    EMU_T_S32 = 8,
    EMU_T_B64 = 9,
    EMU_T_U64 = 10,
    EMU_T_S64 = 11,
    EMU_T_B128 = 12,
    EMU_T_F16 = 13,
    EMU_T_BF16 = 14,
    EMU_T_F32 = 15,
    EMU_T_F64 = 16,
    EMU_T_TF32 = 17,
    EMU_T_E4M3 = 18,
    EMU_T_E5M2 = 19,
    EMU_T_F16X2 = 20,
    EMU_T_BF16X2 = 21,
    EMU_T_F32X2 = 22,
    EMU_T_E4M3X2 = 23,
    EMU_T_E5M2X2 = 24,
    EMU_T_PRED = 25
};

/* Rounding (mod[0] of float arithmetic, mod[2] of cvt). */
enum {
    EMU_RN = 0,
    EMU_RZ = 1,
    EMU_RM = 2,
    EMU_RP = 3,
    EMU_RNA = 4,
    EMU_RNI = 5,
    EMU_RZI = 6,
    EMU_RMI = 7,
    EMU_RPI = 8,
    EMU_RNONE = 9 /* cvt without a rounding modifier */
};

/* Float flags (mod[1] of float arithmetic, mod[3] of cvt, mod[2] of setp). */
enum {
    EMU_FF_FTZ = 1,
    EMU_FF_SAT = 2,
    EMU_FF_NAN = 4,
    EMU_FF_RELU = 8,
    EMU_FF_XORSIGN = 16,
    EMU_FF_APPROX = 32,
    EMU_FF_SATFINITE = 64,
    EMU_FF_ABS = 128
};

/* Comparisons (mod[0] of setp) and boolean combination (mod[1] of setp). */
enum {
    EMU_CMP_EQ = 0,
    EMU_CMP_NE = 1,
    EMU_CMP_LT = 2,
    EMU_CMP_LE = 3,
    EMU_CMP_GT = 4,
    EMU_CMP_GE = 5,
    EMU_CMP_EQU = 6,
    EMU_CMP_NEU = 7,
    EMU_CMP_LTU = 8,
    EMU_CMP_LEU = 9,
    EMU_CMP_GTU = 10,
    EMU_CMP_GEU = 11,
    EMU_CMP_NUM = 12,
    EMU_CMP_NAN = 13
};
enum { EMU_BOOL_NONE = 0, EMU_BOOL_AND = 1, EMU_BOOL_OR = 2, EMU_BOOL_XOR = 3 };

/* State spaces (mod[0] of ld, st, atom, red, cvta). */
enum {
    EMU_S_GENERIC = 0,
    EMU_S_GLOBAL = 1,
    EMU_S_SHARED = 2,         /* .shared or .shared::cta */
    EMU_S_SHARED_CLUSTER = 3, /* .shared::cluster */
    EMU_S_LOCAL = 4,
    EMU_S_PARAM = 5,
    EMU_S_CONST = 6
};

/* Memory semantics (mod[3] of ld, st; bits 8..15 of mod[3] of atom, red). */
enum { EMU_SEM_WEAK = 0, EMU_SEM_RELAXED = 1, EMU_SEM_ACQUIRE = 2, EMU_SEM_RELEASE = 3, EMU_SEM_ACQ_REL = 4 };

/* Atomic and reduction operations (low byte of mod[3] of atom, red; mod[2] of TMA and bulk reductions). */
enum {
    EMU_A_ADD = 0,
    EMU_A_MIN = 1,
    EMU_A_MAX = 2,
    EMU_A_AND = 3,
    EMU_A_OR = 4,
    EMU_A_XOR = 5,
    EMU_A_INC = 6,
    EMU_A_DEC = 7,
    EMU_A_EXCH = 8,
    EMU_A_CAS = 9
};

/* Special registers (mod[0] of mov_sreg; a 64-bit register when mod[1] is EMU_T_U64). */
enum {
    EMU_SR_TID_X = 0,
    EMU_SR_TID_Y = 1,
    EMU_SR_TID_Z = 2,
    EMU_SR_NTID_X = 3,
    EMU_SR_NTID_Y = 4,
    EMU_SR_NTID_Z = 5,
    EMU_SR_CTAID_X = 6,
    EMU_SR_CTAID_Y = 7,
    EMU_SR_CTAID_Z = 8,
    EMU_SR_NCTAID_X = 9,
    EMU_SR_NCTAID_Y = 10,
    EMU_SR_NCTAID_Z = 11,
    EMU_SR_LANEID = 12,
    EMU_SR_WARPID = 13,
    EMU_SR_NWARPID = 14,
    EMU_SR_SMID = 15,
    EMU_SR_NSMID = 16,
    EMU_SR_CLUSTERID_X = 17,
    EMU_SR_CLUSTERID_Y = 18,
    EMU_SR_CLUSTERID_Z = 19,
    EMU_SR_NCLUSTERID_X = 20,
    EMU_SR_NCLUSTERID_Y = 21,
    EMU_SR_NCLUSTERID_Z = 22,
    EMU_SR_CLUSTER_CTAID_X = 23,
    EMU_SR_CLUSTER_CTAID_Y = 24,
    EMU_SR_CLUSTER_CTAID_Z = 25,
    EMU_SR_CLUSTER_NCTAID_X = 26,
    EMU_SR_CLUSTER_NCTAID_Y = 27,
    EMU_SR_CLUSTER_NCTAID_Z = 28,
    EMU_SR_CLUSTER_CTARANK = 29,
    EMU_SR_CLUSTER_NCTARANK = 30,
    EMU_SR_CLOCK = 31,
    EMU_SR_CLOCK64 = 32,
    EMU_SR_GLOBALTIMER = 33,
    EMU_SR_LANEMASK_EQ = 34,
    EMU_SR_LANEMASK_LT = 35,
    EMU_SR_LANEMASK_LE = 36,
    EMU_SR_LANEMASK_GT = 37,
    EMU_SR_LANEMASK_GE = 38,
    EMU_SR_DYNAMIC_SMEM_SIZE = 39,
    EMU_SR_TOTAL_SMEM_SIZE = 40
};

/* Barrier kinds of the fence handler (mod[0]). */
enum {
    EMU_FENCE_MEMBAR = 0,      /* fence.{sc,acq_rel,acquire,release}.*, membar: ordering of generic accesses */
    EMU_FENCE_PROXY_ASYNC = 1, /* fence.proxy.async, .shared::cta, .shared::cluster; .global sets mod[1] = 1 */
    EMU_FENCE_MBARRIER_INIT = 2,
    EMU_FENCE_PROXY_ALIAS = 3,
    EMU_FENCE_PROXY_TENSORMAP = 4
};

/* Shuffle and vote modes (mod[0]). */
enum { EMU_SHFL_IDX = 0, EMU_SHFL_BFLY = 1, EMU_SHFL_UP = 2, EMU_SHFL_DOWN = 3 };
enum { EMU_VOTE_ALL = 0, EMU_VOTE_ANY = 1, EMU_VOTE_UNI = 2, EMU_VOTE_BALLOT = 3 };

/* tcgen05 / wgmma kinds (mod[0] of tcgen05_mma). */
enum { EMU_K_F16 = 0, EMU_K_TF32 = 1, EMU_K_F8F6F4 = 2, EMU_K_I8 = 3 };

/* tcgen05 ld/st shapes (mod[0] of tcgen05_ld, tcgen05_st). */
enum { EMU_TS_32X32B = 0, EMU_TS_16X64B = 1, EMU_TS_16X128B = 2, EMU_TS_16X256B = 3, EMU_TS_16X32BX2 = 4 };

/* tcgen05.cp shapes (mod[1] of tcgen05_cp). */
enum {
    EMU_CP_128X256B = 0,
    EMU_CP_128X128B = 1,
    EMU_CP_64X128B_02_13 = 2,
    EMU_CP_64X128B_01_23 = 3,
    EMU_CP_32X128B_X4 = 4,
    EMU_CP_4X256B = 5
};

/* Bits of mod[1] of cp.async.bulk handlers: which optional operands and modifiers are there. */
enum {
    EMU_BULK_MULTICAST = 1,    /* a 16-bit CTA mask operand follows the mbarrier */
    EMU_BULK_CACHE_HINT = 2,   /* last operand is a 64-bit policy */
    EMU_BULK_CTA_GROUP2 = 4,   /* .cta_group::2 */
    EMU_BULK_DST_CLUSTER = 8,  /* destination .shared::cluster */
    EMU_BULK_READ = 16         /* cp.async.bulk.wait_group.read */
};

/* Kinds of findings. */
enum {
    EMU_FIND_OOB = 1,            /* access outside every known allocation, or outside a window */
    EMU_FIND_MISALIGNED = 2,
    EMU_FIND_UNINIT_SHARED = 3,
    EMU_FIND_UNINIT_TMEM = 4,
    EMU_FIND_UNINIT_REGISTER = 5,
    EMU_FIND_DEADLOCK = 6,
    EMU_FIND_MBAR_OVER_ARRIVAL = 7,
    EMU_FIND_MBAR_PHASE = 8,     /* phase overrun, wait for a phase that is two behind */
    EMU_FIND_MBAR_TX = 9,        /* transaction bytes do not balance */
    EMU_FIND_MBAR_INVALID = 10,  /* not initialised, or overwritten by data */
    EMU_FIND_BARRIER_COUNT = 11,
    EMU_FIND_PROXY_FENCE = 12,
    EMU_FIND_TCGEN05_ORDER = 13, /* missing wait or fence of tcgen05 */
    EMU_FIND_WGMMA_ORDER = 14,
    EMU_FIND_RACE_SHARED = 15,
    EMU_FIND_RACE_TMEM = 16,
    EMU_FIND_TMEM_ALLOC = 17,    /* not deallocated, use of unallocated columns, bad size, alloc after relinquish */
    EMU_FIND_DESCRIPTOR = 18,
    EMU_FIND_REGISTER_BUDGET = 19,
    EMU_FIND_UNELECTED = 20,
    EMU_FIND_DIVERGENCE = 21,    /* an .aligned instruction with part of the warp, lanes that disagree on a uniform operand */
    EMU_FIND_BUDGET = 22,        /* instruction budget used up */
    EMU_FIND_TENSORMAP = 23,
    EMU_FIND_UNSUPPORTED = 24,   /* an operand value the emulator does not model */
    EMU_FIND_TRAP = 25,          /* trap, assertion of the kernel */
    EMU_FIND_ASYNC_LEFT = 26,    /* a CTA ended with asynchronous work nobody waited for */
    EMU_FIND_CLC = 27,
    EMU_FIND_GRID_ORDER = 28     /* memory of the launch before, without griddepcontrol.wait */
};

/* Counters by engine: bytes moved, floating-point operations of MMAs. */
enum {
    EMU_E_TMA_LOAD = 0,
    EMU_E_TMA_STORE = 1,
    EMU_E_TMA_REDUCE = 2,
    EMU_E_BULK = 3,
    EMU_E_CPASYNC = 4,
    EMU_E_MMA_FLOP = 5,
    EMU_E_SHARED_BYTES = 6,
    EMU_E_GLOBAL_BYTES = 7,
    EMU_E_TMEM_BYTES = 8,
    EMU_N_ENGINES = 9
};
#endif

/* Happens-before: agents, vector clocks, and the shadow of shared memory and TMEM.
 *
 * Method: FastTrack (Flanagan and Freund, PLDI 2009) with asynchronous queues and mbarriers as agents of their own. A
 * read word holds one epoch, or the number of an interned set of epochs when reads are concurrent. Ranges are handled by
 * runs of equal shadow words, so a tile that one TMA wrote costs one check. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define SET_BIT 0x80000000u
#define AGENT_ATOMIC 10

uint32_t emu_agent_new(EmuCluster *c, int kind, uint32_t rank, uint32_t warp, uint32_t off)
{
    EmuClusterCore *cc = c->core;
    if (cc->n_agents >= cc->cap_agents) return 0;
    EmuAgentInfo *a = &cc->agents[cc->n_agents];
    memset(a, 0, sizeof(*a));
    a->kind = (uint8_t)kind;
    a->rank = rank;
    a->warp = warp;
    a->off = off;
    return cc->n_agents++;
}

static const char *const queue_names[EMU_N_QUEUES] = {"tcgen05.mma/cp", "tcgen05.st", "tcgen05.ld", "cp.async",
                                                      "bulk store", "wgmma", "TMA"};

void emu_agent_name(EmuCluster *c, uint32_t epoch, char *out, size_t size)
{
    uint32_t id = EMU_EPOCH_AGENT(epoch);
    if (id >= c->core->n_agents) {
        snprintf(out, size, "an mbarrier operation");
        return;
    }
    const EmuAgentInfo *a = &c->core->agents[id];
    uint32_t line = a->lines[EMU_EPOCH_CLOCK(epoch) % 16];
    if (a->kind == 0 || a->kind == AGENT_ATOMIC)
        snprintf(out, size, "warp %u of CTA rank %u", a->warp, a->rank);
    else if (a->kind == 8)
        snprintf(out, size, "asynchronous work that signals the mbarrier at 0x%x of CTA rank %u (phase %u, line %u)",
                 a->off, a->rank, EMU_EPOCH_CLOCK(epoch) - 1, line);
    else
        snprintf(out, size, "%s of warp %u of CTA rank %u (line %u)", queue_names[a->kind - 1], a->warp, a->rank, line);
}

void emu_vc_join(EmuCluster *c, uint32_t *dst, const uint32_t *src)
{
    uint32_t n = c->core->n_agents;
    for (uint32_t i = 0; i < n; i++) dst[i] = dst[i] > src[i] ? dst[i] : src[i];
}

void emu_release(EmuWarp *w, uint32_t *vc, uint32_t *avc)
{
    if (!w->launch->checks) return;
    emu_vc_join(w->cluster, vc, w->vc);
    emu_vc_join(w->cluster, avc, w->avc);
    w->vc[w->agent]++;
}

void emu_release_fenced(EmuWarp *w, uint32_t *vc, uint32_t *avc)
{
    if (!w->launch->checks) return;
    emu_vc_join(w->cluster, vc, w->core->fence_vc);
    emu_vc_join(w->cluster, avc, w->core->fence_avc);
}

void emu_acquire(EmuWarp *w, const uint32_t *vc, const uint32_t *avc)
{
    if (!w->launch->checks) return;
    emu_vc_join(w->cluster, w->vc, vc);
    emu_vc_join(w->cluster, w->avc, avc);
}

EmuActor emu_actor_warp(EmuWarp *w, const EmuInstr *in)
{
    return (EmuActor){.w = w, .in = in, .epoch = EMU_EPOCH(w->agent, w->vc[w->agent]), .vc = w->vc, .in_order = 1};
}

EmuActor emu_actor_atomic(EmuWarp *w, const EmuInstr *in)
{
    if (!w->core->atomic_agent) {
        w->core->atomic_agent = emu_agent_new(w->cluster, AGENT_ATOMIC, w->cta->rank, w->index, 0);
        if (!w->core->atomic_agent) emu_find(w, in, EMU_FIND_UNSUPPORTED, "more than %d agents in one cluster", EMU_MAX_AGENTS);
    }
    uint32_t agent = w->core->atomic_agent, clock = w->vc[w->agent];
    w->vc[agent] = clock;
    return (EmuActor){.w = w, .in = in, .epoch = EMU_EPOCH(agent, clock), .vc = w->vc, .in_order = 1, .atomic = 1};
}

EmuActor emu_actor_queue(EmuWarp *w, const EmuInstr *in, int q)
{
    uint32_t clock = ++w->queue_clock[q];
    if (!w->queue_agent[q]) {
        w->queue_agent[q] = emu_agent_new(w->cluster, 1 + q, w->cta->rank, w->index, 0);
        if (!w->queue_agent[q]) emu_find(w, in, EMU_FIND_UNSUPPORTED, "more than %d agents in one cluster", EMU_MAX_AGENTS);
    }
    if (clock >= 0xFFFFF) emu_find(w, in, EMU_FIND_UNSUPPORTED, "more than 2^20 asynchronous instructions in one warp");
    w->cluster->core->agents[w->queue_agent[q]].lines[clock % 16] = in->line;
    return (EmuActor){.w = w,
                      .in = in,
                      .epoch = EMU_EPOCH(w->queue_agent[q], clock),
                      .vc = w->vc,
                      .async_proxy = q == EMU_Q_MMA || q == EMU_Q_BULK || q == EMU_Q_WGMMA,
                      .in_order = q != EMU_Q_BULK};
}

EmuActor emu_actor_mbar(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off)
{
    EmuMbar *m = emu_mbar_at(cta, off);
    EmuActor a = {.w = w, .in = in, .vc = w->vc, .async_proxy = 1};
    if (!m) {
        emu_find(w, in, EMU_FIND_MBAR_INVALID, "the mbarrier at shared address 0x%x was not initialised", off);
        a.epoch = EMU_EPOCH(w->agent, w->vc[w->agent]);
        return a;
    }
    w->cluster->core->agents[m->agent].lines[(m->clock + 1) % 16] = in->line;
    a.epoch = EMU_EPOCH(m->agent, m->clock + 1);
    return a;
}

int emu_ordered(const EmuActor *a, uint32_t epoch)
{
    uint32_t agent = EMU_EPOCH_AGENT(epoch), clock = EMU_EPOCH_CLOCK(epoch);
    if (agent == EMU_EPOCH_AGENT(a->epoch) && a->in_order) return 1;
    if (EMU_UNLIKELY(a->atomic) && a->w->cluster->core->agents[agent].kind == AGENT_ATOMIC) return 1;
    return a->vc[agent] >= clock;
}

/* ---- read sets --------------------------------------------------------------------------------------------------- */

static void sets_collect(EmuCluster *c)
{
    EmuClusterCore *cc = c->core;
    uint32_t *to = malloc((size_t)cc->cap_sets * 4), n = 1;
    uint32_t *moved = calloc(cc->n_sets + 1, 4);
    for (uint32_t k = 0; k < c->n_ctas; k++) {
        EmuCta *cta = &c->ctas[k];
        uint32_t *areas[3] = {cta->smem_rd, cta->tmem_rd, cta->core->byte_rd};
        size_t sizes[3] = {cta->smem_size / 4, cta->tmem_rd ? 512 * 8 : 0, cta->core->n_split_words * 4};
        for (int i = 0; i < 3; i++)
            for (size_t j = 0; j < sizes[i]; j++) {
                uint32_t v = areas[i][j];
                if (!(v & SET_BIT)) continue;
                v &= ~SET_BIT;
                if (!moved[v]) {
                    uint32_t len = cc->sets[v] + 1;
                    memcpy(to + n, cc->sets + v, len * 4);
                    moved[v] = n;
                    n += len;
                }
                areas[i][j] = SET_BIT | moved[v];
            }
    }
    free(moved);
    free(cc->sets);
    cc->sets = to;
    cc->n_sets = n;
    if (n > cc->cap_sets / 2) {
        cc->cap_sets *= 2;
        cc->sets = realloc(cc->sets, (size_t)cc->cap_sets * 4);
    }
}

/* The read word `old` with this actor's read added; reads ordered before it are dropped. */
static uint32_t set_add(const EmuActor *a, uint32_t old)
{
    EmuClusterCore *cc = a->w->cluster->core;
    if (old == 0 || old == a->epoch) return a->epoch;
    uint32_t agent = EMU_EPOCH_AGENT(a->epoch);
    if (!(old & SET_BIT)) {
        if (EMU_EPOCH_AGENT(old) == agent || a->vc[EMU_EPOCH_AGENT(old)] >= EMU_EPOCH_CLOCK(old)) return a->epoch;
    }
    if (old == cc->last_set_in && a->epoch == cc->last_set_epoch) return cc->last_set_out;
    uint32_t one[2] = {1, old};
    const uint32_t *s = old & SET_BIT ? cc->sets + (old & ~SET_BIT) : one;
    if (cc->n_sets + s[0] + 2 > cc->cap_sets) return 0; /* caller collects and tries again */
    uint32_t at = cc->n_sets, n = 0;
    uint32_t *d = cc->sets + at;
    for (uint32_t i = 1; i <= s[0]; i++) {
        uint32_t g = EMU_EPOCH_AGENT(s[i]);
        if (s[i] == a->epoch) {
            cc->last_set_in = old;
            cc->last_set_epoch = a->epoch;
            return cc->last_set_out = old;
        }
        if (g == agent || a->vc[g] >= EMU_EPOCH_CLOCK(s[i])) continue;
        d[1 + n++] = s[i];
    }
    uint32_t out = a->epoch;
    if (n) {
        d[1 + n++] = a->epoch;
        d[0] = n;
        cc->n_sets += n + 1;
        out = SET_BIT | at;
    }
    cc->last_set_in = old;
    cc->last_set_epoch = a->epoch;
    return cc->last_set_out = out;
}

static uint32_t reads_with(const EmuActor *a, const uint32_t *word)
{
    uint32_t r = set_add(a, *word);
    if (r) return r;
    EmuClusterCore *cc = a->w->cluster->core;
    cc->last_set_in = 0;
    sets_collect(a->w->cluster);
    return set_add(a, *word);
}

/* ---- access checks ----------------------------------------------------------------------------------------------- */

typedef struct Place {
    int tmem;
    EmuCta *cta;
    uint32_t at; /* shadow word: window offset / 4, or column * 8 + 16-lane group */
    int bytes;   /* `at` is the window offset of a byte of a split word */
} Place;

static uint32_t address_of(const Place *p) { return p->bytes ? p->at : p->at * 4; }

static void place_text(const Place *p, char *out, size_t size)
{
    if (p->tmem)
        snprintf(out, size, "TMEM column %u lanes %u..%u of CTA rank %u", p->at / 8, p->at % 8 * 16,
                 p->at % 8 * 16 + 15, p->cta->rank);
    else
        snprintf(out, size, "shared memory 0x%x of CTA rank %u", address_of(p), p->cta->rank);
}

/* Which rule an unordered pair breaks: an engine's own wait, if the warp that issued the other access has not waited for
 * it itself; else it is a plain race between warps. */
static int race_kind(EmuCluster *c, uint32_t epoch, int tmem)
{
    uint32_t id = EMU_EPOCH_AGENT(epoch);
    int plain = tmem ? EMU_FIND_RACE_TMEM : EMU_FIND_RACE_SHARED;
    if (id >= c->core->n_agents) return plain;
    const EmuAgentInfo *a = &c->core->agents[id];
    int queue = a->kind - 1;
    if (queue != EMU_Q_WGMMA && queue != EMU_Q_MMA && queue != EMU_Q_TST && queue != EMU_Q_TLD) return plain;
    if (c->ctas[a->rank].warps[a->warp].vc[id] >= EMU_EPOCH_CLOCK(epoch)) return plain;
    if (queue == EMU_Q_WGMMA) return EMU_FIND_WGMMA_ORDER;
    return tmem ? EMU_FIND_TCGEN05_ORDER : plain;
}

/* In a strict launch: the fence that an unordered pair of TMEM accesses lacks, if there is all else. */
static const char *missing_fence(const EmuActor *a, uint32_t other)
{
    const EmuCluster *c = a->w->cluster;
    uint32_t id = EMU_EPOCH_AGENT(other), clock = EMU_EPOCH_CLOCK(other);
    if (a->w->vc[id] >= clock || a->w->relaxed_vc[id] >= clock)
        return "; its warp has synchronised with that, but executed no tcgen05.fence::after_thread_sync since";
    const EmuAgentInfo *agent = &c->core->agents[id];
    const EmuWarp *x = &c->ctas[agent->rank].warps[agent->warp];
    int waited = agent->kind - 1 == EMU_Q_TST || agent->kind - 1 == EMU_Q_TLD;
    if (waited && x->tvc[id] >= clock && x->vc[id] < clock)
        return "; that warp has waited for it, but executed no tcgen05.fence::before_thread_sync since";
    return NULL;
}

static int report_race(const EmuActor *a, const Place *p, uint32_t other, const char *mine, const char *theirs)
{
    char who[160], me[160], where[96];
    const char *fence = p->tmem && a->w->launch->strict ? missing_fence(a, other) : NULL;
    emu_agent_name(a->w->cluster, other, who, sizeof(who));
    emu_agent_name(a->w->cluster, a->epoch, me, sizeof(me));
    place_text(p, where, sizeof(where));
    return emu_find(a->w, a->in, fence ? EMU_FIND_TCGEN05_ORDER : race_kind(a->w->cluster, other, p->tmem),
                    "%s of %s by %s is not ordered after the %s by %s%s", mine, where, me, theirs, who, fence ? fence : "");
}

static int check_write_seen(const EmuActor *a, const Place *p, uint32_t wr, const char *mine)
{
    if (EMU_UNLIKELY(wr == EMU_EPOCH_MBAR))
        return emu_find(a->w, a->in, EMU_FIND_MBAR_INVALID, "%s of shared memory 0x%x, which holds a live mbarrier", mine, address_of(p));
    if (EMU_UNLIKELY(!emu_ordered(a, wr))) return report_race(a, p, wr, mine, "write");
    if (a->async_proxy && !p->tmem) {
        uint32_t agent = EMU_EPOCH_AGENT(wr);
        int kind = a->w->cluster->core->agents[agent].kind;
        if (EMU_UNLIKELY((kind == 0 || kind == AGENT_ATOMIC || kind == 1 + EMU_Q_CPASYNC) && a->w->avc[agent] < EMU_EPOCH_CLOCK(wr))) {
            char who[160];
            emu_agent_name(a->w->cluster, wr, who, sizeof(who));
            return emu_find(a->w, a->in, EMU_FIND_PROXY_FENCE,
                            "%s through the async proxy of shared memory 0x%x of CTA rank %u, written through the generic "
                            "proxy by %s with no fence.proxy.async in between",
                            mine, address_of(p), p->cta->rank, who);
        }
    }
    return EMU_NEXT;
}

static int check_reads_seen(const EmuActor *a, const Place *p, uint32_t rd)
{
    if (!rd) return EMU_NEXT;
    if (!(rd & SET_BIT)) return EMU_LIKELY(emu_ordered(a, rd)) ? EMU_NEXT : report_race(a, p, rd, "write", "read");
    const uint32_t *s = a->w->cluster->core->sets + (rd & ~SET_BIT);
    for (uint32_t i = 1; i <= s[0]; i++)
        if (EMU_UNLIKELY(!emu_ordered(a, s[i])) && report_race(a, p, s[i], "write", "read")) return EMU_STOP;
    return EMU_NEXT;
}

static int split_word(const EmuActor *a, Place p, uint32_t *wr, uint32_t *rd, uint32_t from, uint32_t n, int write);

static int read_words(const EmuActor *a, Place p, uint32_t *wr, uint32_t *rd, uint32_t n)
{
    uint32_t base = p.at;
    for (uint32_t i = 0; i < n;) {
        uint32_t w0 = wr[i], r0 = rd[i], j = i + 1;
        while (j < n && wr[j] == w0 && rd[j] == r0) j++;
        p.at = base + i;
        if (EMU_UNLIKELY(w0 & SET_BIT)) {
            if (split_word(a, p, wr + i, rd + i, 0, 4, 0)) return EMU_STOP;
            i++;
            continue;
        }
        if (EMU_UNLIKELY(w0 == 0)) {
            char where[96];
            place_text(&p, where, sizeof(where));
            if (emu_find(a->w, a->in, p.tmem ? EMU_FIND_UNINIT_TMEM : EMU_FIND_UNINIT_SHARED,
                         "read of %s, which nobody has written", where))
                return EMU_STOP;
        } else if (check_write_seen(a, &p, w0, "read")) {
            return EMU_STOP;
        }
        uint32_t r = r0 == a->epoch ? r0 : reads_with(a, &rd[i]);
        if (r != r0)
            for (; i < j; i++) rd[i] = r;
        i = j;
    }
    return EMU_NEXT;
}

static int write_words(const EmuActor *a, Place p, uint32_t *wr, uint32_t *rd, uint32_t n)
{
    uint32_t base = p.at;
    for (uint32_t i = 0; i < n;) {
        uint32_t w0 = wr[i], r0 = rd[i], j = i + 1;
        while (j < n && wr[j] == w0 && rd[j] == r0) j++;
        if (EMU_UNLIKELY(w0 & SET_BIT)) {
            p.at = base + i;
            if (split_word(a, p, wr + i, rd + i, 0, 4, 1)) return EMU_STOP;
            i++;
            continue;
        }
        if (w0 != a->epoch || r0) {
            p.at = base + i;
            EmuActor b = *a;
            b.async_proxy = 0; /* write after write across proxies is left to the reads that follow */
            if (w0 && check_write_seen(&b, &p, w0, "write")) return EMU_STOP;
            if (check_reads_seen(a, &p, r0)) return EMU_STOP;
        } else if (!a->in_order) {
            p.at = base + i;
            if (report_race(a, &p, w0, "write", "write")) return EMU_STOP;
        }
        for (; i < j; i++) {
            wr[i] = a->epoch;
            rd[i] = 0;
        }
    }
    return EMU_NEXT;
}

/* Words whose bytes differ: the shadow word holds the number of a quadruple of shadow words, one for each byte. */

static uint32_t word_split(EmuCtaCore *cc, uint32_t wr, uint32_t rd)
{
    uint32_t k = cc->free_split;
    if (k) {
        cc->free_split = cc->byte_wr[4 * k];
    } else {
        if (cc->n_split_words + 1 >= cc->cap_split_words) {
            cc->cap_split_words = cc->cap_split_words ? cc->cap_split_words * 2 : 256;
            cc->byte_wr = realloc(cc->byte_wr, (size_t)cc->cap_split_words * 16);
            cc->byte_rd = realloc(cc->byte_rd, (size_t)cc->cap_split_words * 16);
        }
        if (!cc->n_split_words) { /* number 0 ends the list of free ones */
            memset(cc->byte_rd, 0, 16);
            cc->n_split_words = 1;
        }
        k = cc->n_split_words++;
    }
    for (uint32_t b = 4 * k; b < 4 * k + 4; b++) {
        cc->byte_wr[b] = wr;
        cc->byte_rd[b] = rd;
    }
    return k;
}

/* Bytes `from` to `from + n` of one word. The word is whole again when its bytes agree. */
static int split_word(const EmuActor *a, Place p, uint32_t *wr, uint32_t *rd, uint32_t from, uint32_t n, int write)
{
    EmuCtaCore *cc = p.cta->core;
    if (!(*wr & SET_BIT)) {
        *wr = SET_BIT | word_split(cc, *wr, *rd);
        *rd = 0;
    }
    uint32_t k = *wr & ~SET_BIT, *bw = cc->byte_wr + 4 * k, *br = cc->byte_rd + 4 * k;
    p.at = p.at * 4 + from;
    p.bytes = 1;
    if (write ? write_words(a, p, bw + from, br + from, n) : read_words(a, p, bw + from, br + from, n)) return EMU_STOP;
    for (uint32_t b = 1; b < 4; b++)
        if (bw[b] != bw[0] || br[b] != br[0]) return EMU_NEXT;
    *wr = bw[0];
    *rd = br[0];
    memset(br, 0, 16);
    bw[0] = cc->free_split;
    cc->free_split = k;
    return EMU_NEXT;
}

static int smem_access(const EmuActor *a, EmuCta *cta, uint32_t off, uint32_t size, int write)
{
    if (!a->w->launch->checks) return EMU_NEXT;
    while (size) {
        uint32_t i = off / 4, from = off % 4, n = size;
        Place p = {0, cta, i, 0};
        uint32_t *wr = cta->smem_wr + i, *rd = cta->smem_rd + i;
        int rc;
        if (EMU_LIKELY(!from && size >= 4)) {
            n = size & ~3u;
            rc = write ? write_words(a, p, wr, rd, n / 4) : read_words(a, p, wr, rd, n / 4);
        } else {
            if (n > 4 - from) n = 4 - from;
            rc = split_word(a, p, wr, rd, from, n, write);
        }
        if (rc) return rc;
        off += n;
        size -= n;
    }
    return EMU_NEXT;
}

int emu_smem_read(const EmuActor *a, EmuCta *cta, uint32_t off, uint32_t size)
{
    return smem_access(a, cta, off, size, 0);
}

int emu_smem_write(const EmuActor *a, EmuCta *cta, uint32_t off, uint32_t size)
{
    return smem_access(a, cta, off, size, 1);
}

/* Runs of groups, over all columns at once where every lane takes part. */
static int tmem_access(const EmuActor *a, EmuCta *cta, uint32_t col, uint32_t n, uint32_t groups, int write)
{
    if (!a->w->launch->checks) return EMU_NEXT;
    if (col >= 512) return EMU_NEXT;
    if (col + n > 512) n = 512 - col;
    int whole = (groups & 255) == 255;
    EmuActor own = *a; /* what tensor memory is concerned, its own clock counts */
    own.vc = a->w->tvc;
    a = &own;
    for (uint32_t c = col; c < col + n; c++)
        for (uint32_t g = 0; g < 8;) {
            if (!(groups >> g & 1)) {
                g++;
                continue;
            }
            uint32_t e = g + 1;
            while (e < 8 && groups >> e & 1) e++;
            uint32_t i = c * 8 + g, words = whole ? n * 8 : e - g;
            Place p = {1, cta, i, 0};
            int rc = write ? write_words(a, p, cta->tmem_wr + i, cta->tmem_rd + i, words)
                           : read_words(a, p, cta->tmem_wr + i, cta->tmem_rd + i, words);
            if (rc || whole) return rc;
            g = e;
        }
    return EMU_NEXT;
}

int emu_tmem_read(const EmuActor *a, EmuCta *cta, uint32_t col, uint32_t n, uint32_t groups)
{
    return tmem_access(a, cta, col, n, groups, 0);
}

int emu_tmem_write(const EmuActor *a, EmuCta *cta, uint32_t col, uint32_t n, uint32_t groups)
{
    return tmem_access(a, cta, col, n, groups, 1);
}

void emu_remote_access(EmuCta *cta, const EmuInstr *in, uint32_t epoch)
{
    uint32_t agent = EMU_EPOCH_AGENT(epoch), clock = EMU_EPOCH_CLOCK(epoch);
    if (cta->core->remote[agent] >= clock) return;
    cta->core->remote[agent] = clock;
    cta->core->remote_line[agent] = in ? in->line : 0;
}

void emu_queue_seen(EmuWarp *w, int q, uint32_t clock)
{
    uint32_t agent = w->queue_agent[q], *vc = q == EMU_Q_TLD || q == EMU_Q_TST ? w->tvc : w->vc;
    if (agent && vc[agent] < clock) vc[agent] = clock;
}

void emu_tcgen05_fence(EmuWarp *w, int after)
{
    if (!w->launch->strict) return;
    EmuClusterCore *cc = w->cluster->core;
    if (after) {
        emu_vc_join(w->cluster, w->tvc, w->vc);
        emu_vc_join(w->cluster, w->tvc, w->relaxed_vc);
        return;
    }
    for (int q = EMU_Q_TST; q <= EMU_Q_TLD; q++) {
        uint32_t agent = w->queue_agent[q];
        if (agent && w->vc[agent] < w->tvc[agent]) w->vc[agent] = w->tvc[agent];
    }
    for (uint32_t i = 0; i < cc->n_agents; i++) { /* a relaxed arrival passes on the tcgen05 work before the fence alone */
        int queue = cc->agents[i].kind - 1;
        if (queue != EMU_Q_MMA && queue != EMU_Q_TST && queue != EMU_Q_TLD) continue;
        if (w->core->fence_vc[i] < w->tvc[i]) w->core->fence_vc[i] = w->tvc[i];
    }
}

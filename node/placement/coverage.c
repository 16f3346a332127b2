#include "node/placement/coverage.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

enum { BELIEVED_GAIN = 4 }; /* times the median of the proven nodes' throughputs, for which one of them may count */

static uint64_t add_saturating(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
static uint64_t mul_saturating(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }
static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

sn_status sn_block_coverage_begin(sn_block_coverage *coverage, int n_blocks, sn_err *err) {
    memset(coverage, 0, sizeof *coverage);
    coverage->default_rate = 1;
    coverage->rate_max = UINT64_MAX;
    coverage->n_blocks = n_blocks;
    if (n_blocks < 1 || n_blocks > SN_BLOCK_COVERAGE_MAX)
        return sn_fail(err, SN_REFUSED,
                       "block selection works for models of 1 to %d blocks, and this one has %d: give --blocks A:B",
                       SN_BLOCK_COVERAGE_MAX, n_blocks);
    return SN_OK;
}

uint64_t sn_block_coverage_rate(const sn_block_coverage *coverage, uint64_t tokens_per_s) {
    return min_u64(tokens_per_s ? tokens_per_s : coverage->default_rate, coverage->rate_max);
}

static void add_to_blocks(uint64_t *rates, const sn_announcement *a, uint64_t rate) {
    for (uint64_t b = a->first_block; b < a->end_block; b++) rates[b] = add_saturating(rates[b], rate);
}

void sn_block_coverage_add(sn_block_coverage *coverage, int first, int end, uint64_t tokens_per_s, bool serving) {
    for (int b = first; b < end && b < coverage->n_blocks; b++) {
        coverage->rate[b] = add_saturating(coverage->rate[b], sn_block_coverage_rate(coverage, tokens_per_s));
        coverage->serving[b] += serving;
    }
}

/* -- the directory ------------------------------------------------------------------------------------------------- */

/* Its blocks are then a range within n_blocks: the directory has checked it. */
static bool is_of_model(const sn_coverage_query *q, const sn_announcement *a) {
    return !memcmp(a->model, q->model, SN_KEY_SIZE) && a->n_blocks == (uint64_t)q->n_blocks;
}
static bool is_self(const sn_coverage_query *q, const sn_announcement *a) {
    return q->self && !memcmp(a->node, q->self, SN_KEY_SIZE);
}
static bool is_counted(const sn_coverage_query *q, const sn_announcement *a) {
    if (!is_of_model(q, a) || is_self(q, a)) return false;
    return a->state == SN_NODE_ONLINE || (a->state == SN_NODE_JOINING && sn_node_tag(a->node) < q->joining_below);
}

static bool is_tried(const sn_coverage_query *q, const sn_announcement *a) {
    for (size_t i = 0; i < q->n_tried; i++)
        if (!memcmp(a->node, q->tried[i], SN_KEY_SIZE)) return true;
    return false;
}

static int compare_rates(const void *x, const void *y) {
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

/* From the nodes that have measured their throughput and are known: the proven ones and this one. `known` has a place
 * for each node of the directory. */
static void coverage_set_rates(sn_block_coverage *c, const sn_coverage_query *q, uint64_t *known) {
    uint64_t mean = 0, n = 0;
    for (size_t i = 0; i < sn_directory_count(q->directory); i++) {
        const sn_announcement *a = sn_directory_at(q->directory, i);
        bool is_known = is_self(q, a) || sn_directory_is_proven_at(q->directory, i, q->unix_ms);
        if (is_known && is_of_model(q, a) && a->tokens_per_s) known[n++] = a->tokens_per_s;
    }
    if (!n) return;
    qsort(known, n, sizeof *known, compare_rates);
    c->rate_max = mul_saturating(known[(n - 1) / 2], BELIEVED_GAIN); /* of two in the middle the one that says less */
    for (uint64_t i = 0; i < n; i++) {                               /* in ascending order: no difference is negative */
        uint64_t rate = min_u64(known[i], c->rate_max);
        mean += (rate - mean) / (i + 1);
    }
    c->default_rate = mean;
}

/* What nodes that are not proven say. */
typedef struct strangers {
    uint64_t online[SN_BLOCK_COVERAGE_MAX], joining[SN_BLOCK_COVERAGE_MAX]; /* throughputs */
    uint64_t answered[SN_BLOCK_COVERAGE_MAX], silent[SN_BLOCK_COVERAGE_MAX];
} strangers;

static void strangers_count_tried(strangers *s, const sn_coverage_query *q) {
    for (size_t i = 0; i < q->n_tried; i++) {
        const sn_announcement *a = sn_directory_find(q->directory, q->tried[i]);
        if (!a || !is_counted(q, a)) continue;
        bool answered = sn_directory_is_proven(q->directory, q->tried[i], q->unix_ms);
        add_to_blocks(answered ? s->answered : s->silent, a, 1);
    }
}

static void coverage_add_strangers(sn_block_coverage *c, const strangers *s, uint64_t claims_max) {
    uint64_t most = mul_saturating(claims_max, c->default_rate);
    for (int b = 0; b < c->n_blocks; b++) {
        bool untried = !c->serving[b] && !s->answered[b] && !s->silent[b]; /* as after they were drawn */
        bool real = c->serving[b] && s->silent[b] <= s->answered[b];
        uint64_t claimed = add_saturating(s->joining[b], untried ? s->online[b] : 0);
        uint64_t believed = add_saturating(min_u64(claimed, most), real ? s->online[b] : 0);
        c->rate[b] = add_saturating(c->rate[b], believed);
    }
}

static void coverage_add_nodes(sn_block_coverage *c, strangers *s, const sn_coverage_query *q) {
    for (size_t i = 0; i < sn_directory_count(q->directory); i++) {
        const sn_announcement *a = sn_directory_at(q->directory, i);
        bool online = a->state == SN_NODE_ONLINE;
        if (!is_counted(q, a)) continue;
        if (sn_directory_is_proven_at(q->directory, i, q->unix_ms))
            sn_block_coverage_add(c, (int)a->first_block, (int)a->end_block, a->tokens_per_s, online);
        else if (!is_tried(q, a))
            add_to_blocks(online ? s->online : s->joining, a,
                          min_u64(sn_block_coverage_rate(c, a->tokens_per_s), c->default_rate));
    }
}

sn_status sn_block_coverage_read(sn_block_coverage *coverage, const sn_coverage_query *query, sn_err *err) {
    strangers *s = NULL;
    uint64_t *known = NULL;
    sn_status status = sn_block_coverage_begin(coverage, query->n_blocks, err);
    if (!status) status = sn_calloc(&s, 1, sizeof *s, err);
    if (!status) status = sn_calloc(&known, sn_directory_count(query->directory) + 1, sizeof *known, err);
    if (!status) {
        coverage_set_rates(coverage, query, known);
        coverage_add_nodes(coverage, s, query);
        strangers_count_tried(s, query);
        coverage_add_strangers(coverage, s, query->claims_max);
    }
    free(known);
    free(s);
    return status;
}

/* -- whom to ask --------------------------------------------------------------------------------------------------- */

/* Counts the node for its blocks, if one of them has too few yet. */
static bool draw_counts(const sn_announcement *a, uint8_t *of_block) {
    bool wanted = false;
    for (uint64_t b = a->first_block; b < a->end_block; b++) wanted |= of_block[b] < SN_COVERAGE_TRIED_OF_BLOCK;
    for (uint64_t b = a->first_block; wanted && b < a->end_block; b++) of_block[b]++;
    return wanted;
}

size_t sn_coverage_draw(const sn_coverage_query *q, bool joining, uint64_t *seed,
                        const sn_announcement *drawn[SN_COVERAGE_TRIED_MAX]) {
    uint8_t of_block[SN_BLOCK_COVERAGE_MAX] = {0}; /* at most SN_COVERAGE_TRIED_MAX */
    size_t n = 0, n_drawn = 0, count = sn_directory_count(q->directory), *unknown = NULL;
    if (q->n_blocks > SN_BLOCK_COVERAGE_MAX || sn_calloc(&unknown, count + 1, sizeof *unknown, NULL)) return 0;
    for (size_t i = 0; i < count; i++) {
        const sn_announcement *a = sn_directory_at(q->directory, i);
        bool may = is_counted(q, a) && (joining || a->state == SN_NODE_ONLINE);
        if (may && !sn_directory_is_proven_at(q->directory, i, q->unix_ms)) unknown[n++] = i;
    }
    sn_rng_shuffle(seed, unknown, n);
    for (size_t i = 0; i < n && n_drawn < SN_COVERAGE_TRIED_MAX; i++) {
        const sn_announcement *a = sn_directory_at(q->directory, unknown[i]);
        if (n <= SN_COVERAGE_TRIED_MAX || draw_counts(a, of_block)) drawn[n_drawn++] = a;
    }
    free(unknown);
    return n_drawn;
}

/* Attention over chosen positions on the CPU: an indexer's choice, and the attention to what it has chosen.
 *
 * Rows at positions below n_chosen attend to all positions, as without an indexer. The others are taken some at a time
 * (a slab), as many as scratch memory is prepared for:
 * - choose_keys: the kernel of attention's scores gives the products of the heads with a chunk of the index keys, whose
 *   weighted sum is one fma chain over the heads; then each row's choice is made from its scores.
 * - attention: the rows of the KV cache that a row of the batch has chosen are copied, as they are stored, to a page of
 *   its own, one after the other. Over these pages attention is that of any other batch, with its kernels and its way
 * to split work, and a row that chooses everything has the bits of one that attends to everything. */
#include "device/cpu/cpu_private.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum {
    SLAB_ROWS_MAX = 64,
    CHUNK = 512,  /* index keys of an item, about: whole pages */
    COPIES = 256, /* rows of the cache that an item copies */
};

/* Rows of the batch that choose. */
typedef struct slab {
    sn_cpu *cpu;
    int n, n_chosen;
    const sn_sequence *of[SLAB_ROWS_MAX];
    int row[SLAB_ROWS_MAX], position[SLAB_ROWS_MAX];
    /* how the items are divided */
    size_t chunk, per_row;
    /* of choose_keys */
    const sn_indexer *indexer;
    float *scores; /* (n, cpu->scores_stride) */
    int32_t *chosen;
    /* of attention */
    const sn_attention *attention;
    sn_kv_shape shape;          /* of the copied rows: of one block, with n_chosen positions in a page */
    void *pages[SLAB_ROWS_MAX]; /* of each row */
    const sn_sequence *sequences;
} slab;

static size_t slab_rows(const sn_cpu *cpu) {
    return sn_min_size(SLAB_ROWS_MAX, (size_t)sn_pool_threads(cpu->pool) * 2);
}

/* Scratch memory: the scores or the copied rows of a slab, then the sequences of a batch. */
static size_t sequences_bytes(const sn_device_limits *l) {
    size_t n = (size_t)(l->sequences ? l->sequences : l->rows) + SLAB_ROWS_MAX;
    return sn_round_up(n * sizeof(sn_sequence), 64);
}

bool sn_cpu_chosen_bytes(const sn_cpu *cpu, const sn_device_limits *l, size_t *bytes) {
    const size_t score = sn_round_up((size_t)l->context, SN_LANES) + 2 * SN_LANES, rows = slab_rows(cpu),
                 row = sn_round_up((size_t)l->head_dim, SN_LANES) * sizeof(float), n = (size_t)l->chosen;
    size_t copies;
    *bytes = 0;
    if (!n) return true;
    if (!sn_mul(sn_round_up(n, SN_LANES), row, &copies)) return false;
    copies = copies > score * sizeof(float) ? copies : score * sizeof(float);
    return sn_mul(rows, sn_round_up(copies, 64), bytes) && sn_add(*bytes, sequences_bytes(l), bytes);
}

/* Fills the slab with the next rows that choose, from row *next of sequence *at on; false: there are none. */
static bool slab_fill(slab *s, int *at, int *next) {
    const sn_batch *batch = &s->cpu->batch;
    const int most = (int)slab_rows(s->cpu);
    s->n = 0;
    for (; *at < batch->n_sequences; ++*at, *next = 0) {
        const sn_sequence *q = &batch->sequences[*at];
        if (q->position + *next < s->n_chosen) *next = s->n_chosen - q->position;
        for (; *next < q->n_rows; ++*next) {
            if (s->n == most) return true;
            s->of[s->n] = q;
            s->row[s->n] = q->first_row + *next;
            s->position[s->n++] = q->position + *next;
        }
    }
    return s->n > 0;
}

/* ---- the choice ---- */

/* A number that grows with x. */
static uint32_t order_of(float x) {
    uint32_t bits;
    x += 0; /* -0 counts as 0 */
    if (x != x) return 0;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* The order of the k-th largest of n scores; *equal: how many of those with this order belong to the k largest. */
static uint32_t order_of_kth(const float *scores, int n, int k, int *equal) {
    static const struct {
        int shift, bits;
    } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t prefix = 0, mask = 0;
    int left = k;
    for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
        int counts[1 << 11] = {0};
        uint32_t digit_mask = (1u << digits[i].bits) - 1, digit = digit_mask;
        for (int p = 0; p < n; p++) {
            uint32_t order = order_of(scores[p]);
            counts[order >> digits[i].shift & digit_mask] += (order & mask) == prefix;
        }
        while (counts[digit] < left) left -= counts[digit--];
        prefix |= digit << digits[i].shift;
        mask |= digit_mask << digits[i].shift;
    }
    *equal = left;
    return prefix;
}

static void choose_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const slab *s = ctx;
    const float *scores = s->scores + item * s->cpu->scores_stride;
    int32_t *out = s->chosen + (size_t)s->row[item] * (size_t)s->n_chosen;
    int equal, n = s->position[item] + 1;
    const uint32_t least = order_of_kth(scores, n, s->n_chosen, &equal);
    for (int p = 0; p < n; p++) {
        uint32_t order = order_of(scores[p]);
        if (order > least || (order == least && equal-- > 0)) *out++ = p;
    }
}

/* The scores of a chunk of positions. */
static void score_item(void *ctx, size_t item, int worker) {
    const slab *s = ctx;
    const sn_cpu *cpu = s->cpu;
    const sn_indexer *x = s->indexer;
    const size_t i = item / s->per_row, first = item % s->per_row * s->chunk, heads = (size_t)x->n_heads;
    const int page = cpu->batch.shape->page_tokens, left = s->position[i] + 1 - (int)first;
    if (left <= 0) return;
    const size_t n = sn_min_size((size_t)left, s->chunk);
    sn_attention_job job = {.pages = s->of[i]->pages + first / (size_t)page,
                            .k_offset = sn_cpu_index_offset(cpu->batch.shape, x->block),
                            .dtype = SN_KV_F32,
                            .page_tokens = page,
                            .head_dim = x->dim,
                            .position = (int)n - 1,
                            .n_tokens = 1,
                            .scale = 1,
                            .token_heads = heads,
                            .scores = cpu->scores + (size_t)worker * SN_SCORE_ROWS * cpu->scores_stride,
                            .scores_stride = cpu->scores_stride};
    for (size_t h = 0; h < heads; h += (size_t)job.n_heads) {
        const size_t at = (size_t)s->row[i] * heads + h;
        job.n_heads = (int)sn_min_size(heads - h, SN_SCORE_ROWS);
        job.q = x->q + at * (size_t)x->dim;
        cpu->kernels->scores(&job, 0, (int)n);
        const sn_weigh_job weigh = {.n_heads = job.n_heads,
                                    .scores = job.scores,
                                    .stride = job.scores_stride,
                                    .n = n,
                                    .weights = x->weights + at,
                                    .first = h == 0,
                                    .y = s->scores + i * cpu->scores_stride + first};
        cpu->kernels->weigh(&weigh);
    }
}

static size_t longest(const slab *s) {
    int n = 0;
    for (int i = 0; i < s->n; i++) n = s->position[i] + 1 > n ? s->position[i] + 1 : n;
    return (size_t)n;
}

static sn_status check_chosen(const sn_cpu *cpu, int n_chosen, sn_err *err) {
    if (n_chosen > 0 && n_chosen <= cpu->limits.chosen) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d chosen positions are more than the %d that were prepared, or none", n_chosen,
                   cpu->limits.chosen);
}

sn_status sn_cpu_choose_keys(sn_device *d, const sn_indexer *indexer, int32_t *chosen, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    slab s = {.cpu = cpu, .n_chosen = indexer->n_chosen, .indexer = indexer, .chosen = chosen};
    sn_status status = check_chosen(cpu, indexer->n_chosen, err);
    if (status || !cpu->batch.n_sequences) return status;
    const size_t page = (size_t)cpu->batch.shape->page_tokens;
    assert(indexer->block >= cpu->batch.shape->n_blocks && indexer->dim == cpu->batch.shape->index_dim);
    s.scores = cpu->chosen_scratch;
    s.chunk = page < CHUNK ? CHUNK / page * page : page;
    for (int at = 0, next = 0; slab_fill(&s, &at, &next);) {
        s.per_row = (longest(&s) + s.chunk - 1) / s.chunk;
        sn_pool_run(cpu->pool, (size_t)s.n * s.per_row, score_item, &s);
        sn_pool_run(cpu->pool, (size_t)s.n, choose_item, &s);
    }
    return SN_OK;
}

/* ---- attention ---- */

static void copy_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const slab *s = ctx;
    const sn_kv_shape *from = s->cpu->batch.shape;
    const size_t i = item / s->per_row, first = item % s->per_row * s->chunk;
    const size_t end = sn_min_size(first + s->chunk, (size_t)s->n_chosen);
    const int32_t *chosen = s->attention->chosen + (size_t)s->row[i] * (size_t)s->n_chosen;
    for (size_t j = first; j < end; j++) {
        size_t bytes, at = sn_cpu_latent_row(from, s->attention->block, chosen[j], &bytes);
        memcpy((char *)s->pages[i] + j * bytes, (const char *)s->of[i]->pages[chosen[j] / from->page_tokens] + at,
               bytes);
    }
}

/* The rows that attend to all positions. */
static void attend_to_all(slab *s, sn_sequence *sequences, const float *q, float *out) {
    sn_batch batch = s->cpu->batch;
    sn_attention params = *s->attention;
    batch.n_sequences = 0;
    batch.sequences = sequences;
    params.chosen = NULL;
    for (int i = 0; i < s->cpu->batch.n_sequences; i++) {
        sn_sequence own = s->cpu->batch.sequences[i];
        if (own.position + own.n_rows > s->n_chosen) own.n_rows = s->n_chosen - own.position;
        if (own.n_rows > 0) sequences[batch.n_sequences++] = own;
    }
    sn_cpu_attend(s->cpu, &batch, &params, q, out);
}

sn_status sn_cpu_attend_chosen(sn_cpu *cpu, const sn_attention *params, const float *q, float *out, sn_err *err) {
    const sn_kv_shape *shape = cpu->batch.shape;
    slab s = {.cpu = cpu, .n_chosen = params->n_chosen, .attention = params, .shape = *shape};
    sn_status status = check_chosen(cpu, params->n_chosen, err);
    if (status || !cpu->batch.n_sequences) return status;
    if (!shape->latent || shape->n_kv_heads != 1 || params->window || params->slopes)
        return sn_fail(err, SN_REFUSED, "positions are chosen in latent attention only, without a window or slopes");
    s.shape.n_blocks = 1;
    s.shape.index_blocks = 0;
    s.shape.page_tokens = (int)sn_round_up((size_t)params->n_chosen, SN_LANES);
    const size_t bytes = sn_cpu_kv_page_bytes(&cpu->base, &s.shape);
    sn_sequence *sequences = (sn_sequence *)(void *)((char *)cpu->chosen_scratch + cpu->chosen_scratch_bytes -
                                                     sequences_bytes(&cpu->limits));
    attend_to_all(&s, sequences, q, out);
    sn_attention own = *params;
    own.block = 0;
    own.chosen = NULL;
    s.chunk = COPIES;
    s.per_row = ((size_t)s.n_chosen + COPIES - 1) / COPIES;
    for (int at = 0, next = 0; slab_fill(&s, &at, &next);) {
        for (int i = 0; i < s.n; i++) {
            s.pages[i] = (char *)cpu->chosen_scratch + (size_t)i * bytes;
            sequences[i] = (sn_sequence){&s.pages[i], s.n_chosen - 1, s.row[i], 1, {0}};
        }
        sn_pool_run(cpu->pool, (size_t)s.n * s.per_row, copy_item, &s);
        const sn_batch batch = {&s.shape, s.n, s.n, sequences, 0};
        sn_cpu_attend(cpu, &batch, &own, q, out);
    }
    return SN_OK;
}

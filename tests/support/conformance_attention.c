/* KV pages, attention and batches.
 *
 * How it works: an attention_case holds sessions with a KV cache and the rows that come next. attention_case_begin
 * writes the KV caches into pages of the device; attend_naively computes each head of each row in double precision
 * by the formula, with a bound of float32's error, and the device's output must lie within the bound.
 *
 * Tolerance: a score is a product of head_dim terms, so that its error is at most (head_dim + 4) * 2^-24 * scale *
 * sum |q k|. This error changes exp(score) by that share, in the numerator and in the denominator; the weighted mean
 * of the values adds the error of its own sums over the positions. */
#include "tests/support/conformance.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES_MAX = 3, PAGES = 16, POSITIONS = 4352, BLOCKS = 2, BLOCK = 1 };

/* Sessions with a KV cache, and the rows that come next. */
typedef struct attention_case {
    sn_kv_shape shape;
    int group, window; /* query heads of a key-value head */
    float softcap;
    bool alibi;           /* ALiBi, with the slopes below */
    bool sinks;           /* with the sinks below */
    float q_size, k_size; /* factors of queries and keys; 0: 1 */
    int n_sequences, n_past[SEQUENCES_MAX], rows[SEQUENCES_MAX];
    /* -- set by attention_case_begin */
    int n_rows;
    float *k[SEQUENCES_MAX], *v[SEQUENCES_MAX]; /* (n_past + rows, n_kv_heads, sn_kv_key_dim, or sn_kv_value_dim) */
    float *q;                                   /* (n_rows, n_heads, head_dim) */
    void *pages[SEQUENCES_MAX][PAGES];
    sn_sequence sequences[SEQUENCES_MAX];
    float *device_k, *device_v, *device_q, *device_out, *device_slopes, *device_sinks;
} attention_case;

/* The slope of a head: some steep, one of the other sign, one flat. */
static float slope_of(const attention_case *s, int head) { return s->alibi ? 0.5f - (float)(head % 5) * 0.25f : 0; }

/* The sink of a head: some get hardly any weight, some nearly all. */
static float sink_of(int head) { return (float)(head % 4) * 3.5f - 5; }

static size_t k_width(const attention_case *s) { return (size_t)(s->shape.n_kv_heads * sn_kv_key_dim(&s->shape)); }
static size_t v_width(const attention_case *s) { return (size_t)(s->shape.n_kv_heads * sn_kv_value_dim(&s->shape)); }
static size_t q_width(const attention_case *s) { return (size_t)(s->shape.n_kv_heads * s->group * s->shape.head_dim); }
static size_t out_width(const attention_case *s) { return v_width(s) * (size_t)s->group; }

/* Element e of a value, and of a key: in latent attention the key begins with the value. */
static double value_of(const attention_case *s, int i, int t, int kv_head, int e) {
    int dim = sn_kv_value_dim(&s->shape);
    return (double)s->v[i][(t * s->shape.n_kv_heads + kv_head) * dim + e];
}
static double key_of(const attention_case *s, int i, int t, int kv_head, int e) {
    int dim = sn_kv_key_dim(&s->shape), latent = s->shape.latent;
    if (e < latent) return value_of(s, i, t, kv_head, e);
    return (double)s->k[i][(t * s->shape.n_kv_heads + kv_head) * dim + e - latent];
}

/* Makes a page that holds NaN wherever nothing is stored. */
static void *new_page(conformance *c, const sn_kv_shape *shape) {
    size_t bytes = c->device->ops->kv_page_bytes(c->device, shape);
    uint8_t *page = conformance_bytes(c, bytes), *ones = conformance_heap(c, bytes);
    memset(ones, 0xff, bytes);
    CONFORMANCE_OK(c, c->device->ops->upload(c->device, page, ones, bytes, &c->err));
    return page;
}

static void resize(float *x, size_t n, float factor) {
    for (size_t i = 0; i < n && factor != 0; i++) x[i] *= factor;
}

static void make_sequence(conformance *c, attention_case *s, int i) {
    int end = s->n_past[i] + s->rows[i], page_tokens = s->shape.page_tokens;
    s->k[i] = conformance_random(c, (size_t)end * k_width(s), 10 + (uint64_t)i);
    resize(s->k[i], (size_t)end * k_width(s), s->k_size);
    s->v[i] = conformance_random(c, (size_t)end * v_width(s), 20 + (uint64_t)i);
    CONFORMANCE_CHECK(c, end <= PAGES * page_tokens && end <= POSITIONS, "the case wants more than %d pages", PAGES);
    for (int p = 0; p * page_tokens < end; p++) s->pages[i][p] = new_page(c, &s->shape);
    s->sequences[i] = (sn_sequence){s->pages[i], s->n_past[i], s->n_rows, s->rows[i], {0}};
    s->n_rows += s->rows[i];
}

/* The new rows' keys and values of all sequences, one after the other, on the device. */
static float *new_rows(conformance *c, const attention_case *s, float *const *from, size_t width) {
    float *all = conformance_heap(c, (size_t)s->n_rows * width * sizeof *all);
    for (int i = 0; i < s->n_sequences; i++)
        if (s->rows[i])
            memcpy(all + (size_t)s->sequences[i].first_row * width, from[i] + (size_t)s->n_past[i] * width,
                   (size_t)s->rows[i] * width * sizeof *all);
    return conformance_upload(c, all, (size_t)s->n_rows * width);
}

/* Rounds a session's keys and values as the KV cache stores them. In latent attention a row is rounded whole, the value
 * first; the cases take values of whole groups of 32 there. */
static void round_stored(const attention_case *s, int i) {
    int n = (s->n_past[i] + s->rows[i]) * s->shape.n_kv_heads, keys = sn_kv_key_dim(&s->shape),
        values = sn_kv_value_dim(&s->shape);
    for (int r = 0; r < n; r++) {
        conformance_round_kv(s->shape.dtype, keys, s->k[i] + r * keys);
        conformance_round_kv(s->shape.dtype, values, s->v[i] + r * values);
    }
}

/* Does everything that comes before the batch: the KV caches are in their pages afterwards. */
static void attention_case_begin(conformance *c, attention_case *s) {
    sn_device *d = c->device;
    s->n_rows = 0;
    for (int i = 0; i < s->n_sequences; i++) make_sequence(c, s, i);
    s->q = conformance_random(c, (size_t)s->n_rows * q_width(s), 99);
    resize(s->q, (size_t)s->n_rows * q_width(s), s->q_size);
    for (int i = 0; i < s->n_sequences; i++) /* in two parts, the second at an odd position */
        for (int half = 0; half < 2; half++) {
            int first = half ? s->n_past[i] / 2 : 0, n = half ? s->n_past[i] - first : s->n_past[i] / 2;
            CONFORMANCE_OK(c, d->ops->kv_write(d, &s->shape, BLOCK, s->pages[i], first, n,
                                               s->k[i] + (size_t)first * k_width(s),
                                               s->v[i] + (size_t)first * v_width(s), &c->err));
        }
    s->device_k = new_rows(c, s, s->k, k_width(s));
    s->device_v = new_rows(c, s, s->v, v_width(s));
    s->device_q = conformance_upload(c, s->q, (size_t)s->n_rows * q_width(s));
    float *slopes = conformance_heap(c, 64 * sizeof *slopes), *sinks = conformance_heap(c, 64 * sizeof *sinks);
    for (int h = 0; h < s->group * s->shape.n_kv_heads; h++) slopes[h] = slope_of(s, h), sinks[h] = sink_of(h);
    s->device_slopes = s->alibi ? conformance_upload(c, slopes, 64) : NULL;
    s->device_sinks = s->sinks ? conformance_upload(c, sinks, 64) : NULL;
    s->device_out = conformance_bytes(c, (size_t)s->n_rows * out_width(s) * sizeof(float));
    for (int i = 0; i < s->n_sequences; i++) round_stored(s, i);
}

static float scale_of(const attention_case *s) { return 1 / sqrtf((float)s->shape.head_dim); }

static sn_status issue_ops(conformance *c, const attention_case *s) {
    sn_device *d = c->device;
    sn_status status = d->ops->kv_store(d, BLOCK, s->device_k, s->device_v, &c->err);
    if (status) return status;
    const sn_attention how = {BLOCK,
                              s->group * s->shape.n_kv_heads,
                              s->window,
                              scale_of(s),
                              s->device_slopes,
                              s->device_sinks,
                              s->softcap,
                              NULL,
                              0};
    return d->ops->attention(d, &how, s->device_q, s->device_out, &c->err);
}

static void attention_case_run(conformance *c, const attention_case *s, uint64_t graph) {
    sn_device *d = c->device;
    sn_batch pass = {&s->shape, s->n_rows, s->n_sequences, s->sequences, graph};
    bool recorded = false;
    CONFORMANCE_OK(c, d->ops->batch_begin(d, &pass, &recorded, &c->err));
    CONFORMANCE_CHECK(c, graph || !recorded, "a pass that has no name was recorded");
    if (!recorded) CONFORMANCE_OK(c, issue_ops(c, s));
    CONFORMANCE_OK(c, d->ops->batch_end(d, &c->err));
}

/* Computes one head of one row by the formula; errors[e] bounds the float32 error of out[e]. */
static void attend_naively(conformance *c, const attention_case *s, int i, int position, int head, const float *q,
                           double *out, double *errors) {
    int dim = s->shape.head_dim, kv_head = head / s->group;
    int from = s->window > 0 && position + 1 > s->window ? position + 1 - s->window : 0;
    if (s->window < 0) from = position - position % -s->window;
    double weights[POSITIONS], sum = 0, most = -INFINITY, score_error = 0;
    for (int t = from; t <= position; t++) {
        double score = 0, size = 0;
        for (int e = 0; e < dim; e++) {
            double product = (double)q[e] * key_of(s, i, t, kv_head, e) * (double)scale_of(s);
            score += product;
            size += fabs(product);
        }
        if (s->softcap > 0) score = (double)s->softcap * tanh(score / (double)s->softcap), size += 1;
        double lean = (double)slope_of(s, head) * (t - position);
        weights[t] = score += lean;
        size += fabs(lean);
        most = fmax(most, score);
        score_error = fmax(score_error, size * ((dim + 4) * CONFORMANCE_EPSILON + 2 * c->attention_rounding));
    }
    if (s->sinks) most = fmax(most, (double)sink_of(head)), sum = exp((double)sink_of(head) - most);
    for (int t = from; t <= position; t++) sum += weights[t] = exp(weights[t] - most);
    double share = 2 * score_error + (position - from + 32) * CONFORMANCE_EPSILON + 2 * c->attention_rounding;
    for (int e = 0; e < sn_kv_value_dim(&s->shape); e++) {
        out[e] = errors[e] = 0;
        for (int t = from; t <= position; t++) {
            double part = weights[t] / sum * value_of(s, i, t, kv_head, e);
            out[e] += part;
            errors[e] += fabs(part) * share;
        }
    }
}

static void attention_case_check(conformance *c, const attention_case *s) {
    int dim = sn_kv_value_dim(&s->shape), n_heads = s->group * s->shape.n_kv_heads;
    const float *out = conformance_download(c, s->device_out, (size_t)s->n_rows * out_width(s));
    double want[SN_LATENT_DIM_MAX], errors[SN_LATENT_DIM_MAX];
    for (int i = 0; i < s->n_sequences; i++)
        for (int r = 0; r < s->rows[i]; r++)
            for (int h = 0; h < n_heads; h++) {
                size_t head = (size_t)(s->sequences[i].first_row + r) * (size_t)n_heads + (size_t)h;
                size_t at = head * (size_t)dim;
                attend_naively(c, s, i, s->n_past[i] + r, h, s->q + head * (size_t)s->shape.head_dim, want, errors);
                for (int e = 0; e < dim; e++)
                    CONFORMANCE_CHECK(
                        c, conformance_close((double)out[at + (size_t)e], want[e], errors[e]),
                        "%d heads over %d of %d, window %d, %d sequences: sequence %d, position %d, head %d, "
                        "element %d is %g, not %g +- %g",
                        n_heads, s->shape.n_kv_heads, dim, s->window, s->n_sequences, i, s->n_past[i] + r, h, e,
                        (double)out[at + (size_t)e], want[e], errors[e]);
            }
}

static void try_attention_case(conformance *c, attention_case s) {
    int mark = c->n_buffers;
    attention_case_begin(c, &s);
    attention_case_run(c, &s, 0);
    attention_case_check(c, &s);
    conformance_release(c, mark);
}

/* Query and key-value heads, their size, tokens of a page. */
static const struct {
    int kv_heads, group, head_dim, page_tokens;
} shapes[] = {{1, 1, 24, 16}, {3, 3, 64, 32}, {2, 4, 128, 48}, {5, 1, 64, 16}, {1, 7, 24, 64}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static attention_case attention_case_of(int shape) {
    return (attention_case){.shape = {.n_blocks = BLOCKS,
                                      .n_kv_heads = shapes[shape].kv_heads,
                                      .head_dim = shapes[shape].head_dim,
                                      .page_tokens = shapes[shape].page_tokens},
                            .group = shapes[shape].group};
}

/* Values narrower than keys, and blocks before that have other heads: decoding, a few rows, a prompt. */
void conformance_attention_with_heads_of_every_width(conformance *c) {
    static const int lengths[][2] = {{0, 1}, {200, 1}, {30, 19}, {65, 40}};
    for (int shape = 0; shape < SHAPES; shape++)
        for (int l = 0; l < 4; l++)
            for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
                attention_case s = attention_case_of(shape);
                s.shape.value_dim = s.shape.head_dim / 3 * 2;
                s.shape.dtype = (sn_kv_dtype)t;
                s.shape.other = (sn_kv_heads){s.shape.n_kv_heads + 1, s.shape.head_dim + 8, 12};
                s.shape.is_other[0] = l % 2 ? UINT64_C(1) << (1 - BLOCK) : 0;
                s.sinks = l == 2;
                s.n_sequences = 2;
                s.n_past[0] = lengths[l][0], s.rows[0] = lengths[l][1];
                s.n_past[1] = 3 * l, s.rows[1] = 1;
                try_attention_case(c, s);
            }
}

/* -- the KV cache */

/* Reads positions [first, first + n) of a block back and compares them bit by bit. */
static void check_kv(conformance *c, const attention_case *s, int block, int i, int first, int n, bool stored) {
    const size_t widths[] = {k_width(s), v_width(s)};
    float *const want[] = {s->k[i], s->v[i]};
    float *got[] = {conformance_heap(c, (size_t)n * widths[0] * sizeof(float)),
                    conformance_heap(c, (size_t)n * widths[1] * sizeof(float))};
    CONFORMANCE_OK(
        c, c->device->ops->kv_read(c->device, &s->shape, block, s->pages[i], first, n, got[0], got[1], &c->err));
    for (int part = 0; part < 2; part++)
        for (size_t e = 0; e < (size_t)n * widths[part]; e++) {
            float x = got[part][e];
            CONFORMANCE_CHECK(c, stored ? x == want[part][(size_t)first * widths[part] + e] : isnan(x),
                              "sequence %d, block %d, position %d: an element of the %s is %g%s", i, block,
                              first + (int)(e / widths[part]), part ? "value" : "key", (double)x,
                              stored ? ", not what was stored" : " where nothing was stored");
        }
}

void conformance_kv_loads_back_unchanged(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        int mark = c->n_buffers;
        attention_case s = attention_case_of(shape);
        s.n_sequences = 1;
        s.n_past[0] = 100, s.rows[0] = 20; /* written: the KV cache; the new rows stay untouched */
        attention_case_begin(c, &s);
        static const int parts[][2] = {{0, 100}, {0, 0}, {7, 0}, {0, 1}, {15, 2}, {31, 40}, {99, 1}};
        for (int i = 0; i < 7; i++) check_kv(c, &s, BLOCK, 0, parts[i][0], parts[i][1], true);
        check_kv(c, &s, BLOCK, 0, 100, 12, false);
        check_kv(c, &s, 0, 0, 0, 112, false);
        conformance_release(c, mark);
    }
}

void conformance_kv_store_writes_where_the_batch_says(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        int mark = c->n_buffers;
        attention_case s = attention_case_of(shape);
        s.n_sequences = 3;
        memcpy(s.n_past, (int[]){0, 45, 63}, sizeof s.n_past);
        memcpy(s.rows, (int[]){19, 1, 40}, sizeof s.rows);
        attention_case_begin(c, &s);
        attention_case_run(c, &s, 0);
        for (int i = 0; i < 3; i++) {
            check_kv(c, &s, BLOCK, i, 0, s.n_past[i] + s.rows[i], true);
            check_kv(c, &s, 0, i, 0, s.n_past[i] + s.rows[i], false);
        }
        conformance_release(c, mark);
    }
}

/* -- attention */

void conformance_attention_of_the_first_token(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        attention_case s = attention_case_of(shape);
        s.n_sequences = s.rows[0] = 1;
        try_attention_case(c, s);
    }
}

void conformance_attention_while_decoding(conformance *c) {
    static const int lengths[][SEQUENCES_MAX] = {{1, 15, 16}, {17, 0, 200}, {127, 128, 129}};
    for (int shape = 0; shape < SHAPES; shape++)
        for (int p = 0; p < 3; p++) {
            attention_case s = attention_case_of(shape);
            s.n_sequences = p == 0 ? 1 : 3;
            for (int i = 0; i < 3; i++) s.n_past[i] = lengths[p][i], s.rows[i] = 1;
            try_attention_case(c, s);
        }
}

void conformance_attention_of_several_prompts(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        attention_case s = attention_case_of(shape);
        s.n_sequences = 3;
        memcpy(s.n_past, (int[]){0, 45, 127}, sizeof s.n_past);
        memcpy(s.rows, (int[]){19, 1, 40}, sizeof s.rows);
        try_attention_case(c, s);
        s.n_sequences = 2;
        memcpy(s.rows, (int[]){3, 2, 0}, sizeof s.rows);
        try_attention_case(c, s);
    }
}

void conformance_attention_within_a_window(conformance *c) {
    static const int windows[] = {1, 5, 16, 33, 1000, -1, -5, -16, -33, -1000};
    for (int w = 0; w < 10; w++) {
        attention_case s = attention_case_of(w % SHAPES);
        s.window = windows[w];
        s.n_sequences = 2;
        memcpy(s.n_past, (int[]){60, 3, 0}, sizeof s.n_past);
        memcpy(s.rows, (int[]){21, 1, 0}, sizeof s.rows);
        try_attention_case(c, s);
        s.rows[0] = 1; /* all sequences decode */
        try_attention_case(c, s);
    }
}

void conformance_attention_with_a_softcap(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++)
        for (int few = 0; few < 2; few++) {
            attention_case s = attention_case_of(shape);
            s.softcap = 0.5f; /* below most scores */
            s.window = few ? -20 : 7;
            s.n_sequences = 2;
            memcpy(s.n_past, (int[]){37, 0, 0}, sizeof s.n_past);
            memcpy(s.rows, few ? (int[]){1, 2, 0} : (int[]){19, 40, 0}, sizeof s.rows);
            try_attention_case(c, s);
            s.alibi = s.sinks = true;
            try_attention_case(c, s);
        }
}

void conformance_attention_with_alibi_slopes(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++)
        for (int window = 0; window <= 20; window += 20) {
            attention_case s = attention_case_of(shape);
            s.alibi = true;
            s.window = window;
            s.n_sequences = 2;
            for (int few = 0; few < 2; few++) {
                memcpy(s.n_past, (int[]){37, 0, 0}, sizeof s.n_past);
                memcpy(s.rows, few ? (int[]){1, 2, 0} : (int[]){19, 40, 0}, sizeof s.rows);
                try_attention_case(c, s);
            }
        }
}

void conformance_attention_with_sinks(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++)
        for (int window = 0; window <= 20; window += 20)
            for (int few = 0; few < 2; few++) {
                attention_case s = attention_case_of(shape);
                s.sinks = true;
                s.window = window;
                s.n_sequences = 2;
                memcpy(s.n_past, few ? (int[]){200, 0, 0} : (int[]){37, 0, 0}, sizeof s.n_past);
                memcpy(s.rows, few ? (int[]){1, 2, 0} : (int[]){19, 40, 0}, sizeof s.rows);
                try_attention_case(c, s);
                s.alibi = true;
                try_attention_case(c, s);
            }
}

/* Rows that attend to several hundred positions beside rows that attend to few, all by themselves or beside a prompt:
 * backends divide long contexts into parts. */
void conformance_attention_over_long_contexts(conformance *c) {
    static const int lengths[][SEQUENCES_MAX] = {{500, 3, 255}, {128, 127, 300}, {383, 384, 0}};
    for (int shape = 1; shape < 4; shape++) /* pages of 32 and 48; of 16 they would be too few */
        for (int p = 0; p < 3; p++)
            for (int window = -150; window <= 270; window += 210) { /* -150, 60, 270 */
                attention_case s = attention_case_of(shape);
                if (s.shape.page_tokens == 16) s.shape.page_tokens = 32;
                s.n_sequences = 3;
                s.window = p == 1 ? 0 : window;
                s.sinks = s.alibi = window == 60;
                memcpy(s.n_past, lengths[p], sizeof s.n_past);
                memcpy(s.rows, p == 2 ? (int[]){1, 5, 18} : (int[]){1, 1, 1}, sizeof s.rows);
                try_attention_case(c, s);
            }
}

/* Positions just before, at and just after the end of a page, in both roles: last of the KV cache, last of the rows. */
void conformance_attention_over_page_borders(conformance *c) {
    for (int n_past = 14; n_past <= 17; n_past++)
        for (int rows = 1; rows <= 33; rows += rows == 3 ? 28 : 1) {
            attention_case s = attention_case_of(0);
            s.n_sequences = 1;
            s.n_past[0] = n_past;
            s.rows[0] = rows;
            try_attention_case(c, s);
        }
}

/* Few rows and many, with and without what changes scores. */
void conformance_attention_over_a_kv_cache_of_every_type(conformance *c) {
    for (int i = 0; i < 2 * 2 * SHAPES; i++) {
        attention_case s = attention_case_of(i / 4);
        s.shape.dtype = i % 2 ? SN_KV_F16 : SN_KV_Q8;
        s.n_sequences = 3;
        memcpy(s.n_past, (int[]){0, 45, 127}, sizeof s.n_past);
        memcpy(s.rows, i / 2 % 2 ? (int[]){1, 2, 1} : (int[]){19, 1, 40}, sizeof s.rows);
        try_attention_case(c, s);
        s.window = 21;
        s.alibi = s.sinks = true;
        try_attention_case(c, s);
    }
}

/* Numbers that 16 bits do not hold, or not with all of their digits; their products are as large as ever. */
void conformance_attention_of_queries_of_any_size(conformance *c) {
    static const struct {
        float q, k;
    } sizes[] = {{0x1p-19f, 0x1p15f}, {0x1p18f, 0x1p-14f}, {0x1p-100f, 1}, {0x1p100f, 0}};
    for (int i = 0; i < 2 * 3 * 4; i++) {
        attention_case s = attention_case_of(i % SHAPES);
        s.shape.dtype = i % 2 ? SN_KV_F16 : i / 2 % 2 ? SN_KV_Q8 : SN_KV_F32;
        s.q_size = sizes[i / 6].q;
        s.k_size = sizes[i / 6].k;
        s.sinks = i % 5 == 0;
        s.n_sequences = 2;
        memcpy(s.n_past, (int[]){45, 3, 0}, sizeof s.n_past);
        memcpy(s.rows, (int[]){21, 1, 0}, sizeof s.rows);
        try_attention_case(c, s);
    }
}

/* Prompts behind contexts that backends divide into parts, beside a row that decodes: with every size of group, odd
 * sizes of heads, over the borders of pages. */
void conformance_attention_of_prompts_behind_long_contexts(conformance *c) {
    static const struct {
        int kv_heads, group, head_dim, page_tokens, window;
        sn_kv_dtype dtype;
    } prompts[] = {{1, 8, 64, 32, 0, SN_KV_F32},   {2, 4, 36, 48, 270, SN_KV_Q8},  {1, 3, 20, 32, -150, SN_KV_F16},
                   {1, 4, 100, 48, 60, SN_KV_F32}, {1, 1, 200, 32, 0, SN_KV_F16},  {1, 2, 250, 48, 270, SN_KV_Q8},
                   {1, 1, 260, 32, 0, SN_KV_F32},  {1, 1, 500, 48, -150, SN_KV_Q8}};
    conformance_prepare(c, &(sn_device_limits){.rows = 80, .width = 1024, .context = 512, .heads = 4, .head_dim = 512});
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        if (c->head_dim_max && prompts[i].head_dim > c->head_dim_max) continue;
        attention_case s = {.shape = {.n_blocks = BLOCKS,
                                      .n_kv_heads = prompts[i].kv_heads,
                                      .head_dim = prompts[i].head_dim,
                                      .page_tokens = prompts[i].page_tokens,
                                      .dtype = prompts[i].dtype},
                            .group = prompts[i].group,
                            .window = prompts[i].window,
                            .n_sequences = 3};
        s.alibi = i % 3 == 1, s.sinks = i % 2;
        memcpy(s.n_past, (int[]){470, 300, 0}, sizeof s.n_past);
        memcpy(s.rows, (int[]){1, i == 2 ? 67 : 14, 11}, sizeof s.rows);
        try_attention_case(c, s);
    }
    conformance_prepare(c, &(sn_device_limits){.rows = 80, .width = 1024, .context = POSITIONS, .head_dim = 24});
    attention_case s = {.shape = {.n_blocks = BLOCKS, .n_kv_heads = 1, .head_dim = 24, .page_tokens = 272},
                        .group = 1,
                        .n_sequences = 2,
                        .n_past = {4300, 4100}};
    memcpy(s.rows, (int[]){1, 40, 0}, sizeof s.rows);
    try_attention_case(c, s);
}

/* Among the new rows are values with NaN, and a key. */
void conformance_attention_keeps_nan_in_the_rows_that_see_it(conformance *c) {
    for (int i = 0; i < 4; i++) {
        attention_case s = attention_case_of(1 + i % 2);
        s.shape.dtype = i / 2 ? SN_KV_F16 : SN_KV_F32;
        s.window = i % 2 ? 9 : 0;
        s.n_sequences = 1;
        s.n_past[0] = 40, s.rows[0] = 37;
        int mark = c->n_buffers;
        attention_case_begin(c, &s);
        s.v[0][51 * v_width(&s) + 3] = NAN;
        s.v[0][57 * v_width(&s) + 9] = NAN;
        s.k[0][64 * k_width(&s) + 2] = NAN;
        s.device_k = new_rows(c, &s, s.k, k_width(&s));
        s.device_v = new_rows(c, &s, s.v, v_width(&s));
        round_stored(&s, 0);
        attention_case_run(c, &s, 0);
        attention_case_check(c, &s);
        conformance_release(c, mark);
    }
}

void conformance_attention_of_a_batch_without_rows(conformance *c) {
    attention_case s = attention_case_of(1);
    attention_case_begin(c, &s); /* a batch without sequences */
    attention_case_run(c, &s, 0);
    s.n_sequences = 2; /* two sequences, one of them without rows */
    memcpy(s.n_past, (int[]){20, 5, 0}, sizeof s.n_past);
    memcpy(s.rows, (int[]){0, 2, 0}, sizeof s.rows);
    try_attention_case(c, s);
}

void conformance_attention_keeps_nan_in_its_head(conformance *c) {
    for (int many = 0; many < 2; many++) {
        attention_case s = attention_case_of(1);
        s.n_sequences = 1;
        s.n_past[0] = 40, s.rows[0] = many ? 12 : 1;
        int mark = c->n_buffers, n_heads = 9, dim = 64;
        attention_case_begin(c, &s);
        float *q = conformance_heap(c, (size_t)s.n_rows * q_width(&s) * sizeof *q);
        memcpy(q, s.q, (size_t)s.n_rows * q_width(&s) * sizeof *q);
        q[4 * dim + 3] = NAN; /* head 4 of the first row */
        CONFORMANCE_OK(
            c, c->device->ops->upload(c->device, s.device_q, q, (size_t)s.n_rows * q_width(&s) * sizeof *q, &c->err));
        attention_case_run(c, &s, 0);
        float *out = conformance_download(c, s.device_out, (size_t)s.n_rows * q_width(&s));
        for (size_t i = 0; i < (size_t)(s.n_rows * n_heads * dim); i++)
            CONFORMANCE_CHECK(c, isnan(out[i]) == (i / (size_t)dim == 4), "%d rows: element %zu is %g", s.n_rows, i,
                              (double)out[i]);
        conformance_release(c, mark);
    }
}

/* -- batches */

/* The same batch three times for other sessions, and then another batch of the same size in between: a recorded
 * batch takes positions and pages anew each time, and is recorded only once. */
void conformance_a_recorded_batch_follows_its_sessions(conformance *c) {
    enum { STEPS = 4 };
    attention_case fixed = attention_case_of(1), other = attention_case_of(0);
    fixed.n_sequences = other.n_sequences = 2;
    fixed.rows[0] = fixed.rows[1] = other.rows[0] = other.rows[1] = 1;
    attention_case_begin(c, &fixed);
    memcpy(other.n_past, (int[]){31, 2, 0}, sizeof other.n_past);
    attention_case_begin(c, &other);
    for (int step = 0; step < STEPS; step++) {
        attention_case s = attention_case_of(1);
        s.n_sequences = 2;
        s.rows[0] = s.rows[1] = 1;
        s.n_past[0] = 60 + 3 * step, s.n_past[1] = step;
        attention_case_begin(c, &s);
        float *const from[] = {s.device_k, s.device_v, s.device_q};
        float *const to[] = {fixed.device_k, fixed.device_v, fixed.device_q};
        for (int i = 0; i < 3; i++) { /* the inputs of a recorded batch lie at fixed addresses */
            size_t n = 2 * (i == 0 ? k_width(&s) : i == 1 ? v_width(&s) : q_width(&s));
            float *host = conformance_download(c, from[i], n);
            CONFORMANCE_OK(c, c->device->ops->upload(c->device, to[i], host, n * sizeof *host, &c->err));
        }
        s.device_k = fixed.device_k, s.device_v = fixed.device_v;
        s.device_q = fixed.device_q, s.device_out = fixed.device_out;
        attention_case_run(c, &s, 41);
        attention_case_check(c, &s);
        for (int i = 0; i < 2; i++) check_kv(c, &s, BLOCK, i, 0, s.n_past[i] + 1, true);
        attention_case_run(c, &other, 42);
        attention_case_check(c, &other);
    }
    CONFORMANCE_CHECK(c, c->device->graphs_captured <= 2, "two passes were recorded %llu times",
                      (unsigned long long)c->device->graphs_captured);
}

/* -- latent attention */

/* Query heads, elements of a value and of the rest of a key, tokens of a page. The last two want more than the suite
 * prepares: DeepSeek-V3's heads, and the widest. */
static const struct {
    int heads, latent, rest, page_tokens;
} latent_shapes[] = {{1, 8, 4, 16},     {4, 20, 8, 32},    {21, 41, 9, 16},
                     {16, 128, 64, 48}, {17, 512, 64, 32}, {3, 960, 64, 16}};
enum { LATENT_SHAPES = sizeof latent_shapes / sizeof *latent_shapes };

static attention_case latent_case_of(conformance *c, int shape) {
    int heads = latent_shapes[shape].heads, latent = latent_shapes[shape].latent;
    attention_case s = {.group = heads,
                        .shape = {.n_blocks = BLOCKS,
                                  .n_kv_heads = 1,
                                  .head_dim = latent + latent_shapes[shape].rest,
                                  .page_tokens = latent_shapes[shape].page_tokens,
                                  .dtype = SN_KV_F32,
                                  .latent = latent}};
    const sn_device_limits wide = {
        .rows = 80, .width = 1024, .context = 512, .heads = heads, .head_dim = s.shape.head_dim};
    conformance_prepare(c, &wide);
    return s;
}

void conformance_latents_load_back_unchanged(conformance *c) {
    for (int shape = 0; shape < LATENT_SHAPES; shape++) {
        int mark = c->n_buffers;
        attention_case s = latent_case_of(c, shape);
        s.n_sequences = 2;
        memcpy(s.n_past, (int[]){45, 0, 0}, sizeof s.n_past);
        memcpy(s.rows, (int[]){3, 17, 0}, sizeof s.rows);
        attention_case_begin(c, &s);
        check_kv(c, &s, BLOCK, 0, 7, 38, true);
        check_kv(c, &s, BLOCK, 0, 45, 3, false);
        attention_case_run(c, &s, 0);
        for (int i = 0; i < 2; i++) {
            check_kv(c, &s, BLOCK, i, 0, s.n_past[i] + s.rows[i], true);
            check_kv(c, &s, 0, i, 0, s.n_past[i] + s.rows[i], false);
        }
        conformance_release(c, mark);
    }
}

/* Decoding, a few rows, a prompt of more rows than are split; over the borders of pages and of the kernels' steps. */
void conformance_attention_over_latents(conformance *c) {
    static const int lengths[][2] = {{0, 1}, {15, 1}, {16, 2}, {200, 1}, {30, 19}, {65, 40}};
    for (int shape = 0; shape < LATENT_SHAPES; shape++)
        for (int l = 0; l < (latent_shapes[shape].latent > 200 ? 3 : 6); l++) {
            attention_case s = latent_case_of(c, shape);
            s.n_sequences = 2;
            s.n_past[0] = lengths[l][0], s.rows[0] = lengths[l][1];
            s.n_past[1] = 3 * l, s.rows[1] = 1;
            try_attention_case(c, s);
        }
}

void conformance_attention_over_latents_of_every_type(conformance *c) {
    for (int i = 0; i < 4; i++) {
        attention_case s = latent_case_of(c, 2);
        s.shape = (sn_kv_shape){BLOCKS, 1, 64 + 12, 32, i % 2 ? SN_KV_F16 : SN_KV_Q8, 64, 0, {0}, {0}, 0, 0, false};
        s.group = 5;
        s.n_sequences = 2;
        memcpy(s.n_past, (int[]){100, 0, 0}, sizeof s.n_past);
        memcpy(s.rows, i / 2 ? (int[]){1, 2, 0} : (int[]){9, 33, 0}, sizeof s.rows);
        try_attention_case(c, s);
    }
}

void conformance_attention_over_latents_takes_every_option(conformance *c) {
    for (int option = 0; option < 5; option++)
        for (int few = 0; few < 2; few++) {
            attention_case s = latent_case_of(c, 2);
            s.window = option == 0 ? 7 : option == 1 ? -20 : 0;
            s.softcap = option == 2 ? 0.5f : 0;
            s.alibi = option == 3, s.sinks = option == 4;
            s.n_sequences = 2;
            memcpy(s.n_past, (int[]){37, 0, 0}, sizeof s.n_past);
            memcpy(s.rows, few ? (int[]){1, 2, 0} : (int[]){19, 20, 0}, sizeof s.rows);
            try_attention_case(c, s);
        }
}

void conformance_attention_over_latents_keeps_nan_in_its_head(conformance *c) {
    attention_case s = latent_case_of(c, 2);
    s.n_sequences = 1;
    s.n_past[0] = 40, s.rows[0] = 2;
    attention_case_begin(c, &s);
    size_t n = (size_t)s.n_rows * q_width(&s), dim = (size_t)s.shape.latent;
    float *q = conformance_heap(c, n * sizeof *q);
    memcpy(q, s.q, n * sizeof *q);
    q[4 * s.shape.head_dim + 3] = NAN; /* head 4 of the first row */
    CONFORMANCE_OK(c, c->device->ops->upload(c->device, s.device_q, q, n * sizeof *q, &c->err));
    attention_case_run(c, &s, 0);
    float *out = conformance_download(c, s.device_out, (size_t)s.n_rows * out_width(&s));
    for (size_t i = 0; i < (size_t)s.n_rows * out_width(&s); i++)
        CONFORMANCE_CHECK(c, isnan(out[i]) == (i / dim == 4), "element %zu is %g", i, (double)out[i]);
}

/* The same batch again and again for other sessions, as a_recorded_batch_follows_its_sessions. */
void conformance_a_recorded_batch_follows_its_latents(conformance *c) {
    attention_case fixed = latent_case_of(c, 1);
    fixed.n_sequences = fixed.rows[0] = 1;
    attention_case_begin(c, &fixed);
    for (int step = 0; step < 4; step++) {
        attention_case s = latent_case_of(c, 1);
        s.n_sequences = s.rows[0] = 1;
        s.n_past[0] = 30 * step;
        attention_case_begin(c, &s);
        CONFORMANCE_OK(c, c->device->ops->upload(c->device, fixed.device_k, s.k[0] + 30 * (size_t)step * k_width(&s),
                                                 k_width(&s) * sizeof(float), &c->err));
        CONFORMANCE_OK(c, c->device->ops->upload(c->device, fixed.device_v, s.v[0] + 30 * (size_t)step * v_width(&s),
                                                 v_width(&s) * sizeof(float), &c->err));
        s.device_k = fixed.device_k, s.device_v = fixed.device_v;
        s.device_q = fixed.device_q, s.device_out = fixed.device_out; /* q is that of each step */
        attention_case_run(c, &s, 43);
        attention_case_check(c, &s);
    }
    CONFORMANCE_CHECK(c, c->device->graphs_captured <= 1, "one pass was recorded %llu times",
                      (unsigned long long)c->device->graphs_captured);
}

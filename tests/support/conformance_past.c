/* The past's pages, attention, passes. Attention's tolerance: a score is a product of head_dim terms, so it is off by
 * at most (head_dim + 4) * 2^-24 * sum |q k| * scale, which changes exp(score) by that share, above and below the line;
 * the weighted mean of the values adds its own sums over the positions. */
#include "tests/support/conformance.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES_MAX = 3, PAGES = 16, BLOCKS = 2, BLOCK = 1 };

/* Sessions with a past, and the rows that come next. */
typedef struct scene {
    sn_kv_shape shape;
    int group, window; /* query heads of a key-value head */
    bool leans;        /* ALiBi, with the slopes below */
    bool sinks;        /* with the sinks below */
    int n_sequences, past[SEQUENCES_MAX], rows[SEQUENCES_MAX];
    /* -- made by scene_begin */
    int n_rows;
    float *k[SEQUENCES_MAX], *v[SEQUENCES_MAX]; /* (past + rows, n_kv_heads, head_dim) */
    float *q;                                   /* (n_rows, n_heads, head_dim) */
    void *pages[SEQUENCES_MAX][PAGES];
    sn_sequence sequences[SEQUENCES_MAX];
    float *device_k, *device_v, *device_q, *device_out, *device_slopes, *device_sinks;
} scene;

/* Of a head: some steep, one the other way, one flat. */
static float slope_of(const scene *s, int head) { return s->leans ? 0.5f - (float)(head % 5) * 0.25f : 0; }

/* Some that take hardly anything, some that take nearly all. */
static float sink_of(int head) { return (float)(head % 4) * 3.5f - 5; }

static size_t kv_width(const scene *s) { return (size_t)(s->shape.n_kv_heads * s->shape.head_dim); }
static size_t q_width(const scene *s) { return kv_width(s) * (size_t)s->group; }

/* A page with NaN wherever nothing is stored. */
static void *new_page(conformance *c, const sn_kv_shape *shape) {
    size_t bytes = c->device->ops->kv_page_bytes(c->device, shape);
    uint8_t *page = conformance_bytes(c, bytes), *ones = conformance_heap(c, bytes);
    memset(ones, 0xff, bytes);
    CONFORMANCE_OK(c, c->device->ops->upload(c->device, page, ones, bytes, &c->err));
    return page;
}

static void make_sequence(conformance *c, scene *s, int i) {
    int end = s->past[i] + s->rows[i], page_tokens = s->shape.page_tokens;
    s->k[i] = conformance_random(c, (size_t)end * kv_width(s), 10 + (uint64_t)i);
    s->v[i] = conformance_random(c, (size_t)end * kv_width(s), 20 + (uint64_t)i);
    CONFORMANCE_CHECK(c, end <= PAGES * page_tokens, "the case wants more than %d pages", PAGES);
    for (int p = 0; p * page_tokens < end; p++) s->pages[i][p] = new_page(c, &s->shape);
    s->sequences[i] = (sn_sequence){s->pages[i], s->past[i], s->n_rows, s->rows[i]};
    s->n_rows += s->rows[i];
}

/* The new rows' keys and values of all sequences, one behind the other, on the device. */
static float *new_rows(conformance *c, const scene *s, float *const *from) {
    float *all = conformance_heap(c, (size_t)s->n_rows * kv_width(s) * sizeof *all);
    for (int i = 0; i < s->n_sequences; i++)
        if (s->rows[i])
            memcpy(all + (size_t)s->sequences[i].first_row * kv_width(s), from[i] + (size_t)s->past[i] * kv_width(s),
                   (size_t)s->rows[i] * kv_width(s) * sizeof *all);
    return conformance_upload(c, all, (size_t)s->n_rows * kv_width(s));
}

/* Everything up to the pass: the pasts are in their pages. */
static void scene_begin(conformance *c, scene *s) {
    sn_device *d = c->device;
    s->n_rows = 0;
    for (int i = 0; i < s->n_sequences; i++) make_sequence(c, s, i);
    s->q = conformance_random(c, (size_t)s->n_rows * q_width(s), 99);
    for (int i = 0; i < s->n_sequences; i++) /* in two parts, the second at an odd place */
        for (int half = 0; half < 2; half++) {
            int first = half ? s->past[i] / 2 : 0, n = half ? s->past[i] - first : s->past[i] / 2;
            CONFORMANCE_OK(c, d->ops->kv_write(d, &s->shape, BLOCK, s->pages[i], first, n,
                                               s->k[i] + (size_t)first * kv_width(s),
                                               s->v[i] + (size_t)first * kv_width(s), &c->err));
        }
    s->device_k = new_rows(c, s, s->k);
    s->device_v = new_rows(c, s, s->v);
    s->device_q = conformance_upload(c, s->q, (size_t)s->n_rows * q_width(s));
    float *slopes = conformance_heap(c, 64 * sizeof *slopes), *sinks = conformance_heap(c, 64 * sizeof *sinks);
    for (int h = 0; h < s->group * s->shape.n_kv_heads; h++) slopes[h] = slope_of(s, h), sinks[h] = sink_of(h);
    s->device_slopes = s->leans ? conformance_upload(c, slopes, 64) : NULL;
    s->device_sinks = s->sinks ? conformance_upload(c, sinks, 64) : NULL;
    s->device_out = conformance_bytes(c, (size_t)s->n_rows * q_width(s) * sizeof(float));
}

static float scale_of(const scene *s) { return 1 / sqrtf((float)s->shape.head_dim); }

static sn_status issue(conformance *c, const scene *s) {
    sn_device *d = c->device;
    sn_status status = d->ops->kv_store(d, BLOCK, s->device_k, s->device_v, &c->err);
    if (status) return status;
    const sn_attention how = {BLOCK, s->group * s->shape.n_kv_heads, s->window, scale_of(s), s->device_slopes, s->device_sinks};
    return d->ops->attention(d, &how, s->device_q, s->device_out, &c->err);
}

static void scene_run(conformance *c, const scene *s, uint64_t graph) {
    sn_device *d = c->device;
    sn_pass pass = {&s->shape, s->n_rows, s->n_sequences, s->sequences, graph};
    bool recorded = false;
    CONFORMANCE_OK(c, d->ops->pass_begin(d, &pass, &recorded, &c->err));
    CONFORMANCE_CHECK(c, graph || !recorded, "a pass that has no name was recorded");
    if (!recorded) CONFORMANCE_OK(c, issue(c, s));
    CONFORMANCE_OK(c, d->ops->pass_end(d, &c->err));
}

/* One head of one row as the formula says; errors[e] is what float32 may differ. */
static void attend(conformance *c, const scene *s, int i, int position, int head, const float *q, double *out,
                   double *errors) {
    int dim = s->shape.head_dim, heads = s->shape.n_kv_heads, kv_head = head / s->group;
    int from = s->window > 0 && position + 1 > s->window ? position + 1 - s->window : 0;
    double weights[512], sum = 0, most = -INFINITY, score_error = 0;
    for (int t = from; t <= position; t++) {
        double score = 0, size = 0;
        for (int e = 0; e < dim; e++) {
            double product = (double)q[e] * (double)s->k[i][(t * heads + kv_head) * dim + e] * (double)scale_of(s);
            score += product;
            size += fabs(product);
        }
        double lean = (double)slope_of(s, head) * (t - position);
        weights[t] = score += lean;
        size += fabs(lean);
        most = fmax(most, score);
        score_error = fmax(score_error, size * ((dim + 4) * CONFORMANCE_EPSILON + 2 * c->attention_rounding));
    }
    if (s->sinks) most = fmax(most, (double)sink_of(head)), sum = exp((double)sink_of(head) - most);
    for (int t = from; t <= position; t++) sum += weights[t] = exp(weights[t] - most);
    double share = 2 * score_error + (position - from + 32) * CONFORMANCE_EPSILON + 2 * c->attention_rounding;
    for (int e = 0; e < dim; e++) {
        out[e] = errors[e] = 0;
        for (int t = from; t <= position; t++) {
            double part = weights[t] / sum * (double)s->v[i][(t * heads + kv_head) * dim + e];
            out[e] += part;
            errors[e] += fabs(part) * share;
        }
    }
}

static void scene_check(conformance *c, const scene *s) {
    int dim = s->shape.head_dim, n_heads = s->group * s->shape.n_kv_heads;
    const float *out = conformance_download(c, s->device_out, (size_t)s->n_rows * q_width(s));
    double want[512], errors[512];
    for (int i = 0; i < s->n_sequences; i++)
        for (int r = 0; r < s->rows[i]; r++)
            for (int h = 0; h < n_heads; h++) {
                size_t at = ((size_t)(s->sequences[i].first_row + r) * (size_t)n_heads + (size_t)h) * (size_t)dim;
                attend(c, s, i, s->past[i] + r, h, s->q + at, want, errors);
                for (int e = 0; e < dim; e++)
                    CONFORMANCE_CHECK(
                        c, conformance_close((double)out[at + (size_t)e], want[e], errors[e]),
                        "%d heads over %d of %d, window %d, %d sequences: sequence %d, position %d, head %d, "
                        "element %d is %g, not %g +- %g",
                        n_heads, s->shape.n_kv_heads, dim, s->window, s->n_sequences, i, s->past[i] + r, h, e,
                        (double)out[at + (size_t)e], want[e], errors[e]);
            }
}

static void try_scene(conformance *c, scene s) {
    int mark = c->n_buffers;
    scene_begin(c, &s);
    scene_run(c, &s, 0);
    scene_check(c, &s);
    conformance_release(c, mark);
}

/* Heads over key-value heads, their size, tokens of a page. */
static const struct {
    int kv_heads, group, head_dim, page_tokens;
} shapes[] = {{1, 1, 24, 16}, {3, 3, 64, 32}, {2, 4, 128, 48}, {5, 1, 64, 16}, {1, 7, 24, 64}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static scene scene_of(int shape) {
    return (scene){.shape = {BLOCKS, shapes[shape].kv_heads, shapes[shape].head_dim, shapes[shape].page_tokens},
                   .group = shapes[shape].group};
}

/* -- the past */

/* Reads positions [first, first + n) of a block back and compares them bit by bit. */
static void check_past(conformance *c, const scene *s, int block, int i, int first, int n, bool stored) {
    size_t from = (size_t)first * kv_width(s), floats = (size_t)n * kv_width(s);
    float *k = conformance_heap(c, floats * sizeof *k), *v = conformance_heap(c, floats * sizeof *v);
    CONFORMANCE_OK(c, c->device->ops->kv_read(c->device, &s->shape, block, s->pages[i], first, n, k, v, &c->err));
    for (size_t e = 0; e < floats; e++) {
        bool same = stored ? k[e] == s->k[i][from + e] && v[e] == s->v[i][from + e] : isnan(k[e]) && isnan(v[e]);
        CONFORMANCE_CHECK(c, same, "sequence %d, block %d, position %d: key and value are %g and %g%s", i, block,
                          first + (int)(e / kv_width(s)), (double)k[e], (double)v[e],
                          stored ? ", not what was stored" : " where nothing was stored");
    }
}

void conformance_the_past_comes_back_unchanged(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        int mark = c->n_buffers;
        scene s = scene_of(shape);
        s.n_sequences = 1;
        s.past[0] = 100, s.rows[0] = 20; /* written: the past; the others stay untouched */
        scene_begin(c, &s);
        static const int parts[][2] = {{0, 100}, {0, 0}, {7, 0}, {0, 1}, {15, 2}, {31, 40}, {99, 1}};
        for (int i = 0; i < 7; i++) check_past(c, &s, BLOCK, 0, parts[i][0], parts[i][1], true);
        check_past(c, &s, BLOCK, 0, 100, 12, false);
        check_past(c, &s, 0, 0, 0, 112, false);
        conformance_release(c, mark);
    }
}

void conformance_kv_store_writes_where_the_pass_says(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        int mark = c->n_buffers;
        scene s = scene_of(shape);
        s.n_sequences = 3;
        memcpy(s.past, (int[]){0, 45, 63}, sizeof s.past);
        memcpy(s.rows, (int[]){19, 1, 40}, sizeof s.rows);
        scene_begin(c, &s);
        scene_run(c, &s, 0);
        for (int i = 0; i < 3; i++) {
            check_past(c, &s, BLOCK, i, 0, s.past[i] + s.rows[i], true);
            check_past(c, &s, 0, i, 0, s.past[i] + s.rows[i], false);
        }
        conformance_release(c, mark);
    }
}

/* -- attention */

void conformance_attention_of_one_token_without_a_past(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        scene s = scene_of(shape);
        s.n_sequences = s.rows[0] = 1;
        try_scene(c, s);
    }
}

void conformance_attention_while_decoding(conformance *c) {
    static const int pasts[][SEQUENCES_MAX] = {{1, 15, 16}, {17, 0, 200}, {127, 128, 129}};
    for (int shape = 0; shape < SHAPES; shape++)
        for (int p = 0; p < 3; p++) {
            scene s = scene_of(shape);
            s.n_sequences = p == 0 ? 1 : 3;
            for (int i = 0; i < 3; i++) s.past[i] = pasts[p][i], s.rows[i] = 1;
            try_scene(c, s);
        }
}

void conformance_attention_of_several_prompts(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++) {
        scene s = scene_of(shape);
        s.n_sequences = 3;
        memcpy(s.past, (int[]){0, 45, 127}, sizeof s.past);
        memcpy(s.rows, (int[]){19, 1, 40}, sizeof s.rows);
        try_scene(c, s);
        s.n_sequences = 2;
        memcpy(s.rows, (int[]){3, 2, 0}, sizeof s.rows);
        try_scene(c, s);
    }
}

void conformance_attention_within_a_window(conformance *c) {
    static const int windows[] = {1, 5, 16, 33, 1000};
    for (int w = 0; w < 5; w++) {
        scene s = scene_of(w);
        s.window = windows[w];
        s.n_sequences = 2;
        memcpy(s.past, (int[]){60, 3, 0}, sizeof s.past);
        memcpy(s.rows, (int[]){21, 1, 0}, sizeof s.rows);
        try_scene(c, s);
        s.rows[0] = 1; /* all decoding */
        try_scene(c, s);
    }
}

void conformance_attention_that_leans(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++)
        for (int window = 0; window <= 20; window += 20) {
            scene s = scene_of(shape);
            s.leans = true;
            s.window = window;
            s.n_sequences = 2;
            for (int few = 0; few < 2; few++) {
                memcpy(s.past, (int[]){37, 0, 0}, sizeof s.past);
                memcpy(s.rows, few ? (int[]){1, 2, 0} : (int[]){19, 40, 0}, sizeof s.rows);
                try_scene(c, s);
            }
        }
}

void conformance_attention_with_sinks(conformance *c) {
    for (int shape = 0; shape < SHAPES; shape++)
        for (int window = 0; window <= 20; window += 20)
            for (int few = 0; few < 2; few++) {
                scene s = scene_of(shape);
                s.sinks = true;
                s.window = window;
                s.n_sequences = 2;
                memcpy(s.past, few ? (int[]){200, 0, 0} : (int[]){37, 0, 0}, sizeof s.past);
                memcpy(s.rows, few ? (int[]){1, 2, 0} : (int[]){19, 40, 0}, sizeof s.rows);
                try_scene(c, s);
                s.leans = true;
                try_scene(c, s);
            }
}

/* Positions just before, on and behind the end of a page, in both roles: last of the past, last of the rows. */
void conformance_attention_over_page_borders(conformance *c) {
    for (int past = 14; past <= 17; past++)
        for (int rows = 1; rows <= 33; rows += rows == 3 ? 28 : 1) {
            scene s = scene_of(0);
            s.n_sequences = 1;
            s.past[0] = past;
            s.rows[0] = rows;
            try_scene(c, s);
        }
}

void conformance_attention_of_a_pass_without_rows(conformance *c) {
    scene s = scene_of(1);
    scene_begin(c, &s); /* no sequence */
    scene_run(c, &s, 0);
    s.n_sequences = 2; /* one of them has no rows */
    memcpy(s.past, (int[]){20, 5, 0}, sizeof s.past);
    memcpy(s.rows, (int[]){0, 2, 0}, sizeof s.rows);
    try_scene(c, s);
}

void conformance_attention_keeps_nan_in_its_head(conformance *c) {
    for (int many = 0; many < 2; many++) {
        scene s = scene_of(1);
        s.n_sequences = 1;
        s.past[0] = 40, s.rows[0] = many ? 12 : 1;
        int mark = c->n_buffers, n_heads = 9, dim = 64;
        scene_begin(c, &s);
        float *q = conformance_heap(c, (size_t)s.n_rows * q_width(&s) * sizeof *q);
        memcpy(q, s.q, (size_t)s.n_rows * q_width(&s) * sizeof *q);
        q[4 * dim + 3] = NAN; /* head 4 of the first row */
        CONFORMANCE_OK(
            c, c->device->ops->upload(c->device, s.device_q, q, (size_t)s.n_rows * q_width(&s) * sizeof *q, &c->err));
        scene_run(c, &s, 0);
        float *out = conformance_download(c, s.device_out, (size_t)s.n_rows * q_width(&s));
        for (size_t i = 0; i < (size_t)(s.n_rows * n_heads * dim); i++)
            CONFORMANCE_CHECK(c, isnan(out[i]) == (i / (size_t)dim == 4), "%d rows: element %zu is %g", s.n_rows, i,
                              (double)out[i]);
        conformance_release(c, mark);
    }
}

/* -- passes */

/* The same pass three times for other sessions, then another one of the same size in between: a record must take
 * positions and pages anew each time, and not be made twice. */
void conformance_a_recorded_pass_follows_its_sessions(conformance *c) {
    enum { STEPS = 4 };
    scene fixed = scene_of(1), other = scene_of(0);
    fixed.n_sequences = other.n_sequences = 2;
    fixed.rows[0] = fixed.rows[1] = other.rows[0] = other.rows[1] = 1;
    scene_begin(c, &fixed);
    memcpy(other.past, (int[]){31, 2, 0}, sizeof other.past);
    scene_begin(c, &other);
    for (int step = 0; step < STEPS; step++) {
        scene s = scene_of(1);
        s.n_sequences = 2;
        s.rows[0] = s.rows[1] = 1;
        s.past[0] = 60 + 3 * step, s.past[1] = step;
        scene_begin(c, &s);
        float *const from[] = {s.device_k, s.device_v, s.device_q};
        float *const to[] = {fixed.device_k, fixed.device_v, fixed.device_q};
        for (int i = 0; i < 3; i++) { /* a record's inputs lie at fixed addresses */
            size_t n = 2 * (i < 2 ? kv_width(&s) : q_width(&s));
            float *host = conformance_download(c, from[i], n);
            CONFORMANCE_OK(c, c->device->ops->upload(c->device, to[i], host, n * sizeof *host, &c->err));
        }
        s.device_k = fixed.device_k, s.device_v = fixed.device_v;
        s.device_q = fixed.device_q, s.device_out = fixed.device_out;
        scene_run(c, &s, 41);
        scene_check(c, &s);
        for (int i = 0; i < 2; i++) check_past(c, &s, BLOCK, i, 0, s.past[i] + 1, true);
        scene_run(c, &other, 42);
        scene_check(c, &other);
    }
    CONFORMANCE_CHECK(c, c->device->recorded <= 2, "two passes were recorded %llu times",
                      (unsigned long long)c->device->recorded);
}

/* Recurrent blocks: the short convolution and the recurrences of two sequences, one of them at position 0, against
 * double precision; rows, states and snapshots. A device without them refuses both with a sentence. */
#include "tests/support/conformance.h"

#include <math.h>
#include <string.h>

enum { ROWS_A = 3, ROWS_B = 19, ROWS = ROWS_A + ROWS_B, SNAPSHOT = 9 };

/* One sequence: what the device gets and what it should make of it. */
typedef struct sequence {
    float *state[3]; /* device: before, after, snapshot */
    float *before;   /* heap, or NULL: zero */
    double *want, *want_snapshot;
    int first, n;
} sequence;

typedef struct setup {
    conformance *c;
    sn_delta delta;
    size_t channels, floats, matrices;
    const float *taps, *taps_bias, *rates, *time_bias, *skip; /* heap */
    size_t times;                                             /* columns of a */
    sequence s[2];
} setup;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void check_rows(conformance *c, const char *what, const float *got, const double *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        CONFORMANCE_CHECK(c, conformance_close((double)got[i], want[i], 1e-5 * (1 + fabs(want[i]))),
                          "%s: element %zu is %g, not %g", what, i, (double)got[i], want[i]);
}

static setup begin(conformance *c, const sn_delta_shape *shape) {
    setup u = {.c = c, .delta = {.shape = *shape, .block = 1}};
    u.channels = sn_delta_channels(shape), u.floats = sn_delta_floats(shape), u.matrices = sn_delta_matrices(shape);
    size_t heads = (size_t)shape->n_value_heads;
    u.times = shape->kind == SN_KEYED_DELTA ? heads * (size_t)shape->key_dim : heads;
    float *rates = conformance_random(c, heads, 3);
    for (size_t i = 0; i < heads; i++) rates[i] = -fabsf(rates[i]) - 0.1f;
    u.taps = conformance_random(c, u.channels * (size_t)shape->taps, 2);
    u.rates = rates;
    u.time_bias = conformance_random(c, u.times, 4);
    u.skip = conformance_random(c, heads, 8);
    u.taps_bias = conformance_random(c, u.channels, 9);
    u.delta.taps = conformance_upload(c, u.taps, u.channels * (size_t)shape->taps);
    u.delta.rates = conformance_upload(c, u.rates, heads);
    u.delta.time_bias = conformance_upload(c, u.time_bias, u.times);
    u.delta.skip = conformance_upload(c, u.skip, heads);
    if (shape->kind == SN_STATE_SPACE) u.delta.taps_bias = conformance_upload(c, u.taps_bias, u.channels);
    for (int i = 0; i < 2; i++) {
        sequence *s = &u.s[i];
        s->first = i ? ROWS_A : 0, s->n = i ? ROWS_B : ROWS_A;
        if (i) s->before = conformance_random(c, 2 * u.floats, 5); /* of two blocks: this one is the second */
        if (i) s->state[0] = conformance_upload(c, s->before, 2 * u.floats);
        for (int k = 1; k < 2 + i; k++) s->state[k] = conformance_bytes(c, 2 * u.floats * sizeof(float));
        s->want = conformance_heap(c, u.floats * sizeof *s->want);
        s->want_snapshot = conformance_heap(c, u.floats * sizeof *s->want);
        for (size_t k = 0; k < u.floats && i; k++) s->want[k] = (double)s->before[u.floats + k];
    }
    return u;
}

/* Queries, keys and values as they lie in rows of the channels. */
static sn_delta_rows rows_of(const setup *u, const float *x, const float *a, const float *b) {
    size_t keys = (size_t)u->delta.shape.n_key_heads * (size_t)u->delta.shape.key_dim;
    return (sn_delta_rows){x, x + keys, x + 2 * keys, u->channels, u->channels, a, b};
}

/* The convolution in two calls, of a part of the channels each: x (ROWS, channels) lies part by part there. */
static sn_status conv_in_parts(setup *u, float *x) {
    conformance *c = u->c;
    size_t taps = (size_t)u->delta.shape.taps, first = u->channels / 3;
    sn_delta part = u->delta;
    part.count = first;
    if (first) CONFORMANCE_OK(c, c->device->ops->short_conv(c->device, &part, x, &c->err));
    part.first_channel = first, part.count = u->channels - first, part.taps += first * taps;
    if (part.taps_bias) part.taps_bias += first;
    return c->device->ops->short_conv(c->device, &part, x + ROWS * first, &c->err);
}

static sn_status run(setup *u, bool parts, float *x, const float *a, const float *b, float *out) {
    conformance *c = u->c;
    const sn_device_ops *ops = c->device->ops;
    const sn_kv_shape shape = {.n_kv_heads = 1, .head_dim = 16, .page_tokens = 32};
    void *pages[1] = {conformance_bytes(c, 64)};
    sn_sequence sequences[2];
    bool replayed;
    for (int i = 0; i < 2; i++) {
        float *const *state = u->s[i].state;
        sequences[i] = (sn_sequence){.pages = pages, .position = i, .first_row = u->s[i].first, .n_rows = u->s[i].n};
        sequences[i].state = (sn_sequence_state){state[0], state[1], state[2], SNAPSHOT};
    }
    const sn_batch batch = {&shape, ROWS, 2, sequences, 0};
    CONFORMANCE_OK(c, ops->prepare(c->device, &(sn_device_limits){.rows = ROWS, .context = 64, .width = 64}, &c->err));
    CONFORMANCE_OK(c, ops->batch_begin(c->device, &batch, &replayed, &c->err));
    const sn_delta_rows rows = rows_of(u, x, a, b);
    sn_status status = out     ? ops->delta_rule(c->device, &u->delta, &rows, out, &c->err)
                       : parts ? conv_in_parts(u, x)
                               : ops->short_conv(c->device, &u->delta, x, &c->err);
    CONFORMANCE_OK(c, ops->batch_end(c->device, &(sn_err){0}));
    return status;
}

/* Compares floats [from, until) of the states of the block. */
static void check_states(const setup *u, size_t from, size_t until) {
    for (int i = 0; i < 2; i++)
        for (int k = 1; k < 2 + i; k++) {
            float *got = conformance_download(u->c, u->s[i].state[k], 2 * u->floats) + u->floats;
            const double *want = k == 1 ? u->s[i].want : u->s[i].want_snapshot;
            check_rows(u->c, k == 1 ? "state" : "snapshot", got + from, want + from, until - from);
        }
}

/* Rows of all channels, first the first third of all rows: as parts of the channels lie. */
static void lie_in_parts(const float *x, size_t n, float *out) {
    size_t first = n / 3;
    for (size_t r = 0; r < ROWS; r++) {
        memcpy(out + r * first, x + r * n, first * sizeof *out);
        memcpy(out + ROWS * first + r * (n - first), x + r * n + first, (n - first) * sizeof *out);
    }
}

static void try_conv(conformance *c, const sn_delta_shape *shape, bool parts) {
    setup u = begin(c, shape);
    size_t n = u.channels, taps = (size_t)shape->taps;
    float *x = conformance_random(c, ROWS * n, 1), *lies = conformance_heap(c, ROWS * n * sizeof *lies);
    double *want = conformance_heap(c, ROWS * n * sizeof *want);
    lie_in_parts(x, n, lies);
    float *device_x = conformance_upload(c, parts ? lies : x, ROWS * n);
    CONFORMANCE_OK(c, run(&u, parts, device_x, NULL, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        sequence *s = &u.s[i];
        for (int t = 0; t < s->n; t++) {
            double *rows = s->want + u.matrices; /* (taps - 1, n) */
            const float *row = x + (size_t)(s->first + t) * n;
            for (size_t k = 0; k < n; k++) {
                double sum = (double)row[k] * (double)u.taps[k * taps + taps - 1];
                for (size_t j = 0; j + 1 < taps; j++) sum += rows[j * n + k] * (double)u.taps[k * taps + j];
                if (u.delta.taps_bias) sum += (double)u.taps_bias[k];
                want[(size_t)(s->first + t) * n + k] = shape->kind == SN_SHORT_CONV ? sum : sum * sigmoid(sum);
            }
            memmove(rows, rows + n, (taps - 2) * n * sizeof *rows);
            for (size_t k = 0; k < n; k++) rows[(taps - 2) * n + k] = (double)row[k];
            if (t + 1 == SNAPSHOT) memcpy(s->want_snapshot, s->want, u.floats * sizeof *s->want);
        }
    }
    float *want_x = conformance_heap(c, 2 * ROWS * n * sizeof *want_x);
    for (size_t i = 0; i < ROWS * n; i++) want_x[i] = (float)want[i];
    lie_in_parts(want_x, n, want_x + ROWS * n);
    for (size_t i = 0; i < ROWS * n; i++) want[i] = (double)want_x[(parts ? ROWS * n : 0) + i];
    check_rows(c, "convolution", conformance_download(c, device_x, ROWS * n), want, ROWS * n);
    check_states(&u, u.matrices, u.matrices + (taps - 1) * n);
}

/* What row i of the head's matrix decays by. */
static double decay_formula(const setup *u, size_t head, const float *a, size_t i) {
    bool keyed = u->delta.shape.kind == SN_KEYED_DELTA;
    size_t at = keyed ? head * (size_t)u->delta.shape.key_dim + i : head;
    double rate = (double)u->rates[head], step = (double)a[at] + (double)u->time_bias[at];
    if (keyed && u->delta.floor < 0) return exp((double)u->delta.floor * sigmoid(-rate * step));
    return exp(rate * log1p(exp(step)));
}

/* One row of one value head; a: the row's. */
static void delta_formula(const setup *u, const float *row, size_t head, const float *a, double b, double *S,
                          double *out) {
    const sn_delta_shape *p = &u->delta.shape;
    size_t keys = (size_t)p->n_key_heads, dk = (size_t)p->key_dim, dv = (size_t)p->value_dim;
    size_t key_head = p->key_heads_alternate ? head % keys : head / ((size_t)p->n_value_heads / keys);
    const float *q = row + key_head * dk, *k = row + (keys + key_head) * dk, *v = row + 2 * keys * dk + head * dv;
    bool scan = p->kind == SN_STATE_SPACE;
    double qq = 1e-6, kk = 1e-6;
    for (size_t i = 0; i < dk; i++) qq += (double)q[i] * (double)q[i], kk += (double)k[i] * (double)k[i];
    if (scan) kk = 1, qq = 1 / (double)dk;
    for (size_t j = 0; j < dv; j++) {
        double seen = 0;
        for (size_t i = 0; i < dk; i++)
            seen += (S[i * dv + j] *= decay_formula(u, head, a, i)) * (double)k[i] / sqrt(kk);
        double change = scan ? log1p(exp((double)a[head] + (double)u->time_bias[head])) * (double)v[j]
                             : sigmoid(b) * ((double)v[j] - seen);
        out[j] = scan ? (double)u->skip[head] * (double)v[j] : 0;
        for (size_t i = 0; i < dk; i++) {
            S[i * dv + j] += (double)k[i] / sqrt(kk) * change;
            out[j] += S[i * dv + j] * (double)q[i] / sqrt(qq * (double)dk);
        }
    }
}

static void try_rule(conformance *c, const sn_delta_shape *shape, float lowest) {
    setup u = begin(c, shape);
    u.delta.floor = lowest;
    size_t heads = (size_t)shape->n_value_heads, dim = (size_t)shape->value_dim, each = u.matrices / heads;
    float *x = conformance_random(c, ROWS * u.channels, 1), *a = conformance_random(c, ROWS * u.times, 6),
          *b = conformance_random(c, ROWS * heads, 7);
    float *out = conformance_bytes(c, ROWS * heads * dim * sizeof *out);
    double *want = conformance_heap(c, ROWS * heads * dim * sizeof *want);
    a[0] = 30; /* softplus is its argument there */
    CONFORMANCE_OK(c, run(&u, false, conformance_upload(c, x, ROWS * u.channels),
                          conformance_upload(c, a, ROWS * u.times), conformance_upload(c, b, ROWS * heads), out));
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < u.s[i].n; t++) {
            size_t row = (size_t)(u.s[i].first + t);
            for (size_t h = 0; h < heads; h++)
                delta_formula(&u, x + row * u.channels, h, a + row * u.times, (double)b[row * heads + h],
                              u.s[i].want + h * each, want + (row * heads + h) * dim);
            if (t + 1 == SNAPSHOT) memcpy(u.s[i].want_snapshot, u.s[i].want, u.floats * sizeof *want);
        }
    check_rows(c, "delta rule", conformance_download(c, out, ROWS * heads * dim), want, ROWS * heads * dim);
    check_states(&u, 0, u.matrices);
}

static void try_shape(conformance *c, sn_delta_shape shape, float lowest) {
    int mark = c->n_buffers;
    try_conv(c, &shape, false);
    try_conv(c, &shape, true);
    if (shape.kind != SN_SHORT_CONV) try_rule(c, &shape, lowest);
    conformance_release(c, mark);
}

void conformance_recurrent_blocks_follow_their_formulas(conformance *c) {
    /* key heads, value heads, dimensions of a key and a value, taps, whether key heads alternate */
    static const int shapes[][6] = {{1, 1, 1, 1, 2, 0},   {2, 4, 12, 10, 4, 0}, {2, 4, 12, 10, 4, 1},
                                    {1, 3, 16, 64, 4, 0}, {2, 2, 33, 70, 3, 0}, {1, 2, 128, 128, 4, 0},
                                    {1, 2, 200, 20, 8, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int *s = shapes[i];
        const sn_delta_shape shape = {1, s[0], s[1], s[2], s[3], s[4], s[5], SN_GATED_DELTA};
        try_shape(c, shape, 0);
    }
}

void conformance_recurrences_follow_their_formulas(conformance *c) {
    /* kind, key heads, value heads, dimensions of a key and a value, taps */
    static const int shapes[][6] = {
        {SN_KEYED_DELTA, 1, 1, 1, 1, 2},     {SN_KEYED_DELTA, 3, 3, 12, 10, 4},  {SN_KEYED_DELTA, 1, 3, 33, 70, 4},
        {SN_KEYED_DELTA, 2, 2, 128, 128, 4}, {SN_KEYED_DELTA, 1, 2, 200, 20, 3}, {SN_STATE_SPACE, 1, 1, 1, 1, 2},
        {SN_STATE_SPACE, 2, 6, 16, 8, 4},    {SN_STATE_SPACE, 1, 4, 12, 16, 4},  {SN_STATE_SPACE, 2, 4, 128, 64, 4},
        {SN_STATE_SPACE, 1, 2, 256, 70, 4},  {SN_SHORT_CONV, 1, 1, 0, 1, 2},     {SN_SHORT_CONV, 1, 1, 0, 70, 3},
        {SN_SHORT_CONV, 1, 1, 0, 1030, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int *s = shapes[i];
        const sn_delta_shape shape = {1, s[1], s[2], s[3], s[4], s[5], false, (sn_recurrence)s[0]};
        try_shape(c, shape, 0);
        if (shape.kind == SN_KEYED_DELTA) try_shape(c, shape, -5);
    }
}

enum { STEPS = 5 };

/* STEPS rows, one after the other, of a session whose two states change places; out: heap, (STEPS, heads, value_dim).
 */
static float *step_by_step(conformance *c, const setup *u, const float *x, uint64_t graph) {
    const sn_device_ops *ops = c->device->ops;
    const sn_delta_shape *p = &u->delta.shape;
    const sn_kv_shape shape = {.n_kv_heads = 1, .head_dim = 16, .page_tokens = 32};
    size_t width = (size_t)(p->n_value_heads * p->value_dim), heads = (size_t)p->n_value_heads;
    float *device_x = conformance_bytes(c, u->channels * sizeof *x), *gates = conformance_upload(c, x, heads),
          *out = conformance_bytes(c, width * sizeof *x), *all = conformance_heap(c, STEPS * width * sizeof *x);
    float *states[2] = {conformance_bytes(c, 2 * u->floats * sizeof *x),
                        conformance_bytes(c, 2 * u->floats * sizeof *x)};
    void *pages[1] = {conformance_bytes(c, 64)};
    const sn_delta_rows rows = rows_of(u, device_x, gates, gates);
    for (size_t t = 0; t < STEPS; t++) {
        const sn_sequence s = {pages, (int)t, 0, 1, {t ? states[t % 2] : NULL, states[1 - t % 2], NULL, 0}};
        const sn_batch batch = {&shape, 1, 1, &s, graph};
        bool replayed;
        CONFORMANCE_OK(c, ops->upload(c->device, device_x, x + t * u->channels, u->channels * sizeof *x, &c->err));
        CONFORMANCE_OK(c, ops->batch_begin(c->device, &batch, &replayed, &c->err));
        if (!replayed) CONFORMANCE_OK(c, ops->short_conv(c->device, &u->delta, device_x, &c->err));
        if (!replayed) CONFORMANCE_OK(c, ops->delta_rule(c->device, &u->delta, &rows, out, &c->err));
        CONFORMANCE_OK(c, ops->batch_end(c->device, &c->err));
        memcpy(all + t * width, conformance_download(c, out, width), width * sizeof *x);
    }
    return all;
}

/* A recorded batch takes the states' addresses anew each time, and has the bits of one that is not recorded. */
void conformance_a_recorded_batch_follows_its_states(conformance *c) {
    const sn_delta_shape shape = {1, 2, 4, 12, 10, 4, false, SN_GATED_DELTA};
    setup u = begin(c, &shape);
    const float *x = conformance_random(c, STEPS * u.channels, 9);
    const float *plain = step_by_step(c, &u, x, 0), *recorded = step_by_step(c, &u, x, 44);
    CONFORMANCE_CHECK(c, !memcmp(plain, recorded, STEPS * 40 * sizeof *x), "a recorded batch has other bits");
    CONFORMANCE_CHECK(c, c->device->graphs_captured <= 1, "one pass was recorded %llu times",
                      (unsigned long long)c->device->graphs_captured);
}

void conformance_recurrent_blocks_refuse_what_is_not_possible(conformance *c) {
    const sn_delta_shape shape = {1, 2, 4, 12, 10, 4, false, SN_GATED_DELTA};
    setup u = begin(c, &shape);
    float *x = conformance_bytes(c, ROWS * u.channels * sizeof *x);
    u.delta.shape.key_dim = SN_DELTA_DIM_MAX + 1;
    CONFORMANCE_CHECK(c, run(&u, false, x, x, x, x) == SN_REFUSED, "a key of %d elements", u.delta.shape.key_dim);
    u.delta.shape = shape;
    u.delta.shape.taps = 1;
    CONFORMANCE_CHECK(c, run(&u, false, x, NULL, NULL, NULL) == SN_REFUSED, "a convolution of one tap");
    u.delta.shape = shape;
    u.delta.shape.kind = SN_SHORT_CONV;
    CONFORMANCE_CHECK(c, run(&u, false, x, NULL, NULL, NULL) == SN_REFUSED, "a convolution with matrices");
    u.delta.shape = shape;
    u.s[0].state[1] = NULL;
    CONFORMANCE_CHECK(c, run(&u, false, x, NULL, NULL, NULL) == SN_REFUSED && strstr(c->err.text, "no recurrent state"),
                      "a session without a state: %s", c->err.text);
}

/* What belongs together in a block: each operation of several steps writes the bits of these steps, one after the
 * other, in all that they write. Those have cases of their own, so here the device is compared with itself.
 *
 * How it works: `at[0]` and `at[1]` have equal contents; the steps run on the former, the operation on the latter. */
#include "tests/support/conformance.h"
#include "tests/support/cpu_devices.h"

#include <string.h>

enum { N_MAX = 40, COLS = 256, ROWS = 33, LINEARS = 3 };

/* Two buffers of equal contents. */
typedef struct twin {
    float *at[2];
    size_t n;
} twin;

static twin twin_new(conformance *c, size_t n, uint64_t seed) {
    const float *x = conformance_random(c, n, seed);
    return (twin){{conformance_upload(c, x, n), conformance_upload(c, x, n)}, n};
}

static void expect_same(conformance *c, const char *what, int n, const twin *t) {
    const float *steps = conformance_download(c, t->at[0], t->n), *together = conformance_download(c, t->at[1], t->n);
    CONFORMANCE_CHECK(c, !memcmp(steps, together, t->n * sizeof *steps), "%s of %d rows: element %zu of %zu differs",
                      what, n, test_differ(steps, together, t->n), t->n);
}

/* Matrices of different forms; the first one says how the device reads the rows. */
typedef struct matrices {
    conformance_weight weights[LINEARS];
    twin y[LINEARS];
    sn_linear linears[2][LINEARS];
} matrices;

static void matrices_new(conformance *c, int n, const sn_dtype dtypes[LINEARS], size_t cols, matrices *m) {
    for (int i = 0; i < LINEARS; i++) {
        m->weights[i] = conformance_random_weight(c, dtypes[i], ROWS, cols, (uint64_t)i + 1);
        m->y[i] = twin_new(c, (size_t)n * ROWS, 9);
    }
    for (int i = 0; i < 2 * LINEARS; i++)
        m->linears[i % 2][i / 2] = (sn_linear){.weight = &m->weights[i / 2].weight, .y = m->y[i / 2].at[i % 2]};
}

/* Multiplies other rows, so that the device keeps nothing of what the steps made of theirs. */
static void forget(conformance *c, int n, const sn_linear *linear) {
    const float *x = twin_new(c, (size_t)n * linear->weight->cols, 77).at[0];
    CONFORMANCE_OK(c, c->device->ops->linear(c->device, n, x, 1, linear, &c->err));
}

static const sn_dtype forms[][LINEARS] = {
    {SN_Q4_1, SN_Q4_1, SN_F16}, {SN_F16, SN_Q4_1, SN_F32}, {SN_Q6_K, SN_BF16, SN_Q4_1}};
enum { FORMS = sizeof forms / sizeof *forms };
static const int counts[] = {0, 1, 5, 9, 33, N_MAX}; /* few rows for all devices, and many for some */
enum { COUNTS = sizeof counts / sizeof *counts };

/* -- norm_linear */

/* ADDS: as a half of a block; IN_PLACE: as the inner norms. */
typedef enum norm_way { APART, ADDS, IN_PLACE, NORM_WAYS } norm_way;

static void try_norm(conformance *c, int n, const sn_dtype dtypes[LINEARS], bool layer, norm_way way) {
    const sn_device_ops *ops = c->device->ops;
    int mark = c->n_buffers;
    matrices m;
    matrices_new(c, n, dtypes, COLS, &m);
    twin x = twin_new(c, (size_t)n * COLS, 5), h = twin_new(c, (size_t)n * COLS, 6), weight = twin_new(c, COLS, 7);
    if (way == IN_PLACE) h = x;
    const sn_norm norm = {.layer = layer,
                          .width = COLS,
                          .x = x.at[1],
                          .add = way == ADDS ? h.at[1] : NULL,
                          .weight = weight.at[0],
                          .bias = layer ? weight.at[1] : NULL,
                          .eps = 1e-5f,
                          .y = h.at[1]};
    if (way == ADDS) CONFORMANCE_OK(c, ops->add(c->device, x.n, x.at[0], h.at[0], &c->err));
    CONFORMANCE_OK(
        c, layer ? ops->layer_norm(c->device, n, COLS, x.at[0], norm.weight, norm.bias, norm.eps, h.at[0], &c->err)
                 : ops->rms_norm(c->device, n, COLS, x.at[0], norm.weight, norm.eps, h.at[0], &c->err));
    CONFORMANCE_OK(c, ops->linear(c->device, n, h.at[0], LINEARS, m.linears[0], &c->err));
    forget(c, n, m.linears[1]);
    CONFORMANCE_OK(c, ops->norm_linear(c->device, n, &norm, LINEARS, m.linears[1], &c->err));
    expect_same(c, "the sum", n, &x);
    expect_same(c, "the norm", n, &h);
    for (int i = 0; i < LINEARS; i++) expect_same(c, "a product of a norm", n, &m.y[i]);
    conformance_release(c, mark);
}

/* Each number of rows meets each form of weights, each kind of norm and each way. */
void conformance_norm_linear_has_the_bits_of_its_steps(conformance *c) {
    for (int i = 0; i < COUNTS; i++)
        for (int form = 0; form < FORMS; form++)
            for (int layer = 0; layer < 2; layer++)
                try_norm(c, counts[i], forms[form], layer, (norm_way)((i + form + layer) % NORM_WAYS));
}

/* -- activate_linear, activate_moe_linear */

static void try_activation(conformance *c, int n, sn_dtype dtype, sn_activation kind, bool has_up) {
    const sn_device_ops *ops = c->device->ops;
    int mark = c->n_buffers;
    matrices m;
    matrices_new(c, n, (sn_dtype[LINEARS]){dtype, dtype, dtype}, COLS, &m);
    twin gate = twin_new(c, (size_t)n * COLS, 5), up = twin_new(c, (size_t)n * COLS, 6);
    const sn_gated gated = {kind, gate.at[1], has_up ? up.at[1] : NULL, gate.at[1]};
    CONFORMANCE_OK(c,
                   ops->activate(c->device, gate.n, kind, gate.at[0], has_up ? up.at[0] : NULL, gate.at[0], &c->err));
    CONFORMANCE_OK(c, ops->linear(c->device, n, gate.at[0], 1, m.linears[0], &c->err));
    forget(c, n, m.linears[1]);
    CONFORMANCE_OK(c, ops->activate_linear(c->device, n, &gated, m.linears[1], &c->err));
    expect_same(c, "the activation", n, &gate);
    expect_same(c, "a product of an activation", n, &m.y[0]);
    conformance_release(c, mark);
}

void conformance_activate_linear_has_the_bits_of_its_steps(conformance *c) {
    for (int i = 0; i < COUNTS * FORMS * 2; i++)
        try_activation(c, counts[i / 2 % COUNTS], forms[i / 2 / COUNTS][0],
                       (sn_activation)(i / 2 % SN_ACTIVATION_COUNT), i & 1);
}

/* Experts that differ, one after the other. */
static sn_experts experts_new(conformance *c, sn_dtype dtype, int n) {
    sn_experts experts = {.n = n};
    char *all = NULL;
    for (int e = 0; e < n; e++) {
        const sn_weight w = conformance_random_weight(c, dtype, ROWS, COLS, 40 + (uint64_t)e).weight;
        if (!all) experts.stride = (w.bytes + 63) / 64 * 64;
        if (!all) all = conformance_bytes(c, (size_t)n * experts.stride);
        void *image = conformance_heap(c, w.bytes);
        CONFORMANCE_OK(c, c->device->ops->download(c->device, image, w.device, w.bytes, &c->err));
        CONFORMANCE_OK(c, c->device->ops->upload(c->device, all + (size_t)e * experts.stride, image, w.bytes, &c->err));
        experts.first = w;
    }
    experts.first.device = all;
    return experts;
}

/* Some pairs have no expert. */
static void try_experts(conformance *c, int n, sn_dtype dtype) {
    enum { EXPERTS = 4, K = 2 };
    const sn_device_ops *ops = c->device->ops;
    int mark = c->n_buffers;
    const size_t pairs = (size_t)n * K;
    const sn_experts experts = experts_new(c, dtype, EXPERTS);
    twin gate = twin_new(c, pairs * COLS, 5), up = twin_new(c, pairs * COLS, 6), y = twin_new(c, pairs * ROWS, 7);
    int32_t *ids = conformance_heap(c, pairs * sizeof *ids), *device_ids = conformance_bytes(c, pairs * sizeof *ids);
    for (size_t i = 0; i < pairs; i++) ids[i] = (int32_t)((i / K + i % K * 2) % (EXPERTS + 1)) - 1;
    CONFORMANCE_OK(c, ops->upload(c->device, device_ids, ids, pairs * sizeof *ids, &c->err));
    const sn_moe_selection selection = {n, EXPERTS, K, device_ids, NULL};
    const sn_gated gated = {SN_SILU, gate.at[1], up.at[1], gate.at[1]};
    CONFORMANCE_OK(c, ops->activate(c->device, gate.n, SN_SILU, gate.at[0], up.at[0], gate.at[0], &c->err));
    CONFORMANCE_OK(c, ops->moe_linear(c->device, &selection, true, gate.at[0], 1,
                                      &(sn_moe_linear){&experts, NULL, y.at[0]}, &c->err));
    CONFORMANCE_OK(c, ops->moe_linear(c->device, &selection, true, up.at[0], 1, /* forgets, as above */
                                      &(sn_moe_linear){&experts, NULL, y.at[1]}, &c->err));
    CONFORMANCE_OK(
        c, ops->activate_moe_linear(c->device, &selection, &gated, &(sn_moe_linear){&experts, NULL, y.at[1]}, &c->err));
    expect_same(c, "the activation of experts", n, &gate);
    expect_same(c, "a product of experts", n, &y);
    conformance_release(c, mark);
}

void conformance_activate_moe_linear_has_the_bits_of_its_steps(conformance *c) {
    for (int i = 0; i < COUNTS * FORMS; i++) try_experts(c, counts[i % COUNTS], forms[i / COUNTS][0]);
}

/* -- within a batch: rope_store, attention_linear */

enum { KV_HEADS = 2, HEADS = 4, PAGE = 16, PAGES = 16, SESSIONS = 2, PAST = 13 };

/* Up to two sessions, each with a KV cache for the steps and one for the operation. */
typedef struct sessions {
    sn_kv_shape shape;
    int n_rows, n_sessions;
    void *pages[2][SESSIONS][PAGES];
    sn_sequence of[2][SESSIONS];
} sessions;

static void sessions_new(conformance *c, sn_kv_shape shape, int n_sessions, const int past[], const int rows[],
                         sessions *s) {
    *s = (sessions){.shape = shape, .n_sessions = n_sessions};
    for (int i = 0; i < n_sessions; s->n_rows += rows[i++]) {
        const size_t heads = (size_t)past[i] * (size_t)shape.n_kv_heads;
        const float *k = conformance_random(c, heads * (size_t)sn_kv_key_dim(&shape), 20),
                    *v = conformance_random(c, heads * (size_t)sn_kv_value_dim(&shape), 21);
        CONFORMANCE_CHECK(c, past[i] + rows[i] <= PAGES * PAGE, "the case wants more than %d pages", PAGES);
        for (int way = 0; way < 2; way++) {
            void **pages = s->pages[way][i];
            for (int p = 0; p < PAGES; p++)
                pages[p] = conformance_bytes(c, c->device->ops->kv_page_bytes(c->device, &shape));
            s->of[way][i] = (sn_sequence){pages, past[i], s->n_rows, rows[i], {0}};
            CONFORMANCE_OK(c, c->device->ops->kv_write(c->device, &shape, 0, pages, 0, past[i], k, v, &c->err));
        }
    }
}

static void begin(conformance *c, const sessions *s, int way) {
    bool replayed;
    const sn_batch batch = {&s->shape, s->n_rows, s->n_sessions, s->of[way], 0};
    CONFORMANCE_OK(c, c->device->ops->batch_begin(c->device, &batch, &replayed, &c->err));
}

static void end(conformance *c) { CONFORMANCE_OK(c, c->device->ops->batch_end(c->device, &c->err)); }

static void try_rope_store(conformance *c, sn_kv_dtype dtype, int dim, sn_rope rope, int n) {
    const sn_device_ops *ops = c->device->ops;
    int mark = c->n_buffers;
    sessions s;
    sessions_new(c, (sn_kv_shape){1, KV_HEADS, dim, PAGE, dtype, 0, 0, {0}, {0}, 0, 0, false}, 1, (int[]){PAST},
                 (int[]){n}, &s);
    const size_t keys = (size_t)n * KV_HEADS * (size_t)dim;
    twin q = twin_new(c, (size_t)n * HEADS * (size_t)dim, 5), k = twin_new(c, keys, 6), v = twin_new(c, keys, 7);
    rope.cos_sin = twin_new(c, (size_t)n * (size_t)rope.dim, 8).at[0];
    const sn_rotated rotated = {rope, n, HEADS, KV_HEADS, dim, q.at[1], k.at[1]};
    begin(c, &s, 0);
    CONFORMANCE_OK(c, ops->rope(c->device, n, HEADS, dim, q.at[0], &rope, &c->err));
    CONFORMANCE_OK(c, ops->rope(c->device, n, KV_HEADS, dim, k.at[0], &rope, &c->err));
    CONFORMANCE_OK(c, ops->kv_store(c->device, 0, k.at[0], v.at[0], &c->err));
    end(c);
    begin(c, &s, 1);
    CONFORMANCE_OK(c, ops->rope_store(c->device, 0, &rotated, v.at[1], &c->err));
    end(c);
    expect_same(c, "queries", n, &q);
    expect_same(c, "keys", n, &k);
    float *stored[2];
    for (int way = 0; way < 2; way++) {
        stored[way] = conformance_heap(c, 2 * keys * sizeof(float));
        CONFORMANCE_OK(c, ops->kv_read(c->device, &s.shape, 0, s.pages[way][0], PAST, n, stored[way],
                                       stored[way] + keys, &c->err));
    }
    CONFORMANCE_CHECK(c, !memcmp(stored[0], stored[1], 2 * keys * sizeof(float)),
                      "%d rows of %d as %s: other keys or values are stored", n, dim, sn_kv_dtype_name(dtype));
    conformance_release(c, mark);
}

void conformance_rope_store_has_the_bits_of_its_steps(conformance *c) {
    static const int dims[] = {64, 24, 128};
    for (int i = 0; i < SN_KV_DTYPE_COUNT * 3; i++) {
        const int dim = dims[i % 3];
        try_rope_store(c, (sn_kv_dtype)(i / 3), dim, (sn_rope){true, dim, NULL}, 1);
        try_rope_store(c, (sn_kv_dtype)(i / 3), dim, (sn_rope){false, dim / 2, NULL}, 19);
        try_rope_store(c, (sn_kv_dtype)(i / 3), dim, (sn_rope){true, 0, NULL}, 2);
    }
}

static void try_attention(conformance *c, sn_kv_shape shape, sn_dtype dtype, int n_sessions, const int past[],
                          const int rows[]) {
    const sn_device_ops *ops = c->device->ops;
    int mark = c->n_buffers;
    sessions s;
    sessions_new(c, shape, n_sessions, past, rows, &s);
    const int n = s.n_rows;
    const size_t width = HEADS * (size_t)sn_kv_value_dim(&shape);
    twin q = twin_new(c, (size_t)n * HEADS * (size_t)shape.head_dim, 5), out = twin_new(c, (size_t)n * width, 6),
         k = twin_new(c, (size_t)n * (size_t)shape.n_kv_heads * (size_t)sn_kv_key_dim(&shape), 7),
         v = twin_new(c, (size_t)n * (size_t)shape.n_kv_heads * (size_t)sn_kv_value_dim(&shape), 8);
    matrices m;
    matrices_new(c, n, (sn_dtype[LINEARS]){dtype, dtype, dtype}, width, &m);
    const sn_attention attention = {.n_heads = HEADS, .scale = 0.25f};
    for (int way = 0; way < 2; way++) {
        begin(c, &s, way);
        CONFORMANCE_OK(c, ops->kv_store(c->device, 0, k.at[way], v.at[way], &c->err));
        if (way) {
            forget(c, n, m.linears[1]);
            CONFORMANCE_OK(c,
                           ops->attention_linear(c->device, n, &attention, q.at[1], out.at[1], m.linears[1], &c->err));
        } else {
            CONFORMANCE_OK(c, ops->attention(c->device, &attention, q.at[0], out.at[0], &c->err));
            CONFORMANCE_OK(c, ops->linear(c->device, n, out.at[0], 1, m.linears[0], &c->err));
        }
        end(c);
    }
    expect_same(c, "attention", n, &out);
    expect_same(c, "a product of attention", n, &m.y[0]);
    conformance_release(c, mark);
}

/* One row behind a few positions and behind many; rows in tiles; both at once; heads of which 8 bits are not whole
 * groups; a latent cache. */
void conformance_attention_linear_has_the_bits_of_its_steps(conformance *c) {
    static const int past[][SESSIONS] = {{0}, {3}, {200}, {150}, {20}, {150, 5}};
    static const int rows[][SESSIONS] = {{0}, {1}, {1}, {9}, {17}, {1, 24}};
    static const sn_dtype dtypes[] = {SN_Q4_1, SN_F16};
    static const struct {
        int dim, latent;
        sn_kv_dtype dtype;
    } caches[] = {{64, 0, SN_KV_F16}, {24, 0, SN_KV_F32}, {32, 0, SN_KV_Q8}, {96, 64, SN_KV_F32}};
    for (int i = 0; i < 6 * 4 * 2; i++) {
        const int which = i / 2 % 6, cache = i / 12;
        const sn_kv_shape shape = {1,
                                   caches[cache].latent ? 1 : KV_HEADS,
                                   caches[cache].dim,
                                   PAGE,
                                   caches[cache].dtype,
                                   caches[cache].latent,
                                   0,
                                   {0},
                                   {0},
                                   0,
                                   0,
                                   false};
        try_attention(c, shape, dtypes[i % 2], which == 5 ? 2 : 1, past[which], rows[which]);
    }
}

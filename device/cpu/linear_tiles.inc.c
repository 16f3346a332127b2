/* linear of quantised weights and many rows of x by tiles: one instruction multiplies 16 rows of x with 16 rows of the
 * weight over one step of k, the columns that share a scale: 32, or 16 in fine types. Included after a lanes_*.h and
 * a tiles_*.h.
 *
 * The bits are those of kernels.inc.c: the sums of a step are integers and exact, and the float operations on them are
 * the same in the same order, with one row's chain per lane. Float types and few rows are left to LINEAR_FALLBACK.
 *
 * A range of k is unpacked into a stage: signed bytes and scales, whatever the type. Then all rows are multiplied
 * with the stage; between two stages, the chains of the rows rest in y. Two panels are staged at a time, so that x is
 * loaded from the more distant caches half as often. */
#include "device/cpu/weights.inc.c"

#define STAGE_ZERO(t) 0
#include "device/cpu/stage.inc.c"

enum {
    ROWS = 16, /* of x, in a tile; unpacking does not pay for fewer */
    SLOTS = 4, /* steps in flight: a product is ready some 50 cycles later, scaling it takes 25 to 40 */
};

/* The product of 16 rows of x with a stage. */
typedef struct tile_product {
    const stage *stage;
    size_t n_groups;
    const sn_xblock *x;
    size_t x_bytes; /* from one row of x to the next */
    float *chains;  /* (ROWS, chain_stride); the first `lanes` of each row exist */
    size_t chain_stride, lanes;
    bool first_stage; /* the chains begin here: their places hold nothing yet */
} tile_product;

/* The integer sums of a step. Each of the four slots has a tile for its product. */
INLINE void multiply_step(size_t slot, const int8_t *x, size_t x_bytes, const int8_t *w, int32_t sums[ROWS][SN_LANES]) {
#define MULTIPLY(c, a, b)                                                                                              \
    tile_zero(c);                                                                                                      \
    tile_load(a, x, x_bytes);                                                                                          \
    tile_load(b, w, 64);                                                                                               \
    tile_dot(c, a, b);                                                                                                 \
    tile_store(c, sums, sizeof sums[0])
    switch (slot) {
    case 0:
        MULTIPLY(0, 4, 6);
        break;
    case 1:
        MULTIPLY(1, 5, 7);
        break;
    case 2:
        MULTIPLY(2, 4, 6);
        break;
    default:
        MULTIPLY(3, 5, 7);
    }
#undef MULTIPLY
}

/* Adds the integer sums of a step to the chains.
 *
 * 9 parameters: inlined with constant fine and offsets, so that acc stays in registers. */
INLINE void scale_step(bool fine, bool offsets, const float *scales, const float *offset, const sn_xblock *x,
                       size_t x_bytes, size_t half, int32_t sums[ROWS][SN_LANES], vf *acc) {
    const vf d = vf_load(scales), m = vf_load(offset);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        const sn_xblock *xr = x;
        x = (const void *)((const uint8_t *)x + x_bytes);
        /* one addition per row: the compiler would keep 16 offsets, for which there are not enough registers */
        __asm__("" : "+r"(x));
        acc[r] = vf_fma(vf_mul(d, vf_set(xr->d)), vf_from_int(vi_load(sums[r])), acc[r]);
        if (offsets) acc[r] = vf_fma(m, vf_set(fine ? xr->half_sum[half] : xr->sum), acc[r]);
    }
}

INLINE void tile_product_run(bool fine, bool offsets, const tile_product *job) {
    _Alignas(64) int32_t sums[SLOTS][ROWS][SN_LANES];
    const stage *s = job->stage;
    const size_t per_group = fine ? 2 : 1, steps = job->n_groups * per_group,
                 step_bytes = STAGE_GROUP_BYTES / per_group;
    const size_t x_bytes = job->x_bytes, delay = SLOTS - 1;
    vf acc[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++)
        acc[r] = job->first_stage ? vf_set(0) : vf_load_n(job->chains + (size_t)r * job->chain_stride, job->lanes);
    for (size_t i = 0; i < steps + delay; i++) {
        if (i < steps)
            multiply_step(i % SLOTS, job->x[i / per_group].q + 16 * (i % per_group), x_bytes, s->q + i * step_bytes,
                          sums[i % SLOTS]);
        if (i < delay) continue;
        const size_t done = i - delay;
        scale_step(fine, offsets, s->d[done], s->m[done], job->x + done / per_group, x_bytes, done % per_group,
                   sums[done % SLOTS], acc);
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) vf_store_n(job->chains + (size_t)r * job->chain_stride, acc[r], job->lanes);
}

SPECIAL(tile_product_plain, const tile_product *job) { tile_product_run(false, false, job); }
SPECIAL(tile_product_offsets, const tile_product *job) { tile_product_run(false, true, job); }
SPECIAL(tile_product_fine, const tile_product *job) { tile_product_run(true, false, job); }
SPECIAL(tile_product_fine_offsets, const tile_product *job) { tile_product_run(true, true, job); }

/* When the number of rows is not a multiple of 16, the last tile begins earlier and overlaps the tile before it. Its
 * chains lie apart, in `last`; only the rows that no other tile has computed are copied to y. Then adds the bias. */
static void panels_finish(const sn_linear_job *job, size_t panel, const float *last) {
    const size_t first = panel * SN_LANES, lanes = sn_min_size(SN_LANES, job->weight.rows - first), n = (size_t)job->n;
    for (size_t r = n - n % ROWS; r < n; r++)
        vf_store_n(job->y + r * job->weight.rows + first, vf_load(last + (r + ROWS - n) * SN_LANES), lanes);
    if (!job->bias) return;
    const vf bias = vf_load_n(job->bias + first, lanes);
    for (size_t r = 0; r < n; r++) {
        float *y = job->y + r * job->weight.rows + first;
        vf_store_n(y, vf_add(vf_load_n(y, lanes), bias), lanes);
    }
}

/* All rows with `n_panels` panels. */
static void panels_multiply(const sn_linear_job *job, size_t panel, size_t n_panels) {
    static void (*const runs[2][2])(const tile_product *) = {{tile_product_plain, tile_product_offsets},
                                                             {tile_product_fine, tile_product_fine_offsets}};
    const sn_cpu_weight *w = &job->weight;
    const size_t n_groups = w->cols / SN_QUANT_GROUP, n = (size_t)job->n, x_bytes = job->xq_stride * sizeof(sn_xblock);
    stage stages[STAGE_PANELS];
    float last[STAGE_PANELS][ROWS * SN_LANES];
    for (size_t group = 0; group < n_groups; group += STAGE_GROUPS) {
        const size_t n_staged = sn_min_size(STAGE_GROUPS, n_groups - group);
        for (size_t p = 0; p < n_panels; p++)
            stage_fill[w->dtype](&stages[p], w, job->prefetch, panel + p, group, n_staged);
        for (size_t row = 0; row < n; row += ROWS)
            for (size_t p = 0; p < n_panels; p++) {
                const size_t from = sn_min_size(row, n - ROWS), first = (panel + p) * SN_LANES;
                tile_product m = {&stages[p], n_staged, job->xq + from * job->xq_stride + group,
                                  x_bytes,    last[p],  SN_LANES,
                                  SN_LANES,   !group};
                if (from == row) {
                    m.chains = job->y + row * w->rows + first;
                    m.chain_stride = w->rows;
                    m.lanes = sn_min_size(SN_LANES, w->rows - first);
                }
                runs[sn_cpu_fine(w->dtype)][sn_cpu_offsets(w->dtype)](&m);
            }
    }
    for (size_t p = 0; p < n_panels; p++) panels_finish(job, panel + p, last[p]);
}

/* Tiles 0 to 3 hold products, 4 and 5 x, 6 and 7 weights. */
static tile_config tile_shapes(uint16_t step) {
    tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.rows[t] = t < 6 ? ROWS : (uint8_t)(step / 4);
        config.row_bytes[t] = t < 4 || t > 5 ? 64 : step;
    }
    return config;
}

void LINEAR_TILES(const sn_linear_job *job, size_t first_panel, size_t end_panel) {
    if (!sn_cpu_quantised(job->weight.dtype) || job->n < ROWS || !job->weight.n_blocks) {
        LINEAR_FALLBACK(job, first_panel, end_panel);
        return;
    }
    const tile_config config = tile_shapes(sn_cpu_fine(job->weight.dtype) ? 16 : 32);
    tile_configure(&config);
    for (size_t panel = first_panel; panel < end_panel; panel += STAGE_PANELS)
        panels_multiply(job, panel, sn_min_size(STAGE_PANELS, end_panel - panel));
    tile_release(); /* the thread may run other code next, which must not find its tiles configured */
}

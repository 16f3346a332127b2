/* Quantised matrices against many rows of x by tiles: one instruction multiplies 16 rows of x with 16 rows of the weight, a step
 * of k at a time: as many as have one scale, 32 or (FINE) 16. Included behind a lanes_*.h and a tiles_*.h.
 *
 * The bits are those of kernels.inc.c: a step's sums are of integers and exact; what floats do with them is done here, too, by
 * the same operations in the same order, a row's chain a lane. All else (float layouts, few rows) is left to LINEAR_OTHERWISE.
 *
 * A piece of k is unpacked into a stage, for which a layout is signed bytes and scales; all rows then meet it, and a row's chain
 * rests in y between one stage and the next. Two panels are staged at a time, so that x comes from farther away half as often. */
#include "device/cpu/weights.inc.c"

#include "base/mem.h"

enum {
    ROWS = 16, /* of x, in a tile; fewer are not worth unpacking for */
    STAGE_GROUPS = 16, /* of 32 k: stages and the piece of 16 rows of x that meets them fit the first-level cache */
    STAGE_PANELS = 2,
    SLOTS = 4, /* steps under way: a product is there some 50 cycles later, scaling takes 25 to 40 */
};

typedef struct stage {
    _Alignas(64) int8_t q[STAGE_GROUPS * SN_Q8_BYTES]; /* [k / 4][lane][k % 4] */
    float d[2 * STAGE_GROUPS][SN_LANES], m[2 * STAGE_GROUPS][SN_LANES]; /* of each step */
} stage;

static void unpack_quants(sn_layout layout, const uint8_t *q, int8_t *out) {
    static const int8_t from_0[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const int8_t from_minus_8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const int8_t *table = layout == SN_LAYOUT_Q4_TABLE    ? sn_q4_table
                          : layout == SN_LAYOUT_Q4_SIGNED ? from_minus_8
                                                          : from_0;
    if (!sn_layout_nibbles(layout))
        for (int i = 0; i < SN_Q8_BYTES; i++) out[i] = (int8_t)(q[i] - 128);
    else
        for (int i = 0; i < SN_Q4_BYTES; i += 64) {
            vb both = vb_load(q + i);
            vb_store(out + i, vb_lookup(table, vb_low(both)));
            vb_store(out + SN_Q4_BYTES + i, vb_lookup(table, vb_high(both)));
        }
}

/* Groups [first, first + n) of a panel. */
static void fill(stage *s, const sn_cpu_weight *w, sn_ahead ahead, size_t panel, size_t first, size_t n) {
    const bool super = sn_layout_super(w->layout);
    const size_t block_bytes = w->panel_bytes / w->n_blocks, in_block = super ? SN_SUPER_GROUPS : 1;
    const size_t quants = sn_layout_nibbles(w->layout) ? SN_Q4_BYTES : SN_Q8_BYTES;
    const int steps = sn_layout_fine(w->layout) ? 2 : 1;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *block = w->data + panel * w->panel_bytes + (first + i) / in_block * block_bytes;
        const uint8_t *q = block + (super ? SN_SUPER_HEAD + (first + i) % in_block * (quants + SN_SUPER_SCALES) : 0);
        vf head_d = super ? vf_from_f16(block) : vf_set(0), head_m = super ? vf_from_f16(block + 32) : head_d;
        prefetch_lines(q, super ? quants + SN_SUPER_SCALES : block_bytes, ahead);
        unpack_quants(w->layout, q, s->q + i * SN_Q8_BYTES);
        for (int h = 0; h < steps; h++) {
            vf d, m = vf_set(0);
            load_scales(w->layout, q + quants, h, head_d, head_m, &d, &m);
            vf_store(s->d[i * (size_t)steps + (size_t)h], d);
            vf_store(s->m[i * (size_t)steps + (size_t)h], m);
        }
    }
}

/* 16 rows of x against a stage. */
typedef struct meeting {
    const stage *stage;
    size_t n_groups;
    const sn_xblock *x;
    size_t x_bytes; /* rows are apart */
    float *chains; /* of the rows, `apart` from each other; `lanes` of each are there */
    size_t apart, lanes;
    bool begin; /* chains begin here: nothing is in their place yet */
} meeting;

/* The integers of a step. A product has a tile of its own until its turn comes again. */
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

/* A step's integers into the chains. */
INLINE void scale_step(bool fine, bool offsets, const float *scales, const float *offset, const sn_xblock *x, size_t x_bytes,
                       size_t half, int32_t sums[ROWS][SN_LANES], vf *acc) {
    const vf d = vf_load(scales), m = vf_load(offset);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        const sn_xblock *xr = x;
        x = (const void *)((const uint8_t *)x + x_bytes);
        __asm__("" : "+r"(x)); /* an addition a row: the compiler would keep 16 distances, for which there are no registers */
        acc[r] = vf_fma(vf_mul(d, vf_set(xr->d)), vf_from_int(vi_load(sums[r])), acc[r]);
        if (offsets) acc[r] = vf_fma(m, vf_set(fine ? xr->half_sum[half] : xr->sum), acc[r]);
    }
}

INLINE void meet(bool fine, bool offsets, const meeting *job) {
    _Alignas(64) int32_t sums[SLOTS][ROWS][SN_LANES];
    const stage *s = job->stage;
    const size_t per_group = fine ? 2 : 1, steps = job->n_groups * per_group, step_bytes = SN_Q8_BYTES / per_group;
    const size_t x_bytes = job->x_bytes, ahead = SLOTS - 1;
    vf acc[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++)
        acc[r] = job->begin ? vf_set(0) : vf_load_n(job->chains + (size_t)r * job->apart, job->lanes);
    for (size_t i = 0; i < steps + ahead; i++) {
        if (i < steps)
            multiply_step(i % SLOTS, job->x[i / per_group].q + 16 * (i % per_group), x_bytes, s->q + i * step_bytes,
                          sums[i % SLOTS]);
        if (i < ahead) continue;
        const size_t done = i - ahead;
        scale_step(fine, offsets, s->d[done], s->m[done], job->x + done / per_group, x_bytes, done % per_group,
                   sums[done % SLOTS], acc);
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) vf_store_n(job->chains + (size_t)r * job->apart, acc[r], job->lanes);
}

SPECIAL(meet_plain, const meeting *job) { meet(false, false, job); }
SPECIAL(meet_offsets, const meeting *job) { meet(false, true, job); }
SPECIAL(meet_fine, const meeting *job) { meet(true, false, job); }
SPECIAL(meet_fine_offsets, const meeting *job) { meet(true, true, job); }

/* The last tile of rows that are no multiple of 16 begins earlier, among rows of the tile before: its chains are apart, and of
 * them only those are taken that nobody else has. */
static void finish(const sn_linear_job *job, size_t panel, const float *last) {
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

/* All rows against `n_panels` panels. */
static void some_panels(const sn_linear_job *job, size_t panel, size_t n_panels) {
    static void (*const meets[2][2])(const meeting *) = {{meet_plain, meet_offsets}, {meet_fine, meet_fine_offsets}};
    const sn_cpu_weight *w = &job->weight;
    const size_t n_groups = w->cols / SN_QUANT_GROUP, n = (size_t)job->n, x_bytes = job->xq_stride * sizeof(sn_xblock);
    stage stages[STAGE_PANELS];
    float last[STAGE_PANELS][ROWS * SN_LANES];
    for (size_t group = 0; group < n_groups; group += STAGE_GROUPS) {
        const size_t n_staged = sn_min_size(STAGE_GROUPS, n_groups - group);
        for (size_t p = 0; p < n_panels; p++) fill(&stages[p], w, job->ahead, panel + p, group, n_staged);
        for (size_t row = 0; row < n; row += ROWS)
            for (size_t p = 0; p < n_panels; p++) {
                const size_t from = sn_min_size(row, n - ROWS), first = (panel + p) * SN_LANES;
                meeting m = {&stages[p], n_staged, job->xq + from * job->xq_stride + group, x_bytes, last[p], SN_LANES,
                             SN_LANES, !group};
                if (from == row) {
                    m.chains = job->y + row * w->rows + first;
                    m.apart = w->rows;
                    m.lanes = sn_min_size(SN_LANES, w->rows - first);
                }
                meets[sn_layout_fine(w->layout)][sn_layout_offsets(w->layout)](&m);
            }
    }
    for (size_t p = 0; p < n_panels; p++) finish(job, panel + p, last[p]);
}

/* Tiles 0 to 3 are products, 4 and 5 x, 6 and 7 weights. */
static tile_config shapes(uint16_t step) {
    tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.rows[t] = t < 6 ? ROWS : (uint8_t)(step / 4);
        config.row_bytes[t] = t < 4 || t > 5 ? 64 : step;
    }
    return config;
}

void LINEAR_TILES(const sn_linear_job *job, size_t first_panel, size_t end_panel) {
    if (!sn_layout_quantised(job->weight.layout) || job->n < ROWS || !job->weight.n_blocks) {
        LINEAR_OTHERWISE(job, first_panel, end_panel);
        return;
    }
    const tile_config config = shapes(sn_layout_fine(job->weight.layout) ? 16 : 32);
    tile_configure(&config);
    for (size_t panel = first_panel; panel < end_panel; panel += STAGE_PANELS)
        some_panels(job, panel, sn_min_size(STAGE_PANELS, end_panel - panel));
    tile_release(); /* the thread's next work is another one's */
}

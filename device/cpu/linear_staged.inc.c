/* linear of quantised weights and many rows of x, where unpacking costs much: a part of two panels is unpacked into
 * stages, which all rows are then multiplied with, in tiles of 3 or 4. So what a type costs to unpack hardly counts,
 * and one loop serves all types whose numbers are of one form. Part of kernels.inc.c; the bits are those of its other
 * tiles, because sums of integers are exact and the operations on floats are the same in the same order. */

/* Numbers below 2^bits; fine, offsets: as the type. Constants of each tile function. */
typedef struct staged_form {
    int bits;
    bool fine, offsets;
} staged_form;

/* Of all types with numbers of 8 bits that are staged, 7 suffice. Where the number of bits does not count, the numbers
 * are those whose bias is at hand. */
enum { FEW_BITS = 4, MORE_BITS = 6, MOST_BITS = WIDE_SUMS ? 8 : 7 };
INLINE int staged_bits(sn_dtype t) {
    if (sn_cpu_bits(t) == 8 || (WIDE_SUMS && !sn_cpu_fine(t))) return MOST_BITS;
    return sn_cpu_bits(t) < 5 && !WIDE_SUMS ? FEW_BITS : MORE_BITS;
}
/* By how much they are larger than the integers. */
INLINE int staged_zero(int bits, bool offsets) {
    return bits > MORE_BITS ? 1 << (bits - 1) : offsets ? 0 : bits == MORE_BITS ? 32 : 8;
}
#define STAGE_ZERO(t) staged_zero(staged_bits(t), sn_cpu_offsets(t))
#include "device/cpu/stage.inc.c"

enum {
    STAGED_TILE = 4,                       /* rows */
    STAGED_MIN = 9,                        /* fewer would leave tiles of 1 or 2 */
    STAGED_MAX = 128,                      /* rows whose chains rest between two stages */
    STAGED_PANELS = ROW_TILE >= 8 ? 2 : 1, /* in a tile: with more there would be too few registers */
};

/* Whether stages pay for n rows: measured. Others of the types are unpacked as quickly as a stage is written. */
INLINE bool is_staged(sn_dtype t, int n) {
    const sn_quant_form *f = &sn_quant_forms[t];
    if (!sn_cpu_quantised(t) || n < STAGED_MIN) return false;
    if (f->entry || (f->table && sn_cpu_fine(t))) return true;
    return n >= 48 && (sn_cpu_fine(t) || f->table == 2 || (f->high_bits && !WIDE_SUMS));
}

/* Some rows and panels that meet stages. The chains of the rows rest between two stages. */
typedef struct staged_rows {
    const sn_linear_job *job;
    size_t panel;
    int row;
    size_t group, n_groups; /* of the stages */
    float (*chains)[STAGE_PANELS * SN_LANES];
} staged_rows;

/* The integer sums of a group in each panel and row, sum[p * rows + r], or of its half h, unless both come at once.
 *
 * 9 parameters: inlined with constant form, rows and panels, so that the sums stay in registers. */
INLINE void staged_sums(staged_form f, int rows, int panels, const stage *s, size_t g, int h, const sn_xblock *x,
                        size_t stride, vs *sum) {
    const bool half = f.fine && !HALVES_AT_ONCE, both = f.fine && !half;
    const int pairs = half ? 2 : 4;
    UNROLL
    for (int i = 0; i < panels * rows; i++) sum[i] = vs_zero();
    UNROLL
    for (int i = 0; i < pairs; i++) {
        const int first = both ? i : 2 * i + (half ? 4 * h : 0), second = both ? i + 4 : first + 1;
        vw a[STAGE_PANELS], b[STAGE_PANELS];
        UNROLL
        for (int p = 0; p < panels; p++) {
            const int8_t *w = s[p].q + g * STAGE_GROUP_BYTES;
            a[p] = vw_of(f.bits, vb_load(w + SN_VECTOR * first)), b[p] = vw_of(f.bits, vb_load(w + SN_VECTOR * second));
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const int8_t *q = x[(size_t)r * stride].q;
            UNROLL
            for (int p = 0; p < panels; p++)
                sum[p * rows + r] = vs_dot(sum[p * rows + r], f.bits, a[p], q + 4 * first, b[p], q + 4 * second);
        }
    }
}

INLINE void staged_tile(staged_form f, int rows, int panels, const stage *s, const staged_rows *part) {
    const sn_linear_job *job = part->job;
    const int halves = f.fine ? 2 : 1;
    const size_t stride = job->xq_stride;
    const sn_xblock *x = job->xq + (size_t)part->row * stride + part->group;
    vf acc[STAGE_PANELS * STAGED_TILE];
    vs sum[STAGE_PANELS * STAGED_TILE];
    UNROLL
    for (int i = 0; i < panels * rows; i++)
        acc[i] = part->group ? vf_load(part->chains[i % rows] + i / rows * SN_LANES) : vf_set(0);
    for (size_t g = 0; g < part->n_groups; g++, x++) {
        UNROLL
        for (int h = 0; h < halves; h++) {
            if (!h || !HALVES_AT_ONCE) staged_sums(f, rows, panels, s, g, h, x, stride, sum);
            UNROLL
            for (int i = 0; i < panels * rows; i++) {
                const stage *own = &s[i / rows];
                const size_t step = g * (size_t)halves + (size_t)h;
                const sn_xblock *xr = x + (size_t)(i % rows) * stride;
                const vi bias = zero_bias(staged_zero(f.bits, f.offsets), f.fine, xr, h),
                         dot = vs_end(sum[i], f.bits, f.fine && HALVES_AT_ONCE ? h : -1, bias);
                acc[i] = vf_fma(vf_mul(vf_load(own->d[step]), vf_set(xr->d)), vf_from_int(dot), acc[i]);
                if (f.offsets)
                    acc[i] = vf_fma(vf_load(own->m[step]), vf_set(f.fine ? xr->half_sum[h] : xr->sum), acc[i]);
            }
        }
    }
    if ((part->group + part->n_groups) * SN_QUANT_GROUP < job->weight.cols) {
        UNROLL
        for (int i = 0; i < panels * rows; i++) vf_store(part->chains[i % rows] + i / rows * SN_LANES, acc[i]);
        return;
    }
    UNROLL
    for (int p = 0; p < panels; p++) store_tile(rows, job, part->panel + (size_t)p, part->row, acc + p * rows);
}

typedef void (*staged_fn)(const stage *s, const staged_rows *part);
#define STAGED(bits, fine, offsets, rows, panels)                                                                      \
    SPECIAL(staged_##bits##_##fine##_##offsets##_##rows##_##panels, const stage *s, const staged_rows *part) {         \
        staged_tile((staged_form){bits, fine, offsets}, rows, panels, s, part);                                        \
    }
#define STAGED_NAME(bits, fine, offsets, rows, panels) staged_##bits##_##fine##_##offsets##_##rows##_##panels,
#if ROW_TILE >= 8
#define STAGED_SHAPES(X, ...) X(__VA_ARGS__, 3, 1) X(__VA_ARGS__, 3, 2) X(__VA_ARGS__, 4, 1) X(__VA_ARGS__, 4, 2)
#else
#define STAGED_SHAPES(X, ...) X(__VA_ARGS__, 3, 1) X(__VA_ARGS__, 4, 1)
#endif
#define STAGED_FORMS(X, bits)                                                                                          \
    STAGED_SHAPES(X, bits, 0, 0) STAGED_SHAPES(X, bits, 0, 1) STAGED_SHAPES(X, bits, 1, 0) STAGED_SHAPES(X, bits, 1, 1)
STAGED_FORMS(STAGED, FEW_BITS)
STAGED_FORMS(STAGED, MORE_BITS)
STAGED_FORMS(STAGED, MOST_BITS)
/* By bits, fine, offsets, rows - 3 and panels - 1, in this order. */
static const staged_fn staged_fns[] = {STAGED_FORMS(STAGED_NAME, FEW_BITS) STAGED_FORMS(STAGED_NAME, MORE_BITS)
                                           STAGED_FORMS(STAGED_NAME, MOST_BITS)};
static staged_fn staged_fn_of(sn_dtype t, size_t rows, size_t panels) {
    const size_t form = ((size_t)staged_bits(t) - 3) / 2 * 4 + sn_cpu_fine(t) * 2 + sn_cpu_offsets(t);
    return staged_fns[(form * 2 + rows - 3) * STAGED_PANELS + panels - 1];
}

/* Rows [row, row + n) with some panels. */
static void staged_multiply(const sn_linear_job *job, size_t panel, size_t n_panels, size_t row, size_t n) {
    const sn_cpu_weight *w = &job->weight;
    const size_t n_groups = w->cols / SN_QUANT_GROUP;
    stage stages[STAGE_PANELS];
    _Alignas(64) float chains[STAGED_MAX][STAGE_PANELS * SN_LANES];
    for (size_t group = 0; group < n_groups; group += STAGE_GROUPS) {
        const size_t n_staged = sn_min_size(STAGE_GROUPS, n_groups - group);
        for (size_t p = 0; p < n_panels; p++)
            stage_fill[w->dtype](&stages[p], w, job->prefetch, panel + p, group, n_staged);
        for (size_t r = 0, rows, left = (n + STAGED_TILE - 1) / STAGED_TILE; left; r += rows, left--) {
            rows = (n - r + left - 1) / left;
            for (size_t p = 0, panels; p < n_panels; p += panels) {
                panels = sn_min_size(STAGED_PANELS, n_panels - p);
                const staged_rows part = {job,   panel + p, (int)(row + r),
                                          group, n_staged,  (void *)(chains[r] + p * SN_LANES)};
                staged_fn_of(w->dtype, rows, panels)(&stages[p], &part);
            }
        }
    }
}

static void linear_staged(const sn_linear_job *job, size_t first_panel, size_t end_panel) {
    const size_t parts = ((size_t)job->n + STAGED_MAX - 1) / STAGED_MAX;
    for (size_t panel = first_panel; panel < end_panel; panel += STAGE_PANELS)
        for (size_t row = 0, rows, left = parts; left; row += rows, left--) {
            rows = ((size_t)job->n - row + left - 1) / left;
            staged_multiply(job, panel, sn_min_size(STAGE_PANELS, end_panel - panel), row, rows);
        }
}

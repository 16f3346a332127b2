/* The arithmetic of the CPU backend, written once in terms of a vector of 16 lanes. kernels_c.c, kernels_avx2.c
 * and their like include it after the lanes_*.h that defines the vector for their instruction set.
 *
 * THE PROMISE: a row's result has the same bits, whatever the number of rows and sequences in the call, the number of
 * threads, and the instruction set.
 *
 * Floating-point addition is not associative: (a + b) + c and a + (b + c) differ in the last bit, so the value of a sum
 * depends on its order. The usual fast kernels let vector width, thread count and batch size choose that order. Here
 * the order is fixed by five rules:
 *
 * 1. A vector lane is one output element. Multiplying by a matrix computes 16 outputs at a time, and each of them is
 * ONE chain acc = fma(w, x, acc) in the order of k, as if that output were computed alone. Any number of chains (rows,
 * panels, threads) may run at the same time: they do not depend on each other.
 * 2. Sums of integers are exact, so their order is free. A quantised weight is d * q + m with an integer q, and so is
 * an activation (quantised by the largest element of its own row in each group of 32). The products of integers in a
 * block are summed in whatever way is fastest on the machine; then one chain runs over the blocks: acc = fma(dw * dx,
 * (float)sum, acc), and acc = fma(m, dx * (float)(sum of x's integers), acc) where the type has offsets.
 * 3. A sum along a row (a norm, the denominator of a softmax) is 16 partial sums, where element i belongs to partial
 * sum i % 16, and one fixed tree adds these (tree_sum). In the softmax, i is the absolute position.
 * 4. Only operations that IEEE 754 rounds correctly are used: + - * / sqrt fma and conversions. exp is a polynomial of
 * those. The compiler may not fuse or reorder them (-ffp-contract=off, no -ffast-math); denormals are not flushed.
 * 5. Data that do not belong to a row cannot reach it: positions after a row's own, or before its window, are excluded
 * by the bounds of the loops, not multiplied by zero, so that their contents (even NaN) do not matter.
 *
 * NaN stays visible: a row that contains NaN or infinity becomes NaN or infinity where it should (NaN throughout in a
 * quantised product), and other rows do not change. The bit pattern of a NaN in the result is not part of the promise.
 */
#include "base/math.h"
#include "device/cpu/weights.inc.c"

#include <string.h>

/* -- sums along a row, and exp */

static float tree_sum(vf partial) {
    float t[SN_LANES];
    vf_store(t, partial);
    for (int width = SN_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) t[i] += t[i + width];
    return t[0];
}

/* exp(x) = 2^n * exp(r), where n is the integer nearest to x / ln 2 and |r| <= ln 2 / 2. Error below 2 units in the
 * last place. Zero below -87.33, where results would be subnormal; infinity above 88.72; NaN for NaN. */
INLINE vf exp_lanes(vf x) {
    const vf low = vf_set(-87.33f), high = vf_set(88.72283f), magic = vf_set(0x1.8p23f);
    vf y = vf_min(vf_max(x, low), high);                  /* NaN becomes low here, and NaN again at the end */
    vf shifted = vf_fma(y, vf_set(0x1.715476p0f), magic); /* adding 1.5 * 2^23 rounds to an integer in the low bits */
    vf n = vf_sub(shifted, magic);
    vf r = vf_fma(n, vf_set(-0x1.62e4p-1f), y); /* ln 2 in two parts */
    r = vf_fma(n, vf_set(-0x1.7f7d1cp-20f), r);
    vf p = vf_set(0x1.6d7544p-10f); /* interpolates exp at the Chebyshev nodes of the interval of r */
    p = vf_fma(p, r, vf_set(0x1.126fb8p-7f));
    p = vf_fma(p, r, vf_set(0x1.5554acp-5f));
    p = vf_fma(p, r, vf_set(0x1.555404p-3f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r, vf_set(1));
    p = vf_fma(p, r, vf_set(1));
    p = vf_bits(vi_add(vi_bits(p), vi_exponent(vi_sub(vi_bits(shifted), vi_bits(magic)))));
    p = vf_if_less(x, low, vf_set(0), p);
    p = vf_if_less(high, x, vf_set(__builtin_inff()), p);
    return vf_if_nan(x, x, p);
}

/* -- quantised activations */

/* One block: d = amax / 127, q = x * (127 / amax) rounded to nearest even. A block whose largest element is below
 * 2^-100 counts as zero (127 / amax must be finite); a block with NaN or infinity gets d = NaN. */
INLINE void quantize_block(const float *x, sn_xblock *out) {
    const vf a = vf_load(x), b = vf_load(x + 16), magic = vf_set(0x1.8p23f);
    const vi absolute = vi_set(0x7fffffff);
    /* The bits of non-negative floats have the order of the floats, with NaN above all: the integer maximum sees NaN.
     */
    union {
        int32_t i;
        float f;
    } amax = {vi_top(vi_max(vi_and(vi_bits(a), absolute), vi_and(vi_bits(b), absolute)))};
    if (!(amax.f >= 0x1p-100f) || amax.i >= 0x7f800000) {
        float d = amax.i >= 0x7f800000 ? __builtin_nanf("") : 0;
        *out = (sn_xblock){.d = d, .sum = d, .half_sum = {d, d}};
        return;
    }
    vf inverse = vf_set(127 / amax.f);
    vi qa = vi_sub(vi_bits(vf_add(vf_mul(a, inverse), magic)), vi_bits(magic));
    vi qb = vi_sub(vi_bits(vf_add(vf_mul(b, inverse), magic)), vi_bits(magic));
    vi_store_i8(out->q, qa);
    vi_store_i8(out->q + 16, qb);
    int32_t sum_a = vi_sum(qa), sum_b = vi_sum(qb);
    out->d = amax.f / 127;
    out->sum = out->d * (float)(sum_a + sum_b);
    out->half_sum[0] = out->d * (float)sum_a;
    out->half_sum[1] = out->d * (float)sum_b;
    out->bias = -128 * (sum_a + sum_b);
    out->half_bias[0] = -32 * sum_a;
    out->half_bias[1] = -32 * sum_b;
    out->nibble_bias = -8 * (sum_a + sum_b);
}

static void quantize(size_t cols, const float *x, sn_xblock *out) {
    for (size_t i = 0; i < cols / 32; i++) quantize_block(x + 32 * i, &out[i]);
}

/* -- linear, quantised types: one panel and `rows` rows of x. acc[r] holds 16 outputs of row r. The number of rows and
 * the type are constants of each tile function, so that acc stays in registers. */

/* What corrects a product with numbers that are larger than the integers by `zero`. The shifts are exact. */
INLINE vi zero_bias(int zero, bool fine, const sn_xblock *x, int h) {
    const vi half = vi_set(x->half_bias[h]);
    switch (zero) {
    case 1:
        return vi_shift(vi_set(x->nibble_bias), 3);
    case 4:
        return vi_shift(half, 3);
    case 8:
        return fine ? vi_shift(half, 2) : vi_set(x->nibble_bias);
    case 12:
        if (fine) return vi_add(vi_shift(half, 3), vi_shift(half, 2));
        return vi_add(vi_set(x->nibble_bias), vi_shift(vi_set(x->nibble_bias), 1));
    case 16:
        return fine ? vi_shift(half, 1) : vi_shift(vi_set(x->bias), 3);
    case 32:
        return fine ? half : vi_shift(vi_set(x->bias), 2);
    case 64:
        return fine ? vi_shift(half, -1) : vi_shift(vi_set(x->bias), 1);
    case 128:
        return fine ? vi_shift(half, -2) : vi_set(x->bias);
    default: /* 0: types with offsets */
        return vi_set(0);
    }
}

/* Whether one pass gives the sums of both halves. Of few rows their chains would be too few. */
INLINE bool at_once(int rows) { return HALVES_AT_ONCE && rows > 2; }

#ifdef ROW_PAIRS /* an instruction multiplies two rows at a time */
#include "device/cpu/row_pairs.inc.c"
#else
/* The integer sums of one group of 32 k for each row, or of its half h in fine types, unless both come at once. */
INLINE void group_sums(int rows, sn_dtype t, group_at g, int h, const sn_xblock *x, size_t stride, vs *sum) {
    const bool half = sn_cpu_fine(t) && !at_once(rows), bytes = sn_quant_forms[t].low_bits == 8;
    const int pairs = half ? 2 : 4, begin = half ? 4 * h : 0;
    vb vectors[8]; /* of codebook types */
    if (sn_quant_forms[t].entry) load_vectors(t, g, begin, 2 * pairs, vectors);
    UNROLL
    for (int r = 0; r < rows; r++) sum[r] = vs_zero();
    UNROLL
    for (int i = 0; i < pairs; i++) { /* two vectors: neighbours, or of both halves, which may share bytes */
        const int first = half ? 4 * h + 2 * i : bytes ? 2 * i : i, second = half || bytes ? first + 1 : i + 4;
        const bool entries = sn_quant_forms[t].entry;
        const vw a = vw_of(sn_cpu_bits(t), entries ? vectors[first - begin] : load_numbers(t, g.w, first));
        const vw b = vw_of(sn_cpu_bits(t), entries ? vectors[second - begin] : load_numbers(t, g.w, second));
        UNROLL
        for (int r = 0; r < rows; r++) { /* each weight is loaded once for all rows */
            const int8_t *q = x[(size_t)r * stride].q;
            sum[r] = vs_dot(sum[r], sn_cpu_bits(t), a, q + 4 * first, b, q + 4 * second);
        }
    }
}
#endif

/* One group of 32 k.
 *
 * 8 parameters: inlined with constant rows and type; a struct would keep acc and the heads out of registers. */
INLINE void group_tile(int rows, sn_dtype t, group_at g, vf head_d, vf head_m, const sn_xblock *x, size_t stride,
                       vf *acc) {
    const bool fine = sn_cpu_fine(t);
    const int halves = fine ? 2 : 1;
    vs sum[ROW_TILE];
    UNROLL
    for (int h = 0; h < halves; h++) {
        vf d, m = vf_set(0);
        if (!h || !at_once(rows)) group_sums(rows, t, g, h, x, stride, sum);
        load_scales(t, g.w + sn_cpu_code_bytes(t), h, head_d, head_m, &d, &m);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const sn_xblock *xr = x + (size_t)r * stride;
            const vi bias = zero_bias(sn_cpu_zero(t), fine, xr, h);
            const vi dot = vs_end(sum[r], sn_cpu_bits(t), fine && at_once(rows) ? h : -1, bias);
            acc[r] = vf_fma(vf_mul(d, vf_set(xr->d)), vf_from_int(dot), acc[r]);
            if (sn_cpu_offsets(t)) acc[r] = vf_fma(m, vf_set(fine ? xr->half_sum[h] : xr->sum), acc[r]);
        }
    }
}

/* Quantised types: one panel and `rows` rows; acc[r] as above.
 *
 * 8 parameters: inlined with constant rows and type, so that acc stays in registers. */
INLINE void quantised_tile(int rows, sn_dtype t, const uint8_t *w, size_t n_blocks, sn_prefetch prefetch,
                           const sn_xblock *x, size_t stride, vf *acc) {
    for (size_t b = 0; b < n_blocks; b++) {
        vf head_d, head_m;
        uint16_t places[PLACES];
        prefetch_lines(w, sn_cpu_head_bytes(t), prefetch);
        load_head(t, w, &head_d, &head_m);
        w += sn_cpu_head_bytes(t);
        load_places(t, w, sn_cpu_groups(t), places);
        for (size_t g = 0; g < sn_cpu_groups(t); g++, x++, w += sn_cpu_group_bytes(t)) {
            prefetch_lines(w, sn_cpu_group_bytes(t), prefetch);
            group_tile(rows, t, group_of(t, w, g, places), head_d, head_m, x, stride, acc);
        }
    }
}

/* Float types: one panel, or both panels of a pair, and `rows` rows: acc[p * rows + r].
 *
 * 9 parameters: inlined with constant rows, panels and type, so that acc stays in registers. */
INLINE void float_tile(int rows, int panels, sn_dtype t, const uint8_t *w, size_t step, size_t cols,
                       sn_prefetch prefetch, const float *x, vf *acc) {
    for (size_t k = 0; k < cols; k++, w += step, x++) {
        prefetch_lines(w, 1, prefetch);
        UNROLL
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = w + p * 2 * SN_LANES;
            vf wk = t == SN_F32 ? vf_load((const float *)at) : t == SN_F16 ? vf_from_f16(at) : vf_from_bf16(at);
            UNROLL
            for (int r = 0; r < rows; r++)
                acc[p * rows + r] = vf_fma(wk, vf_set(x[(size_t)r * cols]), acc[p * rows + r]);
        }
    }
}

/* 16 elements of F8, as the halves of sn_f8_half. */
INLINE vf load_f8(sn_dtype t, const uint8_t *w) {
    uint16_t halves[SN_LANES];
    if (t == SN_F8_E4M3) return vf_from_f8(w);
    for (int i = 0; i < SN_LANES; i++) halves[i] = sn_f8_half(t, w[i]);
    return vf_from_f16((const uint8_t *)halves);
}

/* F8: as float_tile with one panel, whose weights are multiplied by the scale of their block first. */
INLINE void f8_tile(int rows, sn_dtype t, const uint8_t *w, size_t cols, sn_prefetch prefetch, const float *x,
                    vf *acc) {
    for (size_t block = 0; block < cols / SN_F8_K; block++) {
        const vf scale = vf_load((const float *)w);
        prefetch_lines(w, SN_F8_SCALES, prefetch);
        w += SN_F8_SCALES;
        for (int k = 0; k < SN_F8_K; k++, w += SN_LANES, x++) {
            if (k % (LINE / SN_LANES) == 0) prefetch_lines(w, LINE, prefetch);
            vf wk = vf_mul(load_f8(t, w), scale);
            UNROLL
            for (int r = 0; r < rows; r++) acc[r] = vf_fma(wk, vf_set(x[(size_t)r * cols]), acc[r]);
        }
    }
}

/* The scales of part `part` of the block at `block` of a panel of NF4 or FP4. */
INLINE vf float4_scales(sn_dtype t, const uint8_t *panel, const uint8_t *block, size_t part) {
    float numbers[SN_LANES];
    const uint8_t *codes = block + SN_F8_SCALES + SN_LANES * part;
    if (!sn_float4_twice(t)) return vf_load((const float *)block);
    for (int i = 0; i < SN_LANES; i++) numbers[i] = sn_float4_scales[codes[i]];
    return vf_add(vf_mul(vf_load(numbers), vf_load((const float *)block)), vf_load((const float *)panel));
}

/* NF4 and FP4: the same, of the panel at `panel`.
 *
 * 7 parameters: inlined with constant rows and type. */
INLINE void float4_tile(int rows, sn_dtype t, const uint8_t *panel, size_t cols, sn_prefetch prefetch, const float *x,
                        vf *acc) {
    const uint8_t *w = panel + sn_cpu_offset_bytes(t), *block = w;
    for (size_t part = 0, parts = sn_cpu_block(t) / SN_FLOAT4_PART; part < cols / SN_FLOAT4_PART; part++) {
        if (part % parts == 0) {
            prefetch_lines(w, sn_cpu_float4_head(t), prefetch);
            block = w;
            w += sn_cpu_float4_head(t);
        }
        const vf scale = float4_scales(t, panel, block, part % parts);
        for (int k = 0; k < SN_FLOAT4_PART; k += 2, w += SN_LANES) {
            if (k / 2 % (LINE / SN_LANES) == 0) prefetch_lines(w, LINE, prefetch);
            const vi both = vi_from_u8(w);
            for (int i = 0; i < 2; i++, x++) {
                const vi code = i ? vi_shift(both, 4) : vi_and(both, vi_set(15));
                const vf wk = vf_mul(vf_lookup(sn_float4_values(t), code), scale);
                UNROLL
                for (int r = 0; r < rows; r++) acc[r] = vf_fma(wk, vf_set(x[(size_t)r * cols]), acc[r]);
            }
        }
    }
}

/* Adds the bias and stores the results of one panel. */
INLINE void store_tile(int rows, const sn_linear_job *job, size_t panel, int row, const vf *acc) {
    const sn_cpu_weight *weight = &job->weight;
    size_t first = panel * SN_LANES, left = weight->rows - first, lanes = left < SN_LANES ? left : SN_LANES;
    vf bias = job->bias ? vf_load_n(job->bias + first, lanes) : vf_set(0);
    UNROLL
    for (int r = 0; r < rows; r++)
        vf_store_n(job->y + (size_t)(row + r) * weight->rows + first, job->bias ? vf_add(acc[r], bias) : acc[r], lanes);
}

INLINE void tile(int rows, int panels, sn_dtype t, const sn_linear_job *job, size_t panel, int row) {
    const sn_cpu_weight *weight = &job->weight;
    const sn_xblock *xq = job->xq + (size_t)row * job->xq_stride;
    const float *x = job->x + (size_t)row * weight->cols;
    size_t n = weight->n_blocks, offset = panel * weight->panel_bytes, step;
    vf acc[2 * ROW_TILE];
    UNROLL
    for (int i = 0; i < panels * rows; i++) acc[i] = vf_set(0);
    if (sn_cpu_quantised(t)) {
        quantised_tile(rows, t, weight->data + offset, n, job->prefetch, xq, job->xq_stride, acc);
    } else if (sn_is_f8(t)) {
        f8_tile(rows, t, weight->data + offset, weight->cols, job->prefetch, x, acc);
    } else if (sn_cpu_float4(t)) {
        float4_tile(rows, t, weight->data + offset, weight->cols, job->prefetch, x, acc);
    } else {
        sn_cpu_float_panel(weight, panel, &offset, &step);
        float_tile(rows, panels, t, weight->data + offset, step, n, job->prefetch, x, acc);
    }
    UNROLL
    for (int p = 0; p < panels; p++) store_tile(rows, job, panel + (size_t)p, row, acc + p * rows);
}

#ifndef ROW_PAIRS
#include "device/cpu/linear_staged.inc.c"
#endif

/* The tile functions of every shape: tile_TYPE_ROWS of one panel, pair_TYPE_ROWS of both panels of a pair; and
 * their tables. */
typedef void (*tile_fn)(const sn_linear_job *job, size_t panel, int row);
#define TILE(name, rows)                                                                                               \
    SPECIAL(tile_##name##_##rows, const sn_linear_job *job, size_t panel, int row) {                                   \
        tile(rows, 1, SN_##name, job, panel, row);                                                                     \
    }
#define PAIR(name, rows)                                                                                               \
    SPECIAL(pair_##name##_##rows, const sn_linear_job *job, size_t panel, int row) {                                   \
        tile(rows, 2, SN_##name, job, panel, row);                                                                     \
    }
#define FEW_ROWS(shape, name) shape(name, 1) shape(name, 2)
#define ROWS(shape, name)     FEW_ROWS(shape, name) shape(name, 3) shape(name, 4) MORE_ROWS(shape, name)
#if ROW_TILE >= 8 /* there are 32 vector registers */
#define MORE_ROWS(shape, name) shape(name, 5) shape(name, 6) shape(name, 7) shape(name, 8)
#define PAIR_ROWS(shape, name) FEW_ROWS(shape, name) shape(name, 3) shape(name, 4) shape(name, 5)
enum { PAIR_TILE = 5 }; /* with more rows there are enough chains, and single panels stay in the first-level cache */
#else
#define MORE_ROWS(shape, name)
#define PAIR_ROWS FEW_ROWS
enum { PAIR_TILE = 2 };
#endif
#define X(name, ...) ROWS(TILE, name)
SN_FLOAT_TYPES(X)
SN_ALL_QUANT_TYPES(X)
#undef X
PAIR_ROWS(PAIR, F16)
PAIR_ROWS(PAIR, BF16)
#define TILE_NAME(name, rows) tile_##name##_##rows,
#define PAIR_NAME(name, rows) pair_##name##_##rows,
static const tile_fn tile_fns[SN_DTYPE_COUNT][ROW_TILE] = {
#define X(name, ...) [SN_##name] = {ROWS(TILE_NAME, name)},
    SN_FLOAT_TYPES(X) SN_ALL_QUANT_TYPES(X)
#undef X
};
static const tile_fn pair_fns[SN_DTYPE_COUNT][PAIR_TILE] = {
    [SN_F16] = {PAIR_ROWS(PAIR_NAME, F16)}, [SN_BF16] = {PAIR_ROWS(PAIR_NAME, BF16)}};

/* All rows of the job with each panel, in as few tiles as possible, of equal sizes as far as possible: a tile loads its
 * weights once, so a tile of a single row costs twice as much per row. */
static void linear(const sn_linear_job *job, size_t first_panel, size_t end_panel) {
#ifndef ROW_PAIRS
    if (is_staged(job->weight.dtype, job->n) && job->weight.n_blocks) {
        linear_staged(job, first_panel, end_panel);
        return;
    }
#endif
    const int tiles = (job->n + ROW_TILE - 1) / ROW_TILE;
    const bool pairs = sn_cpu_pairs(job->weight.dtype) && job->n <= PAIR_TILE;
    for (size_t panel = first_panel, panels; panel < end_panel; panel += panels) {
        panels = pairs && panel % 2 == 0 && panel + 1 < end_panel ? 2 : 1;
        const tile_fn *fns = panels == 2 ? pair_fns[job->weight.dtype] : tile_fns[job->weight.dtype];
        for (int row = 0, left = tiles, rows; left > 0; row += rows, left--) {
            rows = (job->n - row + left - 1) / left;
            fns[rows - 1](job, panel, row);
        }
    }
}

/* -- elementwise */

static void rms_norm(int width, const float *x, const float *weight, float eps, float *y) {
    size_t n = (size_t)width, i;
    vf squares = vf_set(0);
    for (i = 0; i + SN_LANES <= n; i += SN_LANES) squares = vf_fma(vf_load(x + i), vf_load(x + i), squares);
    if (i < n) squares = vf_fma(vf_load_n(x + i, n - i), vf_load_n(x + i, n - i), squares);
    float mean = tree_sum(squares) / (float)width;
    vf scale = vf_set(1 / __builtin_sqrtf(mean + eps));
    for (i = 0; i + SN_LANES <= n; i += SN_LANES)
        vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(weight + i)));
    if (i < n) vf_store_n(y + i, vf_mul(vf_mul(vf_load_n(x + i, n - i), scale), vf_load_n(weight + i, n - i)), n - i);
}

/* Plain loops: each element is rounded on its own, so the compiler may vectorise them as it likes. */
static void rope(int n_heads, int head_dim, float *x, bool rotate_half, int dim, const float *cos_sin) {
    int pairs = dim / 2, step = rotate_half ? 1 : 2, apart = rotate_half ? pairs : 1;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int i = 0; i < pairs; i++) {
            float *a = x + i * step, *b = a + apart, c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
            float turned = *a * c - *b * s;
            *b = *b * c + *a * s;
            *a = turned;
        }
}

static void add(size_t n, float *y, const float *x) {
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void scale_row(size_t n, const float *x, float factor, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = x[i] * factor;
}

static float dot_row(size_t n, const float *a, const float *b) {
    vf sum = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t lanes = n - i < SN_LANES ? n - i : SN_LANES;
        sum = vf_fma(vf_load_n(a + i, lanes), vf_load_n(b + i, lanes), sum);
    }
    return tree_sum(sum);
}

#include "device/cpu/activate.inc.c"
#include "device/cpu/layer_norm.inc.c"
#include "device/cpu/attention.inc.c"
#include "device/cpu/grad.inc.c"
#include "device/cpu/experts.inc.c"
#include "device/cpu/delta.inc.c"

const sn_cpu_kernels LANES_KERNELS = {
    .name = LANES_NAME,
    .quantize = quantize,
    .linear = linear,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .rope = rope,
    .scores = scores,
    .softmax = softmax,
    .values = values,
    .weigh = weigh,
    .activate = activate,
    .add = add,
    .scale = scale_row,
    .dot = dot_row,
    .multiply = multiply,
    .unpack = unpack,
    .rms_norm_grad = rms_norm_grad,
    .layer_norm_grad = layer_norm_grad,
    .activate_grad = activate_grad,
    .attention_grad = attention_grad,
    .moe_gate = moe_gate,
    .moe_combine = moe_combine,
    .moe_combine_grad = moe_combine_grad,
    .moe_gate_grad = moe_gate_grad,
    .short_conv = short_conv,
    .delta_rule = delta_rule,
};

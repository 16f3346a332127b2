/* Gradients. Part of kernels.inc.c, which says at its top how the bits are kept equal: here, too, a lane is one element
 * of the result and one chain in a fixed order; sums along a row are 16 partial sums and tree_sum. */

/* -- y += a . b */

/* `rows` rows by `vectors` vectors of y; the last vector has `last` elements. */
INLINE void multiply_tile(int rows, int vectors, size_t last, const sn_multiply_job *job, size_t row, size_t column) {
    const float *a = job->a + row * job->a_row, *b = job->b + column;
    float *y = job->y + row * job->y_row + column;
    vf acc[16];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            const float *at = y + (size_t)r * job->y_row + (size_t)v * SN_LANES;
            acc[r * vectors + v] = v + 1 == vectors ? vf_load_n(at, last) : vf_load(at);
        }
    for (size_t k = 0; k < job->depth; k++, a += job->a_depth, b += job->b_row)
        for (int v = 0; v < vectors; v++) {
            vf w = v + 1 == vectors ? vf_load_n(b + (size_t)v * SN_LANES, last) : vf_load(b + (size_t)v * SN_LANES);
            for (int r = 0; r < rows; r++)
                acc[r * vectors + v] = vf_fma(vf_set(a[(size_t)r * job->a_row]), w, acc[r * vectors + v]);
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            float *at = y + (size_t)r * job->y_row + (size_t)v * SN_LANES;
            if (v + 1 == vectors)
                vf_store_n(at, acc[r * vectors + v], last);
            else
                vf_store(at, acc[r * vectors + v]);
        }
}

/* Prefetches the part of job->prefetch that belongs to `row` of `column`: the whole range is spread evenly over the
 * job, so that it arrives while the job computes. */
INLINE void prefetch_next_tile(const sn_multiply_job *job, size_t row, size_t column) {
    size_t lines = job->prefetch_bytes / LINE, all = lines * job->prefetch_n, work = job->rows * job->width;
    size_t done = row * 4 * SN_LANES + column * job->rows, step = 16 * SN_LANES;
    if (!all) return;
    for (size_t i = done * all / work; i < all && i < (done + step) * all / work; i++)
        __builtin_prefetch(job->prefetch + i / lines * job->prefetch_stride + i % lines * LINE);
}

INLINE void multiply_rows(int vectors, size_t last, const sn_multiply_job *job, size_t column) {
    size_t row = 0;
    for (; job->rows - row >= 4; row += 4) {
        if (vectors == 4) prefetch_next_tile(job, row, column);
        multiply_tile(4, vectors, last, job, row, column);
    }
    for (; row < job->rows; row++) multiply_tile(1, vectors, last, job, row, column);
}

static void multiply(const sn_multiply_job *job) {
    size_t column = 0;
    for (; job->width - column >= 4 * SN_LANES; column += 4 * SN_LANES) multiply_rows(4, SN_LANES, job, column);
    for (; job->width - column >= SN_LANES; column += SN_LANES) multiply_rows(1, SN_LANES, job, column);
    if (column < job->width) multiply_rows(1, job->width - column, job, column);
}

/* -- weights as float32: d * q + m with two roundings, as sn_cpu_weight_dequantize_row */

typedef uint32_t four_words __attribute__((vector_size(16)));

/* One group of 32 columns of a panel, group g of the block at `block`: out (SN_LANES, stride). */
INLINE void unpack_group(sn_dtype t, const uint8_t *block, size_t g, float *out, size_t stride) {
    const uint8_t *q = block + sn_cpu_head_bytes(t) + g * sn_cpu_group_bytes(t), *scales = q + sn_cpu_code_bytes(t);
    vf head_d, head_m;
    uint16_t places[PLACES];
    load_head(t, block, &head_d, &head_m);
    load_places(t, q, 1, places);
    for (int h = 0; h < 2; h++) {
        float ds[SN_LANES], ms[SN_LANES];
        uint8_t integers[4 * SN_VECTOR];
        vf d, m = vf_set(0);
        load_scales(t, scales, h, head_d, head_m, &d, &m);
        vf_store(ds, d);
        vf_store(ms, m);
        vb vectors[4];
        load_integers(t, (group_at){q, g, places}, 4 * h, 4, vectors);
        UNROLL
        for (int v = 0; v < 4; v++) vb_store(integers + SN_VECTOR * v, vectors[v]);
        for (size_t lane = 0; lane < SN_LANES; lane++) {
            four_words bytes;
            for (size_t v = 0; v < 4; v++) {
                uint32_t word;
                memcpy(&word, integers + SN_VECTOR * v + 4 * lane, sizeof word);
                bytes[v] = word;
            }
            vf x = vf_mul(vf_set(ds[lane]), vf_from_i8(&bytes));
            vf_store(out + lane * stride + 16 * h, vf_add(x, vf_set(ms[lane])));
        }
    }
}

typedef float four_floats __attribute__((vector_size(16)));

INLINE void transpose_4x4(const float *from, float *to, size_t stride) {
    four_floats x[4], low[2], high[2]; /* low, high: pairs of columns; rows: all four */
    for (int i = 0; i < 4; i++) memcpy(&x[i], from + SN_LANES * i, sizeof x[i]);
    for (int i = 0; i < 2; i++) {
        low[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 4, 1, 5);
        high[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 6, 3, 7);
    }
    const four_floats rows[4] = {
        __builtin_shufflevector(low[0], low[1], 0, 1, 4, 5), __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7),
        __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5), __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7)};
    for (size_t i = 0; i < 4; i++) memcpy(to + i * stride, &rows[i], sizeof rows[i]);
}

/* Up to 4 columns of a panel of a float layout, `step` bytes apart; the columns of F32 lie contiguous. */
INLINE void unpack_columns(sn_dtype t, const uint8_t *at, size_t step, size_t n, float *out, size_t stride) {
    float columns[4 * SN_LANES];
    const float *from = (const float *)at;
    for (size_t c = 0; c < n && t != SN_F32; c++, from = columns)
        vf_store(columns + SN_LANES * c, t == SN_F16 ? vf_from_f16(at + step * c) : vf_from_bf16(at + step * c));
    for (size_t lane = 0; n == 4 && lane < SN_LANES; lane += 4) transpose_4x4(from + lane, out + lane * stride, stride);
    for (size_t c = 0; n < 4 && c < n; c++)
        for (size_t lane = 0; lane < SN_LANES; lane++) out[lane * stride + c] = from[SN_LANES * c + lane];
}

/* Some columns of a panel of F8. */
INLINE void unpack_f8(sn_dtype t, const uint8_t *panel, size_t first, size_t end, float *out, size_t stride) {
    float column[SN_LANES];
    for (size_t k = first; k < end; k++, out++) {
        const uint8_t *block = panel + k / SN_F8_K * (SN_F8_SCALES + SN_F8_K * SN_LANES);
        vf w = load_f8(t, block + SN_F8_SCALES + k % SN_F8_K * SN_LANES);
        vf_store(column, vf_mul(w, vf_load((const float *)block)));
        for (size_t lane = 0; lane < SN_LANES; lane++) out[lane * stride] = column[lane];
    }
}

INLINE void unpack_float4(sn_dtype t, const uint8_t *panel, size_t first, size_t end, float *out, size_t stride) {
    float column[SN_LANES];
    for (size_t k = first; k < end; k++, out++) {
        const uint8_t *block = panel + sn_cpu_offset_bytes(t) + k / sn_cpu_block(t) * sn_cpu_block_bytes(t);
        const vi both = vi_from_u8(block + sn_cpu_float4_head(t) + k % sn_cpu_block(t) / 2 * SN_LANES);
        const vf w = vf_lookup(sn_float4_values(t), k % 2 ? vi_shift(both, 4) : vi_and(both, vi_set(15)));
        vf_store(column, vf_mul(w, float4_scales(t, panel, block, k % sn_cpu_block(t) / SN_FLOAT4_PART)));
        for (size_t lane = 0; lane < SN_LANES; lane++) out[lane * stride] = column[lane];
    }
}

INLINE void unpack_type(sn_dtype t, const sn_cpu_weight *w, size_t number, size_t first, size_t end, float *out,
                        size_t stride) {
    const uint8_t *panel = w->data + number * w->panel_bytes;
    size_t offset = 0, step = 0, groups = sn_cpu_groups(t);
    for (size_t k = first; sn_cpu_quantised(t) && k < end; k += 32)
        unpack_group(t, panel + k / 32 / groups * sn_cpu_block_bytes(t), k / 32 % groups, out + (k - first), stride);
    if (sn_is_f8(t)) unpack_f8(t, panel, first, end, out, stride);
    if (sn_cpu_float4(t)) unpack_float4(t, panel, first, end, out, stride);
    if (sn_cpu_quantised(t) || sn_is_f8(t) || sn_cpu_float4(t)) return;
    sn_cpu_float_panel(w, number, &offset, &step);
    for (size_t k = first; k < end; k += 4)
        unpack_columns(t, w->data + offset + k * step, step, end - k < 4 ? end - k : 4, out + (k - first), stride);
}

static void unpack(const sn_cpu_weight *w, size_t panel, size_t first, size_t end, float *out, size_t stride) {
    switch (w->dtype) {
#define X(name, ...)                                                                                                   \
    case SN_##name:                                                                                                    \
        unpack_type(SN_##name, w, panel, first, end, out, stride);                                                     \
        break;
        SN_FLOAT_TYPES(X)
        SN_ALL_QUANT_TYPES(X)
#undef X
    default: /* no type of a packed weight */
        break;
    }
}

/* -- y = x s w, s = 1 / sqrt(mean(x^2) + eps):  dx = s w dy - x s^3 / width * sum(w dy x) */

static void rms_norm_grad(int width, const float *x, const float *weight, float eps, const float *dy, bool accumulate,
                          float *dx) {
    size_t n = (size_t)width;
    vf squares = vf_set(0), products = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t left = n - i < SN_LANES ? n - i : SN_LANES;
        vf xi = vf_load_n(x + i, left);
        squares = vf_fma(xi, xi, squares);
        products = vf_fma(vf_mul(vf_load_n(weight + i, left), vf_load_n(dy + i, left)), xi, products);
    }
    float s = 1 / __builtin_sqrtf(tree_sum(squares) / (float)width + eps);
    vf scale = vf_set(s), back = vf_set(-(s * s * s) * (tree_sum(products) / (float)width));
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t left = n - i < SN_LANES ? n - i : SN_LANES;
        vf g = vf_mul(vf_mul(vf_load_n(weight + i, left), vf_load_n(dy + i, left)), scale);
        g = vf_fma(vf_load_n(x + i, left), back, g);
        if (accumulate) g = vf_add(vf_load_n(dx + i, left), g);
        vf_store_n(dx + i, g, left);
    }
}

/* -- attention. With p = softmax(scale q . k) and out = sum_j p_j v_j, for each query row and head:
 *
 *      dp_j = dout . v_j,   ds_j = p_j (dp_j - sum_i p_i dp_i) scale
 *      dq = sum_j ds_j k_j,   dk_j += ds_j q,   dv_j += p_j dout
 *
 * A sink takes its share of p; its value is zero, so its dp is 0. The rows of p are computed again, one at a time. dk
 * and dv are sums over the rows in order and, within a row, over the heads in order. */

INLINE void transpose(const float *from, size_t stride, int n, int dim, float *to, size_t n_padded) {
    for (int j = 0; j < n; j++)
        for (int d = 0; d < dim; d++) to[(size_t)d * n_padded + (size_t)j] = from[(size_t)j * stride + (size_t)d];
}

/* out[0, 16 * vectors) = x . rows; the rows are stored transposed. */
INLINE void dot_vectors(int vectors, const float *x, int dim, const float *transposed, size_t n_padded, float *out) {
    vf acc[4];
    for (int v = 0; v < vectors; v++) acc[v] = vf_set(0);
    for (int d = 0; d < dim; d++, transposed += n_padded)
        for (int v = 0; v < vectors; v++) acc[v] = vf_fma(vf_set(x[d]), vf_load(transposed + v * SN_LANES), acc[v]);
    for (int v = 0; v < vectors; v++) vf_store(out + v * SN_LANES, acc[v]);
}

/* out[j] = x . rows[j] for j in [base, end rounded up to 16). */
INLINE void dot_rows(const float *x, int dim, const float *transposed, size_t n_padded, size_t base, size_t end,
                     float *out) {
    size_t j = base;
    for (; end - j > 3 * SN_LANES; j += 4 * SN_LANES) {
        dot_vectors(4, x, dim, transposed + j, n_padded, out + j);
        if (end - j <= 4 * SN_LANES) return;
    }
    for (; j < end; j += SN_LANES) dot_vectors(1, x, dim, transposed + j, n_padded, out + j);
}

/* Computes the probabilities p[base, end) and writes ds to dp; both are zero outside of [first, end). */
INLINE void score_grads(const sn_attention_grad_job *job, const float *q, const float *dout, int head, size_t first,
                        size_t end) {
    const sn_attention_grad *g = job->grad;
    size_t base = first / SN_LANES * SN_LANES, padded = (end + SN_LANES - 1) / SN_LANES * SN_LANES;
    dot_rows(q, g->head_dim, job->keys, job->n_padded, base, end, job->p);
    for (size_t j = base; j < padded; j += SN_LANES)
        vf_store(job->p + j, vf_mul(vf_load(job->p + j), vf_set(g->scale)));
    if (g->softcap > 0) {
        softcap_scores(job->p + base, end - base, g->softcap);
        memcpy(job->capped + base, job->p + base, (padded - base) * sizeof(float));
    }
    if (g->slopes) alibi_add(job->p + base, (int)(first - base), (int)(end - base), g->slopes[head]);
    const float *sink = g->sinks ? &g->sinks[head] : NULL;
    vf inverse = vf_set(1 / exp_scores(job->p + base, first - base, end - base, sink));
    dot_rows(dout, g->head_dim, job->values, job->n_padded, base, end, job->dp);
    for (size_t j = base; j < first; j++) job->dp[j] = 0;
    for (size_t j = end; j < padded; j++) job->dp[j] = 0;
    vf sum = vf_set(0);
    for (size_t j = base; j < padded; j += SN_LANES) {
        vf p = vf_mul(vf_load(job->p + j), inverse);
        vf_store(job->p + j, p);
        sum = vf_fma(p, vf_load(job->dp + j), sum);
    }
    vf mean = vf_set(tree_sum(sum)), scale = vf_set(g->scale);
    for (size_t j = base; j < padded; j += SN_LANES)
        vf_store(job->dp + j, vf_mul(vf_mul(vf_load(job->p + j), vf_sub(vf_load(job->dp + j), mean)), scale));
    for (size_t j = base; j < padded && g->softcap > 0; j += SN_LANES) { /* the slope of tanh: 1 - tanh^2 */
        vf tanh = vf_div(vf_load(job->capped + j), vf_set(g->softcap));
        vf_store(job->dp + j, vf_mul(vf_load(job->dp + j), vf_sub(vf_set(1), vf_mul(tanh, tanh))));
    }
}

/* Dimensions from d on (`vectors` times 16, the last vector of `last`) of dq, and of dk and dv of every key in [first,
 * end).
 *
 * 9 parameters: inlined with constant vectors and last; the others change with every call. */
INLINE void spread_grads(int vectors, size_t last, const sn_attention_grad_job *job, const float *q, const float *dout,
                         float *dq, size_t first, size_t end, size_t d) {
    const sn_attention_grad *g = job->grad;
    size_t stride = (size_t)g->n_kv_heads * (size_t)g->head_dim;
    size_t at = (size_t)job->kv_head * (size_t)g->head_dim + first * stride + d;
    vf sum[4], x[4], dy[4];
    for (int v = 0; v < vectors; v++) {
        size_t left = v + 1 == vectors ? last : SN_LANES, from = d + (size_t)v * SN_LANES;
        sum[v] = vf_set(0), x[v] = vf_load_n(q + from, left), dy[v] = vf_load_n(dout + from, left);
    }
    for (size_t j = first; j < end; j++, at += stride) {
        vf ds = vf_set(job->dp[j]), p = vf_set(job->p[j]);
        for (int v = 0; v < vectors; v++) {
            size_t left = v + 1 == vectors ? last : SN_LANES, from = at + (size_t)v * SN_LANES;
            sum[v] = vf_fma(ds, vf_load_n(g->k + from, left), sum[v]);
            vf_store_n(g->dk + from, vf_fma(ds, x[v], vf_load_n(g->dk + from, left)), left);
            vf_store_n(g->dv + from, vf_fma(p, dy[v], vf_load_n(g->dv + from, left)), left);
        }
    }
    for (int v = 0; v < vectors; v++) vf_store_n(dq + d + v * SN_LANES, sum[v], v + 1 == vectors ? last : SN_LANES);
}

static void attention_grad(const sn_attention_grad_job *job) {
    const sn_attention_grad *g = job->grad;
    int group = g->n_heads / g->n_kv_heads;
    size_t dim = (size_t)g->head_dim, stride = dim * (size_t)g->n_heads, kv_stride = dim * (size_t)g->n_kv_heads;
    size_t own = (size_t)job->kv_head * dim;
    transpose(g->k + own, kv_stride, g->first + g->n, g->head_dim, job->keys, job->n_padded);
    transpose(g->v + own, kv_stride, g->first + g->n, g->head_dim, job->values, job->n_padded);
    for (int j = g->first; j < g->first + g->n; j++) {
        memset(g->dk + own + (size_t)j * kv_stride, 0, dim * sizeof(float));
        memset(g->dv + own + (size_t)j * kv_stride, 0, dim * sizeof(float));
    }
    for (int i = 0; i < g->n; i++)
        for (int h = 0; h < group; h++) {
            size_t at = (size_t)i * stride + (size_t)(job->kv_head * group + h) * dim;
            int position = g->first + i;
            size_t end = (size_t)position + 1, first = (size_t)sn_window_first(position, g->window);
            score_grads(job, g->q + at, g->dout + at, job->kv_head * group + h, first, end);
            size_t d = 0;
            for (; dim - d >= 4 * SN_LANES; d += 4 * SN_LANES)
                spread_grads(4, SN_LANES, job, g->q + at, g->dout + at, g->dq + at, first, end, d);
            for (; d < dim; d += SN_LANES)
                spread_grads(1, dim - d < SN_LANES ? dim - d : SN_LANES, job, g->q + at, g->dout + at, g->dq + at,
                             first, end, d);
        }
}

/* Recurrent blocks: the short convolution and the gated delta rule. Part of kernels.inc.c, which says at its top how
 * the bits are kept equal. Here a lane is a channel of the convolution, and a column of a head's matrix; rows follow
 * each other one by one in the order of their positions. So a row's result does not depend on how the rows are cut into
 * calls. (The chunked form of the delta rule, Yang et al. 2024, adds up in another order for each chunk: it is not
 * used.) */

/* -- the short convolution */

/* The row `at` of the job's sequence, which may lie before the first one. NULL: it is zero. */
INLINE const float *conv_row(const sn_conv_job *job, int at) {
    if (at >= 0) return job->x + (size_t)at * job->channels;
    return job->before ? job->before + (size_t)(job->n_taps - 1 + at) * job->channels : NULL;
}

/* Keeps the rows before row `end` that the next rows will need. */
static void conv_keep(const sn_conv_job *job, int end, float *state, size_t first, size_t n) {
    for (int i = 0; i < job->n_taps - 1; i++) {
        const float *row = conv_row(job, end - (job->n_taps - 1) + i);
        float *to = state + (size_t)i * job->channels + first;
        if (row)
            memcpy(to, row + first, n * sizeof *to);
        else
            memset(to, 0, n * sizeof *to);
    }
}

/* Backwards, so that each row may be replaced. */
static void short_conv(const sn_conv_job *job, size_t first, size_t end) {
    const int n_taps = job->n_taps;
    conv_keep(job, job->n, job->after, first, end - first);
    if (job->snapshot) conv_keep(job, job->snapshot_rows, job->snapshot, first, end - first);
    for (size_t c = first; c < end; c += SN_LANES) {
        size_t lanes = end - c < SN_LANES ? end - c : SN_LANES;
        vf tap[SN_DELTA_TAPS_MAX];
        for (int i = 0; i < n_taps; i++) {
            float column[SN_LANES] = {0};
            for (size_t j = 0; j < lanes; j++) column[j] = job->taps[(c + j) * (size_t)n_taps + (size_t)i];
            tap[i] = vf_load(column);
        }
        for (int t = job->n - 1; t >= 0; t--) {
            vf acc = vf_set(0);
            for (int i = 0; i < n_taps; i++) {
                const float *row = conv_row(job, t - (n_taps - 1) + i);
                if (row) acc = vf_fma(tap[i], vf_load_n(row + c, lanes), acc);
            }
            vf_store_n(job->x + (size_t)t * job->channels + c, times_sigmoid(acc, acc), lanes);
        }
    }
}

/* -- the delta rule */

/* y (n) = x * scale / sqrt(sum of squares + 1e-6) */
static void unit_length(size_t n, const float *x, float scale, float *y) {
    vf squares = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) {
        vf part = vf_load_n(x + i, n - i < SN_LANES ? n - i : SN_LANES);
        squares = vf_fma(part, part, squares);
    }
    float factor = scale / __builtin_sqrtf(tree_sum(squares) + 1e-6f);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * factor;
}

static float first_lane(vf x) {
    float t[SN_LANES];
    vf_store(t, x);
    return t[0];
}

/* ln(1 + exp(x)); beyond 20 it is x, in float32 as in the reference. */
static float softplus(float x) {
    if (!(x <= 20)) return x;
    return (float)sn_ln(1 + (double)first_lane(exp_lanes(vf_set(x))));
}

INLINE vf load_tile(const float *x, size_t lanes) { return lanes < SN_LANES ? vf_load_n(x, lanes) : vf_load(x); }
INLINE void put_tile(float *y, vf x, size_t lanes) {
    if (lanes < SN_LANES)
        vf_store_n(y, x, lanes);
    else
        vf_store(y, x);
}

/* One row, columns [c, c + tiles * 16) of the matrix, of which the last `lanes` tile may be narrower: from -> to (which
 * may be the same), and out.
 *
 * 9 parameters: inlined with constant tiles, so that the sums stay in registers. */
INLINE void delta_tiles(int tiles, size_t lanes, const sn_delta_job *job, size_t c, const float *k, const float *q,
                        const float *gates, const float *from, float *to) {
    const size_t width = (size_t)job->value_dim, dim = (size_t)job->key_dim;
    const vf decay = vf_set(gates[0]), beta = vf_set(gates[1]);
    const float *v = job->v + c;
    vf seen[4], change[4], result[4];
    UNROLL
    for (int j = 0; j < tiles; j++) seen[j] = result[j] = vf_set(0);
    for (size_t i = 0; i < dim; i++) {
        UNROLL
        for (int j = 0; j < tiles; j++)
            seen[j] = vf_fma(vf_mul(load_tile(from + i * width + c + (size_t)j * SN_LANES, lanes), decay), vf_set(k[i]),
                             seen[j]);
    }
    UNROLL
    for (int j = 0; j < tiles; j++)
        change[j] = vf_mul(vf_sub(load_tile(v + (size_t)j * SN_LANES, lanes), seen[j]), beta);
    for (size_t i = 0; i < dim; i++) {
        UNROLL
        for (int j = 0; j < tiles; j++) {
            size_t at = i * width + c + (size_t)j * SN_LANES;
            vf s = vf_fma(vf_set(k[i]), change[j], vf_mul(load_tile(from + at, lanes), decay));
            put_tile(to + at, s, lanes);
            result[j] = vf_fma(s, vf_set(q[i]), result[j]);
        }
    }
    UNROLL
    for (int j = 0; j < tiles; j++) put_tile(job->out + c + (size_t)j * SN_LANES, result[j], lanes);
}

/* The job's first row. */
static void delta_row(const sn_delta_job *job, const float *from, float *to) {
    enum { TILES = 4 };
    const size_t width = (size_t)job->value_dim;
    float k[SN_DELTA_DIM_MAX], q[SN_DELTA_DIM_MAX];
    const float gates[] = {
        first_lane(exp_lanes(vf_set(job->rate * softplus(*job->a + job->time_bias)))),
        first_lane(sigmoid_lanes(vf_set(*job->b))),
    };
    size_t c = 0;
    unit_length((size_t)job->key_dim, job->k, 1, k);
    unit_length((size_t)job->key_dim, job->q, 1 / __builtin_sqrtf((float)job->key_dim), q);
    for (; c + TILES * SN_LANES <= width; c += TILES * SN_LANES)
        delta_tiles(TILES, SN_LANES, job, c, k, q, gates, from, to);
    for (; c < width; c += SN_LANES)
        delta_tiles(1, width - c < SN_LANES ? width - c : SN_LANES, job, c, k, q, gates, from, to);
}

static void delta_rule(const sn_delta_job *job) {
    const size_t floats = (size_t)job->key_dim * (size_t)job->value_dim;
    const float *from = job->before;
    sn_delta_job row = *job;
    if (!from) from = memset(job->after, 0, floats * sizeof *job->after);
    for (int t = 0; t < job->n; t++) {
        delta_row(&row, from, job->after);
        from = job->after;
        if (job->snapshot && t + 1 == job->snapshot_rows) memcpy(job->snapshot, from, floats * sizeof *from);
        row.q += job->qkv_stride, row.k += job->qkv_stride, row.v += job->qkv_stride;
        row.a += job->n_heads, row.b += job->n_heads;
        row.out += job->n_heads * (size_t)job->value_dim;
    }
}

/* Recurrent blocks: the short convolution and the gated delta rule. Part of kernels.inc.c, which says at its top how
 * the bits are kept equal. Here a lane is a channel of the convolution, and a column of a head's matrix; rows follow
 * each other one by one in the order of their positions, eight of them in one go over the columns. So a row's result
 * does not depend on how the rows are cut into calls. (The chunked form of the delta rule, Yang et al. 2024, adds up in
 * another order for each chunk: it is not used.) */

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

/* Rows of a sequence that pass over a head's matrix together, and what they are to it. */
enum { DELTA_ROWS = 8 };
typedef struct delta_chunk {
    int n;
    float k[DELTA_ROWS][SN_DELTA_DIM_MAX], q[DELTA_ROWS][SN_DELTA_DIM_MAX];
    float decay[DELTA_ROWS], beta[DELTA_ROWS];
} delta_chunk;

/* The rows of the chunk, columns [c, c + tiles * 16) of the matrix, of which the last `lanes` tile may be narrower:
 * from -> to (which may be the same), and out. An element of the matrix is read and written once for each row: when a
 * row changes it, the next row's sum takes it in, which has the order that it would have by itself.
 *
 * 7 parameters: inlined with constant tiles, so that the sums stay in registers. */
INLINE void delta_tiles(int tiles, size_t lanes, const sn_delta_job *job, size_t c, const delta_chunk *chunk,
                        const float *from, float *to) {
    const size_t width = (size_t)job->value_dim, dim = (size_t)job->key_dim;
    vf seen[4], change[4], result[4];
    UNROLL
    for (int j = 0; j < tiles; j++) seen[j] = vf_set(0);
    for (size_t i = 0; i < dim; i++) {
        UNROLL
        for (int j = 0; j < tiles; j++)
            seen[j] =
                vf_fma(vf_mul(load_tile(from + i * width + c + (size_t)j * SN_LANES, lanes), vf_set(chunk->decay[0])),
                       vf_set(chunk->k[0][i]), seen[j]);
    }
    for (int t = 0; t < chunk->n; t++, from = to) {
        const int next = t + 1 < chunk->n ? t + 1 : t; /* what is seen behind the last row is not used */
        const float *k = chunk->k[t], *q = chunk->q[t], *next_k = chunk->k[next];
        const vf decay = vf_set(chunk->decay[t]), beta = vf_set(chunk->beta[t]),
                 next_decay = vf_set(chunk->decay[next]);
        const float *v = job->v + (size_t)t * job->qkv_stride + c;
        float *out = job->out + (size_t)t * job->n_heads * width + c;
        UNROLL
        for (int j = 0; j < tiles; j++) {
            change[j] = vf_mul(vf_sub(load_tile(v + (size_t)j * SN_LANES, lanes), seen[j]), beta);
            seen[j] = result[j] = vf_set(0);
        }
        for (size_t i = 0; i < dim; i++) {
            UNROLL
            for (int j = 0; j < tiles; j++) {
                size_t at = i * width + c + (size_t)j * SN_LANES;
                vf s = vf_fma(vf_set(k[i]), change[j], vf_mul(load_tile(from + at, lanes), decay));
                put_tile(to + at, s, lanes);
                result[j] = vf_fma(s, vf_set(q[i]), result[j]);
                seen[j] = vf_fma(vf_mul(s, next_decay), vf_set(next_k[i]), seen[j]);
            }
        }
        UNROLL
        for (int j = 0; j < tiles; j++) put_tile(out + (size_t)j * SN_LANES, result[j], lanes);
    }
}

/* The job's first rows: n <= DELTA_ROWS. */
static void delta_rows(const sn_delta_job *job, int n, const float *from, float *to) {
    enum { TILES = 4 };
    const size_t width = (size_t)job->value_dim;
    delta_chunk chunk;
    chunk.n = n;
    for (int t = 0; t < n; t++) {
        const size_t row = (size_t)t * job->qkv_stride, gate = (size_t)t * job->n_heads;
        chunk.decay[t] = first_lane(exp_lanes(vf_set(job->rate * softplus(job->a[gate] + job->time_bias))));
        chunk.beta[t] = first_lane(sigmoid_lanes(vf_set(job->b[gate])));
        unit_length((size_t)job->key_dim, job->k + row, 1, chunk.k[t]);
        unit_length((size_t)job->key_dim, job->q + row, 1 / __builtin_sqrtf((float)job->key_dim), chunk.q[t]);
    }
    size_t c = 0;
    for (; c + TILES * SN_LANES <= width; c += TILES * SN_LANES) delta_tiles(TILES, SN_LANES, job, c, &chunk, from, to);
    for (; c < width; c += SN_LANES)
        delta_tiles(1, width - c < SN_LANES ? width - c : SN_LANES, job, c, &chunk, from, to);
}

static void delta_rule(const sn_delta_job *job) {
    const size_t floats = (size_t)job->key_dim * (size_t)job->value_dim;
    const float *from = job->before;
    sn_delta_job rest = *job;
    if (!from) from = memset(job->after, 0, floats * sizeof *job->after);
    for (int t = 0, n; t < job->n; t += n, from = job->after) {
        const int end = job->snapshot && t < job->snapshot_rows ? job->snapshot_rows : job->n;
        n = end - t < DELTA_ROWS ? end - t : DELTA_ROWS;
        delta_rows(&rest, n, from, job->after);
        if (job->snapshot && t + n == job->snapshot_rows)
            memcpy(job->snapshot, job->after, floats * sizeof *job->after);
        rest.q += (size_t)n * job->qkv_stride, rest.k += (size_t)n * job->qkv_stride;
        rest.v += (size_t)n * job->qkv_stride;
        rest.a += (size_t)n * job->n_heads, rest.b += (size_t)n * job->n_heads;
        rest.out += (size_t)n * job->n_heads * (size_t)job->value_dim;
    }
}

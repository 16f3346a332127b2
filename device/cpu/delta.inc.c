/* Recurrent blocks: the short convolution, the gated delta rule and its kin. Part of kernels.inc.c, which says at its
 * top how the bits are kept equal. Here a lane is a channel of the convolution, and a column of a head's matrix; rows
 * follow each other one by one in the order of their positions, eight of them in one go over the columns. So a row's
 * result does not depend on how the rows are cut into calls. (The chunked form of the delta rule, Yang et al. 2024,
 * adds up in another order for each chunk: it is not used.) */

/* -- the short convolution */

/* The row `at` of the job's sequence, which may lie before the first one. NULL: it is zero. */
INLINE const float *conv_row(const sn_conv_job *job, int at) {
    if (at >= 0) return job->x + (size_t)at * job->channels;
    return job->before ? job->before + (size_t)(job->n_taps - 1 + at) * job->state_channels : NULL;
}

/* Keeps the rows before row `end` that the next rows will need. */
static void conv_keep(const sn_conv_job *job, int end, float *state, size_t first, size_t n) {
    for (int i = 0; i < job->n_taps - 1; i++) {
        const float *row = conv_row(job, end - (job->n_taps - 1) + i);
        float *to = state + (size_t)i * job->state_channels + first;
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
        const vf start = job->bias ? vf_load_n(job->bias + c, lanes) : vf_set(0);
        vf tap[SN_DELTA_TAPS_MAX];
        for (int i = 0; i < n_taps; i++) {
            float column[SN_LANES] = {0};
            for (size_t j = 0; j < lanes; j++) column[j] = job->taps[(c + j) * (size_t)n_taps + (size_t)i];
            tap[i] = vf_load(column);
        }
        for (int t = job->n - 1; t >= 0; t--) {
            vf acc = start;
            for (int i = 0; i < n_taps; i++) {
                const float *row = conv_row(job, t - (n_taps - 1) + i);
                if (row) acc = vf_fma(tap[i], vf_load_n(row + c, lanes), acc);
            }
            if (!job->plain) acc = times_sigmoid(acc, acc);
            vf_store_n(job->x + (size_t)t * job->channels + c, acc, lanes);
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

/* The same in lanes, within 2e-7 of it: with w = exp(-|x|), ln(1 + w) = 2 artanh(w / (2 + w)) as a series, and x more
 * above 0. */
INLINE vf softplus_lanes(vf x) {
    const vf above = vf_max(x, vf_set(0)), w = exp_lanes(vf_sub(vf_min(x, vf_set(0)), above));
    const vf z = vf_div(w, vf_add(vf_set(2), w)), square = vf_mul(z, z);
    vf sum = vf_set(1.0f / 17);
    UNROLL
    for (int k = 15; k >= 1; k -= 2) sum = vf_fma(sum, square, vf_set(1.0f / (float)k));
    return vf_if_nan(x, x, vf_fma(vf_add(z, z), sum, above));
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
    const float *from; /* (key_dim, value_dim) */
    float *to;         /* which may be `from` */
    float k[DELTA_ROWS][SN_DELTA_DIM_MAX], q[DELTA_ROWS][SN_DELTA_DIM_MAX];
    float decays[DELTA_ROWS][SN_DELTA_DIM_MAX]; /* SN_KEYED_DELTA: of each element of the key */
    float decay[DELTA_ROWS], beta[DELTA_ROWS];
} delta_chunk;

/* The decay of row i of the matrix; usual: that of the whole matrix. */
INLINE vf decay_of(sn_recurrence kind, const delta_chunk *chunk, int t, size_t i, vf usual) {
    return kind == SN_KEYED_DELTA ? vf_set(chunk->decays[t][i]) : usual;
}

/* The rows of the chunk, columns [c, c + tiles * 16) of the matrix, of which the last `lanes` tile may be narrower:
 * from -> to, and out. An element of the matrix is read and written once for each row: when a row changes it, the next
 * row's sum takes it in, which has the order that it would have by itself. Inlined with a constant kind and constant
 * tiles, so that the sums stay in registers. */
INLINE void delta_tiles(sn_recurrence kind, int tiles, size_t lanes, const sn_delta_job *job, size_t c,
                        const delta_chunk *chunk) {
    const size_t width = (size_t)job->value_dim, dim = (size_t)job->key_dim;
    const float *from = chunk->from;
    float *to = chunk->to;
    const vf first_decay = vf_set(chunk->decay[0]);
    vf seen[4], change[4], result[4];
    UNROLL
    for (int j = 0; j < tiles; j++) seen[j] = vf_set(0);
    for (size_t i = 0; i < dim; i++) {
        const vf decay = decay_of(kind, chunk, 0, i, first_decay);
        UNROLL
        for (int j = 0; j < tiles; j++)
            seen[j] = vf_fma(vf_mul(load_tile(from + i * width + c + (size_t)j * SN_LANES, lanes), decay),
                             vf_set(chunk->k[0][i]), seen[j]);
    }
    for (int t = 0; t < chunk->n; t++, from = to) {
        const int next = t + 1 < chunk->n ? t + 1 : t; /* what is seen behind the last row is not used */
        const float *k = chunk->k[t], *q = chunk->q[t], *next_k = chunk->k[next];
        const vf usual = vf_set(chunk->decay[t]), beta = vf_set(chunk->beta[t]),
                 next_usual = vf_set(chunk->decay[next]);
        const float *v = job->v + (size_t)t * job->value_stride + c;
        float *out = job->out + (size_t)t * job->n_heads * width + c;
        UNROLL
        for (int j = 0; j < tiles; j++) {
            change[j] = vf_mul(vf_sub(load_tile(v + (size_t)j * SN_LANES, lanes), seen[j]), beta);
            seen[j] = result[j] = vf_set(0);
        }
        for (size_t i = 0; i < dim; i++) {
            const vf decay = decay_of(kind, chunk, t, i, usual),
                     next_decay = decay_of(kind, chunk, next, i, next_usual);
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

/* What a row's key elements decay by. */
static void keyed_decays(const sn_delta_job *job, const float *a, float *out) {
    for (size_t i = 0; i < (size_t)job->key_dim; i += SN_LANES) {
        const size_t left = (size_t)job->key_dim - i, lanes = left < SN_LANES ? left : SN_LANES;
        const vf x = vf_add(vf_load_n(a + i, lanes), vf_load_n(job->time_bias + i, lanes)), rate = vf_set(job->rate);
        const vf log = job->floor < 0 ? vf_mul(vf_set(job->floor), sigmoid_lanes(vf_mul(vf_sub(vf_set(0), rate), x)))
                                      : vf_mul(rate, softplus_lanes(x));
        vf_store_n(out + i, exp_lanes(log), lanes);
    }
}

/* The job's first rows: n <= DELTA_ROWS. */
INLINE void delta_rows(sn_recurrence kind, const sn_delta_job *job, int n, const float *from) {
    enum { TILES = 4 };
    const size_t width = (size_t)job->value_dim;
    delta_chunk chunk;
    chunk.n = n, chunk.from = from, chunk.to = job->after;
    for (int t = 0; t < n; t++) {
        const size_t row = (size_t)t * job->key_stride;
        const float *a = job->a + (size_t)t * job->a_stride;
        chunk.decay[t] = 1;
        if (kind == SN_KEYED_DELTA)
            keyed_decays(job, a, chunk.decays[t]);
        else
            chunk.decay[t] = first_lane(exp_lanes(vf_set(job->rate * softplus(a[0] + job->time_bias[0]))));
        chunk.beta[t] = first_lane(sigmoid_lanes(vf_set(job->b[(size_t)t * job->n_heads])));
        unit_length((size_t)job->key_dim, job->k + row, 1, chunk.k[t]);
        unit_length((size_t)job->key_dim, job->q + row, 1 / __builtin_sqrtf((float)job->key_dim), chunk.q[t]);
    }
    size_t c = 0;
    for (; c + TILES * SN_LANES <= width; c += TILES * SN_LANES) delta_tiles(kind, TILES, SN_LANES, job, c, &chunk);
    for (; c < width; c += SN_LANES) delta_tiles(kind, 1, width - c < SN_LANES ? width - c : SN_LANES, job, c, &chunk);
}

/* -- the state space: nothing that a row adds depends on what the matrix holds, so an element of it goes through all
 * rows of a chunk while it is in a register */

enum { SCAN_ROWS = 4 }; /* of a chunk */

typedef struct scan_chunk {
    const float *from;
    float *to;
    float decay[SCAN_ROWS], step[SCAN_ROWS];
} scan_chunk;

/* As delta_tiles, of `rows` rows. */
INLINE void scan_tiles(int rows, int tiles, size_t lanes, const sn_delta_job *job, size_t c, const scan_chunk *chunk) {
    const size_t width = (size_t)job->value_dim, dim = (size_t)job->key_dim;
    vf change[SCAN_ROWS * 2], result[SCAN_ROWS * 2]; /* (rows, tiles) */
    UNROLL
    for (int t = 0; t < rows; t++) UNROLL
    for (int j = 0; j < tiles; j++) {
        const float *v = job->v + (size_t)t * job->value_stride + c + (size_t)j * SN_LANES;
        change[t * tiles + j] = vf_mul(load_tile(v, lanes), vf_set(chunk->step[t]));
        result[t * tiles + j] = vf_set(0);
    }
    for (size_t i = 0; i < dim; i++) {
        UNROLL
        for (int j = 0; j < tiles; j++) {
            const size_t at = i * width + c + (size_t)j * SN_LANES;
            vf s = load_tile(chunk->from + at, lanes);
            UNROLL
            for (int t = 0; t < rows; t++) {
                const size_t key = (size_t)t * job->key_stride + i;
                s = vf_fma(vf_set(job->k[key]), change[t * tiles + j], vf_mul(s, vf_set(chunk->decay[t])));
                result[t * tiles + j] = vf_fma(s, vf_set(job->q[key]), result[t * tiles + j]);
            }
            put_tile(chunk->to + at, s, lanes);
        }
    }
    UNROLL
    for (int t = 0; t < rows; t++) UNROLL
    for (int j = 0; j < tiles; j++) {
        const float *v = job->v + (size_t)t * job->value_stride + c + (size_t)j * SN_LANES;
        float *out = job->out + (size_t)t * job->n_heads * width + c + (size_t)j * SN_LANES;
        put_tile(out, vf_fma(vf_set(job->skip), load_tile(v, lanes), result[t * tiles + j]), lanes);
    }
}

/* The job's first rows: SCAN_ROWS of them, or one. */
INLINE void scan_rows(int rows, int tiles, const sn_delta_job *job, const float *from) {
    const size_t width = (size_t)job->value_dim;
    scan_chunk chunk = {.from = from, .to = job->after};
    for (int t = 0; t < rows; t++) {
        const vf x = vf_set(job->a[(size_t)t * job->a_stride] + job->time_bias[0]), step = softplus_lanes(x);
        chunk.step[t] = first_lane(step);
        chunk.decay[t] = first_lane(exp_lanes(vf_mul(vf_set(job->rate), step)));
    }
    size_t c = 0, all = (size_t)tiles * SN_LANES;
    for (; c + all <= width; c += all) scan_tiles(rows, tiles, SN_LANES, job, c, &chunk);
    for (; c < width; c += SN_LANES) scan_tiles(rows, 1, width - c < SN_LANES ? width - c : SN_LANES, job, c, &chunk);
}

/* Up to n of the job's first rows; returns how many. */
static int recurrence_rows(const sn_delta_job *job, int n, const float *from) {
    if (n > DELTA_ROWS) n = DELTA_ROWS;
    if (job->kind == SN_STATE_SPACE) n = n < SCAN_ROWS ? 1 : SCAN_ROWS;
    if (job->kind == SN_GATED_DELTA) delta_rows(SN_GATED_DELTA, job, n, from);
    if (job->kind == SN_KEYED_DELTA) delta_rows(SN_KEYED_DELTA, job, n, from);
    if (job->kind == SN_STATE_SPACE && n == 1) scan_rows(1, 4, job, from);
    if (job->kind == SN_STATE_SPACE && n > 1) scan_rows(SCAN_ROWS, 2, job, from);
    return n;
}

static void delta_rule(const sn_delta_job *job) {
    const size_t floats = (size_t)job->key_dim * (size_t)job->value_dim;
    const float *from = job->before;
    sn_delta_job rest = *job;
    if (!from) from = memset(job->after, 0, floats * sizeof *job->after);
    for (int t = 0, n; t < job->n; t += n, from = job->after) {
        const int end = job->snapshot && t < job->snapshot_rows ? job->snapshot_rows : job->n;
        n = recurrence_rows(&rest, end - t, from);
        if (job->snapshot && t + n == job->snapshot_rows)
            memcpy(job->snapshot, job->after, floats * sizeof *job->after);
        rest.q += (size_t)n * job->key_stride, rest.k += (size_t)n * job->key_stride;
        rest.v += (size_t)n * job->value_stride;
        rest.a += (size_t)n * job->a_stride;
        if (rest.b) rest.b += (size_t)n * job->n_heads;
        rest.out += (size_t)n * job->n_heads * (size_t)job->value_dim;
    }
}

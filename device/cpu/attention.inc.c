/* Attention over pages; part of kernels.inc.c, whose top says what is promised.
 *
 * The query rows of one item (tokens x heads that share a key-value head) are taken together, so that keys and values
 * are loaded once for several. For each row: (1) scores against its keys, a lane being one key: a chain over head_dim;
 * (2) their maximum, p = exp(score - maximum) and the sum of p; (3) out = a chain of p * v over positions in order, a
 * lane being one dimension, times 1 / sum. Vaswani et al. 2017.
 *
 * What comes next is asked for into the second-level cache: more requests can be on their way there than to the first. */

enum { TO_SECOND_LEVEL = 2 }; /* as __builtin_prefetch counts */

typedef struct span {
    int first, end; /* positions [first, end) */
} span;

/* What row t of the item's tokens looks at. */
INLINE span row_bounds(const sn_attention_job *job, int token) {
    int end = job->position + token + 1;
    return (span){job->window > 0 && end > job->window ? end - job->window : 0, end};
}

INLINE const uint8_t *key_tile(sn_kv_dtype type, const sn_attention_job *job, int position) {
    const uint8_t *page = job->pages[position / job->page_tokens];
    return page + job->k_offset + (size_t)(position % job->page_tokens / SN_LANES) * sn_kv_tile_bytes(type, job->head_dim);
}

INLINE const uint8_t *value_row(sn_kv_dtype type, const sn_attention_job *job, int position) {
    const uint8_t *page = job->pages[position / job->page_tokens];
    return page + job->v_offset + (size_t)(position % job->page_tokens) * sn_kv_value_bytes(type, job->head_dim);
}

/* 16 elements that lie at `at`, as float32: exactly, whatever the type. scale: of 8-bit ones. */
INLINE vf elements(sn_kv_dtype type, const uint8_t *at, vf scale) {
    if (type == SN_KV_F32) return vf_load((const float *)(const void *)at);
    if (type == SN_KV_F16) return vf_from_f16(at);
    return vf_mul(vf_from_i8(at), scale);
}

INLINE vf value_scale(sn_kv_dtype type, const uint8_t *row, size_t width, size_t dim) {
    uint16_t scale;
    if (type != SN_KV_Q8) return vf_set(0);
    memcpy(&scale, row + width + dim / SN_KV_BLOCK * sizeof scale, sizeof scale);
    return vf_set(sn_bf16_to_f32(scale));
}

INLINE const float *query(const sn_attention_job *job, int row) {
    return job->q + (size_t)(row / job->n_heads) * job->stride + (size_t)(row % job->n_heads) * (size_t)job->head_dim;
}

/* -- (1) scores of rows [row, row + rows) against `tiles` tiles of 16 keys from `position`. The tiles behind them, up
 * to `end`, are asked for meanwhile: they lie in other pages, where the hardware does not look ahead. */
INLINE void score_tile(sn_kv_dtype type, int rows, int tiles, const sn_attention_job *job, int row, int position, int end) {
    const float *q[4];
    const uint8_t *k[4], *next[4];
    size_t column = (size_t)(position - sn_attention_base(job)), step = SN_LANES * sn_kv_element(type);
    vf acc[16], scale[4];
    for (int r = 0; r < rows; r++) q[r] = query(job, row + r);
    for (int t = 0; t < tiles; t++) {
        int ahead = position + (tiles + t) * SN_LANES;
        k[t] = key_tile(type, job, position + t * SN_LANES);
        next[t] = ahead < end ? key_tile(type, job, ahead) : k[t];
        scale[t] = vf_set(0);
    }
    for (int i = 0; i < rows * tiles; i++) acc[i] = vf_set(0);
    for (int d = 0, until; d < job->head_dim;) { /* in 8 bits a block at a time; else all at once */
        until = type == SN_KV_Q8 && job->head_dim - d > SN_KV_BLOCK ? d + SN_KV_BLOCK : job->head_dim;
        for (int t = 0; t < tiles && type == SN_KV_Q8; t++)
            scale[t] = vf_from_bf16(k[t] + (size_t)job->head_dim * SN_LANES + (size_t)d * SN_LANES * 2 / SN_KV_BLOCK);
        for (; d < until; d++)
            for (int t = 0; t < tiles; t++) {
                vf key = elements(type, k[t] + (size_t)d * step, scale[t]);
                if (row == 0 && (size_t)d * step % LINE == 0) __builtin_prefetch(next[t] + (size_t)d * step, 0, TO_SECOND_LEVEL);
                for (int r = 0; r < rows; r++) acc[t * rows + r] = vf_fma(vf_set(q[r][d]), key, acc[t * rows + r]);
            }
    }
    for (int r = 0; r < rows; r++) {
        float *s = job->scores + (size_t)(row + r) * job->scores_room + column;
        for (int t = 0; t < tiles; t++) vf_store(s + t * SN_LANES, vf_mul(acc[t * rows + r], vf_set(job->scale)));
    }
}

INLINE void score_rows(sn_kv_dtype type, int tiles, const sn_attention_job *job, int position, int end) {
    int row = 0, n_rows = job->n_tokens * job->n_heads;
    for (; n_rows - row >= 4; row += 4) score_tile(type, 4, tiles, job, row, position, end);
    if (n_rows - row == 3) score_tile(type, 3, tiles, job, row, position, end);
    if (n_rows - row == 2) score_tile(type, 2, tiles, job, row, position, end);
    if (n_rows - row == 1) score_tile(type, 1, tiles, job, row, position, end);
}

INLINE void scores_of(sn_kv_dtype type, const sn_attention_job *job, int first, int end) {
    int position = first;
    for (; end - position > 3 * SN_LANES; position += 4 * SN_LANES) score_rows(type, 4, job, position, end);
    for (; position < end; position += SN_LANES) score_rows(type, 1, job, position, end);
}

static void scores(const sn_attention_job *job, int first, int end) {
    if (job->dtype == SN_KV_F32) scores_of(SN_KV_F32, job, first, end);
    else if (job->dtype == SN_KV_F16) scores_of(SN_KV_F16, job, first, end);
    else scores_of(SN_KV_Q8, job, first, end);
}

/* -- (2) softmax without the division, in place; the sum. s[0] belongs to a position that is a multiple of 16, s[from,
 * to) to the row's positions. Whole vectors are worked on: what lies outside gets probability zero. */
static float exp_scores(float *s, size_t from, size_t to) {
    const vf none = vf_set(-__builtin_inff());
    size_t end = (to + SN_LANES - 1) / SN_LANES * SN_LANES;
    for (size_t i = 0; i < from; i++) s[i] = -__builtin_inff();
    for (size_t i = to; i < end; i++) s[i] = -__builtin_inff();
    vf top = none;
    for (size_t i = 0; i < end; i += SN_LANES) {
        vf x = vf_load(s + i);
        top = vf_if_less(top, x, x, top); /* passes NaN over: it comes back in exp */
    }
    float t[SN_LANES], max;
    vf_store(t, top);
    max = t[0];
    for (int i = 1; i < SN_LANES; i++) max = t[i] > max ? t[i] : max;
    vf sum = vf_set(0);
    for (size_t i = 0; i < end; i += SN_LANES) {
        vf p = exp_lanes(vf_sub(vf_load(s + i), vf_set(max)));
        vf_store(s + i, p);
        sum = vf_add(sum, p);
    }
    return tree_sum(sum);
}

static void softmax(const sn_attention_job *job) {
    for (int r = 0; r < job->n_tokens * job->n_heads; r++) {
        span own = row_bounds(job, r / job->n_heads);
        int base = sn_attention_base(job);
        job->sums[r] = exp_scores(job->scores + (size_t)r * job->scores_room, (size_t)(own.first - base),
                                  (size_t)(own.end - base));
    }
}

/* -- (3) out[r] += p * v over positions [at.first, at.end), for `rows` rows and `groups` times 16 dimensions from dim.
 */
INLINE void value_tile(sn_kv_dtype type, int rows, int groups, const sn_attention_job *job, const float *const *p, span at, size_t dim,
                       vf *acc) {
    const size_t width = ((size_t)job->head_dim + SN_LANES - 1) / SN_LANES * SN_LANES;
    const size_t row_bytes = sn_kv_value_bytes(type, job->head_dim);
    int base = sn_attention_base(job);
    for (int position = at.first; position < at.end;) {
        int in_page = job->page_tokens - position % job->page_tokens, left = at.end - position;
        int n = in_page < left ? in_page : left;
        const uint8_t *v = value_row(type, job, position);
        const uint8_t *next = n < left ? value_row(type, job, position + n) : v; /* asked for meanwhile */
        for (int i = 0; i < n; i++, v += row_bytes, next += row_bytes)
            for (int g = 0; g < groups; g++) {
                size_t at_dim = dim + (size_t)g * SN_LANES, byte = at_dim * sn_kv_element(type);
                vf value = elements(type, v + byte, value_scale(type, v, width, at_dim));
                if (g * SN_LANES * sn_kv_element(type) % LINE == 0) __builtin_prefetch(next + byte, 0, TO_SECOND_LEVEL);
                for (int r = 0; r < rows; r++)
                    acc[g * rows + r] = vf_fma(vf_set(p[r][position - base + i]), value, acc[g * rows + r]);
            }
        position += n;
    }
}

/* One row on its own: acc[g * stride] for its `groups` vectors. */
INLINE void value_row_alone(sn_kv_dtype type, int groups, const sn_attention_job *job, const float *p, span at, size_t dim, int stride,
                            vf *acc) {
    vf own[4];
    if (at.first >= at.end) return;
    for (int g = 0; g < groups; g++) own[g] = acc[g * stride];
    value_tile(type, 1, groups, job, &p, at, dim, own);
    for (int g = 0; g < groups; g++) acc[g * stride] = own[g];
}

/* The rows' spans differ at the ends when they are different tokens: the part that all have is done together, the rest
 * one row at a time; each row's positions stay in order. */
INLINE void value_rows(sn_kv_dtype type, int rows, int groups, const sn_attention_job *job, int row, size_t dim) {
    const float *p[4];
    vf acc[16];
    span first = row_bounds(job, row / job->n_heads), last = row_bounds(job, (row + rows - 1) / job->n_heads);
    span common = {last.first, first.end};
    if (common.first > common.end) common.first = common.end; /* a window shorter than the tile */
    for (int i = 0; i < rows * groups; i++) acc[i] = vf_set(0);
    for (int r = 0; r < rows; r++) {
        p[r] = job->scores + (size_t)(row + r) * job->scores_room;
        span before = {row_bounds(job, (row + r) / job->n_heads).first, common.first};
        value_row_alone(type, groups, job, p[r], before, dim, rows, acc + r);
    }
    value_tile(type, rows, groups, job, p, common, dim, acc);
    for (int r = 0; r < rows; r++) {
        span after = row_bounds(job, (row + r) / job->n_heads);
        if (after.first < common.end) after.first = common.end;
        value_row_alone(type, groups, job, p[r], after, dim, rows, acc + r);
        float *y = job->out + (query(job, row + r) - job->q) + dim;
        vf inverse = vf_set(1 / job->sums[row + r]);
        for (int g = 0; g < groups; g++) {
            size_t at = (size_t)g * SN_LANES, left = (size_t)job->head_dim - dim - at;
            vf_store_n(y + at, vf_mul(acc[g * rows + r], inverse), left < SN_LANES ? left : SN_LANES);
        }
    }
}

INLINE void value_dims(sn_kv_dtype type, int groups, const sn_attention_job *job, size_t dim) {
    int row = 0, n_rows = job->n_tokens * job->n_heads;
    for (; n_rows - row >= 4; row += 4) value_rows(type, 4, groups, job, row, dim);
    if (n_rows - row == 3) value_rows(type, 3, groups, job, row, dim);
    if (n_rows - row == 2) value_rows(type, 2, groups, job, row, dim);
    if (n_rows - row == 1) value_rows(type, 1, groups, job, row, dim);
}

INLINE void values_of(sn_kv_dtype type, const sn_attention_job *job, int first, int end) {
    int dim = first;
    for (; end - dim > 3 * SN_LANES; dim += 4 * SN_LANES) value_dims(type, 4, job, (size_t)dim);
    for (; end - dim > SN_LANES; dim += 2 * SN_LANES) value_dims(type, 2, job, (size_t)dim);
    for (; dim < end; dim += SN_LANES) value_dims(type, 1, job, (size_t)dim);
}

static void values(const sn_attention_job *job, int first, int end) {
    if (job->dtype == SN_KV_F32) values_of(SN_KV_F32, job, first, end);
    else if (job->dtype == SN_KV_F16) values_of(SN_KV_F16, job, first, end);
    else values_of(SN_KV_Q8, job, first, end);
}

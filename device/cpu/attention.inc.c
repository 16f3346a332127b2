/* Attention over pages; part of kernels.inc.c, whose top says what is promised.
 *
 * The query rows of one item (tokens x heads that share a key-value head) are taken together, so that keys and values are
 * loaded once for several. For each row: (1) scores against its keys, a lane being one key: a chain over head_dim;
 * (2) their maximum, p = exp(score - maximum) and the sum of p; (3) out = a chain of p * v over positions in order, a
 * lane being one dimension, times 1 / sum. Vaswani et al. 2017. */

enum { OUT_ROOM = SN_KV_WIDTH_MAX + SN_LANES };

typedef struct span {
    int first, end; /* positions [first, end) */
} span;

/* What row t of the item's tokens looks at. */
INLINE span row_bounds(const sn_attention_job *job, int token) {
    int end = job->position + token + 1;
    return (span){job->window > 0 && end > job->window ? end - job->window : 0, end};
}

INLINE const float *key_tile(const sn_attention_job *job, int position) {
    const uint8_t *page = job->pages[position / job->page_tokens];
    return (const float *)(page + job->k_offset) + (size_t)(position % job->page_tokens) * (size_t)job->head_dim;
}

INLINE const float *value_row(const sn_attention_job *job, int position, size_t width) {
    const uint8_t *page = job->pages[position / job->page_tokens];
    return (const float *)(page + job->v_offset) + (size_t)(position % job->page_tokens) * width;
}

INLINE const float *query(const sn_attention_job *job, int row) {
    return job->q + (size_t)(row / job->n_heads) * job->stride + (size_t)(row % job->n_heads) * (size_t)job->head_dim;
}

/* -- (1) scores of rows [row, row + rows) against `tiles` tiles of 16 keys from `position`, into s + column. */
INLINE void score_tile(int rows, int tiles, const sn_attention_job *job, int row, int position, size_t column) {
    const float *q[4], *k[4];
    vf acc[16];
    for (int r = 0; r < rows; r++) q[r] = query(job, row + r);
    for (int t = 0; t < tiles; t++) k[t] = key_tile(job, position + t * SN_LANES);
    for (int i = 0; i < rows * tiles; i++) acc[i] = vf_set(0);
    for (int d = 0; d < job->head_dim; d++)
        for (int t = 0; t < tiles; t++) {
            vf key = vf_load(k[t] + (size_t)d * SN_LANES);
            for (int r = 0; r < rows; r++) acc[t * rows + r] = vf_fma(vf_set(q[r][d]), key, acc[t * rows + r]);
        }
    for (int r = 0; r < rows; r++) {
        float *s = job->scores + (size_t)(row + r) * job->scores_room + column;
        for (int t = 0; t < tiles; t++) vf_store(s + t * SN_LANES, vf_mul(acc[t * rows + r], vf_set(job->scale)));
    }
}

INLINE void score_rows(int tiles, const sn_attention_job *job, int n_rows, int position, size_t column) {
    int row = 0;
    for (; n_rows - row >= 4; row += 4) score_tile(4, tiles, job, row, position, column);
    if (n_rows - row == 3) score_tile(3, tiles, job, row, position, column);
    if (n_rows - row == 2) score_tile(2, tiles, job, row, position, column);
    if (n_rows - row == 1) score_tile(1, tiles, job, row, position, column);
}

/* -- (2) softmax without the division, in place; the sum. s[0] belongs to a position that is a multiple of 16, s[from, to)
 * to the row's positions. Whole vectors are worked on: what lies outside gets probability zero. */
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

/* -- (3) acc[r][d] += p * v over positions [at.first, at.end), for `rows` rows and `groups` times 16 dimensions. */
INLINE void value_tile(int rows, int groups, const sn_attention_job *job, const float *const *p, span at, int base,
                       size_t dim, size_t width, float (*out)[OUT_ROOM]) {
    vf acc[16];
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++) acc[g * rows + r] = vf_load(out[r] + dim + (size_t)g * SN_LANES);
    for (int position = at.first; position < at.end;) {
        int in_page = job->page_tokens - position % job->page_tokens, left = at.end - position;
        int n = in_page < left ? in_page : left;
        const float *v = value_row(job, position, width) + dim;
        for (int i = 0; i < n; i++, v += width)
            for (int g = 0; g < groups; g++) {
                vf value = vf_load(v + g * SN_LANES);
                for (int r = 0; r < rows; r++)
                    acc[g * rows + r] = vf_fma(vf_set(p[r][position - base + i]), value, acc[g * rows + r]);
            }
        position += n;
    }
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++) vf_store(out[r] + dim + (size_t)g * SN_LANES, acc[g * rows + r]);
}

INLINE void value_dims(int rows, const sn_attention_job *job, const float *const *p, span at, int base,
                       float (*out)[OUT_ROOM]) {
    size_t width = ((size_t)job->head_dim + SN_LANES - 1) / SN_LANES * SN_LANES, dim = 0;
    for (; width - dim >= 64; dim += 64) value_tile(rows, 4, job, p, at, base, dim, width, out);
    for (; dim < width; dim += SN_LANES) value_tile(rows, 1, job, p, at, base, dim, width, out);
}

/* The rows' spans differ at the ends when they are different tokens: the part that all have is done together, the rest one
 * row at a time, each row's positions in order. */
INLINE void value_rows(int rows, const sn_attention_job *job, int row, int base, const float *sums) {
    float out[4][OUT_ROOM];
    const float *p[4];
    span first = row_bounds(job, row / job->n_heads), last = row_bounds(job, (row + rows - 1) / job->n_heads);
    span common = {last.first, first.end};
    if (common.first > common.end) common.first = common.end; /* a window shorter than the tile */
    for (int r = 0; r < rows; r++) {
        p[r] = job->scores + (size_t)(row + r) * job->scores_room;
        memset(out[r], 0, ((size_t)job->head_dim + SN_LANES) * sizeof out[r][0]);
    }
    for (int r = 0; r < rows; r++) {
        span own = row_bounds(job, (row + r) / job->n_heads);
        if (own.first < common.first)
            value_dims(1, job, p + r, (span){own.first, common.first}, base, out + r);
    }
    value_dims(rows, job, p, common, base, out);
    for (int r = 0; r < rows; r++) {
        span own = row_bounds(job, (row + r) / job->n_heads);
        int from = own.first > common.end ? own.first : common.end;
        if (from < own.end) value_dims(1, job, p + r, (span){from, own.end}, base, out + r);
        float *y = job->out + (query(job, row + r) - job->q), inverse = 1 / sums[row + r];
        for (int d = 0; d < job->head_dim; d++) y[d] = out[r][d] * inverse;
    }
}

static void attention(const sn_attention_job *job) {
    int n_rows = job->n_tokens * job->n_heads, row = 0;
    int base = row_bounds(job, 0).first / SN_LANES * SN_LANES, end = job->position + job->n_tokens;
    float sums[SN_ATTENTION_ROWS];
    int position = base;
    for (; end - position > 3 * SN_LANES; position += 4 * SN_LANES)
        score_rows(4, job, n_rows, position, (size_t)(position - base));
    for (; position < end; position += SN_LANES) score_rows(1, job, n_rows, position, (size_t)(position - base));
    for (int r = 0; r < n_rows; r++) {
        span own = row_bounds(job, r / job->n_heads);
        sums[r] = exp_scores(job->scores + (size_t)r * job->scores_room, (size_t)(own.first - base),
                             (size_t)(own.end - base));
    }
    for (; n_rows - row >= 4; row += 4) value_rows(4, job, row, base, sums);
    if (n_rows - row == 3) value_rows(3, job, row, base, sums);
    if (n_rows - row == 2) value_rows(2, job, row, base, sums);
    if (n_rows - row == 1) value_rows(1, job, row, base, sums);
}

/* Attention over KV pages. Part of kernels.inc.c, which says at its top how the bits are kept equal.
 *
 * The query rows of one job (tokens x heads that share a key-value head) are processed together, so that keys and
 * values are loaded once for several rows. For each row:
 * 1. scores: the products with its keys. A lane is one key, an fma chain over head_dim.
 * 2. softmax: the maximum of the scores, p = exp(score - maximum), and the sum of p.
 * 3. values: an fma chain of p * v over the positions in order, times 1 / sum. A lane is one dimension.
 * Vaswani et al. 2017.
 *
 * The data of the next step are prefetched to the second-level cache, because more prefetches can be in flight to it
 * than to the first. */

enum { PREFETCH_TO_L2 = 2 }; /* the locality argument of __builtin_prefetch */

typedef struct key_range {
    int first, end; /* positions [first, end) */
} key_range;

/* The positions that the rows of token `token` of the job attend to. */
INLINE key_range row_key_range(const sn_attention_job *job, int token) {
    int position = job->position + token;
    return (key_range){sn_window_first(position, job->window), position + 1};
}

INLINE const uint8_t *key_tile(const sn_attention_job *job, int position) {
    const uint8_t *page = job->pages[position / job->page_tokens];
    size_t tile = (size_t)(position % job->page_tokens / SN_LANES);
    return page + job->k_offset + tile * sn_kv_tile_bytes(job->dtype, job->head_dim);
}

/* 16 elements at `at` as float32, exactly. scale: of SN_KV_Q8, ignored otherwise. */
INLINE vf load_elements(sn_kv_dtype type, const uint8_t *at, vf scale) {
    if (type == SN_KV_F32) return vf_load((const float *)(const void *)at);
    if (type == SN_KV_F16) return vf_from_f16(at);
    return vf_mul(vf_from_i8(at), scale);
}

/* Of a query row: its head, counted from the first token's first head on. */
INLINE size_t query_number(const sn_attention_job *job, int row) {
    return (size_t)(row / job->n_heads) * job->token_heads + (size_t)(row % job->n_heads);
}

INLINE const float *query(const sn_attention_job *job, int row) {
    return job->q + query_number(job, row) * (size_t)job->head_dim;
}

/* -- (1) scores of rows [row, row + rows) with `tiles` tiles of 16 keys at k[0..tiles). Goes through the dimensions a
 * few at a time; for the first rows it prefetches the same part of the following tiles, at `next`.
 *
 * 8 parameters: inlined with constant type, rows and tiles, so that acc stays in registers. */
INLINE void score_tile(sn_kv_dtype type, int rows, int tiles, const sn_attention_job *job, int row,
                       const uint8_t *const *k, const uint8_t *const *next, size_t column) {
    enum { DIMS = 8 }; /* processed at a time: they share a scale */
    const size_t dim = (size_t)job->head_dim, step = SN_LANES * sn_kv_element_bytes(type);
    const float *q[4];
    vf acc[16], scale[4];
    for (int r = 0; r < rows; r++) q[r] = query(job, row + r);
    for (int i = 0; i < rows * tiles; i++) acc[i] = vf_set(0);
    size_t first = 0;
    do {
        size_t end = first + DIMS < dim ? first + DIMS : dim;
        for (int t = 0; t < tiles; t++) {
            const uint8_t *scales = k[t] + dim * SN_LANES + first / SN_KV_BLOCK * SN_LANES * 2;
            scale[t] = type == SN_KV_Q8 ? vf_from_bf16(scales) : vf_set(0);
            if (row > 0) continue;
            for (size_t at = first * step; at < end * step; at += LINE)
                __builtin_prefetch(next[t] + at, 0, PREFETCH_TO_L2);
            if (type == SN_KV_Q8 && first == 0) __builtin_prefetch(next[t] + dim * SN_LANES, 0, PREFETCH_TO_L2);
        }
        for (size_t d = first; d < end; d++)
            for (int t = 0; t < tiles; t++) {
                vf key = load_elements(type, k[t] + d * step, scale[t]);
                for (int r = 0; r < rows; r++) acc[t * rows + r] = vf_fma(vf_set(q[r][d]), key, acc[t * rows + r]);
            }
        first = end;
    } while (first < dim);
    UNROLL
    for (int r = 0; r < rows; r++) {
        float *s = job->scores + (size_t)(row + r) * job->scores_stride + column;
        UNROLL
        for (int t = 0; t < tiles; t++) vf_store(s + t * SN_LANES, vf_mul(acc[t * rows + r], vf_set(job->scale)));
    }
}

typedef void (*score_fn)(const sn_attention_job *job, int row, const uint8_t *const *k, const uint8_t *const *next,
                         size_t column);
#define SCORE(type, tiles, rows)                                                                                       \
    SPECIAL(score_##type##_##tiles##_##rows, const sn_attention_job *job, int row, const uint8_t *const *k,            \
            const uint8_t *const *next, size_t column) {                                                               \
        score_tile(SN_KV_##type, rows, tiles, job, row, k, next, column);                                              \
    }
#define SCORES(type)                                                                                                   \
    SCORE(type, 1, 1)                                                                                                  \
    SCORE(type, 1, 2)                                                                                                  \
    SCORE(type, 1, 3) SCORE(type, 1, 4) SCORE(type, 4, 1) SCORE(type, 4, 2) SCORE(type, 4, 3) SCORE(type, 4, 4)
SCORES(F32)
SCORES(F16)
SCORES(Q8)
#define NAMES(type, tiles)                                                                                             \
    {score_##type##_##tiles##_1, score_##type##_##tiles##_2, score_##type##_##tiles##_3, score_##type##_##tiles##_4}
static const score_fn score_fns[SN_KV_DTYPE_COUNT][2][4] = {
    {NAMES(F32, 1), NAMES(F32, 4)}, {NAMES(F16, 1), NAMES(F16, 4)}, {NAMES(Q8, 1), NAMES(Q8, 4)}};
#undef NAMES

/* Turns the rows of 16 positions, from `position` on, to a tile of float32 (head_dim rounded up, 16). */
INLINE void latent_tile(sn_kv_dtype type, const sn_attention_job *job, int position, float *tile) {
    const size_t width = ((size_t)job->head_dim + SN_LANES - 1) / SN_LANES * SN_LANES,
                 row_bytes = sn_kv_value_bytes(type, job->head_dim), step = SN_LANES * sn_kv_element_bytes(type);
    const uint8_t *row = (const uint8_t *)job->pages[position / job->page_tokens] + job->v_offset +
                         (size_t)(position % job->page_tokens) * row_bytes;
    for (size_t at = 0; at < width; at += SN_LANES) {
        float own[SN_LANES][SN_LANES];
        for (size_t lane = 0; lane < SN_LANES; lane++) {
            const uint8_t *from = row + lane * row_bytes;
            vf scale = type == SN_KV_Q8 ? vf_set_bf16(from + width + at / SN_KV_BLOCK * 2) : vf_set(0);
            vf_store(own[lane], load_elements(type, from + at / SN_LANES * step, scale));
        }
        for (size_t d = 0; d < SN_LANES; d++)
            for (size_t lane = 0; lane < SN_LANES; lane++) tile[(at + d) * SN_LANES + lane] = own[lane][d];
    }
}
SPECIAL(latent_tile_of, const sn_attention_job *job, int position, float *tile) {
    if (job->dtype == SN_KV_F32)
        latent_tile(SN_KV_F32, job, position, tile);
    else if (job->dtype == SN_KV_F16)
        latent_tile(SN_KV_F16, job, position, tile);
    else
        latent_tile(SN_KV_Q8, job, position, tile);
}

/* As scores, for rows that hold keys and values: all query rows of the job share the tiles that are made of them. */
static void latent_scores(const sn_attention_job *job, int first, int end) {
    _Alignas(64) float own[4][SN_LATENT_DIM_MAX * SN_LANES];
    int n_rows = job->n_tokens * job->n_heads, tiles;
    for (int position = first; position < end; position += tiles * SN_LANES) {
        const uint8_t *k[4];
        tiles = end - position > 3 * SN_LANES ? 4 : 1;
        for (int t = 0; t < tiles; t++) {
            latent_tile_of(job, position + t * SN_LANES, own[t]);
            k[t] = (const uint8_t *)own[t];
        }
        for (int row = 0, rows; row < n_rows; row += rows) {
            rows = n_rows - row < 4 ? n_rows - row : 4;
            score_fns[SN_KV_F32][tiles == 4][rows - 1](job, row, k, k, (size_t)(position - sn_attention_base(job)));
        }
    }
}

/* Scores of all rows with the tiles of positions [first, end). The tiles that follow may lie in other pages, which the
 * hardware does not prefetch. */
static void scores(const sn_attention_job *job, int first, int end) {
    if (job->latent) {
        latent_scores(job, first, end);
        return;
    }
    int n_rows = job->n_tokens * job->n_heads, tiles;
    for (int position = first; position < end; position += tiles * SN_LANES) {
        const uint8_t *k[4], *next[4];
        tiles = end - position > 3 * SN_LANES ? 4 : 1;
        for (int t = 0; t < tiles; t++) {
            int ahead = position + (tiles + t) * SN_LANES;
            k[t] = key_tile(job, position + t * SN_LANES);
            next[t] = ahead < end ? key_tile(job, ahead) : k[t];
        }
        const score_fn *fns = score_fns[job->dtype][tiles == 4];
        for (int row = 0, rows; row < n_rows; row += rows) {
            rows = n_rows - row < 4 ? n_rows - row : 4;
            fns[rows - 1](job, row, k, next, (size_t)(position - sn_attention_base(job)));
        }
    }
}

/* -- (2) softmax of s in place, without the division; returns the sum. s[0] belongs to a position that is a multiple of
 * 16, s[from, to) to the row's positions. Works on whole vectors: elements outside of [from, to) get probability zero.
 * *sink, unless NULL, is a score that counts in the maximum and the sum. */
static float exp_scores(float *s, size_t from, size_t to, const float *sink) {
    const vf none = vf_set(-__builtin_inff());
    size_t end = (to + SN_LANES - 1) / SN_LANES * SN_LANES;
    for (size_t i = 0; i < from; i++) s[i] = -__builtin_inff();
    for (size_t i = to; i < end; i++) s[i] = -__builtin_inff();
    vf top = none;
    for (size_t i = 0; i < end; i += SN_LANES) {
        vf x = vf_load(s + i);
        top = vf_max(x, top); /* ignores NaN, which reappears in exp */
    }
    float t[SN_LANES], max, total;
    vf_store(t, top);
    max = t[0];
    for (int i = 1; i < SN_LANES; i++) max = t[i] > max ? t[i] : max;
    if (sink) max = *sink > max ? *sink : max;
    vf sum = vf_set(0);
    for (size_t i = 0; i < end; i += SN_LANES) {
        vf p = exp_lanes(vf_sub(vf_load(s + i), vf_set(max)));
        vf_store(s + i, p);
        sum = vf_add(sum, p);
    }
    total = tree_sum(sum);
    if (!sink) return total;
    vf_store(t, exp_lanes(vf_sub(vf_set(*sink), vf_set(max))));
    return total + t[0];
}

/* Bounds the scores s[0, end), end rounded up to 16: softcap * tanh(s / softcap). */
static void softcap_scores(float *s, size_t end, float softcap) {
    for (size_t i = 0; i < end; i += SN_LANES)
        vf_store(s + i, vf_mul(tanh_lanes(vf_div(vf_load(s + i), vf_set(softcap))), vf_set(softcap)));
}

/* ALiBi: adds slope * distance to the scores s[from, to) of a row; s[to - 1] belongs to the row's own position. */
static void alibi_add(float *s, int from, int to, float slope) {
    for (int i = from; i < to; i++) s[i] = __builtin_fmaf(slope, (float)(i + 1 - to), s[i]);
}

static void softmax(const sn_attention_job *job) {
    for (int r = 0; r < job->n_tokens * job->n_heads; r++) {
        key_range own = row_key_range(job, r / job->n_heads);
        int base = sn_attention_base(job);
        float *s = job->scores + (size_t)r * job->scores_stride;
        if (job->softcap > 0) softcap_scores(s, (size_t)(own.end - base), job->softcap);
        if (job->slopes) alibi_add(s, own.first - base, own.end - base, job->slopes[r % job->n_heads]);
        job->sums[r] = exp_scores(s, (size_t)(own.first - base), (size_t)(own.end - base),
                                  job->sinks ? &job->sinks[r % job->n_heads] : NULL);
    }
}

/* -- (3) acc += p * v over positions [at.first, at.end), for `rows` rows and 16 * groups dimensions from dim on. With
 * SN_KV_Q8 dim is a multiple of SN_KV_BLOCK. Prefetches the same place two pages ahead.
 *
 * 8 parameters: inlined with constant type, rows and groups, so that acc stays in registers. */
INLINE void value_tile(sn_kv_dtype type, int rows, int groups, const sn_attention_job *job, const float *const *p,
                       key_range at, size_t dim, vf *acc) {
    enum { PAGES_AHEAD = 2, PER_SCALE = SN_KV_BLOCK / SN_LANES };
    const size_t width = ((size_t)job->row_dim + SN_LANES - 1) / SN_LANES * SN_LANES,
                 bytes = SN_LANES * sn_kv_element_bytes(type);
    const size_t row_bytes = sn_kv_value_bytes(type, job->row_dim), first_byte = dim * sn_kv_element_bytes(type);
    const size_t first_scale = width + dim / SN_KV_BLOCK * 2;
    int base = sn_attention_base(job), last_page = (at.end - 1) / job->page_tokens;
    const float *own_p[4];
    vf own[16]; /* a local array, whose address is not passed on, stays in registers */
    for (int i = 0; i < rows * groups; i++) own[i] = acc[i];
    for (int position = at.first, page = at.first / job->page_tokens, n; position < at.end; position += n, page++) {
        int in_page = position - page * job->page_tokens, left = at.end - position;
        int next_page = page + PAGES_AHEAD < last_page ? page + PAGES_AHEAD : last_page;
        size_t begin = job->v_offset + (size_t)in_page * row_bytes;
        const uint8_t *v = (const uint8_t *)job->pages[page] + begin,
                      *next = (const uint8_t *)job->pages[next_page] + begin;
        n = job->page_tokens - in_page < left ? job->page_tokens - in_page : left;
        for (int r = 0; r < rows; r++) own_p[r] = p[r] + (position - base);
        for (int i = 0; i < n; i++, v += row_bytes, next += row_bytes) {
            vf scale = vf_set(0);
            /* the end of the value, which the loop over whole lines misses */
            if (type == SN_KV_Q8) __builtin_prefetch(next + row_bytes - 1, 0, PREFETCH_TO_L2);
            for (int g = 0; g < groups; g++) {
                size_t byte = first_byte + (size_t)g * bytes;
                if (type == SN_KV_Q8 && g % PER_SCALE == 0) scale = vf_set_bf16(v + first_scale + g / PER_SCALE * 2);
                vf value = load_elements(type, v + byte, scale);
                if ((size_t)g * bytes % LINE == 0) __builtin_prefetch(next + byte, 0, PREFETCH_TO_L2);
                for (int r = 0; r < rows; r++)
                    own[g * rows + r] = vf_fma(vf_set(own_p[r][i]), value, own[g * rows + r]);
            }
        }
    }
    for (int i = 0; i < rows * groups; i++) acc[i] = own[i];
}

/* As value_tile for a single row p; its vectors are acc[g * stride]. 8 parameters: as value_tile. */
INLINE void value_row_alone(sn_kv_dtype type, int groups, const sn_attention_job *job, const float *p, key_range at,
                            size_t dim, int stride, vf *acc) {
    vf own[4];
    for (int g = 0; g < groups; g++) own[g] = acc[g * stride];
    value_tile(type, 1, groups, job, &p, at, dim, own);
    for (int g = 0; g < groups; g++) acc[g * stride] = own[g];
}
typedef void (*value_alone_fn)(const sn_attention_job *job, const float *p, key_range at, size_t dim, int stride,
                               vf *acc);

/* Rows of different tokens attend to different positions at both ends: their common positions are processed together,
 * the others one row at a time. The positions of each row stay in order. */
INLINE void value_rows(sn_kv_dtype type, int rows, int groups, const sn_attention_job *job, int row, size_t dim,
                       value_alone_fn alone) {
    const float *p[4];
    vf acc[16];
    key_range first = row_key_range(job, row / job->n_heads),
              last = row_key_range(job, (row + rows - 1) / job->n_heads);
    key_range common = {last.first, first.end};
    if (common.first > common.end) common.first = common.end; /* the window is shorter than the tile */
    for (int i = 0; i < rows * groups; i++) acc[i] = vf_set(0);
    for (int r = 0; r < rows; r++) {
        p[r] = job->scores + (size_t)(row + r) * job->scores_stride;
        key_range before = {row_key_range(job, (row + r) / job->n_heads).first, common.first};
        if (before.first < before.end) alone(job, p[r], before, dim, rows, acc + r);
    }
    if (common.first < common.end) value_tile(type, rows, groups, job, p, common, dim, acc);
    for (int r = 0; r < rows; r++) {
        key_range after = row_key_range(job, (row + r) / job->n_heads);
        if (after.first < common.end) after.first = common.end;
        if (after.first < after.end) alone(job, p[r], after, dim, rows, acc + r);
        float *y = job->out + query_number(job, row + r) * (size_t)job->value_dim + dim;
        vf inverse = vf_set(1 / job->sums[row + r]);
        for (int g = 0; g < groups; g++) {
            size_t at = (size_t)g * SN_LANES, left = (size_t)job->value_dim - dim - at;
            vf_store_n(y + at, vf_mul(acc[g * rows + r], inverse), left < SN_LANES ? left : SN_LANES);
        }
    }
}
typedef void (*value_fn)(const sn_attention_job *job, int row, size_t dim);

#define VALUE(type, groups, rows)                                                                                      \
    SPECIAL(value_##type##_##groups##_##rows, const sn_attention_job *job, int row, size_t dim) {                      \
        value_rows(SN_KV_##type, rows, groups, job, row, dim, value_alone_##type##_##groups);                          \
    }
#define VALUES_OF(type, groups)                                                                                        \
    SPECIAL(value_alone_##type##_##groups, const sn_attention_job *job, const float *p, key_range at, size_t dim,      \
            int stride, vf *acc) {                                                                                     \
        value_row_alone(SN_KV_##type, groups, job, p, at, dim, stride, acc);                                           \
    }                                                                                                                  \
    VALUE(type, groups, 1) VALUE(type, groups, 2) VALUE(type, groups, 3) VALUE(type, groups, 4)
#define VALUES(type) VALUES_OF(type, 1) VALUES_OF(type, 2) VALUES_OF(type, 4)
VALUES(F32)
VALUES(F16)
VALUES(Q8)
#define NAMES(type, groups)                                                                                            \
    {value_##type##_##groups##_1, value_##type##_##groups##_2, value_##type##_##groups##_3, value_##type##_##groups##_4}
static const value_fn value_fns[SN_KV_DTYPE_COUNT][3][4] = {{NAMES(F32, 1), NAMES(F32, 2), NAMES(F32, 4)},
                                                            {NAMES(F16, 1), NAMES(F16, 2), NAMES(F16, 4)},
                                                            {NAMES(Q8, 1), NAMES(Q8, 2), NAMES(Q8, 4)}};
#undef NAMES

static void values(const sn_attention_job *job, int first, int end) {
    int n_rows = job->n_tokens * job->n_heads;
    for (int dim = first, groups; dim < end; dim += groups * SN_LANES) {
        groups = end - dim > 3 * SN_LANES ? 4 : end - dim > SN_LANES ? 2 : 1;
        const value_fn *fns = value_fns[job->dtype][groups / 2];
        for (int row = 0, rows; row < n_rows; row += rows) {
            rows = n_rows - row < 4 ? n_rows - row : 4;
            fns[rows - 1](job, row, (size_t)dim);
        }
    }
}

/* -- the scores of an indexer: an fma chain over its heads. What is not a number counts as 0. */
static void weigh(const sn_weigh_job *job) {
    for (size_t i = 0; i < job->n; i += SN_LANES) {
        vf sum = job->first ? vf_set(0) : vf_load(job->y + i);
        for (int h = 0; h < job->n_heads; h++) {
            vf score = vf_load(job->scores + (size_t)h * job->stride + i);
            sum = vf_fma(vf_set(job->weights[h]), vf_max(score, vf_set(0)), sum);
        }
        vf_store(job->y + i, sum);
    }
}

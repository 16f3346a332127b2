/* The operations of a block that do not involve weight matrices. OpenCL C 1.2 without extensions and subgroups. A sum
 * along a row has an order that depends on the shape alone: the same bits from run to run. */

#include "device/xpu/formulas.clh"

/* -- operations on rows and elements */

/* Zhang & Sennrich 2019. One group of 64 per row; y may be x. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
rms_norm(uint width, __global const float *x, __global const float *weight, float eps, __global float *y) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t row = (size_t)get_group_id(0) * width;
    float sum = 0.0f;
    for (uint i = lane; i < width; i += 64) sum += x[row + i] * x[row + i];
    float scale = 1.0f / sqrt(group_sum(sum, partial) / (float)width + eps);
    for (uint i = lane; i < width; i += 64) y[row + i] = x[row + i] * scale * weight[i];
}

/* Ba et al. 2016. One group of 64 per row; bias may be NULL. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void layer_norm(uint width, __global const float *x,
                                                                         __global const float *weight,
                                                                         __global const float *bias, float eps,
                                                                         __global float *y) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t row = (size_t)get_group_id(0) * width;
    float sum = 0.0f, squares = 0.0f;
    for (uint i = lane; i < width; i += 64) sum += x[row + i];
    float mean = group_sum(sum, partial) / (float)width;
    for (uint i = lane; i < width; i += 64) squares += (x[row + i] - mean) * (x[row + i] - mean);
    float scale = 1.0f / sqrt(group_sum(squares, partial) / (float)width + eps);
    for (uint i = lane; i < width; i += 64)
        y[row + i] = (x[row + i] - mean) * scale * weight[i] + (bias ? bias[i] : 0.0f);
}

/* Su et al. 2021. One item rotates one pair: (2i, 2i + 1), or (i, i + dim / 2) with rotate_half. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void rope(uint n_pairs_all, uint n_heads, uint head_dim,
                                                                   uint dim, uint rotate_half, __global float *x,
                                                                   __global const float *cos_sin) {
    uint id = get_global_id(0), pairs = dim / 2;
    if (id >= n_pairs_all) return;
    uint pair = id % pairs, head = id / pairs, token = head / n_heads;
    __global float *a = x + (size_t)head * head_dim + (rotate_half ? pair : 2 * pair),
                   *b = a + (rotate_half ? pairs : 1);
    float c = cos_sin[((size_t)token * pairs + pair) * 2], s = cos_sin[((size_t)token * pairs + pair) * 2 + 1];
    float va = *a, vb = *b;
    *a = va * c - vb * s;
    *b = vb * c + va * s;
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void activate(ulong n, uint kind, __global const float *gate,
                                                                       __global const float *up, __global float *y) {
    size_t i = get_global_id(0);
    if (i < n) y[i] = activation(kind, gate[i]) * (up ? factor(kind, up[i]) : 1.0f);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void add(ulong n, __global float *y, __global const float *x) {
    size_t i = get_global_id(0);
    if (i < n) y[i] += x[i];
}

/* y (n, width) = x * factor * factors[row] */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void scale(ulong n, uint width, __global const float *x,
                                                                    float factor_all, __global const float *factors,
                                                                    __global float *y) {
    size_t i = get_global_id(0);
    if (i < n) y[i] = x[i] * (factors ? factor_all * factors[i / width] : factor_all);
}

/* y (n) = the sum of a * b over each row. One group of 64 per row. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void dot_rows(uint width, __global const float *a,
                                                                       __global const float *b, __global float *y) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t row = (size_t)get_group_id(0) * width;
    float sum = 0.0f;
    for (uint i = lane; i < width; i += 64) sum += a[row + i] * b[row + i];
    sum = group_sum(sum, partial);
    if (lane == 0) y[get_group_id(0)] = sum;
}

/* -- the KV cache. A page holds for each block and key-value head the keys as (tile of 16 positions, head_dim, 16), so
 * that 16 items with one position each read contiguously, then the values as (position, head_dim). kv.c depends on this
 * layout (sn_xpu_kv_page_bytes).
 *
 * The batch table: for each row {its sequence's first entry in `pages`, position}; then tiles of up to 16 rows of one
 * sequence {first row, rows, position of the first row, first entry in `pages`}, those of one row last; then the
 * addresses of the pages. */

typedef struct kv_view {
    __global const ulong *pages; /* of the sequence */
    uint page_tokens, head_dim;
    ulong offset; /* of this block and head in a page, in floats */
} kv_view;

static inline __global float *page_at(kv_view p, uint position) {
    return (__global float *)p.pages[position / p.page_tokens] + p.offset;
}

/* the first element; the others lie 16 floats apart */
static inline __global float *key_at(kv_view p, uint position) {
    uint in_page = position % p.page_tokens;
    return page_at(p, position) + (in_page / 16) * 16 * p.head_dim + in_page % 16;
}

static inline __global float *value_at(kv_view p, uint position) {
    return page_at(p, position) + (size_t)p.page_tokens * p.head_dim + (size_t)(position % p.page_tokens) * p.head_dim;
}

static inline ulong head_offset(uint block, uint head, uint n_kv_heads, uint page_tokens, uint head_dim) {
    return ((ulong)block * n_kv_heads + head) * 2 * page_tokens * head_dim;
}

/* One item stores one element of a row's keys and values. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
kv_store(__global const uint2 *rows, __global const ulong *pages, uint block, uint n_kv_heads, uint head_dim,
         uint page_tokens, __global const float *k, __global const float *v) {
    uint e = get_global_id(0), row = get_group_id(1), head = e / head_dim;
    if (head >= n_kv_heads) return;
    uint2 at = rows[row];
    kv_view p = {pages + at.x, page_tokens, head_dim, head_offset(block, head, n_kv_heads, page_tokens, head_dim)};
    size_t from = (size_t)row * n_kv_heads * head_dim + e;
    key_at(p, at.y)[16 * (e % head_dim)] = k[from];
    value_at(p, at.y)[e % head_dim] = v[from];
}

/* Copies positions [first, first + n) of one sequence to or from (n, n_kv_heads, head_dim). */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void kv_copy(__global const ulong *pages, uint block,
                                                                      uint n_kv_heads, uint head_dim, uint page_tokens,
                                                                      uint first, uint store, __global float *k,
                                                                      __global float *v) {
    uint e = get_global_id(0), i = get_group_id(1), head = e / head_dim;
    if (head >= n_kv_heads) return;
    kv_view p = {pages, page_tokens, head_dim, head_offset(block, head, n_kv_heads, page_tokens, head_dim)};
    size_t at = (size_t)i * n_kv_heads * head_dim + e;
    __global float *key = key_at(p, first + i) + 16 * (e % head_dim), *value = value_at(p, first + i) + e % head_dim;
    if (store) {
        *key = k[at];
        *value = v[at];
    } else {
        k[at] = *key;
        v[at] = *value;
    }
}

#define CHUNK   64
#define HEADS   4 /* query heads of one key-value head that share what they read: SN_XPU_ROW_HEADS */
#define DIM_MAX 256

/* A row by itself (decoding): a group of 64 for up to HEADS query heads and for a part of the positions, part_tokens of
 * them, a multiple of 64. It takes 64 positions at a time: an item scores one of them, then sums every 64th dimension
 * of the results. Online softmax: Milakov & Gimelshein 2018. With one part the result goes to `out`; else maximum, sum
 * and result of each (row, head, part) go to `partial`, and attention_join follows. */
__kernel __attribute__((reqd_work_group_size(CHUNK, 1, 1))) void
attention_row(__global const uint4 *tiles, __global const ulong *pages, uint block, uint n_heads, uint n_kv_heads,
              uint head_dim, uint page_tokens, int window, float scale, float softcap, __global const float *slopes,
              __global const float *sinks, __global const float *q, __global float *out, uint n_parts, uint part_tokens,
              __global float *partial) {
    __local float query[HEADS][DIM_MAX], scores[HEADS][CHUNK], probs[HEADS][CHUNK];
    uint lane = get_local_id(0), index = get_group_id(1) / n_parts, part = get_group_id(1) % n_parts;
    uint group = n_heads / n_kv_heads, teams = (group + HEADS - 1) / HEADS, kv_head = get_group_id(0) / teams;
    uint first_head = kv_head * group + get_group_id(0) % teams * HEADS;
    uint heads = min((uint)HEADS, (kv_head + 1) * group - first_head);
    uint4 tile = tiles[index];
    kv_view p = {pages + tile.w, page_tokens, head_dim, head_offset(block, kv_head, n_kv_heads, page_tokens, head_dim)};
    uint own = tile.z, start = window_first(own, window), base = start / 16 * 16 + part * part_tokens;
    uint end = min(own + 1, base + part_tokens);
    if (base > own) return; /* this row has fewer parts than the longest */
    size_t place = ((size_t)tile.x * n_heads + first_head) * head_dim;
    float max_score[HEADS], sum[HEADS], result[HEADS][DIM_MAX / CHUNK];
    for (uint h = 0; h < HEADS; h++) {
        bool sink = sinks && part == 0 && h < heads; /* it comes before all keys */
        max_score[h] = sink ? sinks[first_head + h] : -INFINITY;
        sum[h] = sink ? 1.0f : 0.0f;
        for (uint i = 0; i < DIM_MAX / CHUNK; i++) result[h][i] = 0.0f;
        for (uint e = lane; e < head_dim; e += CHUNK) query[h][e] = h < heads ? q[place + h * head_dim + e] : 0.0f;
    }
    for (; base < end; base += CHUNK) {
        uint position = base + lane, first = max(start, base), last = min(end, base + CHUNK);
        bool visible = position >= start && position < end;
        float score[HEADS];
        for (uint h = 0; h < HEADS; h++) score[h] = 0.0f;
        /* the queries are loaded, and all items have finished with the shares of the last chunk */
        barrier(CLK_LOCAL_MEM_FENCE);
        if (visible) {
            __global const float *key = key_at(p, position);
            for (uint e = 0; e < head_dim; e++) {
                float element = key[16 * e];
                for (uint h = 0; h < HEADS; h++) score[h] += query[h][e] * element;
            }
            for (uint h = 0; h < heads; h++)
                score[h] = alibi_score(softcapped(score[h] * scale, softcap), slopes, first_head + h, position, own);
        }
        for (uint h = 0; h < HEADS; h++) scores[h][lane] = score[h];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint h = 0; h < heads; h++) {
            float new_max = max_score[h];
            for (uint t = first; t < last; t++) new_max = fmax(new_max, scores[h][t - base]);
            probs[h][lane] = visible ? exp(score[h] - new_max) : 0.0f;
            float rescale = exp(max_score[h] - new_max); /* the earlier results, relative to the new maximum */
            max_score[h] = new_max;
            sum[h] *= rescale;
            for (uint i = 0; i < DIM_MAX / CHUNK; i++) result[h][i] *= rescale;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint some = first / 16 * 16; some < last; some += 16) { /* they lie in one page */
            __global const float *value = value_at(p, some);
            for (uint t = max(first, some); t < min(last, some + 16); t++)
                for (uint i = 0; i < DIM_MAX / CHUNK; i++) {
                    uint e = lane + i * CHUNK;
                    float element = e < head_dim ? value[(t - some) * head_dim + e] : 0.0f;
                    for (uint h = 0; h < heads; h++) {
                        result[h][i] += probs[h][t - base] * element;
                        if (i == 0) sum[h] += probs[h][t - base];
                    }
                }
        }
    }
    for (uint h = 0; h < heads; h++) {
        size_t slot = (((size_t)index * n_heads + first_head + h) * n_parts + part) * (head_dim + 2);
        __global float *to = n_parts == 1 ? out + place + h * head_dim : partial + slot + 2;
        float divisor = n_parts == 1 ? sum[h] : 1.0f;
        for (uint i = 0; i < DIM_MAX / CHUNK; i++)
            if (lane + i * CHUNK < head_dim) to[lane + i * CHUNK] = result[h][i] / divisor;
        if (n_parts > 1 && lane < 2) partial[slot + lane] = lane ? sum[h] : max_score[h];
    }
}

/* Joins the parts of a row's head; a row has those that its positions fill. One group of 64 per head and row. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
attention_join(__global const uint4 *tiles, uint n_heads, uint head_dim, int window, __global float *out, uint n_parts,
               uint part_tokens, __global const float *partial) {
    uint lane = get_local_id(0), head = get_group_id(0), index = get_group_id(1), size = head_dim + 2;
    uint4 tile = tiles[index];
    uint n = (tile.z - window_first(tile.z, window) / 16 * 16) / part_tokens + 1;
    __global const float *from = partial + ((size_t)index * n_heads + head) * n_parts * size;
    float most = -INFINITY, sum = 0.0f;
    for (uint i = 0; i < n; i++) most = fmax(most, from[i * size]);
    for (uint i = 0; i < n; i++) sum += exp(from[i * size] - most) * from[i * size + 1];
    for (uint e = lane; e < head_dim; e += 64) {
        float result = 0.0f;
        for (uint i = 0; i < n; i++) result += exp(from[i * size] - most) * from[i * size + 2 + e];
        out[((size_t)tile.x * n_heads + head) * head_dim + e] = result / sum;
    }
}

#define ROWS  16 /* of a tile */
#define LANES 8  /* items per row */
#define KEYS  16 /* positions at a time: a tile of the page */

/* Up to 16 rows of one sequence and one head by a group of 8 x 16: keys and values are loaded to local memory once for
 * all rows. Positions before a row's window or after the row are excluded. */
__kernel __attribute__((reqd_work_group_size(LANES, ROWS, 1))) void
attention_tile(__global const uint4 *tiles, __global const ulong *pages, uint block, uint n_heads, uint n_kv_heads,
               uint head_dim, uint page_tokens, int window, float scale, float softcap, __global const float *slopes,
               __global const float *sinks, __global const float *q, __global float *out, __local float *query,
               __local float *keys, __local float *values) {
    __local float scores[ROWS][KEYS];
    uint lane = get_local_id(0), line = get_local_id(1), item = line * LANES + lane, head = get_group_id(0);
    uint kv_head = head / (n_heads / n_kv_heads);
    uint4 tile = tiles[get_group_id(1)];
    kv_view p = {pages + tile.w, page_tokens, head_dim, head_offset(block, kv_head, n_kv_heads, page_tokens, head_dim)};
    bool real = line < tile.y;
    uint row = tile.x + (real ? line : 0), end = tile.z + (real ? line : 0) + 1, start = window_first(end - 1, window);
    uint all_start = window_first(tile.z, window), all_end = tile.z + tile.y;
    size_t place = ((size_t)row * n_heads + head) * head_dim;
    for (uint e = lane; e < head_dim; e += LANES) query[line * head_dim + e] = q[place + e];
    float max_score = sinks ? sinks[head] : -INFINITY, sum = sinks ? 1.0f : 0.0f, result[DIM_MAX / LANES];
    for (uint i = 0; i < DIM_MAX / LANES; i++) result[i] = 0.0f;
    for (uint base = all_start / KEYS * KEYS; base < all_end; base += KEYS) {
        __global const float *key = key_at(p, base), *value = value_at(p, base);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = item; i < KEYS * head_dim; i += LANES * ROWS) keys[i] = key[i], values[i] = value[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint t = lane; t < KEYS; t += LANES) {
            float score = 0.0f;
            for (uint e = 0; e < head_dim; e++) score += query[line * head_dim + e] * keys[e * KEYS + t];
            scores[line][t] = alibi_score(softcapped(score * scale, softcap), slopes, head, base + t, end - 1);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        uint first = max(start, base), last = min(end, base + KEYS);
        float new_max = max_score;
        for (uint t = first; t < last; t++) new_max = fmax(new_max, scores[line][t - base]);
        float rescale = first < last ? exp(max_score - new_max)
                                     : 1.0f; /* no position counted yet: the maximum may still be -infinity */
        max_score = new_max;
        sum *= rescale;
        for (uint i = 0; i < DIM_MAX / LANES; i++) result[i] *= rescale;
        for (uint t = first; t < last; t++) {
            float prob = exp(scores[line][t - base] - new_max);
            sum += prob;
            for (uint i = 0; i < DIM_MAX / LANES; i++)
                if (lane + i * LANES < head_dim) result[i] += prob * values[(t - base) * head_dim + lane + i * LANES];
        }
    }
    for (uint i = 0; real && i < DIM_MAX / LANES; i++)
        if (lane + i * LANES < head_dim) out[place + lane + i * LANES] = result[i] / sum;
}

/* -- mixtures of experts */

/* By what expert e is chosen; NaN ranks last. */
static float rank_of(__global const float *logits, __global const float *correction, int e) {
    float rank = correction ? sigmoid(logits[e]) + correction[e] : logits[e];
    return isnan(rank) ? -INFINITY : rank;
}

/* Whether expert b ranks before a (-1: none): the larger rank, of equal ones the lower id. */
static bool comes_before(__global const float *logits, __global const float *correction, int b, int a) {
    if (b < 0 || a < 0) return a < 0 && b >= 0;
    float vb = rank_of(logits, correction, b), va = rank_of(logits, correction, a);
    return vb > va || (vb == va && b < a);
}

/* One group of 64 per row: the k largest ranks and their weights. An item looks at every 64th of up to 1024. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
moe_gate(uint n_experts, uint k, uint scoring, __global const float *correction, uint normalised, float scale_all,
         __global const float *logits, __global int *ids, __global float *weights) {
    __local int best[64];
    __local float partial[64];
    uint lane = get_local_id(0), taken = 0;
    size_t row = get_group_id(0);
    logits += row * n_experts;
    ids += row * k;
    weights += row * k;
    float max_score = 0.0f, sum = scoring == BY_SIGMOID ? 1e-20f : 0.0f; /* as the reference adds it */
    for (uint j = 0; j < k; j++) {
        int own = -1;
        for (uint i = 0; 64 * i + lane < n_experts; i++)
            if (!(taken >> i & 1) && comes_before(logits, correction, 64 * i + lane, own)) own = 64 * i + lane;
        best[lane] = own;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint half_count = 32; half_count > 0; half_count /= 2) {
            if (lane < half_count && comes_before(logits, correction, best[lane + half_count], best[lane]))
                best[lane] = best[lane + half_count];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        uint chosen = best[0];
        barrier(CLK_LOCAL_MEM_FENCE); /* all items have read it */
        if (chosen % 64 == lane) taken |= 1u << chosen / 64;
        if (j == 0) max_score = logits[chosen];
        float e = scoring == BY_SIGMOID ? sigmoid(logits[chosen]) : exp(logits[chosen] - max_score);
        sum += e;
        if (lane == 0) ids[j] = chosen, weights[j] = e;
    }
    if (scoring == BY_SIGMOID && !normalised) sum = 1.0f;
    if (scoring == BY_SOFTMAX_ALL) {
        sum = 0.0f;
        for (uint e = lane; e < n_experts; e += 64) sum += exp(logits[e] - max_score);
        partial[lane] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint half_count = 32; half_count > 0; half_count /= 2) {
            if (lane < half_count) partial[lane] += partial[lane + half_count];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        sum = partial[0];
    }
    if (lane == 0)
        for (uint j = 0; j < k; j++) weights[j] *= scale_all / sum;
}

/* y (n, width) = the sum over j of weights[i, j] * x[i, j]. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
moe_combine(ulong n, uint k, uint width, __global const float *weights, __global const float *x, __global float *y) {
    size_t item = get_global_id(0), row = item / width, at = item % width;
    float sum = 0.0f;
    if (item >= n) return;
    for (uint j = 0; j < k; j++) sum = fma(weights ? weights[row * k + j] : 1.0f, x[(row * k + j) * width + at], sum);
    y[item] = sum;
}

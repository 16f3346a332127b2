/* The KV cache and attention over it, compiled once per type of KV cache: KV is 0 (f32), 1 (f16) or 2 (q8), as in
 * sn_kv_dtype. OpenCL C 1.2 without extensions and subgroups. A sum has an order that depends on the shape alone.
 *
 * A page holds for each block and key-value head the keys as (tile of 16 positions, head_dim, 16), so that 16 items
 * with one position each read contiguously, then the values as (position, value_dim), then with q8 the bfloat16 scales
 * of each 32 elements in the same two forms. A block begins block_at bytes behind the page's beginning. kv.c depends on
 * this layout (sn_xpu_kv_page_bytes).
 *
 * The batch table: for each row {its sequence's first entry in `pages`, position}; then tiles of up to 16 rows of one
 * sequence {first row, rows, position of the first row, first entry in `pages`}, those of one row last; then the
 * sequences' recurrent states (delta.clh); then the addresses of the pages. */
#include "device/xpu/formulas.clh"

#define ELEMENT (KV == 0 ? 4 : KV == 1 ? 2 : 1) /* bytes */
#define GROUP   32                              /* elements that share a scale */

typedef struct kv_view {
    __global const ulong *pages; /* of the sequence */
    uint page_tokens, head_dim, value_dim;
    ulong offset; /* of this block and head in a page, in bytes */
} kv_view;

static inline uint n_groups(uint head_dim) { return (head_dim + GROUP - 1) / GROUP; }

/* Bytes of a key or a value. */
static inline ulong row_bytes(uint dim) { return ELEMENT * (ulong)dim + (KV == 2 ? 2 * n_groups(dim) : 0); }

static inline kv_view head_view(__global const ulong *pages, ulong block_at, uint head, uint page_tokens, uint head_dim,
                                uint value_dim) {
    kv_view p = {pages, page_tokens, head_dim, value_dim,
                 block_at + head * page_tokens * (row_bytes(head_dim) + row_bytes(value_dim))};
    return p;
}

/* A key or a value: element e is number first + e * step of `elements`, and has scale number e / GROUP * step. */
typedef struct kv_row {
    __global uchar *elements;
    ulong first;
    uint step;
    __global ushort *scales;
} kv_row;

static inline __global uchar *page_at(kv_view p, uint position) {
    return (__global uchar *)p.pages[position / p.page_tokens] + p.offset;
}

static inline __global ushort *scales_at(kv_view p, uint position) {
    return (__global ushort *)(page_at(p, position) + ELEMENT * (ulong)p.page_tokens * (p.head_dim + p.value_dim));
}

static inline kv_row key_at(kv_view p, uint position) {
    uint at = position % p.page_tokens, tile = at / 16 * 16;
    kv_row row = {page_at(p, position), (ulong)tile * p.head_dim + at % 16, 16,
                  scales_at(p, position) + tile * n_groups(p.head_dim) + at % 16};
    return row;
}

static inline kv_row value_at(kv_view p, uint position) {
    uint at = position % p.page_tokens;
    kv_row row = {page_at(p, position), (ulong)p.page_tokens * p.head_dim + (ulong)at * p.value_dim, 1,
                  scales_at(p, position) + p.page_tokens * n_groups(p.head_dim) + at * n_groups(p.value_dim)};
    return row;
}

/* Number `at` of the elements, without its scale; and scale number `at`. */
static inline float integer(kv_row r, ulong at) {
#if KV == 0
    return ((__global const float *)r.elements)[r.first + at];
#elif KV == 1
    return vload_half(r.first + at, (__global const half *)r.elements);
#else
    return (float)((__global const char *)r.elements)[r.first + at];
#endif
}

static inline float scale_number(kv_row r, uint at) {
#if KV == 2
    return as_float((uint)r.scales[at] << 16);
#else
    return 1.0f;
#endif
}

static inline float kv_load(kv_row r, uint e) { return integer(r, e * r.step) * scale_number(r, e / GROUP * r.step); }

/* Element e of the value that lies `rows` rows behind r, in the same page. */
static inline float kv_further(kv_row r, uint rows, uint value_dim, uint e) {
    return integer(r, rows * value_dim + e) * scale_number(r, rows * n_groups(value_dim) + e / GROUP);
}

#if KV == 2
/* a / b, correctly rounded except in rare cases also where the device's division is not. */
static inline float quotient(float a, float b) {
    float q = a / b;
    return isfinite(q) ? fma(fma(-q, b, a), 1.0f / b, q) : q;
}

#define SPAN GROUP /* elements that an item stores */
#else
#define SPAN 1
#endif

/* Stores n elements of x, at most SPAN, from e on, rounded as device/cpu/attention.c does, to the same bits. */
static inline void kv_put(kv_row r, uint e, uint n, const float *x) {
#if KV == 0
    ((__global float *)r.elements)[r.first + e * r.step] = *x;
#elif KV == 1
    float v = *x > 65504.0f ? 65504.0f : *x < -65504.0f ? -65504.0f : *x;
    vstore_half_rte(v, r.first + e * r.step, (__global half *)r.elements);
#else
    float most = 0.0f; /* NaN does not count, and becomes 0 */
    for (uint i = 0; i < n; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    uint bits = most < 1e-30f ? 0 : as_uint(quotient(most < FLT_MAX ? most : FLT_MAX, 127.0f));
    uint scale = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    for (uint i = 0; i < n; i++) {
        float y = scale ? quotient(x[i], as_float(scale << 16)) : 0.0f;
        int q = y >= 127.0f ? 127 : y <= -127.0f ? -127 : isnan(y) ? 0 : (int)rint(y);
        ((__global char *)r.elements)[r.first + (e + i) * r.step] = (char)q;
    }
    r.scales[e / GROUP * r.step] = (ushort)scale;
#endif
}

static inline void kv_put_from(kv_row r, uint e, uint n, __global const float *x) {
    float own[SPAN];
    for (uint i = 0; i < n; i++) own[i] = x[i];
    kv_put(r, e, n, own);
}

/* One item stores SPAN elements of a row's keys and values. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
kv_store(__global const uint2 *rows, __global const ulong *pages, ulong block_at, uint n_kv_heads, uint head_dim,
         uint value_dim, uint page_tokens, __global const float *k, __global const float *v) {
    uint spans = (head_dim + SPAN - 1) / SPAN, item = get_global_id(0), row = get_group_id(1), head = item / spans,
         e = item % spans * SPAN;
    if (head >= n_kv_heads) return;
    uint2 at = rows[row];
    kv_view p = head_view(pages + at.x, block_at, head, page_tokens, head_dim, value_dim);
    size_t from = (size_t)row * n_kv_heads + head;
    kv_put_from(key_at(p, at.y), e, min((uint)SPAN, head_dim - e), k + from * head_dim + e);
    if (e < value_dim) kv_put_from(value_at(p, at.y), e, min((uint)SPAN, value_dim - e), v + from * value_dim + e);
}

/* rope of q and of k, then kv_store, with the bits of each by itself. One group of 64 per row and head: first those of
 * q, then those of k. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
rope_store(__global const uint2 *rows, __global const ulong *pages, ulong block_at, uint n_heads, uint n_kv_heads,
           uint head_dim, uint value_dim, uint page_tokens, uint rope_dim, uint rotate_half,
           __global const float *cos_sin, __global float *q, __global float *k, __global const float *v) {
    uint lane = get_local_id(0), row = get_group_id(1), pairs = rope_dim / 2;
    bool of_query = get_group_id(0) < n_heads;
    uint head = get_group_id(0) - (of_query ? 0 : n_heads);
    size_t from = (size_t)row * (of_query ? n_heads : n_kv_heads) + head;
    __global float *own = (of_query ? q : k) + from * head_dim;
    for (uint i = lane; i < pairs; i += 64) rotate_pair(own, i, rotate_half, pairs, cos_sin + (size_t)row * rope_dim);
    if (of_query) return; /* the whole group */
    barrier(CLK_GLOBAL_MEM_FENCE);
    uint2 at = rows[row];
    kv_view p = head_view(pages + at.x, block_at, head, page_tokens, head_dim, value_dim);
    for (uint e = lane * SPAN; e < head_dim; e += 64 * SPAN) {
        kv_put_from(key_at(p, at.y), e, min((uint)SPAN, head_dim - e), own + e);
        if (e < value_dim) kv_put_from(value_at(p, at.y), e, min((uint)SPAN, value_dim - e), v + from * value_dim + e);
    }
}

/* Copies positions [first, first + n) of one sequence to or from (n, n_kv_heads, head_dim) and (.., value_dim). */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void kv_copy(__global const ulong *pages, ulong block_at,
                                                                      uint n_kv_heads, uint head_dim, uint value_dim,
                                                                      uint page_tokens, uint first, uint store,
                                                                      __global float *k, __global float *v) {
    uint spans = (head_dim + SPAN - 1) / SPAN, item = get_global_id(0), i = get_group_id(1), head = item / spans,
         e = item % spans * SPAN;
    if (head >= n_kv_heads) return;
    kv_view p = head_view(pages, block_at, head, page_tokens, head_dim, value_dim);
    size_t at = (size_t)i * n_kv_heads + head;
    uint n = min((uint)SPAN, head_dim - e), n_value = e < value_dim ? min((uint)SPAN, value_dim - e) : 0;
    kv_row key = key_at(p, first + i), value = value_at(p, first + i);
    k += at * head_dim;
    v += at * value_dim;
    if (store) {
        kv_put_from(key, e, n, k + e);
        if (n_value) kv_put_from(value, e, n_value, v + e);
    } else {
        for (uint j = 0; j < n; j++) k[e + j] = kv_load(key, e + j);
        for (uint j = 0; j < n_value; j++) v[e + j] = kv_load(value, e + j);
    }
}

#define CHUNK   64
#define HEADS   4 /* query heads of one key-value head that share what they read: SN_XPU_ROW_HEADS */
#define DIM_MAX 256

/* A row by itself (decoding): a group of 64 for up to HEADS query heads and for a part of the positions, part_tokens of
 * them, a multiple of 64. It takes 64 positions at a time: an item scores one of them, then sums every 64th dimension
 * of the results. Online softmax: Milakov & Gimelshein 2018. With one part the result goes to `out`, and with q8 is
 * quantised besides (heads are then whole groups of 32); else maximum, sum and result of each (row, head, part) go to
 * `partial`, and attention_join follows. */
__kernel __attribute__((reqd_work_group_size(CHUNK, 1, 1))) void
attention_row(__global const uint4 *tiles, __global const ulong *pages, ulong block_at, uint n_heads, uint n_kv_heads,
              uint head_dim, uint value_dim, uint page_tokens, int window, float scale, float softcap,
              __global const float *slopes, __global const float *sinks, __global const float *q, __global float *out,
              uint n_parts, uint part_tokens, __global float *partial, __global char *q8, __global float2 *scales) {
    __local float query[HEADS][DIM_MAX], scores[HEADS][CHUNK], probs[HEADS][CHUNK];
    uint lane = get_local_id(0), index = get_group_id(1) / n_parts, part = get_group_id(1) % n_parts;
    uint group = n_heads / n_kv_heads, teams = (group + HEADS - 1) / HEADS, kv_head = get_group_id(0) / teams;
    uint first_head = kv_head * group + get_group_id(0) % teams * HEADS;
    uint heads = min((uint)HEADS, (kv_head + 1) * group - first_head);
    uint4 tile = tiles[index];
    kv_view p = head_view(pages + tile.w, block_at, kv_head, page_tokens, head_dim, value_dim);
    uint own = tile.z, start = window_first(own, window), base = start / 16 * 16 + part * part_tokens;
    uint end = min(own + 1, base + part_tokens);
    if (base > own) return; /* this row has fewer parts than the longest */
    size_t place = (size_t)tile.x * n_heads + first_head, out_place = place * value_dim;
    float max_score[HEADS], sum[HEADS], result[HEADS][DIM_MAX / CHUNK];
    for (uint h = 0; h < HEADS; h++) {
        bool sink = sinks && part == 0 && h < heads; /* it comes before all keys */
        max_score[h] = sink ? sinks[first_head + h] : -INFINITY;
        sum[h] = sink ? 1.0f : 0.0f;
        for (uint i = 0; i < DIM_MAX / CHUNK; i++) result[h][i] = 0.0f;
        for (uint e = lane; e < head_dim; e += CHUNK) query[h][e] = h < heads ? q[(place + h) * head_dim + e] : 0.0f;
    }
    for (; base < end; base += CHUNK) {
        uint position = base + lane, first = max(start, base), last = min(end, base + CHUNK);
        bool visible = position >= start && position < end;
        float score[HEADS];
        for (uint h = 0; h < HEADS; h++) score[h] = 0.0f;
        /* the queries are loaded, and all items have finished with the shares of the last chunk */
        barrier(CLK_LOCAL_MEM_FENCE);
        if (visible) {
            kv_row key = key_at(p, position);
            for (uint span = 0; span < head_dim; span += GROUP) {
                float d = scale_number(key, span / GROUP * 16);
                for (uint e = span; e < min(span + GROUP, head_dim); e++) {
                    float element = integer(key, 16 * e) * d;
                    for (uint h = 0; h < HEADS; h++) score[h] += query[h][e] * element;
                }
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
            kv_row value = value_at(p, some);
            for (uint t = max(first, some); t < min(last, some + 16); t++)
                for (uint i = 0; i < DIM_MAX / CHUNK; i++) {
                    uint e = lane + i * CHUNK;
                    float element = e < value_dim ? kv_further(value, t - some, value_dim, e) : 0.0f;
                    for (uint h = 0; h < heads; h++) {
                        result[h][i] += probs[h][t - base] * element;
                        if (i == 0) sum[h] += probs[h][t - base];
                    }
                }
        }
    }
    for (uint h = 0; h < heads; h++) {
        size_t slot = (((size_t)index * n_heads + first_head + h) * n_parts + part) * (value_dim + 2);
        __global float *to = n_parts == 1 ? out + out_place + h * value_dim : partial + slot + 2;
        float divisor = n_parts == 1 ? sum[h] : 1.0f;
        for (uint i = 0; i < DIM_MAX / CHUNK; i++)
            if (lane + i * CHUNK < value_dim) to[lane + i * CHUNK] = result[h][i] / divisor;
        if (n_parts > 1 && lane < 2) partial[slot + lane] = lane ? sum[h] : max_score[h];
    }
    barrier(CLK_GLOBAL_MEM_FENCE); /* without a condition: PoCL 3.1 miscompiles a return before it */
    for (uint g = lane; q8 && n_parts == 1 && g < heads * value_dim / 32; g += CHUNK)
        quantise_group(out, out_place / 32 + g, q8, scales);
}

/* Joins the parts of a row's head; a row has those that its positions fill. One group of 64 per head and row. With q8,
 * the result is quantised besides; heads are then whole groups of 32. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
attention_join(__global const uint4 *tiles, uint n_heads, uint value_dim, int window, __global float *out, uint n_parts,
               uint part_tokens, __global const float *partial, __global char *q8, __global float2 *scales) {
    uint lane = get_local_id(0), head = get_group_id(0), index = get_group_id(1), size = value_dim + 2;
    uint4 tile = tiles[index];
    uint n = (tile.z - window_first(tile.z, window) / 16 * 16) / part_tokens + 1;
    __global const float *from = partial + ((size_t)index * n_heads + head) * n_parts * size;
    float most = -INFINITY, sum = 0.0f;
    for (uint i = 0; i < n; i++) most = fmax(most, from[i * size]);
    for (uint i = 0; i < n; i++) sum += exp(from[i * size] - most) * from[i * size + 1];
    for (uint e = lane; e < value_dim; e += 64) {
        float result = 0.0f;
        for (uint i = 0; i < n; i++) result += exp(from[i * size] - most) * from[i * size + 2 + e];
        out[((size_t)tile.x * n_heads + head) * value_dim + e] = result / sum;
    }
    if (!q8) return;
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (uint g = lane; g < value_dim / 32; g += 64)
        quantise_group(out, ((size_t)tile.x * n_heads + head) * (value_dim / 32) + g, q8, scales);
}

#define ROWS  16 /* of a tile */
#define LANES 8  /* items per row */
#define KEYS  16 /* positions at a time: a tile of the page */

/* Up to 16 rows of one sequence and one head by a group of 8 x 16: keys and values are loaded to local memory once for
 * all rows. Positions before a row's window or after the row are excluded. q8: as in attention_row. */
__kernel __attribute__((reqd_work_group_size(LANES, ROWS, 1))) void
attention_tile(__global const uint4 *tiles, __global const ulong *pages, ulong block_at, uint n_heads, uint n_kv_heads,
               uint head_dim, uint value_dim, uint page_tokens, int window, float scale, float softcap,
               __global const float *slopes, __global const float *sinks, __global const float *q, __global float *out,
               __global char *q8, __global float2 *scales, __local float *query, __local float *keys,
               __local float *values) {
    __local float scores[ROWS][KEYS];
    uint lane = get_local_id(0), line = get_local_id(1), item = line * LANES + lane, head = get_group_id(0);
    uint kv_head = head / (n_heads / n_kv_heads);
    uint4 tile = tiles[get_group_id(1)];
    kv_view p = head_view(pages + tile.w, block_at, kv_head, page_tokens, head_dim, value_dim);
    bool real = line < tile.y;
    uint row = tile.x + (real ? line : 0), end = tile.z + (real ? line : 0) + 1, start = window_first(end - 1, window);
    uint all_start = window_first(tile.z, window), all_end = tile.z + tile.y;
    size_t place = (size_t)row * n_heads + head, out_place = place * value_dim;
    for (uint e = lane; e < head_dim; e += LANES) query[line * head_dim + e] = q[place * head_dim + e];
    float max_score = sinks ? sinks[head] : -INFINITY, sum = sinks ? 1.0f : 0.0f, result[DIM_MAX / LANES];
    for (uint i = 0; i < DIM_MAX / LANES; i++) result[i] = 0.0f;
    for (uint base = all_start / KEYS * KEYS; base < all_end; base += KEYS) {
        kv_row key = key_at(p, base), value = value_at(p, base);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = item; i < KEYS * head_dim; i += LANES * ROWS)
            keys[i] = integer(key, i) * scale_number(key, i / KEYS / GROUP * KEYS + i % KEYS);
        for (uint i = item; i < KEYS * value_dim; i += LANES * ROWS)
            values[i] =
                integer(value, i) * scale_number(value, i / value_dim * n_groups(value_dim) + i % value_dim / GROUP);
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
                if (lane + i * LANES < value_dim) result[i] += prob * values[(t - base) * value_dim + lane + i * LANES];
        }
    }
    for (uint i = 0; real && i < DIM_MAX / LANES; i++)
        if (lane + i * LANES < value_dim) out[out_place + lane + i * LANES] = result[i] / sum;
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (uint g = lane; q8 && real && g < value_dim / 32; g += LANES)
        quantise_group(out, out_place / 32 + g, q8, scales);
}

#include "device/xpu/latent.clh"

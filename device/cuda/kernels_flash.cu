/* Attention of many rows: flash attention (Dao 2023) over the pages of the KV cache, with the products of tensor cores.
 *
 * A block takes up to ROWS queries, namely the rows of a tile with each of the query heads of one key-value head, and
 * walks over its part of the positions in steps of KEYS. A warp has 16 queries; of heads above 128 elements, SHARES
 * warps have the same 16 queries and WIDTH elements each, and add up their shares of a score. Scores, their running
 * maximum (Milakov & Gimelshein 2018) and the sums over the values stay in registers. While scores are computed, the
 * values of the step are copied to shared memory, and while the values are added up, the next keys.
 *
 * Precision. Sums are float32, and factors have 11 significant bits: those of queries with keys in float32 are tf32,
 * which has the exponents of float32, and with keys in f16 and 8 bits they are f16, of which a product takes twice as
 * many in the same time. Keys and values in f16 and 8 bits are exact in both (the scale of 32 elements is a factor of
 * scores, and of weights, in float32). x is split into two factors, high = x rounded and low = x - high: as tf32 they
 * miss 2^-23 of |x| at most. As f16 they miss 2^-22 of |x|, and 2^-25 where x is small: so a query is first multiplied
 * by the power of two that brings its largest element to 2^14, and a weight, which is 1 at most, by 2^15, so that they
 * miss 2^-39 of the largest. Keys and values in float32 are split, too, and the product of both low parts, 2^-22 |q k|
 * at most, is left out: 2^-21 |q k| in all, what float32 loses in 8 additions. Sums over d elements are d / 8, d / 4 or
 * 3 d / 8 products of tensor cores, each of which loses a few units of 2^-24 of the sum.
 *
 * A row never takes a position outside of its range: such scores become -infinity, and where a step that not all rows
 * see has values that are infinite or NaN, they are added to the rows that see them, and are zeros in the products, in
 * which nothing can be left out. (In other steps infinity gives NaN.)
 *
 * Shared memory: a lane loads four elements at a time, of keys for two steps of the contraction (which elements come
 * first does not matter, where both factors agree), of values for four tiles of columns. Rows are as far apart as lets
 * lanes that load at a time meet different banks. */
#include "device/cuda/mma.cuh"
#include "device/cuda/split.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;

template <int DTYPE_, int WIDTH_, int SHARES_> struct form {
    static constexpr int DTYPE = DTYPE_, WIDTH = WIDTH_, SHARES = SHARES_, DIMS = WIDTH * SHARES;
    static constexpr int BYTES = DTYPE == SN_KV_F32 ? 4 : DTYPE == SN_KV_F16 ? 2 : 1;
    static constexpr bool F16_SCORES = DTYPE != SN_KV_F32; /* scores are products of f16; the scale of values in 8 */
    static constexpr bool F16_SUMS = DTYPE == SN_KV_F16;   /* bits is part of weights, which f16 might not hold */
    static constexpr int ROWS = 16 * WARPS / SHARES, KEYS = 32 / SHARES;
    static constexpr int BLOCKS = (WIDTH == 64 ? 4 : 3) - (DTYPE == SN_KV_Q8 ? 1 : 0); /* of an SM, by registers */
    static constexpr int COPIERS = THREADS / KEYS;                                     /* threads that copy a key */
    static constexpr int GROUPS = DTYPE == SN_KV_Q8 ? DIMS / 32 : 0;                   /* scales of a key */
    static constexpr int Q_STRIDE = DIMS + 16;                                         /* floats */
    static constexpr int K_STRIDE = (DIMS + 16) * BYTES, V_STRIDE = DIMS * BYTES + 16; /* bytes */
    static constexpr int EXCHANGED = SHARES > 1 ? THREADS *KEYS / 2 : 0;
    static constexpr size_t SHARED =
        sizeof(float) * (ROWS * Q_STRIDE + 2 * KEYS * GROUPS + EXCHANGED + WARPS) + KEYS * (K_STRIDE + V_STRIDE);
};

template <class F> struct shared_memory {
    float *q;             /* (ROWS, Q_STRIDE); with F16_SCORES each four elements as put_query has them, and at DIMS the
                             factor that makes them what they were */
    unsigned char *k, *v; /* (KEYS, K_STRIDE), (KEYS, V_STRIDE) */
    float *k_scales, *v_scales;
    float *exchanged; /* (WARPS, KEYS / 2, 32): scores of each lane */
    float *flags;     /* (WARPS) */

    __device__ explicit shared_memory(unsigned char *at) {
        q = reinterpret_cast<float *>(at);
        k = at + sizeof(float) * F::ROWS * F::Q_STRIDE;
        v = k + F::KEYS * F::K_STRIDE;
        k_scales = reinterpret_cast<float *>(v + F::KEYS * F::V_STRIDE);
        v_scales = k_scales + F::KEYS * F::GROUPS;
        exchanged = v_scales + F::KEYS * F::GROUPS;
        flags = exchanged + F::EXCHANGED;
    }
};

/* What a block does: queries [first_query, first_query + n_queries) of a tile over positions [begin, end). Query m is
 * row m / group of the tile, and head m % group of those that share the key-value head. */
struct task {
    sn_cuda_tile tile;
    sn_cuda_row row; /* the tile's first */
    int kv_head, group, first_query, n_queries, begin, end;
    int all_from, all_to; /* positions that every query sees */

    __device__ int position(int query) const { return row.position + (first_query + query) / group; }
    __device__ int head(int query) const { return kv_head * group + (first_query + query) % group; }
    /* Counted over all rows and heads of the batch. */
    __device__ size_t row_and_head(const sn_cuda_attention &a, int query) const {
        return static_cast<size_t>(tile.first_row + (first_query + query) / group) * a.n_heads + head(query);
    }
};

template <class F> __device__ task task_of(const sn_cuda_attention &a) {
    task t;
    t.tile = a.kv.tiles[blockIdx.x];
    t.group = a.n_heads / a.kv.n_kv_heads;
    int blocks = (SN_CUDA_TILE_ROWS * t.group + F::ROWS - 1) / F::ROWS;
    t.kv_head = static_cast<int>(blockIdx.y) / blocks;
    t.first_query = static_cast<int>(blockIdx.y) % blocks * F::ROWS;
    t.n_queries = min(F::ROWS, t.tile.n_rows * t.group - t.first_query);
    if (t.n_queries <= 0) return t;
    t.row = a.kv.rows[t.tile.first_row];
    t.all_to = t.position(0);
    int last = t.position(t.n_queries - 1), begin = window_start(t.all_to, a.window);
    t.all_from = window_start(last, a.window);
    int share = (last - begin + t.tile.n_parts) / t.tile.n_parts;
    share = (share + F::KEYS - 1) / F::KEYS * F::KEYS;
    t.begin = begin + t.tile.part * share;
    t.end = min(t.begin + share, last + 1);
    return t;
}

/* A query of a lane: it sees positions [first, own]. */
struct query {
    int first, own;
    float slope, largest, total; /* total: of this lane's keys */
};

__device__ query query_of(const sn_cuda_attention &a, const task &t, int m) {
    query q = {0, -1, 0.0f, -INFINITY, 0.0f};
    if (m >= t.n_queries) return q; /* sees nothing */
    q.own = t.position(m);
    q.first = window_start(q.own, a.window);
    if (a.slopes) q.slope = a.slopes[t.head(m)];
    return q;
}

/* -- copies to shared memory */

/* The power of two that brings x to 2^14 to 2^15 where float32 has it. Infinite: 1. */
__device__ inline float f16_factor(float x) {
    int exponent = static_cast<int>(__float_as_uint(x) >> 23) - 127;
    return exponent > 127 ? 1.0f : __uint_as_float(static_cast<unsigned int>(127 + min(14 - exponent, 126)) << 23);
}

/* Puts element i of a query to its place: the high parts of four elements come first, then the low ones. */
__device__ inline void put_query(float *row, int i, float x) {
    uint16_t *at = reinterpret_cast<uint16_t *>(row) + i / 4 * 8 + i % 4;
    at[0] = __half_as_ushort(__float2half_rn(x));
    at[4] = __half_as_ushort(__float2half_rn(x - half_to_float(at[0])));
}

/* The same of a whole query of n elements by a warp, with zeros up to `padded`. */
__device__ inline void put_scaled(const float *from, int n, int padded, float *row, float *factor) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    float largest = 0;
    for (int i = lane; i < n; i += 32) largest = fmaxf(largest, fabsf(from[i]));
    float scale = f16_factor(warp_max(largest));
    for (int i = lane; i < padded; i += 32) put_query(row, i, i < n ? from[i] * scale : 0.0f);
    if (lane == 0) *factor = 1 / scale;
}

/* Copies the queries, with zeros behind them and behind each head, and zeros behind each head of the keys. */
template <class F> __device__ void begin_block(const sn_cuda_attention &a, const task &t, const shared_memory<F> &s) {
    int lane = static_cast<int>(threadIdx.x) % 32, padded = (a.kv.padded_dim + 31) / 32 * 32;
    for (int m = static_cast<int>(threadIdx.x) / 32; m < F::ROWS; m += WARPS) {
        const float *from = a.q + (m < t.n_queries ? t.row_and_head(a, m) * a.kv.head_dim : 0);
        float *row = s.q + m * F::Q_STRIDE;
        int n = m < t.n_queries ? a.kv.head_dim : 0;
        if (F::F16_SCORES)
            put_scaled(from, n, padded, row, row + F::DIMS);
        else
            for (int i = lane; i < padded; i += 32) row[i] = i < n ? from[i] : 0.0f;
    }
    int words = (padded - a.kv.padded_dim) * F::BYTES / 4;
    for (int j = static_cast<int>(threadIdx.x) / F::COPIERS, i = static_cast<int>(threadIdx.x) % F::COPIERS; i < words;
         i += F::COPIERS)
        reinterpret_cast<unsigned int *>(s.k + j * F::K_STRIDE + a.kv.padded_dim * F::BYTES)[i] = 0;
}

/* Where the key lies of which this thread copies a part, in the present step. */
struct place {
    int page, row, position;
};

template <class F> __device__ place first_place(const sn_cuda_kv &p, const task &t) {
    int position = t.begin + static_cast<int>(threadIdx.x) / F::COPIERS;
    return {t.row.first_page + position / p.page_tokens, position % p.page_tokens, position};
}

template <class F> __device__ void next_place(const sn_cuda_kv &p, place &at) {
    at.position += F::KEYS;
    for (at.row += F::KEYS; at.row >= p.page_tokens; at.row -= p.page_tokens) at.page++;
}

/* Begins to copy the keys of a step, or with VALUES its values; zeros behind the last position. */
template <class F, bool VALUES>
__device__ void copy_step(const sn_cuda_kv &p, const task &t, const shared_memory<F> &s, const place &at) {
    int j = static_cast<int>(threadIdx.x) / F::COPIERS, part = static_cast<int>(threadIdx.x) % F::COPIERS;
    unsigned char *to = VALUES ? s.v + j * F::V_STRIDE : s.k + j * F::K_STRIDE;
    bool inside = at.position < t.end;
    kv_row from = {nullptr, nullptr};
    if (inside) {
        float *page = p.pages[at.page] + p.block_floats + t.kv_head * p.head_floats;
        from = kv_row_at<F::DTYPE>(reinterpret_cast<unsigned char *>(page), 2 * p.page_tokens,
                                   at.row + (VALUES ? p.page_tokens : 0), p.head_dim, p.padded_dim);
    }
    int bytes = p.padded_dim * F::BYTES;
    if (bytes % 16 == 0)
        for (int i = 16 * part; i < bytes; i += 16 * F::COPIERS) copy_begin(to + i, from.elements + i, inside);
    else
        for (int i = 4 * part; i < bytes; i += 4 * F::COPIERS)
            *reinterpret_cast<unsigned int *>(to + i) =
                inside ? *reinterpret_cast<const unsigned int *>(from.elements + i) : 0;
    copies_end_group();
    float *scales = (VALUES ? s.v_scales : s.k_scales) + j * F::GROUPS;
    for (int g = part; F::GROUPS > 0 && g < (p.head_dim + 31) / 32; g += F::COPIERS)
        scales[g] = inside ? bf16_to_float(from.scales[g]) : 0.0f;
}

/* -- products */

/* Four elements of a key or value in shared memory, from a multiple of 4 on; of SN_KV_Q8 without their scale. */
template <int DTYPE> __device__ inline void load_four(unsigned char *row, int i, float out[4]) {
    if (DTYPE == SN_KV_Q8) {
        unsigned int word = *reinterpret_cast<const unsigned int *>(row + i) ^ 0x80808080u;
        for (int e = 0; e < 4; e++) /* the byte as the last ones of 2^23 + x + 128 */
            out[e] =
                __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u + static_cast<unsigned int>(e))) - 8388736.0f;
    } else {
        float4 x = kv_load4<DTYPE>({row, nullptr}, i);
        out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
    }
}

__device__ inline void split(float x, unsigned int *high, unsigned int *low) {
    *high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    *low = __float_as_uint(x - __uint_as_float(*high)) & 0xffffe000u;
}

/* A fragment of the left factor. */
struct fragment {
    unsigned int high[4], low[4];
    __device__ fragment(float w0, float w1, float w2, float w3) {
        split(w0, &high[0], &low[0]);
        split(w1, &high[1], &low[1]);
        split(w2, &high[2], &low[2]);
        split(w3, &high[3], &low[3]);
    }
};

/* d += a . b; x and y: the words of b. The smallest products come first. */
template <int DTYPE> __device__ inline void multiply(float d[4], const fragment &a, float x, float y) {
    unsigned int high[2] = {__float_as_uint(x), __float_as_uint(y)}, low[2];
    if (DTYPE == SN_KV_F32) {
        split(x, &high[0], &low[0]);
        split(y, &high[1], &low[1]);
        mma_tf32(d, a.high, low);
    }
    mma_tf32(d, a.low, high);
    mma_tf32(d, a.high, high);
}

/* d += a . b of f16; the smaller products come first. */
__device__ inline void multiply_f16(float d[4], const unsigned int high[4], const unsigned int low[4],
                                    const unsigned int b[2]) {
    mma_f16(d, low, b);
    mma_f16(d, high, b);
}

/* Four elements of a key as f16. */
template <int DTYPE> __device__ inline void load_four_f16(const unsigned char *at, unsigned int out[2]) {
    if (DTYPE == SN_KV_Q8) {
        bytes_to_f16(*reinterpret_cast<const unsigned int *>(at), out);
    } else {
        uint2 v = *reinterpret_cast<const uint2 *>(at);
        out[0] = v.x, out[1] = v.y;
    }
}

/* scores[n] += q . k of 16 elements: q and k of this lane's four. */
template <class F> __device__ inline void add_f16(float (&scores)[F::KEYS / 8][4], const float *q, unsigned char *k) {
    uint4 x = *reinterpret_cast<const uint4 *>(q), y = *reinterpret_cast<const uint4 *>(q + 8 * F::Q_STRIDE);
    const unsigned int high[4] = {x.x, y.x, x.y, y.y}, low[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
    for (int n = 0; n < F::KEYS / 8; n++) {
        unsigned int key[2];
        load_four_f16<F::DTYPE>(k + 8 * n * F::K_STRIDE, key);
        multiply_f16(scores[n], high, low, key);
    }
}

template <class F> __device__ inline void add_tf32(float (&scores)[F::KEYS / 8][4], const float *q, unsigned char *k) {
    float4 x = *reinterpret_cast<const float4 *>(q), y = *reinterpret_cast<const float4 *>(q + 8 * F::Q_STRIDE);
    fragment first(x.x, y.x, x.y, y.y), second(x.z, y.z, x.w, y.w);
#pragma unroll
    for (int n = 0; n < F::KEYS / 8; n++) {
        float key[4];
        load_four<F::DTYPE>(k + 8 * n * F::K_STRIDE, 0, key);
        multiply<F::DTYPE>(scores[n], first, key[0], key[1]);
        multiply<F::DTYPE>(scores[n], second, key[2], key[3]);
    }
}

/* scores[n] += q . k of keys from 8 n on, without their scale, over this warp's share of `dims` elements. */
template <class F> __device__ void add_scores(float (&scores)[F::KEYS / 8][4], const shared_memory<F> &s, int dims) {
    __syncwarp(); /* brings the lanes together, as the products need them */
    constexpr int N = F::KEYS / 8;
    int warp = static_cast<int>(threadIdx.x) / 32, r = static_cast<int>(threadIdx.x) % 32 / 4;
    int c = static_cast<int>(threadIdx.x) % 4, from = warp % F::SHARES * F::WIDTH;
    const float *q = s.q + (warp / F::SHARES * 16 + r) * F::Q_STRIDE + from + 4 * c;
    unsigned char *k = s.k + r * F::K_STRIDE + (from + 4 * c) * F::BYTES;
#pragma unroll
    for (int i = 0; i < F::WIDTH; i += 32) {
        if (from + i >= dims) break;
        float own[N][4] = {};
        auto &sums = F::GROUPS ? own : scores;
#pragma unroll
        for (int half = i; half < i + 32; half += 16) {
            if constexpr (F::F16_SCORES)
                add_f16<F>(sums, q + half, k + half * F::BYTES);
            else
                add_tf32<F>(sums, q + half, k + half * F::BYTES);
        }
#pragma unroll
        for (int n = 0; n < N && F::GROUPS > 0; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[n][e] += own[n][e] * s.k_scales[(8 * n + 2 * c + e % 2) * F::GROUPS + (from + i) / 32];
    }
}

/* Gives this warp's share of the scores to the warps with the same queries; takes the sums behind the next barrier. */
template <class F> __device__ void give_scores(const float (&scores)[F::KEYS / 8][4], const shared_memory<F> &s) {
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    for (int i = 0; i < F::KEYS / 2; i++) s.exchanged[(warp * (F::KEYS / 2) + i) * 32 + lane] = scores[i / 4][i % 4];
}
template <class F> __device__ void take_scores(float (&scores)[F::KEYS / 8][4], const shared_memory<F> &s) {
    int first = static_cast<int>(threadIdx.x) / 32 / F::SHARES * F::SHARES, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < F::KEYS / 2; i++) {
        float sum = 0;
        for (int w = first; w < first + F::SHARES; w++) sum += s.exchanged[(w * (F::KEYS / 2) + i) * 32 + lane];
        scores[i / 4][i % 4] = sum;
    }
}

/* Makes scores weights, relative to the new maxima, and the sums as well. `key`: the position of scores[0][0]; `hides`:
 * some queries do not see some keys of this step; factors: of the first query, in shared memory. */
template <class F>
__device__ void weigh(const sn_cuda_attention &a, const float *factors, float (&scores)[F::KEYS / 8][4],
                      query (&queries)[2], float (&sums)[F::WIDTH / 32][4][4], int key, bool hides) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        query &q = queries[r];
        float largest = q.largest, base, sum = 0;
        float scale = F::F16_SCORES ? a.scale * factors[8 * r * F::Q_STRIDE] : a.scale;
#pragma unroll
        for (int i = 0; i < F::KEYS / 4; i++) {
            float &x = scores[i / 2][2 * r + i % 2];
            int at = key + i / 2 * 8 + i % 2;
            x = softcapped(x * scale, a.softcap);
            if (a.slopes) x = alibi_score(x, &q.slope, at, q.own);
            if (hides && (at < q.first || at > q.own)) x = -INFINITY;
            largest = fmaxf(largest, x);
        }
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        base = largest == -INFINITY ? 0.0f : largest; /* all scores were -infinity so far */
#pragma unroll
        for (int i = 0; i < F::KEYS / 4; i++) {
            float &x = scores[i / 2][2 * r + i % 2];
            x = expf(x - base);
            sum += x;
        }
        float rescale = expf(q.largest - base);
        q.total = q.total * rescale + sum;
        q.largest = largest;
        if (rescale == 1.0f) continue;
#pragma unroll
        for (int i = 0; i < F::WIDTH / 4; i++) sums[i / 8][i / 2 % 4][2 * r + i % 2] *= rescale;
    }
}

constexpr float F16_WEIGHT = 32768.0f; /* 2^15: by what weights are multiplied as f16, and so the sums */

/* Two weights as words of high and low parts. */
__device__ inline void split_f16(float x, float y, unsigned int *high, unsigned int *low) {
    *high = pack_f16(x * F16_WEIGHT, y * F16_WEIGHT);
    *low =
        pack_f16(fmaf(x, F16_WEIGHT, -half_to_float(*high & 0xffff)), fmaf(y, F16_WEIGHT, -half_to_float(*high >> 16)));
}

/* Four elements of each of the two values of this lane from `at` on as f16: word i has element i of both. */
template <class F> __device__ inline void load_pair_f16(const unsigned char *at, unsigned int out[4]) {
    uint2 x = *reinterpret_cast<const uint2 *>(at), y = *reinterpret_cast<const uint2 *>(at + F::V_STRIDE);
    out[0] = __byte_perm(x.x, y.x, 0x5410), out[1] = __byte_perm(x.x, y.x, 0x7632);
    out[2] = __byte_perm(x.y, y.y, 0x5410), out[3] = __byte_perm(x.y, y.y, 0x7632);
}

/* As add_values, of f16; 16 keys at a time, or 8 and zeros. */
template <class F>
__device__ void add_values_f16(float (&sums)[F::WIDTH / 32][4][4], const float (&weights)[F::KEYS / 8][4],
                               const shared_memory<F> &s, int dims) {
    __syncwarp(); /* brings the lanes together, as the products need them */
    constexpr bool BOTH = F::KEYS > 8;
    int lane = static_cast<int>(threadIdx.x) % 32;
    int from = static_cast<int>(threadIdx.x) / 32 % F::SHARES * F::WIDTH;
    const unsigned char *v = s.v + 2 * (lane % 4) * F::V_STRIDE + (from + lane / 4 * 4) * F::BYTES;
#pragma unroll
    for (int j = 0; j < F::KEYS / 8; j += 2, v += 16 * F::V_STRIDE) {
        unsigned int high[4] = {}, low[4] = {};
        split_f16(weights[j][0], weights[j][1], &high[0], &low[0]);
        split_f16(weights[j][2], weights[j][3], &high[1], &low[1]);
        if (BOTH) split_f16(weights[j + 1][0], weights[j + 1][1], &high[2], &low[2]);
        if (BOTH) split_f16(weights[j + 1][2], weights[j + 1][3], &high[3], &low[3]);
#pragma unroll
        for (int b = 0; b < F::WIDTH / 32; b++) {
            if (from + 32 * b >= dims) break;
            unsigned int first[4], second[4] = {};
            load_pair_f16<F>(v + 32 * b * F::BYTES, first);
            if (BOTH) load_pair_f16<F>(v + 8 * F::V_STRIDE + 32 * b * F::BYTES, second);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned int values[2] = {first[i], second[i]};
                multiply_f16(sums[b][i], high, low, values);
            }
        }
    }
}

/* sums[b][i][e]: element 32 b + 8 c + 4 (e % 2) + i of this warp's share, of query e / 2. */
template <class F>
__device__ void add_values(float (&sums)[F::WIDTH / 32][4][4], const float (&weights)[F::KEYS / 8][4],
                           const shared_memory<F> &s, int dims) {
    __syncwarp(); /* brings the lanes together, as the products need them */
    int lane = static_cast<int>(threadIdx.x) % 32, c = lane % 4;
    int from = static_cast<int>(threadIdx.x) / 32 % F::SHARES * F::WIDTH;
#pragma unroll
    for (int j = 0; j < F::KEYS / 8; j++) {
        const float *w = weights[j];
        fragment plain(w[0], w[2], w[1], w[3]);
        unsigned char *v = s.v + (8 * j + 2 * c) * F::V_STRIDE + from * F::BYTES;
#pragma unroll
        for (int b = 0; b < F::WIDTH / 32; b++) {
            if (from + 32 * b >= dims) break;
            float x[4], y[4];
            load_four<F::DTYPE>(v, 32 * b + lane / 4 * 4, x);
            load_four<F::DTYPE>(v + F::V_STRIDE, 32 * b + lane / 4 * 4, y);
            fragment scaled = plain;
            if (F::GROUPS) {
                const float *scale = s.v_scales + (8 * j + 2 * c) * F::GROUPS + from / 32 + b;
                float p = scale[0], q = scale[F::GROUPS];
                scaled = fragment(w[0] * p, w[2] * p, w[1] * q, w[3] * q);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) multiply<F::DTYPE>(sums[b][i], scaled, x[i], y[i]);
        }
    }
}

/* -- values that are infinite or NaN */

__device__ inline bool is_finite(float x) { return x - x == 0.0f; }

/* Whether a value of this step is infinite or NaN. By the whole block, with a barrier. */
template <class F> __device__ bool any_not_finite(const sn_cuda_kv &p, const shared_memory<F> &s) {
    float found = 0;
    for (int j = static_cast<int>(threadIdx.x) / F::COPIERS, i = static_cast<int>(threadIdx.x) % F::COPIERS * 4;
         i < p.padded_dim; i += 4 * F::COPIERS) {
        float x[4];
        load_four<F::DTYPE>(s.v + j * F::V_STRIDE, i, x);
        for (int e = 0; e < 4; e++)
            if (!is_finite(x[e])) found = 1;
    }
    found = warp_max(found);
    if (threadIdx.x % 32 == 0) s.flags[threadIdx.x / 32] = found;
    __syncthreads();
    found = 0;
    for (int w = 0; w < WARPS; w++) found += s.flags[w];
    return found > 0;
}

/* Adds them to the queries that see them. */
template <class F>
__device__ void add_not_finite(float (&sums)[F::WIDTH / 32][4][4], const query (&queries)[2], const shared_memory<F> &s,
                               int step, int dims) {
    int c = static_cast<int>(threadIdx.x) % 4, from = static_cast<int>(threadIdx.x) / 32 % F::SHARES * F::WIDTH;
    for (int j = 0; j < F::KEYS; j++)
#pragma unroll
        for (int i = 0; i < F::WIDTH / 16; i++) {
            if (from + i / 2 * 32 >= dims) break;
            float x[4];
            load_four<F::DTYPE>(s.v + j * F::V_STRIDE, from + i / 2 * 32 + 8 * c + i % 2 * 4, x);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const query &q = queries[e / 4];
                if (!is_finite(x[e % 4]) && step + j >= q.first && step + j <= q.own)
                    sums[i / 2][e % 4][e / 4 * 2 + i % 2] += x[e % 4];
            }
        }
}

/* Makes them zeros. */
template <class F> __device__ void clear_not_finite(const sn_cuda_kv &p, const shared_memory<F> &s) {
    for (int j = static_cast<int>(threadIdx.x) / F::COPIERS, i = static_cast<int>(threadIdx.x) % F::COPIERS;
         i < p.padded_dim; i += F::COPIERS) {
        unsigned char *at = s.v + j * F::V_STRIDE + i * F::BYTES;
        float x = kv_load<F::DTYPE>({s.v + j * F::V_STRIDE, nullptr}, i);
        if (is_finite(x)) continue;
        if (F::DTYPE == SN_KV_F32)
            *reinterpret_cast<float *>(at) = 0;
        else
            *reinterpret_cast<uint16_t *>(at) = 0;
    }
}

/* -- results */

/* Adds a sink to the total; returns what sums are multiplied by then. */
__device__ inline float add_sink(float sink, query &q) {
    float largest = fmaxf(q.largest, sink), weight = expf(q.largest - largest);
    q.total = q.total * weight + expf(sink - largest);
    return weight;
}

/* Writes one query of a lane: its result, or that of a part. */
template <class F>
__device__ void store_query(const sn_cuda_attention &a, const task &t, int m, int r, query q,
                            const float (&sums)[F::WIDTH / 32][4][4]) {
    int c = static_cast<int>(threadIdx.x) % 4, from = static_cast<int>(threadIdx.x) / 32 % F::SHARES * F::WIDTH;
    q.total += __shfl_xor_sync(FULL_WARP, q.total, 1);
    q.total += __shfl_xor_sync(FULL_WARP, q.total, 2);
    if (m >= t.n_queries) return;
    bool whole = t.tile.n_parts == 1;
    float *to = a.out + t.row_and_head(a, m) * a.kv.value_dim;
    int dims = whole ? a.kv.value_dim : a.kv.padded_dim;
    float weight = 1;
    if (whole && a.sinks) weight = add_sink(a.sinks[t.head(m)], q);
    float share = (whole ? weight / q.total : 1.0f) / (F::F16_SUMS ? F16_WEIGHT : 1.0f);
    if (!whole) {
        size_t row = t.tile.first_part + (t.first_query + m) / t.group * t.tile.n_parts;
        size_t part = row * a.n_heads + t.head(m) * t.tile.n_parts + t.tile.part;
        to = a.partial + part * dims;
        if (c == 0 && from == 0) {
            a.partial_stats[part * 2] = q.largest;
            a.partial_stats[part * 2 + 1] = q.total;
        }
    }
#pragma unroll
    for (int b = 0; b < F::WIDTH / 32; b++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            int i = from + 32 * b + 8 * c + e;
            float x = sums[b][e % 4][2 * r + e / 4];
            if (i < dims) to[i] = x * share;
        }
}

/* blockIdx.x: the tile; blockIdx.y: the key-value head, and the block of its queries. */
template <class F>
__global__ void __launch_bounds__(THREADS, F::BLOCKS) attention_tiles(const __grid_constant__ sn_cuda_attention a) {
    SN_SHARED_MEMORY(memory);
    const shared_memory<F> s(memory);
    const task t = task_of<F>(a);
    if (t.n_queries <= 0) return; /* by the whole block */
    int warp = static_cast<int>(threadIdx.x) / 32, c = static_cast<int>(threadIdx.x) % 4;
    int first = warp / F::SHARES * 16, m = first + static_cast<int>(threadIdx.x) % 32 / 4;
    int last = first < t.n_queries ? t.position(min(first + 16, t.n_queries) - 1) : -1; /* that this warp sees */
    query queries[2] = {query_of(a, t, m), query_of(a, t, m + 8)};
    float sums[F::WIDTH / 32][4][4] = {};
    begin_block<F>(a, t, s);
    place at = first_place<F>(a.kv, t);
    copy_step<F, false>(a.kv, t, s, at);
    for (int step = t.begin; step < t.end; step += F::KEYS) {
        copies_wait<0>();
        __syncthreads(); /* the keys have come; all warps have read the last values */
        copy_step<F, true>(a.kv, t, s, at);
        float scores[F::KEYS / 8][4] = {};
        if (step <= last) add_scores<F>(scores, s, a.kv.padded_dim);
        if (F::SHARES > 1) give_scores<F>(scores, s);
        copies_wait<0>();
        __syncthreads(); /* the values have come; all warps have read the keys */
        next_place<F>(a.kv, at);
        copy_step<F, false>(a.kv, t, s, at); /* behind the last step nothing but zeros */
        bool hides = step < t.all_from || step + F::KEYS - 1 > t.all_to;
        bool not_finite = F::GROUPS == 0 && hides && any_not_finite<F>(a.kv, s);
        if (step <= last) { /* the whole warp */
            if (F::SHARES > 1) take_scores<F>(scores, s);
            weigh<F>(a, s.q + m * F::Q_STRIDE + F::DIMS, scores, queries, sums, step + 2 * c, hides);
        }
        if (not_finite) {
            add_not_finite<F>(sums, queries, s, step, a.kv.padded_dim);
            __syncthreads();
            clear_not_finite<F>(a.kv, s);
            __syncthreads();
        }
        if (step > last) continue; /* the whole warp */
        if constexpr (F::F16_SUMS)
            add_values_f16<F>(sums, scores, s, a.kv.padded_dim);
        else
            add_values<F>(sums, scores, s, a.kv.padded_dim);
    }
    copies_wait<0>();
    for (int r = 0; r < 2; r++) store_query<F>(a, t, m + 8 * r, r, queries[r], sums);
}

/* blockIdx.x: the tile; blockIdx.y: the head. Each part of a tile has a share of the rows to join. */
__global__ void __launch_bounds__(THREADS) join_tiles(const __grid_constant__ sn_cuda_attention a) {
    __shared__ float weights[SN_CUDA_SPLITS], total;
    const sn_cuda_tile tile = a.kv.tiles[blockIdx.x];
    int head = static_cast<int>(blockIdx.y);
    if (tile.n_parts == 1) return; /* by the whole block */
    for (int r = tile.part; r < tile.n_rows; r += tile.n_parts) {
        size_t first = static_cast<size_t>(tile.first_part + r * tile.n_parts) * a.n_heads + head * tile.n_parts;
        const float *stats = a.partial_stats + 2 * first;
        const all_parts p = {stats, stats + 1,      a.partial + first * a.kv.padded_dim, tile.n_parts, 0,
                             0,     a.kv.padded_dim};
        weigh_parts<THREADS>(p, 1, a.sinks ? a.sinks + head : nullptr, weights, &total);
        float *out = a.out + (static_cast<size_t>(tile.first_row + r) * a.n_heads + head) * a.kv.value_dim;
        for (int i = static_cast<int>(threadIdx.x); i < a.kv.value_dim; i += THREADS)
            out[i] = joined(p, weights, &total, 0, i);
        __syncthreads(); /* the weights have been read */
    }
}

template <int DTYPE, int WIDTH, int SHARES>
cudaError_t launch(cudaStream_t stream, const sn_cuda_attention &a, int n_tiles) {
    using F = form<DTYPE, WIDTH, SHARES>;
    auto *kernel = attention_tiles<F>;
    if (F::SHARED > 48 * 1024) { /* more than the default must be requested; every device since sm_80 has 99 KiB */
        cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(F::SHARED));
        if (error != cudaSuccess) return error;
    }
    int queries = SN_CUDA_TILE_ROWS * (a.n_heads / a.kv.n_kv_heads);
    dim3 grid(static_cast<unsigned int>(n_tiles),
              static_cast<unsigned int>(a.kv.n_kv_heads * ((queries + F::ROWS - 1) / F::ROWS)));
    return SN_LAUNCH(kernel, grid, THREADS, F::SHARED, stream, a);
}

template <int WIDTH, int SHARES> cudaError_t tiles(cudaStream_t stream, const sn_cuda_attention &a, int n_tiles) {
#define CALL(dtype) launch<dtype, WIDTH, SHARES>(stream, a, n_tiles)
    BY_KV_DTYPE(a.kv.dtype);
#undef CALL
}

} // namespace

extern "C" cudaError_t sn_cuda_attention_tiles(cudaStream_t stream, const sn_cuda_attention *a, int n_tiles) {
    if (a->kv.padded_dim <= 64) return tiles<64, 1>(stream, *a, n_tiles);
    if (a->kv.padded_dim <= 128) return tiles<128, 1>(stream, *a, n_tiles);
    if (a->kv.padded_dim <= 256) return tiles<128, 2>(stream, *a, n_tiles);
    return tiles<128, 4>(stream, *a, n_tiles);
}

extern "C" cudaError_t sn_cuda_attention_join_tiles(cudaStream_t stream, const sn_cuda_attention *a, int n_tiles) {
    dim3 joins(static_cast<unsigned int>(n_tiles), static_cast<unsigned int>(a->n_heads));
    return SN_LAUNCH(join_tiles, joins, THREADS, 0, stream, *a);
}

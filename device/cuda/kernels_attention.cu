/* The KV cache: storing, reading, and attention of few rows: the keys of each row are split into parts (split.cuh), so
 * that the whole device reads them, with the online softmax of Milakov & Gimelshein 2018. */
#include "device/cuda/split.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int HEADS = SN_CUDA_SPLIT_HEADS;
constexpr int SPLIT_KEYS = PART_KEYS; /* keys of one step of attention_split */

/* The key of a position, or with `value` its value. */
template <int DTYPE>
__device__ inline kv_row kv_at(const sn_cuda_kv &p, int first_page, int position, int kv_head, bool value) {
    float *page = p.pages[first_page + position / p.page_tokens] + p.block_floats + kv_head * p.head_floats;
    return kv_row_at<DTYPE>(reinterpret_cast<unsigned char *>(page), 2 * p.page_tokens,
                            position % p.page_tokens + (value ? p.page_tokens : 0), p.head_dim, p.padded_dim);
}

/* Copies a head of k and v to its page, with zeros after them. By a warp. */
template <int DTYPE>
__device__ void store_head(const sn_cuda_kv &p, sn_cuda_row row, int head, const float *k, const float *v) {
    kv_row key = kv_at<DTYPE>(p, row.first_page, row.position, head, false),
           value = kv_at<DTYPE>(p, row.first_page, row.position, head, true);
    for (int i = static_cast<int>(threadIdx.x); i < (p.head_dim + 31) / 32 * 32; i += 32) {
        kv_store1<DTYPE>(key, i, p.head_dim, p.padded_dim, i < p.head_dim ? k[i] : 0.0f);
        kv_store1<DTYPE>(value, i, p.head_dim, p.padded_dim, i < p.value_dim ? v[i] : 0.0f);
    }
}

/* The value beside a key. */
template <int DTYPE> __device__ inline kv_row value_of(const sn_cuda_kv &p, kv_row key) {
    constexpr int BYTES = DTYPE == SN_KV_F32 ? 4 : DTYPE == SN_KV_F16 ? 2 : 1;
    key.elements += p.page_tokens * p.padded_dim * BYTES;
    key.scales += p.page_tokens * ((p.head_dim + 31) / 32);
    return key;
}

/* One warp per row and head. STORE: copies k and v to the pages, with zeros after each head; otherwise the reverse. */
template <bool STORE, int DTYPE> __global__ void kv_copy(const __grid_constant__ sn_cuda_kv p, float *k, float *v) {
    sn_cuda_row row = p.rows[blockIdx.x];
    int head = static_cast<int>(blockIdx.y);
    size_t at = static_cast<size_t>(blockIdx.x) * p.n_kv_heads + head;
    k += at * p.head_dim;
    v += at * p.value_dim;
    if (STORE) {
        store_head<DTYPE>(p, row, head, k, v);
        return;
    }
    kv_row key = kv_at<DTYPE>(p, row.first_page, row.position, head, false),
           value = kv_at<DTYPE>(p, row.first_page, row.position, head, true);
    for (int i = static_cast<int>(threadIdx.x); i < p.head_dim; i += 32) {
        k[i] = kv_load<DTYPE>(key, i);
        if (i < p.value_dim) v[i] = kv_load<DTYPE>(value, i);
    }
}

/* One warp per row and head, the query heads first. A lane stores elements of k that other lanes rotated. */
template <int DTYPE>
__global__ void rope_store(const __grid_constant__ sn_cuda_kv p, const __grid_constant__ sn_rope rope, int n_heads,
                           float *q, float *k, const float *v) {
    int head = static_cast<int>(blockIdx.y), half = rope.dim / 2;
    size_t row = blockIdx.x, kv_head = row * p.n_kv_heads + head - n_heads;
    bool query = head < n_heads;
    float *at = query ? q + (row * n_heads + head) * p.head_dim : k + kv_head * p.head_dim;
    for (int pair = static_cast<int>(threadIdx.x); pair < half; pair += 32)
        rotate_pair(at, pair, rope.rotate_half, half, rope.cos_sin + row * half * 2);
    if (query) return; /* by the whole warp */
    __syncwarp();
    store_head<DTYPE>(p, p.rows[row], head - n_heads, at, v + kv_head * p.value_dim);
}

/* One part of a row's keys, for up to HEADS query heads of one key-value head; all in shared memory. */
struct split_state {
    const float *slopes; /* (heads), or NULL */
    float *q, *sums;     /* (heads, padded_dim) */
    float *scores;       /* (heads, SPLIT_KEYS) */
    /* (heads): running maximum, sum of exponentials, scale factor of the last step */
    float *largest, *total, *rescale;
    kv_row *keys; /* (SPLIT_KEYS): those of the present step */
};

/* Finds the pages of a step's keys once for all heads and dimensions. */
template <int DTYPE>
__device__ void split_keys(const sn_cuda_attention &a, const split_state &s, sn_cuda_row row, int kv_head, int first,
                           int n) {
    for (int j = threadIdx.x; j < n; j += THREADS)
        s.keys[j] = kv_at<DTYPE>(a.kv, row.first_page, first + j, kv_head, false);
}

/* scores[h][j] = q[h] . key[first + j] * scale. Eight lanes share a key and read a float4 each at a time. */
template <int DTYPE>
__device__ void split_scores(const sn_cuda_attention &a, const split_state &s, int heads, int own, int first, int n) {
    int part = static_cast<int>(threadIdx.x) % 8, dims = a.kv.padded_dim;
    /* all lanes must reach the shuffles */
    for (int j = static_cast<int>(threadIdx.x) / 8; j < SPLIT_KEYS; j += THREADS / 8) {
        kv_row key = s.keys[min(j, n - 1)];
        float sums[HEADS] = {};
        for (int i = part * 4; i < dims; i += 32) {
            float4 k = kv_load4<DTYPE>(key, i);
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                if (h < heads) sums[h] += dot4(*reinterpret_cast<const float4 *>(s.q + h * dims + i), k);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h >= heads) break;
            for (int distance = 4; distance > 0; distance /= 2)
                sums[h] += __shfl_xor_sync(FULL_WARP, sums[h], distance);
            if (part == 0 && j < n)
                s.scores[h * SPLIT_KEYS + j] = alibi_score(softcapped(sums[h] * a.scale, a.softcap),
                                                           s.slopes ? s.slopes + h : nullptr, first + j, own);
        }
    }
}

/* Replaces scores by exponentials relative to the running maximum. One warp per head, two keys per lane. */
__device__ void split_softmax(const split_state &s, int heads, int n) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    for (int h = static_cast<int>(threadIdx.x) / 32; h < heads; h += THREADS / 32) {
        float *scores = s.scores + h * SPLIT_KEYS, before = s.largest[h];
        float x = lane < n ? scores[lane] : -INFINITY, y = lane + 32 < n ? scores[lane + 32] : -INFINITY;
        float largest = fmaxf(before, warp_max(fmaxf(x, y)));
        float base = largest == -INFINITY ? 0.0f : largest; /* all scores were -infinity so far */
        x = lane < n ? expf(x - base) : 0.0f;
        y = lane + 32 < n ? expf(y - base) : 0.0f;
        if (lane < n) scores[lane] = x;
        if (lane + 32 < n) scores[lane + 32] = y;
        float sum = warp_sum(x + y);
        __syncwarp(); /* all lanes have read `before` */
        if (lane == 0) {
            s.rescale[h] = expf(before - base);
            s.largest[h] = largest;
            s.total[h] = s.total[h] * s.rescale[h] + sum;
        }
    }
}

/* sums[h] = sums[h] * decay + exponentials . values. A thread computes four dimensions of a head. */
template <int DTYPE> __device__ void split_values(const sn_cuda_attention &a, const split_state &s, int heads, int n) {
    int quads = a.kv.padded_dim / 4;
    for (int item = threadIdx.x; item < heads * quads; item += THREADS) {
        int h = item / quads, i = item % quads * 4;
        float4 *at = reinterpret_cast<float4 *>(s.sums + h * a.kv.padded_dim + i), sum = *at;
        float rescale = s.rescale[h];
        sum = make_float4(sum.x * rescale, sum.y * rescale, sum.z * rescale, sum.w * rescale);
#pragma unroll 8
        for (int j = 0; j < n; j++) {
            float4 v = kv_load4<DTYPE>(value_of<DTYPE>(a.kv, s.keys[j]), i);
            float e = s.scores[h * SPLIT_KEYS + j];
            sum = make_float4(sum.x + e * v.x, sum.y + e * v.y, sum.z + e * v.z, sum.w + e * v.w);
        }
        *at = sum;
    }
}

/* Writes the results of the heads from `head` on of a row: those of this block's part if the row has only one, else
 * those of all parts, in the block that has finished last. item: the row, counted over those that are split. */
__device__ void split_join(const sn_cuda_attention &a, const split_state &s, int item, int row, int head, int heads,
                           int n_parts, int n_splits, unsigned int *counter, sn_cuda_eight_bits form) {
    static_assert(SPLIT_KEYS >= SN_CUDA_SPLITS, "weights of parts take the place of scores");
    int dims = a.kv.padded_dim, dim = a.kv.value_dim;
    all_parts p = {s.largest, s.total, s.sums, 1, 1, dims, dims};
    if (n_parts > 1) {
        size_t first = (static_cast<size_t>(item) * a.n_heads + head) * n_splits;
        float *stats = a.partial_stats + first * 2, *sums = a.partial + first * dims;
        for (int i = threadIdx.x; i < heads * dims; i += THREADS) {
            int h = i / dims, part = h * n_splits + static_cast<int>(blockIdx.x);
            sums[part * dims + i % dims] = s.sums[i];
            if (i % dims == 0) {
                stats[part * 2] = s.largest[h];
                stats[part * 2 + 1] = s.total[h];
            }
        }
        if (!arrives_last(counter, n_parts)) return; /* by the whole block */
        p = all_parts{stats, stats + 1, sums, n_parts, n_splits * 2, n_splits * dims, dims};
    }
    weigh_parts<THREADS>(p, heads, a.sinks ? a.sinks + head : nullptr, s.scores, s.total);
    size_t at = (static_cast<size_t>(row) * a.n_heads + head) * dim;
    for (int i = threadIdx.x; i < heads * dim; i += THREADS) {
        float x = joined(p, s.scores, s.total, i / dim, i % dim);
        a.out[at + i] = x;
        if (form.q) quantize_group((at + i) / 32, x, form.q, form.scales); /* by the whole warp */
    }
}

/* blockIdx.x: the part, of n_splits; blockIdx.y: the key-value head and the group of HEADS of its query heads;
 * blockIdx.z: the row, in the list of those that are split. */
template <int DTYPE>
__global__ void __launch_bounds__(THREADS)
    attention_split(const __grid_constant__ sn_cuda_attention a, int n_splits, sn_cuda_eight_bits form) {
    SN_SHARED_MEMORY(shared);
    int item = static_cast<int>(blockIdx.z), row_at = a.kv.few[item];
    sn_cuda_row row = a.kv.rows[row_at];
    key_part part = part_of(row.position, a.window, static_cast<int>(blockIdx.x), n_splits);
    if (part.first >= part.end) return; /* by the whole block */
    int group = a.n_heads / a.kv.n_kv_heads, runs = (group + HEADS - 1) / HEADS, dims = a.kv.padded_dim;
    int kv_head = static_cast<int>(blockIdx.y) / runs, run = static_cast<int>(blockIdx.y) % runs;
    int head = kv_head * group + run * HEADS, heads = min(HEADS, group - run * HEADS);
    split_state s;
    s.slopes = a.slopes ? a.slopes + head : nullptr;
    s.q = reinterpret_cast<float *>(shared);
    s.sums = s.q + HEADS * dims;
    s.scores = s.sums + HEADS * dims;
    s.largest = s.scores + HEADS * SPLIT_KEYS;
    s.total = s.largest + HEADS;
    s.rescale = s.total + HEADS;
    s.keys = reinterpret_cast<kv_row *>(s.rescale + HEADS);
    size_t q_row = (static_cast<size_t>(row_at) * a.n_heads + head) * a.kv.head_dim;
    for (int i = threadIdx.x; i < heads * dims; i += THREADS) {
        s.q[i] = i % dims < a.kv.head_dim ? a.q[q_row + i / dims * a.kv.head_dim + i % dims] : 0.0f;
        s.sums[i] = 0;
    }
    if (threadIdx.x < HEADS) {
        s.largest[threadIdx.x] = -INFINITY;
        s.total[threadIdx.x] = 0;
    }
    __syncthreads();
    for (int at = part.first; at < part.end; at += SPLIT_KEYS) {
        int n = min(SPLIT_KEYS, part.end - at);
        split_keys<DTYPE>(a, s, row, kv_head, at, n);
        __syncthreads();
        split_scores<DTYPE>(a, s, heads, row.position, at, n);
        __syncthreads();
        split_softmax(s, heads, n);
        __syncthreads();
        split_values<DTYPE>(a, s, heads, n);
        __syncthreads();
    }
    unsigned int *counter = a.arrivals + item * a.kv.n_kv_heads * runs + blockIdx.y;
    split_join(a, s, item, row_at, head, heads, part.n, n_splits, counter, form);
}

template <int DTYPE>
cudaError_t launch_split(cudaStream_t stream, const sn_cuda_attention &a, int n_rows, int n_splits,
                         sn_cuda_eight_bits form) {
    int group = a.n_heads / a.kv.n_kv_heads;
    size_t shared = sizeof(float) * HEADS * (2 * static_cast<size_t>(a.kv.padded_dim) + SPLIT_KEYS + 3) +
                    SPLIT_KEYS * sizeof(kv_row);
    dim3 grid(static_cast<unsigned int>(n_splits),
              static_cast<unsigned int>(a.kv.n_kv_heads * ((group + HEADS - 1) / HEADS)),
              static_cast<unsigned int>(n_rows));
    auto *kernel = attention_split<DTYPE>;
    return SN_LAUNCH(kernel, grid, THREADS, shared, stream, a, n_splits, form);
}

template <bool STORE, int DTYPE>
cudaError_t launch_copy(cudaStream_t stream, const sn_cuda_kv &p, int n_rows, float *k, float *v) {
    auto *kernel = kv_copy<STORE, DTYPE>;
    dim3 grid(static_cast<unsigned int>(n_rows), static_cast<unsigned int>(p.n_kv_heads));
    return SN_LAUNCH(kernel, grid, 32, 0, stream, p, k, v);
}

template <int DTYPE>
cudaError_t launch_rope_store(cudaStream_t stream, const sn_cuda_kv &p, int n_rows, const sn_rope &rope, int n_heads,
                              float *q, float *k, const float *v) {
    auto *kernel = rope_store<DTYPE>;
    dim3 grid(static_cast<unsigned int>(n_rows), static_cast<unsigned int>(n_heads + p.n_kv_heads));
    return SN_LAUNCH(kernel, grid, 32, 0, stream, p, rope, n_heads, q, k, v);
}

} // namespace

extern "C" cudaError_t sn_cuda_kv_store(cudaStream_t stream, const sn_cuda_kv *p, int n_rows, const float *k,
                                        const float *v) {
#define CALL(dtype) launch_copy<true, dtype>(stream, *p, n_rows, const_cast<float *>(k), const_cast<float *>(v))
    BY_KV_DTYPE(p->dtype);
#undef CALL
}

extern "C" cudaError_t sn_cuda_rope_store(cudaStream_t stream, const sn_cuda_kv *p, int n_rows, const sn_rope *rope,
                                          int n_heads, float *q, float *k, const float *v) {
#define CALL(dtype) launch_rope_store<dtype>(stream, *p, n_rows, *rope, n_heads, q, k, v)
    BY_KV_DTYPE(p->dtype);
#undef CALL
}

extern "C" cudaError_t sn_cuda_kv_load(cudaStream_t stream, const sn_cuda_kv *p, int n_rows, float *k, float *v) {
#define CALL(dtype) launch_copy<false, dtype>(stream, *p, n_rows, k, v)
    BY_KV_DTYPE(p->dtype);
#undef CALL
}

extern "C" cudaError_t sn_cuda_attention_split(cudaStream_t stream, const sn_cuda_attention *a, int n_rows,
                                               int n_splits, sn_cuda_eight_bits form) {
#define CALL(dtype) launch_split<dtype>(stream, *a, n_rows, n_splits, form)
    BY_KV_DTYPE(a->kv.dtype);
#undef CALL
}

/* Latent attention (DeepSeek-AI 2024): storing and reading the latent KV cache, attention over it, and the matrices of
 * single heads.
 *
 * A page holds for each block and key-value head one row for each position, (page_tokens, padded_dim): the value, then
 * the rest of the key. All query heads of a key-value head read the same rows. So a block takes HEADS of them and a
 * part of the positions of one row of the batch, brings KEYS positions at a time to shared memory, and each of its
 * threads computes a square of 4 heads and 4 positions from a slice of the dimensions: 64 multiplications for 8 loads.
 * The online softmax is that of Milakov & Gimelshein 2018. */
#include "device/cuda/split.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int HEADS = SN_CUDA_LATENT_HEADS; /* query heads of a block */
constexpr int WEIGHTS_STRIDE = HEADS + 4;   /* floats between the weights of two positions: few conflicts of banks */
constexpr int QUAD_THREADS = 128;           /* threads that share the value; each has HALF of the heads */
constexpr int HALF = HEADS * QUAD_THREADS / THREADS;
constexpr int COPY_THREADS = 128;

/* The row of a position. */
template <int DTYPE> __device__ inline kv_row row_at(const sn_cuda_kv &p, int first_page, int position, int kv_head) {
    float *page = p.pages[first_page + position / p.page_tokens] + p.block_floats + kv_head * p.head_floats;
    return kv_row_at<DTYPE>(reinterpret_cast<unsigned char *>(page), p.page_tokens, position % p.page_tokens,
                            p.head_dim, p.padded_dim);
}

/* One block per row and key-value head. STORE: copies v and k to the pages, with zeros behind them; otherwise the
 * reverse. */
template <bool STORE, int DTYPE>
__global__ void __launch_bounds__(COPY_THREADS) latent_copy(const __grid_constant__ sn_cuda_kv p, float *k, float *v) {
    sn_cuda_row row = p.rows[blockIdx.x];
    kv_row at = row_at<DTYPE>(p, row.first_page, row.position, static_cast<int>(blockIdx.y));
    size_t item = static_cast<size_t>(blockIdx.x) * p.n_kv_heads + blockIdx.y;
    for (int first = static_cast<int>(threadIdx.x) / 32 * 32; first < p.head_dim; first += COPY_THREADS) {
        int i = first + static_cast<int>(threadIdx.x) % 32;
        float *other = i < p.latent ? v + item * p.latent + i : k + item * (p.head_dim - p.latent) + i - p.latent;
        if (STORE)
            kv_store1<DTYPE>(at, i, p.head_dim, p.padded_dim, i < p.head_dim ? *other : 0.0f);
        else if (i < p.head_dim)
            *other = kv_load<DTYPE>(at, i);
    }
}

/* What a block has in shared memory. */
struct latent_state {
    float *q, *keys;                  /* (HEADS, dims), (KEYS, dims) */
    float *weights;                   /* (KEYS, WEIGHTS_STRIDE): scores, then exponentials */
    float *largest, *total, *rescale; /* (HEADS): as in attention_split */
};

/* weights = scores of HEADS heads and KEYS positions. SLICES lanes share a square. */
template <int KEYS>
__device__ inline void latent_scores(const sn_cuda_attention &a, const latent_state &s, int first_head, int heads,
                                     int first, int own) {
    constexpr int SLICES = THREADS / (HEADS / 4 * (KEYS / 4));
    int slice = static_cast<int>(threadIdx.x) % SLICES, square = static_cast<int>(threadIdx.x) / SLICES;
    int head = square % (HEADS / 4) * 4, key = square / (HEADS / 4) * 4, dims = a.kv.padded_dim;
    float sums[4][4] = {};
    for (int i = slice * 4; i < dims; i += SLICES * 4) {
        float4 q[4];
#pragma unroll
        for (int h = 0; h < 4; h++) q[h] = *reinterpret_cast<const float4 *>(s.q + (head + h) * dims + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 k = *reinterpret_cast<const float4 *>(s.keys + (key + j) * dims + i);
#pragma unroll
            for (int h = 0; h < 4; h++) sums[h][j] += dot4(q[h], k);
        }
    }
#pragma unroll
    for (int h = 0; h < 4; h++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float sum = sums[h][j];
            for (int distance = SLICES / 2; distance > 0; distance /= 2)
                sum += __shfl_xor_sync(FULL_WARP, sum, distance);
            if (slice != h * 4 + j) continue;
            const float *slope = a.slopes && head + h < heads ? a.slopes + first_head + head + h : nullptr;
            s.weights[(key + j) * WEIGHTS_STRIDE + head + h] =
                alibi_score(softcapped(sum * a.scale, a.softcap), slope, first + key + j, own);
        }
    }
}

/* Replaces the scores of n positions by exponentials relative to the running maximum; those of the others by zero. */
template <int KEYS> __device__ inline void latent_softmax(const latent_state &s, int n) {
    int h = static_cast<int>(threadIdx.x) / KEYS, j = static_cast<int>(threadIdx.x) % KEYS;
    if (h >= HEADS) return; /* whole warps */
    float *weight = s.weights + j * WEIGHTS_STRIDE + h, before = s.largest[h];
    float x = j < n ? *weight : -INFINITY, largest = x;
    for (int distance = KEYS / 2; distance > 0; distance /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, distance));
    largest = fmaxf(largest, before);
    float base = largest == -INFINITY ? 0.0f : largest; /* all scores were -infinity so far */
    float e = j < n ? expf(x - base) : 0.0f, sum = e;
    for (int distance = KEYS / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    *weight = e;
    __syncwarp(); /* all lanes have read `before` */
    if (j == 0) {
        s.rescale[h] = expf(before - base);
        s.largest[h] = largest;
        s.total[h] = s.total[h] * s.rescale[h] + sum;
    }
}

/* sums = sums * rescale + exponentials . values of n positions. */
template <int QUADS>
__device__ inline void latent_values(const sn_cuda_attention &a, const latent_state &s, int n,
                                     float4 (&sums)[QUADS][HALF]) {
    int quad = static_cast<int>(threadIdx.x) % QUAD_THREADS, head = static_cast<int>(threadIdx.x) / QUAD_THREADS * HALF;
#pragma unroll
    for (int h = 0; h < HALF; h++) {
        float rescale = s.rescale[head + h];
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            float4 x = sums[i][h];
            sums[i][h] = make_float4(x.x * rescale, x.y * rescale, x.z * rescale, x.w * rescale);
        }
    }
    for (int j = 0; j < n; j++) {
        float e[HALF];
#pragma unroll
        for (int h = 0; h < HALF; h += 4) {
            float4 four = *reinterpret_cast<const float4 *>(s.weights + j * WEIGHTS_STRIDE + head + h);
            e[h] = four.x, e[h + 1] = four.y, e[h + 2] = four.z, e[h + 3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int at = (quad + i * QUAD_THREADS) * 4;
            if (at >= a.kv.latent) break;
            float4 v = *reinterpret_cast<const float4 *>(s.keys + j * a.kv.padded_dim + at);
#pragma unroll
            for (int h = 0; h < HALF; h++) {
                float4 x = sums[i][h];
                sums[i][h] =
                    make_float4(fmaf(e[h], v.x, x.x), fmaf(e[h], v.y, x.y), fmaf(e[h], v.z, x.z), fmaf(e[h], v.w, x.w));
            }
        }
    }
}

/* Floats of q and keys; the weights of parts take their place. */
template <int KEYS> __host__ __device__ constexpr int rows_floats(int dims) {
    return (HEADS + KEYS) * dims > HEADS * SN_CUDA_SPLITS ? (HEADS + KEYS) * dims : HEADS * SN_CUDA_SPLITS;
}

/* Writes the result of a thread's heads: to `out` where the row has one part, else to the partial sums. */
template <int QUADS>
__device__ inline void latent_write(const sn_cuda_attention &a, const latent_state &s, size_t first_head, int heads,
                                    int n_parts, int n_splits, const float4 (&sums)[QUADS][HALF]) {
    int quad = static_cast<int>(threadIdx.x) % QUAD_THREADS, head = static_cast<int>(threadIdx.x) / QUAD_THREADS * HALF;
    int latent = a.kv.latent, padded = (latent + 3) / 4 * 4;
#pragma unroll
    for (int h = 0; h < HALF; h++) {
        if (head + h >= heads) break;
        size_t own = first_head + head + h, part = own * n_splits + blockIdx.x;
        float total = n_parts == 1 ? s.total[head + h] : 1.0f;
        float *to = n_parts == 1 ? a.out + own * latent : a.partial + part * padded;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const float four[4] = {sums[i][h].x, sums[i][h].y, sums[i][h].z, sums[i][h].w};
            int at = (quad + i * QUAD_THREADS) * 4;
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (at + k < latent) to[at + k] = four[k] / total;
        }
        if (n_parts > 1 && quad == 0) {
            a.partial_stats[part * 2] = s.largest[head + h];
            a.partial_stats[part * 2 + 1] = s.total[head + h];
        }
    }
}

/* Joins the parts of the heads from `first_head` on, by the block that has finished last. */
__device__ inline void latent_join(const sn_cuda_attention &a, const latent_state &s, size_t first_head, int heads,
                                   int n_parts, int n_splits) {
    int latent = a.kv.latent, padded = (latent + 3) / 4 * 4;
    const float *stats = a.partial_stats + first_head * n_splits * 2;
    const all_parts p = {
        stats, stats + 1, a.partial + first_head * n_splits * padded, n_parts, n_splits * 2, n_splits * padded, padded};
    weigh_parts<THREADS>(p, heads, nullptr, s.q, s.total);
    for (int i = threadIdx.x; i < heads * latent; i += THREADS)
        a.out[first_head * latent + i] = joined(p, s.q, s.total, i / latent, i % latent);
}

/* blockIdx.x: the part, of n_splits; blockIdx.y: the key-value head and the group of HEADS of its query heads;
 * blockIdx.z: the row. A row never reads positions outside of its range. A sink comes before the first part. */
template <int KEYS, int QUADS, int DTYPE>
__global__ void __launch_bounds__(THREADS) latent_attention(const __grid_constant__ sn_cuda_attention a, int n_splits) {
    SN_SHARED_MEMORY(shared);
    sn_cuda_row row = a.kv.rows[blockIdx.z];
    const bool chooses = a.chosen && row.position >= a.n_chosen;
    const int32_t *chosen = chooses ? a.chosen + static_cast<size_t>(blockIdx.z) * a.n_chosen : nullptr;
    if (chooses) row.position = a.n_chosen - 1; /* from here on: the number of a chosen position */
    key_part own = part_of(row.position, a.window, static_cast<int>(blockIdx.x), n_splits);
    if (own.first >= own.end) return; /* by the whole block */
    int thread = static_cast<int>(threadIdx.x), dims = a.kv.padded_dim;
    int group = a.n_heads / a.kv.n_kv_heads, runs = (group + HEADS - 1) / HEADS;
    int kv_head = static_cast<int>(blockIdx.y) / runs, run = static_cast<int>(blockIdx.y) % runs;
    int head = kv_head * group + run * HEADS, heads = min(HEADS, group - run * HEADS);
    latent_state s;
    s.q = reinterpret_cast<float *>(shared);
    s.keys = s.q + HEADS * dims;
    s.weights = s.q + rows_floats<KEYS>(dims);
    s.largest = s.weights + KEYS * WEIGHTS_STRIDE;
    s.total = s.largest + HEADS;
    s.rescale = s.total + HEADS;
    size_t first_head = static_cast<size_t>(blockIdx.z) * a.n_heads + head;
    for (int h = thread / 32; h < HEADS; h += WARPS)
        for (int i = thread % 32; i < dims; i += 32)
            s.q[h * dims + i] = h < heads && i < a.kv.head_dim ? a.q[(first_head + h) * a.kv.head_dim + i] : 0.0f;
    if (thread < HEADS) {
        bool sink = a.sinks && blockIdx.x == 0 && thread < heads;
        s.largest[thread] = sink ? a.sinks[head + thread] : -INFINITY;
        s.total[thread] = sink ? 1.0f : 0.0f;
    }
    float4 sums[QUADS][HALF];
#pragma unroll
    for (int i = 0; i < QUADS; i++)
#pragma unroll
        for (int h = 0; h < HALF; h++) sums[i][h] = make_float4(0, 0, 0, 0);
    for (int at = own.first; at < own.end; at += KEYS) {
        int n = min(KEYS, own.end - at);
        for (int j = thread / 32; j < n; j += WARPS) {
            kv_row from = row_at<DTYPE>(a.kv, row.first_page, chosen ? chosen[at + j] : at + j, kv_head);
            for (int i = thread % 32 * 4; i < dims; i += 128)
                *reinterpret_cast<float4 *>(s.keys + j * dims + i) = kv_load4<DTYPE>(from, i);
        }
        __syncthreads();
        latent_scores<KEYS>(a, s, head, heads, at, row.position);
        __syncthreads();
        latent_softmax<KEYS>(s, n);
        __syncthreads();
        latent_values<QUADS>(a, s, n, sums);
        __syncthreads(); /* all threads have read the values; the next positions replace them */
    }
    latent_write<QUADS>(a, s, first_head, heads, own.n, n_splits, sums);
    unsigned int *counter = a.arrivals + static_cast<int>(blockIdx.z) * a.kv.n_kv_heads * runs + blockIdx.y;
    if (own.n > 1 && arrives_last(counter, own.n)) latent_join(a, s, first_head, heads, own.n, n_splits);
}

template <int KEYS, int QUADS, int DTYPE>
cudaError_t launch_attention(cudaStream_t stream, const sn_cuda_attention &a, int n_rows, int n_splits) {
    size_t shared =
        sizeof(float) * (static_cast<size_t>(rows_floats<KEYS>(a.kv.padded_dim)) + KEYS * WEIGHTS_STRIDE + 3 * HEADS);
    auto *kernel = latent_attention<KEYS, QUADS, DTYPE>;
    if (shared > 48 * 1024) { /* as for attention_tiles */
        cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
        if (error != cudaSuccess) return error;
    }
    int group = a.n_heads / a.kv.n_kv_heads;
    dim3 grid(static_cast<unsigned int>(n_splits),
              static_cast<unsigned int>(a.kv.n_kv_heads * ((group + HEADS - 1) / HEADS)),
              static_cast<unsigned int>(n_rows));
    return SN_LAUNCH(kernel, grid, THREADS, shared, stream, a, n_splits);
}

constexpr int LINEAR_THREADS = 128;
constexpr int LINEAR_LANES = 8; /* lanes of an output, each with eight columns at a time */
constexpr int LINEAR_OUTPUTS = LINEAR_THREADS / LINEAR_LANES;
constexpr int LINEAR_ROWS = 8; /* rows of x that share the reading of a matrix */

/* blockIdx.x: LINEAR_OUTPUTS outputs of a head, and with the first of them the elements that are only copied;
 * blockIdx.y: the head; blockIdx.z: LINEAR_ROWS rows. */
template <int LAYOUT>
__global__ void __launch_bounds__(LINEAR_THREADS)
    head_linear(const __grid_constant__ sn_cuda_experts heads, int n_heads, int n, int x_width, const float *x,
                float *y) {
    int rows = heads.first.rows, cols = heads.first.cols, head = static_cast<int>(blockIdx.y);
    int part = static_cast<int>(threadIdx.x) % LINEAR_LANES, rest = x_width - cols, y_width = rows + rest;
    int output = static_cast<int>(blockIdx.x) * LINEAR_OUTPUTS + static_cast<int>(threadIdx.x) / LINEAR_LANES;
    int first = static_cast<int>(blockIdx.z) * LINEAR_ROWS, own = min(LINEAR_ROWS, n - first);
    size_t x_step = static_cast<size_t>(n_heads) * x_width, y_step = static_cast<size_t>(n_heads) * y_width;
    const float *from = x + first * x_step + static_cast<size_t>(head) * x_width;
    float *to = y + first * y_step + static_cast<size_t>(head) * y_width;
    const sn_cuda_matrix w = expert_at(heads, head);
    float sums[LINEAR_ROWS] = {};
    for (int at = part * 8; at < cols; at += LINEAR_LANES * 8) {
        float v[8];
        load_weights<LAYOUT>(w, min(output, rows - 1), at, v); /* all lanes must reach the shuffles */
#pragma unroll
        for (int r = 0; r < LINEAR_ROWS; r++) {
            if (r >= own) break;
            for (int i = 0; i < 8; i++)
                if (at + i < cols) sums[r] = fmaf(v[i], from[r * x_step + at + i], sums[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < LINEAR_ROWS; r++) {
        for (int distance = LINEAR_LANES / 2; distance > 0; distance /= 2)
            sums[r] += __shfl_xor_sync(FULL_WARP, sums[r], distance);
        if (part == 0 && r < own && output < rows) to[r * y_step + output] = sums[r];
    }
    for (int i = threadIdx.x; blockIdx.x == 0 && i < own * rest; i += LINEAR_THREADS)
        to[i / rest * y_step + rows + i % rest] = from[i / rest * x_step + cols + i % rest];
}

template <int LAYOUT>
cudaError_t launch_head_linear(cudaStream_t stream, const sn_cuda_experts &heads, int n_heads, int n, int x_width,
                               const float *x, float *y) {
    dim3 grid(static_cast<unsigned int>((heads.first.rows + LINEAR_OUTPUTS - 1) / LINEAR_OUTPUTS),
              static_cast<unsigned int>(n_heads), static_cast<unsigned int>((n + LINEAR_ROWS - 1) / LINEAR_ROWS));
    auto *kernel = head_linear<LAYOUT>;
    return SN_LAUNCH(kernel, grid, LINEAR_THREADS, 0, stream, heads, n_heads, n, x_width, x, y);
}

template <bool STORE, int DTYPE>
cudaError_t launch_copy(cudaStream_t stream, const sn_cuda_kv &p, int n_rows, float *k, float *v) {
    auto *kernel = latent_copy<STORE, DTYPE>;
    dim3 grid(static_cast<unsigned int>(n_rows), static_cast<unsigned int>(p.n_kv_heads));
    return SN_LAUNCH(kernel, grid, COPY_THREADS, 0, stream, p, k, v);
}

template <int DTYPE>
cudaError_t pick_attention(cudaStream_t stream, const sn_cuda_attention &a, int n_rows, int n_splits) {
    if (a.kv.padded_dim > 768) return launch_attention<8, 2, DTYPE>(stream, a, n_rows, n_splits);
    if (a.kv.latent > QUAD_THREADS * 4) return launch_attention<16, 2, DTYPE>(stream, a, n_rows, n_splits);
    return launch_attention<16, 1, DTYPE>(stream, a, n_rows, n_splits);
}

} // namespace

extern "C" cudaError_t sn_cuda_latent_store(cudaStream_t stream, const sn_cuda_kv *p, int n_rows, const float *k,
                                            const float *v) {
#define CALL(dtype) launch_copy<true, dtype>(stream, *p, n_rows, const_cast<float *>(k), const_cast<float *>(v))
    BY_KV_DTYPE(p->dtype);
#undef CALL
}

extern "C" cudaError_t sn_cuda_latent_load(cudaStream_t stream, const sn_cuda_kv *p, int n_rows, float *k, float *v) {
#define CALL(dtype) launch_copy<false, dtype>(stream, *p, n_rows, k, v)
    BY_KV_DTYPE(p->dtype);
#undef CALL
}

extern "C" cudaError_t sn_cuda_latent_attention(cudaStream_t stream, const sn_cuda_attention *a, int n_rows,
                                                int n_splits) {
#define CALL(dtype) pick_attention<dtype>(stream, *a, n_rows, n_splits)
    BY_KV_DTYPE(a->kv.dtype);
#undef CALL
}

extern "C" cudaError_t sn_cuda_head_linear(cudaStream_t stream, const sn_cuda_experts *heads, int n_heads, int n,
                                           int x_width, const float *x, float *y) {
#define CALL(layout) launch_head_linear<layout>(stream, *heads, n_heads, n, x_width, x, y)
    BY_LAYOUT(heads->first.layout, SN_CUDA_QUANT_CASES_OF_ANY);
#undef CALL
}

/* An indexer (DeepSeek-AI 2025): the scores of all positions that a row may see, and the n_chosen best of them.
 *
 * Scores: a warp takes a position, its lanes a slice of the index key each; the heads follow one after the other, so
 * that the sum over them has one order. The choice: a block takes a row, finds the least score that is chosen digit by
 * digit, and writes the positions in ascending order. Both know a row's position from the batch table alone, as a
 * recorded graph is replayed at others. */
#include "device/cuda/kernels.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int SHARES = 64; /* blocks for a row's positions */
constexpr int DIGITS = 256;

/* blockIdx.x: the share of the positions; blockIdx.y: the row. */
__global__ void __launch_bounds__(THREADS) index_scores(const __grid_constant__ sn_cuda_indexer p) {
    const int r = p.first_row + static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
    const sn_cuda_row row = p.keys.rows[r];
    if (row.position < p.n_chosen) return;
    const int dim = p.keys.head_dim, warp = static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / 32;
    const float *q = p.q + static_cast<size_t>(r) * p.n_heads * dim;
    const float *weights = p.weights + static_cast<size_t>(r) * p.n_heads;
    for (int at = warp; at <= row.position; at += SHARES * WARPS) {
        const float *key = p.keys.pages[row.first_page + at / p.keys.page_tokens] + p.keys.block_floats +
                           static_cast<size_t>(at % p.keys.page_tokens) * p.keys.padded_dim;
        float score = 0;
        for (int h = 0; h < p.n_heads; h++) {
            float sum = 0;
            for (int i = lane; i < dim; i += 32) sum = fmaf(q[h * dim + i], key[i], sum);
            sum = warp_sum(sum);
            score = fmaf(weights[h], sum > 0 ? sum : 0.0f, score);
        }
        if (lane == 0) p.scores[blockIdx.y * p.stride + at] = score;
    }
}

/* A number that grows with x; of what is not a number the least. */
__device__ inline unsigned int order_of(float x) {
    unsigned int bits = __float_as_uint(x + 0.0f); /* -0 counts as 0 */
    if (x != x) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The sum of x over the threads before this one; *all: over all. */
__device__ inline int sum_before(int x, int *shared, int *all) {
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads(); /* all threads have finished reading `shared` */
    shared[thread] = x;
    __syncthreads();
    for (int distance = 1; distance < THREADS; distance *= 2) {
        int before = thread >= distance ? shared[thread - distance] : 0;
        __syncthreads();
        shared[thread] += before;
        __syncthreads();
    }
    *all = shared[THREADS - 1];
    return shared[thread] - x;
}

/* blockIdx.x: the row. The score in the place of the last one chosen is found by four digits of 8 bits, the highest
 * first; then thread i has digit DIGITS - 1 - i. */
__global__ void __launch_bounds__(THREADS) choose(const __grid_constant__ sn_cuda_indexer p) {
    __shared__ int counts[WARPS][DIGITS];
    __shared__ int scan[THREADS];
    __shared__ unsigned int found[2]; /* the digit, and how many of it are left to be chosen */
    const int r = p.first_row + static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const int n = p.keys.rows[r].position + 1, warp = thread / 32, lane = thread % 32;
    if (n <= p.n_chosen) return; /* by the whole block */
    const float *scores = p.scores + blockIdx.x * p.stride;
    unsigned int prefix = 0, mask = 0;
    int left = p.n_chosen;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = thread; i < WARPS * DIGITS; i += THREADS) counts[i / DIGITS][i % DIGITS] = 0;
        __syncthreads();
        for (int first = warp * 32; first < n; first += THREADS) { /* whole warps */
            unsigned int order = first + lane < n ? order_of(scores[first + lane]) : 0;
            bool counted = first + lane < n && (order & mask) == prefix;
            int digit = counted ? static_cast<int>(order >> shift & 255) : -1;
            unsigned int alike = __match_any_sync(FULL_WARP, digit);
            /* the first of the lanes with a digit counts them all */
            if (counted && !(alike & ((1u << lane) - 1))) counts[warp][digit] += __popc(alike);
            __syncwarp();
        }
        __syncthreads();
        int own = 0, all;
        for (int w = 0; w < WARPS; w++) own += counts[w][DIGITS - 1 - thread]; /* thread 0 has the highest digit */
        int before = sum_before(own, scan, &all);
        if (before < left && before + own >= left) {
            found[0] = static_cast<unsigned int>(DIGITS - 1 - thread);
            found[1] = static_cast<unsigned int>(left - before);
        }
        __syncthreads();
        prefix |= found[0] << shift;
        mask |= 255u << shift;
        left = static_cast<int>(found[1]);
        __syncthreads();
    }
    int32_t *out = p.chosen + static_cast<size_t>(r) * p.n_chosen;
    int written = 0, equals = 0;
    for (int first = 0; first < n; first += THREADS) {
        unsigned int order = first + thread < n ? order_of(scores[first + thread]) : 0;
        bool equal = first + thread < n && order == prefix;
        int new_equals, new_written;
        int rank = equals + sum_before(equal, scan, &new_equals);
        bool is_chosen = first + thread < n && (order > prefix || (equal && rank < left));
        int place = written + sum_before(is_chosen, scan, &new_written);
        if (is_chosen) out[place] = first + thread;
        equals += new_equals;
        written += new_written;
    }
}

} // namespace

extern "C" cudaError_t sn_cuda_index_scores(cudaStream_t stream, const sn_cuda_indexer *p) {
    return SN_LAUNCH(index_scores, dim3(SHARES, static_cast<unsigned int>(p->n_rows), 1), THREADS, 0, stream, *p);
}

extern "C" cudaError_t sn_cuda_choose(cudaStream_t stream, const sn_cuda_indexer *p) {
    return SN_LAUNCH(choose, static_cast<unsigned int>(p->n_rows), THREADS, 0, stream, *p);
}

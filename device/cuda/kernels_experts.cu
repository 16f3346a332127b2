/* Mixtures of experts. Which expert a row goes through is read from the device's memory, so a recorded pass follows it. Plain
 * rather than fast: a pair of a row and an expert reads that expert's weights by itself. */
#include "device/cuda/kernels.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int PER_LANE = SN_EXPERTS_MAX / 32; /* experts of a lane: `taken` has a bit for each */

unsigned int blocks_for(size_t n) { return static_cast<unsigned int>((n + THREADS - 1) / THREADS); }
__device__ inline size_t this_item() { return static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x; }
__device__ inline int this_lane() { return static_cast<int>(threadIdx.x) % 32; }

struct candidate {
    float value;
    int id; /* -1: none */
};

/* Whether b comes before a: the larger one, of equal ones the lower. */
__device__ inline bool before(candidate b, candidate a) {
    if (b.id < 0 || a.id < 0) return a.id < 0 && b.id >= 0;
    return b.value > a.value || (b.value == a.value && b.id < a.id);
}

/* A warp a row: the k largest, each round's by a tree over the lanes. */
__global__ void __launch_bounds__(THREADS)
    route(int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids, float *weights) {
    int row = static_cast<int>(this_item() / 32), lane = this_lane();
    if (row >= n) return; /* the whole warp */
    const float *own = logits + static_cast<size_t>(row) * n_experts;
    unsigned int taken = 0;
    float most = 0, sum = 0;
    for (int j = 0; j < k; j++) {
        candidate best = {0, -1};
        for (int i = 0; i < PER_LANE && i * 32 + lane < n_experts; i++) {
            float x = own[i * 32 + lane];
            candidate c = {x == x ? x : -INFINITY, i * 32 + lane}; /* NaN comes last: all lanes agree */
            if (!(taken >> i & 1) && before(c, best)) best = c;
        }
        for (int distance = 16; distance > 0; distance /= 2) {
            candidate other = {__shfl_xor_sync(FULL_WARP, best.value, distance),
                               __shfl_xor_sync(FULL_WARP, best.id, distance)};
            if (before(other, best)) best = other;
        }
        if (best.id % 32 == lane) taken |= 1u << best.id / 32;
        if (j == 0) most = own[best.id];
        float e = expf(own[best.id] - most);
        sum += e;
        if (lane == 0) {
            ids[static_cast<size_t>(row) * k + j] = best.id;
            weights[static_cast<size_t>(row) * k + j] = e;
        }
    }
    if (over_all) {
        sum = 0;
        for (int e = lane; e < n_experts; e += 32) sum += expf(own[e] - most);
        sum = warp_sum(sum);
    }
    if (lane == 0)
        for (int j = 0; j < k; j++) weights[static_cast<size_t>(row) * k + j] /= sum;
}

__device__ inline sn_cuda_matrix expert_at(const sn_cuda_experts &experts, int e) {
    sn_cuda_matrix w = experts.first;
    size_t at = static_cast<size_t>(e) * experts.stride;
    for (int i = 0; i < 2; i++) w.plane[i] = static_cast<const char *>(w.plane[i]) + at;
    w.scales = static_cast<const char *>(w.scales) + at;
    w.supers = static_cast<const char *>(w.supers) + at;
    return w;
}

/* A warp makes an output of a pair: blocks of outputs along x, pairs along y. */
template <int LAYOUT>
__global__ void __launch_bounds__(THREADS)
    linear_routed(const __grid_constant__ sn_cuda_experts experts, int k, const int32_t *ids, bool each, const float *x,
                  const float *bias, float *y, int per_pair) {
    int pair = static_cast<int>(blockIdx.x) / per_pair, rows = experts.first.rows, cols = experts.first.cols;
    int row = static_cast<int>(blockIdx.x) % per_pair * WARPS + static_cast<int>(threadIdx.x) / 32;
    if (row >= rows) return; /* the whole warp */
    int e = ids[pair];
    const sn_cuda_matrix w = expert_at(experts, e);
    const float *own = x + static_cast<size_t>(each ? pair : pair / k) * cols;
    float sum = 0;
    for (int at = this_lane() * 8; at < cols; at += 32 * 8) {
        float v[8];
        weights_of<LAYOUT>(w, row, at, v);
        for (int i = 0; i < 8 && at + i < cols; i++) sum += v[i] * own[at + i];
    }
    sum = warp_sum(sum);
    if (this_lane() == 0)
        y[static_cast<size_t>(pair) * rows + row] = bias ? sum + bias[static_cast<size_t>(e) * rows + row] : sum;
}

template <int LAYOUT>
cudaError_t launch_routed(cudaStream_t stream, const sn_choice &c, bool each, const float *x,
                          const sn_cuda_experts &experts, const float *bias, float *y) {
    int per_pair = (experts.first.rows + WARPS - 1) / WARPS;
    auto *kernel = linear_routed<LAYOUT>;
    return SN_LAUNCH(kernel, static_cast<unsigned int>(c.n * c.k * per_pair), THREADS, 0, stream, experts, c.k, c.ids, each,
                     x, bias, y, per_pair);
}

__global__ void __launch_bounds__(THREADS)
    combine(size_t n, int k, int width, const float *weights, const float *x, float *y) {
    size_t item = this_item();
    if (item >= n) return;
    size_t row = item / width, at = item % width;
    float sum = 0;
    for (int j = 0; j < k; j++) sum = fmaf(weights[row * k + j], x[(row * k + j) * width + at], sum);
    y[item] = sum;
}

/* dx = dy . w: a thread for 8 columns of a row, over all its experts in their order; where `each`, of a pair. */
template <int LAYOUT>
__global__ void __launch_bounds__(THREADS)
    linear_routed_grad(const __grid_constant__ sn_cuda_experts experts, size_t items, int per_item, const int32_t *ids,
                       const float *dy, bool grow, float *dx) {
    size_t item = this_item();
    if (item >= items) return;
    int rows = experts.first.rows, cols = experts.first.cols, per_row = (cols + 7) / 8;
    size_t first = item / per_row;
    int at = static_cast<int>(item % per_row) * 8;
    float sums[8] = {};
    for (size_t pair = first * per_item; pair < (first + 1) * per_item; pair++) {
        const sn_cuda_matrix w = expert_at(experts, ids[pair]);
        for (int r = 0; r < rows; r++) {
            float v[8], d = dy[pair * rows + r];
            weights_of<LAYOUT>(w, r, at, v);
            for (int e = 0; e < 8; e++) sums[e] = fmaf(d, v[e], sums[e]);
        }
    }
    for (int e = 0; e < 8 && at + e < cols; e++) {
        float *to = dx + first * cols + at + e;
        *to = grow ? *to + sums[e] : sums[e];
    }
}

template <int LAYOUT>
cudaError_t launch_routed_grad(cudaStream_t stream, const sn_choice &c, bool each, const float *dy,
                               const sn_cuda_experts &experts, bool grow, float *dx) {
    size_t items = static_cast<size_t>(each ? c.n * c.k : c.n) * ((experts.first.cols + 7) / 8);
    auto *kernel = linear_routed_grad<LAYOUT>;
    return SN_LAUNCH(kernel, blocks_for(items), THREADS, 0, stream, experts, items, each ? 1 : c.k, c.ids, dy, grow, dx);
}

/* A warp a pair; its lanes read of x only what they write of dx. */
__global__ void __launch_bounds__(THREADS)
    combine_grad(int pairs, int k, int width, const float *weights, const float *x, const float *dy, float *dx,
                 float *dweights) {
    int pair = static_cast<int>(this_item() / 32);
    if (pair >= pairs) return;
    const float *d = dy + static_cast<size_t>(pair / k) * width, *own = x + static_cast<size_t>(pair) * width;
    float weight = weights[pair], sum = 0;
    for (int i = this_lane(); i < width; i += 32) {
        sum += d[i] * own[i];
        dx[static_cast<size_t>(pair) * width + i] = weight * d[i];
    }
    sum = warp_sum(sum);
    if (this_lane() == 0) dweights[pair] = sum;
}

/* A warp a row. w = softmax: dl = w * (dw - sum(w dw)), of those whose softmax it is. */
__global__ void __launch_bounds__(THREADS)
    route_grad(int n, int n_experts, int k, bool over_all, const float *logits, const int32_t *ids, const float *weights,
               const float *dweights, float *dlogits) {
    int row = static_cast<int>(this_item() / 32), lane = this_lane();
    if (row >= n) return;
    size_t at = static_cast<size_t>(row) * n_experts, own = static_cast<size_t>(row) * k;
    float most = logits[at + ids[own]], sum = 0, mean = 0;
    for (int j = 0; j < k; j++) mean += weights[own + j] * dweights[own + j];
    for (int e = lane; e < n_experts; e += 32) sum += expf(logits[at + e] - most);
    sum = warp_sum(sum);
    for (int e = lane; e < n_experts; e += 32) {
        float g = over_all ? -(expf(logits[at + e] - most) / sum) * mean : 0.0f;
        for (int j = 0; j < k; j++)
            if (ids[own + j] == e) g = weights[own + j] * (dweights[own + j] - mean);
        dlogits[at + e] = g;
    }
}

} // namespace

#define BY_LAYOUT(layout, call)                                                                                        \
    switch (layout) {                                                                                                  \
    case SN_CUDA_F32: return call(SN_CUDA_F32);                                                                        \
    case SN_CUDA_F16: return call(SN_CUDA_F16);                                                                        \
    case SN_CUDA_BF16: return call(SN_CUDA_BF16);                                                                      \
    case SN_CUDA_Q4_HALF: return call(SN_CUDA_Q4_HALF);                                                                \
    case SN_CUDA_Q4_SUPER: return call(SN_CUDA_Q4_SUPER);                                                              \
    case SN_CUDA_Q8_HALF: return call(SN_CUDA_Q8_HALF);                                                                \
    case SN_CUDA_Q8_FINE: return call(SN_CUDA_Q8_FINE);                                                                \
    }                                                                                                                  \
    return cudaErrorInvalidValue

extern "C" cudaError_t sn_cuda_route(cudaStream_t stream, int n, int n_experts, int k, bool over_all, const float *logits,
                                     int32_t *ids, float *weights) {
    return SN_LAUNCH(route, blocks_for(static_cast<size_t>(n) * 32), THREADS, 0, stream, n, n_experts, k, over_all, logits,
                     ids, weights);
}

extern "C" cudaError_t sn_cuda_linear_routed(cudaStream_t stream, const sn_choice *choice, bool each, const float *x,
                                             const sn_cuda_experts *experts, const float *bias, float *y) {
#define CALL(layout) launch_routed<layout>(stream, *choice, each, x, *experts, bias, y)
    BY_LAYOUT(experts->first.layout, CALL);
#undef CALL
}

extern "C" cudaError_t sn_cuda_combine(cudaStream_t stream, const sn_choice *choice, int width, const float *x, float *y) {
    size_t items = static_cast<size_t>(choice->n) * width;
    return SN_LAUNCH(combine, blocks_for(items), THREADS, 0, stream, items, choice->k, width, choice->weights, x, y);
}

extern "C" cudaError_t sn_cuda_linear_routed_grad(cudaStream_t stream, const sn_choice *choice, bool each, const float *dy,
                                                  const sn_cuda_experts *experts, bool grow, float *dx) {
#define CALL(layout) launch_routed_grad<layout>(stream, *choice, each, dy, *experts, grow, dx)
    BY_LAYOUT(experts->first.layout, CALL);
#undef CALL
}

extern "C" cudaError_t sn_cuda_combine_grad(cudaStream_t stream, const sn_choice *choice, int width, const float *x,
                                            const float *dy, float *dx, float *dweights) {
    int pairs = choice->n * choice->k;
    return SN_LAUNCH(combine_grad, blocks_for(static_cast<size_t>(pairs) * 32), THREADS, 0, stream, pairs, choice->k, width,
                     choice->weights, x, dy, dx, dweights);
}

extern "C" cudaError_t sn_cuda_route_grad(cudaStream_t stream, const sn_choice *choice, bool over_all, const float *logits,
                                          const float *dweights, float *dlogits) {
    return SN_LAUNCH(route_grad, blocks_for(static_cast<size_t>(choice->n) * 32), THREADS, 0, stream, choice->n,
                     choice->n_experts, choice->k, over_all, logits, choice->ids, choice->weights, dweights, dlogits);
}

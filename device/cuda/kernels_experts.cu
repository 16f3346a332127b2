/* Mixtures of experts. The kernels read the ids of the experts from device memory, so a replayed graph follows them.
 *
 * Few pairs of a row and an expert: a warp computes one output of a pair, and each pair reads its expert's weights.
 * More pairs than experts: they are grouped by expert in chunks of PAIRS, which read the weights once. Experts of many
 * pairs are left to kernels_expert_products.cu. */
#include "device/cuda/kernels.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int PER_LANE = SN_EXPERTS_MAX / 32; /* experts per lane: `taken` has one bit for each */

unsigned int blocks_for(size_t n) { return static_cast<unsigned int>((n + THREADS - 1) / THREADS); }
__device__ inline size_t this_item() { return static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x; }
__device__ inline int this_lane() { return static_cast<int>(threadIdx.x) % 32; }

struct candidate {
    float value;
    int id; /* -1: none */
};

/* Whether b ranks before a: the larger logit, of equal ones the lower id. */
__device__ inline bool ranks_before(candidate b, candidate a) {
    if (b.id < 0 || a.id < 0) return a.id < 0 && b.id >= 0;
    return b.value > a.value || (b.value == a.value && b.id < a.id);
}

/* A row's logits, and how its scores follow from them. */
struct gate_row {
    const float *logits;
    bool by_sigmoid;
    float max_logit, sum; /* else: of the softmax of all logits */
};

__device__ inline float score_of(const gate_row &row, int e) {
    return row.by_sigmoid ? sigmoid(row.logits[e]) : expf(row.logits[e] - row.max_logit) / row.sum;
}

/* By what expert e is chosen. */
__device__ inline float rank_of(const sn_moe_router &router, const gate_row &row, int e) {
    if (router.correction) return score_of(row, e) + router.correction[e];
    /* groups compare sums of scores, which logits would order differently */
    return router.n_groups && row.by_sigmoid ? sigmoid(row.logits[e]) : row.logits[e];
}

/* NaN ranks last in all lanes. */
__device__ inline float ranked(float x) { return x == x ? x : -INFINITY; }

/* The candidate that ranks first of those of all lanes, in every lane. */
__device__ inline candidate first_of_warp(candidate best) {
    for (int distance = 16; distance > 0; distance /= 2) {
        candidate other = {__shfl_xor_sync(FULL_WARP, best.value, distance),
                           __shfl_xor_sync(FULL_WARP, best.id, distance)};
        if (ranks_before(other, best)) best = other;
    }
    return best;
}

/* How good group g is: its best expert, or with the sigmoid its two best ones together. */
__device__ inline float rank_of_group(const sn_moe_router &router, const gate_row &row, int g) {
    int size = router.n_experts / router.n_groups;
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; e++) {
        float x = ranked(rank_of(router, row, e));
        second = fmaxf(second, fminf(first, x));
        first = fmaxf(first, x);
    }
    return row.by_sigmoid && size > 1 ? first + second : first;
}

/* A bit for each expert of this lane that lies outside of the best groups. */
__device__ inline unsigned int outside_of_groups(const sn_moe_router &router, const gate_row &row, int lane) {
    const int size = router.n_experts / router.n_groups;
    float ranks[PER_LANE];
    unsigned int used = 0, inside = 0;
    for (int i = 0; i < PER_LANE && i * 32 + lane < router.n_groups; i++)
        ranks[i] = rank_of_group(router, row, i * 32 + lane);
    for (int j = 0; j < router.n_groups_used; j++) {
        candidate best = {0, -1};
        for (int i = 0; i < PER_LANE && i * 32 + lane < router.n_groups; i++) {
            candidate c = {ranks[i], i * 32 + lane};
            if (!(used >> i & 1) && ranks_before(c, best)) best = c;
        }
        best = first_of_warp(best);
        if (best.id % 32 == lane) used |= 1u << best.id / 32;
        for (int i = 0; i < PER_LANE && i * 32 + lane < router.n_experts; i++)
            if ((i * 32 + lane) / size == best.id) inside |= 1u << i;
    }
    return ~inside;
}

__device__ inline gate_row gate_row_of(const sn_moe_router &router, const float *own, int lane) {
    gate_row row = {own, router.scoring == SN_ROUTER_SIGMOID, -INFINITY, 0.0f};
    if (row.by_sigmoid || !router.correction) return row;
    for (int e = lane; e < router.n_experts; e += 32) row.max_logit = fmaxf(row.max_logit, own[e]);
    row.max_logit = warp_max(row.max_logit);
    for (int e = lane; e < router.n_experts; e += 32) row.sum += expf(own[e] - row.max_logit);
    row.sum = warp_sum(row.sum);
    return row;
}

/* One warp per row. Finds the k largest one by one, each by a tree over the lanes. */
__global__ void __launch_bounds__(THREADS) moe_gate(int n, const __grid_constant__ sn_moe_router router, float offset,
                                                    const float *logits, int32_t *ids, float *weights) {
    const int n_experts = router.n_experts, k = router.k;
    const bool by_sigmoid = router.scoring == SN_ROUTER_SIGMOID;
    int row = static_cast<int>(this_item() / 32), lane = this_lane();
    if (row >= n) return; /* by the whole warp */
    const float *own = logits + static_cast<size_t>(row) * n_experts;
    const gate_row scores = gate_row_of(router, own, lane);
    unsigned int taken = router.n_groups ? outside_of_groups(router, scores, lane) : 0;
    float max_logit = 0, sum = by_sigmoid ? offset : 0.0f; /* as the reference adds it */
    for (int j = 0; j < k; j++) {
        candidate best = {0, -1};
        for (int i = 0; i < PER_LANE && i * 32 + lane < n_experts; i++) {
            candidate c = {ranked(rank_of(router, scores, i * 32 + lane)), i * 32 + lane};
            if (!(taken >> i & 1) && ranks_before(c, best)) best = c;
        }
        best = first_of_warp(best);
        if (best.id % 32 == lane) taken |= 1u << best.id / 32;
        if (j == 0) max_logit = own[best.id];
        float e = by_sigmoid || router.correction ? score_of(scores, best.id) : expf(own[best.id] - max_logit);
        sum += e;
        if (lane == 0) {
            ids[static_cast<size_t>(row) * k + j] = best.id;
            weights[static_cast<size_t>(row) * k + j] = e;
        }
    }
    if (by_sigmoid && !router.normalised) sum = 1;
    if (!by_sigmoid && router.correction) sum = fmaxf(sum, 1e-12f); /* as the reference bounds it */
    if (router.scoring == SN_ROUTER_SOFTMAX_ALL) {
        sum = 0;
        for (int e = lane; e < n_experts; e += 32) sum += expf(own[e] - max_logit);
        sum = warp_sum(sum);
    }
    if (lane == 0)
        for (int j = 0; j < k; j++) {
            size_t at = static_cast<size_t>(row) * k + j;
            weights[at] *= router.scale / sum * (router.factors ? router.factors[ids[at]] : 1.0f);
        }
}

/* sum + a . b, one product after the other: moe_linear and moe_grouped must give the same bits. */
__device__ inline float add_products(float sum, float4 a, float4 b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/* The four integers of a word. */
__device__ inline float4 floats_of(unsigned int q) {
    return make_float4(static_cast<float>(byte_of(q, 0)), static_cast<float>(byte_of(q, 1)),
                       static_cast<float>(byte_of(q, 2)), static_cast<float>(byte_of(q, 3)));
}

/* What this lane adds to row `row` of w times x, which is aligned to 16 bytes in the quantised layouts. */
template <int LAYOUT> __device__ inline float lane_dot(const sn_cuda_matrix &w, int row, const float *x) {
    float sum = 0;
    if constexpr (is_float(LAYOUT)) {
        for (int at = this_lane() * 8; at < w.cols; at += 32 * 8) {
            float v[8];
            load_weights<LAYOUT>(w, row, at, v);
            for (int i = 0; i < 8 && at + i < w.cols; i++) sum = fmaf(v[i], x[at + i], sum);
        }
    } else {
        size_t groups = w.cols / 32;
#pragma unroll 2
        for (size_t g = this_lane(); g < groups; g += 32) {
            group v = load_group<LAYOUT>(w, row * groups + g);
            const float4 *at = reinterpret_cast<const float4 *>(x + 32 * g);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float dot = 0, total = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float4 a = at[4 * h + i];
                    dot = add_products(dot, floats_of(v.q[4 * h + i]), a);
                    total += a.x + a.y + a.z + a.w;
                }
                sum = fmaf(v.scale[h].x, dot, fmaf(v.scale[h].y, total, sum));
            }
        }
    }
    return sum;
}

/* One warp per output of a pair: blocks of outputs along x, pairs along y. */
template <int LAYOUT>
__global__ void __launch_bounds__(THREADS)
    moe_linear(const __grid_constant__ sn_cuda_experts experts, int k, const int32_t *ids, bool per_expert,
               const float *x, const float *bias, float *y, int per_pair) {
    int pair = static_cast<int>(blockIdx.x) / per_pair, rows = experts.first.rows, cols = experts.first.cols;
    int row = static_cast<int>(blockIdx.x) % per_pair * WARPS + static_cast<int>(threadIdx.x) / 32;
    if (row >= rows) return; /* by the whole warp */
    int e = ids[pair];
    if (e < 0) return;
    float sum = warp_sum(
        lane_dot<LAYOUT>(expert_at(experts, e), row, x + static_cast<size_t>(per_expert ? pair : pair / k) * cols));
    if (this_lane() == 0)
        y[static_cast<size_t>(pair) * rows + row] = bias ? sum + bias[static_cast<size_t>(e) * rows + row] : sum;
}

template <int LAYOUT>
cudaError_t launch_moe_linear(cudaStream_t stream, const sn_moe_selection &c, bool per_expert, const float *x,
                              const sn_cuda_experts &experts, const float *bias, float *y) {
    int per_pair = (experts.first.rows + WARPS - 1) / WARPS;
    auto *kernel = moe_linear<LAYOUT>;
    return SN_LAUNCH(kernel, static_cast<unsigned int>(c.n * c.k * per_pair), THREADS, 0, stream, experts, c.k, c.ids,
                     per_expert, x, bias, y, per_pair);
}

/* -- pairs grouped by expert */

constexpr int PAIRS = SN_CUDA_CHUNK_ROWS;
constexpr int GROUP_THREADS = 256, OUTPUTS = 4; /* of a block; outputs of each of its warps */
constexpr int BLOCK_OUTPUTS = GROUP_THREADS / 32 * OUTPUTS;
constexpr int PARTS = 8, TILE = PARTS * 128; /* columns in shared memory: of each lane, PARTS times four */
static_assert(PAIRS * OUTPUTS == 32, "a lane writes one result of its warp");

constexpr int LIST_WARPS = 16, LIST_THREADS = 32 * LIST_WARPS; /* of the block that groups pairs */

/* Where the pairs, chunks and tiles of each expert begin; ends: where those of all end. */
struct group_begins {
    int pairs[SN_EXPERTS_MAX + 1], chunks[SN_EXPERTS_MAX], tiles[SN_EXPERTS_MAX];
    int few_end, many_end, tiles_end;
};

/* From counts in begins.pairs. By one thread. */
__device__ void find_begins(group_begins &begins, int n_experts, int n_few) {
    int pair = 0, few = 0, many = n_few, tile = 0;
    for (int e = 0; e < n_experts; e++) {
        int n = begins.pairs[e], chunks = (n + PAIRS - 1) / PAIRS, &chunk = n < SN_CUDA_MANY_PAIRS ? few : many;
        begins.pairs[e] = pair;
        begins.chunks[e] = chunk;
        begins.tiles[e] = tile;
        pair += n;
        chunk += chunks;
        if (n >= SN_CUDA_MANY_PAIRS) tile += (n + SN_CUDA_TILE_PAIRS - 1) / SN_CUDA_TILE_PAIRS;
    }
    begins.pairs[n_experts] = pair;
    begins.few_end = few;
    begins.many_end = many;
    begins.tiles_end = tile;
}

/* Lists pairs [first, end) of an expert, `size` at a time. */
__device__ inline void list_parts(sn_cuda_chunk *parts, int expert, int first, int end, int size) {
    for (int at = first; at < end; at += size) *parts++ = sn_cuda_chunk{expert, at, min(size, end - at)};
}

__device__ inline void clear_parts(sn_cuda_chunk *parts, int first, int end) {
    for (int i = first + static_cast<int>(threadIdx.x); i < end; i += LIST_THREADS) parts[i].n = 0;
}

/* Adds the pairs that are this warp's share to counts, its own, by expert. With `order`, a pair is written there,
 * behind those of its expert that its warp has counted before. */
__device__ inline void count_pairs(int n_pairs, const int32_t *ids, int n_experts, int *counts, const int *begins,
                                   int32_t *order) {
    int lane = this_lane(), share = ((n_pairs + LIST_THREADS - 1) / LIST_THREADS) * 32;
    int first = static_cast<int>(threadIdx.x) / 32 * share, end = min(first + share, n_pairs);
    int next = first + lane < end ? ids[first + lane] : -1;
    for (int at = first; at < end; at += 32) {
        int pair = at + lane, e = next >= 0 && next < n_experts ? next : -1;
        next = pair + 32 < end ? ids[pair + 32] : -1;
        unsigned int alike = __match_any_sync(FULL_WARP, e);
        int before = __popc(alike & ((1u << lane) - 1)), counted = e >= 0 ? counts[e] : 0;
        if (e >= 0 && order) order[begins[e] + counted + before] = pair;
        __syncwarp(); /* all lanes have read their counts */
        if (e >= 0 && before == 0) counts[e] = counted + __popc(alike);
        __syncwarp();
    }
}

/* Turns the counts of each warp, (LIST_WARPS, n_experts), into how many pairs the warps before it have, and sets totals
 * to those of all. */
__device__ inline void add_counts(int n_experts, int *counts, int *totals) {
    for (int e = static_cast<int>(threadIdx.x); e < n_experts; e += LIST_THREADS) {
        int total = 0;
        for (int warp = 0; warp < LIST_WARPS; warp++) {
            int n = counts[warp * n_experts + e];
            counts[warp * n_experts + e] = total;
            total += n;
        }
        totals[e] = total;
    }
}

/* One block. Its warps share the pairs, and each reads its own twice: to count them, and to write them where those that
 * the warps before it have of the same expert end. So the pairs of an expert keep their order. */
__global__ void __launch_bounds__(LIST_THREADS)
    moe_group(int n_pairs, const int32_t *ids, int n_experts, const __grid_constant__ sn_cuda_groups g) {
    __shared__ group_begins begins;
    SN_SHARED_MEMORY(shared);
    int *counts = reinterpret_cast<int *>(shared), thread = static_cast<int>(threadIdx.x);
    int *own = counts + thread / 32 * n_experts;
    for (int i = thread; i < LIST_WARPS * n_experts; i += LIST_THREADS) counts[i] = 0;
    __syncthreads();
    count_pairs(n_pairs, ids, n_experts, own, nullptr, nullptr);
    __syncthreads();
    add_counts(n_experts, counts, begins.pairs);
    __syncthreads();
    if (thread == 0) find_begins(begins, n_experts, g.n_few);
    __syncthreads();
    count_pairs(n_pairs, ids, n_experts, own, begins.pairs, g.order);
    clear_parts(g.chunks, begins.few_end, g.n_few);
    clear_parts(g.chunks, begins.many_end, g.n_few + g.n_many);
    clear_parts(g.tiles, begins.tiles_end, g.n_tiles);
    for (int e = thread; e < n_experts; e += LIST_THREADS) {
        int first = begins.pairs[e], end = begins.pairs[e + 1];
        list_parts(g.chunks + begins.chunks[e], e, first, end, PAIRS);
        if (end - first >= SN_CUDA_MANY_PAIRS) list_parts(g.tiles + begins.tiles[e], e, first, end, SN_CUDA_TILE_PAIRS);
    }
}

/* Columns [begin, begin + TILE) of the rows of x of a chunk, with zeros beyond the last one: (PAIRS, PARTS, lanes). In
 * the quantised layouts a lane has 32 columns in a row, in the others eight of each 256, as in lane_dot. */
template <int LAYOUT>
__device__ inline void load_pairs(const sn_cuda_groups &g, sn_cuda_chunk c, const float *x, int cols, int begin,
                                  float4 *tile) {
    for (int item = static_cast<int>(threadIdx.x); item < c.n * (TILE / 4); item += GROUP_THREADS) {
        int pair = item / (TILE / 4), quad = item % (TILE / 4), at = begin + 4 * quad;
        int lane = is_float(LAYOUT) ? quad / 2 % 32 : quad / PARTS;
        int part = is_float(LAYOUT) ? quad / 64 * 2 + quad % 2 : quad % PARTS;
        const float *row = x + static_cast<size_t>(g.order[c.first + pair] / g.per_row) * cols;
        float4 v = make_float4(0, 0, 0, 0);
        if (!is_float(LAYOUT)) { /* whole groups, aligned */
            if (at < cols) v = *reinterpret_cast<const float4 *>(row + at);
        } else {
            v.x = at < cols ? row[at] : 0.0f, v.y = at + 1 < cols ? row[at + 1] : 0.0f;
            v.z = at + 2 < cols ? row[at + 2] : 0.0f, v.w = at + 3 < cols ? row[at + 3] : 0.0f;
        }
        tile[(pair * PARTS + part) * 32 + lane] = v;
    }
}

/* Adds to sums what this lane has of the tile from column `begin` on, for the outputs from `first` on and n pairs.
 * tile: the lane's. */
template <int LAYOUT>
__device__ inline void add_floats(const sn_cuda_matrix &w, int first, int begin, const float4 *tile, int n,
                                  float (&sums)[OUTPUTS][PAIRS]) {
    for (int part = 0; part < PARTS; part += 2) {
        int at = begin + part * 128 + this_lane() * 8;
        if (at >= w.cols) break;
        float v[OUTPUTS][8];
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) load_weights<LAYOUT>(w, min(first + r, w.rows - 1), at, v[r]);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            if (p >= n) break;
            float4 a = tile[(p * PARTS + part) * 32], b = tile[(p * PARTS + part + 1) * 32];
#pragma unroll
            for (int r = 0; r < OUTPUTS; r++)
                sums[r][p] = add_products(add_products(sums[r][p], make_float4(v[r][0], v[r][1], v[r][2], v[r][3]), a),
                                          make_float4(v[r][4], v[r][5], v[r][6], v[r][7]), b);
        }
    }
}

/* The same of a group of quantised weights; two outputs at a time, so that registers suffice. */
template <int LAYOUT>
__device__ inline void add_group(const sn_cuda_matrix &w, int first, int begin, const float4 *tile, int n,
                                 float (&sums)[OUTPUTS][PAIRS]) {
    size_t g = begin / 32 + this_lane(), groups = w.cols / 32;
    if (g >= groups) return;
#pragma unroll
    for (int r = 0; r < OUTPUTS; r += 2) {
        group v[2] = {load_group<LAYOUT>(w, min(first + r, w.rows - 1) * groups + g),
                      load_group<LAYOUT>(w, min(first + r + 1, w.rows - 1) * groups + g)};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float dot[2][PAIRS] = {}, total[PAIRS] = {};
#pragma unroll
            for (int i = 4 * h; i < 4 * h + 4; i++) {
                float4 one = floats_of(v[0].q[i]), two = floats_of(v[1].q[i]);
#pragma unroll
                for (int p = 0; p < PAIRS; p++) {
                    if (p >= n) break;
                    float4 a = tile[(p * PARTS + i) * 32];
                    dot[0][p] = add_products(dot[0][p], one, a);
                    dot[1][p] = add_products(dot[1][p], two, a);
                    total[p] += a.x + a.y + a.z + a.w;
                }
            }
#pragma unroll
            for (int p = 0; p < PAIRS; p++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    sums[r + k][p] = fmaf(v[k].scale[h].x, dot[k][p], fmaf(v[k].scale[h].y, total[p], sums[r + k][p]));
        }
    }
}

/* blockIdx.x: the block of outputs; blockIdx.y: the chunk. A lane multiplies its columns of each of its warp's outputs
 * with all pairs. */
template <int LAYOUT>
__global__ void __launch_bounds__(GROUP_THREADS, 2)
    moe_grouped(const __grid_constant__ sn_cuda_experts experts, const __grid_constant__ sn_cuda_groups g,
                const float *x, const float *bias, float *y) {
    SN_SHARED_MEMORY(shared);
    float4 *tile = reinterpret_cast<float4 *>(shared);
    sn_cuda_chunk c = g.chunks[blockIdx.y];
    if (c.n == 0) return; /* by the whole block */
    const sn_cuda_matrix w = expert_at(experts, c.expert);
    int lane = this_lane(), first = static_cast<int>(blockIdx.x) * BLOCK_OUTPUTS;
    first += static_cast<int>(threadIdx.x) / 32 * OUTPUTS;
    float sums[OUTPUTS][PAIRS] = {};
    for (int begin = 0; begin < w.cols; begin += TILE) {
        load_pairs<LAYOUT>(g, c, x, w.cols, begin, tile);
        __syncthreads();
        if constexpr (is_float(LAYOUT))
            add_floats<LAYOUT>(w, first, begin, tile + lane, c.n, sums);
        else
            add_group<LAYOUT>(w, first, begin, tile + lane, c.n, sums);
        __syncthreads(); /* all warps have read the tile; the next one replaces it */
    }
    float mine = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) {
            float sum = warp_sum(sums[r][p]);
            if (lane == p * OUTPUTS + r) mine = sum;
        }
    int p = lane / OUTPUTS, row = first + lane % OUTPUTS;
    if (p >= c.n || row >= w.rows) return;
    size_t pair = static_cast<size_t>(g.order[c.first + p]);
    y[pair * w.rows + row] = bias ? mine + bias[static_cast<size_t>(c.expert) * w.rows + row] : mine;
}

template <int LAYOUT>
cudaError_t launch_moe_grouped(cudaStream_t stream, const sn_cuda_groups &g, bool few, const float *x,
                               const sn_cuda_experts &experts, const float *bias, float *y) {
    auto *kernel = moe_grouped<LAYOUT>;
    dim3 grid(static_cast<unsigned int>((experts.first.rows + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS),
              static_cast<unsigned int>(few ? g.n_few : g.n_few + g.n_many));
    return SN_LAUNCH(kernel, grid, GROUP_THREADS, PAIRS * TILE * sizeof(float), stream, experts, g, x, bias, y);
}

__global__ void __launch_bounds__(THREADS)
    moe_combine(size_t n, int k, int width, const float *weights, const float *x, float *y) {
    size_t item = this_item();
    if (item >= n) return;
    size_t row = item / width, at = item % width;
    float sum = 0;
    for (int j = 0; j < k; j++) sum = fmaf(weights ? weights[row * k + j] : 1.0f, x[(row * k + j) * width + at], sum);
    y[item] = sum;
}

/* dx = dy . w. One thread computes 8 columns of a row, over all its experts in their order; with `per_expert`, of a
 * pair. */
template <int LAYOUT>
__global__ void __launch_bounds__(THREADS)
    moe_linear_grad(const __grid_constant__ sn_cuda_experts experts, size_t items, int per_item, const int32_t *ids,
                    const float *dy, bool accumulate, float *dx) {
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
            load_weights<LAYOUT>(w, r, at, v);
            for (int e = 0; e < 8; e++) sums[e] = fmaf(d, v[e], sums[e]);
        }
    }
    for (int e = 0; e < 8 && at + e < cols; e++) {
        float *to = dx + first * cols + at + e;
        *to = accumulate ? *to + sums[e] : sums[e];
    }
}

template <int LAYOUT>
cudaError_t launch_moe_linear_grad(cudaStream_t stream, const sn_moe_selection &c, bool per_expert, const float *dy,
                                   const sn_cuda_experts &experts, bool accumulate, float *dx) {
    size_t items = static_cast<size_t>(per_expert ? c.n * c.k : c.n) * ((experts.first.cols + 7) / 8);
    auto *kernel = moe_linear_grad<LAYOUT>;
    return SN_LAUNCH(kernel, blocks_for(items), THREADS, 0, stream, experts, items, per_expert ? 1 : c.k, c.ids, dy,
                     accumulate, dx);
}

/* One warp per pair; a lane reads only those elements of x that it writes in dx. */
__global__ void __launch_bounds__(THREADS)
    moe_combine_grad(int pairs, int k, int width, const float *weights, const float *x, const float *dy, float *dx,
                     float *dweights) {
    int pair = static_cast<int>(this_item() / 32);
    if (pair >= pairs) return;
    const float *d = dy + static_cast<size_t>(pair / k) * width, *own = x + static_cast<size_t>(pair) * width;
    float weight = weights ? weights[pair] : 1.0f, sum = 0;
    for (int i = this_lane(); i < width; i += 32) {
        sum += d[i] * own[i];
        dx[static_cast<size_t>(pair) * width + i] = weight * d[i];
    }
    sum = warp_sum(sum);
    if (this_lane() == 0) dweights[pair] = sum;
}

/* One warp per row. With w = scale * softmax(l): dl = w * (dw - sum(w dw) / scale), over the experts that the softmax
 * covers. With w = scale * s / sum(s) and s the sigmoid of l: the same times 1 - s; without the division dl = w * dw *
 * (1 - s). */
__global__ void __launch_bounds__(THREADS)
    moe_gate_grad(int n, const __grid_constant__ sn_moe_router router, const float *logits, const int32_t *ids,
                  const float *weights, const float *dweights, float *dlogits) {
    const int n_experts = router.n_experts, k = router.k;
    const bool by_sigmoid = router.scoring == SN_ROUTER_SIGMOID;
    int row = static_cast<int>(this_item() / 32), lane = this_lane();
    if (row >= n) return;
    size_t at = static_cast<size_t>(row) * n_experts, own = static_cast<size_t>(row) * k;
    float max_logit = logits[at + ids[own]], sum = 0, total = 0;
    for (int j = 0; j < k; j++) total += (weights ? weights[own + j] : 1.0f) * dweights[own + j];
    float mean = by_sigmoid && !router.normalised ? 0.0f : total / router.scale;
    for (int e = lane; e < n_experts; e += 32) sum += expf(logits[at + e] - max_logit);
    sum = warp_sum(sum);
    for (int e = lane; e < n_experts; e += 32) {
        float slope = by_sigmoid ? 1.0f - sigmoid(logits[at + e]) : 1.0f;
        float g = router.scoring == SN_ROUTER_SOFTMAX_ALL ? -(expf(logits[at + e] - max_logit) / sum) * total : 0.0f;
        for (int j = 0; j < k; j++)
            if (ids[own + j] == e) g = (weights ? weights[own + j] : 1.0f) * (dweights[own + j] - mean) * slope;
        dlogits[at + e] = g;
    }
}

} // namespace

extern "C" cudaError_t sn_cuda_moe_gate(cudaStream_t stream, int n, const sn_moe_router *router, const float *logits,
                                        int32_t *ids, float *weights) {
    return SN_LAUNCH(moe_gate, blocks_for(static_cast<size_t>(n) * 32), THREADS, 0, stream, n, *router,
                     sn_router_offset(router), logits, ids, weights);
}

extern "C" cudaError_t sn_cuda_moe_linear(cudaStream_t stream, const sn_moe_selection *selection, bool per_expert,
                                          const float *x, const sn_cuda_experts *experts, const float *bias, float *y) {
#define CALL(layout) launch_moe_linear<layout>(stream, *selection, per_expert, x, *experts, bias, y)
    BY_LAYOUT(experts->first.layout, SN_CUDA_QUANT_CASES);
#undef CALL
}

extern "C" cudaError_t sn_cuda_moe_group(cudaStream_t stream, const sn_moe_selection *c, const sn_cuda_groups *groups) {
    const size_t shared = LIST_WARPS * sizeof(int) * static_cast<size_t>(c->n_experts);
    cudaError_t error =
        cudaFuncSetAttribute(moe_group, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
    return SN_LAUNCH(moe_group, 1, LIST_THREADS, shared, stream, c->n * c->k, c->ids, c->n_experts, *groups);
}

extern "C" cudaError_t sn_cuda_moe_grouped(cudaStream_t stream, const sn_cuda_groups *groups, bool few, const float *x,
                                           const sn_cuda_experts *experts, const float *bias, float *y) {
#define CALL(layout) launch_moe_grouped<layout>(stream, *groups, few, x, *experts, bias, y)
    BY_LAYOUT(experts->first.layout, SN_CUDA_QUANT_CASES_OF_ANY);
#undef CALL
}

extern "C" cudaError_t sn_cuda_moe_combine(cudaStream_t stream, const sn_moe_selection *selection, int width,
                                           const float *x, float *y) {
    size_t items = static_cast<size_t>(selection->n) * width;
    return SN_LAUNCH(moe_combine, blocks_for(items), THREADS, 0, stream, items, selection->k, width, selection->weights,
                     x, y);
}

extern "C" cudaError_t sn_cuda_moe_linear_grad(cudaStream_t stream, const sn_moe_selection *selection, bool per_expert,
                                               const float *dy, const sn_cuda_experts *experts, bool accumulate,
                                               float *dx) {
#define CALL(layout) launch_moe_linear_grad<layout>(stream, *selection, per_expert, dy, *experts, accumulate, dx)
    BY_LAYOUT(experts->first.layout, SN_CUDA_QUANT_CASES_OF_ANY);
#undef CALL
}

extern "C" cudaError_t sn_cuda_moe_combine_grad(cudaStream_t stream, const sn_moe_selection *selection, int width,
                                                const float *x, const float *dy, float *dx, float *dweights) {
    int pairs = selection->n * selection->k;
    return SN_LAUNCH(moe_combine_grad, blocks_for(static_cast<size_t>(pairs) * 32), THREADS, 0, stream, pairs,
                     selection->k, width, selection->weights, x, dy, dx, dweights);
}

extern "C" cudaError_t sn_cuda_moe_gate_grad(cudaStream_t stream, const sn_moe_selection *selection,
                                             const sn_moe_router *router, const float *logits, const float *dweights,
                                             float *dlogits) {
    return SN_LAUNCH(moe_gate_grad, blocks_for(static_cast<size_t>(selection->n) * 32), THREADS, 0, stream,
                     selection->n, *router, logits, selection->ids, selection->weights, dweights, dlogits);
}

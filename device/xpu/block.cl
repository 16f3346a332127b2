/* The operations of a block that do not involve weight matrices. OpenCL C 1.2 without extensions and subgroups. A sum
 * along a row has an order that depends on the shape alone: the same bits from run to run. */

#include "device/xpu/formulas.clh"

/* -- operations on rows and elements */

/* Zhang & Sennrich 2019. One group of 64 per row; y may be x or `more`. With `more`, x + more takes the place of x.
 * With q, y is quantised besides. Row i has the factors i % groups. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
rms_norm(uint width, __global float *x, __global const float *weight, float eps, __global float *y,
         __global const float *more, __global char *q, __global float2 *scales, uint groups) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t row = (size_t)get_group_id(0) * width;
    float sum = 0.0f;
    weight += get_group_id(0) % groups * width;
    for (uint i = lane; i < width; i += 64) {
        float v = x[row + i];
        if (more) x[row + i] = v += more[row + i];
        sum += v * v;
    }
    float scale = 1.0f / sqrt(group_sum(sum, partial) / (float)width + eps);
    for (uint i = lane; i < width; i += 64) y[row + i] = x[row + i] * scale * weight[i];
    if (!q) return;
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (uint g = lane; g < width / 32; g += 64) quantise_group(y, row / 32 + g, q, scales);
}

/* x in 8 bits; an item takes a group of 32 elements. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void quantise(ulong n_groups, __global const float *x,
                                                                       __global char *q, __global float2 *scales) {
    size_t group = get_global_id(0);
    if (group < n_groups) quantise_group(x, group, q, scales);
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
    rotate_pair(x + (size_t)head * head_dim, pair, rotate_half, pairs, cos_sin + (size_t)token * pairs * 2);
}

/* With q, y is quantised besides; n is then a multiple of 32. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void activate(ulong n, uint kind, __global const float *gate,
                                                                       __global const float *up, __global float *y,
                                                                       __global char *q, __global float2 *scales) {
    size_t i = get_global_id(0);
    if (i < n) y[i] = activation(kind, gate[i]) * (up ? factor(kind, up[i]) : 1.0f);
    if (!q) return;
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (i < n && i % 32 == 0) quantise_group(y, i / 32, q, scales);
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

/* x (n) = min(max(x, low), high); NaN stays. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void clamp_all(ulong n, __global float *x, float low,
                                                                        float high) {
    size_t i = get_global_id(0);
    if (i < n) x[i] = x[i] < low ? low : x[i] > high ? high : x[i];
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

/* -- mixtures of experts */

/* By what experts are chosen. */
typedef struct router {
    uint n_experts, scoring, n_groups, n_groups_used;
    __global const float *logits, *correction;
    float max_score, sum; /* of the softmax of all logits, where that and the correction choose */
} router;

static float score_of(router r, int e) {
    return r.scoring == BY_SIGMOID ? sigmoid(r.logits[e]) : exp(r.logits[e] - r.max_score) / r.sum;
}

/* The rank of expert e; NaN ranks last. */
static float rank_of(router r, int e) {
    float rank = r.correction                            ? score_of(r, e) + r.correction[e]
                 : r.n_groups && r.scoring == BY_SIGMOID ? sigmoid(r.logits[e]) /* groups compare sums of scores */
                                                         : r.logits[e];
    return isnan(rank) ? -INFINITY : rank;
}

/* Whether expert b ranks before a (-1: none): the larger rank, of equal ones the lower id. */
static bool comes_before(router r, int b, int a) {
    if (b < 0 || a < 0) return a < 0 && b >= 0;
    float vb = rank_of(r, b), va = rank_of(r, a);
    return vb > va || (vb == va && b < a);
}

/* A bit for each of an item's experts that lies outside of the best groups. A group is as good as its best expert, or
 * with the sigmoid as its two best ones together. ranks and used: of 1024. */
static uint outside_of_groups(router r, __local float *ranks, __local uchar *used) {
    uint lane = get_local_id(0), size = r.n_experts / r.n_groups, outside = 0;
    for (uint g = lane; g < r.n_groups; g += 64) {
        float first = -INFINITY, second = -INFINITY;
        for (uint e = g * size; e < (g + 1) * size; e++) {
            float rank = rank_of(r, e);
            second = fmax(second, fmin(first, rank));
            first = fmax(first, rank);
        }
        ranks[g] = r.scoring == BY_SIGMOID && size > 1 ? first + second : first;
        used[g] = 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint j = 0; j < r.n_groups_used && lane == 0; j++) {
        int best = -1;
        for (uint g = 0; g < r.n_groups; g++)
            if (!used[g] && (best < 0 || ranks[g] > ranks[best])) best = g;
        used[best] = 1;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; 64 * i + lane < r.n_experts; i++)
        if (!used[(64 * i + lane) / size]) outside |= 1u << i;
    return outside;
}

/* One group of 64 per row: the k largest ranks and their weights. An item looks at every 64th of up to 1024. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
moe_gate(uint n_experts, uint k, uint scoring, __global const float *correction, uint normalised, float scale_all,
         uint n_groups, uint n_groups_used, float offset, __global const float *factors, __global const float *logits,
         __global int *ids, __global float *weights) {
    __local int best[64];
    __local float partial[64], ranks[1024];
    __local uchar used[1024];
    uint lane = get_local_id(0), taken = 0;
    size_t row = get_group_id(0);
    logits += row * n_experts;
    ids += row * k;
    weights += row * k;
    router r = {n_experts, scoring, n_groups, n_groups_used, logits, correction, -INFINITY, 0.0f};
    if (correction && scoring != BY_SIGMOID) {
        for (uint e = 0; e < n_experts; e++) r.max_score = fmax(r.max_score, logits[e]); /* in every item alike */
        for (uint e = 0; e < n_experts; e++) r.sum += exp(logits[e] - r.max_score);
    }
    if (n_groups) taken = outside_of_groups(r, ranks, used);
    float max_score = 0.0f, sum = scoring == BY_SIGMOID ? offset : 0.0f; /* as the reference adds it */
    for (uint j = 0; j < k; j++) {
        int own = -1;
        for (uint i = 0; 64 * i + lane < n_experts; i++)
            if (!(taken >> i & 1) && comes_before(r, 64 * i + lane, own)) own = 64 * i + lane;
        best[lane] = own;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint half_count = 32; half_count > 0; half_count /= 2) {
            if (lane < half_count && comes_before(r, best[lane + half_count], best[lane]))
                best[lane] = best[lane + half_count];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        uint chosen = best[0];
        barrier(CLK_LOCAL_MEM_FENCE); /* all items have read it */
        if (chosen % 64 == lane) taken |= 1u << chosen / 64;
        if (j == 0) max_score = logits[chosen];
        float e = scoring == BY_SIGMOID || correction ? score_of(r, chosen) : exp(logits[chosen] - max_score);
        sum += e;
        if (lane == 0) ids[j] = chosen, weights[j] = e;
    }
    if (scoring == BY_SIGMOID && !normalised) sum = 1.0f;
    if (scoring != BY_SIGMOID && correction) sum = fmax(sum, 1e-12f); /* as the reference bounds it */
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
        for (uint j = 0; j < k; j++) weights[j] *= scale_all / sum * (factors ? factors[ids[j]] : 1.0f);
}

#define CHUNK_PAIRS 8
#define EXPERTS_MAX 1024

/* Groups pairs of a row and an expert by expert: `order` has the pairs, those of an expert next to each other, and a
 * chunk {first place in the order, number of pairs, expert, 0} is up to 8 of one expert. Chunks that are not needed
 * have no pairs; a pair without an expert (below 0) is in none. In which place of a chunk a pair lies is left open,
 * since no result depends on it. One group. */
__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void moe_group(uint n_pairs, uint n_experts, uint n_chunks,
                                                                         __global const int *ids, __global int *order,
                                                                         __global uint4 *chunks) {
    __local uint counts[EXPERTS_MAX], ends[EXPERTS_MAX], first_chunks[EXPERTS_MAX], used[1];
    uint lane = get_local_id(0);
    for (uint e = lane; e < n_experts; e += 128) counts[e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lane; i < n_pairs; i += 128)
        if ((uint)ids[i] < n_experts) atomic_inc(&counts[ids[i]]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {
        uint place = 0, chunk = 0;
        for (uint e = 0; e < n_experts; e++) {
            ends[e] = place;
            first_chunks[e] = chunk;
            place += counts[e];
            chunk += (counts[e] + CHUNK_PAIRS - 1) / CHUNK_PAIRS;
        }
        used[0] = chunk;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lane; i < n_pairs; i += 128)
        if ((uint)ids[i] < n_experts) order[atomic_inc(&ends[ids[i]])] = i; /* it ends behind the expert's last pair */
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint e = lane; e < n_experts; e += 128)
        for (uint at = 0; at < counts[e]; at += CHUNK_PAIRS)
            chunks[first_chunks[e] + at / CHUNK_PAIRS] =
                (uint4)(ends[e] - counts[e] + at, min((uint)CHUNK_PAIRS, counts[e] - at), e, 0);
    for (uint i = used[0] + lane; i < n_chunks; i += 128) chunks[i] = (uint4)(0);
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

#include "device/xpu/chosen.clh"
#include "device/xpu/delta.clh"

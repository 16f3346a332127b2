/* Attention whose keys are split into parts, one for each thread block: which part a block has, and joining them.
 *
 * How many parts a row has depends on its length, which only the device knows: a recorded graph is replayed at other
 * lengths. A launch has blocks for the most parts; those without keys leave at once, and do not count. Of the others
 * the one that finishes last joins the parts of all, in the order of the parts, so that the bits do not depend on which
 * it is. A row of one part is not written to memory in between. */
#ifndef SN_DEVICE_CUDA_SPLIT_CUH
#define SN_DEVICE_CUDA_SPLIT_CUH

#include "device/cuda/kernels.cuh"

namespace {

constexpr int PART_KEYS = 64; /* the smallest part of a row's keys, but for the last one */

/* Keys [first, end) of a row that has n parts; none: first is not below end. */
struct key_part {
    int first, end, n;
};

__device__ inline key_part part_of(int position, int window, int part, int n_splits) {
    int begin = window_start(position, window), seen = position + 1 - begin;
    int share = max(PART_KEYS, (seen + n_splits - 1) / n_splits), first = begin + part * share;
    return key_part{first, min(first + share, position + 1), (seen + share - 1) / share};
}

/* Counts the blocks that have written their part, of n; true in the last one, which may then read what all of them have
 * written. The counter is 0 before and after. All threads of a block call it. */
__device__ inline bool arrives_last(unsigned int *counter, int n) {
    __shared__ bool last;
    __threadfence(); /* what this thread has written is seen before the block counts */
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned int most = static_cast<unsigned int>(n) - 1;
        last = atomicInc(counter, most) == most; /* which sets it to 0 there */
    }
    __syncthreads();
    if (last) __threadfence(); /* and what others have written is read after they have counted */
    return last;
}

/* The parts of several heads, in the device's memory or, if there is one part, in shared memory: the largest score and
 * the sum of exponentials of part j of head h lie at h * head_stats + j * 2, its sums at h * head_sums + j * dims. */
struct all_parts {
    const float *largest, *total, *sums;
    int n, head_stats, head_sums, dims;
};

/* weights (heads, SN_CUDA_SPLITS): by what each part's sums are multiplied; totals (heads): by what their sum is
 * divided. A sink has the value 0; a part whose scores were all -infinity has a total of 0. A warp has a head. */
template <int THREADS>
__device__ inline void weigh_parts(const all_parts &p, int heads, const float *sinks, float *weights, float *totals) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    for (int h = static_cast<int>(threadIdx.x) / 32; h < heads; h += THREADS / 32) {
        const float *own_largest = p.largest + h * p.head_stats, *own_total = p.total + h * p.head_stats;
        float sink = sinks ? sinks[h] : -INFINITY, largest = sink, total = 0;
        for (int j = lane; j < p.n; j += 32)
            if (own_total[2 * j] != 0) largest = fmaxf(largest, own_largest[2 * j]);
        largest = warp_max(largest);
        for (int j = lane; j < p.n; j += 32) {
            float weight = own_total[2 * j] != 0 ? expf(own_largest[2 * j] - largest) : 0.0f;
            weights[h * SN_CUDA_SPLITS + j] = weight;
            total += weight * own_total[2 * j];
        }
        total = warp_sum(total);
        if (sinks) total += expf(sink - largest);
        if (lane == 0) totals[h] = total;
    }
    __syncthreads();
}

/* Element i of head h. */
__device__ inline float joined(const all_parts &p, const float *weights, const float *totals, int h, int i) {
    const float *sums = p.sums + h * p.head_sums + i, *own = weights + h * SN_CUDA_SPLITS;
    float sum = 0;
#pragma unroll 4
    for (int j = 0; j < p.n; j++) sum += own[j] * sums[j * p.dims];
    return sum / totals[h];
}

} // namespace

#endif

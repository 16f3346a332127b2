#include "tests/support/cuda_stand_in/mistakes.h"

#include <cuda_fp16.h>

namespace {

constexpr int THREADS = 64, SHARED = THREADS * sizeof(float);

/* Thread t stores to shared[t] and loads what its neighbour has stored; `wait` is between the two. */
template <class Wait> __device__ void exchange(float *shared, float *memory, int distance, Wait wait) {
    int t = static_cast<int>(threadIdx.x), other = t ^ distance;
    shared[t] = memory[t];
    wait();
    memory[t] = shared[other];
}

__device__ void barrier_unless(bool mistake) {
    if (!mistake) __syncthreads();
}

__global__ void alignment(float *memory, float *, bool make) {
    const float4 *at = reinterpret_cast<const float4 *>(memory + (make ? 2 : 4));
    float4 x = *at;
    if (threadIdx.x == 0) memory[0] = x.x + x.y + x.z + x.w;
}
__global__ void beyond_allocation(float *memory, float *, bool make) {
    memory[threadIdx.x + (make ? 1 : 0)] = 1;
}
__global__ void before_allocation(float *memory, float *, bool make) {
    float x = memory[static_cast<int>(threadIdx.x) - (make ? 1 : 0)];
    memory[threadIdx.x] = x + 1;
}
__global__ void beyond_shared(float *, float *, bool make) {
    SN_SHARED_MEMORY(shared);
    reinterpret_cast<float *>(shared)[threadIdx.x + (make ? 1 : 0)] = 1;
}
__global__ void read_of_a_store(float *memory, float *, bool make) {
    SN_SHARED_MEMORY(shared);
    exchange(reinterpret_cast<float *>(shared), memory, 32, [=] { barrier_unless(make); });
}
__global__ void store_over_a_read(float *memory, float *, bool make) {
    SN_SHARED_MEMORY(shared);
    float *floats = reinterpret_cast<float *>(shared);
    int t = static_cast<int>(threadIdx.x);
    floats[t] = memory[t];
    __syncthreads();
    float x = floats[t ^ 32];
    barrier_unless(make);
    floats[t] = x + memory[t];
}
__global__ void store_over_a_store(float *memory, float *, bool make) {
    SN_SHARED_MEMORY(shared);
    reinterpret_cast<float *>(shared)[make ? 0 : threadIdx.x] = memory[threadIdx.x];
}
__global__ void in_an_array(float *memory, float *, bool make) {
    __shared__ float shared[THREADS];
    exchange(shared, memory, 32, [=] { barrier_unless(make); });
}
__global__ void a_shuffle_orders(float *memory, float *, bool make) {
    SN_SHARED_MEMORY(shared);
    exchange(reinterpret_cast<float *>(shared), memory, 1, [=] {
        if (make)
            __shfl_xor_sync(0xffffffffu, 1.0f, 1);
        else
            __syncwarp();
    });
}
__global__ void host_memory(float *memory, float *host, bool make) {
    (make ? host : memory)[threadIdx.x] = 1;
}

/* Two blocks store eight numbers each, and the one that is done last adds up all of them. */
template <class Counts> __device__ void add_up(float *memory, bool fence_stores, bool fence_loads, Counts counts) {
    __shared__ bool last;
    int t = static_cast<int>(threadIdx.x);
    if (t < 8) memory[blockIdx.x * 8 + t] = 1;
    if (fence_stores) __threadfence();
    __syncthreads();
    if (t == 0) last = counts(reinterpret_cast<unsigned *>(memory + THREADS - 1)) == 1;
    __syncthreads();
    if (!last) return;
    if (fence_loads) __threadfence();
    if (t < 8) memory[16 + t] = memory[t] + memory[8 + t];
}
__device__ unsigned counted(unsigned *counter) { return atomicInc(counter, 1); }
__global__ void others_memory(float *memory, float *, bool make) {
    if (threadIdx.x < 8) memory[(make ? 0 : blockIdx.x * 8) + threadIdx.x] = 1;
}
__global__ void no_store_fence(float *memory, float *, bool make) { add_up(memory, !make, true, counted); }
__global__ void no_load_fence(float *memory, float *, bool make) { add_up(memory, true, !make, counted); }
__global__ void no_counter(float *memory, float *, bool make) {
    add_up(memory, true, true, [=](unsigned *counter) { return make ? 1u : counted(counter); });
}

} // namespace

extern "C" cudaError_t cuda_mistake_launch(cudaStream_t stream, cuda_mistake which, bool make, float *memory,
                                           float *host) {
    using kernel = void (*)(float *, float *, bool);
    static const kernel kernels[CUDA_MISTAKES] = {
        alignment,         beyond_allocation,  before_allocation, beyond_shared,    read_of_a_store,
        store_over_a_read, store_over_a_store, in_an_array,       a_shuffle_orders, host_memory,
        others_memory,     no_store_fence,     no_load_fence,     no_counter};
    return SN_LAUNCH(kernels[which], dim3(which < CUDA_MISTAKE_OTHERS_MEMORY ? 1 : 2), THREADS, SHARED, stream, memory, host, make);
}

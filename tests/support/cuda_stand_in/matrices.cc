#include "tests/support/cuda_stand_in/matrices.h"

#include "device/cuda/mma.cuh"

namespace {

constexpr int A = 16 * 16, B = 16 * 8, D = 16 * 8;

/* The factors as floats in shared memory: a (16, 8), and the transposed b (8, 8). */
__device__ void multiply_tf32(float d[4], const uint32_t *a, const uint32_t *b) {
    int r = static_cast<int>(threadIdx.x) / 4, c = static_cast<int>(threadIdx.x) % 4;
    const unsigned wa[4] = {a[8 * r + c], a[8 * (r + 8) + c], a[8 * r + c + 4], a[8 * (r + 8) + c + 4]};
    const unsigned wb[2] = {b[8 * r + c], b[8 * r + c + 4]};
    mma_tf32(d, wa, wb);
}

__global__ void multiply(cuda_matrices m) {
    SN_SHARED_MEMORY(shared);
    uint16_t *a = reinterpret_cast<uint16_t *>(shared), *b = a + A;
    int lane = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    copy_begin(a + 8 * lane, static_cast<const uint16_t *>(m.a) + block * A + 8 * lane, true);
    copies_end_group();
    if (lane < 16) copy_begin(b + 8 * lane, static_cast<const uint16_t *>(m.b) + block * B + 8 * lane, true);
    copies_end_group();
    if (m.waits_for == 2)
        copies_wait<0>();
    else
        copies_wait<1>();
    __syncwarp();

    unsigned wa[4], wb[4];
    float d[4], *out = m.d + block * D + lane / 4 * 8 + 2 * (lane % 4);
    for (int i = 0; i < 4; i++) d[i] = out[i / 2 * 64 + i % 2];
    load_matrices(wa, a + lane % 16 * 16 + lane / 16 * 8);
    load_matrices(wb, b + lane % 8 * 16 + lane / 8 % 2 * 8);
    if (m.type == CUDA_TF32)
        multiply_tf32(d, reinterpret_cast<const uint32_t *>(a), reinterpret_cast<const uint32_t *>(b));
    else if (m.type == CUDA_F16)
        mma_f16(d, wa, wb);
    else
        mma_bf16(d, wa, wb);
    for (int i = 0; i < 4; i++) out[i / 2 * 64 + i % 2] = d[i];
}

} // namespace

extern "C" cudaError_t cuda_matrices_launch(cudaStream_t stream, int blocks, const cuda_matrices *m) {
    return SN_LAUNCH(multiply, blocks, 32, (A + B) * sizeof(uint16_t), stream, *m);
}

#include "tests/support/cuda_stand_in/matrices.h"

#include "device/cuda/mma.cuh"

namespace {

constexpr int A = 16 * 16, B = 16 * 8, D = 16 * 8;

__global__ void multiply(cuda_matrices m) {
    SN_SHARED_MEMORY(shared);
    uint16_t *a = reinterpret_cast<uint16_t *>(shared), *b = a + A;
    int lane = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    copy_begin(a + 8 * lane, m.a + block * A + 8 * lane, true);
    copies_end_group();
    if (lane < 16) copy_begin(b + 8 * lane, m.b + block * B + 8 * lane, true);
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
    if (m.transposed)
        load_transposed(wb, b + lane % 16 * 8);
    else
        load_matrices(wb, b + lane % 8 * 16 + lane / 8 % 2 * 8);
    if (m.halves)
        mma_f16(d, wa, wb);
    else
        mma_bf16(d, wa, wb);
    for (int i = 0; i < 4; i++) out[i / 2 * 64 + i % 2] = d[i];
}

} // namespace

extern "C" cudaError_t cuda_matrices_launch(cudaStream_t stream, int blocks, const cuda_matrices *m) {
    return SN_LAUNCH(multiply, blocks, 32, (A + B) * sizeof(uint16_t), stream, *m);
}

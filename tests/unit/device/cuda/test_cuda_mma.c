/* The stand-in's products by a warp, its loads of their factors and its copies to shared memory do what the PTX ISA
 * says: every element differs from all others, so that a wrong place shows. */
#include "base/dtype.h"
#include "tests/support/cuda_stand_in/matrices.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 16, COLS = 8, INNER = 16, BLOCKS = 4, A_BYTES = 2 * ROWS * INNER, B_BYTES = 2 * INNER * COLS };

static cudaStream_t stream;

static void *on_device(const void *host, size_t bytes) {
    void *at;
    cr_assert_eq(cudaMalloc(&at, bytes), cudaSuccess);
    cr_assert_eq(cudaMemcpyAsync(at, host, bytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
    return at;
}

/* Stores a number of 0 to 255, exact in each type, as element i. */
static void put(cuda_number type, void *to, int i, int x) {
    if (type == CUDA_TF32)
        ((float *)to)[i] = (float)x;
    else
        ((uint16_t *)to)[i] = type == CUDA_F16 ? sn_f32_to_f16((float)x) : sn_f32_to_bf16((float)x);
}

static int a_at(int block, int row, int k) { return (row * INNER + k + 37 * block) % 256; }
static int b_at(int block, int k, int col) { return (k * COLS + col + 29 * block) % 256; }

/* The number of wrong elements of the products. */
static int count_wrong(cuda_number type, int waits_for) {
    float a[BLOCKS][A_BYTES / sizeof(float)], b[BLOCKS][B_BYTES / sizeof(float)], d[BLOCKS][ROWS][COLS];
    int inner = type == CUDA_TF32 ? INNER / 2 : INNER;
    for (int n = 0; n < BLOCKS; n++) {
        for (int i = 0; i < ROWS * inner; i++) put(type, a[n], i, a_at(n, i / inner, i % inner));
        for (int k = 0; k < inner; k++)
            for (int col = 0; col < COLS; col++) put(type, b[n], col * inner + k, b_at(n, k, col));
        for (int i = 0; i < ROWS * COLS; i++) d[n][i / COLS][i % COLS] = (float)(1000 * i);
    }
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cuda_matrices m = {type, waits_for, on_device(a, sizeof a), on_device(b, sizeof b), on_device(d, sizeof d)};
    cr_assert_eq(cuda_matrices_launch(stream, BLOCKS, &m), cudaSuccess);
    cr_assert_eq(cudaMemcpyAsync(d, m.d, sizeof d, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) continue;
    int wrong = 0;
    for (int n = 0; n < BLOCKS; n++)
        for (int i = 0; i < ROWS * COLS; i++) {
            int want = 1000 * i;
            for (int k = 0; k < inner; k++) want += a_at(n, i / COLS, k) * b_at(n, k, i % COLS);
            wrong += d[n][i / COLS][i % COLS] != (float)want;
        }
    return wrong;
}

Test(cuda_mma, products_have_every_element_in_its_place) {
    for (cuda_number type = CUDA_BF16; type < CUDA_NUMBERS; type++)
        cr_expect_eq(count_wrong(type, 2), 0, "type %d", (int)type);
}

Test(cuda_mma, copies_that_are_not_waited_for_are_seen) { cr_expect_gt(count_wrong(CUDA_BF16, 1), 0); }

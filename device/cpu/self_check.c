/* The comparison of two tables of kernels, bit by bit: for kernels that no test has run on a processor of that kind. */
#include "device/cpu/kernels.h"

#include <string.h>

/* A product that meets every border of the tiles: numbers of rows of x and of the weight that are not multiples of 16,
 * and more k than a stage holds. */
enum { N = 21, ROWS = 41, PANELS = 3, GROUPS = 24, COLS = GROUPS * SN_QUANT_GROUP, GROUP_BYTES_MAX = 544 };

static const sn_dtype products[] = {SN_Q8_0, SN_Q2_K}; /* tiles of 32 k and of 16 k; without offsets and with them */

static uint32_t lcg_next(uint32_t *state) { return (*state = *state * 1664525 + 1013904223) >> 8; }

/* Random codes and scales; the halves among these are of ordinary size. */
static void random_block(sn_dtype t, uint8_t *block, uint32_t *random) {
    const size_t head = sn_cpu_head_bytes(t), halves = head ? 0 : sn_cpu_code_bytes(t),
                 end = head ? head : sn_cpu_group_bytes(t);
    for (size_t i = 0; i < sn_cpu_block_bytes(t); i++) block[i] = (uint8_t)lcg_next(random);
    for (size_t at = halves; at < end; at += 2) {
        const uint16_t half = (uint16_t)(0x2c00 | (lcg_next(random) & 0x83ff));
        memcpy(block + at, &half, sizeof half);
    }
}

bool sn_cpu_kernels_bit_equal(const sn_cpu_kernels *a, const sn_cpu_kernels *b) {
    _Alignas(64) uint8_t data[PANELS * GROUPS * GROUP_BYTES_MAX];
    _Alignas(64) sn_xblock xq[N * (GROUPS + 1)];
    float x[COLS], y[2][N * ROWS];
    uint32_t random = 1;
    for (size_t row = 0; row < N; row++) {
        for (size_t k = 0; k < COLS; k++) x[k] = (float)lcg_next(&random) * 0x1p-23f - 1;
        b->quantize(COLS, x, xq + row * (GROUPS + 1));
    }
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const sn_dtype t = products[i];
        const size_t blocks = COLS / sn_cpu_block(t), bytes = sn_cpu_block_bytes(t);
        for (size_t block = 0; block < PANELS * blocks; block++) random_block(t, data + block * bytes, &random);
        sn_linear_job job = {
            .weight = {t, ROWS, COLS, blocks, blocks * bytes, PANELS, data}, .n = N, .xq = xq, .xq_stride = GROUPS + 1};
        memset(y, 0, sizeof y);
        job.y = y[0];
        a->linear(&job, 0, PANELS);
        job.y = y[1];
        b->linear(&job, 0, PANELS);
        if (memcmp(y[0], y[1], sizeof y[0])) return false;
    }
    return true;
}

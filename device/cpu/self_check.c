/* The comparison of two tables of kernels, bit by bit: for kernels that no test has run on a processor of that kind. */
#include "device/cpu/kernels.h"

#include <string.h>

/* A product that meets every border of the tiles: numbers of rows of x and of the weight that are not multiples of 16,
 * and more k than a stage holds. */
enum { N = 21, ROWS = 41, PANELS = 3, GROUPS = 17, COLS = GROUPS * SN_QUANT_GROUP };

static const struct {
    sn_layout layout;
    size_t block_bytes;
} products[] = {{SN_LAYOUT_Q8_HALF, 544},
                {SN_LAYOUT_Q8_FINE, 768}}; /* tiles of 32 k and of 16 k; without offsets and with them */

static uint32_t lcg_next(uint32_t *state) { return (*state = *state * 1664525 + 1013904223) >> 8; }

/* Random quants, and scales of ordinary size. */
static void random_block(sn_layout layout, uint8_t *block, uint32_t *random) {
    for (size_t i = 0; i < SN_Q8_BYTES; i++) block[i] = (uint8_t)lcg_next(random);
    for (size_t lane = 0; lane < (layout == SN_LAYOUT_Q8_HALF ? 1 : 4) * SN_LANES; lane++) {
        const uint16_t half = (uint16_t)(0x2c00 | (lcg_next(random) & 0x83ff));
        const float wide = (float)lcg_next(random) * 0x1p-27f - 0.0625f;
        if (layout == SN_LAYOUT_Q8_HALF)
            memcpy(block + SN_Q8_BYTES + 2 * lane, &half, sizeof half);
        else
            memcpy(block + SN_Q8_BYTES + 4 * lane, &wide, sizeof wide);
    }
}

bool sn_cpu_kernels_bit_equal(const sn_cpu_kernels *a, const sn_cpu_kernels *b) {
    _Alignas(64) uint8_t data[PANELS * GROUPS * 768];
    _Alignas(64) sn_xblock xq[N * (GROUPS + 1)];
    float x[COLS], y[2][N * ROWS];
    uint32_t random = 1;
    for (size_t row = 0; row < N; row++) {
        for (size_t k = 0; k < COLS; k++) x[k] = (float)lcg_next(&random) * 0x1p-23f - 1;
        b->quantize(COLS, x, xq + row * (GROUPS + 1));
    }
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const size_t bytes = products[i].block_bytes;
        for (size_t block = 0; block < PANELS * GROUPS; block++)
            random_block(products[i].layout, data + block * bytes, &random);
        sn_linear_job job = {.weight = {products[i].layout, ROWS, COLS, GROUPS, GROUPS * bytes, PANELS, data},
                             .n = N,
                             .xq = xq,
                             .xq_stride = GROUPS + 1};
        memset(y, 0, sizeof y);
        job.y = y[0];
        a->linear(&job, 0, PANELS);
        job.y = y[1];
        b->linear(&job, 0, PANELS);
        if (memcmp(y[0], y[1], sizeof y[0])) return false;
    }
    return true;
}

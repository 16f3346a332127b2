/* The speed of AMX's kernels as far as a processor without AMX can measure it: the time of their vector instructions
 * without the tile instructions (unpacking weights, scaling integers), compared with the AVX-512 kernels, which do
 * all of it with vectors. The results are wrong; the time is the least that the AMX kernels would take on this
 * processor. GOP/s as if products had been computed. The kernels are measured alternately, the best of several
 * repeats.
 *
 * Usage: bench_tiles [ROWS]      of x; default 256 */
#if defined(__x86_64__)
#include "base/clock.h"
#include "device/cpu/cpu_private.h" /* private: gives an open device the kernels that it compares */
#include "device/cpu/lanes_avx512.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct tile_config {
    uint8_t palette;
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
#define tile_configure(config)      ((void)(config))
#define tile_release()              ((void)0)
#define tile_zero(t)                ((void)0)
#define tile_dot(c, a, b)           ((void)0)
#define tile_load(t, base, stride)  __asm__ volatile("" ::"r"(base), "r"((size_t)(stride)) : "memory")
#define tile_store(t, base, stride) __asm__ volatile("" ::"r"(base), "r"((size_t)(stride)) : "memory")

static void linear_without_tiles(const sn_linear_job *job, size_t first_panel, size_t end_panel);
#define LINEAR_TILES    linear_without_tiles
#define LINEAR_FALLBACK sn_cpu_kernels_avx512.linear
#include "device/cpu/linear_tiles.inc.c"

enum { REPEATS = 15, WEIGHT_ROWS = 1536 };

static sn_err err;
static void require_ok(sn_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static double seconds(sn_device *d, int n, const float *x, const sn_weight *w, float *y) {
    int64_t start = sn_now_us();
    require_ok(d->ops->linear(d, n, x, 1, &(sn_linear){.weight = w, .y = y}, &err));
    return (double)(sn_now_us() - start) * 1e-6;
}

int main(int argc, char **argv) {
    static const sn_dtype types[] = {SN_Q4_0, SN_Q4_1, SN_Q4_K,   SN_Q8_0,   SN_Q5_1,
                                     SN_Q6_K, SN_Q2_K, SN_IQ4_NL, SN_IQ4_XS, SN_MXFP4};
    const int n = argc > 1 ? require_int(argv[1], ROWS, 4096) : 256;
    sn_cpu_kernels kernels = sn_cpu_kernels_avx512;
    sn_device *all, *vectors;
    require_ok(test_cpu_open("avx512", 1, &all, &err));
    require_ok(test_cpu_open("avx512", 1, &vectors, &err));
    kernels.linear = linear_without_tiles;
    ((sn_cpu *)vectors)->kernels = &kernels;
    float *x = test_random_floats((size_t)n * 2048, 3), *y = malloc((size_t)n * WEIGHT_ROWS * sizeof *y);
    printf("%d rows of x, GOP/s\n%-6s %10s %22s\n", n, "", "AVX-512", "AMX without tiles");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        enum { COLS = 1536 };
        double best[2] = {1e9, 1e9};
        float *values = malloc(sizeof *values * WEIGHT_ROWS * COLS);
        void *raw = test_random_weight(types[t], WEIGHT_ROWS, COLS, 1, values);
        sn_weight *w;
        require_ok(test_weight_make(all, types[t], WEIGHT_ROWS, COLS, raw, &w, &err));
        for (int i = 0; i < 2 * REPEATS; i++) {
            sn_device *d = i % 2 ? vectors : all;
            require_ok(d->ops->prepare(d, &(sn_device_limits){.rows = n, .width = COLS}, &err));
            double s = seconds(d, n, x, w, y);
            best[i % 2] = s < best[i % 2] ? s : best[i % 2];
        }
        double ops = 2e-9 * n * WEIGHT_ROWS * COLS;
        printf("%-6s %10.0f %22.0f\n", sn_dtype_name(types[t]), ops / best[0], ops / best[1]);
        test_weight_drop(all, &w);
        test_weight_free(raw);
        free(values);
    }
    sn_device_close(&all);
    sn_device_close(&vectors);
    free(x), free(y);
    return 0;
}
#else
int main(void) { return 0; }
#endif

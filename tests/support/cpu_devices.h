/* The CPU device in all its forms, random numbers and weights: for tests that everything gives the same bits. */
#ifndef SN_TESTS_SUPPORT_CPU_DEVICES_H
#define SN_TESTS_SUPPORT_CPU_DEVICES_H

#include "device/device.h"

/* The names of the CPU's instruction sets, as sn_device_options has them, and of two more that exist in tests only: AMX's
 * linear with its tiles in plain C, among C's kernels and among those of AVX-512. */
enum { TEST_ISAS = 6 };
extern const char *const test_isas[TEST_ISAS];
#define TEST_TILES        "tiles-in-c"
#define TEST_TILES_AVX512 "tiles-in-avx512"
#define TEST_AMX_TRAPPED  "amx-trapped" /* one more, not in the list for it is slow: amx_trap.h */

/* A CPU device by such a name; refused where this machine lacks it. */
sn_status test_cpu_open(const char *isa, int threads, sn_device **out, sn_err *err) SN_MUST_USE;

enum { TEST_DEVICES_MAX = 3 * TEST_ISAS };

typedef struct test_devices {
    sn_device
        *at[TEST_DEVICES_MAX]; /* each instruction set of this machine with 1, 2 and 3 threads; [0]: C, 1 thread */
    int n;
} test_devices;

test_devices test_devices_open(const sn_device_limits *limits);
void test_devices_close(test_devices *devices);

/* Deterministic: uniform in [-1, 1); *state is any number. */
float test_random(uint64_t *state);
float *test_random_floats(size_t n, uint64_t seed); /* heap */

/* Random rows of a weight type as they would lie in a file, with finite scales, at an odd address; free with
 * test_weight_free. `values`, (rows, cols), gets what they stand for. */
void *test_random_weight(sn_dtype dtype, size_t rows, size_t cols, uint64_t seed, float *values);
void test_weight_free(void *weight);

/* The first index at which bits differ (any NaN equals any NaN), or n. */
size_t test_differ(const float *a, const float *b, size_t n);

/* All types that a matrix may have. */
extern const sn_dtype test_weight_types[];
extern const int test_n_weight_types;

/* A weight by itself, in heap memory; drop sets *weight NULL and is NULL-safe. */
sn_status test_weight_make(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, sn_weight **out,
                           sn_err *err);
void test_weight_drop(sn_device *d, sn_weight **weight);

/* One operation as a pass of its own. */
sn_status test_kv_store(sn_device *d, const sn_kv_shape *shape, int block, int n_sequences, const sn_sequence *sequences,
                        const float *k, const float *v, sn_err *err);
sn_status test_attention(sn_device *d, const sn_kv_shape *shape, int n_sequences, const sn_sequence *sequences,
                         const sn_attention *how, const float *q, float *out, sn_err *err) SN_MUST_USE;

#endif

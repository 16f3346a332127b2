/* The CPU device with every instruction set and several numbers of threads, random numbers and random weights: for
 * tests that check that all of them give the same bits. */
#ifndef SN_TESTS_SUPPORT_CPU_DEVICES_H
#define SN_TESTS_SUPPORT_CPU_DEVICES_H

#include "device/device.h"

/* The kernels of this architecture beside "c", the later ones with more of its instructions (device/cpu/isa.c). */
#if defined(__aarch64__)
#define TEST_ISA_1 "neon"
#define TEST_ISA_2 "dotprod"
#define TEST_ISA_3 "i8mm"
#else
#define TEST_ISA_1 "avx2"
#define TEST_ISA_2 "avx512"
#define TEST_ISA_3 "amx"
#endif

/* The names of the CPU's instruction sets, as sn_device_options has them, and of two more that exist in tests only:
 * AMX's linear with its tiles in plain C, among C's kernels and among those of AVX-512. */
enum { TEST_ISAS = 6 };
extern const char *const test_isas[TEST_ISAS];
#define TEST_TILES        "tiles-in-c"
#define TEST_TILES_AVX512 "tiles-in-avx512"
#define TEST_AMX_TRAPPED  "amx-trapped" /* emulated machine code (amx_trap.h); slow, so that it is not in the list */

/* Opens a CPU device by such a name; SN_REFUSED where this machine lacks the instruction set. */
sn_status test_cpu_open(const char *isa, int threads, sn_device **out, sn_err *err) SN_MUST_USE;

enum { TEST_DEVICES_MAX = 3 * TEST_ISAS };

/* The CPU device with each instruction set of this machine and 1, 2 and 3 threads. */
typedef struct test_devices {
    sn_device *at[TEST_DEVICES_MAX]; /* [0]: C, 1 thread */
    int n;
} test_devices;

test_devices test_devices_open(const sn_device_limits *limits);
void test_devices_close(test_devices *devices);

/* Deterministic, uniform in [-1, 1); *state is any number. */
float test_random(uint64_t *state);
float *test_random_floats(size_t n, uint64_t seed); /* heap */

/* Random rows of a weight type in the layout of a file, with finite scales, at an odd address. `values`, (rows,
 * cols), receives the decoded numbers. Free with test_weight_free. */
void *test_random_weight(sn_dtype dtype, size_t rows, size_t cols, uint64_t seed, float *values);
void test_weight_free(void *weight);

/* The first index at which bits differ (any NaN equals any NaN), or n. */
size_t test_differ(const float *a, const float *b, size_t n);

/* All types that a matrix may have, on every device. F8_E4M3 and the last ones are not in GGUF files. */
extern const sn_dtype test_weight_types[];
extern const int test_n_weight_types;

/* Makes one weight in heap memory. test_weight_drop unloads it, sets *weight NULL and accepts NULL. */
sn_status test_weight_make(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, sn_weight **out,
                           sn_err *err);
void test_weight_drop(sn_device *d, sn_weight **weight);

/* One operation in a batch of its own. */
sn_status test_kv_store(sn_device *d, const sn_kv_shape *shape, int block, int n_sequences,
                        const sn_sequence *sequences, const float *k, const float *v, sn_err *err);
sn_status test_attention(sn_device *d, const sn_kv_shape *shape, int n_sequences, const sn_sequence *sequences,
                         const sn_attention *how, const float *q, float *out, sn_err *err) SN_MUST_USE;

#endif

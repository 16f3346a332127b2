/* How it works: a CPU device is opened by the name of an instruction set. The names TEST_TILES, TEST_TILES_AVX512
 * and TEST_AMX_TRAPPED stand for kernels that exist in tests only: the device is opened with the instruction set in
 * `tables` and then gets a copy of that kernel table in which `linear` is replaced.
 *
 * The copies are static and made once, under a lock, because several devices share them. Random weights are random
 * bits of a block whose half-precision scales are overwritten with finite numbers; sn_dequantize_row gives the
 * values that the tests compare with. */
#include "tests/support/weight_whole.h"
#include "tests/support/cpu_devices.h"

#include "device/cpu/cpu_private.h" /* private: puts kernels of the tests into an open device */
#include "device/quant.h"
#include "tests/support/amx_trap.h"
#include "tests/support/tiles.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const sn_dtype test_weight_types[] = {SN_F32, SN_F16, SN_BF16, SN_Q4_0, SN_Q4_1, SN_Q5_0, SN_Q5_1, SN_Q8_0, SN_Q2_K,
                                      SN_Q3_K, SN_Q4_K, SN_Q5_K, SN_Q6_K, SN_IQ4_NL, SN_IQ4_XS, SN_MXFP4, SN_F8_E4M3,
                                      /* of folders only */
                                      SN_I4_B32, SN_I4_32, SN_I4_64, SN_I4_128, SN_I8_128, SN_NVFP4_256,
                                      /* below four bits, and the like */
                                      SN_IQ1_S, SN_IQ1_M, SN_IQ2_XXS, SN_IQ2_XS, SN_IQ2_S, SN_IQ3_XXS, SN_IQ3_S,
                                      SN_TQ1_0, SN_TQ2_0, SN_NVFP4, SN_Q1_0, SN_Q2_0,
                                      /* of folders only */
                                      SN_NF4, SN_FP4, SN_F8_E5M2, SN_I2_128, SN_I3_128, SN_I8_128F, SN_NF4_256,
                                      SN_FP4_256};
const int test_n_weight_types = (int)(sizeof test_weight_types / sizeof *test_weight_types);

static void require_ok(sn_status status, const sn_err *err) {
    if (!status) return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

const char *const test_isas[TEST_ISAS] = {"c", TEST_ISA_1, TEST_ISA_2, TEST_ISA_3, TEST_TILES, TEST_TILES_AVX512};

/* Kernels that exist in tests only: those of an instruction set with another `linear`. */
typedef struct test_kernels {
    const char *name, *isa;
    void (*linear)(const sn_linear_job *job, size_t first_panel, size_t end_panel);
    sn_cpu_kernels kernels;
} test_kernels;

static test_kernels tables[] = {
    {.name = TEST_TILES, .isa = "c", .linear = test_linear_tiles},
#if defined(__x86_64__)
    {.name = TEST_TILES_AVX512, .isa = "avx512", .linear = test_linear_tiles_avx512},
    {.name = TEST_AMX_TRAPPED, .isa = "avx512"},
#endif
};
enum { N_TABLES = sizeof tables / sizeof *tables };

static const sn_cpu_kernels *make_test_kernels(test_kernels *t, const sn_cpu_kernels *others) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!t->linear) t->linear = test_amx_trapped();
    if (!t->kernels.name && t->linear) {
        t->kernels = *others;
        t->kernels.name = t->name;
        t->kernels.linear = t->linear;
    }
    pthread_mutex_unlock(&lock);
    return t->linear ? &t->kernels : NULL;
}

sn_status test_cpu_open(const char *isa, int threads, sn_device **out, sn_err *err) {
    test_kernels *test_only = NULL;
    for (int i = 0; isa && i < N_TABLES; i++)
        if (!strcmp(isa, tables[i].name)) test_only = &tables[i];
    sn_device_options options = {.threads = threads, .isa = test_only ? test_only->isa : isa};
    sn_status status = sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, out, err);
    if (status || !test_only) return status;
    sn_cpu *cpu = (sn_cpu *)*out;
    cpu->kernels = make_test_kernels(test_only, cpu->kernels);
    snprintf(cpu->description, sizeof cpu->description, "cpu: %d threads, %s", threads, isa);
    if (cpu->kernels) return SN_OK;
    sn_device_close(out);
    return sn_fail(err, SN_REFUSED, "AMX's machine code cannot be emulated here: amx_trap.h says where it can");
}

test_devices test_devices_open(const sn_device_limits *limits) {
    test_devices devices = {.n = 0};
    sn_err err;
    for (int i = 0; i < TEST_ISAS; i++)
        for (int threads = 1; threads <= 3; threads++) {
            sn_device *device;
            if (test_cpu_open(test_isas[i], threads, &device, &err)) break;
            require_ok(device->ops->prepare(device, limits, &err), &err);
            devices.at[devices.n++] = device;
        }
    return devices;
}

void test_devices_close(test_devices *devices) {
    for (int i = 0; i < devices->n; i++) sn_device_close(&devices->at[i]);
}

static uint32_t next_random(uint64_t *state) { /* Knuth's MMIX generator, upper bits */
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

float test_random(uint64_t *state) { return (float)(next_random(state) >> 8) * 0x1p-23f - 1; }

static void *allocate_bytes(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

float *test_random_floats(size_t n, uint64_t seed) {
    float *x = allocate_bytes(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = test_random(&seed);
    return x;
}

/* The offsets of the half-precision scales in a block; -1: none. */
static void scale_offsets(sn_dtype dtype, int at[2]) {
    at[0] = at[1] = -1;
    switch (dtype) {
    case SN_Q4_0:
    case SN_Q5_0:
    case SN_Q8_0:
    case SN_IQ4_NL:
    case SN_IQ4_XS:
    case SN_IQ1_S:
    case SN_IQ2_XXS:
    case SN_IQ2_XS:
    case SN_IQ2_S:
    case SN_IQ3_XXS:
    case SN_IQ3_S:
    case SN_Q1_0:
    case SN_Q2_0:
        at[0] = 0;
        break;
    case SN_Q4_1:
    case SN_Q5_1:
    case SN_Q4_K:
    case SN_Q5_K:
        at[0] = 0, at[1] = 2;
        break;
    case SN_Q2_K:
        at[0] = 80, at[1] = 82;
        break;
    case SN_TQ1_0:
        at[0] = 52;
        break;
    case SN_TQ2_0:
        at[0] = 64;
        break;
    case SN_Q3_K:
        at[0] = 108;
        break;
    case SN_Q6_K:
        at[0] = 208;
        break;
    default:
        break;
    }
}

/* The scales of a type of folders. */
static void fill_plain_scales(sn_dtype dtype, uint8_t *block, uint64_t *state) {
    const bool bytes = dtype == SN_I8_128 || dtype == SN_I8_128F;
    float scale = test_random(state) * (bytes ? 0.005f : 0.05f);
    uint16_t half = sn_f32_to_bf16(scale);
    uint32_t word;
    if (!bytes) scale = *state >> 40 & 1 ? sn_bf16_to_f32(half) : sn_f16_to_f32(sn_f32_to_f16(scale));
    memcpy(&word, &scale, sizeof word);
    word = (word & ~0xffu) | (uint32_t)(*state >> 44 & (bytes ? 255 : 15 >> (4 - sn_quant_forms[dtype].low_bits)));
    if (dtype == SN_I4_B32)
        memcpy(block, &half, sizeof half);
    else if (dtype == SN_NVFP4_256 || dtype == SN_I8_128F)
        memcpy(block, &scale, sizeof scale);
    else
        memcpy(block, &word, sizeof word);
    for (int i = 4; dtype == SN_NVFP4_256 && i < 20; i++) block[i] = (uint8_t)(block[i] % 0x50); /* up to 8 */
}

static void fill_block(sn_dtype dtype, uint8_t *block, uint64_t *state) {
    int at[2];
    float x = test_random(state);
    uint16_t half = dtype == SN_F16 ? sn_f32_to_f16(x) : sn_f32_to_bf16(x);
    if (dtype == SN_F32) {
        memcpy(block, &x, sizeof x);
    } else if (dtype == SN_F16 || dtype == SN_BF16) {
        memcpy(block, &half, sizeof half);
    } else {
        for (size_t i = 0; i < sn_dtype_bytes(dtype); i++) block[i] = (uint8_t)next_random(state);
        scale_offsets(dtype, at);
        for (int i = 0; i < 2 && at[i] >= 0; i++) {
            half = sn_f32_to_f16(test_random(state) * 0.05f);
            memcpy(block + at[i], &half, sizeof half);
        }
        if (sn_is_f8(dtype)) {
            float scale = test_random(state) * (dtype == SN_F8_E4M3 ? 0.01f : 1e-4f);
            for (size_t i = 0; i < sn_dtype_bytes(dtype); i++)
                if (!sn_f8_is_number(dtype, block[i])) block[i] = (uint8_t)(block[i] - (dtype == SN_F8_E4M3 ? 1 : 4));
            memcpy(block, &scale, sizeof scale);
        }
        if (sn_float4_values(dtype)) {
            const float scale = test_random(state) * 0.05f, offset = 0.02f;
            memcpy(block, &scale, sizeof scale);
            if (sn_float4_twice(dtype)) memcpy(block + sizeof scale, &offset, sizeof offset);
        }
        if (sn_dtype_quantised(dtype) && sn_quant_is_plain(&sn_quant_forms[dtype]))
            fill_plain_scales(dtype, block, state);
        if (dtype == SN_IQ1_M) /* its half lies in the upper bits of four words */
            for (int i = 0; i < 4; i++) block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | "\0\0\x80\x20"[i]);
        if (dtype == SN_MXFP4) block[0] = (uint8_t)(120 + block[0] % 12);
    }
}

void *test_random_weight(sn_dtype dtype, size_t rows, size_t cols, uint64_t seed, float *values) {
    size_t row_bytes, block = sn_dtype_block(dtype);
    sn_err err;
    require_ok(sn_dtype_row_bytes(dtype, cols, &row_bytes, &err), &err);
    uint8_t *data = (uint8_t *)allocate_bytes(rows * row_bytes + 1) + 1;
    for (size_t i = 0; i < rows * (cols / block); i++) fill_block(dtype, data + i * sn_dtype_bytes(dtype), &seed);
    for (size_t r = 0; r < rows; r++) sn_dequantize_row(dtype, data + r * row_bytes, cols, values + r * cols);
    return data;
}

void test_weight_free(void *weight) {
    if (weight) free((uint8_t *)weight - 1);
}

size_t test_differ(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t p, q;
        memcpy(&p, a + i, sizeof p);
        memcpy(&q, b + i, sizeof q);
        if (p != q && !(a[i] != a[i] && b[i] != b[i])) return i;
    }
    return n;
}

sn_status test_weight_make(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, sn_weight **out,
                           sn_err *err) {
    sn_weight *weight = malloc(sizeof *weight);
    *out = NULL;
    if (!weight) return sn_fail(err, SN_STOP, "out of memory");
    sn_status status = weight_load(d, dtype, rows, cols, host, weight, err);
    if (status)
        free(weight);
    else
        *out = weight;
    return status;
}

void test_weight_drop(sn_device *d, sn_weight **weight) {
    if (*weight) sn_weight_unload(d, *weight);
    free(*weight);
    *weight = NULL;
}

static sn_status begin_batch(sn_device *d, const sn_kv_shape *shape, int n_sequences, const sn_sequence *sequences,
                             sn_err *err) {
    bool recorded;
    int n_rows = 0;
    for (int s = 0; s < n_sequences; s++) n_rows += sequences[s].n_rows;
    return d->ops->batch_begin(d, &(sn_batch){shape, n_rows, n_sequences, sequences, 0}, &recorded, err);
}

sn_status test_kv_store(sn_device *d, const sn_kv_shape *shape, int block, int n_sequences,
                        const sn_sequence *sequences, const float *k, const float *v, sn_err *err) {
    sn_status status = begin_batch(d, shape, n_sequences, sequences, err);
    if (!status) status = d->ops->kv_store(d, block, k, v, err);
    return status ? status : d->ops->batch_end(d, err);
}

sn_status test_attention(sn_device *d, const sn_kv_shape *shape, int n_sequences, const sn_sequence *sequences,
                         const sn_attention *how, const float *q, float *out, sn_err *err) {
    sn_status status = begin_batch(d, shape, n_sequences, sequences, err);
    if (!status) status = d->ops->attention(d, how, q, out, err);
    return status ? status : d->ops->batch_end(d, err);
}

#include "device/quant.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "tests/support/cpu_devices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One unit in the last place: the older fixture's scales were multiplied in another order for some types. */
static bool close_enough(float a, float b) { return a == b || nextafterf(a, b) == b; }

static void compare_tensors(const sn_gguf_tensor *tensor, const sn_safetensors_tensor *wanted, bool exactly) {
    float row[512];
    const size_t cols = tensor->dims[0], rows = tensor->dims[1];
    cr_assert(cols <= 512 && wanted->elements == rows * cols);
    for (size_t r = 0; r < rows; r++) {
        sn_dequantize_row(tensor->dtype, tensor->data + r * (tensor->bytes / rows), cols, row);
        for (size_t i = 0; i < cols; i++) {
            float want;
            memcpy(&want, wanted->data + (r * cols + i) * sizeof want, sizeof want);
            cr_assert(row[i] == want || (!exactly && close_enough(row[i], want)), "%s row %zu element %zu: %a, not %a",
                      tensor->name, r, i, (double)row[i], (double)want);
        }
    }
}

static void compare_types(const char *file, const char *values, int first, int end, bool exactly) {
    sn_gguf *gguf;
    sn_safetensors *gold;
    sn_err err;
    cr_assert_eq(sn_gguf_open(file, &gguf, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_safetensors_open(values, &gold, &err), SN_OK, "%s", err.text);
    for (int i = first; i < end; i++) {
        char name[32];
        snprintf(name, sizeof name, "t.%s", sn_dtype_name(test_weight_types[i]));
        const sn_gguf_tensor *tensor = sn_gguf_tensor_find(gguf, name);
        const sn_safetensors_tensor *wanted = sn_safetensors_find(gold, name);
        cr_assert(tensor && wanted, "%s is not in the fixture", name);
        compare_tensors(tensor, wanted, exactly);
    }
    sn_gguf_close(&gguf);
    sn_safetensors_close(&gold);
}

Test(quant, decodes_every_type_as_the_reference_does) {
    int f8 = 0; /* no type of GGUF */
    while (test_weight_types[f8] != SN_F8_E4M3) f8++;
    compare_types(SN_FIXTURES "/gguf/gguf_types.gguf", SN_FIXTURES "/gguf/gguf_types.safetensors", 0, f8, false);
}

/* Rows that llama.cpp's quantiser wrote, and rows of random bits. */
Test(quant, decodes_codebook_types_exactly_as_llama_cpp_does) {
    int iq1 = 0, nf4;
    while (test_weight_types[iq1] != SN_IQ1_S) iq1++;
    for (nf4 = iq1; test_weight_types[nf4] != SN_NF4;) nf4++; /* from it on they are in no GGUF file */
    compare_types(SN_FIXTURES "/gguf/gguf_codebooks.gguf", SN_FIXTURES "/gguf/gguf_codebooks.safetensors", iq1, nf4,
                  true);
}

Test(quant, integers_and_scales_give_the_same_values_as_the_row) {
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype type = test_weight_types[t];
        if (!sn_dtype_quantised(type)) continue;
        float values[512];
        size_t block = sn_dtype_block(type);
        uint8_t *raw = test_random_weight(type, 1, 512, 17, values);
        for (size_t b = 0; b < 512 / block; b++) {
            sn_quant_group groups[SN_QUANT_GROUPS_MAX];
            sn_quant_decode(type, raw + b * sn_dtype_bytes(type), groups);
            for (size_t i = 0; i < block; i++) {
                const sn_quant_group *g = &groups[i / 32];
                float value = g->d[i / 16 % 2] * (float)g->q[i % 32] + g->m[i / 16 % 2];
                cr_assert_eq(value, values[b * block + i]);
            }
        }
        test_weight_free(raw);
    }
}

/* 0x7f is the NaN of E4M3; the sign does not count, so that 0xff is 480 and not a NaN. */
Test(quant, decodes_nvfp4_scales_that_are_no_numbers) {
    uint8_t block[36] = {0x7f, 0xff, 0x80, 0x38};
    float row[64];
    memset(block + 4, 0x22, 32); /* twice the weight: 2 */
    sn_dequantize_row(SN_NVFP4, block, 64, row);
    for (int i = 0; i < 64; i++)
        cr_assert_eq(row[i], ((const float[4]){0, 480, 0, 1})[i / 16], "%d: %g", i, (double)row[i]);
}

Test(quant, distinguishes_quantised_types) {
    cr_assert(sn_dtype_quantised(SN_Q4_0) && sn_dtype_quantised(SN_MXFP4));
    cr_assert(!sn_dtype_quantised(SN_F32) && !sn_dtype_quantised(SN_BF16) && !sn_dtype_quantised(SN_I64));
    cr_assert(!sn_dtype_quantised(SN_DTYPE_COUNT));
}

Test(quant, an_empty_row_is_accepted) {
    sn_dequantize_row(SN_F32, NULL, 0, NULL);
    sn_dequantize_row(SN_Q6_K, NULL, 0, NULL);
}

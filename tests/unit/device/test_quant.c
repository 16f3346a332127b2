#include "device/quant.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "tests/support/cpu_devices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One unit in the last place: the fixture's scales were multiplied in another order for some types. */
static bool close_enough(float a, float b) { return a == b || nextafterf(a, b) == b; }

static void compare_tensors(const sn_gguf_tensor *tensor, const sn_safetensors_tensor *wanted) {
    enum { COLS = 512, ROWS = 4 };
    float row[COLS];
    cr_assert_eq(wanted->elements, ROWS * COLS);
    cr_assert_eq(tensor->dims[0], COLS);
    for (size_t r = 0; r < ROWS; r++) {
        sn_dequantize_row(tensor->dtype, tensor->data + r * (tensor->bytes / ROWS), COLS, row);
        for (size_t i = 0; i < COLS; i++) {
            float want;
            memcpy(&want, wanted->data + (r * COLS + i) * sizeof want, sizeof want);
            cr_assert(close_enough(row[i], want), "%s row %zu element %zu: %a, not %a", tensor->name, r, i,
                      (double)row[i], (double)want);
        }
    }
}

Test(quant, decodes_every_type_as_the_reference_does) {
    sn_gguf *gguf;
    sn_safetensors *gold;
    sn_err err;
    cr_assert_eq(sn_gguf_open(SN_FIXTURES "/gguf/gguf_types.gguf", &gguf, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_safetensors_open(SN_FIXTURES "/gguf/gguf_types.safetensors", &gold, &err), SN_OK, "%s", err.text);
    for (int i = 0; test_weight_types[i] != SN_F8_E4M3; i++) {
        char name[32];
        snprintf(name, sizeof name, "t.%s", sn_dtype_name(test_weight_types[i]));
        const sn_gguf_tensor *tensor = sn_gguf_tensor_find(gguf, name);
        const sn_safetensors_tensor *wanted = sn_safetensors_find(gold, name);
        cr_assert(tensor && wanted, "%s is not in the fixture", name);
        compare_tensors(tensor, wanted);
    }
    sn_gguf_close(&gguf);
    sn_safetensors_close(&gold);
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

Test(quant, distinguishes_quantised_types) {
    cr_assert(sn_dtype_quantised(SN_Q4_0) && sn_dtype_quantised(SN_MXFP4));
    cr_assert(!sn_dtype_quantised(SN_F32) && !sn_dtype_quantised(SN_BF16) && !sn_dtype_quantised(SN_I64));
    cr_assert(!sn_dtype_quantised(SN_DTYPE_COUNT));
}

Test(quant, an_empty_row_is_accepted) {
    sn_dequantize_row(SN_F32, NULL, 0, NULL);
    sn_dequantize_row(SN_Q6_K, NULL, 0, NULL);
}

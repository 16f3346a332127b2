/* Wire dtypes: the bytes are those of docs/PROTOCOL.md, rounding twice changes nothing, and rows are independent. */
#include "base/wire.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, N = 4096 };

static uint32_t state = 1;
static uint32_t next_random(void) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}

/* Any finite number of any magnitude. */
static float any_finite(void) {
    union {
        uint32_t u;
        float f;
    } x;
    do x.u = next_random();
    while (!isfinite(x.f));
    return x.f;
}

/* Numbers as in a row: of similar magnitude within a block, different from block to block. */
static float row_value(size_t i) {
    return ldexpf((float)(int32_t)next_random() / 2147483648.0f, (int)(i / BLOCK * 7 % 40) - 20);
}

static size_t wire_bytes(sn_dtype dtype, size_t n) {
    size_t bytes;
    cr_assert_eq(sn_dtype_row_bytes(dtype, n, &bytes, NULL), SN_OK);
    return bytes;
}

Test(wire, eight_bit_blocks_match_the_protocol_document) {
    const float x[BLOCK] = {0, 1, -2.5f, 127, 3.5f, -0.0f};
    uint8_t wire[34], want[34] = {0x80, 0x3f, 0, 1, 0xfe, 127, 4};
    float back[BLOCK], rounded[BLOCK] = {0, 1, -2, 127, 4};
    sn_wire_encode(SN_Q8, x, BLOCK, wire);
    cr_expect_arr_eq(wire, want, sizeof want);
    sn_wire_decode(SN_Q8, wire, BLOCK, back);
    cr_expect_arr_eq(back, rounded, sizeof rounded);
}

Test(wire, sixteen_bits_round_to_the_nearest_and_ties_to_even) {
    const float x[] = {1 + 0x1p-11f, 1 + 0x3p-11f, 0x1p-25f, 0x1.8p-24f, -65504, 1 + 0x1p-8f, 1 + 0x3p-8f};
    const uint16_t f16[] = {0x3c00, 0x3c02, 0, 2, 0xfbff}, bf16[] = {0x3f80, 0x3f82};
    uint16_t wire[5];
    sn_wire_encode(SN_F16, x, 5, wire);
    cr_expect_arr_eq(wire, f16, sizeof f16);
    sn_wire_encode(SN_BF16, x + 5, 2, wire);
    cr_expect_arr_eq(wire, bf16, sizeof bf16);
}

Test(wire, rounding_is_idempotent) {
    static float x[N], once[N];
    static uint8_t first[4 * N], second[4 * N];
    for (int round = 0; round < 60; round++)
        for (int k = 0; k < SN_WIRE_DTYPES; k++) {
            sn_dtype dtype = sn_wire_dtypes[k];
            size_t bytes = wire_bytes(dtype, N);
            for (size_t i = 0; i < N; i++) x[i] = round % 2 ? any_finite() : row_value(i);
            memcpy(once, x, sizeof once);
            sn_wire_round(dtype, once, N);
            sn_wire_encode(dtype, x, N, first);
            sn_wire_encode(dtype, once, N, second);
            cr_assert_arr_eq(first, second, bytes, "%s, round %d", sn_dtype_name(dtype), round);
            sn_wire_decode(dtype, first, N, x);
            cr_assert_arr_eq(x, once, sizeof x, "%s, round %d", sn_dtype_name(dtype), round);
            for (size_t i = 0; i < N; i++) cr_assert(isfinite(x[i]), "%s made %a", sn_dtype_name(dtype), (double)x[i]);
        }
}

/* For every scale: blocks whose largest number runs through all mantissas near a power of two and near powers of
 * ten. */
Test(wire, the_largest_number_of_a_block_always_gets_127) {
    uint8_t wire[34];
    for (int exponent = -93; exponent < 128; exponent++)
        for (uint32_t k = 0; k < 4096; k++) {
            float x[BLOCK] = {ldexpf(1 + (float)k / 4096, exponent)};
            sn_wire_encode(SN_Q8, x, BLOCK, wire);
            cr_assert_eq(wire[2], 127, "%a", (double)x[0]);
        }
}

Test(wire, blocks_of_tiny_numbers_are_zeros_before_a_scale_would_be_subnormal) {
    for (int exponent = -149; exponent < -80; exponent++) {
        float x[BLOCK] = {ldexpf(1, exponent), [31] = ldexpf(-1.9f, exponent - 1)}, y[BLOCK];
        memcpy(y, x, sizeof y);
        sn_wire_round(SN_Q8, y, BLOCK);
        cr_expect_eq(y[0] != 0, exponent >= -93, "2^%d became %a", exponent, (double)y[0]);
        memcpy(x, y, sizeof x);
        sn_wire_round(SN_Q8, y, BLOCK);
        cr_expect_arr_eq(x, y, sizeof x);
    }
}

Test(wire, tiny_numbers_of_a_row_are_those_that_no_model_computes) {
    const struct {
        float row[4], cleared[4];
    } rows[] = {
        {{1e-41f, -1e-38f, 0, 9e-13f}, {0}}, /* all of a row whose largest number is below 2^-40 */
        {{1e-12f, 1e-20f, -1e-24f, 1e-25f}, {1e-12f, 1e-20f, -1e-24f, 0}},
        {{1, -1e-24f, 8e-25f, -1e-41f}, {1, -1e-24f, 0, 0}},
        {{-1e15f, 1e-9f, 8e-10f, 1e-24f}, {-1e15f, 1e-9f, 0, 0}}, /* a norm divides by the largest */
        {{INFINITY, 1, 1e-20f, 1e-30f}, {INFINITY, 1, 1e-20f, 0}},
    };
    float all[2][4] = {{1, 2, 3, 0}, {1e-30f, 0, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float row[4];
        memcpy(row, rows[i].row, sizeof row);
        cr_expect(sn_wire_has_tiny(row, 1, 4), "row %zu", i);
        sn_wire_clear_tiny(row, 1, 4);
        cr_expect_arr_eq(row, rows[i].cleared, sizeof row, "row %zu", i);
        cr_expect_not(sn_wire_has_tiny(row, 1, 4), "row %zu", i);
    }
    cr_expect(sn_wire_has_tiny(all[0], 2, 4));
    cr_expect_not(sn_wire_has_tiny(all[0], 1, 4), "a row depends on the next one");
    sn_wire_clear_tiny(all[0], 2, 4);
    cr_expect(all[0][0] == 1 && all[0][2] == 3 && all[1][0] == 0);
}

Test(wire, eight_bit_error_is_at_most_half_a_step_of_its_block) {
    static float x[N], y[N];
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < N; i++) y[i] = x[i] = row_value(i);
        sn_wire_round(SN_Q8, y, N);
        for (size_t b = 0; b < N; b += BLOCK) {
            float most = 0;
            for (size_t i = b; i < b + BLOCK; i++) most = fmaxf(most, fabsf(x[i]));
            for (size_t i = b; i < b + BLOCK; i++)
                cr_assert_leq(fabsf(x[i] - y[i]), most / 127 * 0.502f, "%a became %a", (double)x[i], (double)y[i]);
        }
    }
}

Test(wire, too_large_numbers_stay_finite_and_nan_stays_nan) {
    const float most[] = {FLT_MAX, -FLT_MAX, 70000};
    for (int k = 0; k < SN_WIRE_DTYPES; k++)
        for (int i = 0; i < 3; i++) {
            float x[BLOCK] = {1, most[i]};
            sn_wire_round(sn_wire_dtypes[k], x, BLOCK);
            cr_expect(isfinite(x[1]) && (x[1] < 0) == (most[i] < 0) && fabsf(x[1]) >= 65504, "%a", (double)x[1]);
        }
    const float none[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < SN_WIRE_DTYPES; k++)
        for (int i = 0; i < 3; i++) {
            float x[2 * BLOCK] = {1, none[i], [BLOCK] = 5};
            sn_wire_round(sn_wire_dtypes[k], x, 2 * BLOCK);
            cr_expect(!isfinite(x[1]));
            cr_expect(x[BLOCK] > 4.9f && x[BLOCK] < 5.1f, "another block changes");
        }
}

Test(wire, decoding_does_not_depend_on_alignment) {
    static uint8_t bytes[4 * BLOCK + 1];
    for (int round = 0; round < 20000; round++)
        for (int k = 1; k < SN_WIRE_DTYPES; k++) {
            float x[BLOCK], y[BLOCK];
            uint8_t copy[4 * BLOCK];
            for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(next_random() >> 8);
            /* scales that are not numbers */
            if (round % 16 == 0) bytes[2] = 0x7f | (bytes[2] & 0x80), bytes[1] |= 0x80;
            memcpy(copy, bytes + 1, sizeof copy);
            sn_wire_decode(sn_wire_dtypes[k], bytes + 1, BLOCK, x);
            sn_wire_decode(sn_wire_dtypes[k], copy, BLOCK, y);
            cr_assert_arr_eq(x, y, sizeof x);
            bool scale = isfinite(sn_bf16_to_f32((uint16_t)(bytes[1] | bytes[2] << 8)));
            for (int i = 0; i < BLOCK && sn_wire_dtypes[k] == SN_Q8 && !scale; i++) {
                const float one = NAN;
                cr_assert_arr_eq(&x[i], &one, sizeof one, "not the canonical NaN");
            }
        }
}

Test(wire, rows_are_independent) {
    enum { ROWS = 7, WIDTH = 96 };
    static float x[ROWS * WIDTH];
    static uint8_t together[4 * ROWS * WIDTH], alone[4 * ROWS * WIDTH];
    for (size_t i = 0; i < ROWS * WIDTH; i++) x[i] = row_value(i);
    for (int k = 0; k < SN_WIRE_DTYPES; k++) {
        size_t row = wire_bytes(sn_wire_dtypes[k], WIDTH);
        sn_wire_encode(sn_wire_dtypes[k], x, ROWS * WIDTH, together);
        for (size_t i = 0; i < ROWS; i++) sn_wire_encode(sn_wire_dtypes[k], x + i * WIDTH, WIDTH, alone + i * row);
        cr_expect_arr_eq(together, alone, ROWS * row);
    }
}

Test(wire, types_have_names_and_numbers) {
    const char *names[] = {"f32", "f16", "bf16", "q8"};
    for (int i = 0; i < SN_WIRE_DTYPES; i++) {
        sn_dtype dtype = sn_wire_dtypes[i];
        cr_expect_str_eq(sn_word_name(sn_wire_dtype_words, (int)dtype), names[i]);
        cr_expect(dtype == (sn_dtype)i && sn_is_wire_dtype((uint64_t)i)); /* numbered as in the protocol */
    }
    cr_expect(!sn_is_wire_dtype(SN_WIRE_DTYPES) && !sn_is_wire_dtype(UINT64_MAX) &&
              !sn_is_wire_dtype(UINT64_C(1) << 32));
    cr_expect_null(sn_word_name(sn_wire_dtype_words, SN_I32));
}

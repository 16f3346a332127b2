/* Rows of a larger tensor, as a model's roles see them. */
#include "model/tensor_view.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* A matrix of 2 columns (or a vector) whose element i is i, read as `role` of a model with 4 heads over 2, each 3
 * wide. */
static void expect_rows(sn_qkv_layout layout, sn_role role, bool vector, const int *rows, size_t n) {
    const sn_tensor_naming naming = {.qkv = layout, .gate_up_fused = true};
    const sn_hparams hp = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 3};
    size_t width = vector ? 1 : 2;
    float all[2 * 24];
    for (int i = 0; i < 48; i++) all[i] = (float)i;
    const sn_tensor_view view = sn_tensor_view_of(&naming, &hp, role, n);
    sn_model_tensor t = {.dtype = SN_F32,
                         .rows = vector ? 1 : view.whole,
                         .cols = vector ? view.whole : width,
                         .data = all,
                         .bytes = view.whole * width * sizeof(float),
                         .vector = vector,
                         .group_rows = view.whole,
                         .group_stride = view.whole,
                         .tie = 7};
    cr_assert_leq(view.whole, 24u);
    sn_tensor_view_narrow(&view, role, n, &t);
    cr_assert_eq(t.bytes, n * width * sizeof(float));
    cr_assert(vector ? t.rows == 1 && t.cols == n : t.rows == n && t.cols == width);
    cr_assert_neq(t.tie, 7u, "a part has the tie group of the whole");
    const void *at;
    void *copy;
    cr_assert_eq(sn_model_contiguous(&t, &at, &copy, NULL), SN_OK);
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < width; c++)
            cr_assert_eq(((const float *)at)[r * width + c], (float)((size_t)rows[r] * width + c), "row %zu", r);
    cr_assert_eq(copy == NULL, sn_model_n_runs(&t) == 1, "contiguous rows are copied");
    free(copy);
}

/* Two key heads of 2, four value heads of 1: for each key head its query (2 rows), its key (2), its values (2) and what
 * gates them (2); and two numbers of each value head. */
Test(tensor_view, splits_the_inputs_of_recurrent_blocks_by_key_head) {
    const sn_tensor_naming naming = {.delta_fused = true, .delta_paired = true};
    const sn_hparams hp = {.delta_key_heads = 2, .delta_value_heads = 4, .delta_key_dim = 2, .delta_value_dim = 1};
    const struct {
        sn_role role;
        size_t n, rows[12];
    } roles[] = {{SN_ROLE_DELTA_QKV, 12, {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13}},
                 {SN_ROLE_DELTA_GATE, 4, {6, 7, 14, 15}},
                 {SN_ROLE_DELTA_WRITE, 4, {0, 1, 4, 5}},
                 {SN_ROLE_DELTA_TIME, 4, {2, 3, 6, 7}}};
    float all[2 * 16];
    for (int i = 0; i < 32; i++) all[i] = (float)i;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const size_t n = roles[i].n;
        const sn_tensor_view view = sn_tensor_view_of(&naming, &hp, roles[i].role, n);
        sn_model_tensor t = {.dtype = SN_F32, .rows = view.whole, .cols = 2, .data = all};
        t.bytes = view.whole * 2 * sizeof(float);
        t.group_rows = t.group_stride = view.whole;
        sn_tensor_view_narrow(&view, roles[i].role, n, &t);
        const void *at;
        void *copy;
        cr_assert_eq(sn_model_contiguous(&t, &at, &copy, NULL), SN_OK);
        for (size_t r = 0; r < n; r++) {
            cr_expect_eq(((const float *)at)[2 * r], (float)(2 * roles[i].rows[r]), "row %zu of role %zu", r, i);
            cr_expect_eq(view.first + sn_tensor_view_line(&t, r), roles[i].rows[r], "line %zu of role %zu", r, i);
        }
        free(copy);
    }
}

/* FP8 has a row of scales for 128 rows: each run of the parts names those that it touches. */
Test(tensor_view, parts_of_a_split_tensor_have_their_own_scales) {
    const sn_tensor_naming naming = {.delta_fused = true};
    const sn_hparams hp = {.delta_key_heads = 2, .delta_value_heads = 2, .delta_key_dim = 128, .delta_value_dim = 128};
    static const uint8_t codes[8 * 128 * 128];
    float scales[8];
    const sn_tensor_view view = sn_tensor_view_of(&naming, &hp, SN_ROLE_DELTA_QKV, 768);
    sn_model_tensor t = {.dtype = SN_F8_E4M3, .rows = 1024, .cols = 128, .data = codes, .scales = scales};
    t.bytes = 1024 * 132;
    t.group_rows = t.group_stride = 1024;
    sn_tensor_view_narrow(&view, SN_ROLE_DELTA_QKV, 768, &t);
    const size_t of_run[] = {0, 4, 1, 5, 2, 6};
    cr_assert_eq(sn_model_n_runs(&t), 6u);
    for (size_t i = 0, bytes; i < 6; i++) {
        cr_expect_eq(sn_model_run_scales(&t, i, &bytes), scales + of_run[i], "run %zu", i);
        cr_expect_eq(bytes, sizeof *scales);
    }
}

Test(tensor_view, splits_fused_qkv_whole_and_per_head) {
    const int q[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, k[] = {12, 13, 14, 15, 16, 17},
              v[] = {18, 19, 20, 21, 22, 23};
    const int q_by[] = {0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17}, k_by[] = {6, 7, 8, 18, 19, 20},
              v_by[] = {9, 10, 11, 21, 22, 23};
    const int gate[] = {0, 1, 2, 3, 4}, up[] = {5, 6, 7, 8, 9};
    for (int vector = 0; vector < 2; vector++) {
        const sn_role first = vector ? SN_ROLE_ATTN_Q_BIAS : SN_ROLE_ATTN_Q,
                      second = vector ? SN_ROLE_ATTN_K_BIAS : SN_ROLE_ATTN_K,
                      third = vector ? SN_ROLE_ATTN_V_BIAS : SN_ROLE_ATTN_V;
        expect_rows(SN_QKV_FUSED, first, vector, q, 12);
        expect_rows(SN_QKV_FUSED, second, vector, k, 6);
        expect_rows(SN_QKV_FUSED, third, vector, v, 6);
        expect_rows(SN_QKV_FUSED_PER_HEAD, first, vector, q_by, 12);
        expect_rows(SN_QKV_FUSED_PER_HEAD, second, vector, k_by, 6);
        expect_rows(SN_QKV_FUSED_PER_HEAD, third, vector, v_by, 6);
    }
    expect_rows(SN_QKV_SEPARATE, SN_ROLE_FFN_GATE, false, gate, 5);
    expect_rows(SN_QKV_SEPARATE, SN_ROLE_FFN_UP, false, up, 5);
}

/* Its columns are no units of its own: each expert's row is, and a block of quantised numbers has no part. */
Test(tensor_view, reads_matrices_of_one_row) {
    enum { EXPERTS = 3, BYTES = 18 }; /* of 32 numbers of Q4_0 */
    const uint8_t all[EXPERTS * BYTES] = {0};
    const sn_tensor_naming naming = {0};
    const int gate[] = {0}, up[] = {1};
    size_t bytes;
    expect_rows(SN_QKV_SEPARATE, SN_ROLE_FFN_GATE, false, gate, 1);
    expect_rows(SN_QKV_SEPARATE, SN_ROLE_FFN_UP, false, up, 1);
    for (size_t e = 0; e < EXPERTS; e++) {
        const sn_tensor_view view = sn_tensor_view_of_expert(&naming, SN_ROLE_EXPERTS_UP, false, 1, 32, e, EXPERTS);
        sn_model_tensor t = {.dtype = SN_Q4_0, .rows = EXPERTS, .cols = 32, .data = all, .bytes = sizeof all};
        sn_tensor_view_narrow(&view, SN_ROLE_EXPERTS_UP, 1, &t);
        cr_assert(t.rows == 1 && t.cols == 32 && t.bytes == BYTES && sn_model_n_runs(&t) == 1);
        cr_assert_eq(sn_model_run(&t, 0, &bytes), all + e * BYTES);
        cr_assert_eq(bytes, (size_t)BYTES);
    }
}

/* Two experts of 3 by 2 whose elements are their positions in the file: gate and up (2, 2, 6), down (2, 2, 3), both
 * transposed. */
Test(tensor_view, transposes_transposed_experts) {
    enum { EXPERTS = 2, FF = 3, EMBD = 2 };
    const sn_tensor_naming naming = {.experts_transposed = true};
    float all[EXPERTS * EMBD * 2 * FF];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) all[i] = (float)i;
    for (sn_role role = SN_ROLE_EXPERTS_GATE; role <= SN_ROLE_EXPERTS_DOWN; role++)
        for (size_t part = 0; part < EXPERTS; part++) {
            bool down = role == SN_ROLE_EXPERTS_DOWN;
            size_t rows = down ? EMBD : FF, cols = down ? FF : EMBD, line = down ? EMBD : 2 * FF, step = down ? 1 : 2;
            const sn_tensor_view view = sn_tensor_view_of_expert(&naming, role, false, rows, cols, part, EXPERTS);
            cr_assert(view.whole == EXPERTS * cols && view.col_step == line);
            sn_model_tensor t = {.dtype = SN_F32,
                                 .rows = view.whole,
                                 .cols = line,
                                 .data = all,
                                 .bytes = view.whole * line * sizeof *all,
                                 .tie = 7};
            sn_tensor_view_narrow(&view, role, rows, &t);
            cr_assert(t.rows == rows && t.cols == cols && t.bytes == rows * cols * sizeof *all && t.tie != 7);
            const void *at;
            void *copy;
            cr_assert_eq(sn_model_contiguous(&t, &at, &copy, NULL), SN_OK);
            for (size_t r = 0; r < rows; r++)
                for (size_t c = 0; c < cols; c++)
                    cr_assert_eq(((const float *)at)[r * cols + c],
                                 (float)((part * cols + c) * line + step * r + (role == SN_ROLE_EXPERTS_UP)));
            free(copy);
            size_t bytes;
            const char *last = sn_model_run(&t, sn_model_n_runs(&t) - 1, &bytes);
            cr_assert_leq((size_t)(last + bytes - (const char *)all), sizeof all, "a run ends after the tensor");
        }
}

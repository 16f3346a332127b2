/* What decoding on CUDA costs, counted on the stand-in: launches of kernels. */
#include "device/backends.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/cuda_stand_in/stand_in.h"
#include "tests/support/decode_launches.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

enum { ROWS = 40, COLS = 256, OUTPUTS = 33 };

static sn_device *open_device(void) {
    const sn_device_limits limits = {.rows = ROWS, .width = COLS, .context = 64, .heads = 2, .head_dim = 32};
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err));
    OK(d->ops->prepare(d, &limits, &err));
    return d;
}

static void *new_bytes(sn_device *d, size_t bytes) {
    void *at;
    OK(d->ops->alloc(d, bytes, &at, &err));
    return at;
}

static sn_weight new_weight(sn_device *d, sn_dtype dtype, size_t rows, size_t cols) {
    sn_weight weight = {dtype, rows, cols, 0, NULL, NULL};
    float *values = malloc(rows * cols * sizeof *values);
    void *file = test_random_weight(dtype, rows, cols, 3, values), *image;
    OK(d->ops->weight_size(d, dtype, rows, cols, &weight.bytes, &err));
    image = malloc(weight.bytes);
    OK(d->ops->weight_pack(d, dtype, rows, cols, file, image, &err));
    weight.device = new_bytes(d, weight.bytes);
    OK(d->ops->upload(d, (void *)weight.device, image, weight.bytes, &err));
    free(image);
    free(values);
    test_weight_free(file);
    return weight;
}

/* -- how many rows read the weights as they are */

typedef struct product {
    sn_device *d;
    sn_weight weight;
    float *x, *y;
    float got[ROWS * OUTPUTS];
} product;

static product product_new(sn_device *d, sn_dtype dtype) {
    product p = {.d = d, .weight = new_weight(d, dtype, OUTPUTS, COLS)};
    float *x = test_random_floats((size_t)ROWS * COLS, 5);
    p.x = new_bytes(d, ROWS * COLS * sizeof *x);
    p.y = new_bytes(d, ROWS * OUTPUTS * sizeof *x);
    OK(d->ops->upload(d, p.x, x, ROWS * COLS * sizeof *x, &err));
    free(x);
    return p;
}

static void product_free(product *p) {
    p->d->ops->free(p->d, (void *)p->weight.device, p->weight.bytes);
    p->d->ops->free(p->d, p->x, ROWS * COLS * sizeof(float));
    p->d->ops->free(p->d, p->y, ROWS * OUTPUTS * sizeof(float));
}

/* Multiplies n rows; returns the number of launches, or -1 if cuBLAS took part. */
static int product_run(product *p, int n) {
    sn_linear linear = {.weight = &p->weight, .y = p->y};
    uint64_t before = cuda_stand_in_kernels();
    cuda_stand_in_fail_product(1);
    sn_status status = p->d->ops->linear(p->d, n, p->x, 1, &linear, &err);
    cuda_stand_in_heal();
    if (status) cr_assert(strstr(err.text, "cuBLAS"), "%s", err.text);
    if (status) return -1;
    int launches = (int)(cuda_stand_in_kernels() - before);
    OK(p->d->ops->download(p->d, p->got, p->y, (size_t)n * OUTPUTS * sizeof *p->got, &err));
    return launches;
}

static void expect_border(sn_dtype dtype, int border, int conversions) {
    sn_device *d = open_device();
    product p = product_new(d, dtype);
    float eight[8 * OUTPUTS];
    cr_assert_eq(product_run(&p, 8), 1 + conversions);
    memcpy(eight, p.got, sizeof eight);
    cr_assert_eq(product_run(&p, border), 1 + conversions, "%s", sn_dtype_name(dtype));
    cr_assert_eq(memcmp(eight, p.got, sizeof eight), 0, "%s: the first 8 rows have other bits", sn_dtype_name(dtype));
    cr_assert_eq(product_run(&p, border + 1), -1, "%s: %d rows are not left to cuBLAS", sn_dtype_name(dtype),
                 border + 1);
    product_free(&p);
    sn_device_close(&d);
}

Test(cuda_decode, up_to_32_rows_of_quantised_weights_take_two_launches) {
    expect_border(SN_Q4_K, 32, 1);
    expect_border(SN_Q8_0, 32, 1);
}

Test(cuda_decode, up_to_16_rows_of_f16_and_8_of_bf16_take_one_launch) {
    expect_border(SN_F16, 16, 0);
    expect_border(SN_BF16, 8, 0);
}

/* -- launches of a block */

/* Add, norm and 8 bits; q, k, v; rope and store; attention and 8 bits; o; add, norm and 8 bits; up and gate; activation
 * and 8 bits; down. The last add has no norm behind it. */
Test(cuda_decode, a_block_takes_9_launches) {
    const sn_device_id cuda = {SN_DEVICE_CUDA, 0};
    int two = decode_launches(cuda, SN_Q4_1, 2, 0, cuda_stand_in_kernels),
        five = decode_launches(cuda, SN_Q4_1, 5, 0, cuda_stand_in_kernels);
    cr_assert_eq(five - two, 3 * 9, "3 blocks take %d launches", five - two);
    cr_assert_eq(two, 2 * 9 + 1);
}

/* 9 rows: attention by tiles and its join, which write no 8 bits. */
Test(cuda_decode, what_belongs_together_takes_7_launches) {
    const sn_device_id cuda = {SN_DEVICE_CUDA, 0};
    for (int n = 1; n <= 8; n += 7)
        cr_assert_eq(together_launches(cuda, SN_KV_F32, 3, n, cuda_stand_in_kernels), 7, "%d rows", n);
    cr_assert_eq(together_launches(cuda, SN_KV_F32, 3, 9, cuda_stand_in_kernels), 9);
}

/* -- into how many parts attention splits a context */

enum { WIDTH = 64, HEADS = 2, DIM = 32, LONG = 1000, PROMPT = 24, SESSIONS = 2 };
static const sn_kv_shape shape = {1, HEADS, DIM, 16, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};

static float *new_floats(sn_device *d, size_t n, uint64_t seed) {
    float *values = test_random_floats(n, seed), *at = new_bytes(d, n * sizeof *values);
    OK(d->ops->upload(d, at, values, n * sizeof *values, &err));
    free(values);
    return at;
}

/* Up to two sessions, whose contexts repeat one page. */
typedef struct contexts {
    sn_device *d;
    void *page, *pages[LONG / 16 + 2];
    float *q, *attn;
} contexts;

static contexts contexts_new(int multiprocessors) {
    const sn_device_limits limits = {.rows = ROWS, .width = COLS, .context = 2 * LONG, .heads = HEADS, .head_dim = DIM};
    contexts c;
    cuda_stand_in_multiprocessors(multiprocessors);
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &c.d, &err));
    OK(c.d->ops->prepare(c.d, &limits, &err));
    c.page = new_floats(c.d, c.d->ops->kv_page_bytes(c.d, &shape) / sizeof(float), 4);
    for (size_t i = 0; i < sizeof c.pages / sizeof *c.pages; i++) c.pages[i] = c.page;
    c.q = new_floats(c.d, ROWS * WIDTH, 5);
    c.attn = new_floats(c.d, ROWS * WIDTH, 6);
    return c;
}

static void contexts_free(contexts *c) {
    const sn_device_ops *ops = c->d->ops;
    ops->free(c->d, c->page, ops->kv_page_bytes(c->d, &shape));
    ops->free(c->d, c->q, ROWS * WIDTH * sizeof(float));
    ops->free(c->d, c->attn, ROWS * WIDTH * sizeof(float));
    sn_device_close(&c->d);
    cuda_stand_in_reset();
}

/* Attention of the sessions' next rows, from the row `first` of q on; returns how many parts were joined with others.
 */
static int attend(contexts *c, int n_sessions, const int (*sessions)[2], int first, uint64_t key, float *out) {
    sn_device *d = c->d;
    sn_sequence sequences[SESSIONS];
    int n = 0;
    bool replayed;
    for (int i = 0; i < n_sessions; n += sessions[i++][1])
        sequences[i] = (sn_sequence){c->pages, sessions[i][0], n, sessions[i][1], {0}};
    uint64_t before = cuda_stand_in_atomics();
    OK(d->ops->batch_begin(d, &(sn_batch){&shape, n, n_sessions, sequences, key}, &replayed, &err));
    const sn_attention attention = {.n_heads = HEADS, .scale = 0.25f};
    if (!replayed) OK(d->ops->attention(d, &attention, c->q + first * WIDTH, c->attn, &err));
    OK(d->ops->batch_end(d, &err));
    OK(d->ops->download(d, out, c->attn, (size_t)n * WIDTH * sizeof *out, &err));
    return (int)(cuda_stand_in_atomics() - before);
}

static const int alone_short[][2] = {{40, 1}}, alone_long[][2] = {{LONG, 1}};

Test(cuda_decode, a_context_is_split_by_its_length_and_by_the_device) {
    float out[WIDTH];
    static const struct {
        int multiprocessors, parts; /* of each head */
    } cards[] = {{4, 8}, {20, 16}, {132, 16}};
    for (int i = 0; i < 3; i++) {
        contexts c = contexts_new(cards[i].multiprocessors);
        cr_assert_eq(attend(&c, 1, alone_short, 0, 0, out), 0, "41 keys are split");
        cr_assert_eq(attend(&c, 1, alone_long, 0, 0, out), HEADS * cards[i].parts, "%d multiprocessors",
                     cards[i].multiprocessors);
        contexts_free(&c);
    }
}

Test(cuda_decode, a_recorded_batch_is_split_by_the_length_that_it_has_then) {
    float fresh[WIDTH], recorded[WIDTH], again[WIDTH];
    contexts c = contexts_new(20);
    attend(&c, 1, alone_long, 0, 0, fresh);
    for (int i = 0; i < 3; i++) cr_assert_eq(attend(&c, 1, alone_short, 0, 7, recorded), 0);
    cr_assert_eq(cuda_stand_in_graph_launches(), 2);
    cr_assert_eq(attend(&c, 1, alone_long, 0, 7, recorded), HEADS * 16);
    cr_assert_eq(attend(&c, 1, alone_long, 0, 7, again), HEADS * 16, "a second replay does not join");
    cr_assert_eq(cuda_stand_in_graph_launches(), 4);
    cr_assert_arr_eq(recorded, fresh, sizeof fresh);
    cr_assert_arr_eq(again, fresh, sizeof fresh);
    contexts_free(&c);
}

Test(cuda_decode, a_row_beside_a_prompt_is_split_as_it_is_alone) {
    static float alone[WIDTH], beside[ROWS * WIDTH];
    static const int with_prompt[][2] = {{5, PROMPT}, {LONG, 1}};
    contexts c = contexts_new(20);
    attend(&c, 1, alone_long, PROMPT, 0, alone);
    cr_assert_eq(attend(&c, 2, with_prompt, 0, 0, beside), HEADS * 16);
    cr_assert_arr_eq(beside + PROMPT * WIDTH, alone, sizeof alone);
    contexts_free(&c);
}

/* Two batches of 25 rows and two sessions: one has one row beside a prompt, the other one five. */
Test(cuda_decode, a_recorded_batch_is_not_replayed_for_other_numbers_of_few_rows) {
    static float fresh[ROWS * WIDTH], other[ROWS * WIDTH];
    static const int one[][2] = {{5, PROMPT}, {LONG, 1}}, five[][2] = {{5, PROMPT - 4}, {LONG, 5}};
    contexts c = contexts_new(20);
    attend(&c, 2, five, 0, 0, fresh);
    for (int i = 0; i < 2; i++) attend(&c, 2, one, 0, 7, other);
    attend(&c, 2, five, 0, 7, other);
    cr_assert_arr_eq(other, fresh, (PROMPT + 1) * WIDTH * sizeof *fresh);
    contexts_free(&c);
}

/* -- experts */

enum { EXPERTS = 2, OUT = 64, BATCH = 8 };

/* Two experts of the same weights. */
static sn_experts new_experts(sn_device *d) {
    sn_weight one = new_weight(d, SN_Q8_0, OUT, COLS);
    sn_experts experts = {one, (one.bytes + 63) / 64 * 64, EXPERTS};
    void *image = malloc(one.bytes);
    char *all = new_bytes(d, EXPERTS * experts.stride);
    OK(d->ops->download(d, image, one.device, one.bytes, &err));
    for (size_t e = 0; e < EXPERTS; e++) OK(d->ops->upload(d, all + e * experts.stride, image, one.bytes, &err));
    d->ops->free(d, (void *)one.device, one.bytes);
    free(image);
    experts.first.device = all;
    return experts;
}

/* Bytes that the kernels load for n rows, each through both experts. */
static uint64_t expert_bytes(sn_device *d, int n, const sn_experts *experts, float *out) {
    int32_t ids[EXPERTS * BATCH];
    for (int i = 0; i < EXPERTS * BATCH; i++) ids[i] = i % EXPERTS;
    void *on_device = new_bytes(d, sizeof ids);
    float *x = new_floats(d, BATCH * COLS, 8), *y = new_floats(d, EXPERTS * BATCH * OUT, 9);
    OK(d->ops->upload(d, on_device, ids, sizeof ids, &err));
    const sn_moe_selection selection = {n, EXPERTS, EXPERTS, on_device, NULL};
    OK(d->ops->finish(d, &err));
    uint64_t before = cuda_stand_in_loaded();
    OK(d->ops->moe_linear(d, &selection, false, x, 1, &(sn_moe_linear){experts, NULL, y}, &err));
    OK(d->ops->finish(d, &err));
    uint64_t bytes = cuda_stand_in_loaded() - before;
    OK(d->ops->download(d, out, y, EXPERTS * BATCH * OUT * sizeof *out, &err));
    d->ops->free(d, on_device, sizeof ids);
    d->ops->free(d, x, BATCH * COLS * sizeof *x);
    d->ops->free(d, y, EXPERTS * BATCH * OUT * sizeof *y);
    return bytes;
}

Test(cuda_decode, an_expert_is_read_once_for_all_rows_of_a_batch) {
    static float one[EXPERTS * BATCH * OUT], all[EXPERTS * BATCH * OUT];
    const sn_device_limits limits = {.rows = BATCH, .width = COLS, .experts = EXPERTS, .experts_used = EXPERTS};
    sn_device *d = open_device();
    OK(d->ops->prepare(d, &limits, &err));
    const sn_experts experts = new_experts(d);
    uint64_t for_one = expert_bytes(d, 1, &experts, one), for_all = expert_bytes(d, BATCH, &experts, all);
    cr_assert_lt(for_all, 2 * for_one, "%d rows load %llu bytes, one loads %llu", BATCH, (unsigned long long)for_all,
                 (unsigned long long)for_one);
    cr_assert_arr_eq(one, all, EXPERTS * OUT * sizeof *one, "other bits than alone");
    d->ops->free(d, (void *)experts.first.device, EXPERTS * experts.stride);
    sn_device_close(&d);
}

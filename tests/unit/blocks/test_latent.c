/* Latent attention (DeepSeek): what the KV cache holds and what it takes, that sessions over it are rewound, shared,
 * swapped, handed over and saved, its forms in GGUF files, and what is refused. test_golden.c and test_bits.c compare
 * what the blocks compute with the reference and with themselves. */
#include "blocks/train.h"
#include "client/tune/params.h"
#include "device/weight.h"
#include "client/chain/chain_private.h" /* private: where hops begin */
#include "tests/support/chain_fixture.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN SN_FIXTURES "/golden/deepseek_v3"

/* -- the device */

enum { LATENT = 40, ROTATED = 10, KEY = LATENT + ROTATED, HEADS = 21, TOKENS = 75, PAGES = 3 };

/* Keys of TOKENS positions, whose values are their first LATENT elements. Attends as latents, or as a plain KV cache
 * with the keys as values. out (TOKENS, HEADS, LATENT). */
static void attend(sn_device *d, bool latent, sn_kv_dtype dtype, const float *keys, const float *q, float *out) {
    const sn_kv_shape shape = {2, 1, KEY, 32, dtype, latent ? LATENT : 0, 0, {0}, {0}, 0, 0, false};
    const sn_attention how = {.block = 1, .n_heads = HEADS, .scale = 0.2f};
    size_t width = latent ? LATENT : KEY, bytes = d->ops->kv_page_bytes(d, &shape);
    float *k = malloc(sizeof(float) * TOKENS * KEY), *v = malloc(sizeof(float) * TOKENS * KEY),
          *all = malloc(sizeof(float) * TOKENS * HEADS * width);
    void *pages[PAGES];
    for (int i = 0; i < PAGES; i++) {
        REQUIRE(d->ops->alloc(d, bytes, &pages[i], &err));
        memset(pages[i], 0xff, bytes); /* NaN where nothing is stored */
    }
    for (size_t t = 0; t < TOKENS; t++) {
        size_t own = KEY - (latent ? LATENT : 0);
        memcpy(k + t * own, keys + t * KEY + (latent ? LATENT : 0), own * sizeof *k);
        memcpy(v + t * width, keys + t * KEY, width * sizeof *v);
    }
    for (int at = 0, n; at < TOKENS; at += n) { /* in chunks of any size, positions after them not stored */
        n = at == 0 ? 50 : at < 60 ? 1 : TOKENS - at;
        const sn_sequence seq = {.pages = pages, .position = at, .n_rows = n};
        size_t first = (size_t)at;
        REQUIRE(test_kv_store(d, &shape, 1, 1, &seq, k + first * (latent ? ROTATED : KEY), v + first * width, &err));
        REQUIRE(test_attention(d, &shape, 1, &seq, &how, q + first * HEADS * KEY, all + first * HEADS * width, &err));
    }
    for (size_t i = 0; i < (size_t)TOKENS * HEADS; i++) memcpy(out + i * LATENT, all + i * width, LATENT * sizeof *out);
    float *k_back = malloc(sizeof(float) * TOKENS * KEY), *v_back = malloc(sizeof(float) * TOKENS * KEY);
    REQUIRE(d->ops->kv_read(d, &shape, 1, pages, 0, TOKENS, k_back, v_back, &err));
    REQUIRE(d->ops->kv_write(d, &shape, 0, pages, 0, TOKENS, k_back, v_back, &err)); /* to another block */
    REQUIRE(d->ops->kv_read(d, &shape, 0, pages, 0, TOKENS, k, v, &err));
    cr_assert(!memcmp(k, k_back, TOKENS * (latent ? ROTATED : KEY) * sizeof *k));
    cr_assert(!memcmp(v, v_back, TOKENS * width * sizeof *v));
    for (int i = 0; i < PAGES; i++) d->ops->free(d, pages[i], bytes);
    free(k), free(v), free(all), free(k_back), free(v_back);
}

Test(latent, attention_has_the_bits_of_keys_and_values_that_are_stored_apart) {
    const sn_device_limits limits = {.rows = 128, .width = 256, .context = 256, .heads = HEADS, .head_dim = KEY};
    test_devices devices = test_devices_open(&limits);
    float *keys = test_random_floats(TOKENS * KEY, 1), *q = test_random_floats(TOKENS * HEADS * KEY, 2);
    float *want = malloc(sizeof(float) * TOKENS * HEADS * LATENT),
          *got = malloc(sizeof(float) * TOKENS * HEADS * LATENT);
    for (int dtype = 0; dtype < SN_KV_DTYPE_COUNT; dtype++) {
        attend(devices.at[0], false, (sn_kv_dtype)dtype, keys, q, want);
        for (int i = 0; i < devices.n; i++) {
            attend(devices.at[i], true, (sn_kv_dtype)dtype, keys, q, got);
            size_t at = test_differ(want, got, TOKENS * HEADS * LATENT);
            cr_expect_eq(at, TOKENS * HEADS * LATENT, "%s, %s: element %zu is %g, not %g",
                         sn_device_describe(devices.at[i]), sn_kv_dtype_name((sn_kv_dtype)dtype), at, (double)got[at],
                         (double)want[at]);
        }
    }
    free(keys), free(q), free(want), free(got);
    test_devices_close(&devices);
}

/* DeepSeek-V3: 512 + 64 numbers of a token and block. */
Test(latent, a_token_takes_its_latent_and_its_rotated_key) {
    sn_device *d = NULL;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &d, &err));
    const size_t bytes[SN_KV_DTYPE_COUNT] = {576 * 4, 576 * 2, 576 + 576 / 32 * 2};
    for (int dtype = 0; dtype < SN_KV_DTYPE_COUNT; dtype++) {
        const sn_kv_shape shape = {3, 1, 576, 32, (sn_kv_dtype)dtype, 512, 0, {0}, {0}, 0, 0, false};
        cr_expect_eq(d->ops->kv_page_bytes(d, &shape), 3 * 32 * bytes[dtype]);
    }
    sn_device_close(&d);
}

Test(latent, each_head_takes_its_own_matrix) {
    enum { N = 37, COLS = 32, ROWS = 24, REST = 5 };
    const sn_device_limits limits = {.rows = 64, .width = 256, .context = 32, .heads = 3, .head_dim = 64};
    test_devices devices = test_devices_open(&limits);
    float *x = test_random_floats(N * 3 * (COLS + REST), 5), *plain = malloc(sizeof(float) * N * COLS);
    float *want = malloc(sizeof(float) * N * 3 * (ROWS + REST)), *got = malloc(sizeof(float) * N * 3 * (ROWS + REST));
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype dtype = test_weight_types[t];
        if (COLS % sn_dtype_block(dtype)) continue;
        float *values = malloc(sizeof(float) * ROWS * COLS);
        for (int i = 0; i < devices.n; i++) {
            sn_device *d = devices.at[i];
            size_t bytes, stride;
            void *memory = NULL;
            REQUIRE(d->ops->weight_size(d, dtype, ROWS, COLS, &bytes, &err));
            stride = (bytes + 63) / 64 * 64;
            REQUIRE(d->ops->alloc(d, 3 * stride, &memory, &err));
            for (size_t h = 0; h < 3; h++) {
                void *host = test_random_weight(dtype, ROWS, COLS, h + 1, values);
                sn_weight one;
                float *y = malloc(sizeof(float) * N * ROWS);
                REQUIRE(sn_weight_upload(d, dtype, ROWS, COLS, host, (char *)memory + h * stride, &one, &err));
                for (size_t n = 0; n < N; n++)
                    memcpy(plain + n * COLS, x + (n * 3 + h) * (COLS + REST), COLS * sizeof *plain);
                REQUIRE(d->ops->linear(d, N, plain, 1, &(sn_linear){.weight = &one, .y = y}, &err));
                for (size_t n = 0; n < N; n++) {
                    memcpy(want + (n * 3 + h) * (ROWS + REST), y + n * ROWS, ROWS * sizeof *want);
                    memcpy(want + (n * 3 + h) * (ROWS + REST) + ROWS, x + (n * 3 + h) * (COLS + REST) + COLS,
                           REST * sizeof *want);
                }
                free(y);
                test_weight_free(host);
            }
            const sn_experts heads = {{dtype, ROWS, COLS, bytes, memory, NULL}, stride, 3};
            REQUIRE(d->ops->head_linear(d, N, x, COLS + REST, &heads, got, &err));
            cr_expect_eq(test_differ(want, got, N * 3 * (ROWS + REST)), (size_t)(N * 3 * (ROWS + REST)), "%s, %s",
                         sn_device_describe(d), sn_dtype_name(dtype));
            d->ops->free(d, memory, 3 * stride);
        }
        free(values);
    }
    free(x), free(plain), free(want), free(got);
    test_devices_close(&devices);
}

/* Of two groups one is used: {a0, a1}, {b0, b1}. Expects both experts of the group that begins with `first`. */
static void expect_group(sn_device *d, sn_router_scoring scoring, const float *logits, const float *correction,
                         int first) {
    const sn_moe_router router = {4, 2, scoring, correction, false, 1, 2, 1, NULL, 0};
    int32_t ids[2];
    float weights[2];
    REQUIRE(d->ops->moe_gate(d, 1, &router, logits, ids, weights, &err));
    cr_expect(ids[0] / 2 * 2 == first && ids[1] / 2 * 2 == first, "experts %d and %d, not of the group from %d on",
              ids[0], ids[1], first);
}

/* One excellent expert with a bad one against two good ones: groups rank by their best one with softmax (V2), by their
 * two best ones with sigmoid (V3). Ranks may be negative: a group that is not used is never chosen. */
Test(latent, groups_of_experts_rank_by_their_best_one_or_two) {
    static const float logits[4] = {3, -6, 2, 2}, none[4] = {0}, negative[4] = {-2, -2, -2, -2};
    sn_device *d = NULL;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &d, &err));
    expect_group(d, SN_ROUTER_SOFTMAX_ALL, logits, NULL, 0);
    expect_group(d, SN_ROUTER_SIGMOID, logits, none, 2);
    expect_group(d, SN_ROUTER_SIGMOID, logits, negative, 2);
    sn_device_close(&d);
}

/* -- sessions over pages of latents, of index keys beside them, and of blocks whose heads differ in number and in both
 * widths */

static const char *const OF_SESSIONS[] = {GOLDEN, SN_FIXTURES "/golden/mimo_v2_flash", SN_FIXTURES "/golden/gemma4",
                                          SN_FIXTURES "/golden/deepseek_v32_sparse"};
enum { N_OF_SESSIONS = sizeof OF_SESSIONS / sizeof *OF_SESSIONS };

static void expect_hand_over(const char *model, sn_kv_dtype dtype) {
    testbed *w =
        testbed_new(&(cluster_options){.model = model, .kv_memory = 64, .drain_timeout_s = 10, .kv_dtype = dtype});
    chain_fixture r;
    for (int twice = 0; twice < 2; twice++) cluster_add(w->cluster, 0, 2), cluster_add(w->cluster, 2, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.kv.replica = true, .kv.dtype = dtype});
    chain_fixture_steps(&r, 0, 50, 20);
    chain_fixture_steps(&r, 33, 60, 7);
    for (size_t k = 0; k < sn_chain_hops(r.chain, NULL, 0); k++)
        cr_assert_eq(sn_chain_await_replica(r.chain, k, 10000, &r.err), SN_OK, "%s", r.err.text);
    cluster_cut_off(w->cluster, cluster_node_of_block(r.chain, 0));
    chain_fixture_steps(&r, 60, TESTBED_TOKENS, 9);
    cr_expect_geq(sn_chain_replicas_promoted(r.chain), 1, "%s", model);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(latent, a_session_is_rewound_and_handed_over_by_nodes_that_leave) {
    for (int i = 0; i < N_OF_SESSIONS; i++) expect_hand_over(OF_SESSIONS[i], i == 1 ? SN_KV_Q8 : SN_KV_F32);
}

static void expect_saved_session(const char *model) {
    testbed *w = testbed_new(&(cluster_options){.model = model, .kv_memory = 64});
    chain_fixture r;
    sn_hash marks[51];
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 50, 13);
    const sn_hparams *hp = sn_model_hparams(r.model);
    float *rows = malloc(sizeof(float) * 50 * sn_kv_width(hp, 0, hp->n_blocks));
    REQUIRE(sn_chain_get_kv(r.chain, 0, 50, rows, &err));
    chain_fixture_close(&r);
    for (int i = 0; i <= 50; i++) marks[i] = sn_hash_of(&i, sizeof i);
    cluster_add(w->cluster, 0, 1), cluster_add(w->cluster, 1, 4);
    const char *only[] = {"node1", "node2"};
    chain_fixture_open(&r, w, (sn_chain_options){.routing.node_filter = {only, 2, NULL, 0}});
    REQUIRE(sn_chain_put_kv(r.chain, 0, 50, rows, marks, &err));
    REQUIRE(sn_chain_resume(r.chain, 50, marks, w->inputs, &err));
    chain_fixture_steps(&r, 50, TESTBED_TOKENS, 9);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    chain_fixture_close(&r);
    free(rows);
    testbed_free(&w);
}

Test(latent, a_saved_session_continues_over_another_cut) {
    for (int i = 0; i < N_OF_SESSIONS; i++) expect_saved_session(OF_SESSIONS[i]);
}

static void expect_prefix_and_swap(const char *model) {
    testbed *w = testbed_new(&(cluster_options){.model = model,
                                                .kv_memory = 3,
                                                .prefix_cache_memory = 1 << 20,
                                                .swap_to = SN_IN_HOST,
                                                .swap_memory = 1 << 20,
                                                .kv_timeout_s = 4});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *u = node_client_new(w, 0);
    node_session a, b, c;
    node_session_init(&a, w, t, 0, 4), node_session_init(&b, w, t, 0, 4), node_session_init(&c, w, u, 0, 4);
    node_session_open(&a), node_session_open(&b), node_session_open(&c);
    cr_expect(node_session_step_ok(&a, 0, 80));
    cr_expect(node_session_step_ok(&b, 0, 70));
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 64);
    node_session_close(&b);
    cr_expect(node_session_step_ok(&c, 0, 80)); /* another client's: nothing is shared, and the pool holds one */
    cr_expect(node_session_step_ok(&a, 80, 1));
    cr_expect(node_session_step_ok(&c, 80, 16));
    node_session_close(&a), node_session_close(&c);
    node_client_free(&t), node_client_free(&u);
    testbed_free(&w);
}

Test(latent, sessions_share_a_prefix_and_are_swapped_out) {
    for (int i = 0; i < N_OF_SESSIONS; i++) expect_prefix_and_swap(OF_SESSIONS[i]);
}

/* -- blocks that share a choice: of this model parts begin and end at blocks 0, 1, 3 and 5 */

#define SHARED SN_FIXTURES "/golden/glm_moe_dsa_sparse"

Test(latent, blocks_stay_with_the_one_whose_choice_they_share) {
    testbed *w = testbed_new(&(cluster_options){.model = SHARED, .kv_memory = 64});
    chain_fixture r;
    cluster_add(w->cluster, 0, 3), cluster_add(w->cluster, 1, 5);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    for (size_t i = 1; i < sn_chain_hops(r.chain, NULL, 0); i++)
        cr_expect(r.chain->hops[i].first == 1 || r.chain->hops[i].first == 3);
    chain_fixture_steps(&r, 0, 50, 13);
    chain_fixture_steps(&r, 30, 70, 1); /* a rewind */
    chain_fixture_close(&r);
    testbed_free(&w);
}

static sn_msg *open_of(node_client *t, node_session *session) {
    sn_msg *open = node_session_open_message(session);
    return node_client_request(t, &open);
}

/* While every row attends to all positions nothing is chosen, and a span may begin there. */
static void expect_no_pass_from(const sn_model *m, int first) {
    const sn_hparams *hp = sn_model_hparams(m);
    sn_device *d = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv_cache *kv = NULL;
    sn_err why = {0};
    float *rows = calloc((size_t)(hp->index_topk + 1) * (size_t)hp->n_embd, sizeof *rows);
    const sn_tensor input = {
        .name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {hp->index_topk + 1, hp->n_embd}};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &d, &err));
    REQUIRE(sn_span_load(m, d, first, hp->n_blocks, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 1 << 20, &pool, &err));
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    REQUIRE(sn_kv_cache_reserve(kv, hp->index_topk + 1, &err));
    const sn_span_sequence some = {kv, &input, 0, hp->index_topk, rows}, one = {kv, &input, 0, 1, rows};
    REQUIRE(sn_span_forward(span, first, hp->n_blocks, 1, &some, NULL, &err));
    cr_expect_eq(sn_span_forward(span, first, hp->n_blocks, 1, &one, NULL, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "are no part of this model by themselves"), "%s", why.text);
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&d);
    free(rows);
}

Test(latent, a_part_that_begins_with_a_shared_choice_is_refused) {
    testbed *w = testbed_new(&(cluster_options){.model = SHARED, .kv_memory = 64});
    cluster_add(w->cluster, 0, 5);
    node_client *t = node_client_new(w, 0);
    node_session a, b;
    node_session_init(&a, w, t, 2, 5), node_session_init(&b, w, t, 1, 3);
    cr_expect(is_refusal(open_of(t, &a), SN_REFUSED, "block 2 attends to what"));
    cr_expect(is_opened(open_of(t, &b)));
    node_session_close(&b);
    free(a.timeline);
    node_client_free(&t);
    testbed_free(&w);
    sn_err why;
    sn_hparams hp;
    sn_model *m = NULL;
    REQUIRE(sn_model_open(SHARED, &m, &err));
    hp = *sn_model_hparams(m);
    cr_expect_eq(sn_check_cuts(&hp, 1, 4, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "block 4 attends to what a block before it chooses"), "%s", why.text);
    cr_expect(strstr(why.text, "begin and end at 0, 1, 3, 5"), "%s", why.text);
    cr_expect_eq(sn_check_cuts(&hp, 3, 5, &why), SN_OK);
    expect_no_pass_from(m, 2);
    sn_model_close(&m);
}

/* -- what is refused */

Test(latent, training_is_refused) {
    sn_model *m = NULL;
    sn_device *d = NULL;
    sn_span *span = NULL;
    sn_train *train = NULL;
    sn_params *params = NULL;
    sn_err why = {0};
    const sn_params_shape shape = {.method = SN_METHOD_PROMPT, .prompt_tokens = 4};
    REQUIRE(sn_model_open(GOLDEN, &m, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &d, &err));
    REQUIRE(sn_span_load(m, d, 0, 2, NULL, NULL, &span, &err));
    cr_expect_eq(sn_train_new(span, 16, &train, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "latent attention has no backward pass"), "%s", why.text);
    cr_expect_eq(sn_params_new(sn_model_hparams(m), &shape, &params, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "deepseek_v3 family cannot be trained"), "%s", why.text);
    sn_span_free(&span);
    sn_device_close(&d);
    sn_model_close(&m);
}

/* -- GGUF */

typedef struct gguf {
    sn_buf directory, data;
    uint64_t n;
} gguf;

/* dims: the fastest first; type: of ggml. */
static void add_tensor(gguf *g, const char *name, int n_dims, const size_t *dims, uint32_t type, const void *data,
                       size_t bytes) {
    put_gguf_string(&g->directory, name);
    put_u32(&g->directory, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++) put_u64(&g->directory, dims[i]);
    put_u32(&g->directory, type);
    put_u64(&g->directory, g->data.len);
    put_bytes(&g->data, data, bytes);
    pad_to(&g->data, 32);
    g->n++;
}

typedef struct key_value {
    const char *key;
    bool real;
    double value;
} key_value;

static char *write_gguf(const char *folder, gguf *g, const key_value *keys, size_t n_keys, const char *rope) {
    sn_buf b = {0};
    char key[96];
    put_gguf_header(&b, 3, g->n, n_keys + 2 + 1);
    put_gguf_text(&b, "general.architecture", "deepseek2");
    put_gguf_text(&b, "deepseek2.rope.scaling.type", rope);
    put_gguf_key(&b, "deepseek2.expert_weights_norm", 7); /* bool */
    put_bytes(&b, &(uint8_t){1}, 1);
    for (size_t i = 0; i < n_keys; i++) {
        snprintf(key, sizeof key, "deepseek2.%s", keys[i].key);
        if (keys[i].real)
            put_gguf_f32(&b, key, (float)keys[i].value);
        else
            put_gguf_u32(&b, key, (uint32_t)keys[i].value);
    }
    put_bytes(&b, g->directory.data, g->directory.len);
    pad_to(&b, 32);
    put_bytes(&b, g->data.data, g->data.len);
    write_file(folder, "model.gguf", b.data, b.len);
    sn_buf_fini(&b), sn_buf_fini(&g->directory), sn_buf_fini(&g->data);
    return temp_path(folder, "model.gguf");
}

static const struct {
    sn_role role;
    const char *name;
} NAMES[] = {{SN_ROLE_TOKEN_EMBEDDING, "token_embd.weight"},
             {SN_ROLE_OUTPUT_NORM, "output_norm.weight"},
             {SN_ROLE_OUTPUT, "output.weight"},
             {SN_ROLE_ATTN_NORM, "attn_norm.weight"},
             {SN_ROLE_ATTN_Q_LOW, "attn_q_a.weight"},
             {SN_ROLE_ATTN_Q_LOW_NORM, "attn_q_a_norm.weight"},
             {SN_ROLE_ATTN_Q, "attn_q_b.weight"},
             {SN_ROLE_ATTN_LATENT_NORM, "attn_kv_a_norm.weight"},
             {SN_ROLE_ATTN_O, "attn_output.weight"},
             {SN_ROLE_FFN_NORM, "ffn_norm.weight"},
             {SN_ROLE_FFN_GATE, "ffn_gate.weight"},
             {SN_ROLE_FFN_UP, "ffn_up.weight"},
             {SN_ROLE_FFN_DOWN, "ffn_down.weight"},
             {SN_ROLE_ROUTER, "ffn_gate_inp.weight"},
             {SN_ROLE_ROUTER_CORRECTION, "exp_probs_b.bias"},
             {SN_ROLE_EXPERTS_GATE, "ffn_gate_exps.weight"},
             {SN_ROLE_EXPERTS_UP, "ffn_up_exps.weight"},
             {SN_ROLE_EXPERTS_DOWN, "ffn_down_exps.weight"},
             {SN_ROLE_SHARED_GATE, "ffn_gate_shexp.weight"},
             {SN_ROLE_SHARED_UP, "ffn_up_shexp.weight"},
             {SN_ROLE_SHARED_DOWN, "ffn_down_shexp.weight"},
             {SN_ROLE_ATTN_K_UP, "attn_k_b.weight"},
             {SN_ROLE_ATTN_V_UP, "attn_v_b.weight"}};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES, BF16 = 30, Q8_0 = 8, F32 = 0 };

/* All matrices of a role of the model, one after the other. */
static void add_role(gguf *g, const sn_model *m, sn_role role, int block, const char *base) {
    sn_model_tensor t;
    sn_buf all = {0};
    char name[64];
    int parts = sn_role_n_matrices(sn_model_hparams(m), role);
    REQUIRE(sn_model_find(m, role, block, &t, &err));
    if (!t.data) return;
    const size_t dims[] = {t.cols, t.rows, (size_t)parts};
    for (int i = 0; i < parts; i++) {
        const void *rows;
        void *copy;
        REQUIRE(sn_model_find_expert(m, role, block, i, &t, &err));
        REQUIRE(sn_model_contiguous(&t, &rows, &copy, &err));
        put_bytes(&all, rows, t.bytes);
        free(copy);
    }
    snprintf(name, sizeof name, role < SN_ROLE_FIRST_OF_BLOCK ? "%s" : "blk.%2$d.%1$s", base, block);
    add_tensor(g, name, sn_role_is_vector(role) ? 1 : parts > 1 ? 3 : 2, dims, BF16, all.data, all.len);
    sn_buf_fini(&all);
}

/* Two roles whose rows one tensor holds one after the other, for each of `parts` matrices. */
static void add_joined(gguf *g, const sn_model *m, sn_role first, sn_role second, int block, const char *base) {
    char name[64];
    sn_model_tensor a, b;
    int parts = sn_role_n_matrices(sn_model_hparams(m), first);
    REQUIRE(sn_model_find(m, first, block, &a, &err));
    REQUIRE(sn_model_find(m, second, block, &b, &err));
    /* the folder has them joined, too: the tensor begins where the first role's first matrix does */
    size_t cols = b.cols, rows = (size_t)parts * (a.bytes + b.bytes) / (cols * 2);
    snprintf(name, sizeof name, "blk.%d.%s", block, base);
    add_tensor(g, name, 2, (const size_t[]){cols, rows}, BF16, a.data, rows * cols * 2);
}

/* The golden model as the converter writes it (split), or as older converters did (joined); silent: without the
 * router's function, as GLM-4.7-Flash is published. */
static char *write_golden(const char *folder, const sn_model *m, bool split, bool silent) {
    const key_value keys[] = {{"expert_gating_func", false, 2},
                              {"block_count", false, 5}, /* with the block that predicts further tokens */
                              {"nextn_predict_layers", false, 1},
                              {"context_length", false, 256},
                              {"embedding_length", false, 64},
                              {"feed_forward_length", false, 96},
                              {"attention.head_count", false, 4},
                              {"attention.head_count_kv", false, split ? 1 : 4},
                              {"attention.key_length", false, split ? 28 : 20},
                              {"attention.value_length", false, split ? 20 : 16},
                              {"attention.q_lora_rank", false, 24},
                              {"attention.kv_lora_rank", false, 20},
                              {"attention.layer_norm_rms_epsilon", true, 1e-5},
                              {"rope.dimension_count", false, 8},
                              {"rope.freq_base", true, 10000},
                              {"rope.scaling.factor", true, 8},
                              {"rope.scaling.original_context_length", false, 32},
                              {"rope.scaling.yarn_log_multiplier", true, 0.1},
                              {"leading_dense_block_count", false, 1},
                              {"expert_count", false, 8},
                              {"expert_used_count", false, 3},
                              {"expert_shared_count", false, 1},
                              {"expert_feed_forward_length", false, 48},
                              {"expert_weights_scale", true, 2.5},
                              {"expert_group_count", false, 4},
                              {"expert_group_used_count", false, 2},
                              {"attention.key_length_mla", false, 20},
                              {"attention.value_length_mla", false, 16}};
    gguf g = {0};
    for (int i = 0; i < N_NAMES - (split ? 0 : 2); i++)
        for (int block = 0; block < (NAMES[i].role < SN_ROLE_FIRST_OF_BLOCK ? 1 : 4); block++)
            add_role(&g, m, NAMES[i].role, block, NAMES[i].name);
    for (int block = 0; block < 4; block++) {
        add_joined(&g, m, SN_ROLE_ATTN_V, SN_ROLE_ATTN_K, block, "attn_kv_a_mqa.weight");
        if (!split) add_joined(&g, m, SN_ROLE_ATTN_K_UP, SN_ROLE_ATTN_V_UP, block, "attn_kv_b.weight");
    }
    return write_gguf(folder, &g, keys + silent, sizeof keys / sizeof *keys - silent - (split ? 0 : 2), "yarn");
}

Test(latent, both_forms_of_gguf_files_and_the_folder_give_the_same_blocks) {
    sn_model *m = NULL;
    REQUIRE(sn_model_open(GOLDEN, &m, &err));
    for (int form = 0; form < 4; form++) {
        const bool split = form & 1, silent = form & 2;
        char *folder = temp_folder(), *path = write_golden(folder, m, split, silent);
        sn_model *other = NULL;
        REQUIRE(sn_model_open(path, &other, &err));
        cr_expect_eq(sn_model_hparams(other)->n_blocks, 4);
        cr_expect_str_eq(sn_model_hparams(other)->family, "deepseek_v3");
        cr_expect(sn_model_hparams(m)->norm_eps == 1e-5f && sn_model_hparams(m)->latent_eps == 1e-6f);
        for (int block = 0; block < 4; block++) {
            sn_hash a, b;
            REQUIRE(sn_model_block_hash(m, block, &a, &err));
            REQUIRE(sn_model_block_hash(other, block, &b, &err));
            cr_expect(!memcmp(a.bytes, b.bytes, SN_HASH_SIZE), "form %d, block %d", form, block);
        }
        sn_model_close(&other);
        free(path);
        temp_folder_remove(&folder);
    }
    sn_model_close(&m);
}

/* A model of one dense block, random, with attn_kv_b in Q8_0; split: its parts, the keys' as float32. */
static char *write_quantised(const char *folder, bool split) {
    enum { EMBD = 32, H = 2, NOPE = 6, ROPE = 4, VALUE = 5, R = 64, FF = 32, VOCAB = 8, BYTES = R / 32 * 34 };
    const key_value keys[] = {{"block_count", false, 1},
                              {"context_length", false, 64},
                              {"embedding_length", false, EMBD},
                              {"feed_forward_length", false, FF},
                              {"vocab_size", false, VOCAB},
                              {"attention.head_count", false, H},
                              {"attention.key_length", false, NOPE + ROPE},
                              {"attention.value_length", false, VALUE},
                              {"attention.kv_lora_rank", false, R},
                              {"attention.layer_norm_rms_epsilon", true, 1e-6},
                              {"rope.dimension_count", false, ROPE},
                              {"leading_dense_block_count", false, 1},
                              {"expert_count", false, 2},
                              {"expert_used_count", false, 1},
                              {"expert_feed_forward_length", false, FF}};
    static const struct {
        const char *name;
        size_t dims[2];
    } plain[] = {{"token_embd.weight", {EMBD, VOCAB}},
                 {"output.weight", {EMBD, VOCAB}},
                 {"blk.0.attn_q.weight", {EMBD, H * (NOPE + ROPE)}},
                 {"blk.0.attn_kv_a_mqa.weight", {EMBD, R + ROPE}},
                 {"blk.0.attn_output.weight", {H * VALUE, EMBD}},
                 {"blk.0.ffn_gate.weight", {EMBD, FF}},
                 {"blk.0.ffn_up.weight", {EMBD, FF}},
                 {"blk.0.ffn_down.weight", {FF, EMBD}},
                 {"output_norm.weight", {EMBD, 0}},
                 {"blk.0.attn_norm.weight", {EMBD, 0}},
                 {"blk.0.ffn_norm.weight", {EMBD, 0}},
                 {"blk.0.attn_kv_a_norm.weight", {R, 0}}};
    gguf g = {0};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        size_t n = plain[i].dims[0] * (plain[i].dims[1] ? plain[i].dims[1] : 1);
        float *x = test_random_floats(n, i + 1);
        add_tensor(&g, plain[i].name, plain[i].dims[1] ? 2 : 1, plain[i].dims, F32, x, n * sizeof *x);
        free(x);
    }
    float values[H * (NOPE + VALUE) * R], keys_up[H][R][NOPE];
    uint8_t *both = test_random_weight(SN_Q8_0, H * (NOPE + VALUE), R, 77, values), values_up[H][VALUE][BYTES];
    for (size_t h = 0; h < H; h++) {
        size_t first = h * (NOPE + VALUE);
        for (size_t r = 0; r < R; r++)
            for (size_t i = 0; i < NOPE; i++) keys_up[h][r][i] = values[(first + i) * R + r];
        memcpy(values_up[h], both + (first + NOPE) * BYTES, VALUE * BYTES);
    }
    if (split) {
        add_tensor(&g, "blk.0.attn_k_b.weight", 3, (const size_t[]){NOPE, R, H}, F32, keys_up, sizeof keys_up);
        add_tensor(&g, "blk.0.attn_v_b.weight", 3, (const size_t[]){R, VALUE, H}, Q8_0, values_up, sizeof values_up);
    } else {
        add_tensor(&g, "blk.0.attn_kv_b.weight", 2, (const size_t[]){R, H * (NOPE + VALUE)}, Q8_0, both,
                   H * (NOPE + VALUE) * BYTES);
    }
    test_weight_free(both);
    return write_gguf(folder, &g, keys, sizeof keys / sizeof *keys, "none");
}

Test(latent, a_quantised_matrix_of_keys_and_values_is_turned_exactly) {
    float *out[2];
    for (int split = 0; split < 2; split++) {
        char *folder = temp_folder(), *path = write_quantised(folder, split);
        sn_model *m = NULL;
        sn_device *d = NULL;
        sn_span *span = NULL;
        sn_kv_pool *pool = NULL;
        sn_kv_cache *kv = NULL;
        out[split] = test_random_floats(20 * 32, 3);
        REQUIRE(sn_model_open(path, &m, &err));
        REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &d, &err));
        REQUIRE(sn_span_load(m, d, 0, 1, NULL, NULL, &span, &err));
        REQUIRE(sn_span_kv_pool(span, 1 << 20, &pool, &err));
        REQUIRE(sn_kv_cache_new(pool, &kv, &err));
        REQUIRE(sn_kv_cache_reserve(kv, 20, &err));
        const sn_tensor rows = {.name = "rows", .dtype = SN_F32, .rank = 2, .shape = {20, 32}, .data = out[split]};
        const sn_span_sequence all = {kv, &rows, 0, 20, out[split]};
        REQUIRE(sn_span_forward(span, 0, 1, 1, &all, NULL, &err));
        sn_kv_cache_free(&kv);
        sn_kv_pool_free(&pool);
        sn_span_free(&span);
        sn_device_close(&d);
        sn_model_close(&m);
        free(path);
        temp_folder_remove(&folder);
    }
    cr_expect_eq(test_differ(out[0], out[1], 20 * 32), 20 * 32);
    free(out[0]), free(out[1]);
}

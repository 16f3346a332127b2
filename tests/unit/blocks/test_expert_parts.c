/* Spans that hold some of the experts of their blocks, in a group that holds all of them: whichever span computes the
 * rows, however the experts are divided and wherever they rest, the bits are those of one span with all experts. */
#include "blocks/span.h"
#include "blocks/train.h"
#include "tests/support/expert_group.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, THREADS = 2, PARTS = 3 };

static const char *const mixtures[] = {"mixtral",    "qwen2_moe",   "qwen3_moe",   "gpt_oss",     "glm4_moe",
                                       "minimax_m2", "deepseek_v2", "deepseek_v3", "qwen3_5_moe", "nemotron_h_latent"};
enum { N_MIXTURES = sizeof mixtures / sizeof *mixtures };

static char *folder;
static sn_model *model;
static const sn_hparams *hp;
static int batch_rows; /* of the devices */

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) {
    sn_model_close(&model);
    temp_folder_remove(&folder);
}

TestSuite(expert_parts, .init = set_up, .fini = tear_down);

static void open_family(const char *family) {
    char path[256];
    snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, family);
    sn_model_close(&model);
    REQUIRE(sn_model_open(path, &model, &err));
    hp = sn_model_hparams(model);
}

/* -- one span with its device */

typedef struct holder {
    sn_device *device;
    sn_offload_store *store;
    sn_plan plan;
    sn_span *span;
} holder;

/* map, preload: NULL: experts are resident; expert_memory: as little as possible where the experts rest elsewhere. */
static sn_status holder_plan(holder *h, sn_expert_range experts, const char *map, const char *preload, sn_err *err) {
    sn_block_cost costs[SN_PLAN_BLOCKS_MAX];
    const sn_span_part part = {0, hp->n_blocks, experts};
    sn_plan_device one = {.id = h->device->id, .budget = (size_t)1 << 30};
    sn_plan_query query = {
        .end = hp->n_blocks, .experts = experts, .costs = costs, .devices = &one, .n_devices = 1, .preload = preload};
    sn_status status = sn_span_costs(model, h->device, &part, 2u << 20, costs, &one.scratch, err);
    if (status || !map) return status ? status : sn_plan_auto(&query, &h->plan, err);
    for (int b = 0; b < hp->n_blocks; b++) query.expert_memory += costs[b].slot * (size_t)costs[b].n_experts_used;
    return sn_plan_explicit(&query, map, &h->plan, err);
}

static sn_status holder_try_open(holder *h, sn_expert_range experts, const char *map, sn_err *err) {
    const sn_device_options options = {.threads = THREADS, .timeout_ms = 20000, .batch_rows = batch_rows};
    *h = (holder){0};
    sn_status status = sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &h->device, err);
    if (!status) status = holder_plan(h, experts, map, NULL, err);
    if (!status) status = sn_offload_store_open(folder, &h->store, err);
    if (!status) status = sn_span_load_plan(model, &h->plan, &h->device, h->store, NULL, NULL, &h->span, err);
    return status;
}

static void holder_close(holder *h) {
    sn_span_free(&h->span);
    sn_offload_store_close(&h->store);
    sn_device_close(&h->device);
}

/* -- a group of spans of which one computes the rows */

typedef struct group {
    holder parts[PARTS];
    int asker;
    expert_group spans;
} group;

static sn_expert_range part_of(int part) {
    return (sn_expert_range){hp->n_experts * part / PARTS, hp->n_experts * (part + 1) / PARTS};
}

static void group_join(group *g) {
    sn_span *spans[PARTS];
    for (int i = 0; i < PARTS; i++) spans[i] = g->parts[i].span;
    expert_group_join(&g->spans, PARTS, spans, g->asker);
}

static void group_open(group *g, int asker, const char *map) {
    *g = (group){.asker = asker};
    for (int i = 0; i < PARTS; i++) REQUIRE(holder_try_open(&g->parts[i], part_of(i), map, &err));
    group_join(g);
}

/* Whatever gains on its device: a span asks others for the experts of no more rows than they take. */
Test(expert_parts, a_part_of_the_experts_takes_no_long_batches) {
    holder part, whole;
    open_family("mixtral");
    batch_rows = SN_SPAN_ROWS_MAX;
    REQUIRE(holder_try_open(&part, part_of(0), NULL, &err));
    REQUIRE(holder_try_open(&whole, (sn_expert_range){0, hp->n_experts}, NULL, &err));
    cr_expect_eq(sn_span_rows_max(part.span), SN_SPAN_ROWS);
    cr_expect_eq(sn_span_rows_max(whole.span), SN_SPAN_ROWS_MAX);
    holder_close(&part);
    holder_close(&whole);
}

static void group_close(group *g) {
    for (int i = 0; i < PARTS; i++) holder_close(&g->parts[i]);
}

/* -- rows */

static float *make_rows(void) {
    size_t n = ROWS * (size_t)hp->n_embd;
    float *rows = malloc(n * sizeof *rows);
    for (size_t i = 0; i < n; i++) rows[i] = (float)((int)(i * 37 + i / 64 * 11) % 201 - 100) * 0.01f;
    return rows;
}

/* Replaces the rows of each of n_sessions by their hidden states after the last block: sessions have equal rows, and go
 * in one batch, `chunk` rows of each at a time. */
static sn_status run_rows(sn_span *span, int n_sessions, float *const *rows, int chunk, sn_err *why) {
    sn_kv_pool *pool = NULL;
    sn_kv_cache *kv[2] = {NULL};
    sn_tensor inputs[2];
    sn_span_sequence parts[2];
    sn_status status = SN_OK;
    REQUIRE(sn_span_kv_pool(span, 4u << 20, &pool, &err));
    for (int s = 0; s < n_sessions; s++) REQUIRE(sn_kv_cache_new(pool, &kv[s], &err));
    for (int at = 0, n; at < ROWS && !status; at += n) {
        n = chunk < ROWS - at ? chunk : ROWS - at;
        for (int s = 0; s < n_sessions; s++) {
            float *here = rows[s] + (size_t)at * (size_t)hp->n_embd;
            inputs[s] = (sn_tensor){.name = "rows", .data = here, .dtype = SN_F32, .rank = 2, .shape = {n, hp->n_embd}};
            parts[s] = (sn_span_sequence){kv[s], &inputs[s], 0, n, here};
            REQUIRE(sn_kv_cache_reserve(kv[s], n, &err));
        }
        status = sn_span_forward(span, 0, hp->n_blocks, n_sessions, parts, NULL, why);
    }
    for (int s = 0; s < n_sessions; s++) sn_kv_cache_free(&kv[s]);
    sn_kv_pool_free(&pool);
    return status;
}

static float *rows_of_whole_span(void) {
    holder whole;
    float *rows = make_rows();
    REQUIRE(holder_try_open(&whole, (sn_expert_range){0}, NULL, &err));
    REQUIRE(run_rows(whole.span, 1, &rows, ROWS, &err));
    holder_close(&whole);
    return rows;
}

static void expect_bits(group *g, int n_sessions, int chunk, const float *want, const char *what) {
    size_t bytes = ROWS * (size_t)hp->n_embd * sizeof(float);
    float *rows[2] = {make_rows(), make_rows()};
    REQUIRE(run_rows(g->parts[g->asker].span, n_sessions, rows, chunk, &err));
    for (int s = 0; s < n_sessions; s++)
        cr_expect(!memcmp(rows[s], want, bytes), "%s, span %d, %d sessions, chunks of %d: other bits", what, g->asker,
                  n_sessions, chunk);
    for (int s = 0; s < 2; s++) free(rows[s]);
}

Test(expert_parts, a_group_gives_the_bits_of_one_span_with_all_experts) {
    static const int chunks[] = {1, 7, ROWS};
    for (int f = 0; f < N_MIXTURES; f++) {
        open_family(mixtures[f]);
        float *want = rows_of_whole_span();
        for (int asker = 0; asker < PARTS; asker++) {
            group g;
            group_open(&g, asker, NULL);
            for (int c = 0; c < 3; c++) expect_bits(&g, 1 + (asker == c), chunks[c], want, mixtures[f]);
            cr_expect(g.spans.n_begun && g.spans.n_ended == g.spans.n_begun);
            group_close(&g);
        }
        free(want);
    }
}

/* Where the experts of all parts rest, with slots for those of one row, all but read from elsewhere. */
Test(expert_parts, parts_whose_experts_rest_elsewhere_give_the_same_bits) {
    static const char *const families[] = {"mixtral", "gpt_oss", "deepseek_v3"}, *const maps[] = {"*.experts=host",
                                                                                                  "*.experts=disk"};
    for (int f = 0; f < 3; f++) {
        open_family(families[f]);
        float *want = rows_of_whole_span();
        for (int m = 0; m < 2; m++) {
            group g;
            group_open(&g, m, maps[m]);
            expect_bits(&g, 1, 7, want, maps[m]);
            expect_bits(&g, 2, 1, want, maps[m]);
            for (int i = 0; i < PARTS; i++)
                cr_expect(sn_span_expert_counts(g.parts[i].span).bytes, "%s: nothing was brought", maps[m]);
            group_close(&g);
        }
        free(want);
    }
}

Test(expert_parts, a_span_with_all_experts_computes_for_others_too) {
    open_family("qwen3_moe");
    float *want = rows_of_whole_span();
    group g;
    group_open(&g, 0, NULL);
    holder_close(&g.parts[1]);
    holder_close(&g.parts[2]);
    REQUIRE(holder_try_open(&g.parts[1], (sn_expert_range){0}, NULL, &err));
    REQUIRE(holder_try_open(&g.parts[2], (sn_expert_range){0}, "*.experts=host", &err));
    group_join(&g);
    expect_bits(&g, 1, 7, want, "all experts"); /* both answer for the same pairs */
    cr_expect(sn_span_expert_counts(g.parts[2].span).bytes);
    free(want);
    group_close(&g);
}

/* -- memory */

Test(expert_parts, only_the_own_experts_are_counted_planned_and_held) {
    open_family("mixtral");
    sn_block_cost whole[SN_PLAN_BLOCKS_MAX], some[SN_PLAN_BLOCKS_MAX];
    const sn_span_part all = {0, hp->n_blocks, {0}}, two = {0, hp->n_blocks, {1, 3}};
    size_t scratch, more;
    holder h[2];
    REQUIRE(holder_try_open(&h[0], all.experts, NULL, &err));
    REQUIRE(holder_try_open(&h[1], two.experts, NULL, &err));
    REQUIRE(sn_span_costs(model, h[0].device, &all, 0, whole, &scratch, &err));
    REQUIRE(sn_span_costs(model, h[0].device, &two, 0, some, &more, &err));
    size_t freed = 0;
    for (int b = 0; b < hp->n_blocks; b++) {
        cr_expect_eq(some[b].n_experts, 2);
        cr_expect_eq(some[b].experts, whole[b].experts / (size_t)hp->n_experts * 2);
        freed += whole[b].weights - some[b].weights;
        cr_expect_eq(whole[b].weights - some[b].weights, whole[b].experts / (size_t)hp->n_experts * 2);
    }
    cr_expect_eq(sn_span_bytes(h[0].span) - sn_span_bytes(h[1].span), freed - (more - scratch));
    cr_expect_leq(h[1].device->memory_used, h[1].plan.device_bytes[0]);
    cr_expect_eq(h[0].plan.device_bytes[0] - h[1].plan.device_bytes[0], freed - (more - scratch));
    sn_buf table;
    sn_buf_init(&table, 10000);
    const sn_plan_device one = {.id = h[1].device->id};
    const sn_plan_query query = {.end = hp->n_blocks, .costs = some, .devices = &one, .n_devices = 1};
    REQUIRE(sn_plan_print(&h[1].plan, &query, &table, &err));
    REQUIRE(sn_buf_append(&table, "", 1, &err));
    cr_expect(strstr((const char *)table.data, "experts 1:3 of each mixture"), "%s", (const char *)table.data);
    sn_buf_fini(&table);
    cr_expect(!memcmp(sn_span_block_hash(h[0].span, 1), sn_span_block_hash(h[1].span, 1), sizeof(sn_hash)),
              "a block is the same, whichever span holds its experts");
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(sn_span_experts(h[i].span).first, i);
        cr_expect_eq(sn_span_describe(h[i].span).experts.end, i ? 3 : hp->n_experts);
        holder_close(&h[i]);
    }
}

Test(expert_parts, preloaded_experts_are_own_ones) {
    open_family("mixtral");
    group g;
    sn_err why = {0};
    group_open(&g, 2, "*.experts=disk"); /* experts 2:4 of each */
    sn_span_free(&g.parts[2].span);
    cr_expect_eq(holder_plan(&g.parts[2], part_of(2), "*.experts=disk", "experts:1:3", &why), SN_REFUSED);
    cr_expect(strstr(why.text, "experts 1:3 do not exist here: blocks of this span have 2:4"), "%s", why.text);
    REQUIRE(holder_plan(&g.parts[2], part_of(2), "*.experts=disk", "experts:3:4", &err));
    REQUIRE(sn_span_load_plan(model, &g.parts[2].plan, &g.parts[2].device, g.parts[2].store, NULL, NULL,
                              &g.parts[2].span, &err));
    cr_expect(sn_span_expert_counts(g.parts[2].span).bytes, "the experts are there before the first step");
    group_join(&g);
    float *want = rows_of_whole_span();
    expect_bits(&g, 1, 7, want, "a pinned expert");
    free(want);
    group_close(&g);
}

/* -- refusals and failures */

Test(expert_parts, what_cannot_be_held_in_part_is_refused_with_a_sentence) {
    static const struct {
        const char *family;
        sn_expert_range experts;
        const char *map, *says;
    } wrong[] = {{"mixtral", {2, 2}, NULL, "experts 2:2 do not exist: each mixture of the model has 0:4"},
                 {"mixtral", {0, 5}, NULL, "experts 0:5 do not exist"},
                 {"mixtral", {-1, 2}, NULL, "experts -1:2 do not exist"},
                 {"llama", {0, 1}, NULL, "blocks 0:4 have no experts"},
                 {"llama4", {0, 1}, NULL, "family weighs what enters an expert"},
                 {"mixtral", {0, 2}, "*=disk", "some experts, is streamed"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        holder h;
        sn_err why = {0};
        open_family(wrong[i].family);
        cr_expect_eq(holder_try_open(&h, wrong[i].experts, wrong[i].map, &why), SN_REFUSED, "%zu", i);
        cr_expect(strstr(why.text, wrong[i].says), "%zu: %s", i, why.text);
        holder_close(&h);
    }
}

Test(expert_parts, nothing_is_trained_through_some_of_the_experts) {
    sn_train *train = NULL;
    sn_err why = {0};
    holder h;
    open_family("mixtral");
    REQUIRE(holder_try_open(&h, (sn_expert_range){0, 2}, NULL, &err));
    cr_expect_eq(sn_train_new(h.span, 8, &train, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "holds the experts 0:2 only"), "%s", why.text);
    holder_close(&h);
}

Test(expert_parts, a_pass_that_needs_others_fails_when_none_is_asked) {
    holder h;
    sn_err why = {0};
    open_family("mixtral");
    REQUIRE(holder_try_open(&h, (sn_expert_range){0, 2}, NULL, &err));
    float *rows = make_rows();
    cr_expect_eq(run_rows(h.span, 1, &rows, ROWS, &why), SN_RETRY);
    cr_expect(strstr(why.text, "block 0 chose experts that this span does not hold"), "%s", why.text);
    free(rows);
    holder_close(&h);
}

static sn_status begin_fails(void *self, const sn_expert_request *request, sn_err *err) {
    (void)self;
    return sn_fail(err, SN_RETRY, "the experts of block %d are out", request->block);
}

static sn_status finish_fails(void *self, float *expert_out, sn_err *err) {
    (void)expert_group_finish(self, NULL, err);
    return expert_out ? sn_fail(err, SN_RETRY, "the holder is gone") : SN_OK;
}

Test(expert_parts, a_failed_exchange_fails_the_pass_once_and_the_next_one_works) {
    group g;
    open_family("mixtral");
    float *want = rows_of_whole_span();
    group_open(&g, 0, NULL);
    for (int way = 0; way < 2; way++) {
        sn_err why = {0};
        float *rows = make_rows();
        g.spans.exchange.begin = way ? expert_group_begin : begin_fails;
        g.spans.exchange.finish = finish_fails;
        cr_expect_eq(run_rows(g.parts[0].span, 1, &rows, ROWS, &why), SN_RETRY);
        cr_expect(strstr(why.text, way ? "the holder is gone" : "the experts of block 0 are out"), "%s", why.text);
        cr_expect(g.spans.n_begun == (uint64_t)way && g.spans.n_ended == (uint64_t)way, "the pass is not tried twice");
        free(rows);
    }
    g.spans.exchange.finish = expert_group_finish;
    expect_bits(&g, 1, ROWS, want, "after a failure");
    free(want);
    group_close(&g);
}

static const sn_device_ops *plain_ops;
static int n_open; /* batches that began and did not end */

static sn_status count_begin(sn_device *d, const sn_batch *batch, bool *replayed, sn_err *error) {
    n_open++;
    return plain_ops->batch_begin(d, batch, replayed, error);
}

static sn_status count_end(sn_device *d, sn_err *error) {
    n_open--;
    return plain_ops->batch_end(d, error);
}

/* A GPU refuses to read and write KV caches within a batch, so one of a pass that others failed must not stay open. */
Test(expert_parts, the_batch_of_a_pass_ends_when_its_exchange_fails) {
    group g;
    open_family("mixtral");
    group_open(&g, 0, NULL);
    sn_device *d = g.parts[0].device;
    sn_device_ops counting = *(plain_ops = d->ops);
    counting.batch_begin = count_begin;
    counting.batch_end = count_end;
    d->ops = &counting;
    g.spans.exchange.finish = finish_fails;
    sn_err why = {0};
    float *rows = make_rows();
    cr_expect_eq(run_rows(g.parts[0].span, 1, &rows, ROWS, &why), SN_RETRY);
    cr_expect(strstr(why.text, "the holder is gone"), "%s", why.text);
    cr_expect_eq(n_open, 0);
    d->ops = plain_ops;
    free(rows);
    group_close(&g);
}

/* An own expert that cannot be read fails the pass while the others compute: what began is ended nevertheless. */
Test(expert_parts, an_exchange_ends_when_the_own_experts_fail) {
    group g;
    sn_err why = {0};
    open_family("mixtral");
    group_open(&g, 0, "*.experts=disk");
    damage_files(folder);
    float *rows = make_rows();
    cr_expect_eq(run_rows(g.parts[0].span, 1, &rows, ROWS, &why), SN_STOP);
    cr_expect(strstr(why.text, "was changed or cut short"), "%s", why.text);
    cr_expect(g.spans.n_begun == 1 && g.spans.n_ended == 1);
    free(rows);
    group_close(&g);
}

Test(expert_parts, requests_that_a_span_cannot_answer_are_refused_with_a_sentence) {
    open_family("deepseek_v3"); /* block 0 has no experts */
    holder h;
    const int n = hp->n_experts / 2, last = hp->n_blocks - 1, width = hp->n_embd;
    REQUIRE(holder_try_open(&h, (sn_expert_range){0, n}, NULL, &err));
    float *rows = make_rows(), *out = calloc((size_t)width, 4 * sizeof *out);
    const int32_t ids[] = {0, n, n - 1, -1};
    const struct {
        sn_expert_request request;
        const char *says;
    } wrong[] = {{{0, 1, width, 1, rows, ids}, "block 0 has no experts here"},
                 {{-1, 1, width, 1, rows, ids}, "block -1 has no experts here"},
                 {{last + 1, 1, width, 1, rows, ids}, "has no experts here"},
                 {{last, 0, width, 1, rows, ids}, "0 rows"},
                 {{last, SN_SPAN_ROWS + 1, width, 1, rows, ids}, "at most 512"},
                 {{last, 1, width + 1, 1, rows, ids}, "numbers through"},
                 {{last, 1, width, hp->n_experts_used + 1, rows, ids}, "through"},
                 {{last, 1, width, 0, rows, ids}, "through 0"},
                 {{last, 2, width, 1, rows, ids}, "is not held here, which has 0:"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sn_err why = {0};
        cr_expect_eq(sn_span_run_experts(h.span, &wrong[i].request, out, &why), SN_REFUSED, "%zu", i);
        cr_expect(strstr(why.text, wrong[i].says), "%zu: %s", i, why.text);
    }
    const sn_expert_request right = {last, 2, width, 1, rows, ids + 2};
    REQUIRE(sn_span_run_experts(h.span, &right, out, &err)); /* a pair of two rows: one output */
    cr_expect_eq(out[width], 0);
    free(rows);
    free(out);
    holder_close(&h);
}

/* -- long requests */

static const sn_device_ops *cpu_ops;
static int n_calls, calls_of[SN_EXPERTS_MAX]; /* those that have a pair of an expert */

static sn_status count_experts(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *x, int n_linears,
                               const sn_moe_linear *linears, sn_err *err) {
    bool there[SN_EXPERTS_MAX] = {false};
    for (int i = 0; i < c->n * c->k; i++) there[c->ids[i]] = true;
    for (int e = 0; e < SN_EXPERTS_MAX && !per_expert; e++) calls_of[e] += there[e];
    n_calls += !per_expert;
    return cpu_ops->moe_linear(d, c, per_expert, x, n_linears, linears, err);
}

/* A GPU's way through an expert depends on the pairs that it has in a batch, so a batch ends where an expert does. */
Test(expert_parts, a_long_request_is_computed_expert_by_expert) {
    enum { N = 400, USED = 2 };
    open_family("mixtral");
    holder h;
    REQUIRE(holder_try_open(&h, (sn_expert_range){0, hp->n_experts}, NULL, &err));
    const size_t width = (size_t)hp->n_embd, bytes = width * sizeof(float);
    const int last = hp->n_blocks - 1;
    float *rows = malloc(N * bytes), *out = malloc(N * USED * bytes), *one = malloc(USED * bytes), *at = out;
    int32_t ids[N * USED];
    for (size_t i = 0; i < N * width; i++) rows[i] = (float)((int)(i * 37 + i / 64 * 11) % 201 - 100) * 0.01f;
    for (int i = 0; i < N; i++) {
        ids[USED * i] = i % hp->n_experts;
        ids[USED * i + 1] = i % 9 ? (i + 1 + i / 7 % 2) % hp->n_experts : -1;
    }
    sn_device_ops ops = *(cpu_ops = h.device->ops);
    ops.moe_linear = count_experts;
    h.device->ops = &ops;
    REQUIRE(sn_span_run_experts(h.span, &(sn_expert_request){last, N, hp->n_embd, USED, rows, ids}, out, &err));
    h.device->ops = cpu_ops;
    cr_expect_eq(n_calls, 2);
    for (int e = 0; e < hp->n_experts; e++) cr_expect_eq(calls_of[e], 1, "expert %d was cut", e);
    for (int i = 0; i < N; i++) {
        const size_t pairs = i % 9 ? 2 : 1;
        const sn_expert_request alone = {last, 1, hp->n_embd, USED, rows + (size_t)i * width, ids + USED * i};
        REQUIRE(sn_span_run_experts(h.span, &alone, one, &err));
        cr_expect(!memcmp(at, one, pairs * bytes), "row %d: other bits, or another place", i);
        at += pairs * width;
    }
    free(rows);
    free(out);
    free(one);
    holder_close(&h);
}

/* Spans on emulated GPUs that hold some of the experts: together they give the bits of one span on that device that
 * holds all. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "tests/support/expert_group.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 20, PARTS = 3 };

static char *folder;
static sn_offload_store *store;
static sn_model *model;
static const sn_hparams *hp;
static sn_device *device;

static void set_up(void) {
#ifndef SN_ZE_TEST_DRIVER
    printf("skipped: emulated devices need libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
#endif
    folder = temp_folder();
    REQUIRE(sn_offload_store_open(folder, &store, &err));
}

static void tear_down(void) {
    sn_offload_store_close(&store);
    temp_folder_remove(&folder);
}

TestSuite(emulated_parts, .init = set_up, .fini = tear_down);

/* rest: NULL, or where the experts rest, with as few slots as possible. */
static sn_span *load(sn_expert_range experts, const char *rest) {
    sn_block_cost costs[SN_PLAN_BLOCKS_MAX];
    sn_plan plan;
    sn_span *span;
    const sn_span_part part = {0, hp->n_blocks, experts};
    sn_plan_device one = {.id = device->id, .budget = (size_t)1 << 30};
    sn_plan_query query = {.end = hp->n_blocks, .experts = experts, .costs = costs, .devices = &one, .n_devices = 1};
    REQUIRE(sn_span_costs(model, device, &part, 2u << 20, costs, &one.scratch, &err));
    for (int b = 0; b < hp->n_blocks && rest; b++)
        query.expert_memory += costs[b].slot * (size_t)costs[b].n_experts_used;
    REQUIRE(rest ? sn_plan_explicit(&query, rest, &plan, &err) : sn_plan_auto(&query, &plan, &err));
    REQUIRE(sn_span_load_plan(model, &plan, &device, store, NULL, NULL, &span, &err));
    return span;
}

/* Hidden states after the last block, of rows in chunks. */
static float *run(sn_span *span, int chunk) {
    size_t width = (size_t)hp->n_embd;
    float *rows = malloc(ROWS * width * sizeof *rows);
    sn_kv_pool *pool;
    sn_kv_cache *kv;
    for (size_t i = 0; i < ROWS * width; i++) rows[i] = (float)((int)(i * 37 + i / 64 * 11) % 201 - 100) * 0.01f;
    REQUIRE(sn_span_kv_pool(span, 3u << 20, &pool, &err));
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    for (int at = 0, n; at < ROWS; at += n) {
        float *here = rows + (size_t)at * width;
        n = chunk < ROWS - at ? chunk : ROWS - at;
        sn_tensor input = {.name = "rows", .data = here, .dtype = SN_F32, .rank = 2, .shape = {n, hp->n_embd}};
        sn_span_sequence part = {kv, &input, 0, n, here};
        REQUIRE(sn_kv_cache_reserve(kv, n, &err));
        REQUIRE(sn_span_forward(span, 0, hp->n_blocks, 1, &part, NULL, &err));
    }
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    return rows;
}

static void expect_same_bits(const char *family, const char *rest, int chunk) {
    char name[32];
    sn_span *whole = load((sn_expert_range){0}, NULL), *parts[PARTS];
    expert_group group;
    for (int i = 0; i < PARTS; i++)
        parts[i] = load((sn_expert_range){hp->n_experts * i / PARTS, hp->n_experts * (i + 1) / PARTS}, rest);
    expert_group_join(&group, PARTS, parts, 1);
    float *want = run(whole, chunk), *got = run(parts[1], chunk);
    cr_expect(!memcmp(got, want, ROWS * (size_t)hp->n_embd * sizeof *got), "%s on %s, %s, chunks of %d: other bits",
              family, sn_device_id_name(device->id, name), rest ? rest : "resident", chunk);
    cr_expect(group.n_begun && group.n_ended == group.n_begun);
    free(want);
    free(got);
    sn_span_free(&whole);
    for (int i = 0; i < PARTS; i++) sn_span_free(&parts[i]);
}

Test(emulated_parts, parts_on_a_gpu_give_the_bits_of_one_span_on_it) {
    static const char *const families[] = {"qwen3_moe", "gpt_oss", "glm4_moe"}, *const rests[] = {NULL,
                                                                                                  "*.experts=host",
                                                                                                  "*.experts=disk"};
    static const sn_device_id ids[] = {{SN_DEVICE_CUDA, 0}, {SN_DEVICE_XPU, 0}};
    const sn_device_options options = {.threads = 2, .timeout_ms = 20000};
    for (int d = 0; d < 2; d++)
        for (int f = 0; f < 3; f++) {
            char path[256];
            snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, families[f]);
            REQUIRE(sn_model_open(path, &model, &err));
            REQUIRE(sn_device_open(ids[d], &options, &device, &err));
            hp = sn_model_hparams(model);
            expect_same_bits(families[f], rests[f], 6);
            expect_same_bits(families[f], rests[(f + 1) % 3], 1);
            sn_device_close(&device);
            sn_model_close(&model);
        }
}

/* The experts of a long request have 16 pairs each, which tensor cores multiply; cut into halves, they would not. */
Test(emulated_parts, an_expert_gives_the_same_bits_whichever_others_a_request_has) {
    enum { N = 512, EXPERTS = 64, USED = 2, EACH = N * USED / EXPERTS, WIDTH = 64, CHECKED = 8 };
    static float rows[N * WIDTH], out[N * USED * WIDTH], one[EACH * WIDTH];
    static int32_t ids[N * USED], own[N * USED];
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q8_0, .n_blocks = 1, .n_experts = EXPERTS});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &device, &err));
    hp = sn_model_hparams(model);
    sn_span *span = load((sn_expert_range){0, EXPERTS}, NULL);
    for (int i = 0; i < N * WIDTH; i++) rows[i] = (float)((i * 37 + i / 64 * 11) % 201 - 100) * 0.01f;
    for (int i = 0; i < N * USED; i++) ids[i] = (i % USED * 7 + i / USED) % EXPERTS;
    REQUIRE(sn_span_run_experts(span, &(sn_expert_request){0, N, WIDTH, USED, rows, ids}, out, &err));
    for (int e = 0; e < CHECKED; e++) {
        for (int i = 0; i < N * USED; i++) own[i] = ids[i] == e ? e : -1;
        REQUIRE(sn_span_run_experts(span, &(sn_expert_request){0, N, WIDTH, USED, rows, own}, one, &err));
        for (int i = 0, n = 0; i < N * USED; i++)
            if (ids[i] == e)
                cr_expect(!memcmp(out + (size_t)i * WIDTH, one + (size_t)n++ * WIDTH, WIDTH * sizeof *one),
                          "expert %d, pair %d: other bits", e, i);
    }
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    tiny_model_remove(&path);
}

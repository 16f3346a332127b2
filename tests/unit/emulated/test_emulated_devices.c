/* Spans over emulated devices: copies at their borders, the numbers of the reference, devices that fail, and memory
 * that returns. */
#include "tests/support/emulated_span.h"

#include "base/clock.h"
#include "client/generate/lm_head.h"
#include "model/safetensors.h"
#include "tests/support/cuda_stand_in/stand_in.h"
#include "tests/support/emulated_memory.h"
#include "tests/support/families.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

TestSuite(emulated_devices, .init = emulated_devices_begin, .fini = emulated_devices_close);

/* -- placement */

Test(emulated_devices, copies_are_those_of_the_plan) {
    enum { N = 5 };
    static const struct {
        const char *map;
        unsigned borders; /* that the hidden states cross */
    } all[] = {{"0:4=cpu", 0},
               {"0:4=cuda:0", 2},
               {"0:1=cpu,1:2=cuda:0,2:3=xpu:0,3:4=cpu", 3},
               {"0:1=xpu:0,1:2=cuda:0,2:3=xpu:0,3:4=cuda:0", 5},
               {"0:2=cpu,2:4=xpu:0", 2}};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        emulated_span w = emulated_span_open(path, all[i].map, NULL);
        uint64_t moved = 0, bytes = N * (uint64_t)w.hp->n_embd * sizeof(float);
        float *rows = make_rows(N, w.hp->n_embd);
        sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {N, w.hp->n_embd}};
        sn_span_sequence part = {w.kv, &input, 0, N, rows};
        REQUIRE(sn_kv_cache_reserve(w.kv, N, &err));
        REQUIRE(sn_span_forward(w.span, 0, 4, 1, &part, &moved, &err));
        cr_expect_eq(moved, all[i].borders * bytes, "%s: %llu bytes", all[i].map, (unsigned long long)moved);
        cr_expect_eq(sn_span_transfer_bytes(w.span, 0, 4, 1, &part), moved, "%s", all[i].map);
        free(rows);
        emulated_span_close(&w);
    }
    tiny_model_remove(&path);
}

#ifdef SN_ZE_TEST_DRIVER
Test(emulated_devices, aborts_on_a_kv_cache_of_another_device, .signal = SIGABRT) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    emulated_span here = emulated_span_open(path, "0:4=xpu:0", NULL),
                  there = emulated_span_open(path, "0:4=cuda:0", NULL);
    float *rows = make_rows(1, here.hp->n_embd);
    tiny_model_remove(&path);
    temp_folder_remove(&here.folder);
    temp_folder_remove(&there.folder);
    here.kv = there.kv;
    REQUIRE(sn_kv_cache_reserve(here.kv, 1, &err));
    if (step_blocks(&here, 0, 4, 1, rows, rows, &(sn_err){0})) exit(1);
}
#endif

/* -- the reference's numbers on each device */

/* Of the first n rows, or of all if there are fewer, token by token and all at once; the last ones show windows and
 * long positions. */
typedef struct distances {
    double one, many;
    bool mixture;
} distances;

static distances golden_distances(const char *family, const char *map, int n) {
    char path[256], file[300];
    sn_safetensors *golden = NULL;
    snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, family);
    snprintf(file, sizeof file, "%s/golden.safetensors", path);
    REQUIRE(sn_safetensors_open(file, &golden, &err));
    emulated_span w = emulated_span_open(path, map, NULL);
    char last[32];
    snprintf(last, sizeof last, "hidden.%d", w.hp->n_blocks);
    const sn_safetensors_tensor *in = sn_safetensors_find(golden, "hidden.0"), *out = sn_safetensors_find(golden, last);
    float *rows = malloc(in->bytes), *want = malloc(out->bytes);
    memcpy(rows, in->data, in->bytes);
    memcpy(want, out->data, out->bytes);
    if (n > (int)in->dims[0]) n = (int)in->dims[0];
    sn_kv_cache_usage_of(w.kv)->is_long = sn_is_long(w.hp, (int)in->dims[0]);
    distances d = {.mixture = w.hp->n_experts};
    run_rows(&w, rows, n, 1);
    d.one = largest_distance(rows, want, (size_t)n * (size_t)w.hp->n_embd);
    sn_kv_cache_rewind(w.kv, 0);
    memcpy(rows, in->data, in->bytes);
    run_rows(&w, rows, n, n);
    d.many = largest_distance(rows, want, (size_t)n * (size_t)w.hp->n_embd);
    free(rows);
    free(want);
    emulated_span_close(&w);
    sn_safetensors_close(&golden);
    return d;
}

/* A span with recurrent blocks lies on one device. */
static bool family_runs_on(const char *family, const char *map) {
    return !family_is_recurrent(family) || !strchr(map, ',');
}

/* Over several devices a few tokens show that each block computes with its own kind of attention and experts.
 *
 * Token by token everything is float32. Many rows at once go through the matrix units of the CUDA backend, in
 * bfloat16; those of mixtures, and of models with recurrent blocks, as two bfloat16 numbers. Gemma 4 does not scale its
 * scores: with weights by chance their roundings are five times as large. */
Test(emulated_devices, golden_families_agree_on_every_device) {
    static const char *const maps[] = {"0:%d=cuda:0", "0:%d=xpu:0", "0:1=cpu,1:2=cuda:0,2:3=xpu:0,3:%d=cpu"};
    for (int f = 0; f < N_FAMILIES; f++)
        for (int m = 0; m < 3; m++) {
            char map[64];
            if (!family_runs_on(FAMILIES[f], maps[m])) continue;
            snprintf(map, sizeof map, maps[m], family_blocks(FAMILIES[f]));
            distances d = golden_distances(FAMILIES[f], map, m == 2 && !strstr(FAMILIES[f], "_sparse") ? 5 : 24);
            cr_expect(d.one <= 1e-4, "%s on %s, token by token: %g", FAMILIES[f], map, d.one);
            double most = m == 1 ? 1e-4 : family_is_recurrent(FAMILIES[f]) ? 1e-3 : d.mixture ? 1e-4 : 3e-2;
            if (!strcmp(FAMILIES[f], "gemma4")) most = m == 1 ? 1e-4 : 1e-1;
            cr_expect(d.many <= most, "%s on %s, at once: %g", FAMILIES[f], map, d.many);
        }
}

/* Attention on one device, experts on another: the reference's numbers, and copies as planned. */
Test(emulated_devices, experts_are_computed_on_the_device_that_the_map_says) {
    static const char *const families[] = {"qwen2_moe", "gpt_oss", "llama4", "deepseek_v3"};
    static const char *const maps[] = {"*=cpu,*.experts=xpu:0", "*=cuda:0,*.experts=cpu",
                                       "0:2=xpu:0,2:4=cuda:0,1:3.experts=cpu"};
    for (int f = 0; f < 4; f++)
        for (int m = 0; m < 3; m++) {
            distances d = golden_distances(families[f], maps[m], 24);
            cr_expect(d.one <= 1e-4 && d.many <= 1e-4, "%s on %s: %g, at once %g", families[f], maps[m], d.one, d.many);
        }
    char path[256];
    snprintf(path, sizeof path, "%s/golden/gpt_oss", SN_FIXTURES);
    emulated_span w = emulated_span_open(path, "*=cuda:0,*.experts=cpu", NULL);
    uint64_t moved = 0;
    float *rows = make_rows(5, w.hp->n_embd);
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {5, w.hp->n_embd}};
    sn_span_sequence part = {w.kv, &input, 0, 5, rows};
    REQUIRE(sn_kv_cache_reserve(w.kv, 5, &err));
    REQUIRE(sn_span_forward(w.span, 0, 4, 1, &part, &moved, &err));
    cr_expect_eq(moved, 5 * (uint64_t)w.hp->n_embd * sizeof(float) * (2 + 2 * 4));
    cr_expect_eq(sn_span_transfer_bytes(w.span, 0, 4, 1, &part), moved);
    free(rows);
    emulated_span_close(&w);
}

/* More rows than a usual batch has: the workspaces are prepared for them. */
Test(emulated_devices, a_long_batch_on_cuda_agrees_with_the_cpu) {
    enum { N = 600 };
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = 1, .n_ctx = 1024});
    float *rows[2];
    emulated_devices[CUDA]->batch_rows = 1024;
    for (int k = 0; k < 2; k++) {
        emulated_span w = emulated_span_open(path, k ? "0:1=cuda:0" : "0:1=cpu", NULL);
        cr_expect_eq(sn_span_rows_max(w.span), k ? 1024 : SN_SPAN_ROWS);
        rows[k] = make_rows(N, w.hp->n_embd);
        run_rows(&w, rows[k], N, k ? N : SN_SPAN_ROWS);
        emulated_span_close(&w);
    }
    size_t n = (size_t)N * 64;
    cr_expect_leq(largest_distance(rows[1], rows[0], n), 3e-2);
    free(rows[0]), free(rows[1]);
    tiny_model_remove(&path);
}

Test(emulated_devices, recurrent_blocks_on_several_devices_are_refused) {
    emulated_span w;
    sn_err why = {0};
    cr_expect_eq(emulated_span_try_open(&w, SN_FIXTURES "/golden/qwen3_5", "0:2=cpu,2:4=cuda:0", NULL, &why),
                 SN_REFUSED);
    cr_expect(strstr(why.text, "give one --device"), "%s", why.text);
    emulated_span_close(&w);
}

/* -- failures */

Test(emulated_devices, a_stalled_device_is_named_and_the_others_continue) {
    static const struct {
        int device;
        const char *map, *name;
    } cases[] = {{CUDA, "0:2=cpu,2:4=cuda:0", "cuda:0"}, {XPU, "0:2=cpu,2:4=xpu:0", "xpu:0"}};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    for (int i = 0; i < 2; i++) {
        emulated_span w = emulated_span_open(path, cases[i].map, NULL);
        float *rows = make_rows(4, w.hp->n_embd), out[256];
        REQUIRE(step_blocks(&w, 0, 4, 1, rows, out, &err));
        sn_err err;
        emulated_devices[cases[i].device]->timeout_ms = 200;
        if (cases[i].device == CUDA) cuda_stand_in_stall(60000);
#ifdef SN_ZE_TEST_DRIVER
        else
            ze_test_faults.stall(60000);
#endif
        int64_t began = sn_now_us();
        cr_assert_eq(step_blocks(&w, 0, 4, 1, rows, out, &err), SN_STOP);
        cr_expect(strstr(err.text, cases[i].name), "%s", err.text);
        cr_expect(sn_now_us() - began < 30000000, "the error took %lld us", (long long)(sn_now_us() - began));
        cr_expect_eq(sn_kv_cache_length(w.kv), 1, "a failed step extended the KV cache");
        cr_assert_eq(step_blocks(&w, 0, 4, 1, rows, out, &err), SN_STOP); /* its blocks stay unusable */
        cr_assert_eq(step_blocks(&w, 0, 2, 1, rows, out, &err), SN_OK);   /* blocks of other devices remain usable */
        emulated_devices[cases[i].device]->timeout_ms = 180000;
        if (cases[i].device == CUDA) cuda_stand_in_heal(); /* so that its memory can be freed */
#ifdef SN_ZE_TEST_DRIVER
        else
            ze_test_faults.heal();
#endif
        free(rows);
        emulated_span_close(&w);
    }
    tiny_model_remove(&path);
}

Test(emulated_devices, memory_returns_after_a_thousand_loads_and_after_a_failure_at_every_step) {
    const char *map = "0:1=cuda:0,1:2=xpu:0,2:3=host,3:4=disk";
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1});
    emulated_span w =
        emulated_span_open(path, map, "3:4"); /* whatever the devices allocate once and keep is allocated now */
    emulated_span_close(&w);
    size_t before = emulated_memory_used();
    for (int i = 0; i < 1000; i++) {
        w = emulated_span_open(path, map, i % 2 ? "3:4" : NULL);
        emulated_span_close(&w);
    }
    cr_assert_eq(emulated_memory_used(), before);
    for (int device = CUDA; device <= XPU; device++) {
        int failures = 0;
        for (bool failed = true; failed; failures += failed) {
            sn_err err;
            if (device == CUDA) cuda_stand_in_fail_allocation(failures + 1);
#ifdef SN_ZE_TEST_DRIVER
            else
                ze_test_faults.fail_allocation(failures + 1);
#endif
            failed = emulated_span_try_open(&w, path, map, NULL, &err) != SN_OK;
            emulated_span_close(&w);
            cr_assert_eq(emulated_memory_used(), before, "after allocation %d failed", failures + 1);
            cr_assert(failures < 100);
        }
        cr_expect(failures >= 2, "only %d allocations could fail", failures);
        cuda_stand_in_heal();
#ifdef SN_ZE_TEST_DRIVER
        ze_test_faults.heal();
#endif
    }
    tiny_model_remove(&path);
}

/* -- the real model */

static void generate_greedily(const char *path, const char *map, const int32_t *prompt, int n_prompt, int32_t *out,
                              int n_out) {
    emulated_span w = emulated_span_open(path, map, NULL);
    sn_lm_head *head = NULL;
    REQUIRE(sn_lm_head_load(w.model, emulated_devices[CPU], &head, &err));
    float *hidden = malloc((size_t)n_prompt * (size_t)w.hp->n_embd * sizeof *hidden);
    float *logits = malloc((size_t)w.hp->n_vocab * sizeof *logits);
    REQUIRE(sn_lm_head_embed(head, prompt, n_prompt, hidden, &err));
    for (int at = 0; at < n_prompt; at++) {
        float *row = hidden + (size_t)at * (size_t)w.hp->n_embd;
        REQUIRE(step_blocks(&w, 0, w.hp->n_blocks, 1, row, hidden, &err));
    }
    for (int i = 0; i < n_out; i++) {
        out[i] = 0;
        REQUIRE(sn_lm_head_logits(head, hidden, 1, logits, &err));
        for (int32_t id = 1; id < w.hp->n_vocab; id++)
            if (logits[id] > logits[out[i]]) out[i] = id;
        REQUIRE(sn_lm_head_embed(head, &out[i], 1, hidden, &err));
        if (i + 1 < n_out) REQUIRE(step_blocks(&w, 0, w.hp->n_blocks, 1, hidden, hidden, &err));
    }
    free(hidden);
    free(logits);
    sn_lm_head_free(&head);
    emulated_span_close(&w);
}

Test(emulated_devices, the_real_model_over_alternating_devices_generates_the_same_text) {
    const char *path = getenv("SN_TEST_MODEL");
    if (!path) {
        printf("skipped: the real model over emulated devices needs SN_TEST_MODEL\n");
        cr_skip_test();
    }
    static const char *const names[] = {"cpu", "xpu:0", "cuda:0"};
    static const int32_t prompt[] = {504, 3575, 282, 4649, 314}; /* "The capital of France is" */
    enum { N = 4 };
    char map[1024] = "";
    for (int b = 0; b < 30; b++)
        snprintf(map + strlen(map), sizeof map - strlen(map), "%s%d:%d=%s", b ? "," : "", b, b + 1, names[b % 3]);
    int32_t here[N], there[N];
    generate_greedily(path, "0:30=cpu", prompt, 5, here, N);
    generate_greedily(path, map, prompt, 5, there, N);
    for (int i = 0; i < N; i++)
        cr_expect_eq(here[i], there[i], "token %d: %d on the CPU, %d over all devices", i, here[i], there[i]);
}

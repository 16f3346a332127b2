/* Spans over different devices: the CPU, an emulated Intel XPU (the real Level Zero loader, with a driver over
 * OpenCL) and an emulated CUDA device (a stand-in of the runtime that runs the source of the kernels). Device memory
 * of both faults when the host touches it, so that any access that bypasses the device guard crashes here.
 * tests/support/ says what emulation does not show. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "base/clock.h"
#include "client/generate/lm_head.h"
#include "blocks/span.h"
#include "blocks/train.h"
#include "model/safetensors.h"
#include "tests/support/cuda_stand_in/stand_in.h"
#include "tests/support/emulated_memory.h"
#include "tests/support/require.h"
#include "tests/support/families.h"
#include "tests/support/files.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>

enum { CPU, CUDA, XPU, N_DEVICES };

static sn_device *devices[N_DEVICES];
static size_t expert_memory; /* of the plans that are made; 0: what experts like */
static sn_kv_dtype kv_dtype; /* of the KV caches that are made */

static void set_up(void) {
#ifndef SN_ZE_TEST_DRIVER
    printf("skipped: emulated devices need libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
#endif
    const sn_device_options options = {.threads = 2, .timeout_ms = 180000};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &devices[CPU], &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, &options, &devices[CUDA], &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_XPU, 0}, &options, &devices[XPU], &err));
}

static void tear_down(void) {
    for (int i = 0; i < N_DEVICES; i++) sn_device_close(&devices[i]);
}

TestSuite(emulated_devices, .init = set_up, .fini = tear_down);

/* A span with a device map, its KV cache, one session. */
typedef struct fixture {
    sn_model *model;
    sn_offload_store *store;
    char *folder;
    sn_span *span;
    sn_kv_pool *pool;
    sn_kv_cache *kv;
    const sn_hparams *hp;
} fixture;

static sn_status fixture_try_open(fixture *w, const char *path, const char *map, const char *preload, sn_err *err) {
    sn_block_cost costs[64];
    sn_plan_device all[N_DEVICES];
    sn_plan plan;
    sn_device *used[SN_PLAN_DEVICES_MAX];
    *w = (fixture){0};
    sn_status status = sn_model_open(path, &w->model, err);
    if (status) return status;
    w->hp = sn_model_hparams(w->model);
    w->folder = temp_folder();
    for (int i = 0; i < N_DEVICES; i++) all[i] = (sn_plan_device){.id = devices[i]->id, .budget = (size_t)1 << 40};
    status = sn_span_costs(w->model, devices[CPU], &(sn_span_part){0, w->hp->n_blocks, {0}}, 1 << 20, costs,
                           &all[0].scratch, err);
    sn_plan_query query = {.end = w->hp->n_blocks,
                           .costs = costs,
                           .devices = all,
                           .n_devices = N_DEVICES,
                           .preload = preload,
                           .expert_memory = expert_memory};
    if (!status) status = sn_plan_explicit(&query, map, &plan, err);
    if (!status) status = sn_offload_store_open(w->folder, &w->store, err);
    for (int i = 0; i < plan.n_devices && !status; i++)
        for (int d = 0; d < N_DEVICES; d++)
            if (devices[d]->id.kind == plan.devices[i].kind) used[i] = devices[d];
    if (!status) status = sn_span_load_plan(w->model, &plan, used, w->store, NULL, NULL, &w->span, err);
    if (!status) sn_span_set_kv_dtype(w->span, kv_dtype);
    if (!status) status = sn_span_kv_pool(w->span, 3u << 20, &w->pool, err);
    return status ? status : sn_kv_cache_new(w->pool, &w->kv, err);
}

static fixture fixture_open(const char *path, const char *map, const char *preload) {
    fixture w;
    REQUIRE(fixture_try_open(&w, path, map, preload, &err));
    return w;
}

static void fixture_close(fixture *w) {
    sn_kv_cache_free(&w->kv);
    sn_kv_pool_free(&w->pool);
    sn_span_free(&w->span);
    sn_offload_store_close(&w->store);
    if (w->folder) temp_folder_remove(&w->folder);
    sn_model_close(&w->model);
}

static sn_status step_blocks(fixture *w, int first, int end, int n, const float *in, float *out, sn_err *err) {
    sn_tensor input = {.name = "hidden states", .data = in, .dtype = SN_F32, .rank = 2, .shape = {n, w->hp->n_embd}};
    sn_span_sequence part = {w->kv, &input, 0, n, out};
    sn_status status = sn_kv_cache_reserve(w->kv, n, err);
    return status ? status : sn_span_forward(w->span, first, end, 1, &part, NULL, err);
}

/* n rows in steps of `chunk`, in place. */
static void run_rows(fixture *w, float *rows, int n, int chunk) {
    for (int at = 0, now; at < n; at += now) {
        float *here = rows + (size_t)at * (size_t)w->hp->n_embd;
        now = chunk < n - at ? chunk : n - at;
        REQUIRE(step_blocks(w, 0, w->hp->n_blocks, now, here, here, &err));
    }
}

static float *make_rows(int n, int n_embd) {
    float *rows = malloc((size_t)n * (size_t)n_embd * sizeof *rows);
    for (int i = 0; i < n * n_embd; i++) rows[i] = (float)((i * 37 + i / 64 * 11) % 201 - 100) * 0.01f;
    return rows;
}

/* The largest difference of a and b, as a share of the largest magnitude in b. */
static double largest_distance(const float *a, const float *b, size_t n) {
    double furthest = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - b[i]) <= furthest)) furthest = fabs((double)a[i] - b[i]);
        largest = fmax(largest, fabs(b[i]));
    }
    return furthest / largest;
}

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
        fixture w = fixture_open(path, all[i].map, NULL);
        uint64_t moved = 0, bytes = N * (uint64_t)w.hp->n_embd * sizeof(float);
        float *rows = make_rows(N, w.hp->n_embd);
        sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {N, w.hp->n_embd}};
        sn_span_sequence part = {w.kv, &input, 0, N, rows};
        REQUIRE(sn_kv_cache_reserve(w.kv, N, &err));
        REQUIRE(sn_span_forward(w.span, 0, 4, 1, &part, &moved, &err));
        cr_expect_eq(moved, all[i].borders * bytes, "%s: %llu bytes", all[i].map, (unsigned long long)moved);
        cr_expect_eq(sn_span_transfer_bytes(w.span, 0, 4, 1, &part), moved, "%s", all[i].map);
        free(rows);
        fixture_close(&w);
    }
    tiny_model_remove(&path);
}

#ifdef SN_ZE_TEST_DRIVER
Test(emulated_devices, aborts_on_a_kv_cache_of_another_device, .signal = SIGABRT) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    fixture here = fixture_open(path, "0:4=xpu:0", NULL), there = fixture_open(path, "0:4=cuda:0", NULL);
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

/* Of the first n rows, or of all if there are fewer; the last ones show windows and long positions. */
static double golden_distance(const char *family, const char *map, int n, int chunk, bool *mixture) {
    char path[256], file[300];
    sn_safetensors *golden = NULL;
    snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, family);
    snprintf(file, sizeof file, "%s/golden.safetensors", path);
    REQUIRE(sn_safetensors_open(file, &golden, &err));
    fixture w = fixture_open(path, map, NULL);
    char last[32];
    snprintf(last, sizeof last, "hidden.%d", w.hp->n_blocks);
    const sn_safetensors_tensor *in = sn_safetensors_find(golden, "hidden.0"), *out = sn_safetensors_find(golden, last);
    float *rows = malloc(in->bytes), *want = malloc(out->bytes);
    memcpy(rows, in->data, in->bytes);
    memcpy(want, out->data, out->bytes);
    if (n > (int)in->dims[0]) n = (int)in->dims[0];
    run_rows(&w, rows, n, chunk);
    double d = largest_distance(rows, want, (size_t)n * (size_t)w.hp->n_embd);
    *mixture = w.hp->n_experts;
    free(rows);
    free(want);
    fixture_close(&w);
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
 * bfloat16; those of mixtures, and of models with recurrent blocks, as two bfloat16 numbers. */
Test(emulated_devices, golden_families_agree_on_every_device) {
    static const char *const maps[] = {"0:4=cuda:0", "0:4=xpu:0", "0:1=cpu,1:2=cuda:0,2:3=xpu:0,3:4=cpu"};
    for (int f = 0; f < N_FAMILIES; f++)
        for (int m = 0; m < 3; m++) {
            bool mixture;
            if (!family_runs_on(FAMILIES[f], maps[m])) continue;
            int n = m == 2 ? 5 : 24;
            double one = golden_distance(FAMILIES[f], maps[m], n, 1, &mixture);
            double many = golden_distance(FAMILIES[f], maps[m], n, 24, &mixture);
            cr_expect(one <= 1e-4, "%s on %s, token by token: %g", FAMILIES[f], maps[m], one);
            double most = m == 1 ? 1e-4 : family_is_recurrent(FAMILIES[f]) ? 1e-3 : mixture ? 1e-4 : 3e-2;
            cr_expect(many <= most, "%s on %s, at once: %g", FAMILIES[f], maps[m], many);
        }
}

/* More rows than a usual batch has: the workspaces are prepared for them. */
Test(emulated_devices, a_long_batch_on_cuda_agrees_with_the_cpu) {
    enum { N = 600 };
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = 1, .n_ctx = 1024});
    float *rows[2];
    devices[CUDA]->batch_rows = 1024;
    for (int k = 0; k < 2; k++) {
        fixture w = fixture_open(path, k ? "0:1=cuda:0" : "0:1=cpu", NULL);
        cr_expect_eq(sn_span_rows_max(w.span), k ? 1024 : SN_SPAN_ROWS);
        rows[k] = make_rows(N, w.hp->n_embd);
        run_rows(&w, rows[k], N, k ? N : SN_SPAN_ROWS);
        fixture_close(&w);
    }
    size_t n = (size_t)N * 64;
    cr_expect_leq(largest_distance(rows[1], rows[0], n), 3e-2);
    free(rows[0]), free(rows[1]);
    tiny_model_remove(&path);
}

Test(emulated_devices, recurrent_blocks_on_several_devices_are_refused) {
    fixture w;
    sn_err why = {0};
    cr_expect_eq(fixture_try_open(&w, SN_FIXTURES "/golden/qwen3_5", "0:2=cpu,2:4=cuda:0", NULL, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "give one --device"), "%s", why.text);
    fixture_close(&w);
}

/* -- offload */

Test(emulated_devices, offloaded_blocks_give_the_bits_of_resident_ones_on_their_device) {
    static const char *const kinds[] = {"cpu", "cuda:0", "xpu:0"};
    static const char *const offload_maps[] = {"0:1=%s,1:6=host", "0:1=%s,1:6=disk",
                                               "0:2=%s,2:3=host,3:4=disk,4:5=%s,5:6=disk"};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = 6});
    for (int k = 0; k < 3; k++) {
        char map[128];
        snprintf(map, sizeof map, "0:6=%s", kinds[k]);
        fixture w = fixture_open(path, map, NULL);
        float *resident = make_rows(40, w.hp->n_embd);
        size_t bytes = 40 * (size_t)w.hp->n_embd * sizeof *resident;
        run_rows(&w, resident, 40, 9);
        fixture_close(&w);
        for (int r = 0; r < 3; r++)
            for (int preload = 0; preload < 2; preload++) {
                snprintf(map, sizeof map, offload_maps[r], kinds[k], kinds[k]);
                fixture o = fixture_open(path, map, preload ? "2:4" : NULL);
                float *rows = make_rows(40, o.hp->n_embd);
                run_rows(&o, rows, 40, 9);
                cr_expect(!memcmp(rows, resident, bytes), "%s, preload %d", map, preload);
                free(rows);
                fixture_close(&o);
            }
        free(resident);
    }
    tiny_model_remove(&path);
}

/* The bits of resident experts on their device, however few are there at a time. */
Test(emulated_devices, experts_that_rest_elsewhere_give_the_bits_of_resident_ones_on_their_device) {
    static const char *const families[] = {"qwen3_moe", "gpt_oss", "llama4"}, *const places[] = {"cuda:0", "xpu:0"};
    for (int f = 0; f < 3; f++)
        for (int d = 0; d < 2; d++) {
            char path[256], map[64];
            float *want = NULL;
            snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, families[f]);
            for (int way = 0; way < 5; way++) { /* resident; in host memory and on disk, with few slots and with all */
                const char *rest = way == 0 ? "" : way < 3 ? ",*.experts=host" : ",*.experts=disk";
                snprintf(map, sizeof map, "*=%s%s", places[d], rest);
                expert_memory = way % 2 ? 336 << 10 : 0;
                fixture w = fixture_open(path, map, way == 4 ? "experts:1:2" : NULL);
                float *rows = make_rows(20, w.hp->n_embd);
                run_rows(&w, rows, 12, 6);
                run_rows(&w, rows + 12 * w.hp->n_embd, 8, 1);
                sn_expert_counts counts = sn_span_expert_counts(w.span);
                cr_expect_eq(way > 0, counts.bytes > 0, "%s on %s", families[f], map);
                cr_expect(!want || !memcmp(rows, want, 20 * (size_t)w.hp->n_embd * sizeof *rows), "%s on %s, %zu bytes",
                          families[f], map, expert_memory);
                if (want) free(rows);
                if (!want) want = rows;
                fixture_close(&w);
            }
            free(want);
        }
    expert_memory = 0;
}

/* Attention on one device, experts on another: the reference's numbers, and copies as planned. */
Test(emulated_devices, experts_are_computed_on_the_device_that_the_map_says) {
    static const char *const families[] = {"qwen2_moe", "gpt_oss", "llama4", "deepseek_v3"};
    static const char *const maps[] = {"*=cpu,*.experts=xpu:0", "*=cuda:0,*.experts=cpu",
                                       "0:2=xpu:0,2:4=cuda:0,1:3.experts=cpu"};
    for (int f = 0; f < 4; f++)
        for (int m = 0; m < 3; m++) {
            bool mixture;
            double one = golden_distance(families[f], maps[m], 24, 1, &mixture);
            double many = golden_distance(families[f], maps[m], 24, 24, &mixture);
            cr_expect(one <= 1e-4 && many <= 1e-4, "%s on %s: %g, at once %g", families[f], maps[m], one, many);
        }
    char path[256];
    snprintf(path, sizeof path, "%s/golden/gpt_oss", SN_FIXTURES);
    fixture w = fixture_open(path, "*=cuda:0,*.experts=cpu", NULL);
    uint64_t moved = 0;
    float *rows = make_rows(5, w.hp->n_embd);
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {5, w.hp->n_embd}};
    sn_span_sequence part = {w.kv, &input, 0, 5, rows};
    REQUIRE(sn_kv_cache_reserve(w.kv, 5, &err));
    REQUIRE(sn_span_forward(w.span, 0, 4, 1, &part, &moved, &err));
    cr_expect_eq(moved, 5 * (uint64_t)w.hp->n_embd * sizeof(float) * (2 + 2 * 4));
    cr_expect_eq(sn_span_transfer_bytes(w.span, 0, 4, 1, &part), moved);
    free(rows);
    fixture_close(&w);
}

/* DeepSeek's decode step, with its groups of experts, is one recorded pass. */
Test(emulated_devices, a_decode_step_over_latents_is_recorded_once) {
    fixture w = fixture_open(SN_FIXTURES "/golden/deepseek_v3", "0:4=cuda:0", NULL);
    float *rows = make_rows(20, w.hp->n_embd);
    uint64_t before = devices[CUDA]->graphs_captured;
    run_rows(&w, rows, 20, 1);
    cr_expect_eq(devices[CUDA]->graphs_captured - before, 1);
    free(rows);
    fixture_close(&w);
}

Test(emulated_devices, a_decode_step_is_recorded_once_whatever_is_preloaded_or_offloaded) {
    static const char *const maps[] = {"0:6=cuda:0", "0:5=cuda:0,5:6=host"}, *const preloads[] = {NULL, "all"};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = 6});
    for (int m = 0; m < 2; m++)
        for (int p = 0; p < 2; p++) {
            fixture w = fixture_open(path, maps[m], preloads[p]);
            float *rows = make_rows(20, w.hp->n_embd);
            uint64_t before = devices[CUDA]->graphs_captured;
            run_rows(&w, rows, 20, 1);
            uint64_t recorded = devices[CUDA]->graphs_captured - before;
            bool streams = m == 1 && p == 0;
            cr_expect_eq(recorded, streams ? 0 : 1, "%s, preload %s: recorded %llu times", maps[m],
                         preloads[p] ? preloads[p] : "none", (unsigned long long)recorded);
            free(rows);
            fixture_close(&w);
        }
    tiny_model_remove(&path);
}

/* -- KV caches of other devices */

static void expect_same_kv(fixture *a, fixture *b, int n) {
    size_t keys = (size_t)n * sn_kv_key_width(a->hp), values = (size_t)n * sn_kv_value_width(a->hp);
    float *parts[2] = {malloc((keys + values) * sizeof(float)), malloc((keys + values) * sizeof(float))};
    for (int block = 0; block < a->hp->n_blocks; block++) {
        REQUIRE(sn_span_kv_export(a->span, a->kv, block, 0, n, parts[0], parts[0] + keys, &err));
        REQUIRE(sn_span_kv_export(b->span, b->kv, block, 0, n, parts[1], parts[1] + keys, &err));
        cr_expect(!memcmp(parts[0], parts[1], (keys + values) * sizeof(float)),
                  "block %d has other keys or values as %s", block, sn_kv_dtype_name(kv_dtype));
    }
    free(parts[0]), free(parts[1]);
}

enum { N_PAST = 37, ALL = 45 };

/* Moves the first N_PAST positions of a session to one that has none. */
static void move_session(const fixture *from, const fixture *to) {
    int heads = from->hp->n_kv_heads;
    int64_t k_dim = (int64_t)sn_kv_key_width(from->hp) / heads, v_dim = (int64_t)sn_kv_value_width(from->hp) / heads;
    float *k = malloc(N_PAST * sn_kv_key_width(from->hp) * sizeof *k),
          *v = malloc(N_PAST * sn_kv_value_width(from->hp) * sizeof *v);
    REQUIRE(sn_kv_cache_reserve(to->kv, N_PAST, &err));
    for (int block = 0; block < from->hp->n_blocks; block++) {
        sn_tensor t = {.name = "past keys", .dtype = SN_F32, .rank = 3, .shape = {N_PAST, heads, k_dim}}, u = t;
        u.shape[2] = v_dim;
        REQUIRE(sn_span_kv_export(from->span, from->kv, block, 0, N_PAST, k, v, &err));
        t.data = k;
        u.data = v;
        REQUIRE(sn_span_kv_import(to->span, to->kv, block, N_PAST, &t, &u, &err));
    }
    sn_kv_cache_append(to->kv, N_PAST);
    free(k), free(v);
}

/* Sessions of the model on each of the devices go on on each of them, with the bits of their KV caches. `most`: by how
 * much the rows may differ. */
static void expect_sessions_to_move(const char *path, double most) {
    static const char *const maps[] = {"0:4=cpu", "0:4=cuda:0", "0:4=xpu:0", "0:1=xpu:0,1:2=cpu,2:4=cuda:0"};
    for (int from = 0; from < 4; from++) {
        fixture a = fixture_open(path, maps[from], NULL);
        size_t n = (size_t)(ALL - N_PAST) * (size_t)a.hp->n_embd;
        float *past = make_rows(ALL, a.hp->n_embd), *next = past + (size_t)N_PAST * (size_t)a.hp->n_embd;
        float *here = malloc(n * sizeof *here), *there = malloc(n * sizeof *there);
        memcpy(here, next, n * sizeof *here);
        run_rows(&a, past, N_PAST, 1);
        run_rows(&a, here, ALL - N_PAST, 1);
        for (int to = 0; to < 4; to++) {
            fixture b = fixture_open(path, maps[to], NULL);
            move_session(&a, &b);
            expect_same_kv(&a, &b, N_PAST);
            memcpy(there, next, n * sizeof *there);
            run_rows(&b, there, ALL - N_PAST, 1);
            double d = largest_distance(there, here, n);
            cr_expect(from == to ? d == 0 : d < most, "%s: KV cache of %s on %s: %g", path, maps[from], maps[to], d);
            fixture_close(&b);
        }
        free(past), free(here), free(there);
        fixture_close(&a);
    }
}

Test(emulated_devices, a_session_continues_with_kv_of_another_device) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    expect_sessions_to_move(path, 1e-4);
    for (kv_dtype = SN_KV_F16; kv_dtype <= SN_KV_Q8; kv_dtype++)
        expect_sessions_to_move(path, kv_dtype == SN_KV_Q8 ? 5e-2 : 5e-3);
    tiny_model_remove(&path);
}

Test(emulated_devices, a_session_continues_with_latents_of_another_device) {
    expect_sessions_to_move(SN_FIXTURES "/golden/deepseek_v3", 1e-4);
    kv_dtype = SN_KV_Q8;
    expect_sessions_to_move(SN_FIXTURES "/golden/deepseek_v3", 5e-2);
}

/* -- tensors from anywhere */

/* A tensor in the memory of a device, NULL: on the host, as F32 or BF16; free it with outside_free. */
typedef struct outside {
    sn_tensor tensor;
    void *memory;
    size_t bytes;
} outside;

static outside outside_new(sn_device *device, sn_dtype dtype, const float *from, int rank, const int64_t *shape) {
    outside o = {.tensor = {.name = "outside", .device = device, .dtype = dtype, .rank = rank}};
    size_t n = 1;
    for (int i = 0; i < rank; i++) n *= (size_t)(o.tensor.shape[i] = shape[i]);
    o.bytes = n * sn_dtype_bytes(dtype);
    void *host = malloc(o.bytes);
    for (size_t i = 0; i < n && dtype == SN_BF16; i++) ((uint16_t *)host)[i] = sn_f32_to_bf16(from[i]);
    if (dtype == SN_F32) memcpy(host, from, o.bytes);
    o.memory = host;
    if (device) {
        REQUIRE(device->ops->alloc(device, o.bytes, &o.memory, &err));
        REQUIRE(device->ops->upload(device, o.memory, host, o.bytes, &err));
        free(host);
    }
    o.tensor.data = o.memory;
    return o;
}

static void outside_free(outside *o) {
    sn_device *device = o->tensor.device;
    if (device)
        device->ops->free(device, o->memory, o->bytes);
    else
        free(o->memory);
}

/* Numbers that bfloat16 has, too. */
static float *make_short_numbers(size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)((int)(i * 37 % 129) - 64) / 64;
    return x;
}

Test(emulated_devices, imported_kv_of_any_device_and_type_enters_through_the_guard) {
    enum { N = 37 };
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    fixture w = fixture_open(path, "0:1=xpu:0,1:2=cpu,2:4=cuda:0", NULL);
    const int64_t shape[] = {N, w.hp->n_kv_heads, w.hp->head_dim};
    size_t n = (size_t)(N * w.hp->n_kv_heads * w.hp->head_dim);
    float *k = make_short_numbers(n), *v = make_short_numbers(n), *got = malloc(2 * n * sizeof *got);
    for (size_t i = 0; i < n; i++) v[i] = -v[i] / 2;
    REQUIRE(sn_kv_cache_reserve(w.kv, N, &err));
    for (int b = 0; b < 4; b++)
        for (int d = -1; d < N_DEVICES; d++)
            for (int half = 0; half < 2; half++) {
                sn_device *device = d < 0 ? NULL : devices[d];
                outside keys = outside_new(device, half ? SN_BF16 : SN_F32, k, 3, shape),
                        values = outside_new(device, half ? SN_F32 : SN_BF16, v, 3, shape);
                REQUIRE(sn_span_kv_import(w.span, w.kv, b, N, &keys.tensor, &values.tensor, &err));
                sn_err err;
                keys.tensor.shape[0] = N + 1;
                cr_expect_eq(sn_span_kv_import(w.span, w.kv, b, N, &keys.tensor, &values.tensor, &err), SN_REFUSED);
                outside_free(&keys);
                outside_free(&values);
            }
    sn_kv_cache_append(w.kv, N);
    for (int b = 0; b < 4; b++) {
        REQUIRE(sn_span_kv_export(w.span, w.kv, b, 0, N, got, got + n, &err));
        cr_expect(!memcmp(got, k, n * sizeof *k) && !memcmp(got + n, v, n * sizeof *v), "block %d", b);
    }
    free(k), free(v), free(got);
    fixture_close(&w);
    tiny_model_remove(&path);
}

/* A deep prompt and LoRA matrices of block 1, as `dtype`. */
static sn_adapter *load_adapter(fixture *w, sn_dtype dtype) {
    size_t embd = (size_t)w->hp->n_embd;
    float *values = make_short_numbers(8 * embd);
    void *data = values;
    if (dtype == SN_BF16) {
        data = malloc(8 * embd * sizeof(uint16_t));
        for (size_t i = 0; i < 8 * embd; i++) ((uint16_t *)data)[i] = sn_f32_to_bf16(values[i]);
    }
    const char *at = data;
    size_t row = embd * sn_dtype_bytes(dtype);
    const sn_safetensors_entry entries[] = {{"prompt.1", dtype, 2, {3, embd}, at},
                                            {"lora_a.1.q", dtype, 2, {2, embd}, at + 3 * row},
                                            {"lora_b.1.q", dtype, 2, {embd, 2}, at + 5 * row}};
    sn_buf image;
    sn_adapter *adapter = NULL;
    sn_buf_init(&image, 1 << 20);
    REQUIRE(sn_safetensors_serialize(entries, 3, &image, &err));
    REQUIRE(sn_adapter_load(w->span, image.data, image.len, &adapter, &err));
    sn_buf_fini(&image);
    if (data != values) free(data);
    free(values);
    return adapter;
}

/* The gradient of 20 rows and then of the adapter, from tensors on a device (NULL: the host), in pieces of `budget`. */
static float *train_gradients(fixture *w, sn_device *device, sn_dtype dtype, size_t budget, size_t *n) {
    enum { ROWS = 20 };
    size_t floats = ROWS * (size_t)w->hp->n_embd;
    float *x = make_short_numbers(2 * floats);
    const int64_t shape[] = {ROWS, w->hp->n_embd};
    outside in = outside_new(device, dtype, x, 2, shape), dout = outside_new(device, SN_F32, x + floats, 2, shape);
    sn_adapter *adapter = load_adapter(w, dtype);
    sn_train *train = NULL;
    *n = floats + sn_adapter_n_params(adapter, 0, 4);
    float *out = calloc(*n, sizeof *out);
    REQUIRE(sn_train_new(w->span, ROWS, &train, &err));
    REQUIRE(sn_train_start_backward(train, &(sn_train_sequence){0, 4, adapter, &in.tensor}, NULL, &dout.tensor, out,
                                    out + floats, &err));
    for (bool done = false; !done;) REQUIRE(sn_train_run(train, budget, NULL, &done, &err));
    sn_train_free(&train);
    sn_adapter_free(&adapter);
    outside_free(&in);
    outside_free(&dout);
    free(x);
    return out;
}

Test(emulated_devices, training_takes_tensors_and_adapters_through_the_guard_in_pieces_of_any_size) {
    static const char *const maps[] = {"0:4=cpu", "0:4=cuda:0", "0:4=xpu:0", "0:1=cpu,1:2=cuda:0,2:3=xpu:0,3:4=cpu"};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    float *first = NULL;
    for (int m = 0; m < 4; m++) {
        fixture w = fixture_open(path, maps[m], NULL);
        size_t n;
        float *host = train_gradients(&w, NULL, SN_F32, SIZE_MAX, &n);
        for (int d = -1; d < N_DEVICES; d++) {
            float *there = train_gradients(&w, d < 0 ? NULL : devices[d], SN_BF16, SIZE_MAX, &n);
            cr_expect(!memcmp(host, there, n * sizeof *host), "%s from device %d", maps[m], d);
            free(there);
        }
        float *pieces = train_gradients(&w, NULL, SN_F32, 1, &n);
        if (!first) first = memcpy(malloc(n * sizeof *host), host, n * sizeof *host);
        double whole = largest_distance(host, first, n), cut = largest_distance(pieces, first, n);
        cr_expect_leq(whole, m ? 3e-2 : 0, "%s: %g", maps[m], whole);
        cr_expect_leq(cut, m ? 3e-2 : 0, "%s, in pieces: %g", maps[m], cut);
        free(host), free(pieces);
        fixture_close(&w);
    }
    free(first);
    tiny_model_remove(&path);
}

/* -- failures */

Test(emulated_devices, a_stalled_device_is_named_and_the_others_continue) {
    static const struct {
        int device;
        const char *map, *name;
    } cases[] = {{CUDA, "0:2=cpu,2:4=cuda:0", "cuda:0"}, {XPU, "0:2=cpu,2:4=xpu:0", "xpu:0"}};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    for (int i = 0; i < 2; i++) {
        fixture w = fixture_open(path, cases[i].map, NULL);
        float *rows = make_rows(4, w.hp->n_embd), out[256];
        REQUIRE(step_blocks(&w, 0, 4, 1, rows, out, &err));
        sn_err err;
        devices[cases[i].device]->timeout_ms = 200;
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
        devices[cases[i].device]->timeout_ms = 180000;
        if (cases[i].device == CUDA) cuda_stand_in_heal(); /* so that its memory can be freed */
#ifdef SN_ZE_TEST_DRIVER
        else
            ze_test_faults.heal();
#endif
        free(rows);
        fixture_close(&w);
    }
    tiny_model_remove(&path);
}

Test(emulated_devices, memory_returns_after_a_thousand_loads_and_after_a_failure_at_every_step) {
    const char *map = "0:1=cuda:0,1:2=xpu:0,2:3=host,3:4=disk";
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1});
    fixture w = fixture_open(path, map, "3:4"); /* whatever the devices allocate once and keep is allocated now */
    fixture_close(&w);
    size_t before = emulated_memory_used();
    for (int i = 0; i < 1000; i++) {
        w = fixture_open(path, map, i % 2 ? "3:4" : NULL);
        fixture_close(&w);
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
            failed = fixture_try_open(&w, path, map, NULL, &err) != SN_OK;
            fixture_close(&w);
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
    fixture w = fixture_open(path, map, NULL);
    sn_lm_head *head = NULL;
    REQUIRE(sn_lm_head_load(w.model, devices[CPU], &head, &err));
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
    fixture_close(&w);
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

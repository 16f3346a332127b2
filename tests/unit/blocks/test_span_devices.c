/* A span over several places: wherever blocks compute and are kept, devices of one kind give the same bits, and all
 * memory is freed. This file uses the CPU; test_emulated_devices.c and test_emulated_offload.c do the same with
 * emulated accelerators. */
#include "blocks/span.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 70, BLOCKS = 8 };

static char *path, folder[] = "/tmp/swarm-test-store-XXXXXX";
static sn_model *model;
static sn_device *cpu;

static void set_up(void) {
    path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = BLOCKS});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &cpu, &err));
    if (!mkdtemp(folder)) abort();
}

static void remove_files(void) {
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.') unlinkat(dirfd(dir), e->d_name, 0);
    if (dir) closedir(dir);
    rmdir(folder);
}

static void tear_down(void) {
    remove_files();
    sn_device_close(&cpu);
    sn_model_close(&model);
    tiny_model_remove(&path);
}

TestSuite(span_devices, .init = set_up, .fini = tear_down);

static sn_plan plan_of(const char *map, const char *preload) {
    sn_block_cost costs[BLOCKS];
    sn_plan_device device = {.id = cpu->id, .budget = (size_t)1 << 40};
    sn_plan plan;
    REQUIRE(sn_span_costs(model, cpu, &(sn_span_part){0, BLOCKS, {0}}, 16u << 20, costs, &device.scratch, &err));
    sn_plan_query query = {
        .first = 0, .end = BLOCKS, .costs = costs, .devices = &device, .n_devices = 1, .preload = preload};
    REQUIRE(sn_plan_explicit(&query, map, &plan, &err));
    return plan;
}

/* Hidden states after block BLOCKS - 1, and the keys of every block, computed in chunks of 11. */
static float *compute_hidden(const char *map, const char *preload) {
    sn_plan plan = plan_of(map, preload);
    sn_offload_store *store = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv_cache *kv = NULL;
    const sn_hparams *hp = sn_model_hparams(model);
    size_t row = (size_t)hp->n_embd, keys = (size_t)(hp->n_kv_heads * hp->head_dim);
    float *out = calloc(TOKENS * row + BLOCKS * TOKENS * keys, sizeof *out),
          *values = calloc(TOKENS * keys, sizeof *values);
    for (size_t i = 0; i < TOKENS * row; i++) out[i] = (float)((int)(i * 37 % 201) - 100) * 0.01f;
    REQUIRE(sn_offload_store_open(folder, &store, &err));
    REQUIRE(sn_span_load_plan(model, &plan, &cpu, store, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 16u << 20, &pool, &err));
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    for (int at = 0, n; at < TOKENS; at += n) {
        n = TOKENS - at < 11 ? TOKENS - at : 11;
        sn_tensor input = {.name = "hidden states",
                           .data = out + (size_t)at * row,
                           .dtype = SN_F32,
                           .rank = 2,
                           .shape = {n, hp->n_embd}};
        sn_span_sequence part = {kv, &input, 0, n, out + (size_t)at * row};
        REQUIRE(sn_kv_cache_reserve(kv, n, &err));
        REQUIRE(sn_span_forward(span, 0, BLOCKS, 1, &part, NULL, &err));
    }
    for (int b = 0; b < BLOCKS; b++)
        REQUIRE(
            sn_span_kv_export(span, kv, b, 0, TOKENS, out + TOKENS * row + (size_t)b * TOKENS * keys, values, &err));
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_offload_store_close(&store);
    free(values);
    return out;
}

static size_t compared_bytes(void) {
    const sn_hparams *hp = sn_model_hparams(model);
    return TOKENS * sizeof(float) * ((size_t)hp->n_embd + BLOCKS * (size_t)(hp->n_kv_heads * hp->head_dim));
}

Test(span_devices, offloaded_blocks_give_the_bits_of_resident_ones) {
    static const char *const maps[] = {"0:1=cpu,1:8=host", "0:1=cpu,1:8=disk",
                                       "0:2=cpu,2:3=host,3:5=disk,5:6=cpu,6:8=host", "0:8=cpu"};
    static const char *const preloads[] = {NULL, "2:4", "all"};
    float *resident = compute_hidden("0:8=cpu", NULL);
    for (size_t m = 0; m < sizeof maps / sizeof *maps; m++)
        for (size_t p = 0; p < sizeof preloads / sizeof *preloads; p++) {
            float *other = compute_hidden(maps[m], preloads[p]);
            cr_expect(!memcmp(resident, other, compared_bytes()), "%s with preload %s: bits differ", maps[m],
                      preloads[p] ? preloads[p] : "none");
            free(other);
        }
    free(resident);
}

/* -- numbers with which CPUs compute tens of times slower, from a client */

typedef struct loaded_span {
    sn_span *span;
    sn_kv_pool *pool;
    sn_kv_cache *kv;
} loaded_span;

static loaded_span load_span(int tokens) {
    sn_plan plan = plan_of("0:8=cpu", NULL);
    loaded_span l = {0};
    REQUIRE(sn_span_load_plan(model, &plan, &cpu, NULL, NULL, NULL, &l.span, &err));
    REQUIRE(sn_span_kv_pool(l.span, 16u << 20, &l.pool, &err));
    REQUIRE(sn_kv_cache_new(l.pool, &l.kv, &err));
    REQUIRE(sn_kv_cache_reserve(l.kv, tokens, &err));
    return l;
}

static void unload_span(loaded_span *l) {
    sn_kv_cache_free(&l->kv);
    sn_kv_pool_free(&l->pool);
    sn_span_free(&l->span);
}

/* What a new session's two rows become: one of `each` alone, which sees no other, and one of ones behind `first`. */
static float *compute_two_rows(float each, float first) {
    int width = sn_model_hparams(model)->n_embd;
    loaded_span l = load_span(2);
    float *in = calloc(2 * (size_t)width, sizeof *in), *out = calloc(2 * (size_t)width, sizeof *out);
    for (int i = 0; i < width; i++) in[i] = each, in[width + i] = i ? 1 : first;
    sn_tensor input = {.name = "hidden states", .data = in, .dtype = SN_F32, .rank = 2, .shape = {2, width}};
    sn_span_sequence part = {l.kv, &input, 0, 2, out};
    REQUIRE(sn_span_forward(l.span, 0, BLOCKS, 1, &part, NULL, &err));
    cr_expect(in[0] == each && in[width] == first, "the client's rows, which its receipt names, have changed");
    unload_span(&l);
    free(in);
    return out;
}

Test(span_devices, tiny_numbers_of_a_client_are_computed_as_zeros) {
    size_t bytes = 2 * (size_t)sn_model_hparams(model)->n_embd * sizeof(float);
    float *zeros = compute_two_rows(0, 0), *tiny = compute_two_rows(-1e-38f, 1e-41f),
          *small = compute_two_rows(1e-9f, 0);
    cr_expect(!memcmp(zeros, tiny, bytes));
    cr_expect(memcmp(zeros, small, bytes), "numbers that a model may compute are lost");
    free(zeros);
    free(tiny);
    free(small);
}

Test(span_devices, tiny_keys_and_values_of_a_client_are_kept_as_zeros) {
    enum { N = 16 };
    const sn_hparams *hp = sn_model_hparams(model);
    size_t size = (size_t)N * sn_kv_key_width(hp, 0);
    loaded_span l = load_span(N);
    float *k = calloc(size, sizeof *k), *v = calloc(size, sizeof *v), *back = calloc(2 * size, sizeof *back);
    for (size_t i = 0; i < size; i++) k[i] = i % 2 ? 1 : 1e-40f, v[i] = 1e-30f;
    sn_tensor keys = {
        .name = "keys", .data = k, .dtype = SN_F32, .rank = 3, .shape = {N, hp->n_kv_heads, hp->head_dim}};
    sn_tensor values = keys;
    values.data = v;
    for (int b = 0; b < BLOCKS; b++) REQUIRE(sn_span_kv_import(l.span, l.kv, b, N, &keys, &values, &err));
    sn_kv_cache_append(l.kv, N);
    for (int b = 0; b < BLOCKS; b++) {
        REQUIRE(sn_span_kv_export(l.span, l.kv, b, 0, N, back, back + size, &err));
        for (size_t i = 0; i < size; i++)
            cr_assert(back[i] == (float)(i % 2) && back[size + i] == 0, "element %zu of block %d", i, b);
    }
    unload_span(&l);
    free(k);
    free(v);
    free(back);
}

/* -- the order of copies and computation, seen at the device's queue */

static const sn_device_ops *cpu_ops;
static int n_copies, n_late, n_attentions, n_streamed;

static sn_status count_copy(sn_device *d, void *device, const void *host, size_t bytes, sn_fence *fence, sn_err *err) {
    n_copies++;
    return cpu_ops->copy_begin(d, device, host, bytes, fence, err);
}
/* Block i of the streamed ones computes: the copy of block i + 1 must have begun. */
static sn_status check_attention(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *err) {
    int begun = n_attentions % n_streamed + 2, pass = n_attentions / n_streamed;
    n_late += n_copies < pass * n_streamed + (begun < n_streamed ? begun : n_streamed);
    n_attentions++;
    return cpu_ops->attention(d, how, q, out, err);
}

Test(span_devices, the_next_block_is_copied_while_the_present_one_computes) {
    static const char *const maps[] = {"0:1=host,1:8=host", "0:1=disk,1:8=disk"};
    cpu_ops = cpu->ops;
    sn_device_ops ops = *cpu_ops;
    ops.copy_begin = count_copy;
    ops.attention = check_attention;
    cpu->ops = &ops;
    for (int m = 0; m < 2; m++) {
        n_copies = n_late = n_attentions = 0;
        n_streamed = BLOCKS;
        free(compute_hidden(maps[m], NULL));
        cr_expect_gt(n_attentions, BLOCKS);
        cr_expect_eq(n_copies, n_attentions, "%s: every block is copied once in a pass", maps[m]);
        cr_expect_eq(n_late, 0, "%s: %d of %d copies begin only when they are needed", maps[m], n_late, n_copies);
    }
    cpu->ops = cpu_ops;
}

static size_t device_bytes(const char *map, const char *preload) {
    sn_plan plan = plan_of(map, preload);
    sn_offload_store *store = NULL;
    sn_span *span = NULL;
    REQUIRE(sn_offload_store_open(folder, &store, &err));
    REQUIRE(sn_span_load_plan(model, &plan, &cpu, store, NULL, NULL, &span, &err));
    size_t bytes = sn_span_bytes(span);
    sn_span_free(&span);
    sn_offload_store_close(&store);
    return bytes;
}

Test(span_devices, preload_means_the_same_for_resident_and_offloaded_blocks) {
    sn_block_cost costs[BLOCKS];
    size_t scratch;
    size_t all = device_bytes("0:8=cpu", NULL); /* the device is prepared by now: it needs no more for itself */
    REQUIRE(sn_span_costs(model, cpu, &(sn_span_part){0, BLOCKS, {0}}, 0, costs, &scratch, &err));
    size_t block = costs[0].weights;
    cr_assert_eq(all, 8 * block + scratch);
    cr_expect_eq(device_bytes("0:8=cpu", "2:4"), all); /* they are resident anyway */
    static const char *const maps[] = {"0:1=cpu,1:8=host", "0:1=cpu,1:8=disk"};
    for (int m = 0; m < 2; m++) {
        cr_expect_eq(device_bytes(maps[m], NULL), 1 * block + 2 * block + scratch, "%s",
                     maps[m]); /* one block, and two slots */
        cr_expect_eq(device_bytes(maps[m], "2:4"), 3 * block + 2 * block + scratch, "%s", maps[m]);
        cr_expect_eq(device_bytes(maps[m], "all"), all, "%s", maps[m]); /* nothing is streamed: no slots */
    }
}

/* The rows of a span's batch on a device that gains by 2,048. */
static int rows_with_width(int n_embd, size_t *planned, size_t *bytes) {
    const sn_device_options options = {.threads = 1, .batch_rows = 2048};
    sn_block_cost cost;
    sn_device *device = NULL;
    sn_model *wide = NULL;
    sn_span *span = NULL;
    char *file = tiny_model_make(&(tiny_model_options){
        .dtype = SN_Q8_0, .n_blocks = 1, .n_embd = n_embd, .n_heads = n_embd / 64, .n_kv_heads = 1});
    REQUIRE(sn_model_open(file, &wide, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    REQUIRE(sn_span_costs(wide, device, &(sn_span_part){0, 1, {0}}, 0, &cost, planned, &err));
    REQUIRE(sn_span_load(wide, device, 0, 1, NULL, NULL, &span, &err));
    int rows = sn_span_rows_max(span);
    *planned += cost.weights;
    *bytes = sn_span_bytes(span);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&wide);
    tiny_model_remove(&file);
    return rows;
}

Test(span_devices, a_batch_has_as_many_rows_as_gain_and_as_a_message_holds) {
    static const int widths[][2] = {{64, 2048}, {2048, 2048}, {2112, 1024}, {4096, 1024}, {4160, 512}};
    size_t planned, bytes, narrow;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        cr_expect_eq(rows_with_width(widths[i][0], &planned, &bytes), widths[i][1], "of %d", widths[i][0]);
        cr_expect_leq(bytes, planned, "the plan counts less than the span takes");
    }
    rows_with_width(64, &planned, &bytes);
    sn_span *span = NULL;
    sn_device *device = NULL;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &device, &err));
    REQUIRE(sn_span_load(model, device, 0, 1, NULL, NULL, &span, &err));
    cr_expect_eq(sn_span_rows_max(span), SN_SPAN_ROWS);
    narrow = sn_span_bytes(span);
    cr_expect_lt(narrow, bytes);
    sn_span_free(&span);
    sn_device_close(&device);
}

/* A mixture whose rows choose all of `used` experts, on a device that gains by batch_rows; what its activations take.
 */
static size_t mixture_scratch(const char *file, int batch_rows) {
    const sn_device_options options = {.threads = 1, .batch_rows = batch_rows};
    sn_block_cost cost;
    sn_device *device = NULL;
    sn_model *mixture = NULL;
    size_t scratch;
    REQUIRE(sn_model_open(file, &mixture, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    REQUIRE(sn_span_costs(mixture, device, &(sn_span_part){0, 1, {0}}, 0, &cost, &scratch, &err));
    sn_device_close(&device);
    sn_model_close(&mixture);
    return scratch;
}

static char *mixture_make(int used, int n_embd, int n_ff) {
    return tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_0,
                                                 .n_blocks = 1,
                                                 .n_embd = n_embd,
                                                 .n_heads = n_embd / 32,
                                                 .n_kv_heads = 1,
                                                 .n_ff = n_ff,
                                                 .n_experts = used,
                                                 .n_experts_used = used});
}

Test(span_devices, a_batch_has_no_more_pairs_than_devices_take) {
    char *usual = mixture_make(16, 2048, 32), *wide = mixture_make(64, 32, 16384);
    cr_expect_gt(mixture_scratch(usual, 2048), mixture_scratch(usual, 1024), "2,048 rows through 16 experts are taken");
    cr_expect_gt(mixture_scratch(wide, 1024), mixture_scratch(wide, 512));
    cr_expect_eq(mixture_scratch(wide, 2048), mixture_scratch(wide, 1024), "2,048 rows are more than a device takes");
    tiny_model_remove(&usual);
    tiny_model_remove(&wide);
}

Test(span_devices, a_damaged_image_on_disk_is_rebuilt) {
    float *first = compute_hidden("0:1=cpu,1:8=disk", NULL);
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) {
        int fd = e->d_name[0] == '.' ? -1 : openat(dirfd(dir), e->d_name, O_WRONLY);
        if (fd < 0) continue;
        cr_assert_eq(pwrite(fd, "X", 1, 3000), 1);
        close(fd);
    }
    closedir(dir);
    float *again = compute_hidden("0:1=cpu,1:8=disk", NULL);
    cr_assert(!memcmp(first, again, compared_bytes()));
    free(first);
    free(again);
}

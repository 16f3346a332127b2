/* Experts that rest in host memory or on disk: wherever they are, and however few are on the device at a time, the CPU
 * gives the bits of blocks that hold all of theirs; memory stays within the plan; what is read is checked.
 * test_expert_slots.c has the slots one by one. */
#include "blocks/block.h"
#include "blocks/span.h"
#include "blocks/train.h"
#include "model/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/made_model.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 40, THREADS = 2, PAGE = 4096 };

static const char *const mixtures[] = {"mixtral",     "qwen2_moe",   "qwen3_moe",        "gpt_oss",
                                       "glm4_moe",    "minimax_m2",  "llama4",           "deepseek_v2",
                                       "deepseek_v3", "qwen3_5_moe", "nemotron_h_latent"};
enum { N_MIXTURES = sizeof mixtures / sizeof *mixtures };

static char *folder;
static sn_model *model;

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) {
    sn_model_close(&model);
    temp_folder_remove(&folder);
}

TestSuite(resting_experts, .init = set_up, .fini = tear_down);

static const sn_hparams *open_family(const char *family) {
    char path[256];
    snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, family);
    sn_model_close(&model);
    REQUIRE(sn_model_open(path, &model, &err));
    return sn_model_hparams(model);
}

/* Where experts rest, and how many bytes of each device's memory they may take (0: what they like). */
typedef struct placement {
    const char *map, *preload;
    size_t expert_memory;
} placement;

typedef struct fixture {
    sn_plan plan;
    sn_device *device;
    sn_offload_store *store;
    sn_span *span;
    sn_kv_pool *pool;
    sn_kv_cache *kv;
} fixture;

static sn_status make_plan(const placement *p, size_t budget, sn_device *device, sn_plan *out, sn_err *err) {
    sn_block_cost costs[SN_PLAN_BLOCKS_MAX];
    int n = sn_model_hparams(model)->n_blocks;
    sn_plan_device one = {.id = device->id, .budget = budget};
    sn_status status = sn_span_costs(model, device, &(sn_span_part){0, n, {0}}, 2u << 20, costs, &one.scratch, err);
    sn_plan_query query = {.end = n,
                           .costs = costs,
                           .devices = &one,
                           .n_devices = 1,
                           .offload = p->map ? SN_ON_DEVICE : SN_ON_DISK,
                           .preload = p->preload,
                           .expert_memory = p->expert_memory};
    if (status) return status;
    return p->map ? sn_plan_explicit(&query, p->map, out, err) : sn_plan_auto(&query, out, err);
}

static sn_status fixture_try_open(fixture *w, const placement *p, size_t budget, sn_err *err) {
    const sn_device_options options = {.threads = THREADS, .timeout_ms = 20000, .memory_max = budget};
    *w = (fixture){0};
    SN_TRY(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &w->device, err));
    SN_TRY(make_plan(p, budget ? budget : (size_t)1 << 30, w->device, &w->plan, err));
    SN_TRY(sn_offload_store_open(folder, &w->store, err));
    SN_TRY(sn_span_load_plan(model, &w->plan, &w->device, w->store, NULL, NULL, &w->span, err));
    SN_TRY(sn_span_kv_pool(w->span, 2u << 20, &w->pool, err));
    return sn_kv_cache_new(w->pool, &w->kv, err);
}

static fixture fixture_open(const placement *p) {
    fixture w;
    REQUIRE(fixture_try_open(&w, p, 0, &err));
    return w;
}

static void fixture_close(fixture *w) {
    sn_kv_cache_free(&w->kv);
    sn_kv_pool_free(&w->pool);
    sn_span_free(&w->span);
    sn_offload_store_close(&w->store);
    sn_device_close(&w->device);
}

static sn_status run_rows(fixture *w, float *rows, int n, int chunk, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    for (int at = 0, now; at < n; at += now) {
        float *here = rows + (size_t)at * (size_t)hp->n_embd;
        now = chunk < n - at ? chunk : n - at;
        sn_tensor input = {.name = "rows", .data = here, .dtype = SN_F32, .rank = 2, .shape = {now, hp->n_embd}};
        sn_span_sequence part = {w->kv, &input, 0, now, here};
        SN_TRY(sn_kv_cache_reserve(w->kv, now, err));
        SN_TRY(sn_span_forward(w->span, 0, hp->n_blocks, 1, &part, NULL, err));
    }
    return SN_OK;
}

static float *make_rows(void) {
    size_t n = ROWS * (size_t)sn_model_hparams(model)->n_embd;
    float *rows = malloc(n * sizeof *rows);
    for (size_t i = 0; i < n; i++) rows[i] = (float)((int)(i * 37 + i / 64 * 11) % 201 - 100) * 0.01f;
    return rows;
}

/* Hidden states after the last block, of rows in chunks. Sets *counts. */
static float *compute(const placement *p, int chunk, sn_expert_counts *counts) {
    fixture w = fixture_open(p);
    float *rows = make_rows();
    REQUIRE(run_rows(&w, rows, ROWS, chunk, &err));
    *counts = sn_span_expert_counts(w.span);
    fixture_close(&w);
    return rows;
}

/* The bytes of the fewest slots: what a refusal asks for. */
static size_t least_memory(const char *preload) {
    const placement p = {"*.experts=disk", preload, 1};
    sn_device *device = NULL;
    sn_plan plan;
    sn_err why = {0};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    cr_assert_eq(make_plan(&p, (size_t)1 << 30, device, &plan, &why), SN_REFUSED);
    sn_device_close(&device);
    const char *digits = strpbrk(why.text, "0123456789");
    cr_assert(digits, "%s", why.text);
    return strtoull(digits, NULL, 10);
}

Test(resting_experts, experts_give_the_same_bits_wherever_they_rest) {
    static const char *const maps[] = {"*.experts=host", "*.experts=disk"};
    static const int chunks[] = {1, 7, ROWS};
    for (int f = 0; f < N_MIXTURES; f++) {
        sn_expert_counts counts;
        const sn_hparams *hp = open_family(mixtures[f]);
        size_t bytes = ROWS * (size_t)hp->n_embd * sizeof(float), least = least_memory(NULL);
        float *want = compute(&(placement){.map = "*=cpu"}, ROWS, &counts);
        cr_assert_eq(counts.misses + counts.hits + counts.ahead, 0);
        for (int m = 0; m < 2; m++)
            for (int memory = 0; memory < 3; memory++)
                for (int c = 0; c < 3; c++) {
                    const placement p = {maps[m], NULL, memory == 2 ? 0 : least + (size_t)memory * least / 2};
                    float *got = compute(&p, chunks[c], &counts);
                    cr_expect(!memcmp(got, want, bytes), "%s, %s, memory %zu, chunks of %d: other bits", mixtures[f],
                              maps[m], p.expert_memory, chunks[c]);
                    cr_expect(counts.misses && counts.bytes, "%s, %s: no expert was brought", mixtures[f], maps[m]);
                    cr_expect(memory < 2 || chunks[c] > 1 || counts.hits > counts.misses,
                              "%s: where all experts have room they are brought once", mixtures[f]);
                    cr_expect(memory == 2 || chunks[c] > 1 || counts.ahead, "%s, %s: nothing was read ahead",
                              mixtures[f], maps[m]);
                    free(got);
                }
        free(want);
    }
}

Test(resting_experts, pinned_experts_are_there_before_the_first_step_and_stay) {
    open_family("qwen3_moe");
    for (int only = 0; only < 2; only++) {
        const placement p = {"*.experts=disk", only ? "experts:0:3" : NULL, least_memory(only ? "experts:0:3" : NULL)};
        fixture w = fixture_open(&p);
        sn_expert_counts before = sn_span_expert_counts(w.span);
        cr_expect_eq(before.bytes > 0, only == 1);
        float *rows = make_rows();
        REQUIRE(run_rows(&w, rows, ROWS, 1, &err));
        for (int e = 0; e < 3 && only; e++) cr_expect(w.plan.pinned[e]);
        cr_expect_eq(w.plan.pinned[3], false);
        free(rows);
        fixture_close(&w);
    }
    /* all of them: nothing is brought by steps */
    char all[32];
    snprintf(all, sizeof all, "experts:0:%d", sn_model_hparams(model)->n_experts);
    fixture w = fixture_open(&(placement){"*.experts=host", all, 0});
    uint64_t before = sn_span_expert_counts(w.span).bytes;
    float *rows = make_rows();
    REQUIRE(run_rows(&w, rows, ROWS, 1, &err));
    cr_expect_eq(sn_span_expert_counts(w.span).bytes, before);
    cr_expect_eq(sn_span_expert_counts(w.span).misses, 0);
    free(rows);
    fixture_close(&w);
}

/* -- limits and failures */

Test(resting_experts, a_second_load_from_the_same_store_takes_no_file_from_the_first) {
    open_family("mixtral");
    sn_span *second = NULL;
    int low = open("/dev/null", O_RDONLY | O_CLOEXEC); /* so that a file opened anew gets another descriptor */
    fixture w = fixture_open(&(placement){"*.experts=disk", NULL, least_memory(NULL)});
    close(low);
    REQUIRE(sn_span_load_plan(model, &w.plan, &w.device, w.store, NULL, NULL, &second, &err));
    float *rows = make_rows();
    REQUIRE(run_rows(&w, rows, ROWS, 9, &err));
    free(rows);
    sn_span_free(&second);
    fixture_close(&w);
}

/* A mixture whose experts are read in two parts: the pieces of an expert do not fill pages, nor these pages both parts.
 */
static void open_large_experts(void) {
    made_shape shape = made_small;
    shape.ff = 1408;
    shape.experts = 8;
    shape.used = 2;
    made_model_write(folder, &shape, MADE_FP8);
    REQUIRE(sn_model_open(folder, &model, &err));
}

/* Opens spans with less and less memory, until there is too little even for a slot less. */
static void expect_within_plan(int n_experts, int n_used, int dense) {
    fixture w;
    sn_device *device = NULL;
    sn_plan plan;
    sn_err why = {0};
    size_t budget = (size_t)1 << 30, whole, taken = 0, planned = 0;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = THREADS}, &device, &err));
    REQUIRE(make_plan(&(placement){.map = "*=cpu"}, budget, device, &plan, &err));
    whole = plan.device_bytes[0];
    for (budget = whole - 1; budget > whole / 2; budget -= whole / 97) {
        sn_status status = make_plan(&(placement){0}, budget, device, &plan, &why);
        if (status || plan.placements[plan.end - 1].residence == SN_ON_DISK) break; /* too little even for that */
        cr_assert_leq(plan.device_bytes[0], budget);
        cr_assert_eq(plan.placements[dense].experts, SN_ON_DISK, "the experts leave before the blocks do");
        cr_assert(plan.placements[dense].n_slots >= n_used && plan.placements[dense].n_slots < n_experts);
        REQUIRE(fixture_try_open(&w, &(placement){0}, budget, &err)); /* the device refuses more than the budget */
        cr_assert_leq(w.device->memory_used, plan.device_bytes[0]);
        cr_assert(!taken || taken - w.device->memory_used <= planned - plan.device_bytes[0],
                  "fewer slots save %zu bytes, and %zu were planned for them", taken - w.device->memory_used,
                  planned - plan.device_bytes[0]);
        taken = w.device->memory_used;
        planned = plan.device_bytes[0];
        float *rows = make_rows();
        REQUIRE(run_rows(&w, rows, ROWS, 9, &err));
        free(rows);
        fixture_close(&w);
    }
    cr_expect_lt(budget, whole - whole / 97, "experts that rest on disk save memory");
    sn_device_close(&device);
}

Test(resting_experts, no_more_memory_is_taken_than_planned) {
    open_family("mixtral");
    expect_within_plan(4, 2, 0);
}

Test(resting_experts, no_more_memory_is_taken_than_planned_for_experts_that_are_read_in_parts) {
    open_large_experts();
    expect_within_plan(8, 2, 1);
}

/* -- what experts take where they rest */

static const sn_device_ops *cpu_ops;
static size_t host_bytes; /* that were allocated with host_alloc */

static sn_status count_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err) {
    host_bytes += bytes;
    return cpu_ops->host_alloc(d, bytes, host, err);
}

/* The bytes of files in the folder, less a page each: the header of a file of the offload store. */
static size_t bytes_on_disk(void) {
    size_t bytes = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat st;
        cr_assert_eq(fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
        if (S_ISREG(st.st_mode)) bytes += (size_t)st.st_size - PAGE;
    }
    closedir(dir);
    return bytes;
}

Test(resting_experts, experts_are_planned_as_what_they_take_where_they_rest) {
    static const char *const families[] = {NULL, "gpt_oss"}; /* NULL: experts that are read in parts */
    for (int f = 0; f < 2; f++)
        for (int disk = 0; disk < 2; disk++) {
            const placement p = {disk ? "*.experts=disk" : "*.experts=host", NULL, 0};
            fixture w = {0};
            if (families[f]) open_family(families[f]);
            if (!families[f] && !disk) open_large_experts();
            host_bytes = 0;
            REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = THREADS},
                                   &w.device, &err));
            sn_device_ops counting = *(cpu_ops = w.device->ops);
            counting.host_alloc = count_host_alloc;
            w.device->ops = &counting;
            size_t before = bytes_on_disk();
            REQUIRE(make_plan(&p, (size_t)1 << 30, w.device, &w.plan, &err));
            REQUIRE(sn_offload_store_open(folder, &w.store, &err));
            REQUIRE(sn_span_load_plan(model, &w.plan, &w.device, w.store, NULL, NULL, &w.span, &err));
            cr_expect_eq(w.plan.host_bytes, host_bytes, "%s: %zu planned, %zu taken", p.map, w.plan.host_bytes,
                         host_bytes);
            cr_expect_eq(w.plan.disk_bytes, bytes_on_disk() - before, "%s: %zu planned, %zu taken", p.map,
                         w.plan.disk_bytes, bytes_on_disk() - before);
            cr_expect((disk ? w.plan.disk_bytes : w.plan.host_bytes) > 0);
            sn_span_free(&w.span);
            sn_offload_store_close(&w.store);
            w.device->ops = cpu_ops;
            sn_device_close(&w.device);
        }
}

/* -- starting */

static atomic_int blocks_hashed;

sn_status __real_sn_model_hash_block(const sn_model *m, int block, const sn_halt *stop, sn_hash *out, sn_err *why);
sn_status __wrap_sn_model_hash_block(const sn_model *m, int block, const sn_halt *stop, sn_hash *out, sn_err *why);
sn_status __wrap_sn_model_hash_block(const sn_model *m, int block, const sn_halt *stop, sn_hash *out, sn_err *why) {
    blocks_hashed++;
    return __real_sn_model_hash_block(m, block, stop, out, why);
}

Test(resting_experts, a_start_reads_the_weights_of_a_block_once_for_its_hash) {
    static const char *const maps[] = {"*.experts=disk", "0:2=disk,2:4=cpu"};
    open_family("mixtral");
    for (int start = 0; start < 4; start++) {
        const placement p = {maps[start / 2], NULL, 0};
        blocks_hashed = 0;
        fixture w = fixture_open(&p);
        cr_expect_eq(blocks_hashed, 4, "%s: %d blocks were hashed", p.map, blocks_hashed);
        fixture_close(&w);
    }
}

Test(resting_experts, an_expert_that_was_changed_on_disk_fails_the_step_and_is_written_anew_at_the_start) {
    open_family("mixtral");
    const placement p = {"*.experts=disk", NULL, least_memory(NULL)};
    sn_err why = {0};
    for (int start = 0; start < 2; start++) {
        fixture w;
        REQUIRE(fixture_try_open(&w, &p, 0, &err));
        float *rows = make_rows();
        if (start == 1) REQUIRE(run_rows(&w, rows, ROWS, 1, &err));
        if (start == 0) {
            damage_files(folder);
            cr_expect_eq(run_rows(&w, rows, ROWS, 1, &why), SN_STOP);
            cr_expect(strstr(why.text, "was changed or cut short"), "%s", why.text);
        }
        free(rows);
        fixture_close(&w);
    }
}

Test(resting_experts, nothing_is_trained_through_experts_that_rest_elsewhere) {
    sn_train *train = NULL;
    sn_err why = {0};
    open_family("mixtral");
    fixture w = fixture_open(&(placement){"*.experts=host", NULL, 0});
    cr_expect_eq(sn_train_new(w.span, 8, &train, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "experts rest"), "%s", why.text);
    fixture_close(&w);
}

Test(resting_experts, maps_that_cannot_be_are_refused_with_a_sentence) {
    static const struct {
        const char *map, *preload, *says;
    } wrong[] = {{"*.experts=tape", NULL, "tape"},
                 {"0:2.experts=host,1:3.experts=disk", NULL, "named twice"},
                 {"0:2=cpu,2:4=host,*.experts=host", NULL, "streamed with its experts"},
                 {"0:2=cpu,*.experts=host", NULL, "2:4 are not covered"},
                 {"0:9.experts=host", NULL, "0:9"},
                 {"*.expert=host", NULL, "write"},
                 {"*.experts=host", "experts:2:5", "experts 2:5 do not exist"},
                 {"*.experts=host", "experts:x", "preload"}};
    sn_device *device = NULL;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    for (int dense = 0; dense < 2; dense++) {
        sn_plan plan;
        sn_err why = {0};
        open_family(dense ? "llama" : "mixtral");
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong && !dense; i++) {
            const placement p = {wrong[i].map, wrong[i].preload, 0};
            cr_expect_eq(make_plan(&p, (size_t)1 << 30, device, &plan, &why), SN_REFUSED, "%s", wrong[i].map);
            cr_expect(strstr(why.text, wrong[i].says), "%s: %s", wrong[i].map, why.text);
        }
        sn_status status = make_plan(&(placement){.map = "*.experts=host"}, (size_t)1 << 30, device, &plan, &why);
        cr_expect_eq(status, dense ? SN_REFUSED : SN_OK);
        cr_expect(!dense || strstr(why.text, "have no experts"), "%s", why.text);
    }
    sn_device_close(&device);
}

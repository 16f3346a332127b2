/* Experts that rest in host memory or on disk: wherever they are, and however few are on the device at a time, the CPU
 * gives the bits of blocks that hold all of theirs; memory stays within the plan; what is read is checked. */
#include "blocks/expert_slots.h" /* private: the order in which slots are given away */
#include "blocks/span.h"
#include "blocks/train.h"
#include "model/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/made_model.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 40, THREADS = 2, PAGE = 4096 };

static const char *const mixtures[] = {"mixtral",    "qwen2_moe", "qwen3_moe",   "gpt_oss",     "glm4_moe",
                                       "minimax_m2", "llama4",    "deepseek_v2", "deepseek_v3", "qwen3_5_moe"};
enum { N_MIXTURES = sizeof mixtures / sizeof *mixtures };

static char *folder;
static sn_model *model;

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) {
    sn_model_close(&model);
    temp_folder_remove(&folder);
}

TestSuite(expert_slots, .init = set_up, .fini = tear_down);

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

Test(expert_slots, experts_give_the_same_bits_wherever_they_rest) {
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
                    free(got);
                }
        free(want);
    }
}

Test(expert_slots, pinned_experts_are_there_before_the_first_step_and_stay) {
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

/* -- slots one by one, of a block with pieces of 64 bytes in memory */

enum { EXPERTS = 8, SLOTS = 3, PIECE = 64 };

typedef struct one_block {
    sn_device *device;
    sn_expert_carrier carrier;
    sn_block_layout layout;
    uint8_t image[EXPERTS * PIECE], host[EXPERTS * PIECE];
    sn_expert_rest rest;
    sn_tag tags[EXPERTS]; /* with a file only */
    sn_expert_slots *slots;
} one_block;

static void one_block_open(one_block *b) {
    *b = (one_block){.layout = {.n_slots = SLOTS, .pieces = {PIECE}, .expert_bytes = PIECE}};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &b->device, &err));
    b->device->timeout_ms = 20000;
    b->carrier.device = b->device;
    for (int e = 0; e < EXPERTS; e++) memset(b->host + e * PIECE, e + 1, PIECE);
    b->rest = (sn_expert_rest){.host = (char *)b->host, .stride = PIECE};
    sn_hparams *hp = calloc(1, sizeof *hp);
    hp->n_experts_used = 2;
    REQUIRE(sn_expert_carrier_prepare(&b->carrier, hp, &b->layout, false, &err));
    REQUIRE(sn_expert_slots_new(&b->carrier, &b->layout, b->image, &b->rest, EXPERTS, &b->slots, &err));
    free(hp);
}

/* The experts rest in a file from now on. */
static void block_to_disk(one_block *b) {
    char path[512];
    snprintf(path, sizeof path, "%s/experts", folder);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(write(file, b->host, sizeof b->host), (ssize_t)sizeof b->host);
    sn_tagger *tagger = sn_tagger_new();
    for (int e = 0; e < EXPERTS; e++) {
        sn_tagger_begin(tagger, NULL);
        sn_tagger_add(tagger, b->host + e * PIECE, PIECE);
        b->tags[e] = sn_tagger_end(tagger);
    }
    sn_tagger_free(tagger);
    b->rest = (sn_expert_rest){.stride = PIECE, .file = file, .uncached = -1, .read_bytes = PIECE, .tags = b->tags};
}

static void one_block_close(one_block *b) {
    sn_expert_carrier_close(&b->carrier);
    if (b->rest.tags) close(b->rest.file);
    sn_expert_slots_free(&b->slots);
    sn_device_close(&b->device);
}

/* A pass over these choices: each of them computes once, from the slot where its bytes are. */
static void expect_pass(one_block *b, int n, const int32_t *ids) {
    int32_t at[EXPERTS];
    int computed = 0;
    bool any = true;
    REQUIRE(sn_expert_slots_begin(b->slots, n, ids, &err));
    for (;;) {
        REQUIRE(sn_expert_slots_next(b->slots, n, ids, at, &any, &err));
        if (!any) break;
        for (int i = 0; i < n; i++) {
            computed += at[i] >= 0;
            cr_assert(at[i] < 0 || b->image[at[i] * PIECE] == ids[i] + 1, "slot %d holds another expert than %d",
                      (int)at[i], (int)ids[i]);
        }
    }
    cr_assert_eq(computed, n);
}

Test(expert_slots, the_expert_used_longest_ago_leaves_and_pinned_ones_stay) {
    one_block b;
    one_block_open(&b);
    REQUIRE(sn_expert_slots_pin(b.slots, 7, &err));
    expect_pass(&b, 2, (int32_t[]){1, 2});
    cr_expect_eq(b.carrier.counts.misses, 2);
    expect_pass(&b, 1, (int32_t[]){2});
    expect_pass(&b, 1, (int32_t[]){3}); /* in place of 1: no pass used 7 so far, and yet it stays */
    expect_pass(&b, 1, (int32_t[]){7});
    cr_expect_eq(b.carrier.counts.hits, 2);
    expect_pass(&b, 2, (int32_t[]){2, 7});
    cr_expect_eq(b.carrier.counts.hits, 4);
    expect_pass(&b, 1, (int32_t[]){1}); /* in place of 3 */
    cr_expect_eq(b.carrier.counts.misses, 4);
    uint64_t bytes = b.carrier.counts.bytes;
    expect_pass(&b, EXPERTS,
                (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}); /* in waves; what is there computes before it leaves */
    cr_expect_eq(b.carrier.counts.bytes - bytes, (EXPERTS - SLOTS) * PIECE);
    one_block_close(&b);
}

Test(expert_slots, a_foreseen_expert_comes_ahead_and_a_wrong_one_does_no_harm) {
    one_block b;
    sn_err why = {0};
    one_block_open(&b);
    expect_pass(&b, 2, (int32_t[]){1, 2});
    REQUIRE(sn_expert_slots_expect(b.slots, 2, (int32_t[]){2, 4}, &err));
    expect_pass(&b, 2, (int32_t[]){2, 4});
    cr_expect(b.carrier.counts.ahead == 1 && b.carrier.counts.hits == 1 && b.carrier.counts.misses == 2);
    REQUIRE(sn_expert_slots_expect(b.slots, 2, (int32_t[]){5, 6}, &err));
    expect_pass(&b, 2, (int32_t[]){0, 3});
    cr_expect_eq(b.carrier.counts.misses, 4);
    REQUIRE(sn_expert_slots_expect(b.slots, 2, (int32_t[]){-1, EXPERTS}, &err)); /* a row of NaN */
    expect_pass(&b, 3, (int32_t[]){5, 6, 7});
    cr_expect_eq(sn_expert_slots_begin(b.slots, 1, (int32_t[]){EXPERTS}, &why), SN_STOP);
    one_block_close(&b);
}

/* -- reads that fail, and reads that hang */

/* What is to be read ahead has been begun, so that it cannot be dropped. */
static void let_reads_begin(one_block *b) {
    uint8_t piece[PIECE];
    const sn_expert_rest rest = {.host = (char *)b->host, .stride = PIECE};
    sn_expert_read last = {.rest = &rest, .pieces = {piece}, .bytes = b->layout.pieces};
    sn_expert_reader_begin(b->carrier.reader, &last, true);
    REQUIRE(sn_expert_reader_wait(b->carrier.reader, &last, 20000, &err));
}

Test(expert_slots, a_foreseen_expert_that_cannot_be_read_fails_only_a_step_that_chooses_it) {
    one_block b;
    sn_err why = {0};
    one_block_open(&b);
    block_to_disk(&b);
    for (int e = 5; e < EXPERTS; e++) b.tags[e] = b.tags[0];
    REQUIRE(sn_expert_slots_expect(b.slots, 3, (int32_t[]){5, 6, 7}, &err)); /* they take all slots */
    let_reads_begin(&b);
    expect_pass(&b, 3, (int32_t[]){0, 1, 2});
    REQUIRE(sn_expert_slots_begin(b.slots, 1, (int32_t[]){5}, &err));
    cr_expect_eq(sn_expert_slots_next(b.slots, 1, (int32_t[]){5}, (int32_t[1]){0}, &(bool){0}, &why), SN_STOP);
    cr_expect(strstr(why.text, "expert 5"), "%s", why.text);
    one_block_close(&b);
}

Test(expert_slots, an_expert_that_is_read_once_more_is_checked_once_more) {
    one_block b;
    sn_err why = {0};
    one_block_open(&b);
    block_to_disk(&b);
    for (int round = 0; round < 3; round++) {
        expect_pass(&b, 3, (int32_t[]){0, 1, 2});
        expect_pass(&b, 3, (int32_t[]){3, 4, 5});
    }
    cr_expect_eq(b.carrier.counts.misses, 18);
    cr_assert_eq(pwrite(b.rest.file, "x", 1, PIECE + 9), 1); /* expert 1 */
    expect_pass(&b, 2, (int32_t[]){0, 2});
    REQUIRE(sn_expert_slots_begin(b.slots, 1, (int32_t[]){1}, &err));
    cr_expect_eq(sn_expert_slots_next(b.slots, 1, (int32_t[]){1}, (int32_t[1]){0}, &(bool){0}, &why), SN_STOP);
    cr_expect(strstr(why.text, "expert 1 in the offload folder was changed"), "%s", why.text);
    one_block_close(&b);
}

Test(expert_slots, a_disk_that_fails_is_told_apart_from_an_expert_that_was_changed) {
    one_block b;
    sn_err why = {0};
    one_block_open(&b);
    block_to_disk(&b);
    int file = b.rest.file;
    b.rest.file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* what cannot be read */
    REQUIRE(sn_expert_slots_begin(b.slots, 1, (int32_t[]){1}, &err));
    cr_expect_eq(sn_expert_slots_next(b.slots, 1, (int32_t[]){1}, (int32_t[1]){0}, &(bool){0}, &why), SN_STOP);
    cr_expect(strstr(why.text, "expert 1 cannot be read from the offload folder: Is a directory"), "%s", why.text);
    close(b.rest.file);
    b.rest.file = file;
    expect_pass(&b, 1, (int32_t[]){1}); /* the disk works again */
    one_block_close(&b);
}

Test(expert_slots, staging_memory_that_an_ended_pass_left_taken_serves_other_blocks) {
    one_block b;
    sn_expert_slots *other = NULL;
    one_block_open(&b);
    block_to_disk(&b);
    b.device->host_visible = false; /* an accelerator, as far as experts are concerned */
    b.carrier.staging_bytes = PIECE;
    REQUIRE(sn_expert_carrier_alloc(&b.carrier, &err));
    b.layout.n_slots = EXPERTS;
    REQUIRE(sn_expert_slots_new(&b.carrier, &b.layout, b.image, &b.rest, EXPERTS, &other, &err));
    REQUIRE(sn_expert_slots_begin(other, EXPERTS, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}, &err)); /* and it ends here */
    for (int i = 0; i < SN_EXPERT_STAGING; i++) cr_assert(b.carrier.staging[i].taken);
    expect_pass(&b, 2, (int32_t[]){1, 2});
    sn_expert_carrier_close(&b.carrier);
    sn_expert_slots_free(&other);
    one_block_close(&b);
}

/* A read of `page` hangs until the test writes to the pipe. */
static int pipe_ends[2];
static void *page;

static void on_fault(int signal) {
    char byte;
    (void)signal;
    if (read(pipe_ends[0], &byte, 1) != 1) _exit(1);
    if (mprotect(page, PIECE, PROT_READ | PROT_WRITE)) _exit(1);
}

Test(expert_slots, closing_does_not_wait_for_ever_for_a_read_that_hangs, .timeout = 60) {
    static one_block b; /* outlives the test, as the slots and the reader do */
    static sn_expert_reader *kept;
    sn_err why = {0};
    one_block_open(&b);
    kept = b.carrier.reader;
    struct sigaction action = {.sa_handler = on_fault};
    page = mmap(NULL, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(page != MAP_FAILED && !pipe(pipe_ends) && !sigaction(SIGSEGV, &action, NULL));
    b.rest = (sn_expert_rest){.host = page, .stride = 0};
    b.device->timeout_ms = 20;
    REQUIRE(sn_expert_slots_begin(b.slots, 1, (int32_t[]){0}, &err));
    let_reads_begin(&b);
    cr_expect_eq(sn_expert_slots_next(b.slots, 1, (int32_t[]){0}, (int32_t[1]){0}, &(bool){0}, &why), SN_STOP);
    cr_expect(strstr(why.text, "was not read from host memory within 20 ms"), "%s", why.text);
    sn_expert_carrier_close(&b.carrier);
    cr_expect(b.carrier.hangs, "the read's memory would be freed while it is in use");
    cr_assert_eq(write(pipe_ends[1], "", 1), 1);
    cr_assert(kept && b.slots);
    sn_device_close(&b.device);
}

/* -- limits and failures */

Test(expert_slots, a_second_load_from_the_same_store_takes_no_file_from_the_first) {
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

Test(expert_slots, no_more_memory_is_taken_than_planned) {
    open_family("mixtral");
    expect_within_plan(4, 2, 0);
}

Test(expert_slots, no_more_memory_is_taken_than_planned_for_experts_that_are_read_in_parts) {
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

Test(expert_slots, experts_are_planned_as_what_they_take_where_they_rest) {
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

sn_status __real_sn_model_block_hash(const sn_model *m, int block, sn_hash *out, sn_err *why);
sn_status __wrap_sn_model_block_hash(const sn_model *m, int block, sn_hash *out, sn_err *why);
sn_status __wrap_sn_model_block_hash(const sn_model *m, int block, sn_hash *out, sn_err *why) {
    blocks_hashed++;
    return __real_sn_model_block_hash(m, block, out, why);
}

Test(expert_slots, a_start_reads_the_weights_of_a_block_once_for_its_hash) {
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

Test(expert_slots, an_expert_that_was_changed_on_disk_fails_the_step_and_is_written_anew_at_the_start) {
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

Test(expert_slots, nothing_is_trained_through_experts_that_rest_elsewhere) {
    sn_train *train = NULL;
    sn_err why = {0};
    open_family("mixtral");
    fixture w = fixture_open(&(placement){"*.experts=host", NULL, 0});
    cr_expect_eq(sn_train_new(w.span, 8, &train, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "experts rest"), "%s", why.text);
    fixture_close(&w);
}

Test(expert_slots, maps_that_cannot_be_are_refused_with_a_sentence) {
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

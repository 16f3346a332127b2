/* Slots of experts that rest in host memory or on disk, of a block with pieces of 64 bytes in memory: which expert
 * leaves, which come ahead, reads that fail, and reads that hang. */
#include "blocks/expert_slots.h" /* private: the order in which slots are given away */
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *folder;

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) { temp_folder_remove(&folder); }

TestSuite(expert_slots, .init = set_up, .fini = tear_down);

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

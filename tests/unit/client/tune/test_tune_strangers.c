/* Training among nodes that others invented, that lie, and that have other weights. */
#include "base/clock.h"
#include "client/tune/backbone.h"
#include "tests/support/byzantine_node.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, TIMEOUT_MS = 10000 };

/* The client's file lacks its blocks while it learns their hashes. */
static bool lacks_blocks;
bool __real_sn_model_holds_block(const sn_model *model, int block);
bool __wrap_sn_model_holds_block(const sn_model *model, int block) {
    return !lacks_blocks && __real_sn_model_holds_block(model, block);
}

static size_t n_looked_for;
void __real_sn_link_look_for(sn_link *link, const char *const *names, size_t n);
void __wrap_sn_link_look_for(sn_link *link, const char *const *names, size_t n) {
    n_looked_for = n;
    __real_sn_link_look_for(link, names, n);
}

typedef struct fixture {
    testbed *w;
    sn_model *model;
    sn_link *link;
    sn_backbone *backbone;
    sn_backbone_swarm_options options;
    float *dx;
    sn_err err;
} fixture;

/* One node with all blocks, which the link has found and proven. */
static void fixture_begin(fixture *f) {
    *f = (fixture){.w = testbed_new(&(cluster_options){.kv_memory = 64, .tune_memory = 64 << 20})};
    cluster_add(f->w->cluster, 0, 0);
    f->link = cluster_link(f->w->cluster);
    REQUIRE(sn_model_open(f->w->path, &f->model, &err));
    REQUIRE(sn_link_discover(f->link, NULL, TIMEOUT_MS, &err));
    f->options = (sn_backbone_swarm_options){.link = f->link, .timeout_ms = TIMEOUT_MS};
    f->dx = calloc((size_t)(ROWS * f->w->n_embd), sizeof *f->dx);
    cr_assert(f->dx);
}

static sn_status fixture_open(fixture *f) { return sn_backbone_swarm(f->model, &f->options, &f->backbone, &f->err); }

/* The gradient of the output is the output. */
static sn_status give_output(void *ctx, size_t micro_batch, const float *out, float *dout, sn_err *err) {
    const fixture *f = ctx;
    (void)micro_batch;
    (void)err;
    cr_expect(!memcmp(out, f->w->hidden, (size_t)(ROWS * f->w->n_embd) * sizeof *out), "other bits");
    memcpy(dout, out, (size_t)(ROWS * f->w->n_embd) * sizeof *out);
    return SN_OK;
}

static sn_status fixture_run(fixture *f) {
    const int lengths[] = {ROWS};
    const sn_micro_batch one = {.n_sequences = 1, .rows = ROWS, .lengths = lengths, .x = f->w->inputs, .dx = f->dx};
    return f->backbone->ops->run(f->backbone, 1, &one, true, give_output, f, &f->err);
}

static void fixture_end(fixture *f) {
    lacks_blocks = false;
    sn_backbone_free(&f->backbone);
    sn_link_close(&f->link);
    sn_model_close(&f->model);
    testbed_free(&f->w);
    free(f->dx);
}

/* Announces a very fast node that does not exist, over all blocks, with these weights. */
static void invent_node(fixture *f, const testbed *weights, bool proven) {
    sn_identity identity;
    sn_buf sealed;
    REQUIRE(sn_identity_new(&identity, &err));
    make_announcement_of(weights, &identity, "nowhere:1", 0, f->w->n_blocks, 1, &sealed);
    REQUIRE(sn_directory_add(sn_link_directory(f->link), sealed.data, sealed.len, sn_unix_ms(), &err));
    if (proven) sn_directory_prove(sn_link_directory(f->link), identity.id, INT64_MAX);
    sn_buf_fini(&sealed);
}

/* The same name, with another block 2. */
static testbed other_weights(const fixture *f) {
    testbed other = *f->w;
    other.block_hash[2].bytes[0] ^= 1;
    return other;
}

static void expect_weights_of_the_testbed(const fixture *f) {
    for (int b = 0; b < f->w->n_blocks; b++)
        cr_expect(!memcmp(&f->backbone->weights[b], &f->w->block_hash[b], SN_HASH_SIZE), "block %d", b);
}

Test(tune_strangers, strangers_are_not_asked_where_a_known_node_serves) {
    enum { SILENT = 3 };
    fixture f;
    fake_node *silent[SILENT];
    fixture_begin(&f);
    for (int i = 0; i < 20; i++) invent_node(&f, f.w, false);
    for (int i = 0; i < SILENT; i++) {
        char address[16];
        snprintf(address, sizeof address, "silent%d:1", i);
        silent[i] = fake_node_new(f.w, address, 0, f.w->n_blocks, FAKE_SILENT);
        fake_node_claim_speed(silent[i], f.w, address, f.link);
    }
    cr_assert_eq(fixture_open(&f), SN_OK, "%s", f.err.text);
    cr_expect_eq(fixture_run(&f), SN_OK, "%s", f.err.text);
    for (int i = 0; i < SILENT; i++) {
        cr_expect_eq(fake_node_requests(silent[i]), 0, "stranger %d was asked", i);
        fake_node_free(&silent[i]);
    }
    fixture_end(&f);
}

Test(tune_strangers, a_node_that_does_not_answer_gives_no_weights) {
    fixture f;
    fixture_begin(&f);
    const testbed other = other_weights(&f);
    invent_node(&f, &other, true);
    lacks_blocks = true;
    cr_assert_eq(fixture_open(&f), SN_OK, "%s", f.err.text);
    expect_weights_of_the_testbed(&f);
    cr_expect_eq(fixture_run(&f), SN_OK, "%s", f.err.text);
    fixture_end(&f);
}

Test(tune_strangers, nodes_that_do_not_answer_count_as_failures) {
    enum { SILENT = 3 };
    fixture f;
    fake_node *silent[SILENT];
    fixture_begin(&f);
    for (int i = 0; i < SILENT; i++) {
        char address[16];
        snprintf(address, sizeof address, "silent%d:1", i);
        silent[i] = fake_node_new(f.w, address, 0, f.w->n_blocks, FAKE_SILENT);
    }
    f.options.node_filter = (sn_node_filter){.deny = (const char *const[]){"node0"}, .n_deny = 1};
    for (int i = 0; i < SILENT; i++) fake_node_announce_to(silent[i], f.link);
    f.options.max_retries = SILENT - 2;
    cr_expect_eq(fixture_open(&f), SN_RETRY);
    cr_expect(strstr(f.err.text, ":1 does not answer"), "%s", f.err.text);
    f.options.max_retries = SILENT;
    cr_expect_eq(fixture_open(&f), SN_RETRY);
    cr_expect(strstr(f.err.text, "no node serves"), "%s", f.err.text);
    fixture_end(&f);
}

Test(tune_strangers, nodes_that_are_not_there_count_as_none) {
    fixture f;
    fixture_begin(&f);
    for (int i = 0; i < 5; i++) invent_node(&f, f.w, true);
    cr_expect_eq(fixture_open(&f), SN_OK, "%s", f.err.text);
    cr_expect_eq(fixture_run(&f), SN_OK, "%s", f.err.text);
    fixture_end(&f);
}

/* A real node with other weights would be chosen first. */
static void expect_known_weights(bool told) {
    fixture f;
    fixture_begin(&f);
    testbed other = other_weights(&f);
    byzantine_node *fast = byzantine_node_new(&other, "fast:1", 0, f.w->n_blocks, (byzantine_faults){0});
    byzantine_node_announce_to(fast, f.link);
    const sn_base_weights base = {.blocks = f.w->block_hash, .n_blocks = f.w->n_blocks};
    if (told) sn_model_set_block_hashes(f.model, f.w->block_hash);
    lacks_blocks = true;
    f.options.base = told ? NULL : &base;
    cr_assert_eq(fixture_open(&f), SN_OK, "%s", f.err.text);
    expect_weights_of_the_testbed(&f);
    cr_expect_eq(fixture_run(&f), SN_OK, "%s", f.err.text);
    byzantine_node_free(&fast);
    fixture_end(&f);
}

Test(tune_strangers, a_training_that_is_resumed_takes_its_own_weights_only) { expect_known_weights(false); }
Test(tune_strangers, a_client_without_the_blocks_takes_the_weights_of_its_manifest_only) { expect_known_weights(true); }

Test(tune_strangers, named_nodes_are_looked_for) {
    fixture f;
    fixture_begin(&f);
    const char *const only[] = {"node0"};
    f.options.node_filter = (sn_node_filter){.only = only, .n_only = 1};
    cr_assert_eq(fixture_open(&f), SN_OK, "%s", f.err.text);
    cr_expect_eq(n_looked_for, 1);
    fixture_end(&f);
}

/* Two sequences with such gradients would add up to infinity, and the parameters would be lost. */
Test(tune_strangers, a_node_with_numbers_that_nothing_can_be_computed_with_is_replaced) {
    fixture f;
    fixture_begin(&f);
    byzantine_node *huge = byzantine_node_new(f.w, "huge:1", 0, f.w->n_blocks, (byzantine_faults){.huge = true});
    byzantine_node_announce_to(huge, f.link);
    f.options.max_retries = 1;
    cr_assert_eq(fixture_open(&f), SN_OK, "%s", f.err.text);
    cr_expect_eq(fixture_run(&f), SN_OK, "%s", f.err.text);
    for (int i = 0; i < ROWS * f.w->n_embd; i++) cr_expect_lt(f.dx[i], 1e15f);
    byzantine_node_free(&huge);
    fixture_end(&f);
}

/* How far announcements are believed when a node chooses its blocks. */
#include "node/placement/coverage.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { NOW_MS = 1000000, BLOCKS = 8, NODES_MAX = 400 };

static const uint8_t model[SN_KEY_SIZE] = {7};
static sn_identity nodes[NODES_MAX];
static int n_nodes;
static uint8_t tried[SN_COVERAGE_TRIED_MAX][SN_KEY_SIZE];
static sn_directory *directory;
static sn_coverage_query query;
static int n_blocks; /* of the model, as nodes that are added say */

static void set_up(void) {
    n_nodes = 0;
    n_blocks = BLOCKS;
    REQUIRE(sn_directory_new(&directory, &err));
    query = (sn_coverage_query){.directory = directory,
                                .model = model,
                                .n_blocks = BLOCKS,
                                .unix_ms = NOW_MS,
                                .joining_below = UINT64_MAX,
                                .claims_max = 2,
                                .tried = tried};
}
static void tear_down(void) { sn_directory_free(&directory); }
TestSuite(coverage, .init = set_up, .fini = tear_down);

static void add(int first, int end, uint64_t tokens_per_s, sn_node_state state, bool proven) {
    static sn_announcement a;
    const sn_identity *identity = &nodes[n_nodes];
    sn_buf sealed;
    REQUIRE(sn_identity_new(&nodes[n_nodes++], &err));
    a = (sn_announcement){.protocol = SN_PROTOCOL_VERSION,
                          .address = "192.0.2.1:1",
                          .sequence = NOW_MS,
                          .expires_unix_ms = NOW_MS + SN_ANNOUNCE_LIFE_MS,
                          .state = state,
                          .first_block = (uint64_t)first,
                          .end_block = (uint64_t)end,
                          .n_blocks = (uint64_t)n_blocks,
                          .tokens_per_s = tokens_per_s};
    memcpy(a.model, model, SN_KEY_SIZE);
    memcpy(a.node, identity->id, SN_KEY_SIZE);
    memcpy(a.curve_key, identity->curve_key, SN_KEY_SIZE);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(&a, identity, &sealed, &err));
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, NOW_MS, &err));
    if (proven) sn_directory_prove(directory, identity->id, NOW_MS + 1000);
    sn_buf_fini(&sealed);
}
static const uint64_t RATE_MOST = INT64_MAX >> 8; /* that an announcement may say */
static void add_proven(int first, int end, uint64_t rate) { add(first, end, rate, SN_NODE_ONLINE, true); }
static void add_unknown(int first, int end, uint64_t rate) { add(first, end, rate, SN_NODE_ONLINE, false); }

/* Those that are drawn; of them, those that have number `from` or a higher one stay silent. */
static void ask(int from) {
    const sn_announcement *drawn[SN_COVERAGE_TRIED_MAX];
    uint64_t seed = 5;
    query.n_tried = sn_coverage_draw(&query, false, &seed, drawn);
    for (size_t i = 0; i < query.n_tried; i++) {
        memcpy(tried[i], drawn[i]->node, SN_KEY_SIZE);
        for (int k = 0; k < from; k++)
            if (!memcmp(tried[i], nodes[k].id, SN_KEY_SIZE)) sn_directory_prove(directory, tried[i], NOW_MS + 1000);
    }
}

static sn_block_coverage read_coverage(void) {
    sn_block_coverage c;
    REQUIRE(sn_block_coverage_read(&c, &query, &err));
    return c;
}

/* It may claim any number of blocks. */
Test(coverage, a_node_that_says_that_the_model_has_another_size_counts_nowhere) {
    n_blocks = 1 << 16;
    add_proven(0, 4, 1000);
    add_proven(n_blocks / 2, n_blocks / 2 + 4, 1000);
    add_unknown(n_blocks / 2, n_blocks / 2 + 4, 1000);
    ask(0);
    cr_expect_eq(query.n_tried, 0);
    sn_block_coverage c = read_coverage();
    for (int b = 0; b < BLOCKS; b++) cr_expect(!c.rate[b] && !c.serving[b]);
}

Test(coverage, so_many_nodes_are_asked_and_no_more) {
    enum { MANY = 3 * SN_COVERAGE_TRIED_MAX };
    const sn_announcement *drawn[SN_COVERAGE_TRIED_MAX + 8] = {NULL};
    uint64_t seed = 5;
    query.n_blocks = n_blocks = MANY;
    for (int i = 0; i < MANY; i++) add_unknown(i, i + 1, 10);
    cr_expect_eq(sn_coverage_draw(&query, false, &seed, drawn), SN_COVERAGE_TRIED_MAX);
    cr_expect_null(drawn[SN_COVERAGE_TRIED_MAX]);
}

Test(coverage, a_node_that_is_not_proven_counts_as_the_mean_at_most) {
    add_proven(0, 8, 100);
    add_proven(0, 8, 300);
    add_unknown(0, 4, RATE_MOST);
    add_unknown(4, 8, 20); /* less when it says less */
    const sn_block_coverage c = read_coverage();
    cr_assert_eq(c.rate[0], 600);
    cr_assert_eq(c.rate[7], 420);
    cr_assert_eq(c.serving[0], 2, "a node that is not proven counts as a server");
}

Test(coverage, a_proven_node_counts_as_four_times_the_median_at_most) {
    for (int i = 0; i < 3; i++) add_proven(0, 8, 100);
    add_proven(0, 4, RATE_MOST);
    const sn_block_coverage c = read_coverage();
    cr_assert_eq(c.rate[0], 700);
    cr_assert_eq(c.rate[7], 300);
    cr_assert_eq(sn_block_coverage_rate(&c, UINT64_MAX), 400);
}

Test(coverage, the_own_throughput_is_known) {
    add(0, 8, 50, SN_NODE_ONLINE, false);
    query.self = nodes[0].id;
    add_proven(0, 8, 0);
    add_unknown(0, 8, 5000);
    cr_assert_eq(read_coverage().rate[0], 100);
}

Test(coverage, blocks_that_only_unproven_nodes_serve_are_not_served) {
    add_proven(4, 8, 100);
    for (int i = 0; i < 9; i++) add_unknown(0, 4, 100);
    ask(0);
    const sn_block_coverage c = read_coverage();
    cr_assert_eq(c.rate[0], 0);
    cr_assert_eq(c.serving[0], 0);
    cr_assert_eq(c.rate[4], 100);
}

/* Two honest nodes at each block, two hundred invented ones at half of them. */
Test(coverage, where_most_of_those_asked_are_silent_the_others_do_not_count) {
    for (int i = 0; i < 2; i++) add_proven(0, 8, 100);
    for (int i = 0; i < 200; i++) add_unknown(0, 4, 100);
    ask(0);
    const sn_block_coverage c = read_coverage();
    cr_assert_eq(c.rate[0], 200);
    cr_assert_eq(c.rate[7], 200);
}

/* A large swarm: few of its nodes can be asked, and all of them count. */
Test(coverage, where_most_of_those_asked_answer_the_others_count) {
    for (int i = 0; i < 200; i++) add_unknown(0, 4, 100);
    for (int i = 0; i < 100; i++) add_unknown(4, 8, 100);
    ask(300);
    cr_assert_leq(query.n_tried, 2 * SN_COVERAGE_TRIED_OF_BLOCK);
    const sn_block_coverage c = read_coverage();
    cr_assert_eq(c.rate[0], 20000);
    cr_assert_eq(c.rate[7], 10000);
    cr_assert_eq(c.serving[0], SN_COVERAGE_TRIED_OF_BLOCK);
}

Test(coverage, nodes_that_load_and_are_not_proven_count_as_few) {
    add_proven(0, 8, 100);
    for (int i = 0; i < 50; i++) add(0, 4, RATE_MOST, SN_NODE_JOINING, false);
    cr_assert_eq(read_coverage().rate[0], 300);
    query.claims_max = 0;
    cr_assert_eq(read_coverage().rate[0], 100);
}

Test(coverage, any_throughputs_add_up) {
    for (int i = 0; i < 3; i++) add_proven(0, 8, RATE_MOST);
    for (int i = 0; i < 3; i++) add_unknown(0, 8, RATE_MOST);
    cr_assert_geq(read_coverage().rate[0], 3 * RATE_MOST);
}

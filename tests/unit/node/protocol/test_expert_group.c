/* Which nodes hold the experts that a node lacks, which of them is asked, and which experts are missing. */
#include "net/directory.h"
#include "node/protocol/expert_group.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { NOW_MS = 1000000, NOW_US = 50000000, BLOCKS = 3, EXPERTS = 8 };

/* The node has blocks 4 to 6, of which the first is no mixture, and experts [0, 3). */
static sn_hparams hp = {.n_blocks = 8, .n_embd = 4, .n_experts = EXPERTS, .n_experts_used = 2, .dense[4] = true};
static sn_hash hashes[BLOCKS] = {{{4}}, {{5}}, {{6}}};
static sn_identity own;
static sn_span_info span;
static sn_directory *directory;
static sn_expert_group group;
static bool proves; /* nodes that are added have answered */

static void set_up(void) {
    span = (sn_span_info){
        .first = 4, .end = 7, .hp = &hp, .block_hash = hashes, .exact = true, .experts = {0, 3}, .devices = "cpu"};
    memset(&group, 0, sizeof group);
    proves = true;
    REQUIRE(sn_identity_new(&own, &err));
    REQUIRE(sn_directory_new(&directory, &err));
    sn_directory_accept_names(directory);
}
static void tear_down(void) { sn_directory_free(&directory); }
TestSuite(expert_group, .init = set_up, .fini = tear_down);

/* An announcement of a node with blocks 4 to 6 and experts [first, end); {0, 0}: all. */
static sn_announcement announced(const sn_identity *identity, const char *address, int first, int end) {
    sn_announcement a = {.device = "cpu",
                         .protocol = SN_PROTOCOL_VERSION,
                         .sequence = NOW_MS,
                         .expires_unix_ms = NOW_MS + SN_ANNOUNCE_LIFE_MS,
                         .state = SN_NODE_JOINING,
                         .model = {7},
                         .first_block = 4,
                         .end_block = 7,
                         .n_blocks = 8,
                         .experts = {(uint64_t)first, (uint64_t)end, EXPERTS},
                         .n_experts = end ? 3 : 0};
    memcpy(a.node, identity->id, SN_KEY_SIZE);
    memcpy(a.curve_key, identity->curve_key, SN_KEY_SIZE);
    snprintf(a.address, sizeof a.address, "%s", address);
    for (int b = 0; b < BLOCKS; b++) memcpy(a.block_hash[b], hashes[b].bytes, SN_HASH_SIZE);
    return a;
}

static void add(const sn_announcement *a, const sn_identity *identity) {
    sn_buf sealed;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, identity, &sealed, &err));
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, NOW_MS, &err));
    if (proves) sn_directory_prove(directory, identity->id, NOW_MS + 1000);
    sn_buf_fini(&sealed);
}

static sn_identity add_holder(const char *address, int first, int end) {
    sn_identity identity;
    REQUIRE(sn_identity_new(&identity, &err));
    sn_announcement a = announced(&identity, address, first, end);
    add(&a, &identity);
    return identity;
}

static void group_read_at(int64_t now_us) {
    static const uint8_t model[SN_KEY_SIZE] = {7};
    const sn_expert_group_query query = {directory, own.id, model, &span, NOW_MS, now_us};
    sn_expert_group_read(&group, &query);
}
static void group_read(void) { group_read_at(NOW_US); }

static const char *chosen_at(int block, int expert, int64_t now_us) {
    bool trial;
    const sn_expert_holder *h = sn_expert_group_choose(&group, block, expert, now_us, &trial);
    return h ? h->address : "none";
}
static const char *chosen(int block, int expert) { return chosen_at(block, expert, NOW_US); }

Test(expert_group, names_the_experts_and_blocks_that_are_missing) {
    group_read();
    cr_expect(!group.complete);
    cr_expect_str_eq(group.lacks, "experts 3:8 of blocks 5:7");
    add_holder("a:1", 4, 6);
    group_read();
    cr_expect_str_eq(group.lacks, "experts 3:4,6:8 of blocks 5:7");
    sn_identity identity;
    REQUIRE(sn_identity_new(&identity, &err));
    sn_announcement a = announced(&identity, "b:1", 3, 8);
    a.block_hash[2][0] ^= 1; /* other weights in block 6 */
    add(&a, &identity);
    group_read();
    cr_expect_str_eq(group.lacks, "experts 3:4,6:8 of blocks 6:7");
    add_holder("c:1", 0, 0); /* all */
    group_read();
    cr_expect(group.complete);
    cr_expect_str_eq(group.lacks, "");
}

Test(expert_group, asks_only_nodes_that_hold_the_expert_of_the_same_block) {
    sn_identity identity;
    add_holder("a:1", 4, 6);
    REQUIRE(sn_identity_new(&identity, &err));
    sn_announcement b = announced(&identity, "b:1", 6, 8);
    b.block_hash[2][0] ^= 1;
    add(&b, &identity);
    group_read();
    cr_expect_str_eq(chosen(1, 4), "a:1");
    cr_expect_str_eq(chosen(1, 5), "a:1");
    cr_expect_str_eq(chosen(1, 6), "b:1");
    cr_expect_str_eq(chosen(2, 6), "none", "block 6 of b:1 has other weights");
    cr_expect_str_eq(chosen(1, 3), "none");
}

Test(expert_group, leaves_out_itself_and_nodes_that_cannot_hold_what_it_lacks) {
    sn_identity other;
    sn_announcement a = announced(&own, "own:1", 0, 8);
    add(&a, &own);
    REQUIRE(sn_identity_new(&other, &err));
    a = announced(&other, "model:1", 0, 8);
    a.model[0] = 8;
    add(&a, &other);
    REQUIRE(sn_identity_new(&other, &err));
    a = announced(&other, "number:1", 0, 8);
    a.experts[2] = EXPERTS + 1;
    add(&a, &other);
    REQUIRE(sn_identity_new(&other, &err));
    a = announced(&other, "unread:1", 0, 8);
    memset(a.block_hash, 0, sizeof a.block_hash);
    add(&a, &other);
    REQUIRE(sn_identity_new(&other, &err));
    a = announced(&other, "old:1", 0, 8);
    a.expires_unix_ms = NOW_MS + 1;
    add(&a, &other);
    static const uint8_t model[SN_KEY_SIZE] = {7};
    const sn_expert_group_query query = {directory, own.id, model, &span, NOW_MS + 1, NOW_US};
    sn_expert_group_read(&group, &query);
    cr_expect_eq(group.n, 0);
}

Test(expert_group, of_a_node_with_the_promised_bits_has_no_gpu) {
    sn_identity identity;
    REQUIRE(sn_identity_new(&identity, &err));
    sn_announcement a = announced(&identity, "gpu:1", 3, 8);
    snprintf(a.device, sizeof a.device, "cuda:0");
    add(&a, &identity);
    group_read();
    cr_expect(!group.complete);
    cr_expect_str_eq(chosen(1, 3), "none");
    span.exact = false;
    group_read();
    cr_expect_str_eq(chosen(1, 3), "gpu:1");
}

Test(expert_group, asks_the_fastest_and_those_that_were_never_asked_first) {
    sn_identity a = add_holder("a:1", 3, 8), b = add_holder("b:1", 3, 8);
    group_read();
    sn_expert_holder_answered(sn_expert_group_find(&group, a.id), 4, 9000);
    cr_expect_str_eq(chosen(1, 3), "b:1");
    sn_expert_holder_answered(sn_expert_group_find(&group, b.id), 4, 20000);
    cr_expect_str_eq(chosen(1, 3), "a:1");
    group_read(); /* what was seen stays */
    cr_expect_str_eq(chosen(1, 3), "a:1");
    for (int i = 0; i < 30; i++) sn_expert_holder_answered(sn_expert_group_find(&group, a.id), 4, 90000);
    cr_expect_str_eq(chosen(1, 3), "b:1");
    for (int i = 0; i < 400; i++) { /* only b:1 is asked, and a:1 is forgotten bit by bit */
        group_read();
        sn_expert_holder_answered(sn_expert_group_find(&group, b.id), 4, 20000);
    }
    cr_expect_str_eq(chosen(1, 3), "a:1");
}

/* A newcomer may be silent: then few pairs wait for it, and not for long. */
Test(expert_group, beside_one_that_answers_a_newcomer_gets_a_few_pairs_now_and_then) {
    enum { PAIRS = 16, CALLS = 100 };
    sn_identity a = add_holder("a:1", 3, 8), b = add_holder("b:1", 3, 8);
    group_read();
    sn_expert_holder_answered(sn_expert_group_find(&group, a.id), 4, 9000);
    int of_b = 0;
    for (int i = 0; i < CALLS; i++) of_b += *chosen(1, 3) == 'b';
    cr_expect_eq(of_b, PAIRS);
    cr_expect_str_eq(chosen_at(1, 3, NOW_US + 10000000), "a:1", "it is tried again after minutes only");
    sn_identity c = add_holder("c:1", 3, 8);
    group_read();
    cr_expect_str_eq(chosen_at(1, 3, NOW_US + 9999999), "a:1", "one in ten seconds is tried");
    cr_expect_str_eq(chosen_at(1, 3, NOW_US + 10000000), "c:1");
    sn_expert_group_end_trial(&group);
    cr_expect_str_eq(chosen_at(1, 3, NOW_US + 10000000), "a:1");
    sn_expert_holder_answered(sn_expert_group_find(&group, c.id), 4, 1000);
    for (int i = 0; i < CALLS; i++) cr_expect_str_eq(chosen_at(1, 3, NOW_US + 10000000), "c:1", "it answers faster");
    sn_expert_holder_failed(sn_expert_group_find(&group, c.id), NOW_US);
    cr_expect_str_eq(chosen_at(1, 3, NOW_US + 20000000), "a:1");
    sn_expert_holder_failed(sn_expert_group_find(&group, a.id), NOW_US);
    for (int i = 0; i < CALLS; i++) cr_expect_str_eq(chosen_at(1, 3, NOW_US), "b:1", "there is no other");
    (void)b;
}

Test(expert_group, a_holder_that_failed_is_neither_asked_nor_counted_on_for_a_while) {
    sn_identity a = add_holder("a:1", 3, 8);
    group_read();
    cr_expect(group.complete);
    sn_expert_holder_failed(sn_expert_group_find(&group, a.id), NOW_US);
    group_read();
    cr_expect(!group.complete);
    cr_expect_str_eq(chosen(1, 3), "none");
    group_read_at(NOW_US + 100000000);
    cr_expect(!group.complete, "it has not announced itself since");
    sn_announcement newer = announced(&a, "a:1", 3, 8);
    newer.sequence++;
    add(&newer, &a);
    group_read_at(NOW_US + 1000000);
    cr_expect(!group.complete, "it has failed only now");
    group_read_at(NOW_US + 10000000);
    cr_expect(group.complete);
    cr_expect_str_eq(chosen(1, 3), "a:1");
    sn_identity b = add_holder("b:1", 3, 8);
    group_read_at(NOW_US + 10000000);
    sn_expert_holder_answered(sn_expert_group_find(&group, b.id), 1, 100000);
    cr_expect_str_eq(chosen(1, 3), "b:1", "others are preferred");
    sn_expert_group_find(&group, b.id)->busy_until_us = NOW_US + 10;
    sn_expert_group_find(&group, a.id)->busy_until_us = NOW_US + 10;
    group_read(); /* one without room is counted on */
    cr_expect(group.complete);
    cr_expect_str_eq(chosen(1, 3), "none");
    cr_expect_eq(sn_expert_group_room_us(&group, 1, 3), NOW_US + 10);
}

Test(expert_group, a_holder_that_refused_is_not_counted_on_however_often_it_announces_itself) {
    sn_identity a = add_holder("a:1", 3, 8);
    group_read();
    sn_expert_holder_refused(sn_expert_group_find(&group, a.id), NOW_US);
    sn_announcement newer = announced(&a, "a:1", 3, 8);
    newer.sequence++;
    add(&newer, &a);
    group_read_at(NOW_US + 300000000);
    cr_expect(!group.complete);
    group_read_at(NOW_US + 700000000);
    cr_expect(group.complete);
}

Test(expert_group, a_holder_that_drains_is_asked_and_not_counted_on) {
    sn_identity identity;
    REQUIRE(sn_identity_new(&identity, &err));
    sn_announcement a = announced(&identity, "a:1", 3, 8);
    a.state = SN_NODE_DRAINING;
    add(&a, &identity);
    group_read();
    cr_expect(!group.complete);
    cr_expect_str_eq(chosen(1, 3), "a:1");
}

Test(expert_group, a_holder_that_has_not_answered_is_neither_asked_nor_counted_on) {
    proves = false;
    sn_identity a = add_holder("a:1", 3, 8);
    group_read();
    cr_assert_eq(group.n, 1, "it is known, so that the node can ask it for an answer");
    cr_expect(!group.complete);
    cr_expect_str_eq(chosen(1, 3), "none");
    sn_directory_prove(directory, a.id, NOW_MS + 1000);
    group_read();
    cr_expect(group.complete);
    cr_expect_str_eq(chosen(1, 3), "a:1");
}

Test(expert_group, invented_holders_do_not_take_the_places_of_those_that_answered) {
    proves = false;
    for (int i = 0; i < 2 * SN_EXPERT_HOLDERS_MAX; i++) (void)add_holder("invented:1", 0, 8);
    group_read();
    cr_expect_eq(group.n, SN_EXPERT_HOLDERS_MAX);
    proves = true;
    sn_identity a = add_holder("a:1", 3, 8);
    for (int i = 0; i < 2 * SN_EXPERT_HOLDERS_MAX; i++) (void)add_holder("proven:1", 0, 8);
    sn_identity b = add_holder("b:1", 3, 8);
    proves = false;
    for (int i = 0; i < SN_EXPERT_HOLDERS_MAX; i++) (void)add_holder("invented:1", 0, 8);
    for (int i = 0; i < 2; i++) { /* a and b are found among proven ones by chance, and then have computed */
        group_read();
        sn_expert_holder *h = sn_expert_group_find(&group, i ? b.id : a.id);
        if (!h) continue;
        sn_expert_holder_answered(h, 4, 1000);
        for (int k = 0; k < 10; k++) group_read();
        cr_expect(sn_expert_group_find(&group, h->node));
    }
    for (size_t i = 0; i < group.n; i++) cr_expect(group.holders[i].proven);
}

Test(expert_group, invented_holders_keep_no_node_from_being_met) {
    enum { HONEST = 6 };
    sn_identity honest[HONEST];
    bool met[HONEST] = {false};
    proves = false;
    for (int i = 0; i < 3 * SN_EXPERT_HOLDERS_MAX; i++) (void)add_holder("invented:1", 0, 8); /* they never fail */
    for (int i = 0; i < HONEST; i++) honest[i] = add_holder("a:1", 3, 8);
    for (int t = 0; t < 10; t++) {
        group_read_at(NOW_US + t * 10000000);
        for (int i = 0; i < HONEST; i++) met[i] |= sn_expert_group_find(&group, honest[i].id) != NULL;
    }
    for (int i = 0; i < HONEST; i++) cr_expect(met[i]); /* the order of announcements is random: one is left out */
}

/* A place that changes hands is a connection that is made: invented holders, where nothing listens, must not be dialled
 * without a pause. */
Test(expert_group, holders_that_fail_before_they_are_met_keep_their_places_for_a_while) {
    sn_identity invented[3 * SN_EXPERT_HOLDERS_MAX];
    bool dialled[3 * SN_EXPERT_HOLDERS_MAX] = {false};
    int n = 0;
    proves = false;
    for (int i = 0; i < 3 * SN_EXPERT_HOLDERS_MAX; i++) invented[i] = add_holder("invented:1", 0, 8);
    for (int t = 0; t < 200; t++) {
        group_read_at(NOW_US + t * 10000); /* NOW_US begins a turn */
        for (int i = 0; i < 3 * SN_EXPERT_HOLDERS_MAX; i++) {
            sn_expert_holder *h = sn_expert_group_find(&group, invented[i].id);
            if (!h || h->failed_sequence) continue;
            sn_expert_holder_failed(h, NOW_US + t * 10000);
            dialled[i] = true;
            n++;
        }
    }
    cr_expect_eq(n, SN_EXPERT_HOLDERS_MAX, "%d were dialled in two seconds", n);
    group_read_at(NOW_US + 10000000);
    for (int i = 0; i < 3 * SN_EXPERT_HOLDERS_MAX; i++)
        cr_expect(!dialled[i] || !sn_expert_group_find(&group, invented[i].id), "others have their turn");
}

Test(expert_group, a_holder_whose_announcement_has_the_number_zero_fails_like_others) {
    sn_identity a = {0};
    REQUIRE(sn_identity_new(&a, &err));
    sn_announcement zero = announced(&a, "a:1", 3, 8);
    zero.sequence = 0;
    add(&zero, &a);
    group_read();
    cr_assert(group.complete);
    sn_expert_holder_failed(sn_expert_group_find(&group, a.id), NOW_US);
    group_read();
    cr_expect(!group.complete);
    cr_expect_str_eq(chosen(1, 3), "none");
}

Test(expert_group, a_holder_gets_the_time_that_it_was_seen_to_need) {
    enum { PAIRS = 1000, BASE = 5000000 };
    sn_expert_holder h = {0};
    cr_expect_eq(sn_expert_holder_limit_us(&h, PAIRS, false), BASE + PAIRS * 10000, "not known");
    h.pair_us = 100;
    cr_expect_eq(sn_expert_holder_limit_us(&h, PAIRS, false), BASE + PAIRS * 800, "fast");
    h.pair_us = 50000;
    cr_expect_eq(sn_expert_holder_limit_us(&h, PAIRS, false), BASE + PAIRS * 100000, "slow");
    sn_expert_holder_failed(&h, NOW_US);
    cr_expect_eq(sn_expert_holder_limit_us(&h, PAIRS, false), BASE + PAIRS * 10000, "it has failed");
}

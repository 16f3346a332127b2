#include "client/routing/peer_stats.h"

#include "tests/support/require.h"

#include <criterion/criterion.h>

static const uint8_t a[SN_KEY_SIZE] = {1}, b[SN_KEY_SIZE] = {2};
static const int64_t SECOND = 1000000;
static const char *address = "127.0.0.1:7000";

static sn_peer_stats *peer_stats_new(void) {
    sn_peer_stats *peer_stats;
    REQUIRE(sn_peer_stats_new(&peer_stats, &err));
    return peer_stats;
}

Test(peer_stats, ban_time_doubles_up_to_a_limit) {
    sn_peer_stats *peer_stats = peer_stats_new();
    int64_t now = SECOND, last = 0, want = SN_BAN_US;
    for (int i = 0; i < 12; i++) {
        int64_t ban = sn_peer_stats_note_failure(peer_stats, a, address, now);
        cr_expect_eq(ban, want, "failure %d: %lld", i, (long long)ban);
        cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, a, now), ban);
        cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, a, now + ban - 1), 1);
        cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, a, now + ban), 0);
        cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, b, now), 0);
        cr_expect(ban >= last);
        want = 2 * want < SN_BAN_US_MAX ? 2 * want : SN_BAN_US_MAX;
        last = ban;
    }
    cr_expect_eq(last, SN_BAN_US_MAX);
    cr_expect_eq(sn_peer_stats_ban_left_us(NULL, a, now), 0);
    sn_peer_stats_free(&peer_stats);
}

Test(peer_stats, good_steps_and_time_clear_a_failure) {
    sn_peer_stats *peer_stats = peer_stats_new();
    sn_peer_stats_note_failure(peer_stats, a, address, 0);
    sn_peer_stats_note_failure(peer_stats, a, address, 0);
    for (int i = 0; i < SN_FAILURE_DECAY_STEPS - 1; i++) sn_peer_stats_note_step(peer_stats, a, 4, 1, 10, 400, SECOND);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->failures, 2);
    sn_peer_stats_note_step(peer_stats, a, 4, 1, 10, 400, SECOND);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->failures, 1);
    cr_expect_eq(sn_peer_stats_note_failure(peer_stats, a, address, 2 * SECOND), 2 * SN_BAN_US);
    /* Two failures are left; every five minutes without a failure remove one. */
    cr_expect_eq(sn_peer_stats_note_failure(peer_stats, a, address, 2 * SECOND + 2 * SN_FAILURE_DECAY_US), SN_BAN_US);
    sn_peer_stats_free(&peer_stats);
}

Test(peer_stats, means_follow_new_measurements) {
    sn_peer_stats *peer_stats = peer_stats_new();
    sn_peer_stats_note_rtt(peer_stats, a, 1000, SECOND);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->rtt_us, 1000);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->block_ns, -1);
    for (int i = 0; i < 40; i++) sn_peer_stats_note_rtt(peer_stats, a, 2000, SECOND);
    cr_expect(sn_peer_stats_find(peer_stats, a)->rtt_us > 1990 && sn_peer_stats_find(peer_stats, a)->rtt_us <= 2000);
    sn_peer_stats_note_step(peer_stats, a, 10, 1, 50, 3000, SECOND);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->block_ns, 300000);
    /* a prompt does not change the time of a token */
    sn_peer_stats_note_step(peer_stats, a, 10, 100, 50, 90000, SECOND);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->block_ns, 300000);
    sn_peer_stats_note_rtt(peer_stats, a, 5000, SECOND + SN_PEER_STATS_FRESH_US);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->rtt_us, 5000);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->block_ns, -1);
    sn_peer_stats_free(&peer_stats);
}

static void announce_state(sn_directory *directory, const sn_identity *identity, sn_node_state state,
                           uint64_t sequence) {
    sn_announcement *x = calloc(1, sizeof *x);
    sn_buf sealed;
    memcpy(x->node, identity->id, SN_KEY_SIZE);
    memcpy(x->curve_key, identity->curve_key, SN_KEY_SIZE);
    snprintf(x->address, sizeof x->address, "%s", address);
    x->protocol = SN_PROTOCOL_VERSION;
    x->sequence = sequence;
    x->expires_unix_ms = 60000;
    x->state = state;
    x->end_block = x->n_blocks = 1;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(x, identity, &sealed, &err));
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, 1000, &err));
    sn_buf_fini(&sealed);
    free(x);
}

Test(peer_stats, a_node_that_returns_is_no_longer_banned) {
    sn_peer_stats *peer_stats = peer_stats_new();
    sn_directory *directory;
    sn_identity identity;
    REQUIRE(sn_directory_new(&directory, &err));
    REQUIRE(sn_identity_new(&identity, &err));
    announce_state(directory, &identity, SN_NODE_ONLINE, 1);
    sn_peer_stats_note_failure(peer_stats, identity.id, address, SECOND);
    sn_peer_stats_note_online(peer_stats, directory);
    cr_expect(sn_peer_stats_ban_left_us(peer_stats, identity.id, 2 * SECOND),
              "the ban ends although the node did not leave");
    announce_state(directory, &identity, SN_NODE_OFFLINE, 2);
    sn_peer_stats_note_online(peer_stats, directory);
    cr_expect(sn_peer_stats_ban_left_us(peer_stats, identity.id, 2 * SECOND),
              "the ban ends although the node is not back");
    announce_state(directory, &identity, SN_NODE_ONLINE, 3);
    sn_peer_stats_note_online(peer_stats, directory);
    cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, identity.id, 2 * SECOND), 0);
    cr_expect_eq(sn_peer_stats_note_failure(peer_stats, identity.id, address, 3 * SECOND), 2 * SN_BAN_US,
                 "its failure is forgotten");
    sn_peer_stats_note_online(peer_stats, directory);
    cr_expect(sn_peer_stats_ban_left_us(peer_stats, identity.id, 4 * SECOND));
    address = "127.0.0.1:7001";
    announce_state(directory, &identity, SN_NODE_ONLINE, 4);
    sn_peer_stats_note_online(peer_stats, directory);
    cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, identity.id, 4 * SECOND), 0, "it has another address now");
    sn_directory_free(&directory);
    sn_peer_stats_free(&peer_stats);
}

Test(peer_stats, bounds_the_number_of_peers) {
    sn_peer_stats *peer_stats = peer_stats_new();
    for (int i = 0; i <= SN_PEER_STATS_MAX; i++) {
        uint8_t node[SN_KEY_SIZE] = {(uint8_t)i, (uint8_t)(i >> 8), 7};
        sn_peer_stats_note_rtt(peer_stats, node, i, SECOND + i);
    }
    cr_expect_null(sn_peer_stats_find(peer_stats, (const uint8_t[SN_KEY_SIZE]){0, 0, 7}),
                   "the least recently used entry was not evicted");
    cr_expect_not_null(sn_peer_stats_find(peer_stats, (const uint8_t[SN_KEY_SIZE]){1, 0, 7}));
    cr_expect_not_null(sn_peer_stats_find(peer_stats, (const uint8_t[SN_KEY_SIZE]){0, 4, 7}));
    sn_peer_stats_free(&peer_stats);
}

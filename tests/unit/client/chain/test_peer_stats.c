#include "client/routing/peer_stats.h"

#include "tests/support/require.h"

#include <criterion/criterion.h>

static const uint8_t a[SN_KEY_SIZE] = {1}, b[SN_KEY_SIZE] = {2};
static const int64_t SECOND = 1000000;
static const char HERE[] = "127.0.0.1:7000", THERE[] = "127.0.0.1:7001";

static sn_peer_stats *peer_stats_new(void) {
    sn_peer_stats *peer_stats;
    REQUIRE(sn_peer_stats_new(&peer_stats, &err));
    return peer_stats;
}

Test(peer_stats, ban_time_doubles_up_to_a_limit) {
    sn_peer_stats *peer_stats = peer_stats_new();
    int64_t now = SECOND, last = 0, want = SN_BAN_US;
    for (int i = 0; i < 12; i++) {
        int64_t ban = sn_peer_stats_note_failure(peer_stats, a, now);
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
    sn_peer_stats_note_failure(peer_stats, a, 0);
    sn_peer_stats_note_failure(peer_stats, a, 0);
    for (int i = 0; i < SN_FAILURE_DECAY_STEPS - 1; i++) sn_peer_stats_note_step(peer_stats, a, 4, 1, 10, 400, SECOND);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->failures, 2);
    sn_peer_stats_note_step(peer_stats, a, 4, 1, 10, 400, SECOND);
    cr_expect_eq(sn_peer_stats_find(peer_stats, a)->failures, 1);
    cr_expect_eq(sn_peer_stats_note_failure(peer_stats, a, 2 * SECOND), 2 * SN_BAN_US);
    /* Two failures are left; every five minutes without a failure remove one. */
    cr_expect_eq(sn_peer_stats_note_failure(peer_stats, a, 2 * SECOND + 2 * SN_FAILURE_DECAY_US), SN_BAN_US);
    sn_peer_stats_free(&peer_stats);
}

Test(peer_stats, a_node_that_is_not_there_is_avoided_shortly_and_has_not_failed) {
    sn_peer_stats *peer_stats = peer_stats_new();
    cr_expect_eq(sn_peer_stats_note_absence(peer_stats, a, SECOND), SN_ABSENCE_US);
    cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, a, SECOND), SN_ABSENCE_US);
    cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, a, SECOND + SN_ABSENCE_US), 0);
    cr_expect_eq(sn_peer_stats_note_failure(peer_stats, a, SECOND), SN_BAN_US);
    sn_peer_stats_note_absence(peer_stats, a, SECOND);
    cr_expect_eq(sn_peer_stats_ban_left_us(peer_stats, a, SECOND), SN_BAN_US, "absence shortens no ban");
    sn_peer_stats_free(&peer_stats);
}

/* Else those of many that are gone, or close their connections at once, would be tried again before all others were. */
Test(peer_stats, a_node_that_is_never_there_is_avoided_for_longer_each_time) {
    sn_peer_stats *peer_stats = peer_stats_new();
    int64_t ban_us = SN_ABSENCE_US;
    for (int i = 0; i < 40; i++) {
        cr_expect_eq(sn_peer_stats_note_absence(peer_stats, a, SECOND), ban_us);
        if (ban_us < SN_ABSENCE_US_MAX) ban_us *= 2;
    }
    cr_expect_eq(ban_us, SN_ABSENCE_US_MAX);
    sn_peer_stats_note_rtt(peer_stats, a, 1000, SECOND);
    cr_expect_eq(sn_peer_stats_note_absence(peer_stats, a, SECOND), SN_ABSENCE_US_MAX, "an answer is no step");
    sn_peer_stats_note_step(peer_stats, a, 10, 1, 50, 3000, SECOND);
    cr_expect_eq(sn_peer_stats_note_absence(peer_stats, a, SECOND), SN_ABSENCE_US);
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

typedef struct fixture {
    sn_peer_stats *peer_stats;
    sn_directory *directory;
    sn_identity identity;
    uint64_t sequence;
} fixture;

/* The client reads what the node announces now. */
static void announce(fixture *f, sn_node_state state, const char *address) {
    sn_announcement *x = calloc(1, sizeof *x);
    sn_buf sealed;
    memcpy(x->node, f->identity.id, SN_KEY_SIZE);
    memcpy(x->curve_key, f->identity.curve_key, SN_KEY_SIZE);
    snprintf(x->address, sizeof x->address, "%s", address);
    x->protocol = SN_PROTOCOL_VERSION;
    x->sequence = ++f->sequence;
    x->expires_unix_ms = 60000;
    x->state = state;
    x->end_block = x->n_blocks = 1;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(x, &f->identity, &sealed, &err));
    REQUIRE(sn_directory_add(f->directory, sealed.data, sealed.len, 1000, &err));
    sn_peer_stats_note_online(f->peer_stats, f->directory);
    sn_buf_fini(&sealed);
    free(x);
}

static bool is_banned(const fixture *f) {
    return sn_peer_stats_ban_left_us(f->peer_stats, f->identity.id, 2 * SECOND) > 0;
}

/* A node that is online at HERE. */
static fixture begin(void) {
    fixture f = {.peer_stats = peer_stats_new()};
    REQUIRE(sn_directory_new(&f.directory, &err));
    REQUIRE(sn_identity_new(&f.identity, &err));
    announce(&f, SN_NODE_ONLINE, HERE);
    return f;
}

static void end(fixture *f) {
    sn_directory_free(&f->directory);
    sn_peer_stats_free(&f->peer_stats);
}

Test(peer_stats, a_node_that_returns_is_no_longer_banned) {
    fixture f = begin();
    sn_peer_stats_note_failure(f.peer_stats, f.identity.id, SECOND);
    announce(&f, SN_NODE_ONLINE, HERE);
    cr_expect(is_banned(&f), "the ban ends although the node did not leave");
    announce(&f, SN_NODE_OFFLINE, HERE);
    cr_expect(is_banned(&f), "the ban ends although the node is not back");
    announce(&f, SN_NODE_ONLINE, HERE);
    cr_expect_not(is_banned(&f));
    cr_expect_eq(sn_peer_stats_note_failure(f.peer_stats, f.identity.id, SECOND), 2 * SN_BAN_US,
                 "its failure is forgotten");
    end(&f);
}

Test(peer_stats, a_node_that_moves_after_its_failure_is_no_longer_banned) {
    fixture f = begin();
    sn_peer_stats_note_failure(f.peer_stats, f.identity.id, SECOND);
    announce(&f, SN_NODE_ONLINE, THERE);
    cr_expect(is_banned(&f), "the ban ends for an address that was announced when the node failed");
    announce(&f, SN_NODE_ONLINE, HERE);
    cr_expect_not(is_banned(&f));
    end(&f);
}

Test(peer_stats, a_node_that_moves_and_leaves_again_and_again_stays_banned) {
    fixture f = begin();
    for (int i = 0; i < 2; i++) sn_peer_stats_note_failure(f.peer_stats, f.identity.id, SECOND);
    for (int i = 0; i < 4; i++) {
        announce(&f, SN_NODE_ONLINE, i % 2 ? HERE : THERE);
        announce(&f, SN_NODE_OFFLINE, HERE);
    }
    announce(&f, SN_NODE_ONLINE, HERE);
    cr_expect(is_banned(&f));
    end(&f);
}

Test(peer_stats, sessions_that_a_node_has_lost_are_forgotten_after_good_steps) {
    fixture f = begin();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i <= SN_LOSSES_MAX; i++)
            cr_expect_eq(sn_peer_stats_note_loss(f.peer_stats, f.identity.id, SECOND), i < SN_LOSSES_MAX, "round %d",
                         round);
        for (int i = 0; i < SN_FAILURE_DECAY_STEPS; i++)
            sn_peer_stats_note_step(f.peer_stats, f.identity.id, 1, 1, 0, 1000, SECOND);
    }
    end(&f);
}

/* As with a client whose own network is lost now and then, and whose answers are short. */
Test(peer_stats, losses_that_are_minutes_apart_are_no_failure) {
    fixture f = begin();
    for (int i = 1; i <= 3 * SN_LOSSES_MAX; i++)
        cr_expect(sn_peer_stats_note_loss(f.peer_stats, f.identity.id, (int64_t)i * SN_FAILURE_DECAY_US), "loss %d", i);
    end(&f);
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

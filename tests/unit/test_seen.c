#include "client/seen.h"

#include "tests/support/need.h"

#include <criterion/criterion.h>

static const uint8_t a[SN_KEY_SIZE] = {1}, b[SN_KEY_SIZE] = {2};
static const int64_t SECOND = 1000000;

static sn_seen *seen_new(void) {
    sn_seen *seen;
    NEED(sn_seen_new(&seen, &err));
    return seen;
}

Test(seen, bans_for_a_time_that_doubles_up_to_a_bound) {
    sn_seen *seen = seen_new();
    int64_t now = SECOND, last = 0, want = SN_BAN_US;
    for (int i = 0; i < 12; i++) {
        int64_t ban = sn_seen_failure(seen, a, now);
        cr_expect_eq(ban, want, "failure %d: %lld", i, (long long)ban);
        cr_expect_eq(sn_seen_banned_us(seen, a, now), ban);
        cr_expect_eq(sn_seen_banned_us(seen, a, now + ban - 1), 1);
        cr_expect_eq(sn_seen_banned_us(seen, a, now + ban), 0);
        cr_expect_eq(sn_seen_banned_us(seen, b, now), 0);
        cr_expect(ban >= last);
        want = 2 * want < SN_BAN_US_MAX ? 2 * want : SN_BAN_US_MAX;
        last = ban;
    }
    cr_expect_eq(last, SN_BAN_US_MAX);
    cr_expect_eq(sn_seen_banned_us(NULL, a, now), 0);
    sn_seen_free(&seen);
}

Test(seen, forgets_a_failure_for_good_steps_and_for_time) {
    sn_seen *seen = seen_new();
    sn_seen_failure(seen, a, 0);
    sn_seen_failure(seen, a, 0);
    for (int i = 0; i < SN_FORGIVE_STEPS - 1; i++) sn_seen_step(seen, a, 4, 1, 10, 400, SECOND);
    cr_expect_eq(sn_seen_of(seen, a)->failures, 2);
    sn_seen_step(seen, a, 4, 1, 10, 400, SECOND);
    cr_expect_eq(sn_seen_of(seen, a)->failures, 1);
    cr_expect_eq(sn_seen_failure(seen, a, 2 * SECOND), 2 * SN_BAN_US);
    /* Two failures are left; each five quiet minutes take one. */
    cr_expect_eq(sn_seen_failure(seen, a, 2 * SECOND + 2 * SN_FORGIVE_US), SN_BAN_US);
    sn_seen_free(&seen);
}

Test(seen, means_follow_what_is_measured_and_forget_what_is_old) {
    sn_seen *seen = seen_new();
    sn_seen_round_trip(seen, a, 1000, SECOND);
    cr_expect_eq(sn_seen_of(seen, a)->rtt_us, 1000);
    cr_expect_eq(sn_seen_of(seen, a)->block_ns, -1);
    for (int i = 0; i < 40; i++) sn_seen_round_trip(seen, a, 2000, SECOND);
    cr_expect(sn_seen_of(seen, a)->rtt_us > 1990 && sn_seen_of(seen, a)->rtt_us <= 2000);
    sn_seen_step(seen, a, 10, 1, 50, 3000, SECOND);
    cr_expect_eq(sn_seen_of(seen, a)->block_ns, 300000);
    sn_seen_step(seen, a, 10, 100, 50, 90000, SECOND); /* a prompt says nothing about a token */
    cr_expect_eq(sn_seen_of(seen, a)->block_ns, 300000);
    sn_seen_round_trip(seen, a, 5000, SECOND + SN_SEEN_FRESH_US);
    cr_expect_eq(sn_seen_of(seen, a)->rtt_us, 5000);
    cr_expect_eq(sn_seen_of(seen, a)->block_ns, -1);
    sn_seen_free(&seen);
}

static void announce(sn_directory *directory, const sn_identity *identity, sn_node_state state, uint64_t sequence) {
    sn_announcement *x = calloc(1, sizeof *x);
    sn_buf sealed;
    memcpy(x->node, identity->id, SN_KEY_SIZE);
    memcpy(x->curve_key, identity->curve_key, SN_KEY_SIZE);
    snprintf(x->address, sizeof x->address, "tcp://127.0.0.1:7000");
    x->protocol = SN_PROTOCOL;
    x->sequence = sequence;
    x->expires_unix_ms = 60000;
    x->state = state;
    x->end_block = x->n_blocks = 1;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    NEED(sn_announcement_seal(x, identity, &sealed, &err));
    NEED(sn_directory_take(directory, sealed.data, sealed.len, 1000, &err));
    sn_buf_fini(&sealed);
    free(x);
}

Test(seen, gives_a_node_that_went_and_came_back_another_chance) {
    sn_seen *seen = seen_new();
    sn_directory *directory;
    sn_identity identity;
    NEED(sn_directory_new(&directory, &err));
    NEED(sn_identity_new(&identity, &err));
    announce(directory, &identity, SN_NODE_ONLINE, 1);
    sn_seen_failure(seen, identity.id, SECOND);
    sn_seen_presence(seen, directory);
    cr_expect(sn_seen_banned_us(seen, identity.id, 2 * SECOND), "it never went");
    announce(directory, &identity, SN_NODE_OFFLINE, 2);
    sn_seen_presence(seen, directory);
    cr_expect(sn_seen_banned_us(seen, identity.id, 2 * SECOND), "it is not back");
    announce(directory, &identity, SN_NODE_ONLINE, 3);
    sn_seen_presence(seen, directory);
    cr_expect_eq(sn_seen_banned_us(seen, identity.id, 2 * SECOND), 0);
    cr_expect_eq(sn_seen_failure(seen, identity.id, 3 * SECOND), 2 * SN_BAN_US, "but its failure is not forgotten");
    sn_directory_free(&directory);
    sn_seen_free(&seen);
}

Test(seen, remembers_a_bounded_number_of_nodes) {
    sn_seen *seen = seen_new();
    for (int i = 0; i <= SN_SEEN_MAX; i++) {
        uint8_t node[SN_KEY_SIZE] = {(uint8_t)i, (uint8_t)(i >> 8), 7};
        sn_seen_round_trip(seen, node, i, SECOND + i);
    }
    cr_expect_null(sn_seen_of(seen, (const uint8_t[SN_KEY_SIZE]){0, 0, 7}), "the one unheard of for longest made room");
    cr_expect_not_null(sn_seen_of(seen, (const uint8_t[SN_KEY_SIZE]){1, 0, 7}));
    cr_expect_not_null(sn_seen_of(seen, (const uint8_t[SN_KEY_SIZE]){0, 4, 7}));
    sn_seen_free(&seen);
}

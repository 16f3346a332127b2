#include "node/membership/ping_stats.h"

#include <criterion/criterion.h>

Test(ping_stats, is_the_time_from_ping_to_pong) {
    sn_ping_stats d = {0};
    sn_ping_stats_sent(&d, 1, 10, 77, 0, 1000);
    sn_ping_stats_sent(&d, 2, 11, 78, 0, 1000);
    sn_ping_stats_answered(&d, 2, 11, 5000);
    sn_ping_stats_answered(&d, 1, 10, 1400);
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 77), 400);
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 78), 4000);
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 79), 0);
    sn_ping_stats_sent(&d, 1, 12, 77, 0, 2000);
    sn_ping_stats_answered(&d, 1, 12, 2800); /* the newest sample has a weight of a quarter */
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 77), 500);
}

/* A PONG that was not requested, of another peer, or repeated changes nothing. */
Test(ping_stats, accepts_one_pong_of_the_pinged_peer_only) {
    sn_ping_stats d = {0};
    sn_ping_stats_answered(&d, 1, 0, 50);
    sn_ping_stats_sent(&d, 1, 10, 77, 0, 1000);
    sn_ping_stats_answered(&d, 2, 10, 1001);
    sn_ping_stats_answered(&d, 1, 9, 1001);
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 77), 0);
    sn_ping_stats_answered(&d, 1, 10, 1300);
    sn_ping_stats_answered(&d, 1, 10, 900000);
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 77), 300);
}

Test(ping_stats, bandwidth_is_the_median_of_padded_pings) {
    sn_ping_stats d = {0};
    cr_assert_eq(sn_ping_stats_bytes_per_s(&d), 0);
    sn_ping_stats_sent(&d, 1, 1, 77, 0, 0);
    sn_ping_stats_answered(&d, 1, 1, 1000);
    const int64_t took[] = {3000, 1000000, 2000}; /* the round trip of 1000 is not part of the transmission time */
    for (int i = 0; i < 3; i++) {
        sn_ping_stats_sent(&d, 1, 2 + i, 77, 1000000, 0);
        sn_ping_stats_answered(&d, 1, 2 + i, took[i]);
    }
    cr_assert_eq(sn_ping_stats_bytes_per_s(&d), 1000000 / 2 * 1000);
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 77), 1000);
}

Test(ping_stats, announces_the_newest_and_drops_the_oldest) {
    sn_ping_stats d = {0};
    static sn_announcement a;
    for (uint64_t node = 1; node <= 2 * SN_PING_PEERS_MAX; node++) {
        sn_ping_stats_sent(&d, node, node, node, 0, (int64_t)node * 1000);
        sn_ping_stats_answered(&d, node, node, (int64_t)(node * 1000 + node));
    }
    sn_ping_stats_announce(&d, &a);
    cr_assert_eq(a.n_round_trip, SN_ROUND_TRIPS_MAX);
    for (uint64_t i = 0; i < SN_ROUND_TRIPS_MAX; i++) {
        cr_assert_eq(a.round_trip[i].node, 2 * SN_PING_PEERS_MAX - i);
        cr_assert_eq(a.round_trip[i].us, 2 * SN_PING_PEERS_MAX - i);
    }
    cr_assert_eq(sn_ping_stats_rtt_us(&d, 1), 0);
}

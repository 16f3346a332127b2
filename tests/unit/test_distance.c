#include "node/distance.h"

#include <criterion/criterion.h>

Test(distance, is_the_time_from_ping_to_pong) {
    sn_distance d = {0};
    sn_distance_asked(&d, 1, 10, 77, 0, 1000);
    sn_distance_asked(&d, 2, 11, 78, 0, 1000);
    sn_distance_answered(&d, 2, 11, 5000);
    sn_distance_answered(&d, 1, 10, 1400);
    cr_assert_eq(sn_distance_to(&d, 77), 400);
    cr_assert_eq(sn_distance_to(&d, 78), 4000);
    cr_assert_eq(sn_distance_to(&d, 79), 0);
    sn_distance_asked(&d, 1, 12, 77, 0, 2000);
    sn_distance_answered(&d, 1, 12, 2800); /* the newest is a quarter */
    cr_assert_eq(sn_distance_to(&d, 77), 500);
}

/* An answer that was not asked for, of another peer, or given twice, moves nothing. */
Test(distance, believes_only_the_peer_that_was_asked_and_once) {
    sn_distance d = {0};
    sn_distance_answered(&d, 1, 0, 50);
    sn_distance_asked(&d, 1, 10, 77, 0, 1000);
    sn_distance_answered(&d, 2, 10, 1001);
    sn_distance_answered(&d, 1, 9, 1001);
    cr_assert_eq(sn_distance_to(&d, 77), 0);
    sn_distance_answered(&d, 1, 10, 1300);
    sn_distance_answered(&d, 1, 10, 900000);
    cr_assert_eq(sn_distance_to(&d, 77), 300);
}

Test(distance, a_link_is_as_fast_as_the_median_of_padded_pings) {
    sn_distance d = {0};
    cr_assert_eq(sn_distance_bytes_per_s(&d), 0);
    sn_distance_asked(&d, 1, 1, 77, 0, 0);
    sn_distance_answered(&d, 1, 1, 1000);
    const int64_t took[] = {3000, 1000000, 2000}; /* the round trip of 1000 is not the bytes' */
    for (int i = 0; i < 3; i++) {
        sn_distance_asked(&d, 1, 2 + i, 77, 1000000, 0);
        sn_distance_answered(&d, 1, 2 + i, took[i]);
    }
    cr_assert_eq(sn_distance_bytes_per_s(&d), 1000000 / 2 * 1000);
    cr_assert_eq(sn_distance_to(&d, 77), 1000);
}

Test(distance, tells_the_newest_and_forgets_the_oldest) {
    sn_distance d = {0};
    static sn_announcement a;
    for (uint64_t node = 1; node <= 2 * SN_DISTANCE_KNOWN_MAX; node++) {
        sn_distance_asked(&d, node, node, node, 0, (int64_t)node * 1000);
        sn_distance_answered(&d, node, node, (int64_t)(node * 1000 + node));
    }
    sn_distance_tell(&d, &a);
    cr_assert_eq(a.n_round_trip, SN_ROUND_TRIPS_MAX);
    for (uint64_t i = 0; i < SN_ROUND_TRIPS_MAX; i++) {
        cr_assert_eq(a.round_trip[i].node, 2 * SN_DISTANCE_KNOWN_MAX - i);
        cr_assert_eq(a.round_trip[i].us, 2 * SN_DISTANCE_KNOWN_MAX - i);
    }
    cr_assert_eq(sn_distance_to(&d, 1), 0);
}

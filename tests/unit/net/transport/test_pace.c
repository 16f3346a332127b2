/* How fast a connection to a far peer writes: a burst at once, then a little faster than its window turns over. */
#include "net/transport/pace_private.h" /* private: the bound without sockets */

#include <criterion/criterion.h>

/* The window of 100 Mbit/s over 100 ms. */
enum { RTT_US = 100000, WINDOW = 863, SEGMENT = 1448 };

Test(pace, peers_that_are_near_are_not_held_back) {
    sn_pace pace = {0};
    int64_t until_us = 0;
    cr_expect_eq(sn_pace_speed(300, 10, SEGMENT), 0);
    for (int i = 0; i < 100; i++) {
        cr_expect_eq(sn_pace_allows(&pace, 0, 1 << 20, 1000, &until_us), 1 << 20);
        sn_pace_note(&pace, 0, 1 << 20, 1000);
    }
}

Test(pace, the_speed_is_that_of_the_window_and_a_quarter_more) {
    cr_expect_eq(sn_pace_speed(RTT_US, WINDOW, SEGMENT), (uint64_t)WINDOW * SEGMENT * 10 * 5 / 4);
    cr_expect_gt(sn_pace_speed(UINT32_MAX, 1, 1), 0, "it never stands still");
    cr_expect_gt(sn_pace_speed(RTT_US, UINT32_MAX, 65535), (uint64_t)1 << 40);
}

/* 64 rows of 9 KB that are there at once: the router's queue holds 256 KiB and empties at 100 Mbit/s. */
Test(pace, a_burst_does_not_overflow_the_queue_of_a_line_that_the_window_fits) {
    enum { ALL = 64 * 9216, QUEUE = 256 << 10, LINE_BYTES_MS = 12500 };
    const uint64_t speed = sn_pace_speed(RTT_US, WINDOW, SEGMENT);
    sn_pace pace = {0};
    size_t left = ALL, queue = 0, most = 0;
    int64_t now_us = 5000000;
    for (int ms = 0; left && ms < 1000; ms++, now_us += 1000) {
        int64_t until_us = 0;
        for (size_t n; left && (n = sn_pace_allows(&pace, speed, left, now_us, &until_us)); left -= n, queue += n)
            sn_pace_note(&pace, speed, n, now_us);
        cr_expect(!left || until_us > now_us, "it waits for a time to come");
        if (queue > most) most = queue;
        queue -= queue < LINE_BYTES_MS ? queue : LINE_BYTES_MS;
    }
    cr_expect_eq(left, 0);
    cr_expect_lt(most, QUEUE, "%zu", most);
    cr_expect_lt(now_us, 5000000 + RTT_US, "it takes less than the window's round trip");
}

Test(pace, one_row_after_another_is_not_held_back) {
    const uint64_t speed = sn_pace_speed(RTT_US, 10, SEGMENT);
    sn_pace pace = {0};
    int64_t until_us = 0;
    for (int64_t now_us = 0; now_us < 3000000; now_us += RTT_US) {
        cr_expect_eq(sn_pace_allows(&pace, speed, 16500, now_us, &until_us), 16500);
        sn_pace_note(&pace, speed, 16500, now_us);
    }
}

Test(pace, time_goes_on_whatever_was_written) {
    sn_pace pace = {0};
    int64_t until_us = 0;
    sn_pace_note(&pace, 1, SIZE_MAX / 1000000, 0);
    cr_expect_leq(pace.gone_us, INT32_MAX);
    cr_expect_eq(sn_pace_allows(&pace, 1, 100, 1, &until_us), 0);
    cr_expect_geq(until_us, 1);
}

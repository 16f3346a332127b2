/* How many windows of draft tokens are under way, by what was measured. */
#include "client/generate/ahead.h"

#include <criterion/criterion.h>

static sn_ahead measured(int64_t lap_us, int64_t stage_us, size_t judged, size_t right) {
    sn_ahead a = {0};
    const sn_window window = {.n = 4, .lap_us = lap_us, .stage_us = stage_us, .compute_us = stage_us};
    for (int i = 0; i < 40; i++) sn_ahead_note_window(&a, &window, 0);
    for (size_t i = 0; i < judged; i++) sn_ahead_note_judged(&a, 1, i % judged < right);
    return a;
}

static size_t depth(const sn_ahead *a) {
    size_t n = 1;
    while (n < 100 && sn_ahead_pays(a, n, 4 * n, 4)) n++;
    return n;
}

Test(ahead, nothing_is_sent_before_a_lap_was_measured) {
    const sn_ahead a = {0};
    cr_expect_not(sn_ahead_pays(&a, 1, 1, 1));
}

Test(ahead, right_drafts_fill_the_lap_and_no_more) {
    sn_ahead a = measured(100000, 10100, 200, 200);
    cr_expect_eq(depth(&a), 10);
    a = measured(400000, 10100, 200, 200);
    cr_expect_eq(depth(&a), 40);
}

Test(ahead, drafts_that_take_longer_than_a_lap_wait_for_it) {
    sn_ahead a = measured(100000, 1000, 200, 200);
    for (int i = 0; i < 100; i++) sn_ahead_note_drafts(&a, 4, 480000);
    cr_expect_eq(depth(&a), 1);
}

Test(ahead, drafts_that_are_wrong_wait_for_the_window_before_them) {
    sn_ahead a = measured(100000, 10000, 200, 0);
    cr_expect_eq(depth(&a), 1);
    a = measured(2000, 1500, 1, 1); /* a lap is hardly more than its slowest node */
    cr_expect_eq(depth(&a), 1);
}

Test(ahead, acceptance_follows_the_newest_drafts) {
    sn_ahead a = measured(1, 1, 200, 200);
    cr_expect_gt(sn_ahead_acceptance(&a), 0.9);
    for (int i = 0; i < 30; i++) sn_ahead_note_judged(&a, 60, 0);
    cr_expect_lt(sn_ahead_acceptance(&a), 0.3);
}

Test(ahead, tokens_behind_a_wrong_one_were_not_judged) {
    sn_ahead a = {0};
    for (int i = 0; i < 100; i++) sn_ahead_note_judged(&a, 63, 4); /* four of five */
    cr_expect_float_eq(sn_ahead_acceptance(&a), 0.8, 0.1);
}

/* Where tokens are wrong soon, rows that make the lap longer count; where they are right, what a window costs does. */
Test(ahead, windows_are_as_short_as_pays) {
    sn_ahead a = {0};
    cr_expect_eq(sn_ahead_length(&a, 16), 0);
    sn_window window = {.lap_us = 100000, .stage_us = 100, .compute_us = 300, .line_share = 0.25};
    for (window.n = 1; window.n <= 16; window.n++, window.lap_us += 4000) sn_ahead_note_window(&a, &window, 0);
    for (int i = 0; i < 200; i++) sn_ahead_note_judged(&a, 4, 3);
    const size_t short_ones = sn_ahead_length(&a, 16);
    cr_expect(short_ones >= 1 && short_ones <= 3, "%zu", short_ones);
    for (int i = 0; i < 200; i++) sn_ahead_note_judged(&a, 4, 4);
    cr_expect_gt(sn_ahead_length(&a, 16), short_ones);
    for (int i = 0; i < 200; i++) sn_ahead_note_judged(&a, 4, 0);
    cr_expect_eq(sn_ahead_length(&a, 16), 1);
}

/* The first laps take longer a row than the line does, since TCP begins slowly. */
Test(ahead, windows_that_come_quickly_show_a_fast_line) {
    sn_ahead a = {0};
    sn_window window = {.lap_us = 100000, .stage_us = 100, .compute_us = 300, .line_share = 0.25};
    for (window.n = 1; window.n <= 16; window.n++, window.lap_us += 40000) sn_ahead_note_window(&a, &window, 0);
    for (int i = 0; i < 200; i++) sn_ahead_note_judged(&a, 4, 4);
    const size_t before = depth(&a);
    window = (sn_window){.n = 4, .guessed = true, .behind_us = 400, .stage_us = 100, .line_share = 0.25};
    for (int i = 0; i < 40; i++) sn_ahead_note_window(&a, &window, 0);
    cr_expect_gt(depth(&a), before);
}

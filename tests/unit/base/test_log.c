/* Log lines: those that strangers cause have a rate; those that a program keeps wait. */
#include "base/log.h"
#include "node/protocol/protocol_private.h" /* private: what a node logs of sessions */

#include <criterion/criterion.h>
#include <string.h>

Test(log, lines_of_one_place_have_a_rate) {
    sn_log_rate rate = {0}, other = {0};
    int64_t now = 5000000;
    int written = 0;
    for (int i = 0; i < 1000; i++) written += sn_log_rate_allows(&rate, SN_LOG_RATE_LINES, now + i, "event");
    cr_expect_eq(written, SN_LOG_RATE_LINES);
    cr_expect(sn_log_rate_allows(&other, 1, now, "event"), "another place has a rate of its own");
    now += SN_LOG_RATE_S * 1000000;
    for (int i = 0; i < 1000; i++) written += sn_log_rate_allows(&rate, SN_LOG_RATE_LINES, now + i, "event");
    cr_expect_eq(written, 2 * SN_LOG_RATE_LINES);
}

/* A client that opens and closes sessions as fast as a node answers fills no disk: 40 lines a second, 0.6 GB a day. */
Test(log, lines_of_sessions_have_a_rate) {
    sn_buf lines;
    const sn_session session = {.request_id = "a-request"};
    sn_buf_init(&lines, 1 << 20);
    sn_log_setup(SN_LOG_INFO, false);
    sn_log_keep(true);
    for (int i = 0; i < 5000; i++) sn_protocol_log_session(i % 2 ? "session closed" : "session opened", &session);
    sn_log_take(&lines);
    sn_log_keep(false);
    size_t n = 0;
    for (size_t i = 0; i < lines.len; i++) n += lines.data[i] == '\n';
    cr_expect_geq(n, 100, "requests are followed by them");
    cr_expect_lt(n, 1200, "%zu lines", n); /* three intervals, where the machine is slow */
    sn_buf_fini(&lines);
}

Test(log, lines_wait_while_they_are_kept) {
    sn_buf lines;
    sn_buf_init(&lines, 1 << 20);
    sn_log_setup(SN_LOG_WARN, false);
    sn_log_keep(true);
    sn_log(SN_LOG_WARN, "first", "n=%d", 1);
    sn_log(SN_LOG_INFO, "too low", "n=%d", 2);
    sn_log(SN_LOG_ERROR, "second", "n=%d", 3);
    sn_log_take(&lines);
    cr_assert_eq(sn_buf_append(&lines, "", 1, NULL), SN_OK);
    const char *text = (char *)lines.data, *first = strstr(text, "warn  first n=1\n"),
               *second = strstr(text, "error second n=3\n");
    cr_expect(first && second && first < second && !strstr(text, "too low"), "%s", text);
    lines.len = 0;
    sn_log_take(&lines);
    cr_expect_eq(lines.len, 0, "they are taken once");
    sn_log_keep(false);
    sn_log_take(&lines);
    cr_expect_eq(lines.len, 0);
    sn_buf_fini(&lines);
}

Test(log, few_lines_are_kept_and_the_others_are_counted) {
    sn_buf lines;
    sn_buf_init(&lines, 1 << 20);
    sn_log_setup(SN_LOG_WARN, false);
    sn_log_keep(true);
    for (int i = 0; i < 10000; i++) sn_log(SN_LOG_WARN, "line", "text=%0100d", i);
    sn_log_take(&lines);
    cr_assert_eq(sn_buf_append(&lines, "", 1, NULL), SN_OK);
    cr_expect(lines.len < SN_LOG_KEPT_BYTES + 100, "%zu bytes", lines.len);
    cr_expect(strstr((char *)lines.data, " more log lines were not kept\n"));
    sn_buf_fini(&lines);
}

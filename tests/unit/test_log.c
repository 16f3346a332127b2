/* Log lines that strangers cause have a rate. */
#include "base/log.h"

#include <criterion/criterion.h>

Test(log, lines_of_one_place_have_a_rate) {
    sn_log_rate rate = {0}, other = {0};
    int64_t now = 5000000;
    int written = 0;
    for (int i = 0; i < 1000; i++) written += sn_log_rate_allows(&rate, now + i, "event");
    cr_expect_eq(written, SN_LOG_RATE_LINES);
    cr_expect(sn_log_rate_allows(&other, now, "event"), "another place has a rate of its own");
    now += SN_LOG_RATE_S * 1000000;
    for (int i = 0; i < 1000; i++) written += sn_log_rate_allows(&rate, now + i, "event");
    cr_expect_eq(written, 2 * SN_LOG_RATE_LINES);
}

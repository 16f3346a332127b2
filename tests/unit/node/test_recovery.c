/* The pauses between two tries of a lost device, without any device. */
#include "node/recovery.h"

#include <criterion/criterion.h>

static const int64_t SECOND = 1000000;

Test(recovery, pauses_grow_from_five_seconds_to_ten_minutes) {
    static const int seconds[] = {5, 10, 20, 40, 80, 160, 320, 600, 600};
    sn_recovery r = {0};
    int64_t now = 12345 * SECOND;
    sn_recovery_add(&r, (sn_device_id){SN_DEVICE_CUDA, 0});
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++, now = sn_recovery_due_us(&r)) {
        sn_recovery_pause(&r, now);
        cr_expect_eq(sn_recovery_due_us(&r), now + seconds[i] * SECOND, "pause %zu", i);
        cr_expect(!sn_recovery_tick(&r, now), "it is tried before the pause is over");
    }
    sn_recovery_end(&r);
    cr_expect_eq(sn_recovery_due_us(&r), INT64_MAX);
}

Test(recovery, a_device_that_is_lost_again_soon_is_waited_for_longer) {
    sn_recovery r = {0};
    int64_t now = 12345 * SECOND;
    for (int i = 0; i < 4; i++, now += 60 * SECOND) {
        sn_recovery_add(&r, (sn_device_id){SN_DEVICE_CUDA, 0});
        sn_recovery_pause(&r, now);
        cr_expect_eq(sn_recovery_due_us(&r), now + (5 << i) * SECOND);
        sn_recovery_end(&r);
    }
    now += 3600 * SECOND; /* it worked for an hour */
    sn_recovery_add(&r, (sn_device_id){SN_DEVICE_CUDA, 0});
    sn_recovery_pause(&r, now);
    cr_expect_eq(sn_recovery_due_us(&r), now + 5 * SECOND);
}

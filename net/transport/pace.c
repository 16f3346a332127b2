#include "net/transport/pace_private.h"

enum { FAR_US = 10000 };

uint64_t sn_pace_speed(uint32_t rtt_us, uint32_t window, uint32_t segment) {
    if (rtt_us < FAR_US) return 0;
    const uint64_t a_second = (uint64_t)window * segment * 1000000 / rtt_us;
    return a_second ? a_second + a_second / 4 : 1;
}

static int64_t time_of(uint64_t bytes, uint64_t speed) {
    const uint64_t us = bytes * 1000000 / speed;
    return us < INT32_MAX ? (int64_t)us : INT32_MAX;
}

size_t sn_pace_allows(const sn_pace *pace, uint64_t speed, size_t n, int64_t now_us, int64_t *until_us) {
    if (!speed || pace->gone_us <= now_us) return n < SN_PACE_BURST || !speed ? n : SN_PACE_BURST;
    const int64_t behind_us = pace->gone_us - now_us;
    const int64_t most_us = time_of(SN_PACE_BURST, speed), step_us = time_of(SN_PACE_STEP, speed);
    if (behind_us > most_us - step_us) {
        *until_us = pace->gone_us - most_us + step_us;
        return 0;
    }
    const size_t left = SN_PACE_BURST - (size_t)((uint64_t)behind_us * speed / 1000000);
    return n < left ? n : left;
}

void sn_pace_note(sn_pace *pace, uint64_t speed, size_t n, int64_t now_us) {
    if (!speed) return;
    if (pace->gone_us < now_us) pace->gone_us = now_us;
    pace->gone_us += time_of(n, speed);
}

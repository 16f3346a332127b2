#include "base/clock.h"

#include <time.h>

static int64_t clock_read_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t sn_now_us(void) { return clock_read_ns(CLOCK_MONOTONIC) / 1000; }
int64_t sn_unix_ms(void) { return clock_read_ns(CLOCK_REALTIME) / 1000000; }

void sn_sleep_us(int64_t us) {
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Time. Protocol logic never reads these: it is handed the time, so that a simulator can hand it another. */
#ifndef SN_BASE_CLOCK_H
#define SN_BASE_CLOCK_H

#include <stdint.h>

int64_t sn_now_us(void);      /* monotonic, microseconds: for waits and measurements */
int64_t sn_unix_ms(void);     /* wall clock, milliseconds since 1970: for what is compared between machines */
void sn_sleep_us(int64_t us); /* for tests and back-off of programs; no thread of a node calls it */

#endif

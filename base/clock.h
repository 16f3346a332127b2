/* Clocks. Any thread may call these functions. Protocol logic does not: it takes the time as an argument, so that the
 * simulator can supply another one. */
#ifndef SN_BASE_CLOCK_H
#define SN_BASE_CLOCK_H

#include <stdint.h>

int64_t sn_now_us(void);      /* monotonic, microseconds: for timeouts and measurements */
int64_t sn_unix_ms(void);     /* wall clock, milliseconds since 1970: for times that are compared between machines */
void sn_sleep_us(int64_t us); /* for tests and the back-off of programs; no thread of a node that serves calls it */

/* Microseconds from one time to another, 0 where that is not later: for times that are sent or counted. */
static inline uint64_t sn_us_between(int64_t from, int64_t to) { return to > from ? (uint64_t)(to - from) : 0; }

#endif

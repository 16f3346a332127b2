/* The test program's own clock, so that the outcome of a test does not depend on how fast or busy the machine is.
 *
 * While any thread has work to do, time passes only as the program gets processor time: a machine that stalls stops
 * the clock, too. When all threads wait, the clock leaps to the first deadline of a waiting thread: a node that is
 * silent for 20 s costs no time. Limits in tests may therefore be generous, and a wait that reaches its limit is one
 * that nothing would have ended.
 *
 * It replaces sn_now_us, sn_unix_ms, sn_sleep_us and the waits of threads (conditions, join) by --wrap
 * (tests/CMakeLists.txt) in the programs that link it. It does not know about threads that wait for anything else:
 * sockets, other processes, a device. */
#ifndef SN_TESTS_VIRTUAL_CLOCK_H
#define SN_TESTS_VIRTUAL_CLOCK_H

#include <stdint.h>

/* Starts the virtual clock for the rest of the process; until then time is real. May be called more than once. */
void virtual_clock_begin(void);
/* As virtual_clock_begin, but processor time does not count: time passes when a test says so, or in a leap. */
void virtual_clock_begin_still(void);
void virtual_clock_advance(int64_t us);

#endif

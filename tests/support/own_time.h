/* A time of the test program's own, so that what a test finds does not depend on how fast or busy the machine is.
 *
 * While any thread has something to do, time goes by only as the program is given the processor: a machine that stalls stops the
 * clock, too. When all threads wait, it leaps to the first deadline that one of them waits for: a node that is silent for 20 s
 * costs nothing. So limits in tests may be generous, and a wait that runs into its limit is one that nobody would have ended.
 *
 * It takes the place of sn_now_us, sn_unix_ms and sn_sleep_us, and of threads' waits (conditions, join), by --wrap (tests/CMakeLists.txt), in
 * programs that link it. Not for threads that wait for anything else: sockets, other processes, a device. */
#ifndef SN_TESTS_OWN_TIME_H
#define SN_TESTS_OWN_TIME_H

/* From now on; until then all is as without it. Once or again; to the end of the process. */
void own_time_begin(void);

#endif

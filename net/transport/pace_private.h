/* How fast a connection to a peer that is far writes what it has. A node sends on what it has computed at once:
 * hundreds of rows, after a time in which it had nothing to send. TCP lets them go at the speed of this machine's own
 * line, as far as its window reaches, and the queue of the slowest line on the way overflows. Then the window is cut
 * and grows again for seconds. So a burst is bounded, and what is more goes as fast as the window would turn over, and
 * a quarter faster, so that the window still grows. Pure: the time and what the kernel says are arguments. */
#ifndef SN_NET_TRANSPORT_PACE_PRIVATE_H
#define SN_NET_TRANSPORT_PACE_PRIVATE_H

#include <stddef.h>
#include <stdint.h>

enum { SN_PACE_BURST = 128 << 10, SN_PACE_STEP = 16 << 10 };

typedef struct sn_pace {
    int64_t gone_us; /* when all that was written would have gone at the speed of then */
} sn_pace;

/* Bytes a second, by the round trip, the congestion window in segments and their size; 0: the peer is near, and there
 * is no bound. */
uint64_t sn_pace_speed(uint32_t rtt_us, uint32_t window, uint32_t segment);
/* How many bytes of `n` may be written now; 0: none until *until_us. */
size_t sn_pace_allows(const sn_pace *pace, uint64_t speed, size_t n, int64_t now_us, int64_t *until_us);
void sn_pace_note(sn_pace *pace, uint64_t speed, size_t n, int64_t now_us); /* so many were written */

#endif

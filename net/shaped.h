/* An emulated link: a transport around another one that holds back what arrives, as a slow and distant connection would.
 *
 * Each process delays what comes to it by half the round trip, so a question and its answer take the whole; and messages
 * of one peer come one behind the other at the link's bandwidth, each peer over a line of its own. A message of b bytes
 * that reaches us at time t is handed on at
 *
 *     max(t, end of the one before) + 8 b / bandwidth + round trip / 2 + jitter
 *
 * and never before one that the same peer sent earlier. Bytes are those of the frames (map and tensor); what TCP, CURVE
 * and connecting add is not counted. Jitter is uniform in [0, jitter], from a fixed seed: the same arrivals give the same
 * times. Everything else is as the inner transport does it (net/transport.h). */
#ifndef SN_NET_SHAPED_H
#define SN_NET_SHAPED_H

#include "net/transport.h"

typedef struct sn_shape {
    uint64_t bits_per_s; /* 0: without limit */
    int64_t rtt_us, jitter_us;
} sn_shape;

/* "100mbit,100ms" or "1gbit,5ms,1ms": bandwidth (kbit, mbit, gbit), round trip and jitter (us, ms, s); "none". */
sn_status sn_shape_parse(const char *text, sn_shape *out, sn_err *err) SN_MUST_USE;
bool sn_shape_is_none(const sn_shape *shape);

/* Takes *inner (set NULL) in any case. now_us: the clock of recv's deadlines, NULL: sn_now_us; tests give another. */
sn_status sn_transport_shaped_new(sn_transport **inner, const sn_shape *shape, int64_t (*now_us)(void),
                                  sn_transport **out, sn_err *err) SN_MUST_USE;

#endif

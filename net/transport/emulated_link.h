/* An emulated link: a transport around another one that delays what arrives, as a slow or distant connection would.
 *
 * Each process delays the messages that it receives by half the round trip, so a request and its answer take the whole.
 * Each peer has a line of its own, on which messages come one after the other at the link's bandwidth. A message of b
 * bytes that arrives at time t is handed on at
 *
 *     max(t, end of the message before) + 8 b / bandwidth + round trip / 2 + jitter
 *
 * and never before an earlier message of the same peer. b counts the bytes of the frames (map and tensor), not what
 * TCP, CURVE and connecting add. Jitter is uniform in [0, jitter], from a fixed seed: equal arrivals give equal times.
 * Everything else is as in the inner transport: threads, ownership and errors are those of net/transport/transport.h.
 */
#ifndef SN_NET_TRANSPORT_EMULATED_LINK_H
#define SN_NET_TRANSPORT_EMULATED_LINK_H

#include "net/transport/transport.h"

typedef struct sn_emulated_link {
    uint64_t bits_per_s; /* 0: no limit */
    int64_t rtt_us, jitter_us;
} sn_emulated_link;

/* Parses "100mbit,100ms" or "1gbit,5ms,1ms": bandwidth (kbit, mbit, gbit), round trip and jitter (us, ms, s); or
 * "none". */
sn_status sn_emulated_link_parse(const char *text, sn_emulated_link *out, sn_err *err) SN_MUST_USE;
bool sn_emulated_link_is_none(const sn_emulated_link *link);

/* Takes *inner (sets it NULL), also on failure. now_us: the clock of recv's deadlines; NULL: sn_now_us. */
sn_status sn_transport_emulated_new(sn_transport **inner, const sn_emulated_link *link, int64_t (*now_us)(void),
                                    sn_transport **out, sn_err *err) SN_MUST_USE;

#endif

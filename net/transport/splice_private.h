/* Two TCP connections of which each gets what the other sends: a client's and a relayed node's, at a relay (portal.h).
 * Private to net/transport/. What passes is sealed by CURVE for its two ends; nothing here looks at it. Logic over two
 * descriptors that do not block; a splice belongs to one thread. */
#ifndef SN_NET_TRANSPORT_SPLICE_PRIVATE_H
#define SN_NET_TRANSPORT_SPLICE_PRIVATE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SN_SPLICE_BYTES = 64 << 10 }; /* that wait in one direction; then TCP stops the sender */

typedef struct sn_splice {
    int fd[2];
    struct {
        uint8_t *data; /* SN_SPLICE_BYTES */
        size_t at, len;
        bool ended;   /* no more will come */
    } way[2];         /* from fd[i] to the other */
    int64_t moved_us; /* when bytes last came */
} sn_splice;

/* Takes both descriptors; on failure, too. */
sn_status sn_splice_new(int a, int b, int64_t now_us, sn_splice **out, sn_err *err) SN_MUST_USE;
void sn_splice_free(sn_splice **splice); /* accepts NULL; closes both descriptors */
/* What fd[side] is to be polled for. may_read: the rate of the relay allows more. */
short sn_splice_events(const sn_splice *splice, int side, bool may_read);
/* Moves what there is, and takes what it read from *budget, which does not fall below 0. False: one of the two has
 * ended, and what it had sent has been passed on. */
bool sn_splice_move(sn_splice *splice, int64_t *budget, int64_t now_us);

#endif

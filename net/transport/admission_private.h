/* Which connections a listener holds when there are more than it can: each costs a descriptor and memory here and
 * nearly nothing at its maker. Private to net/transport/.
 *
 * A connection is unnamed until its peer has proven a key and sent a message. Unnamed connections of one address have a
 * quarter of the places, all of an address three quarters. When they are taken, or all are, the oldest unnamed
 * connection makes room, then the one that was idle longest. So an address that only opens connections takes places
 * from itself, and many such addresses take places from connections that say nothing. Where few are unnamed, the
 * address with most connections gives one to a newcomer whose address has far fewer, and takes no unnamed one of such
 * an address: a few addresses cannot keep others out. Logic only: the time is an argument. */
#ifndef SN_NET_TRANSPORT_ADMISSION_PRIVATE_H
#define SN_NET_TRANSPORT_ADMISSION_PRIVATE_H

#include "net/address_limit.h"

enum {
    SN_ADMISSION_IDLE_US =
        60000000, /* a named connection may be ended for another one after so long without messages */
};

typedef struct sn_standing {
    uint8_t prefix[SN_ADDRESS_PREFIX];
    bool named;
    int64_t since_us; /* unnamed: when it was opened; named: when its last message came or went */
} sn_standing;

enum { SN_ADMIT = -1, SN_ADMIT_NOT = -2 };
/* What to do with a newcomer, given the connections that there are (`standings`: n pointers, NULL: none): SN_ADMIT,
 * SN_ADMIT_NOT, or the index of the connection that is ended for it. */
int sn_admission_decide(const sn_standing *const *standings, size_t n, size_t capacity,
                        const uint8_t prefix[SN_ADDRESS_PREFIX], int64_t now_us);

/* Where a connection is counted among those of its network address. Addresses share buckets, others at each time. */
enum { SN_ADMISSION_BUCKETS = 4096 };
size_t sn_admission_bucket(const sn_standing *standing, int64_t now_us);

#endif

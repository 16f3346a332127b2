/* The CURVE keys of the nodes that have answered this one. A directory finds nodes by their ids, and looking through it
 * takes a millisecond when it is full: too long for each message of a stranger. Network thread. */
#ifndef SN_NODE_MEMBERSHIP_PROVEN_KEYS_H
#define SN_NODE_MEMBERSHIP_PROVEN_KEYS_H

#include "net/directory.h"

enum { SN_PROVEN_KEYS_EVERY_MS = 5000 };

typedef struct sn_proven_keys { /* zeroed: none yet */
    uint8_t (*keys)[SN_KEY_SIZE];
    size_t n;
    bool read;
    int64_t read_unix_ms;
} sn_proven_keys;

void sn_proven_keys_fini(sn_proven_keys *proven);
/* Whether it is the key of a live and proven node, as of SN_PROVEN_KEYS_EVERY_MS ago or later. */
bool sn_proven_keys_has(sn_proven_keys *proven, const sn_directory *directory, const uint8_t key[SN_KEY_SIZE],
                        int64_t unix_ms);

#endif

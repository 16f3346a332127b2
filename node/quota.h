/* What one client may take of a node, and whose work comes first. A client is a CURVE key; keys cost nothing, so this is
 * fairness among those who mean well, and in a private swarm; floods are stopped elsewhere (docs/SECURITY.md). Logic only:
 * it is handed the time. Belongs to the network thread. */
#ifndef SN_NODE_QUOTA_H
#define SN_NODE_QUOTA_H

#include "net/message.h"

typedef struct sn_priority {
    uint8_t key[SN_KEY_SIZE]; /* CURVE key of a client */
    int value;                /* higher ones come first; 0 is everybody else's */
} sn_priority;

enum { SN_PRIORITIES_MAX = 1024, SN_PRIORITY_MAX = 100 };

typedef struct sn_quota_limits { /* each for one client; 0: none */
    size_t sessions;
    size_t kv_bytes;
    int64_t steps_per_s;
    const sn_priority *priorities; /* copied */
    size_t n_priorities;
} sn_quota_limits;

typedef struct sn_quota sn_quota;

typedef enum sn_quota_kind { SN_QUOTA_SESSIONS, SN_QUOTA_KV, SN_QUOTA_STEPS, SN_QUOTA_KINDS } sn_quota_kind;

sn_status sn_quota_new(const sn_quota_limits *limits, sn_quota **out, sn_err *err) SN_MUST_USE;
void sn_quota_free(sn_quota **quota); /* NULL-safe */

/* Each is SN_RETRY with a sentence that names the limit. */
/* One session more than the `open` ones of the client. */
sn_status sn_quota_session(sn_quota *quota, size_t open, sn_err *err) SN_MUST_USE;
/* Keys and values of all its sessions would come to `bytes`. */
sn_status sn_quota_kv(sn_quota *quota, size_t bytes, sn_err *err) SN_MUST_USE;
/* One step, now. A client may be a second's worth of steps ahead, and gets the rest back as time goes by. */
sn_status sn_quota_step(sn_quota *quota, const uint8_t key[SN_KEY_SIZE], int64_t now_us, sn_err *err) SN_MUST_USE;

/* How many times that has been. */
uint64_t sn_quota_refusals(const sn_quota *quota, sn_quota_kind kind);

int sn_quota_priority(const sn_quota *quota, const uint8_t key[SN_KEY_SIZE]);
/* "<64 hexadecimal digits>=<number>". */
sn_status sn_priority_parse(const char *text, sn_priority *out, sn_err *err) SN_MUST_USE;

#endif

/* Quotas: what one client may use of a node, and priorities: whose steps are computed first.
 *
 * sn_quota holds the limits, a token bucket of steps per client, and counters of refusals. A client is identified by
 * its CURVE key. Keys cost nothing, so quotas give fairness between honest clients and in private swarms;
 * docs/SECURITY.md says what protects a node against floods. Logic without I/O; used on the network thread. A check
 * that fails returns SN_RETRY with a sentence that names the limit. */
#ifndef SN_NODE_PROTOCOL_QUOTA_H
#define SN_NODE_PROTOCOL_QUOTA_H

#include "net/message.h"

typedef struct sn_priority {
    uint8_t key[SN_KEY_SIZE]; /* CURVE key of a client */
    int value;                /* higher ones are served first; clients without a priority have 0 */
} sn_priority;

enum { SN_PRIORITIES_MAX = 1024, SN_PRIORITY_MAX = 100 };

typedef struct sn_quota_limits { /* of each client; 0: unlimited */
    size_t sessions;
    size_t kv_bytes; /* KV pages of all its sessions */
    int64_t steps_per_s;
    const sn_priority *priorities; /* copied */
    size_t n_priorities;
} sn_quota_limits;

typedef struct sn_quota sn_quota;

typedef enum sn_quota_kind { SN_QUOTA_SESSIONS, SN_QUOTA_KV, SN_QUOTA_STEPS, SN_QUOTA_KINDS } sn_quota_kind;

sn_status sn_quota_new(const sn_quota_limits *limits, sn_quota **out, sn_err *err) SN_MUST_USE;
void sn_quota_free(sn_quota **quota); /* accepts NULL */

/* May a client that has `open` sessions open one more? */
sn_status sn_quota_session(sn_quota *quota, size_t open, sn_err *err) SN_MUST_USE;
/* May the KV pages of all sessions of a client come to `bytes`? */
sn_status sn_quota_kv(sn_quota *quota, size_t bytes, sn_err *err) SN_MUST_USE;
/* May the client with this key take one step now? Its bucket holds the steps of one second and refills with time;
 * err->retry_after_ms says when the next step is allowed. */
sn_status sn_quota_step(sn_quota *quota, const uint8_t key[SN_KEY_SIZE], int64_t now_us, sn_err *err) SN_MUST_USE;
/* The same for work that counts as n steps, at most a million. It may begin when one step may, and what the bucket
 * lacks has to refill before the next one. */
sn_status sn_quota_steps(sn_quota *quota, const uint8_t key[SN_KEY_SIZE], int n, int64_t now_us,
                         sn_err *err) SN_MUST_USE;

/* The same for a part of a step: one of so many, at most a thousand. */
sn_status sn_quota_part(sn_quota *quota, const uint8_t key[SN_KEY_SIZE], int parts, int64_t now_us,
                        sn_err *err) SN_MUST_USE;

/* How many checks of this kind failed. */
uint64_t sn_quota_refusals(const sn_quota *quota, sn_quota_kind kind);

int sn_quota_priority(const sn_quota *quota, const uint8_t key[SN_KEY_SIZE]);
/* Parses "<64 hexadecimal digits of a CURVE key>=<number>". */
sn_status sn_priority_parse(const char *text, sn_priority *out, sn_err *err) SN_MUST_USE;

#endif

#include "node/protocol/quota.h"

#include "base/mem.h"
#include "base/parse.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096, PROBES = 16, SECOND_US = 1000000 };

/* The token bucket of a client: a step costs SECOND_US units of credit, and steps_per_s units return per
 * microsecond. */
typedef struct bucket {
    uint8_t key[SN_KEY_SIZE];
    int64_t credit, refilled_us; /* refilled_us 0: this bucket is free */
} bucket;

struct sn_quota {
    sn_quota_limits limits;
    sn_priority *priorities;
    uint64_t refusals[SN_QUOTA_KINDS];
    bucket *buckets; /* (BUCKETS), a hash table: a new client replaces the one that was idle for longest */
};

sn_status sn_quota_new(const sn_quota_limits *limits, sn_quota **out, sn_err *err) {
    sn_quota *q = NULL;
    *out = NULL;
    if (limits->n_priorities > SN_PRIORITIES_MAX)
        return sn_fail(err, SN_REFUSED, "at most %d clients can have a priority", SN_PRIORITIES_MAX);
    sn_status status = sn_calloc(&q, 1, sizeof *q, err);
    if (status) return status;
    q->limits = *limits;
    status = sn_calloc(&q->priorities, limits->n_priorities, sizeof *q->priorities, err);
    if (!status) status = sn_calloc(&q->buckets, limits->steps_per_s ? BUCKETS : 0, sizeof *q->buckets, err);
    if (!status && limits->n_priorities)
        memcpy(q->priorities, limits->priorities, limits->n_priorities * sizeof *q->priorities);
    if (status) sn_quota_free(&q);
    *out = q;
    return status;
}

void sn_quota_free(sn_quota **quota) {
    if (!*quota) return;
    free((*quota)->priorities);
    free((*quota)->buckets);
    free(*quota);
    *quota = NULL;
}

uint64_t sn_quota_refusals(const sn_quota *q, sn_quota_kind kind) { return q->refusals[kind]; }

sn_status sn_quota_session(sn_quota *q, size_t open, sn_err *err) {
    if (!q->limits.sessions || open < q->limits.sessions) return SN_OK;
    q->refusals[SN_QUOTA_SESSIONS]++;
    return sn_fail_because(err, SN_RETRY, SN_REASON_NO_ROOM,
                           "this node allows %zu sessions per client: close one, or use another node",
                           q->limits.sessions);
}

sn_status sn_quota_kv(sn_quota *q, size_t bytes, sn_err *err) {
    char limit[32];
    if (!q->limits.kv_bytes || bytes <= q->limits.kv_bytes) return SN_OK;
    q->refusals[SN_QUOTA_KV]++;
    return sn_fail_because(err, SN_RETRY, SN_REASON_NO_ROOM,
                           "this node keeps at most %s of KV pages per client: close a session, or use another node",
                           sn_format_size(q->limits.kv_bytes, limit));
}

static bucket *bucket_find(sn_quota *q, const uint8_t key[SN_KEY_SIZE], int64_t now_us) {
    uint64_t at;
    memcpy(&at, key, sizeof at);
    bucket *oldest = &q->buckets[at % BUCKETS];
    for (size_t i = 0; i < PROBES; i++) {
        bucket *b = &q->buckets[(at + i) % BUCKETS];
        if (b->refilled_us && !memcmp(b->key, key, SN_KEY_SIZE)) return b;
        if (b->refilled_us < oldest->refilled_us) oldest = b;
    }
    *oldest = (bucket){.credit = q->limits.steps_per_s * SECOND_US, .refilled_us = now_us};
    memcpy(oldest->key, key, SN_KEY_SIZE);
    return oldest;
}

sn_status sn_quota_step(sn_quota *q, const uint8_t key[SN_KEY_SIZE], int64_t now_us, sn_err *err) {
    return sn_quota_steps(q, key, 1, now_us, err);
}

/* price: in millionths of a step */
static sn_status quota_spend(sn_quota *q, const uint8_t key[SN_KEY_SIZE], int64_t price, int64_t now_us, sn_err *err) {
    int64_t rate = q->limits.steps_per_s, full = rate * SECOND_US;
    if (!rate) return SN_OK;
    bucket *b = bucket_find(q, key, now_us > 0 ? now_us : 1);
    int64_t passed = now_us - b->refilled_us;
    if (passed > 0) {
        b->credit = passed < (full - b->credit) / rate ? b->credit + passed * rate : full;
        b->refilled_us = now_us;
    }
    if (b->credit >= SECOND_US) {
        b->credit -= price;
        return SN_OK;
    }
    q->refusals[SN_QUOTA_STEPS]++;
    (void)sn_fail(err, SN_RETRY,
                  "this node takes %lld steps per second from a client: wait a moment, or use another node",
                  (long long)rate);
    err->retry_after_ms = (int)((SECOND_US - b->credit) / rate / 1000) + 1;
    return SN_RETRY;
}

sn_status sn_quota_steps(sn_quota *q, const uint8_t key[SN_KEY_SIZE], int n, int64_t now_us, sn_err *err) {
    return quota_spend(q, key, n * (int64_t)SECOND_US, now_us, err);
}

sn_status sn_quota_part(sn_quota *q, const uint8_t key[SN_KEY_SIZE], int parts, int64_t now_us, sn_err *err) {
    return quota_spend(q, key, SECOND_US / parts, now_us, err);
}

int sn_quota_priority(const sn_quota *q, const uint8_t key[SN_KEY_SIZE]) {
    for (size_t i = 0; i < q->limits.n_priorities; i++)
        if (!memcmp(q->priorities[i].key, key, SN_KEY_SIZE)) return q->priorities[i].value;
    return 0;
}

sn_status sn_priority_parse(const char *text, sn_priority *out, sn_err *err) {
    char digits[2 * SN_KEY_SIZE + 1];
    const char *sign = strchr(text, '=');
    int64_t value = 0;
    if (!sign || sign - text != 2 * SN_KEY_SIZE)
        return sn_fail(err, SN_REFUSED,
                       "a priority is KEY=N, with the 64 digits of a client's CURVE key: swarm keygen prints it");
    memcpy(digits, text, 2 * SN_KEY_SIZE);
    digits[2 * SN_KEY_SIZE] = 0;
    sn_status status = sn_unhex(digits, out->key, SN_KEY_SIZE, err);
    if (!status) status = sn_parse_int(sign + 1, -SN_PRIORITY_MAX, SN_PRIORITY_MAX, &value, err);
    out->value = (int)value;
    return status;
}

/* What a client takes of this node, counted over its sessions and held against its quota. */
#include "node/core_private.h"

#include <string.h>

static size_t kv_bytes(const sn_core *core, const sn_session *session, int tokens) {
    size_t pages = ((size_t)tokens + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS;
    size_t row = 2 * sizeof(float) * (size_t)core->hp->n_kv_heads * (size_t)core->hp->head_dim; /* of one block */
    return pages * SN_KV_PAGE_TOKENS * row * (size_t)(session->end - session->first);
}

sn_status sn_core_quota_open(const sn_core *core, const uint8_t client[SN_KEY_SIZE], sn_err *err) {
    size_t open = 0;
    for (size_t i = 0; i < sn_sessions_count(core->sessions); i++) {
        const sn_session *session = sn_sessions_at(core->sessions, i);
        open += !session->closing && !memcmp(session->owner, client, SN_KEY_SIZE);
    }
    return sn_quota_session(core->quota, open, err);
}

/* The step's tensor may be of any shape yet. */
sn_status sn_core_quota_step(sn_core *core, const sn_session *session, const sn_msg *msg, int64_t now_us, sn_err *err) {
    sn_status status = sn_quota_step(core->quota, session->owner, now_us, err);
    uint64_t rows = msg->tensor.rank ? msg->tensor.shape[0] : 0, end = msg->step.position + rows;
    if (status || rows > SN_SPAN_ROWS_MAX || end > (uint64_t)session->max_tokens) return status; /* refused later */
    size_t bytes = kv_bytes(core, session, (int)end);
    for (size_t i = 0; i < sn_sessions_count(core->sessions); i++) {
        const sn_session *other = sn_sessions_at(core->sessions, i);
        if (other != session && !memcmp(other->owner, session->owner, SN_KEY_SIZE))
            bytes += kv_bytes(core, other, other->length);
    }
    return sn_quota_kv(core->quota, bytes, err);
}

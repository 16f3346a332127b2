/* Which nodes may check a log, and the chains over them: those that signed an entry of it, banned ones, those that gave
 * other results as auditors than the nodes that were right, and for a while those that failed may not. */
#include "client/audit/audit_private.h"

#include "base/clock.h"
#include "model/source.h"

#include <string.h>

static const int64_t FAILED_US = 60000000; /* how long a node that failed is not asked again */

static const uint8_t *entry_signer(const sn_audit_entry *e, size_t hop) {
    return e->receipts + hop * SN_RECEIPT_SIZE + 16;
}

/* Whether the node signed an entry of the log: it may then not check it. */
static bool log_has_signer(const sn_audit_log *l, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->entries[i].n_hops; k++)
            if (!memcmp(entry_signer(&l->entries[i], k), node, SN_KEY_SIZE)) return true;
    return false;
}

static bool audit_avoids_node(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const sn_audit *a = ctx;
    int64_t now_us = sn_now_us();
    for (size_t i = 0; i < a->n_excluded; i++)
        if (!memcmp(a->excluded[i], node, SN_KEY_SIZE)) return true;
    for (size_t i = 0; i < a->n_avoided && i < SN_AUDIT_AVOIDED_MAX; i++)
        if (a->avoided[i].until_us > now_us && !memcmp(a->avoided[i].node, node, SN_KEY_SIZE)) return true;
    return sn_audit_is_banned(ctx, node) || (a->log_in_check && log_has_signer(a->log_in_check, node));
}

void sn_audit_avoid(sn_audit *a, const uint8_t node[SN_KEY_SIZE], int64_t until_us) {
    sn_audit_avoided *avoided = &a->avoided[a->n_avoided++ % SN_AUDIT_AVOIDED_MAX];
    avoided->until_us = until_us;
    memcpy(avoided->node, node, SN_KEY_SIZE);
}

bool sn_audit_forgive_failures(sn_audit *a) {
    int64_t now_us = sn_now_us();
    bool any = false;
    for (size_t i = 0; i < SN_AUDIT_AVOIDED_MAX; i++) {
        if (a->avoided[i].until_us <= now_us || a->avoided[i].until_us == INT64_MAX) continue;
        a->avoided[i].until_us = 0;
        any = true;
    }
    return any;
}

static void audit_note_failure(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    sn_audit_avoid(ctx, node, sn_now_us() + FAILED_US);
}

static bool audit_holds_blocks(const sn_audit *a, const sn_audit_log *l) {
    for (int b = l->first; b < l->end; b++)
        if (!sn_model_holds_block(a->options.model, b)) return false;
    return a->options.device != NULL;
}

sn_status sn_audit_open_chain(sn_audit *a, const sn_audit_log *l, const sn_chain *audited, bool local,
                              const bool *cut_at, sn_chain **out, sn_err *err) {
    sn_chain_options options = sn_chain_twin_options(audited, l->first, l->end);
    if (a->options.max_tokens) /* the history has the virtual tokens */
        options.max_tokens = a->options.max_tokens + sn_chain_get_adapter(audited)->n_prompt;
    options.limits.timeout_ms = a->options.timeout_ms;
    options.verification.receipts = true;
    options.routing.cut_at = cut_at;
    options.routing.node_filter = a->options.node_filter;
    options.routing.avoid = audit_avoids_node;
    options.routing.note_failure = audit_note_failure;
    options.routing.avoid_ctx = a;
    if (local && !audit_holds_blocks(a, l))
        return sn_fail(err, SN_RETRY, "the model's file here does not hold blocks %d:%d", l->first, l->end);
    if (local)
        options.local = (sn_chain_local){.device = a->options.device, .first = l->first, .end = l->end};
    else
        options.link = a->options.link;
    a->log_in_check = l;
    return sn_chain_open(a->options.model, &options, out, err);
}

bool sn_audit_auditor_is_avoided(sn_audit *a, const sn_audit_log *l) {
    size_t n;
    const sn_hop *hops = sn_chain_route_hops(l->auditor, &n);
    a->log_in_check = l;
    for (size_t i = 0; i < n; i++)
        if (!hops[i].is_local && audit_avoids_node(a, hops[i].remote.node)) return true;
    return false;
}

/* Receipts of a step's nodes, checked when they arrive: each must be about this step, and every node must have received
 * what the node before it sent. Such faults show at once; whether the numbers are right only an audit finds out. */
#include "client/chain/hop.h"

#include <string.h>

static const char *receipt_mismatch(const sn_hop *hop, const sn_receipt *r, const sn_trace *trace,
                                    const sn_step *step) {
    const sn_hop_remote *remote = &hop->remote;
    if (memcmp(r->node, remote->node, SN_KEY_SIZE)) return "another node signed it";
    if (memcmp(r->session, remote->session, SN_SESSION_ID_SIZE) || r->step != remote->step + 1)
        return "it is about another step";
    if (memcmp(r->model, remote->model.bytes, SN_HASH_SIZE) || memcmp(&r->weights, &remote->weights, SN_HASH_SIZE) ||
        r->first_block != (uint32_t)hop->first || r->end_block != (uint32_t)hop->end)
        return "it is about other blocks";
    if (r->position != (uint64_t)step->position || r->n != (uint32_t)step->n) return "it is about other tokens";
    if (r->n_embd != (uint32_t)step->n_embd) return "it is about rows of another width";
    if (memcmp(&r->timeline_before, &remote->timeline[step->position], SN_HASH_SIZE) ||
        memcmp(&r->timeline_after, trace->timeline, SN_HASH_SIZE))
        return "it is about another timeline";
    if (r->input_dtype != (uint8_t)hop->input_dtype || r->output_dtype != (uint8_t)hop->output_dtype)
        return "hidden states came or went as another type than was asked for";
    if (r->kv_dtype != (uint8_t)remote->kv_dtype) return "keys and values are kept in another type than was asked for";
    return NULL;
}

static bool hash_is_of_tensor(const sn_hash *hash, const sn_wire_tensor *t) {
    sn_hash real = sn_hash_of(t->data, t->bytes);
    return !memcmp(hash, &real, sizeof real);
}

sn_status sn_hops_check_receipts(sn_hop *hops, size_t n_hops, const sn_hash *sent, const sn_msg *result,
                                 const sn_step *step, size_t *failed, sn_err *err) {
    const sn_msg_step_reply *reply = &result->step_reply;
    sn_receipt opened[SN_HOPS_MAX];
    *failed = n_hops - 1;
    if (reply->n_receipts != n_hops)
        return sn_fail(err, SN_RETRY, "%zu receipts came from %zu nodes", reply->n_receipts, n_hops);
    for (size_t i = 0; i < n_hops; i++) {
        const sn_blob *sealed = &reply->receipts[i];
        sn_receipt *r = &opened[i];
        const char *node = hops[i].report.node, *wrong = NULL;
        sn_err reason = {0};
        *failed = i;
        if (sn_receipt_open(sealed->data, sealed->len, r, &reason)) wrong = reason.text;
        if (!wrong) wrong = receipt_mismatch(&hops[i], r, &reply->trace[i], step);
        if (!wrong && !i && memcmp(&r->input, sent, sizeof *sent)) wrong = "it is about another input";
        if (!wrong && i + 1 == n_hops && !hash_is_of_tensor(&r->output, &result->tensor))
            wrong = "it is about another output";
        if (wrong) return sn_fail(err, SN_RETRY, "the receipt of %s is not valid: %.200s", node, wrong);
        if (i && (memcmp(&r->input, &r[-1].output, sizeof r->input) || r->input_dtype != r[-1].output_dtype)) {
            *failed = n_hops; /* either of the two; without pushing between them it will show which */
            return sn_fail(err, SN_RETRY, "%s signed other bytes as sent than %s signed as received",
                           hops[i - 1].report.node, node);
        }
    }
    for (size_t i = 0; i < n_hops; i++) {
        memcpy(hops[i].remote.receipt, reply->receipts[i].data, SN_RECEIPT_SIZE);
        hops[i].remote.last_receipt = opened[i];
    }
    return SN_OK;
}

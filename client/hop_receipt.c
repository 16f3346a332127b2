/* Receipts of a step's nodes, checked on arrival: each must speak of this very step, and what one node sent must be what
 * the next one got. What is wrong here shows at once; whether the numbers are right is the audit's to find out. */
#include "client/hop.h"

#include "net/receipt.h"

#include <string.h>

static const char *what_differs(const sn_hop_at *hop, const sn_receipt *r, const sn_trace *trace, int position, int n) {
    if (memcmp(r->node, hop->node, SN_KEY_SIZE)) return "another node signed it";
    if (memcmp(r->session, hop->session, SN_SESSION_ID_SIZE) || r->step != hop->step + 1)
        return "it is about another step";
    if (memcmp(r->model, hop->model.bytes, SN_HASH_SIZE) || memcmp(&r->weights, &hop->weights, sizeof r->weights) ||
        r->first_block != (uint32_t)hop->first || r->end_block != (uint32_t)hop->end)
        return "it is about other blocks";
    if (r->position != (uint64_t)position || r->n != (uint32_t)n) return "it is about other tokens";
    if (memcmp(&r->timeline_before, &hop->timeline[position], SN_HASH_SIZE) ||
        memcmp(&r->timeline_after, trace->timeline, SN_HASH_SIZE))
        return "it is about another timeline";
    return NULL;
}

static bool is_hash_of(const sn_hash *hash, const sn_wire_tensor *t) {
    sn_hash real = sn_hash_of(t->data, t->bytes);
    return !memcmp(hash, &real, sizeof real);
}

sn_status sn_hops_take_receipts(sn_hop_at *hops, size_t n_hops, const sn_hash *sent, const sn_msg *result,
                                int position, int n, size_t *failed, sn_err *err) {
    const sn_msg_result *answer = &result->result;
    sn_receipt r, before = {0};
    *failed = n_hops - 1;
    if (answer->n_receipts != n_hops)
        return sn_fail(err, SN_RETRY, "%zu receipts came from %zu nodes", answer->n_receipts, n_hops);
    sn_receipt said[SN_HOPS_MAX];
    for (size_t i = 0; i < n_hops; i++, before = r) {
        const sn_blob *sealed = &answer->receipts[i];
        const char *node = hops[i].report.node, *wrong = NULL;
        sn_err reason = {0};
        *failed = i;
        if (sn_receipt_open(sealed->data, sealed->len, &r, &reason)) wrong = reason.text;
        if (!wrong) wrong = what_differs(&hops[i], &r, &answer->trace[i], position, n);
        if (!wrong && (r.input_dtype != (uint8_t)hops[i].takes || r.output_dtype != (uint8_t)hops[i].gives))
            wrong = "hidden states came or went as another type than was asked for";
        if (!wrong && !i && memcmp(&r.input, sent, sizeof *sent)) wrong = "it is about another input";
        if (!wrong && i + 1 == n_hops && !is_hash_of(&r.output, &result->tensor))
            wrong = "it is about another output";
        if (wrong) return sn_fail(err, SN_RETRY, "the receipt of %s is worth nothing: %.200s", node, wrong);
        if (i && (memcmp(&r.input, &before.output, sizeof r.input) || r.input_dtype != before.output_dtype)) {
            *failed = n_hops; /* one of the two: with the client between them it will show which */
            return sn_fail(err, SN_RETRY, "what %s signed as sent is not what %s signed as got",
                           hops[i - 1].report.node, node);
        }
        said[i] = r;
    }
    for (size_t i = 0; i < n_hops; i++) {
        memcpy(hops[i].receipt, answer->receipts[i].data, SN_RECEIPT_SIZE);
        hops[i].said = said[i];
    }
    return SN_OK;
}

/* Receipts (net/receipt.h): what this node signs about a step. In a chain that pushes, the receipts of the nodes before
 * this one travel with the step, and this node appends its own. */
#include "node/protocol/protocol_private.h"

#include "base/mem.h"
#include "net/receipt.h"

#include <string.h>

void sn_protocol_record_input(const sn_protocol *protocol, sn_session *session, int position) {
    const sn_msg *request = session->pending.request_msg;
    session->receipt.timeline_before = session->timeline[position];
    session->receipt.recorded = request->step.wants_receipt != 0;
    if (!session->receipt.recorded) return;
    session->receipt.dtype = request->tensor.dtype;
    sn_hasher_add(protocol->hasher, request->tensor.data, request->tensor.bytes);
    session->receipt.tensor = sn_hasher_end(protocol->hasher);
}

static sn_receipt receipt_describe(const sn_protocol *protocol, const sn_session *session,
                                   const sn_wire_tensor *output) {
    const sn_span_info *span = &protocol->setup.span;
    sn_receipt r = {
        .timeline_before = session->receipt.timeline_before,
        .input = session->receipt.tensor,
        .step = session->last_reply.step,
        .position = (uint64_t)session->last_reply.position,
        .unix_ms = (uint64_t)protocol->unix_ms,
        .first_block = (uint32_t)session->first,
        .end_block = (uint32_t)session->end,
        .n = (uint32_t)session->last_reply.n_tokens,
        .n_embd = (uint32_t)protocol->hp->n_embd,
        .input_dtype = (uint8_t)session->receipt.dtype,
        .output_dtype = (uint8_t)output->dtype,
        .kv_dtype = (uint8_t)sn_kv_dtype_element(span->kv_dtype),
        .device = (uint8_t)((span->exact ? SN_RECEIPT_EXACT : SN_RECEIPT_APPROXIMATE) |
                            (session->migration.imported ? SN_RECEIPT_CONTINUED : 0)),
        .version = SN_VERSION,
    };
    memcpy(r.session, session->id, SN_SESSION_ID_SIZE);
    memcpy(r.model, protocol->setup.model.bytes, SN_HASH_SIZE);
    memcpy(&r.timeline_after, session->last_reply.trace.timeline, SN_HASH_SIZE);
    sn_hash blocks[SN_SPAN_BLOCKS_MAX];
    for (int b = session->first; b < session->end; b++) blocks[b - session->first] = sn_span_info_hash_with_kv(span, b);
    r.weights = sn_hash_of(blocks, (size_t)(session->end - session->first) * SN_HASH_SIZE);
    sn_hasher_add(protocol->hasher, output->data, output->bytes);
    r.output = sn_hasher_end(protocol->hasher);
    return r;
}

sn_status sn_protocol_add_receipt(const sn_protocol *protocol, const sn_session *session, const sn_msg_step *request,
                                  const sn_wire_tensor *output, sn_blob **out, size_t *n, sn_err *err) {
    if (!session->receipt.recorded)
        return sn_fail(err, SN_REFUSED,
                       "a receipt must be asked for when a step is first sent, not when it is repeated");
    size_t count = request->n_receipts + 1;
    sn_status status = sn_list_new(count, SN_HOPS_MAX, sizeof **out, out, err);
    for (*n = 0; *n < count && !status; ++*n) {
        sn_blob *to = &(*out)[*n];
        if ((status = sn_calloc(&to->data, SN_RECEIPT_SIZE, 1, err))) return status;
        to->len = SN_RECEIPT_SIZE;
        if (*n < request->n_receipts) {
            memcpy(to->data, request->receipts[*n].data, SN_RECEIPT_SIZE);
            continue;
        }
        sn_receipt own = receipt_describe(protocol, session, output);
        status = sn_receipt_seal(&own, protocol->setup.identity, to->data, err);
    }
    return status;
}

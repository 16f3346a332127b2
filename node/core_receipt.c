/* Receipts: what this node signs about a step, behind those of the nodes that the step came over. */
#include "node/core_private.h"

#include "base/mem.h"
#include "net/receipt.h"

#include <string.h>

void sn_core_note_step(const sn_core *core, sn_session *session, int position) {
    const sn_msg *asked = session->asked;
    session->last_before = session->timeline[position];
    session->last_noted = asked->step.receipt != 0;
    if (!session->last_noted) return;
    session->last_input_dtype = asked->tensor.dtype;
    sn_hasher_add(core->hasher, asked->tensor.data, asked->tensor.bytes);
    session->last_input = sn_hasher_end(core->hasher);
}

sn_status sn_core_check_receipts(const sn_msg_step *step, sn_err *err) {
    for (size_t i = 0; i < step->n_receipts; i++)
        if (step->receipts[i].len != SN_RECEIPT_SIZE)
            return sn_fail(err, SN_REFUSED, "a receipt has %d bytes, one that came with the step has %zu",
                           SN_RECEIPT_SIZE, step->receipts[i].len);
    if (step->n_receipts > step->n_trace)
        return sn_fail(err, SN_REFUSED, "%zu receipts came with the trace of %zu nodes", step->n_receipts,
                       step->n_trace);
    return SN_OK;
}

static sn_receipt describe(const sn_core *core, const sn_session *session, const sn_wire_tensor *output) {
    const sn_span_facts *span = &core->setup.span;
    sn_receipt r = {
        .timeline_before = session->last_before,
        .input = session->last_input,
        .step = session->last_step,
        .position = (uint64_t)session->last_position,
        .unix_ms = (uint64_t)core->unix_ms,
        .first_block = (uint32_t)session->first,
        .end_block = (uint32_t)session->end,
        .n = (uint32_t)session->last_tokens,
        .n_embd = (uint32_t)core->hp->n_embd,
        .input_dtype = (uint8_t)session->last_input_dtype,
        .output_dtype = (uint8_t)output->dtype,
        .kv_dtype = SN_F32,
        .device = span->exact ? SN_RECEIPT_EXACT : SN_RECEIPT_CLOSE,
        .version = SN_VERSION,
    };
    memcpy(r.session, session->id, SN_SESSION_ID_SIZE);
    memcpy(r.model, core->setup.model.bytes, SN_HASH_SIZE);
    memcpy(&r.timeline_after, session->last_trace.timeline, SN_HASH_SIZE);
    r.weights = sn_hash_of(span->block_hash + (session->first - span->first),
                           (size_t)(session->end - session->first) * SN_HASH_SIZE);
    sn_hasher_add(core->hasher, output->data, output->bytes);
    r.output = sn_hasher_end(core->hasher);
    return r;
}

sn_status sn_core_add_receipt(const sn_core *core, const sn_session *session, const sn_msg_step *asked,
                              const sn_wire_tensor *output, sn_blob **out, size_t *n, sn_err *err) {
    if (!session->last_noted)
        return sn_fail(err, SN_REFUSED, "a receipt must be asked for when a step is first sent, not when it is repeated");
    size_t count = asked->n_receipts + 1;
    sn_status status = sn_list_new(count, SN_HOPS_MAX, sizeof **out, out, err);
    for (*n = 0; *n < count && !status; ++*n) {
        sn_blob *to = &(*out)[*n];
        if ((status = sn_calloc(&to->data, SN_RECEIPT_SIZE, 1, err))) return status;
        to->len = SN_RECEIPT_SIZE;
        if (*n < asked->n_receipts) {
            memcpy(to->data, asked->receipts[*n].data, SN_RECEIPT_SIZE);
            continue;
        }
        sn_receipt own = describe(core, session, output);
        status = sn_receipt_seal(&own, core->setup.identity, to->data, err);
    }
    return status;
}

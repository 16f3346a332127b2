#include "net/receipt.h"

#include "net/codec.h"

#include <string.h>

enum { SIGNED = SN_RECEIPT_SIZE - SN_SIGNATURE_SIZE, TAG_SIZE = 16 };

static const char tag[TAG_SIZE] = "swarm receipt 1"; /* with its zero */

/* Goes over the fields in the order of their bytes, writing or reading: one list for both. */
typedef struct cursor {
    uint8_t *at;
    bool write;
} cursor;

static void bytes(cursor *c, void *value, size_t n) {
    if (c->write)
        memcpy(c->at, value, n);
    else
        memcpy(value, c->at, n);
    c->at += n;
}

static void number(cursor *c, uint64_t *value, int n) {
    if (!c->write) *value = 0;
    for (int i = 0; i < n; i++) {
        if (c->write)
            c->at[i] = (uint8_t)(*value >> 8 * i);
        else
            *value |= (uint64_t)c->at[i] << 8 * i;
    }
    c->at += n;
}

static void number32(cursor *c, uint32_t *value) {
    uint64_t wide = *value;
    number(c, &wide, 4);
    *value = (uint32_t)wide;
}

static void walk(cursor *c, sn_receipt *r) {
    c->at += TAG_SIZE;
    bytes(c, r->node, SN_KEY_SIZE);
    bytes(c, r->session, SN_SESSION_ID_SIZE);
    bytes(c, r->model, SN_HASH_SIZE);
    bytes(c, &r->weights, SN_HASH_SIZE);
    bytes(c, &r->timeline_before, SN_HASH_SIZE);
    bytes(c, &r->timeline_after, SN_HASH_SIZE);
    bytes(c, &r->input, SN_HASH_SIZE);
    bytes(c, &r->output, SN_HASH_SIZE);
    number(c, &r->step, 8);
    number(c, &r->position, 8);
    number(c, &r->unix_ms, 8);
    number32(c, &r->first_block);
    number32(c, &r->end_block);
    number32(c, &r->n);
    number32(c, &r->n_embd);
    bytes(c, &r->input_dtype, 1);
    bytes(c, &r->output_dtype, 1);
    bytes(c, &r->kv_dtype, 1);
    bytes(c, &r->device, 1);
    bytes(c, r->version, SN_RECEIPT_VERSION_SIZE);
}

sn_status sn_receipt_seal(const sn_receipt *receipt, const sn_identity *identity, uint8_t out[SN_RECEIPT_SIZE],
                          sn_err *err) {
    sn_receipt copy = *receipt;
    cursor c = {out, true};
    size_t used = strnlen(copy.version, sizeof copy.version - 1);
    memset(copy.version + used, 0, sizeof copy.version - used);
    memcpy(copy.node, identity->id, SN_KEY_SIZE);
    memcpy(out, tag, TAG_SIZE);
    walk(&c, &copy);
    return sn_sign(identity, out, SIGNED, out + SIGNED, err);
}

sn_status sn_receipt_open(const void *data, size_t len, sn_receipt *out, sn_err *err) {
    uint8_t copy[SN_RECEIPT_SIZE];
    if (len != SN_RECEIPT_SIZE)
        return sn_fail(err, SN_REFUSED, "a receipt has %d bytes, this one %zu", SN_RECEIPT_SIZE, len);
    memcpy(copy, data, len);
    if (memcmp(copy, tag, TAG_SIZE)) return sn_fail(err, SN_REFUSED, "it does not begin as a receipt of this version");
    cursor c = {copy, false};
    *out = (sn_receipt){0};
    walk(&c, out);
    if (!sn_verify(out->node, copy, SIGNED, copy + SIGNED))
        return sn_fail(err, SN_REFUSED, "its signature was not made by the node that it names");
    if (out->first_block >= out->end_block || !out->n || !out->n_embd || out->position > INT32_MAX ||
        out->n > INT32_MAX - out->position)
        return sn_fail(err, SN_REFUSED, "its blocks, tokens or position are none");
    if (out->device > SN_RECEIPT_CLOSE || !sn_is_printable(out->version, strlen(out->version)))
        return sn_fail(err, SN_REFUSED, "it names a device or version that is none");
    return SN_OK;
}

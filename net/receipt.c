#include "net/receipt.h"

#include "base/mem.h"
#include "base/wire.h"
#include "net/codec_private.h"

#include <stdlib.h>
#include <string.h>

enum { SIGNED_SIZE = SN_RECEIPT_SIZE - SN_SIGNATURE_SIZE, TAG_SIZE = 16 };

static const char receipt_tag[TAG_SIZE] = "swarm receipt 1"; /* with its NUL */

/* Writes or reads the fields in the order of their bytes: one list of fields for both. */
typedef struct cursor {
    uint8_t *at;
    bool write;
} cursor;

static void cursor_bytes(cursor *c, void *value, size_t n) {
    if (c->write)
        memcpy(c->at, value, n);
    else
        memcpy(value, c->at, n);
    c->at += n;
}

static void cursor_uint(cursor *c, uint64_t *value, int n) {
    if (!c->write) *value = 0;
    for (int i = 0; i < n; i++) {
        if (c->write)
            c->at[i] = (uint8_t)(*value >> 8 * i);
        else
            *value |= (uint64_t)c->at[i] << 8 * i;
    }
    c->at += n;
}

static void cursor_uint32(cursor *c, uint32_t *value) {
    uint64_t wide = *value;
    cursor_uint(c, &wide, 4);
    *value = (uint32_t)wide;
}

static void receipt_walk(cursor *c, sn_receipt *r) {
    c->at += TAG_SIZE;
    cursor_bytes(c, r->node, SN_KEY_SIZE);
    cursor_bytes(c, r->session, SN_SESSION_ID_SIZE);
    cursor_bytes(c, r->model, SN_HASH_SIZE);
    cursor_bytes(c, &r->weights, SN_HASH_SIZE);
    cursor_bytes(c, &r->timeline_before, SN_HASH_SIZE);
    cursor_bytes(c, &r->timeline_after, SN_HASH_SIZE);
    cursor_bytes(c, &r->input, SN_HASH_SIZE);
    cursor_bytes(c, &r->output, SN_HASH_SIZE);
    cursor_uint(c, &r->step, 8);
    cursor_uint(c, &r->position, 8);
    cursor_uint(c, &r->unix_ms, 8);
    cursor_uint32(c, &r->first_block);
    cursor_uint32(c, &r->end_block);
    cursor_uint32(c, &r->n);
    cursor_uint32(c, &r->n_embd);
    cursor_bytes(c, &r->input_dtype, 1);
    cursor_bytes(c, &r->output_dtype, 1);
    cursor_bytes(c, &r->kv_dtype, 1);
    cursor_bytes(c, &r->device, 1);
    cursor_bytes(c, r->version, SN_RECEIPT_VERSION_SIZE);
}

sn_status sn_receipt_seal(const sn_receipt *receipt, const sn_identity *identity, uint8_t out[SN_RECEIPT_SIZE],
                          sn_err *err) {
    sn_receipt copy = *receipt;
    cursor c = {out, true};
    size_t used = strnlen(copy.version, sizeof copy.version - 1);
    memset(copy.version + used, 0, sizeof copy.version - used);
    memcpy(copy.node, identity->id, SN_KEY_SIZE);
    memcpy(out, receipt_tag, TAG_SIZE);
    receipt_walk(&c, &copy);
    return sn_sign(identity, out, SIGNED_SIZE, out + SIGNED_SIZE, err);
}

sn_status sn_receipt_open(const void *data, size_t len, sn_receipt *out, sn_err *err) {
    uint8_t copy[SN_RECEIPT_SIZE];
    if (len != SN_RECEIPT_SIZE)
        return sn_fail(err, SN_REFUSED, "a receipt has %d bytes, this one %zu", SN_RECEIPT_SIZE, len);
    memcpy(copy, data, len);
    if (memcmp(copy, receipt_tag, TAG_SIZE))
        return sn_fail(err, SN_REFUSED, "it does not begin as a receipt of this version");
    cursor c = {copy, false};
    *out = (sn_receipt){0};
    receipt_walk(&c, out);
    if (!sn_verify(out->node, copy, SIGNED_SIZE, copy + SIGNED_SIZE))
        return sn_fail(err, SN_REFUSED, "its signature was not made by the node that it names");
    if (out->first_block >= out->end_block || !out->n || !out->n_embd || out->position > INT32_MAX ||
        out->n > INT32_MAX - out->position)
        return sn_fail(err, SN_REFUSED, "its blocks, tokens or position are out of range");
    if (out->device > (SN_RECEIPT_APPROXIMATE | SN_RECEIPT_CONTINUED) ||
        !sn_is_printable(out->version, strlen(out->version)))
        return sn_fail(err, SN_REFUSED, "it names a device or a version that does not exist");
    return SN_OK;
}

sn_status sn_rows_hash_add(sn_hasher *hasher, const float *rows, int n, int n_embd, sn_dtype dtype, sn_err *err) {
    size_t count = (size_t)n * (size_t)n_embd;
    void *wire = NULL;
    size_t bytes;
    if (dtype == SN_F32) {
        sn_hasher_add(hasher, rows, count * sizeof *rows);
        return SN_OK;
    }
    if (!sn_is_wire_dtype(dtype))
        return sn_fail(err, SN_REFUSED, "hidden states do not travel as %s", sn_dtype_name(dtype));
    sn_status status = sn_dtype_row_bytes(dtype, (size_t)n_embd, &bytes, err);
    if (!status) status = sn_calloc(&wire, (size_t)n, bytes, err);
    if (status) return status;
    sn_wire_encode(dtype, rows, count, wire);
    sn_hasher_add(hasher, wire, (size_t)n * bytes);
    free(wire);
    return SN_OK;
}

sn_status sn_rows_hash(const float *rows, int n, int n_embd, sn_dtype dtype, sn_hash *out, sn_err *err) {
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return sn_fail(err, SN_STOP, "out of memory");
    sn_status status = sn_rows_hash_add(hasher, rows, n, n_embd, dtype, err);
    *out = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return status;
}

#include "text/tokenizer/protobuf.h"

#include <string.h>

enum { TYPE_DOUBLE = 1, VARINT_BYTES = 10 };

/* Seven bits a byte, the lowest first; the last byte has no high bit. */
static bool read_varint(sn_protobuf *m, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < VARINT_BYTES && m->at < m->end; i++) {
        const uint8_t byte = *m->at++;
        *out |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static bool read_bytes(sn_protobuf *m, uint64_t len, sn_protobuf_field *out) {
    if (len > (uint64_t)(m->end - m->at)) return false;
    out->bytes = m->at;
    out->len = (size_t)len;
    m->at += len;
    return true;
}

static float little_endian_float(const uint8_t *b) {
    const uint32_t bits = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static bool read_value(sn_protobuf *m, sn_protobuf_field *out) {
    uint64_t len;
    switch (out->type) {
    case SN_PROTOBUF_INT:
        return read_varint(m, &out->integer);
    case SN_PROTOBUF_BYTES:
        return read_varint(m, &len) && read_bytes(m, len, out);
    case SN_PROTOBUF_FLOAT:
        if (!read_bytes(m, 4, out)) return false;
        out->real = little_endian_float(out->bytes);
        return true;
    case TYPE_DOUBLE:
        return read_bytes(m, 8, out);
    default:
        return false;
    }
}

bool sn_protobuf_next(sn_protobuf *message, sn_protobuf_field *out) {
    uint64_t key;
    *out = (sn_protobuf_field){0};
    if (message->damaged || message->at == message->end) return false;
    message->damaged = !read_varint(message, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX;
    if (message->damaged) return false;
    out->number = (uint32_t)(key >> 3);
    out->type = key & 7;
    message->damaged = !read_value(message, out);
    return !message->damaged;
}

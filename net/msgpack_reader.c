#include "net/msgpack_reader_private.h"

/* One entry for each first byte 0xc0 to 0xdf: a big-endian number of `width` bytes follows it (a value, length or
 * count), then `extra` bytes, and the bytes that a length counts. */
static const struct form {
    int8_t
        type; /* sn_msgpack_type; -1: the byte that the format never uses; -2: an extension, whose number is a length */
    uint8_t width, extra;
} forms[32] = {
    /* clang-format off */
    {SN_MSGPACK_OTHER, 0, 0}, {-1, 0, 0}, {SN_MSGPACK_OTHER, 0, 0}, {SN_MSGPACK_OTHER, 0, 0},     /* nil, -, false, true */
    {SN_MSGPACK_BIN, 1, 0}, {SN_MSGPACK_BIN, 2, 0}, {SN_MSGPACK_BIN, 4, 0},                       /* bin 8, 16, 32 */
    {-2, 1, 1}, {-2, 2, 1}, {-2, 4, 1},                                                           /* ext 8, 16, 32 */
    {SN_MSGPACK_OTHER, 0, 4}, {SN_MSGPACK_OTHER, 0, 8},                                           /* float 32, 64 */
    {SN_MSGPACK_UINT, 1, 0}, {SN_MSGPACK_UINT, 2, 0}, {SN_MSGPACK_UINT, 4, 0}, {SN_MSGPACK_UINT, 8, 0},     /* uint */
    {SN_MSGPACK_OTHER, 0, 1}, {SN_MSGPACK_OTHER, 0, 2}, {SN_MSGPACK_OTHER, 0, 4}, {SN_MSGPACK_OTHER, 0, 8}, /* int */
    {SN_MSGPACK_OTHER, 0, 2}, {SN_MSGPACK_OTHER, 0, 3}, {SN_MSGPACK_OTHER, 0, 5}, {SN_MSGPACK_OTHER, 0, 9},
    {SN_MSGPACK_OTHER, 0, 17},                                                                    /* fixext 1 to 16 */
    {SN_MSGPACK_STR, 1, 0}, {SN_MSGPACK_STR, 2, 0}, {SN_MSGPACK_STR, 4, 0},                       /* str 8, 16, 32 */
    {SN_MSGPACK_ARRAY, 2, 0}, {SN_MSGPACK_ARRAY, 4, 0},                                           /* array 16, 32 */
    {SN_MSGPACK_MAP, 2, 0}, {SN_MSGPACK_MAP, 4, 0},                                               /* map 16, 32 */
    /* clang-format on */
};

static sn_status fail_truncated(sn_err *err) { return sn_fail(err, SN_REFUSED, "it ends in the middle of a value"); }

/* The forms whose number is part of the first byte. */
static bool read_short(uint8_t first, sn_msgpack_item *out) {
    if (first < 0x80)
        *out = (sn_msgpack_item){.type = SN_MSGPACK_UINT, .n = first};
    else if (first < 0x90)
        *out = (sn_msgpack_item){.type = SN_MSGPACK_MAP, .n = first & 15};
    else if (first < 0xa0)
        *out = (sn_msgpack_item){.type = SN_MSGPACK_ARRAY, .n = first & 15};
    else if (first < 0xc0)
        *out = (sn_msgpack_item){.type = SN_MSGPACK_STR, .n = first & 31};
    else if (first >= 0xe0)
        *out = (sn_msgpack_item){.type = SN_MSGPACK_OTHER};
    else
        return false;
    return true;
}

sn_status sn_msgpack_next(sn_msgpack_reader *reader, sn_msgpack_item *out, sn_err *err) {
    *out = (sn_msgpack_item){0};
    const uint8_t *at = reader->at;
    if (at == reader->end) return fail_truncated(err);
    uint8_t first = *at++;
    size_t extra = 0, payload = 0;
    bool extension = false;
    if (!read_short(first, out)) {
        const struct form form = forms[first - 0xc0];
        if (form.type == -1) return sn_fail(err, SN_REFUSED, "it holds the byte c1, which msgpack never uses");
        extension = form.type == -2;
        *out = (sn_msgpack_item){.type = extension ? SN_MSGPACK_OTHER : (sn_msgpack_type)form.type};
        if ((size_t)(reader->end - at) < form.width) return fail_truncated(err);
        for (int i = 0; i < form.width; i++) out->n = out->n << 8 | *at++;
        extra = form.extra;
    }
    size_t left = (size_t)(reader->end - at);
    if (out->type == SN_MSGPACK_STR || out->type == SN_MSGPACK_BIN || extension) payload = (size_t)out->n;
    /* An element takes at least one byte and a pair two: a count that the bytes left cannot hold is refused here. */
    if (out->type == SN_MSGPACK_ARRAY && out->n > left) return fail_truncated(err);
    if (out->type == SN_MSGPACK_MAP && out->n > left / 2) return fail_truncated(err);
    if (payload > left || extra > left - payload) return fail_truncated(err);
    if (out->type == SN_MSGPACK_STR || out->type == SN_MSGPACK_BIN) out->data = at;
    reader->at = at + payload + extra;
    return SN_OK;
}

sn_status sn_msgpack_skip(sn_msgpack_reader *reader, sn_err *err) {
    uint64_t left[SN_MSGPACK_DEPTH_MAX + 1] = {0}; /* values still to be read, at each depth */
    int depth = reader->depth;
    left[depth] = 1;
    for (;;) {
        while (!left[depth]) {
            if (depth == reader->depth) return SN_OK;
            depth--;
        }
        left[depth]--;
        sn_msgpack_item item;
        sn_status status = sn_msgpack_next(reader, &item, err);
        if (status) return status;
        if (item.type != SN_MSGPACK_ARRAY && item.type != SN_MSGPACK_MAP) continue;
        if (depth == SN_MSGPACK_DEPTH_MAX)
            return sn_fail(err, SN_REFUSED, "it nests maps and arrays deeper than the %d allowed",
                           SN_MSGPACK_DEPTH_MAX);
        left[++depth] = item.type == SN_MSGPACK_MAP ? 2 * item.n : item.n;
    }
}

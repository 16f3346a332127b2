#include "net/reader.h"

/* One row for each first byte 0xc0 to 0xdf: a big-endian number of `width` bytes follows (a value, length or count),
 * then `extra` bytes on top of what a length says. */
static const struct form {
    int8_t type; /* -1: the byte that the format never uses; -2: an extension, whose number is a length */
    uint8_t width, extra;
} forms[32] = {
    /* clang-format off: a table */
    {SN_ITEM_OTHER, 0, 0},
    {-1, 0, 0},
    {SN_ITEM_OTHER, 0, 0},
    {SN_ITEM_OTHER, 0, 0}, /* nil, -, false, true */
    {SN_ITEM_BIN, 1, 0},
    {SN_ITEM_BIN, 2, 0},
    {SN_ITEM_BIN, 4, 0}, /* bin */
    {-2, 1, 1},
    {-2, 2, 1},
    {-2, 4, 1}, /* ext */
    {SN_ITEM_OTHER, 0, 4},
    {SN_ITEM_OTHER, 0, 8}, /* float */
    {SN_ITEM_UINT, 1, 0},
    {SN_ITEM_UINT, 2, 0},
    {SN_ITEM_UINT, 4, 0},
    {SN_ITEM_UINT, 8, 0}, /* unsigned */
    {SN_ITEM_OTHER, 0, 1},
    {SN_ITEM_OTHER, 0, 2},
    {SN_ITEM_OTHER, 0, 4},
    {SN_ITEM_OTHER, 0, 8}, /* signed */
    {SN_ITEM_OTHER, 0, 2},
    {SN_ITEM_OTHER, 0, 3},
    {SN_ITEM_OTHER, 0, 5},
    {SN_ITEM_OTHER, 0, 9},  /* fixext 1 2 4 8 */
    {SN_ITEM_OTHER, 0, 17}, /* fixext 16 */
    {SN_ITEM_STR, 1, 0},
    {SN_ITEM_STR, 2, 0},
    {SN_ITEM_STR, 4, 0}, /* str */
    {SN_ITEM_ARRAY, 2, 0},
    {SN_ITEM_ARRAY, 4, 0}, /* array */
    {SN_ITEM_MAP, 2, 0},
    {SN_ITEM_MAP, 4, 0}, /* map */
    /* clang-format on */
};

static sn_status cut_short(sn_err *err) { return sn_fail(err, SN_REFUSED, "it ends in the middle of a value"); }

/* The forms whose number stands in the first byte itself. */
static bool read_short(uint8_t first, sn_item *out) {
    if (first < 0x80)
        *out = (sn_item){.type = SN_ITEM_UINT, .n = first};
    else if (first < 0x90)
        *out = (sn_item){.type = SN_ITEM_MAP, .n = first & 15};
    else if (first < 0xa0)
        *out = (sn_item){.type = SN_ITEM_ARRAY, .n = first & 15};
    else if (first < 0xc0)
        *out = (sn_item){.type = SN_ITEM_STR, .n = first & 31};
    else if (first >= 0xe0)
        *out = (sn_item){.type = SN_ITEM_OTHER};
    else
        return false;
    return true;
}

sn_status sn_reader_next(sn_reader *reader, sn_item *out, sn_err *err) {
    *out = (sn_item){0};
    const uint8_t *at = reader->at;
    if (at == reader->end) return cut_short(err);
    uint8_t first = *at++;
    size_t extra = 0, payload = 0;
    bool extension = false;
    if (!read_short(first, out)) {
        const struct form form = forms[first - 0xc0];
        if (form.type == -1) return sn_fail(err, SN_REFUSED, "it holds the byte c1, which msgpack never uses");
        extension = form.type == -2;
        *out = (sn_item){.type = extension ? SN_ITEM_OTHER : (sn_item_type)form.type};
        if ((size_t)(reader->end - at) < form.width) return cut_short(err);
        for (int i = 0; i < form.width; i++) out->n = out->n << 8 | *at++;
        extra = form.extra;
    }
    size_t left = (size_t)(reader->end - at);
    if (out->type == SN_ITEM_STR || out->type == SN_ITEM_BIN || extension) payload = (size_t)out->n;
    /* An element takes a byte at least, a pair two: what claims more than could follow is refused before it is counted.
     */
    if (out->type == SN_ITEM_ARRAY && out->n > left) return cut_short(err);
    if (out->type == SN_ITEM_MAP && out->n > left / 2) return cut_short(err);
    if (payload > left || extra > left - payload) return cut_short(err);
    if (out->type == SN_ITEM_STR || out->type == SN_ITEM_BIN) out->data = at;
    reader->at = at + payload + extra;
    return SN_OK;
}

sn_status sn_reader_skip(sn_reader *reader, sn_err *err) {
    uint64_t left[SN_DEPTH_MAX + 1] = {0}; /* values still to be read, at each depth */
    int depth = reader->depth;
    left[depth] = 1;
    for (;;) {
        while (!left[depth]) {
            if (depth == reader->depth) return SN_OK;
            depth--;
        }
        left[depth]--;
        sn_item item;
        sn_status status = sn_reader_next(reader, &item, err);
        if (status) return status;
        if (item.type != SN_ITEM_ARRAY && item.type != SN_ITEM_MAP) continue;
        if (depth == SN_DEPTH_MAX)
            return sn_fail(err, SN_REFUSED, "it nests maps and arrays deeper than the %d allowed", SN_DEPTH_MAX);
        left[++depth] = item.type == SN_ITEM_MAP ? 2 * item.n : item.n;
    }
}

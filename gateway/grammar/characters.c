/* Classes of characters as nodes over the bytes of UTF-8 (RFC 3629), plain or inside a JSON string (RFC 8259). */
#include "gateway/grammar/grammar_private.h"

#include <stdio.h>
#include <string.h>

enum { SURROGATES = 0xD800, AFTER_SURROGATES = 0xE000 };

bool sn_char_class_add(sn_char_class *c, uint32_t lo, uint32_t hi) {
    int at = 0, end;
    while (at < c->n && c->ranges[at].hi + 1 < lo) at++; /* the first range that is not wholly before */
    for (end = at; end < c->n && c->ranges[end].lo <= hi + 1; end++) {
        if (c->ranges[end].lo < lo) lo = c->ranges[end].lo;
        if (c->ranges[end].hi > hi) hi = c->ranges[end].hi;
    }
    if (end == at && c->n == (int)(sizeof c->ranges / sizeof *c->ranges)) return false;
    memmove(&c->ranges[at + 1], &c->ranges[end], (size_t)(c->n - end) * sizeof *c->ranges);
    c->n += 1 - (end - at);
    c->ranges[at].lo = lo;
    c->ranges[at].hi = hi;
    return true;
}

bool sn_char_class_invert(sn_char_class *c) {
    sn_char_class all = *c, out = {.n = 0};
    if (!sn_char_class_add(&all, SURROGATES, AFTER_SURROGATES - 1)) return false;
    uint32_t from = 0;
    for (int i = 0; i < all.n; i++) {
        if (all.ranges[i].lo > from && !sn_char_class_add(&out, from, all.ranges[i].lo - 1)) return false;
        from = all.ranges[i].hi + 1;
    }
    if (from <= SN_CHAR_MAX && !sn_char_class_add(&out, from, SN_CHAR_MAX)) return false;
    *c = out;
    return true;
}

static int encode_utf8(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

/* The code points [lo, hi] as UTF-8: cut until all bytes of a piece vary independently of each other. */
static int add_utf8_range(sn_grammar *g, uint32_t lo, uint32_t hi, int next) {
    static const uint32_t last_of_length[] = {0x7F, 0x7FF, SURROGATES - 1, AFTER_SURROGATES - 1, 0xFFFF};
    for (size_t i = 0; i < sizeof last_of_length / sizeof *last_of_length; i++)
        if (lo <= last_of_length[i] && last_of_length[i] < hi)
            return sn_add_split(g, add_utf8_range(g, lo, last_of_length[i], next),
                                add_utf8_range(g, last_of_length[i] + 1, hi, next));
    if (lo >= SURROGATES && lo < AFTER_SURROGATES) return sn_add_fail(g);
    for (uint32_t i = 1; i < 4 && hi > 0x7F; i++) {
        uint32_t tail = (1u << (6 * i)) - 1;
        if ((lo & ~tail) == (hi & ~tail)) continue;
        if (lo & tail)
            return sn_add_split(g, add_utf8_range(g, lo, lo | tail, next),
                                add_utf8_range(g, (lo | tail) + 1, hi, next));
        if ((hi & tail) != tail)
            return sn_add_split(g, add_utf8_range(g, lo, (hi & ~tail) - 1, next),
                                add_utf8_range(g, hi & ~tail, hi, next));
    }
    uint8_t first[4], last[4];
    int n = encode_utf8(lo, first);
    encode_utf8(hi, last);
    while (n-- > 0) next = sn_add_bytes(g, first[n], last[n], next);
    return next;
}

static bool needs_escape(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

/* The character as JSON escapes it. */
static int add_escape(sn_grammar *g, uint32_t c, int next) {
    static const char named[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    char text[8];
    for (size_t i = 0; i + 1 < sizeof named; i += 2) {
        if ((uint32_t)named[i] != c) continue;
        int len = snprintf(text, sizeof text, "\\%c", named[i + 1]);
        return sn_add_literal(g, text, (size_t)len, next);
    }
    int len = snprintf(text, sizeof text, "\\u%04x", (unsigned)c & 0xFFFF);
    return sn_add_literal(g, text, (size_t)len, next);
}

static int add_char(sn_grammar *g, const sn_char_class *c, bool escaped, int next) {
    int at = -1;
    for (int i = c->n - 1; i >= 0; i--) {
        uint32_t lo = c->ranges[i].lo, hi = c->ranges[i].hi;
        for (uint32_t from = lo; from <= hi;) { /* runs of characters that are written alike */
            uint32_t to = from;
            bool escape = needs_escape(from);
            while (!escape && to < hi && (to > '\\' || !needs_escape(to + 1))) to = to > '\\' ? hi : to + 1;
            int piece = escape && !escaped ? -1
                        : escape           ? add_escape(g, from, next)
                                           : add_utf8_range(g, from, to, next);
            if (piece >= 0) at = at < 0 ? piece : sn_add_split(g, piece, at);
            from = to + 1;
        }
    }
    return at < 0 ? sn_add_fail(g) : at;
}

int sn_add_string_char(sn_grammar *g, const sn_char_class *c, int next) { return add_char(g, c, true, next); }
int sn_add_plain_char(sn_grammar *g, const sn_char_class *c, int next) { return add_char(g, c, false, next); }

/* \uXXXX of a character that is no surrogate, or of a pair of them. */
static int add_hexadecimal_escape(sn_grammar *g, int next) {
    int hex = sn_add_rule(g);
    sn_set_rule(g, hex,
                sn_add_split(g, sn_add_bytes(g, '0', '9', SN_END),
                             sn_add_split(g, sn_add_bytes(g, 'a', 'f', SN_END), sn_add_bytes(g, 'A', 'F', SN_END))));
    int two = sn_add_call(g, hex, sn_add_call(g, hex, next)), three = sn_add_call(g, hex, two);
    int not_d = sn_add_split(
        g, sn_add_bytes(g, '0', '9', three),
        sn_add_split(g, sn_add_split(g, sn_add_bytes(g, 'a', 'c', three), sn_add_bytes(g, 'e', 'f', three)),
                     sn_add_split(g, sn_add_bytes(g, 'A', 'C', three), sn_add_bytes(g, 'E', 'F', three))));
    int d = sn_add_bytes(g, '0', '7', two);
    int low = sn_add_split(g, sn_add_bytes(g, 'c', 'f', two), sn_add_bytes(g, 'C', 'F', two));
    int second =
        sn_add_literal(g, "\\u", 2, sn_add_split(g, sn_add_literal(g, "d", 1, low), sn_add_literal(g, "D", 1, low)));
    int after_high = sn_add_call(g, hex, sn_add_call(g, hex, second));
    int high =
        sn_add_split(g, sn_add_bytes(g, '8', '9', after_high),
                     sn_add_split(g, sn_add_bytes(g, 'a', 'b', after_high), sn_add_bytes(g, 'A', 'B', after_high)));
    int after_d = sn_add_split(g, d, high);
    int begins_d = sn_add_split(g, sn_add_literal(g, "d", 1, after_d), sn_add_literal(g, "D", 1, after_d));
    return sn_add_literal(g, "\\u", 2, sn_add_split(g, not_d, begins_d));
}

int sn_add_char_rule(sn_grammar *g) {
    sn_char_class all = {.n = 0};
    sn_char_class_invert(&all);
    int named = sn_add_literal(g, "/", 1, SN_END);
    for (const char *at = "bfnrt\"\\"; *at; at++) named = sn_add_split(g, sn_add_literal(g, at, 1, SN_END), named);
    int escaped = sn_add_split(g, sn_add_literal(g, "\\", 1, named), add_hexadecimal_escape(g, SN_END));
    int rule = sn_add_rule(g);
    sn_set_rule(g, rule, sn_add_split(g, sn_add_plain_char(g, &all, SN_END), escaped));
    return rule;
}

uint32_t sn_next_code_point(const char **at) {
    const uint8_t *p = (const uint8_t *)*at;
    int n = *p < 0x80 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
    uint32_t c = n == 1 ? *p : *p & (0x7Fu >> n);
    int i = 1;
    for (; i < n && (p[i] & 0xC0) == 0x80; i++) c = c << 6 | (p[i] & 0x3F);
    *at += i;
    return c;
}

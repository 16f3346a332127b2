/* No character of ASCII changes, or combines with what is before it. So a text is cut before each of them: what lies
 * between two, with the first, is a segment, and segments do not depend on each other. Most have one character.
 *
 * A segment is decomposed, its combining characters are put in the order of their classes, and it is composed again.
 * utf8proc does all of this, but orders by swapping neighbours, which a text of combining characters alone would make
 * take the square of its length: so ordering is done here. */
#include "text/tokenizer/normal_form.h"

#include "text/tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { SHORT_RUN = 16, CLASSES = 256 };

static int class_of(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

/* Sorts by class and keeps the order within a class. */
static void order_run(utf8proc_int32_t *codes, size_t n, utf8proc_int32_t *other) {
    size_t places[CLASSES + 1] = {0};
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++)
            for (size_t k = i; k > 0 && class_of(codes[k - 1]) > class_of(codes[k]); k--) {
                utf8proc_int32_t code = codes[k];
                codes[k] = codes[k - 1];
                codes[k - 1] = code;
            }
        return;
    }
    for (size_t i = 0; i < n; i++) places[class_of(codes[i]) + 1]++;
    for (int c = 0; c < CLASSES; c++) places[c + 1] += places[c];
    for (size_t i = 0; i < n; i++) other[places[class_of(codes[i])]++] = codes[i];
    memcpy(codes, other, n * sizeof *codes);
}

static void order_all(utf8proc_int32_t *codes, size_t n, utf8proc_int32_t *other) {
    for (size_t from = 0, end; from < n; from = end) {
        for (end = from; end < n && class_of(codes[end]); end++) {}
        order_run(codes + from, end - from, other);
        end += end == from;
    }
}

/* Decomposes to codes (room for all of it; NULL: they are counted). Returns their number. */
static size_t decompose(utf8proc_option_t options, const char *text, size_t len, utf8proc_int32_t *codes, size_t room) {
    size_t n = 0;
    uint32_t code;
    for (size_t at = 0, step; at < len && (step = sn_utf8_decode(text + at, len - at, &code)); at += step) {
        int unused = 0;
        utf8proc_ssize_t more = utf8proc_decompose_char((utf8proc_int32_t)code, codes ? codes + n : NULL,
                                                        codes ? (utf8proc_ssize_t)(room - n) : 0, options, &unused);
        if (more > 0) n += (size_t)more;
    }
    return n;
}

static sn_status append_segment(utf8proc_option_t options, const char *text, size_t len, sn_buf *out, sn_err *err) {
    utf8proc_int32_t *codes = NULL;
    size_t n = decompose(options, text, len, NULL, 0);
    sn_status status = sn_calloc(&codes, 2 * n + 1, sizeof *codes, err); /* with room to order them, and a NUL */
    if (status) return status;
    n = decompose(options, text, len, codes, n);
    order_all(codes, n, codes + n);
    utf8proc_ssize_t bytes = utf8proc_reencode(codes, (utf8proc_ssize_t)n, options);
    status = bytes < 0 ? sn_fail(err, SN_REFUSED, "the text cannot be normalised: %s", utf8proc_errmsg(bytes))
                       : sn_buf_append(out, codes, (size_t)bytes, err);
    free(codes);
    return status;
}

/* The marks of a segment's output. */
static sn_status append_marks(const uint8_t *plain, size_t len, size_t n_out, sn_buf *out, sn_err *err) {
    uint8_t any = 0;
    sn_status status = SN_OK;
    for (size_t i = 0; i < len; i++) any |= plain[i] & 1;
    for (size_t i = 0; i < n_out && !status; i++) status = sn_buf_append(out, &any, 1, err);
    return status;
}

static bool is_ascii(char c) { return !((unsigned char)c & 0x80); }

sn_status sn_normal_form_append(sn_normal_form form, const char *text, size_t len, const uint8_t *plain, sn_buf *out,
                                sn_buf *out_plain, sn_err *err) {
    static const utf8proc_option_t all[] = {
        [SN_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [SN_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [SN_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [SN_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    sn_status status = SN_OK;
    for (size_t at = 0, end; at < len && !status; at = end) {
        for (end = at + 1; end < len && !is_ascii(text[end]); end++) {}
        bool alone = end == at + 1; /* of ASCII, because other characters have several bytes */
        while (alone && end < len && is_ascii(text[end]) && (end + 1 == len || is_ascii(text[end + 1]))) end++;
        size_t before = out->len;
        status = alone ? sn_buf_append(out, text + at, end - at, err)
                       : append_segment(all[form], text + at, end - at, out, err);
        if (status || !plain) continue;
        status = alone ? sn_buf_append(out_plain, plain + at, end - at, err)
                       : append_marks(plain + at, end - at, out->len - before, out_plain, err);
    }
    return status;
}

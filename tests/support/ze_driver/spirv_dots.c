/* Rewrites the instruction for four products of bytes. Its sums do not saturate: 16 products of bytes are far from
 * that. */
#include "tests/support/ze_driver/driver.h"

#include <stdlib.h>
#include <string.h>

enum {
    HEADER_WORDS = 5,
    BOUND = 3, /* word of the header: above all ids */
    OP_EXTENSION = 10,
    OP_CAPABILITY = 17,
    OP_TYPE_INT = 21,
    OP_COMPOSITE_EXTRACT = 81,
    OP_S_CONVERT = 114,
    OP_I_ADD = 128,
    OP_I_MUL = 132,
    OP_S_DOT_ACC_SAT = 4453,
    DOT_PRODUCT_INPUT = 6018, /* capabilities */
    DOT_PRODUCT = 6019,
    WORDS_OF_A_DOT = 4 * (5 + 5 + 4 + 4 + 5 + 5),
};

typedef struct writer {
    uint32_t *words, byte_type;
    size_t n;
} writer;

static uint32_t emit(writer *w, uint32_t op, uint32_t type, uint32_t id, uint32_t a, uint32_t b, uint32_t n_words) {
    const uint32_t all[] = {n_words << 16 | op, type, id, a, b};
    memcpy(w->words + w->n, all, n_words * sizeof *all);
    w->n += n_words;
    return id;
}

/* in: {op, type, result, a, b, c, format} */
static void emit_dot(writer *w, const uint32_t *in) {
    uint32_t *next = &w->words[BOUND], type = in[1], sum = in[5];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t a = emit(w, OP_COMPOSITE_EXTRACT, w->byte_type, (*next)++, in[3], i, 5);
        uint32_t b = emit(w, OP_COMPOSITE_EXTRACT, w->byte_type, (*next)++, in[4], i, 5);
        a = emit(w, OP_S_CONVERT, type, (*next)++, a, 0, 4);
        b = emit(w, OP_S_CONVERT, type, (*next)++, b, 0, 4);
        uint32_t product = emit(w, OP_I_MUL, type, (*next)++, a, b, 5);
        sum = emit(w, OP_I_ADD, type, i < 3 ? (*next)++ : in[2], sum, product, 5);
    }
}

static bool is_about_dots(const uint32_t *w) {
    const uint32_t op = w[0] & 0xffff;
    if (op == OP_CAPABILITY) return w[1] == DOT_PRODUCT_INPUT || w[1] == DOT_PRODUCT;
    return op == OP_EXTENSION && !strcmp((const char *)(w + 1), "SPV_KHR_integer_dot_product");
}

static size_t count_dots(const uint32_t *in, size_t n_words) {
    size_t n = 0;
    for (size_t at = HEADER_WORDS; at < n_words && in[at] >> 16; at += in[at] >> 16)
        n += (in[at] & 0xffff) == OP_S_DOT_ACC_SAT;
    return n;
}

bool spirv_has_dots(const void *words, size_t n_words) { return count_dots(words, n_words) > 0; }

uint32_t *spirv_without_dots(const void *words, size_t n_words, size_t *n_out) {
    const uint32_t *in = words;
    const size_t n_dots = count_dots(in, n_words);
    writer w = {.words = malloc((n_words + n_dots * WORDS_OF_A_DOT) * sizeof *w.words), .n = HEADER_WORDS};
    if (!w.words || n_words < HEADER_WORDS) return w.words;
    memcpy(w.words, in, HEADER_WORDS * sizeof *in);
    for (size_t at = HEADER_WORDS, n; at < n_words && (n = in[at] >> 16) && n <= n_words - at; at += n) {
        const uint32_t op = in[at] & 0xffff;
        if (op == OP_TYPE_INT && in[at + 2] == 8) w.byte_type = in[at + 1];
        if (op == OP_S_DOT_ACC_SAT) {
            emit_dot(&w, in + at);
        } else if (!is_about_dots(in + at)) {
            memcpy(w.words + w.n, in + at, n * sizeof *in);
            w.n += n;
        }
    }
    *n_out = w.n;
    return w.words;
}

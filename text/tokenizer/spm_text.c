/* The double array (Aoe 1989) is Darts' in the form of darts-clone: a unit has a label (the byte that leads to it), an
 * offset to its children, a bit that says that a sequence ends there, and then a child with the sequence's value. Files
 * are not trusted: every step is checked against the number of units, and a sequence has at most SEQUENCE_MAX bytes. */
#include "text/tokenizer/spm_text.h"

#include "text/tokenizer/utf8.h"
#include "text/tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCE_MAX = 256, MATCHES_MAX = 32, MAP_HEADER = 4, UNIT_BYTES = 4 };

void sn_spm_text_fini(sn_spm_text *rules) {
    free(rules->units);
    free(rules->strings);
    sn_added_tokens_fini(&rules->symbols);
    *rules = (sn_spm_text){0};
}

/* ---- the map of characters ---- */

static uint32_t little_endian(const uint8_t *b) {
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* The size of the double array, the array, the strings. */
sn_status sn_spm_text_set_map(sn_spm_text *rules, const uint8_t *map, size_t len, sn_err *err) {
    if (!len) return SN_OK;
    const size_t array = len < MAP_HEADER ? 0 : little_endian(map), rest = len < MAP_HEADER ? 0 : len - MAP_HEADER;
    const char *strings = (const char *)map + MAP_HEADER + array;
    if (!array || array % UNIT_BYTES || array >= rest || strings[rest - array - 1] ||
        !sn_utf8_valid(strings, rest - array))
        return sn_fail(err, SN_REFUSED, "the map of characters (precompiled_charsmap) is damaged");
    rules->n_units = array / UNIT_BYTES;
    rules->n_strings = rest - array;
    sn_status status = sn_calloc(&rules->units, rules->n_units, sizeof *rules->units, err);
    if (!status) status = sn_calloc(&rules->strings, rules->n_strings, 1, err);
    if (status) return status;
    for (size_t i = 0; i < rules->n_units; i++) rules->units[i] = little_endian(map + MAP_HEADER + i * UNIT_BYTES);
    memcpy(rules->strings, strings, rules->n_strings);
    return SN_OK;
}

static uint32_t unit_label(uint32_t unit) { return unit & (UINT32_C(1) << 31 | 0xff); }
static size_t unit_offset(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }
static bool unit_ends(uint32_t unit) { return unit >> 8 & 1; }
static uint32_t unit_value(uint32_t unit) { return unit & ~(UINT32_C(1) << 31); }

static bool within_character(const char *text, size_t len, size_t at) {
    return at < len && ((uint8_t)text[at] & 0xc0) == 0x80;
}

/* The longest sequence of the map that the text begins with: its length, and where the string begins that it becomes.
 * 0: there is none. */
static size_t find_sequence(const sn_spm_text *rules, const char *text, size_t len, size_t *string) {
    size_t node = rules->n_units ? unit_offset(rules->units[0]) : 0, found = 0, matches = 0;
    if (!rules->n_units) return 0;
    for (size_t i = 0; i < sn_min_size(len, SEQUENCE_MAX) && matches < MATCHES_MAX; i++) {
        const uint8_t byte = (uint8_t)text[i];
        node ^= byte;
        if (node >= rules->n_units || unit_label(rules->units[node]) != byte) break;
        const bool ends = unit_ends(rules->units[node]);
        node ^= unit_offset(rules->units[node]);
        if (node >= rules->n_units) break;
        if (!ends) continue;
        matches++;
        const size_t value = unit_value(rules->units[node]);
        if (value >= rules->n_strings || within_character(rules->strings, rules->n_strings, value) ||
            within_character(text, len, i + 1))
            continue;
        found = i + 1;
        *string = value;
    }
    return found;
}

/* ---- a text ---- */

typedef struct walk {
    const sn_spm_text *rules;
    const sn_spm_source *source;
    sn_buf *out, *out_plain;
    const sn_added_token *symbol; /* the next one in the text, at symbol_at; NULL: there is none */
    size_t at, symbol_at;
    bool looked; /* symbol is that of a place at or behind `at` */
    sn_err *err;
} walk;

/* What the text at w->at becomes: `*len` bytes at the result, of `*taken` bytes of the text. */
static const char *next_part(walk *w, size_t *len, size_t *taken) {
    const sn_spm_source *s = w->source;
    const char *text = s->text + w->at;
    size_t string = 0;
    uint32_t code;
    if (!w->looked || (w->symbol && w->symbol_at < w->at)) {
        w->symbol = sn_added_tokens_find(&w->rules->symbols, s->text, s->len, w->at, &w->symbol_at);
        w->looked = true;
    }
    if (w->symbol && w->symbol_at == w->at) {
        *len = *taken = w->symbol->len;
        return text;
    }
    *taken = find_sequence(w->rules, text, s->len - w->at, &string);
    if (*taken) {
        *len = strlen(w->rules->strings + string);
        return w->rules->strings + string;
    }
    *len = *taken = sn_utf8_decode(text, s->len - w->at, &code);
    if (!*taken) *len = *taken = 1; /* cannot happen: the text is valid UTF-8 */
    return text;
}

static sn_status put(walk *w, const char *bytes, size_t len, bool marked) {
    const uint8_t mark = marked;
    sn_status status = sn_buf_append(w->out, bytes, len, w->err);
    for (size_t i = 0; !status && w->source->plain && i < len; i++)
        status = sn_buf_append(w->out_plain, &mark, 1, w->err);
    return status;
}

static sn_status put_part(walk *w, const char *part, size_t len, size_t taken) {
    bool marked = false;
    sn_status status = SN_OK;
    for (size_t i = w->at; w->source->plain && i < w->at + taken; i++) marked |= w->source->plain[i] & 1;
    for (size_t i = 0; !status && i < len; i++) {
        const bool space = part[i] == ' ';
        status = put(w, space ? SN_SPACE : part + i, space ? SN_SPACE_LEN : 1, marked);
    }
    return status;
}

static bool ends_in_space(const walk *w, size_t from) {
    return w->out->len >= from + SN_SPACE_LEN &&
           !memcmp(w->out->data + w->out->len - SN_SPACE_LEN, SN_SPACE, SN_SPACE_LEN);
}

/* As SentencePiece does it: of what a character becomes, spaces in front go if what came before ends in one. */
static sn_status put_all(walk *w) {
    const bool folds = w->rules->folds;
    bool space_before = folds && !w->source->continues;
    sn_status status = SN_OK;
    for (size_t taken; !status && w->at < w->source->len; w->at += taken) {
        size_t len;
        const char *part = next_part(w, &len, &taken);
        while (space_before && len && *part == ' ') {
            part++;
            len--;
        }
        if (!len) continue;
        status = put_part(w, part, len, taken);
        space_before = folds && part[len - 1] == ' ';
    }
    return status;
}

sn_status sn_spm_text_append(const sn_spm_text *rules, const sn_spm_source *source, sn_buf *out, sn_buf *out_plain,
                             sn_err *err) {
    walk w = {.rules = rules, .source = source, .out = out, .out_plain = out_plain, .err = err};
    const size_t from = out->len;
    size_t len, taken;
    while (rules->folds && !source->continues && w.at < source->len) { /* spaces in front */
        const char *part = next_part(&w, &len, &taken);
        if (len != 1 || *part != ' ') break;
        w.at += taken;
    }
    if (w.at == source->len) return SN_OK;
    sn_status status = rules->leads && !source->continues ? put(&w, SN_SPACE, SN_SPACE_LEN, false) : SN_OK;
    if (!status) status = put_all(&w);
    while (!status && rules->folds && ends_in_space(&w, from)) {
        out->len -= SN_SPACE_LEN;
        if (source->plain) out_plain->len -= SN_SPACE_LEN;
    }
    return status;
}

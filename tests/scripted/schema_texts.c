/* Texts of schemas, for a program that judges them (system/schema_texts.py). Each line of the input is
 * {"schema": ..., "draw": number, "seed": number, "texts": [...]}. The reply is a line, too: {"refused": sentence}, or
 * {"drawn": [text or null: it did not end], "allowed": [whether each of the texts is]}. */
#include "gateway/grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 4096, LONG = 120 };

static uint64_t seed;
static unsigned draw_below(unsigned n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

/* What ends something is more likely than what does not, and the more so the longer the text is. */
static unsigned weight_of(unsigned byte, size_t length) {
    if (strchr("\"}]", (int)byte) && byte) return length > LONG ? 4000 : 60;
    if (strchr("0123456789tfn{[ctdeor:", (int)byte) && byte) return 8;
    if (byte == ' ' || byte == '\n' || byte == '\t') return 2;
    return byte < 0x80 ? 2 : 1;
}

/* A walk through what the grammar allows; NULL: it leads nowhere, or does not end. */
static json_t *draw(sn_grammar *grammar) {
    char text[TEXT_MAX];
    int state = sn_grammar_begin(grammar);
    for (size_t n = 0; n < TEXT_MAX; n++) {
        unsigned sum = 0, byte = 0;
        int next, chosen = SN_GRAMMAR_DEAD;
        sn_err err;
        if (sn_grammar_may_end(grammar, state) && (n > LONG || !draw_below(3))) return json_stringn(text, n);
        for (unsigned b = 0; b < 256; b++) {
            if (sn_grammar_advance(grammar, state, &(char){(char)b}, 1, &next, &err)) return NULL;
            if (next == SN_GRAMMAR_DEAD) continue;
            sum += weight_of(b, n);
            if (draw_below(sum) < weight_of(b, n)) chosen = next, byte = b;
        }
        if (!sum) return sn_grammar_may_end(grammar, state) ? json_stringn(text, n) : NULL;
        state = chosen;
        text[n] = (char)byte;
    }
    return NULL;
}

static bool is_allowed(sn_grammar *grammar, const json_t *text) {
    int state;
    sn_err err;
    return !sn_grammar_advance(grammar, sn_grammar_begin(grammar), json_string_value(text), json_string_length(text),
                               &state, &err) &&
           sn_grammar_may_end(grammar, state);
}

static json_t *answer(const json_t *line) {
    sn_grammar *grammar = NULL;
    sn_err err = {0};
    size_t i;
    json_t *text, *drawn = json_array(), *allowed = json_array();
    if (sn_grammar_from_schema(json_object_get(line, "schema"), &grammar, &err)) {
        json_decref(drawn);
        json_decref(allowed);
        return json_pack("{s:s}", "refused", err.text);
    }
    seed = (uint64_t)json_integer_value(json_object_get(line, "seed"));
    for (json_int_t n = json_integer_value(json_object_get(line, "draw")); n > 0; n--) {
        text = draw(grammar);
        json_array_append_new(drawn, text ? text : json_null());
    }
    json_array_foreach(json_object_get(line, "texts"), i, text)
        json_array_append_new(allowed, json_boolean(is_allowed(grammar, text)));
    sn_grammar_free(&grammar);
    return json_pack("{s:o, s:o}", "drawn", drawn, "allowed", allowed);
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        json_t *asked = json_loads(line, 0, NULL), *told = asked ? answer(asked) : NULL;
        if (!told || json_dumpf(told, stdout, JSON_COMPACT) || puts("") < 0) return 1;
        fflush(stdout);
        json_decref(asked);
        json_decref(told);
    }
    free(line);
    return 0;
}

/* The input is a JSON schema, a NUL byte, and a text. A schema is refused with a sentence or gives a grammar; a text
 * that the grammar allows is JSON, no state is a dead end, and what stands for a state allows the same bytes. */
#include "gateway/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

/* Whether some byte may follow, or the text may end. */
static bool goes_on(sn_grammar *grammar, int state) {
    sn_err err = {0};
    if (sn_grammar_may_end(grammar, state)) return true;
    for (int b = 0; b < 256; b++) {
        int next;
        if (sn_grammar_advance(grammar, state, (char[]){(char)b}, 1, &next, &err)) return *err.text; /* too complex */
        if (next != SN_GRAMMAR_DEAD) return true;
    }
    return false;
}

/* Whether the state that stands for this one goes on with the same bytes. */
static bool is_alike(sn_grammar *grammar, int state) {
    sn_err err = {0};
    int alike, a, b;
    if (sn_grammar_alike(grammar, state, &alike, &err)) return *err.text; /* too complex */
    if (sn_grammar_may_end(grammar, state) != sn_grammar_may_end(grammar, alike)) return false;
    for (int byte = 0; byte < 256; byte++) {
        if (sn_grammar_advance(grammar, state, (char[]){(char)byte}, 1, &a, &err) ||
            sn_grammar_advance(grammar, alike, (char[]){(char)byte}, 1, &b, &err))
            return *err.text;
        if ((a == SN_GRAMMAR_DEAD) != (b == SN_GRAMMAR_DEAD)) return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;
    json_t *schema = json_loadb((const char *)data, len, JSON_DECODE_ANY, NULL);
    sn_grammar *grammar = NULL;
    sn_err err = {0};
    if (!schema) return 0;
    sn_status status = sn_grammar_from_schema(schema, &grammar, &err);
    json_decref(schema);
    if (status) {
        if (!*err.text) abort();
        return 0;
    }
    const char *text = nul ? (const char *)nul + 1 : "";
    size_t n = nul ? size - len - 1 : 0;
    int state = sn_grammar_begin(grammar);
    size_t depth = 0;
    for (size_t i = 0; i < n && state != SN_GRAMMAR_DEAD; i++) {
        depth += text[i] == '{' || text[i] == '[';
        if (depth < 32 && (!goes_on(grammar, state) || !is_alike(grammar, state))) abort();
        if (sn_grammar_advance(grammar, state, text + i, 1, &state, &err)) break;
    }
    if (!*err.text && state != SN_GRAMMAR_DEAD && sn_grammar_may_end(grammar, state) && !memchr(text, 0, n)) {
        json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
        if (!value && n < 300) abort(); /* above: numbers may be too large for a double */
        json_decref(value);
    }
    sn_grammar_free(&grammar);
    return 0;
}

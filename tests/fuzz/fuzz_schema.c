/* The input is a JSON schema, a NUL byte, and a text. A schema is refused with a sentence or gives a grammar; a text
 * that the grammar allows is JSON, and no state is a dead end. */
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
        if (depth < 32 && !goes_on(grammar, state)) abort();
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

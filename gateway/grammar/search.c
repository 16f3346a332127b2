/* Text up to a mark, as a deterministic automaton: a state is the set of places inside marks where the text may be, and
 * each state becomes a rule, which calls the next one at its end. */
#include "gateway/grammar/grammar_private.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { MARKS_MAX = 4, ELEMENTS_MAX = 1024, STATES_MAX = 1024, WORDS = ELEMENTS_MAX / 64 };
enum { SPACE = 256, FOUND = 257, EDGE = 0xFF }; /* elements besides bytes: any white space or none; behind a mark */

typedef struct place_set {
    uint64_t bits[WORDS];
} place_set;

typedef struct search {
    sn_grammar *g;
    const sn_search_mark *marks;
    size_t n_marks;
    uint16_t elements[ELEMENTS_MAX];
    size_t n_elements, begin[MARKS_MAX], found[MARKS_MAX]; /* of each mark: its first element, and FOUND */
    place_set sets[STATES_MAX];
    int rules[STATES_MAX];
    size_t n_sets;
} search;

static bool is_space(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static bool has(const place_set *s, size_t at) { return s->bits[at / 64] >> (at % 64) & 1; }

/* With what needs no byte. */
static void add_place(const search *s, place_set *set, size_t at) {
    set->bits[at / 64] |= UINT64_C(1) << (at % 64);
    if (s->elements[at] == SPACE) add_place(s, set, at + 1);
}

static bool add_mark(search *s, size_t i) {
    const sn_search_mark *mark = &s->marks[i];
    size_t n = strlen(mark->text);
    if (s->n_elements + n + 2 > ELEMENTS_MAX) return false;
    s->begin[i] = s->n_elements;
    if (mark->first) s->elements[s->n_elements++] = SPACE;
    for (size_t k = 0; k < n; k++) {
        bool space = is_space(mark->text[k]);
        if (space && s->elements[s->n_elements - 1] == SPACE) continue;
        s->elements[s->n_elements++] = space ? SPACE : (uint8_t)mark->text[k];
    }
    s->found[i] = s->n_elements;
    s->elements[s->n_elements++] = FOUND;
    return true;
}

static void step(const search *s, const place_set *from, int byte, place_set *to) {
    *to = (place_set){0};
    for (size_t at = 0; at < s->n_elements; at++) {
        if (!has(from, at)) continue;
        if (s->elements[at] == byte) add_place(s, to, at + 1);
        if (s->elements[at] == SPACE && is_space(byte)) add_place(s, to, at);
    }
    for (size_t i = 0; i < s->n_marks; i++)
        if (!s->marks[i].first) add_place(s, to, s->begin[i]);
}

/* The rule of a state, made when it is first seen. */
static int rule_of(search *s, const place_set *set) {
    for (size_t i = 0; i < s->n_sets; i++)
        if (!memcmp(&s->sets[i], set, sizeof *set)) return s->rules[i];
    if (s->n_sets == STATES_MAX) return sn_grammar_fail(s->g, SN_REFUSED, "the marks of the template are too long");
    s->sets[s->n_sets] = *set;
    return s->rules[s->n_sets++] = sn_add_rule(s->g);
}

/* Where the text is after a byte. What ends a mark may be the end of a special token. */
static int target_of(search *s, const place_set *set) {
    int found = -1;
    for (size_t i = 0; i < s->n_marks; i++)
        if (has(set, s->found[i])) found = found < 0 ? s->marks[i].next : sn_add_split(s->g, found, s->marks[i].next);
    if (found >= 0) return sn_add_split(s->g, found, sn_add_bytes(s->g, EDGE, EDGE, found));
    return sn_add_call(s->g, rule_of(s, set), SN_END);
}

/* Bytes in a row that lead to one place share a node. */
static void add_state(search *s, size_t state, int end) {
    int at = sn_add_split(s->g, sn_add_bytes(s->g, EDGE, EDGE, sn_add_call(s->g, s->rules[state], SN_END)), end);
    place_set before, after;
    for (int byte = EDGE - 1, last = byte; byte >= 0; byte--) {
        step(s, &s->sets[state], byte, &after);
        if (byte) step(s, &s->sets[state], byte - 1, &before);
        if (byte && !memcmp(&before, &after, sizeof before)) continue;
        at = sn_add_split(s->g, sn_add_bytes(s->g, (uint8_t)byte, (uint8_t)last, target_of(s, &after)), at);
        last = byte - 1;
    }
    sn_set_rule(s->g, s->rules[state], at);
}

int sn_add_search(sn_grammar *g, const sn_search_mark *marks, size_t n, int end) {
    sn_err err;
    search *s = NULL;
    if (sn_calloc(&s, 1, sizeof *s, &err)) return sn_grammar_fail(g, SN_STOP, "out of memory for a grammar");
    *s = (search){.g = g, .marks = marks, .n_marks = n};
    place_set begin = {0};
    bool fits = n <= MARKS_MAX;
    for (size_t i = 0; i < n && fits; i++) fits = add_mark(s, i);
    for (size_t i = 0; i < n && fits; i++) add_place(s, &begin, s->begin[i]);
    int at = fits ? sn_add_call(g, rule_of(s, &begin), SN_END)
                  : sn_grammar_fail(g, SN_REFUSED, "the marks of the template are too long");
    for (size_t i = 0; i < s->n_sets && fits; i++) add_state(s, i, end);
    free(s);
    return at;
}

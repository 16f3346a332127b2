/* A grammar over bytes, as a constraint on generated text: which bytes may follow what was written so far.
 *
 * sn_grammar_from_schema makes one from a JSON schema; every text that it accepts is JSON that the schema accepts. A
 * grammar is a recursive transition network: a program of nodes (grammar_private.h) with calls, so that JSON may nest.
 * It runs as a set of places (node and stack of returns), and each set that occurs becomes a numbered state with a
 * table of its successors, as in a lazily built automaton: a byte that was seen in a state before costs one look-up.
 *
 * Central type: sn_grammar, used by one thread at a time. Errors: SN_REFUSED names the keyword that cannot be kept
 * exactly, or says that the grammar or the text is too complex; SN_STOP: out of memory. */
#ifndef SN_GATEWAY_GRAMMAR_GRAMMAR_H
#define SN_GATEWAY_GRAMMAR_GRAMMAR_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_grammar sn_grammar;

enum {
    SN_GRAMMAR_NODES_MAX = 1 << 18,
    SN_GRAMMAR_STATES_MAX = 1 << 17,
    SN_GRAMMAR_PLACES_MAX = 1 << 12, /* of one state */
    SN_GRAMMAR_BYTES_MAX = 32 << 20, /* of all states */
    SN_GRAMMAR_DEPTH_MAX = 128,      /* of calls: JSON that nests deeper is not generated */
    SN_GRAMMAR_LOOK = 256,           /* bytes; see sn_grammar_alike */
    SN_GRAMMAR_DEAD = -1,            /* the state after a byte that is not allowed */
};

/* The texts that are JSON for this schema, compact or with a little white space, members in the order of the schema's
 * properties, and others where the schema says so. `true` and {} stand for any JSON. docs/SERVER.md lists the keywords.
 */
sn_status sn_grammar_from_schema(const json_t *schema, sn_grammar **out, sn_err *err) SN_MUST_USE;
void sn_grammar_free(sn_grammar **grammar); /* accepts NULL */

int sn_grammar_begin(const sn_grammar *grammar); /* the state before the first byte */
/* The state after these bytes: SN_GRAMMAR_DEAD if one of them is not allowed. `state` may be SN_GRAMMAR_DEAD. */
sn_status sn_grammar_advance(sn_grammar *grammar, int state, const char *bytes, size_t len, int *next,
                             sn_err *err) SN_MUST_USE;
/* A state from which the next SN_GRAMMAR_LOOK bytes may be the same as from this one, and the end: one stands for all
 * that are far from the limit of what they count, as characters of a string. */
sn_status sn_grammar_alike(sn_grammar *grammar, int state, int *alike, sn_err *err) SN_MUST_USE;
size_t sn_grammar_bytes(const sn_grammar *grammar);            /* of memory that it has taken so far */
bool sn_grammar_may_end(const sn_grammar *grammar, int state); /* whether the text may end here */

#endif

/* The program of a grammar, and how it is built: from the end to the beginning. Each function below takes the node at
 * which the text continues and returns the node at which its own part begins, so parts are joined by nesting calls.
 *
 * Building fails once and for all: sn_grammar_error is set, further nodes are not added, and the caller that began
 * looks at it at the end. */
#ifndef SN_GATEWAY_GRAMMAR_GRAMMAR_PRIVATE_H
#define SN_GATEWAY_GRAMMAR_GRAMMAR_PRIVATE_H

#include "gateway/grammar/grammar.h"

typedef enum sn_node_kind {
    SN_NODE_RETURN, /* the end of a rule; node 0 is the only one */
    SN_NODE_BYTES,  /* a byte from lo to hi, then `next` */
    SN_NODE_SPLIT,  /* `next` or `other` */
    SN_NODE_CALL,   /* the rule `other`, then `next` */
    SN_NODE_FAIL,   /* nothing matches */
} sn_node_kind;

typedef struct sn_grammar_node {
    sn_node_kind kind;
    uint8_t lo, hi;
    int32_t next, other;
    int32_t alike; /* a node before which the next SN_GRAMMAR_LOOK bytes may be the same, mostly itself */
} sn_grammar_node;

enum { SN_END = 0 }; /* the node that ends a rule */

sn_status sn_grammar_new(sn_grammar **out, sn_err *err) SN_MUST_USE;
/* The end of building: reports what failed, else makes the first state. */
sn_status sn_grammar_finish(sn_grammar *g, sn_err *err) SN_MUST_USE;
/* What building failed with; SN_OK: nothing. */
sn_status sn_grammar_error(const sn_grammar *g, sn_err *err) SN_MUST_USE;
/* Lets building fail, with this sentence unless it failed before; returns SN_END. */
int sn_grammar_fail(sn_grammar *g, sn_status status, const char *format, ...) SN_PRINTF(3, 4);
/* Counts steps of building that add no node. False: building has failed, because they were too many or before. */
bool sn_grammar_work(sn_grammar *g, size_t steps);

int sn_add_bytes(sn_grammar *g, uint8_t lo, uint8_t hi, int next);
int sn_add_split(sn_grammar *g, int a, int b); /* either */
int sn_add_call(sn_grammar *g, int rule, int next);
int sn_add_fail(sn_grammar *g);
int sn_add_literal(sn_grammar *g, const char *text, size_t len, int next);
/* A new rule whose beginning is set later, so that it may call itself. */
int sn_add_rule(sn_grammar *g);
void sn_set_rule(sn_grammar *g, int rule, int begin);
/* `rule` least to most times (most < 0: any number). */
int sn_add_repeat(sn_grammar *g, int rule, int least, int most, int next);
void sn_set_begin(sn_grammar *g, int begin); /* where the text begins */

/* -- characters (characters.c) -- */

/* Code points, as ranges in ascending order that do not touch. */
typedef struct sn_char_class {
    struct {
        uint32_t lo, hi;
    } ranges[64];
    int n;
} sn_char_class;
enum { SN_CHAR_MAX = 0x10FFFF };
/* False when the class is full. Overlaps are joined. */
bool sn_char_class_add(sn_char_class *c, uint32_t lo, uint32_t hi);
bool sn_char_class_invert(sn_char_class *c); /* within all code points but surrogates */
/* One character of the class inside a JSON string: as UTF-8, or escaped where JSON wants it. */
int sn_add_string_char(sn_grammar *g, const sn_char_class *c, int next);
/* One character of the class, as it is. Characters that JSON strings escape are left out. */
int sn_add_plain_char(sn_grammar *g, const sn_char_class *c, int next);
int sn_add_char_rule(sn_grammar *g); /* a rule: any character of a JSON string, as it is or escaped in any way */
/* The next code point of valid UTF-8; advances *at. */
uint32_t sn_next_code_point(const char **at);

/* -- parts of answers -- */

/* Any text up to the first of the marks (not empty), which continues behind it, or which ends at `end`, a node. White
 * space in a mark stands for any or none. SN_SPECIAL_EDGE (answer_grammar.h) counts for nothing. (search.c) */
typedef struct sn_search_mark {
    const char *text;
    bool first; /* it counts at the beginning of the text alone, behind white space */
    int next;
} sn_search_mark;
int sn_add_search(sn_grammar *g, const sn_search_mark *marks, size_t n, int end);

/* JSON of a schema (json_schema.c). */
int sn_add_schema(sn_grammar *g, const json_t *schema, int next);

/* -- parts of schemas -- */

/* The inside of a JSON string that matches a regular expression (ECMA-262, without look-around and back references),
 * somewhere unless it is anchored (regex.c). */
int sn_add_pattern(sn_grammar *g, const char *pattern, int next);

/* A limit of a number, in decimal digits. */
enum { SN_LIMIT_DIGITS = 64 };
typedef struct sn_limit {
    char whole[SN_LIMIT_DIGITS], fraction[SN_LIMIT_DIGITS]; /* without zeros before and after; whole "0" */
    bool negative, given, out;                              /* out: the limit itself is excluded */
} sn_limit;

/* JSON numbers from low to high, each if it is given (number.c). Their texts have a bounded length: 18 digits before
 * the point, and with a fraction 15 digits that count, as many as a double tells apart. So a text is within limits
 * exactly when the double that programs read from it is. Exponents, of two digits, stand where nothing limits the
 * number. */
typedef struct sn_number_range {
    sn_limit low, high;
    bool integer;
} sn_number_range;
/* False: the number has too many digits. lower: the limit is a lower one. */
bool sn_limit_init(sn_limit *limit, const json_t *number, bool lower, bool out) SN_MUST_USE;
void sn_number_range_join(sn_number_range *range, const sn_number_range *other); /* what is in both */
bool sn_number_range_is_empty(const sn_number_range *range);                     /* false: it may be empty */
int sn_add_number(sn_grammar *g, const sn_number_range *range, int next);

#endif

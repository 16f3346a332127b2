/* What a whole answer may be: a thought, free text up to the mark at which a call of a tool begins, calls whose
 * arguments follow a schema, or JSON of a schema.
 *
 * A grammar knows bytes alone, and a special token is none. So its text stands between two SN_SPECIAL_EDGE, here and in
 * the bytes of tokens: no other token, and no JSON, has this byte. */
#ifndef SN_GATEWAY_GRAMMAR_ANSWER_GRAMMAR_H
#define SN_GATEWAY_GRAMMAR_ANSWER_GRAMMAR_H

#include "gateway/grammar/grammar.h"

#define SN_SPECIAL_EDGE "\xFF"
enum { SN_CALL_MARKS_MAX = 2 };

/* Texts of a call of one tool, around its arguments. */
typedef struct sn_call_shape {
    char *before[SN_CALL_MARKS_MAX]; /* in free text what follows each mark, NULL: nothing may; else [0] is all of it */
    char *again;                     /* from the end of the arguments of a call to those of the next; NULL: none */
    json_t *schema;                  /* of the arguments */
    bool strict;                     /* else a schema that cannot be kept exactly stands for any object */
} sn_call_shape;

typedef struct sn_answer_shape {
    const char *thought, *thought_end; /* marks, NULL: none. White space in a mark stands for any or none */
    bool thinks;                       /* the answer begins within a thought, which is free */
    bool text;                         /* any text, until a call begins at one of the marks */
    const char *marks[SN_CALL_MARKS_MAX];
    size_t n_marks;       /* 0: a brace that begins the text is the mark */
    const json_t *schema; /* without `text`: or JSON of this schema. NULL: none */
    sn_call_shape *calls; /* (n_calls) */
    size_t n_calls;
    char *after; /* the last call's arguments */
} sn_answer_shape;

/* As sn_grammar_from_schema. */
sn_status sn_grammar_from_answer(const sn_answer_shape *shape, sn_grammar **out, sn_err *err) SN_MUST_USE;

#endif

/* The normal form of a JSON schema: a value fits it when it fits one of its shapes, each of one type. Keywords that
 * constrain one value from several places (allOf, references, siblings of anyOf) are joined shape by shape, so that no
 * keyword of one place is read without those of the others. What is inside of a value stays a schema, which is joined
 * in turn when its own shapes are made; so references may lead back.
 *
 * As building a grammar, it fails once and for all: sn_grammar_error says with what. */
#ifndef SN_GATEWAY_GRAMMAR_SHAPE_PRIVATE_H
#define SN_GATEWAY_GRAMMAR_SHAPE_PRIVATE_H

#include "gateway/grammar/grammar_private.h"

typedef enum sn_json_shape_type {
    SN_SHAPE_OBJECT,
    SN_SHAPE_ARRAY,
    SN_SHAPE_STRING,
    SN_SHAPE_NUMBER,
    SN_SHAPE_BOOLEAN,
    SN_SHAPE_NULL,
    SN_SHAPE_TYPES,
} sn_json_shape_type;

enum { SN_COUNT_MAX = 1 << 15 }; /* characters or elements that a schema may count to */

/* Schemas inside are NULL where there is none. All is borrowed from the root or the shaper. */
typedef struct sn_json_shape {
    sn_json_shape_type type;
    const json_t *constant;       /* the one string, number or boolean that fits */
    sn_number_range numbers;      /* numbers */
    const char *pattern, *format; /* strings */
    int least, most;              /* strings: characters; arrays: elements; most -1: no limit */
    const json_t *prefix, *items; /* arrays: a list of schemas, and that of the elements behind them */
    const json_t *properties;     /* objects: schemas by key */
    const json_t *required;       /* an object with the keys that must be there */
    const json_t *additional;     /* schema of other members */
} sn_json_shape;

typedef struct sn_json_shapes {
    sn_json_shape *at; /* heap, (n) */
    size_t n, capacity;
    bool any; /* all values fit */
} sn_json_shapes;

typedef struct sn_shaper {
    sn_grammar *g;
    const json_t *root;
    json_t *made;   /* values and schemas that were made */
    json_t *joined; /* schemas that were made of several: {"allOf": [...]} */
    int depth;
} sn_shaper;

bool sn_shaper_init(sn_shaper *s, sn_grammar *g, const json_t *root); /* false: memory is out */
void sn_shaper_fini(sn_shaper *s);

/* Both return false when building has failed. */
bool sn_json_shapes_init(sn_shaper *s, const json_t *schema, sn_json_shapes *out);
/* Whether no value fits two of the schemas of a list. */
bool sn_schemas_are_disjoint(sn_shaper *s, const json_t *schemas, bool *disjoint);
void sn_json_shapes_fini(sn_json_shapes *shapes);

/* The keyword that constrains, if a schema has just one, NULL: it has none or more. Building fails for a keyword that
 * is not supported, or has a value that it cannot have. *n: how many there are. */
const char *sn_schema_check(sn_shaper *s, const json_t *schema, size_t *n);
/* What "$ref" names; NULL: building has failed. */
const json_t *sn_schema_target(sn_shaper *s, const json_t *schema);
int sn_schema_refuse(sn_grammar *g, const char *keyword);

#endif

/* From the source of a template to its tree: lexer.c makes tokens, parse_expression.c and parse.c make nodes of them.
 * All of it lives in the memory of the run that parses. */
#ifndef SN_TEXT_JINJA_SYNTAX_PRIVATE_H
#define SN_TEXT_JINJA_SYNTAX_PRIVATE_H

#include "text/jinja/value_private.h"

typedef enum sn_jtoken_kind {
    SN_JT_END, /* of the template */
    SN_JT_TEXT,
    SN_JT_PRINT_BEGIN,
    SN_JT_PRINT_END,
    SN_JT_BLOCK_BEGIN,
    SN_JT_BLOCK_END,
    SN_JT_NAME,
    SN_JT_LITERAL, /* a text or a number: `value` */
    SN_JT_SIGN,    /* + - == ... */
} sn_jtoken_kind;

typedef struct sn_jtoken {
    sn_jtoken_kind kind;
    int line;
    sn_jvalue value; /* of names, signs and texts: a string */
} sn_jtoken;

/* The tokens of the source, ended by SN_JT_END. */
const sn_jtoken *sn_jlex(sn_jrun *run, const char *source, size_t len);

typedef enum sn_jnode_kind {
    /* expressions */
    SN_JN_CONST,     /* value */
    SN_JN_NAME,      /* name */
    SN_JN_LIST,      /* items */
    SN_JN_TUPLE,     /* items */
    SN_JN_DICT,      /* items: key, value, key, value, ... */
    SN_JN_IF_ELSE,   /* a if b else c (c may be NULL) */
    SN_JN_BINARY,    /* a sign b; sign is the characters of the operator */
    SN_JN_UNARY,     /* sign a */
    SN_JN_AND,       /* a and b */
    SN_JN_OR,        /* a or b */
    SN_JN_NOT,       /* not a */
    SN_JN_COMPARE,   /* a, then items: BINARY nodes with only sign and b */
    SN_JN_JOIN,      /* items, with ~ between them */
    SN_JN_ATTRIBUTE, /* a.name */
    SN_JN_ITEM,      /* a[b] */
    SN_JN_SLICE,     /* a[items[0]:items[1]:items[2]], each may be NULL */
    SN_JN_CALL,      /* a(items) */
    SN_JN_FILTER,    /* a|name(items) */
    SN_JN_TEST,      /* a is name(items); flag: is not */
    SN_JN_KEYWORD,   /* an argument name=a, or a parameter of a macro with its default (a may be NULL) */
    SN_JN_SPREAD,    /* an argument *a; flag: **a */
    SN_JN_HOLE,      /* the text of the block that a filter stands on */
    /* statements */
    SN_JN_TEXT,       /* value */
    SN_JN_PRINT,      /* a */
    SN_JN_FOR,        /* for a in b if c: items, else: more; flag: recursive */
    SN_JN_IF,         /* items: BRANCH nodes */
    SN_JN_BRANCH,     /* if a (NULL: else): items */
    SN_JN_SET,        /* set a = b */
    SN_JN_SET_BLOCK,  /* set a: items; b: filters on a HOLE, or the HOLE */
    SN_JN_MACRO,      /* macro name(items: KEYWORD nodes): more */
    SN_JN_CALL_BLOCK, /* call(items) a: more */
    SN_JN_FILTERED,   /* filter a, which ends at a HOLE: items */
    SN_JN_WITH,       /* items: SET nodes, then more */
    SN_JN_BREAK,
    SN_JN_CONTINUE,
    SN_JN_GENERATION, /* items */
} sn_jnode_kind;

typedef struct sn_jnode sn_jnode;
typedef struct sn_jnodes {
    sn_jnode **at;
    size_t n, capacity;
} sn_jnodes;

typedef enum sn_jsign {
    SN_JS_ADD,
    SN_JS_SUBTRACT,
    SN_JS_MULTIPLY,
    SN_JS_DIVIDE,
    SN_JS_FLOOR_DIVIDE,
    SN_JS_MODULO,
    SN_JS_POWER,
    SN_JS_EQUAL,
    SN_JS_UNEQUAL,
    SN_JS_LESS,
    SN_JS_LESS_EQUAL,
    SN_JS_GREATER,
    SN_JS_GREATER_EQUAL,
    SN_JS_IN,
    SN_JS_NOT_IN,
} sn_jsign;

/* Names that a macro's body reads and that the caller of a macro fills. */
enum { SN_JUSES_VARARGS = 1, SN_JUSES_KWARGS = 2, SN_JUSES_CALLER = 4 };

struct sn_jnode {
    sn_jnode_kind kind;
    sn_jsign sign;
    bool flag;
    uint8_t uses; /* of a macro: SN_JUSES_... */
    int line;
    const sn_jstring *name;
    sn_jvalue value;
    sn_jnode *a, *b, *c;
    sn_jnodes items, more;
};

typedef struct sn_jparser {
    sn_jrun *run;
    const sn_jtoken *at; /* the current token */
    int loops;           /* for loops around it, in this macro */
} sn_jparser;

sn_jnode *sn_jnode_new(sn_jparser *p, sn_jnode_kind kind);
void sn_jnodes_add(sn_jparser *p, sn_jnodes *nodes, sn_jnode *node);
bool sn_jat_name(const sn_jparser *p, const char *name);
bool sn_jat_sign(const sn_jparser *p, const char *sign);
bool sn_jskip_name(sn_jparser *p, const char *name); /* true if it was there */
bool sn_jskip_sign(sn_jparser *p, const char *sign);
void sn_jexpect_sign(sn_jparser *p, const char *sign);
const sn_jstring *sn_jexpect_name(sn_jparser *p, const char *what);
_Noreturn void sn_junexpected(sn_jparser *p, const char *expected);

sn_jnode *sn_jparse_expression(sn_jparser *p, bool with_if);
/* One expression, or a tuple without parentheses. `end` is a name that ends it, or NULL. simple: names only, as the
 * targets of `for` and `set`. */
sn_jnode *sn_jparse_tuple(sn_jparser *p, bool with_if, bool simple, const char *end);
sn_jnode *sn_jparse_filters(sn_jparser *p, sn_jnode *on, bool first_is_named);

/* The statements of a whole template. */
sn_jnodes sn_jparse(sn_jparser *p);

#endif

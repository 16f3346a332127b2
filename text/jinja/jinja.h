/* A template engine for the dialect of Jinja2 in which chat templates are written: the environment that transformers
 * gives them (trim_blocks, lstrip_blocks, loop controls, `generation` blocks, its tojson, raise_exception and
 * strftime_now). What a template writes equals what Jinja2 3.1 writes, byte for byte.
 *
 * Not part of the dialect, and refused: include, import, extends, block, autoescape. Beyond it: methods that change
 * lists and dictionaries (append, pop, update), which Jinja2's sandbox refuses and other engines run, and the filter
 * from_json.
 *
 * A template is a program of unknown origin: it reads only the variables that it is given and the clock, and its
 * steps, nesting, memory and output are bounded. Every error is SN_REFUSED and names the line and the construct, except
 * SN_STOP when memory of the machine is out.
 *
 * Every byte of the output is marked with where it came from, however it was cut, joined or escaped on the way: from
 * the template, or from the variables. text/chat relies on this: text of a user never becomes a special token.
 *
 * Central type: sn_jinja, a parsed template, immutable; any thread may render it. */
#ifndef SN_TEXT_JINJA_JINJA_H
#define SN_TEXT_JINJA_JINJA_H

#include "base/mem.h"

#include <jansson.h>
#include <time.h>

typedef struct sn_jinja sn_jinja;

enum { SN_JINJA_SOURCE_MAX = 1 << 20 }; /* bytes of a template */

/* Parses a template of `len` bytes of UTF-8. */
sn_status sn_jinja_parse(const char *source, size_t len, sn_jinja **out, sn_err *err) SN_MUST_USE;
void sn_jinja_free(sn_jinja **template); /* accepts NULL */

typedef struct sn_jinja_limits {
    size_t steps;  /* evaluated constructs; work on long texts and lists counts by its length */
    size_t memory; /* bytes of all values and texts of one rendering */
    size_t output; /* bytes of the result */
    int depth;     /* nesting of constructs and calls while they are evaluated */
} sn_jinja_limits;
sn_jinja_limits sn_jinja_default_limits(void);

/* What a template may read. */
typedef struct sn_jinja_input {
    const json_t *variables; /* an object; its texts are marked SN_JINJA_DATA */
    const json_t *own;       /* an object whose texts count as the template's own (bos_token); NULL: none */
    /* Whether the text under this key of an object in `variables` counts as the template's own, too; NULL: none do. */
    bool (*is_own)(const char *key, const char *text);
    const struct tm *now; /* what strftime_now formats; NULL: the local time */
    sn_jinja_limits limits;
} sn_jinja_input;

/* Marks of a byte of the output. */
enum { SN_JINJA_DATA = 1, SN_JINJA_GENERATION = 2 }; /* from the variables; inside {% generation %} */

typedef struct sn_jinja_text {
    char *text;     /* heap, `len` bytes and a NUL */
    uint8_t *marks; /* heap, (len) */
    size_t len;
} sn_jinja_text;
void sn_jinja_text_fini(sn_jinja_text *text);

/* Renders the template. On failure *out is empty. */
sn_status sn_jinja_render(const sn_jinja *template, const sn_jinja_input *input, sn_jinja_text *out,
                          sn_err *err) SN_MUST_USE;

#endif

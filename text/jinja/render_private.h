/* Running a template: statements (render.c), expressions (expression.c), what lies behind dots and brackets (access.c),
 * operators (operators.c), calls and macros (call.c), and the functions that templates find: functions.c, filters_*.c,
 * tests.c, methods_*.c. A sn_jrender is one rendering. */
#ifndef SN_TEXT_JINJA_RENDER_PRIVATE_H
#define SN_TEXT_JINJA_RENDER_PRIVATE_H

#include "text/jinja/syntax_private.h"

typedef struct sn_jbinding {
    const sn_jstring *name;
    sn_jvalue value;
} sn_jbinding;

/* The variables that one body sets: the template, an iteration of a loop, a macro, a block that is captured. */
typedef struct sn_jscope sn_jscope;
struct sn_jscope {
    sn_jscope *parent;
    sn_jbinding *at;
    size_t n, capacity;
};

typedef struct sn_jrender {
    sn_jrun *run;
    const sn_jdict *variables, *own; /* own may be NULL */
    const struct tm *now;
    sn_jscope *scope;
    sn_jtext *out;
    sn_jvalue hole; /* the text of the block whose filters run */
} sn_jrender;

/* ---- statements ---- */

sn_jscope *sn_jscope_new(sn_jrender *r, sn_jscope *parent);
void sn_jassign(sn_jrender *r, const sn_jstring *name, sn_jvalue value); /* in the current scope */
void sn_jrun_body(sn_jrender *r, const sn_jnodes *body);                 /* a body that no break leaves */
/* The text that the body writes, in the scope. */
const sn_jstring *sn_jcapture(sn_jrender *r, sn_jscope *scope, const sn_jnodes *body);

/* What `loop` is in a body. */
struct sn_jloop {
    const sn_jnode *node;
    sn_jscope *scope; /* of the loop, for a recursive call */
    sn_jlist *list;
    size_t next; /* of the items in list that were looked at */
    sn_jvalue previous, current, following;
    bool has_previous, has_following;
    int64_t index0;
    int depth0;
    sn_jvalue changed; /* the values of the last call of loop.changed */
};
sn_jvalue sn_jloop_attribute(sn_jrender *r, sn_jloop *loop, const sn_jstring *name);
sn_jvalue sn_jloop_recurse(sn_jrender *r, sn_jloop *loop, sn_jvalue over);

/* ---- expressions ---- */

sn_jvalue sn_jeval(sn_jrender *r, const sn_jnode *node);
sn_jvalue sn_joperate(sn_jrender *r, sn_jsign sign, sn_jvalue a, sn_jvalue b);
bool sn_jcontains(sn_jrender *r, sn_jvalue item, sn_jvalue in);
sn_jvalue sn_jattribute(sn_jrender *r, sn_jvalue on, const sn_jstring *name); /* on.name */
sn_jvalue sn_jitem(sn_jrender *r, sn_jvalue on, sn_jvalue index);             /* on[index] */
/* on[bound[0]:bound[1]:bound[2]]; None: not given. */
sn_jvalue sn_jslice(sn_jrender *r, sn_jvalue on, const sn_jvalue bound[3]);
/* The attribute of a filter's argument: "a.b.0" or an integer. */
sn_jvalue sn_jpath(sn_jrender *r, sn_jvalue on, sn_jvalue path);

/* ---- calls ---- */

enum { SN_JPARAMETERS_MAX = 5 };

typedef struct sn_jcall {
    sn_jrender *r;
    const char *name;                  /* of what is called */
    sn_jvalue self;                    /* what a filter, test or method stands on */
    const sn_jlist *given;             /* positional arguments */
    const sn_jdict *named;             /* named arguments */
    sn_jvalue arg[SN_JPARAMETERS_MAX]; /* bound to the declared parameters */
    bool has[SN_JPARAMETERS_MAX];
} sn_jcall;

/* A function in C. `parameters`: their names, with spaces between; those behind "/" need not be given; "*": the
 * function reads `given` and `named` itself. */
typedef struct sn_jbuiltin {
    const char *name, *parameters;
    sn_jvalue (*call)(sn_jcall *call);
} sn_jbuiltin;

struct sn_jfunction {
    const sn_jbuiltin *builtin; /* NULL: a macro */
    sn_jvalue self;
    const sn_jnode *macro;
    sn_jscope *scope; /* where the macro stands */
};

sn_jvalue sn_jfunction_value(sn_jrender *r, const sn_jbuiltin *builtin, sn_jvalue self);
sn_jvalue sn_jmacro_value(sn_jrender *r, const sn_jnode *macro);
sn_jvalue sn_jcall_value(sn_jrender *r, sn_jvalue callee, const sn_jlist *given, const sn_jdict *named);

/* Arguments of a call as numbers and texts; the wrong kind fails. */
int64_t sn_jarg_int(sn_jcall *call, size_t i, int64_t otherwise);
/* The same for widths and counts: cut to what no text reaches, so that sums with lengths have no overflow. */
int64_t sn_jarg_size(sn_jcall *call, size_t i, int64_t otherwise);
bool sn_jarg_flag(sn_jcall *call, size_t i, bool otherwise);
const sn_jstring *sn_jarg_string(sn_jcall *call, size_t i, const char *otherwise); /* NULL if both are missing */
_Noreturn void sn_jcall_fail(sn_jcall *call, const char *format, ...) SN_PRINTF(2, 3);

/* The functions of each kind; each list ends with a NULL name. */
extern const sn_jbuiltin sn_jfunctions[], sn_jvalue_filters[], sn_jlist_filters[], sn_jtext_filters[], sn_jtests[];
extern const sn_jbuiltin sn_jstring_methods[], sn_jstring_searches[], sn_jlist_methods[], sn_jdict_methods[],
    sn_jloop_methods[], sn_jjoiner_methods[];
const sn_jbuiltin *sn_jfind_builtin(const sn_jbuiltin *list, const sn_jstring *name); /* or NULL */
sn_jvalue sn_japply_filter(sn_jrender *r, const sn_jstring *name, sn_jvalue on, const sn_jlist *given,
                           const sn_jdict *named);
bool sn_japply_test(sn_jrender *r, const sn_jstring *name, sn_jvalue on, const sn_jlist *given, const sn_jdict *named);

/* Texts that several filters and methods make. */
const sn_jstring *sn_jmap_case(sn_jrun *run, const sn_jstring *text,
                               char how); /* u)pper l)ower c)apitalize t)itle s)wap */
const sn_jstring *sn_jreplace(sn_jrun *run, const sn_jstring *text, const sn_jstring *old, const sn_jstring *now,
                              int64_t count);
/* Cut characters of the set (NULL: white space) from the left and the right. */
const sn_jstring *sn_jstrip(sn_jrun *run, const sn_jstring *text, const sn_jstring *set, bool left, bool right);
sn_jlist *sn_jsplit_lines(sn_jrun *run, const sn_jstring *text, bool keep_ends);
const sn_jstring *sn_jpercent_format(sn_jcall *call, const sn_jstring *format, sn_jvalue values);
bool sn_jhas_class(uint32_t code, const char *class); /* "alpha", "digit", "upper", "lower" */

#endif

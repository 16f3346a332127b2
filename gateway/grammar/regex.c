/* Regular expressions (ECMA-262) over the characters of a JSON string: parsed to a tree, then added to the grammar.
 *
 * Kept exactly: literals, ".", classes, groups, alternatives, repeats (greedy or not is one here), \d \w \s and their
 * complements, \t \n \r \f \v \0 \xHH \uHHHH \u{H...}, ^ at the beginning and $ at the end of the whole expression or
 * of one of its outer alternatives. All else is refused. */
#include "gateway/grammar/grammar_private.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS_MAX = 4096, PATTERN_DEPTH_MAX = 64, REPEAT_MAX = 2000 };

typedef enum part_kind { EMPTY, CLASS, SEQUENCE, EITHER, REPEAT } part_kind;
typedef struct part {
    part_kind kind;
    int a, b;        /* parts; of REPEAT only a */
    int least, most; /* of REPEAT; most -1: no limit */
    sn_char_class class;
} part;

typedef struct parser {
    sn_grammar *g;
    const char *at;
    part *parts;
    int n, depth;
} parser;

static int refuse(parser *p, const char *why) { return sn_grammar_fail(p->g, SN_REFUSED, "\"pattern\": %s", why); }
static bool failed(const parser *p) { return sn_grammar_error(p->g, NULL) != SN_OK; }

static int add_part(parser *p, part_kind kind, int a, int b) {
    if (p->n == PARTS_MAX) return refuse(p, "it is too long");
    p->parts[p->n] = (part){.kind = kind, .a = a, .b = b};
    return p->n++;
}

static int hex_value(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}
/* `digits` hexadecimal digits, or those before a brace if it is 0. */
static uint32_t read_hex(parser *p, int digits) {
    uint32_t value = 0;
    int n = 0;
    for (; hex_value(*p->at) >= 0 && n < (digits ? digits : 6); n++) value = value * 16 + (uint32_t)hex_value(*p->at++);
    if (!n || (digits && n < digits) || value > SN_CHAR_MAX) refuse(p, "an escape has too few hexadecimal digits");
    return value;
}

/* The classes of \d, \w, \s. False: `c` is none of them. */
static bool add_named_class(char c, sn_char_class *out) {
    static const uint32_t spaces[][2] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                         {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                         {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    sn_char_class named = {.n = 0};
    char lower = (char)(c | 0x20);
    if (lower == 'd') {
        sn_char_class_add(&named, '0', '9');
    } else if (lower == 'w') {
        sn_char_class_add(&named, '0', '9');
        sn_char_class_add(&named, 'A', 'Z');
        sn_char_class_add(&named, '_', '_');
        sn_char_class_add(&named, 'a', 'z');
    } else if (lower == 's') {
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
            sn_char_class_add(&named, spaces[i][0], spaces[i][1]);
    } else {
        return false;
    }
    bool ok = c == lower || sn_char_class_invert(&named);
    for (int i = 0; i < named.n && ok; i++) ok = sn_char_class_add(out, named.ranges[i].lo, named.ranges[i].hi);
    return ok;
}

/* What follows a backslash: one character, or a named class that is added to *class (then true). */
static bool read_escape(parser *p, sn_char_class *class, uint32_t *c) {
    static const char controls[] = "t\tn\nr\rf\fv\v";
    if (add_named_class(*p->at, class)) {
        p->at++;
        return true;
    }
    char letter = *p->at;
    const char *control = letter ? strchr(controls, letter) : NULL;
    if (control && (control - controls) % 2 == 0) {
        *c = (uint32_t)control[1];
        p->at++;
    } else if (letter == 'x' || letter == 'u') {
        p->at++;
        bool braces = letter == 'u' && *p->at == '{';
        p->at += braces;
        *c = read_hex(p, braces ? 0 : letter == 'x' ? 2 : 4);
        if (braces && *p->at++ != '}') refuse(p, "a brace is not closed"), p->at--;
    } else if (letter == '0' && !(p->at[1] >= '0' && p->at[1] <= '9')) {
        *c = 0;
        p->at++;
    } else if (!letter || (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
               (letter >= 'A' && letter <= 'Z')) {
        refuse(p, "an escape is not supported: back references, \\b, \\p and others cannot be kept");
    } else {
        *c = sn_next_code_point(&p->at);
    }
    return false;
}

/* [...] behind its bracket. */
static int parse_class(parser *p) {
    int at = add_part(p, CLASS, 0, 0);
    sn_char_class *class = &p->parts[at].class;
    bool inverted = *p->at == '^', ok = true;
    p->at += inverted;
    while (*p->at != ']' && *p->at && !failed(p) && ok) {
        uint32_t lo = 0, hi;
        if (*p->at == '\\') {
            p->at++;
            if (read_escape(p, class, &lo)) continue;
        } else {
            lo = sn_next_code_point(&p->at);
        }
        hi = lo;
        if (*p->at == '-' && p->at[1] && p->at[1] != ']') {
            sn_char_class named = {.n = 0};
            p->at++;
            if (*p->at != '\\')
                hi = sn_next_code_point(&p->at);
            else if (p->at++, read_escape(p, &named, &hi))
                return refuse(p, "a range ends with a class");
        }
        if (hi < lo) return refuse(p, "a range of characters is backwards");
        ok = sn_char_class_add(class, lo, hi);
    }
    if (failed(p)) return 0;
    if (*p->at != ']') return ok ? refuse(p, "a [ is not closed") : refuse(p, "a class has too many ranges");
    p->at++;
    return !inverted || sn_char_class_invert(class) ? at : refuse(p, "a class has too many ranges");
}

static int parse_either(parser *p);

static int parse_atom(parser *p) {
    if (*p->at == '(') {
        p->at++;
        if (*p->at == '?') { /* (?:...) and (?<name>...) */
            if (p->at[1] == '<' && p->at[2] != '=' && p->at[2] != '!')
                p->at += strcspn(p->at, ">");
            else if (p->at[1] == ':')
                p->at++;
            else
                return refuse(p, "look-around is not supported");
            if (*p->at) p->at++;
        }
        if (++p->depth > PATTERN_DEPTH_MAX) return refuse(p, "its groups nest too deep");
        int inside = parse_either(p);
        p->depth--;
        if (*p->at != ')') return refuse(p, "a ( is not closed");
        p->at++;
        return inside;
    }
    if (*p->at == '[') {
        p->at++;
        return parse_class(p);
    }
    if (*p->at == '^' || *p->at == '$')
        return refuse(p, "^ and $ are supported at the beginning and the end of an outer alternative only");
    if (*p->at == '*' || *p->at == '+' || *p->at == '?') return refuse(p, "a repeat has nothing before it");
    int at = add_part(p, CLASS, 0, 0);
    sn_char_class *class = &p->parts[at].class;
    if (*p->at == '.') { /* anything but the ends of lines */
        p->at++;
        sn_char_class_add(class, '\n', '\n');
        sn_char_class_add(class, '\r', '\r');
        sn_char_class_add(class, 0x2028, 0x2029);
        sn_char_class_invert(class);
        return at;
    }
    uint32_t c = 0;
    if (*p->at == '\\') {
        p->at++;
        if (read_escape(p, class, &c)) return at;
    } else {
        c = sn_next_code_point(&p->at);
    }
    sn_char_class_add(class, c, c);
    return at;
}

/* One more than is allowed stands for all larger ones, which an int may not hold. */
static int read_count(const char *at, char **end) {
    const long n = strtol(at, end, 10);
    return n > REPEAT_MAX ? REPEAT_MAX + 1 : (int)n;
}

/* {m}, {m,} or {m,n} behind the brace; false: it is something else. */
static bool read_counts(const char **at, int *least, int *most) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    *least = *most = read_count(*at, &end);
    if (*end == ',') {
        end++;
        *most = -1;
        if (*end >= '0' && *end <= '9') *most = read_count(end, &end);
    }
    if (*end != '}') return false;
    *at = end + 1;
    return true;
}

static int parse_repeat(parser *p) {
    int inside = parse_atom(p);
    while (*p->at && strchr("*+?{", *p->at) && !failed(p)) {
        int least = *p->at == '+', most = *p->at == '?' ? 1 : -1;
        bool counted = *p->at++ == '{';
        if (counted && !read_counts(&p->at, &least, &most)) return refuse(p, "a { does not begin a repeat: write \\{");
        if (least < 0 || least > REPEAT_MAX || most > REPEAT_MAX) return refuse(p, "it repeats something too often");
        if (most >= 0 && most < least) return refuse(p, "the limits of a repeat are backwards");
        if (*p->at == '?') p->at++; /* lazy: which texts match is the same */
        inside = add_part(p, REPEAT, inside, 0);
        p->parts[inside].least = least;
        p->parts[inside].most = most;
    }
    return inside;
}

static int parse_sequence(parser *p) {
    int all = add_part(p, EMPTY, 0, 0);
    while (*p->at && *p->at != '|' && *p->at != ')' && !failed(p)) {
        if (*p->at == '$' && !p->depth && (!p->at[1] || p->at[1] == '|')) break;
        int next = parse_repeat(p); /* before add_part, which may not be called in between */
        all = add_part(p, SEQUENCE, all, next);
    }
    return all;
}

static int parse_either(parser *p) {
    int all = parse_sequence(p);
    while (*p->at == '|' && !failed(p)) {
        p->at++;
        int other = parse_sequence(p);
        all = add_part(p, EITHER, all, other);
    }
    return all;
}

static int add_tree(parser *p, int at, int next) {
    const part *x = &p->parts[at];
    if (failed(p)) return SN_END;
    switch (x->kind) {
    case EMPTY:
        return next;
    case CLASS:
        return sn_add_string_char(p->g, &x->class, next);
    case SEQUENCE:
        return add_tree(p, x->a, add_tree(p, x->b, next));
    case EITHER:
        return sn_add_split(p->g, add_tree(p, x->a, next), add_tree(p, x->b, next));
    case REPEAT:
        break;
    }
    int rule = sn_add_rule(p->g);
    sn_set_rule(p->g, rule, add_tree(p, x->a, SN_END));
    return sn_add_repeat(p->g, rule, x->least, x->most, next);
}

/* Any characters. */
static int add_anything(sn_grammar *g, int next) {
    sn_char_class all = {.n = 0};
    sn_char_class_invert(&all);
    int rule = sn_add_rule(g);
    sn_set_rule(g, rule, sn_add_string_char(g, &all, SN_END));
    return sn_add_repeat(g, rule, 0, -1, next);
}

/* The outer alternatives, each with its own anchors. */
static int add_alternatives(parser *p, int next) {
    int all = -1;
    for (bool more = true; more; p->at += more) {
        bool begins = *p->at == '^';
        p->at += begins;
        int tree = parse_sequence(p);
        bool ends = *p->at == '$';
        p->at += ends;
        if (failed(p)) return SN_END;
        int one = add_tree(p, tree, ends ? next : add_anything(p->g, next));
        if (!begins) one = add_anything(p->g, one);
        all = all < 0 ? one : sn_add_split(p->g, all, one);
        more = *p->at == '|';
    }
    return *p->at ? refuse(p, "a ) closes nothing") : all;
}

int sn_add_pattern(sn_grammar *g, const char *pattern, int next) {
    parser p = {.g = g, .at = pattern};
    sn_err err;
    if (sn_calloc(&p.parts, PARTS_MAX + 1, sizeof *p.parts, &err)) return sn_grammar_fail(g, SN_STOP, "%s", err.text);
    int at = add_alternatives(&p, next);
    free(p.parts);
    return at;
}

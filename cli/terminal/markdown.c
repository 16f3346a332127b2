/* How it works. `held` is the part of the text that is not decided yet. markdown_run looks at its beginning: at the
 * beginning of a line, begin_line decides what the line is; within a line, text up to the next mark is copied, and
 * find_span decides whether a mark opens a span that is closed on the same line. Both answer WAIT when the answer
 * depends on text that has not come; a limit ends each wait. An answer depends on the text alone, never on how much of
 * it has come beyond what it needs, so the cuts of the stream do not show. */
#include "cli/terminal/markdown.h"

#include <ctype.h>
#include <string.h>

enum { BOLD = 1, ITALIC = 2, CODE = 4, DIM = 8, UNDERLINE = 16 };
enum { HELD_MAX = 1 << 28, PREFIX_MAX = 80, DEPTH_MAX = 3 };

/* Where the output goes; `failed` is kept so that the code between need not look at each append. */
typedef struct sink {
    sn_markdown *m;
    sn_buf *out;
    sn_err *err;
    sn_status status;
} sink;

static void put(sink *s, const char *text, size_t n) {
    if (!s->status && n) s->status = sn_buf_append(s->out, text, n, s->err);
}

static void set_styles(sink *s, unsigned styles) {
    static const struct {
        unsigned style;
        const char *code;
    } codes[] = {{BOLD, "\033[1m"}, {ITALIC, "\033[3m"}, {CODE, "\033[36m"}, {DIM, "\033[2m"}, {UNDERLINE, "\033[4m"}};
    if (s->m->styles == styles) return;
    if (s->m->styles & ~styles) {
        put(s, "\033[0m", 4);
        s->m->styles = 0;
    }
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (styles & ~s->m->styles & codes[i].style) put(s, codes[i].code, strlen(codes[i].code));
    s->m->styles = styles;
}

static size_t run_of(const char *text, size_t n, char c) {
    size_t k = 0;
    while (k < n && text[k] == c) k++;
    return k;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }
static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; } /* of ASCII: bytes of others are none */

/* -- spans of a line -- */

typedef enum answer { WAIT, NO, YES } answer;

typedef struct span {
    unsigned styles;
    size_t mark, content; /* bytes of the mark at each end, and of what stands between */
} span;

/* Where a code span that begins at text ends: bytes with both marks. NO: `*bytes` is that of the mark alone. */
static answer find_code_span(const char *text, size_t n, bool whole, size_t *bytes) {
    size_t mark = run_of(text, sn_min_size(n, SN_MARKDOWN_SPAN_MAX), '`');
    *bytes = mark;
    if (mark == SN_MARKDOWN_SPAN_MAX) return NO;
    if (mark == n && !whole) return WAIT;
    for (size_t at = mark; at < n && at < SN_MARKDOWN_SPAN_MAX; at++) {
        if (text[at] == '\n') return NO;
        if (text[at] != '`') continue;
        size_t run = run_of(text + at, n - at, '`');
        if (at + run == n && !whole && run <= mark) return WAIT;
        if (run == mark) {
            *bytes = at + run;
            return YES;
        }
        at += run - 1;
    }
    return n >= SN_MARKDOWN_SPAN_MAX || whole ? NO : WAIT;
}

/* Whether a run of marks at `at` closes emphasis that `mark` marks opened. */
static answer closes(const char *text, size_t n, size_t at, size_t mark, bool whole) {
    size_t run = run_of(text + at, n - at, *text), end = at + run;
    if (end == n && !whole && run <= mark) return WAIT;
    if (run != mark || is_space(text[at - 1])) return NO;
    return end < n && (*text == '_' || mark == 1) && is_word(text[end]) ? NO : YES;
}

/* Emphasis that begins at text, after the byte `before`. */
static answer find_emphasis(const char *text, size_t n, char before, bool whole, span *out) {
    size_t mark = run_of(text, sn_min_size(n, SN_MARKDOWN_SPAN_MAX), *text), most = *text == '_' ? 1 : 3;
    *out = (span){.mark = mark};
    if (mark == n && !whole && mark < SN_MARKDOWN_SPAN_MAX) return WAIT;
    if (mark > most || mark == n || is_space(text[mark]) || is_word(before)) return NO;
    for (size_t at = mark; at < n && at < SN_MARKDOWN_SPAN_MAX; at++) {
        size_t skip = 1;
        answer is = NO;
        if (text[at] == '\n') return NO;
        if (text[at] == '`') {
            is = find_code_span(text + at, n - at, whole, &skip);
            if (is == WAIT) return WAIT;
        } else if (text[at] == '\\') {
            skip = 2;
        } else if (text[at] == *text) {
            is = closes(text, n, at, mark, whole);
            if (is == WAIT) return WAIT;
            if (is == YES) {
                static const unsigned styles[] = {0, ITALIC, BOLD, BOLD | ITALIC};
                *out = (span){.styles = styles[mark], .mark = mark, .content = at - mark};
                return YES;
            }
            skip = run_of(text + at, n - at, *text);
        }
        at += skip - 1;
    }
    return n >= SN_MARKDOWN_SPAN_MAX || whole ? NO : WAIT;
}

static answer find_span(const char *text, size_t n, char before, bool whole, span *out) {
    if (*text != '`') return find_emphasis(text, n, before, whole, out);
    size_t bytes;
    answer is = find_code_span(text, n, whole, &bytes);
    size_t mark = is == YES ? run_of(text, n, '`') : bytes;
    *out = (span){.styles = CODE, .mark = mark, .content = is == YES ? bytes - 2 * mark : 0};
    return is;
}

static bool is_mark(char c) { return c == '*' || c == '_' || c == '`' || c == '\\'; }

/* Shows text of one line (n bytes, of which `whole` says that no more come) in the styles `base`, and returns how much
 * of it was shown. */
static size_t put_inline(sink *s, const char *text, size_t n, bool whole, unsigned base, int depth) {
    size_t at = 0;
    while (at < n && text[at] != '\n') {
        size_t plain = at;
        while (plain < n && text[plain] != '\n' && !is_mark(text[plain])) plain++;
        set_styles(s, base);
        put(s, text + at, plain - at);
        if (plain > at) s->m->before = text[plain - 1];
        at = plain;
        if (at == n || text[at] == '\n') break;
        if (text[at] == '\\') {
            if (at + 1 == n && !whole) break;
            bool escapes = at + 1 < n && (is_mark(text[at + 1]) || text[at + 1] == '#');
            put(s, text + at + escapes, 1);
            s->m->before = text[at + escapes];
            at += 1 + escapes;
            continue;
        }
        span found;
        answer is = find_span(text + at, n - at, s->m->before, whole, &found);
        if (is == WAIT) break;
        const char *content = text + at + found.mark;
        if (is == YES) {
            s->m->before = ' ';
            set_styles(s, base | found.styles);
            if (found.styles == CODE || depth == DEPTH_MAX)
                put(s, content, found.content);
            else
                put_inline(s, content, found.content, true, base | found.styles, depth + 1);
            set_styles(s, base);
            s->m->before = content[found.content];
            at += 2 * found.mark + found.content;
        } else {
            put(s, text + at, found.mark);
            s->m->before = text[at];
            at += found.mark;
        }
    }
    return at;
}

/* -- lines -- */

/* Whether a line that begins with `run` marks of fences (at text, without its indent) begins or ends a block. */
static answer find_fence(sn_markdown *m, const char *text, size_t n, size_t run, bool whole) {
    size_t seen = sn_min_size(n, PREFIX_MAX), blank = run;
    if (m->fence) { /* nothing but blanks follows the marks that end it */
        while (blank < seen && text[blank] == ' ') blank++;
        if (run < m->fence || (blank < seen && text[blank] != '\n')) return NO;
        if (blank == n && blank < PREFIX_MAX && !whole) return WAIT;
        m->fence = 0;
        return YES;
    }
    if (run < 3) return NO;
    const char *end = memchr(text, '\n', seen);
    if (!end && n < PREFIX_MAX && !whole) return WAIT;
    if (*text == '`' && memchr(text + run, '`', (end ? (size_t)(end - text) : seen) - run)) return NO; /* a span */
    m->fence = run;
    m->fence_mark = *text;
    return YES;
}

/* Decides what the line at text is. WAIT, or YES: *used bytes of its beginning were shown or left out. */
static answer begin_line(sink *s, const char *text, size_t n, bool whole, size_t *used) {
    sn_markdown *m = s->m;
    size_t indent = run_of(text, sn_min_size(n, PREFIX_MAX), ' ');
    const char *at = text + indent;
    size_t left = n - indent, run = left ? run_of(at, sn_min_size(left, PREFIX_MAX), *at) : 0;
    *used = 0;
    m->line = m->fence ? SN_MARKDOWN_CODE : SN_MARKDOWN_TEXT;
    if (indent == PREFIX_MAX || run == PREFIX_MAX) return YES;
    if (!left) return whole ? YES : WAIT;
    bool open = run == left && !whole; /* the run may go on */
    if ((*at == '`' || *at == '~') && indent < 4 && (!m->fence || *at == m->fence_mark)) {
        answer is = open ? WAIT : find_fence(m, at, left, run, whole);
        if (is == YES) m->line = SN_MARKDOWN_FENCE;
        return is == WAIT ? WAIT : YES;
    }
    if (m->fence) return YES;
    if (*at == '#' && indent < 4) {
        if (open) return WAIT;
        if (run > 6 || (run < left && at[run] != ' ' && at[run] != '\n')) return YES;
        m->line = SN_MARKDOWN_HEADING;
        *used = indent + run + (run < left && at[run] == ' ');
    } else if (*at == '-' || *at == '*' || *at == '+') {
        if (open) return WAIT;
        if (run > 1 || run == left || at[run] != ' ') return YES;
        put(s, text, indent);
        put(s, "\xe2\x80\xa2 ", 4);
        *used = indent + 2;
        m->before = ' ';
    }
    return YES;
}

/* Shows what of `held` can be shown; `whole`: no more text comes. */
static sn_status markdown_run(sink *s, bool whole) {
    sn_markdown *m = s->m;
    size_t at = 0;
    while (at < m->held.len && !s->status) {
        const char *text = (const char *)m->held.data + at;
        size_t n = m->held.len - at, used = 0;
        if (m->line == SN_MARKDOWN_BEGIN) {
            m->before = '\n';
            if (begin_line(s, text, n, whole, &used) == WAIT) {
                m->line = SN_MARKDOWN_BEGIN;
                break;
            }
            at += used;
            continue;
        }
        if (m->line == SN_MARKDOWN_CODE || m->line == SN_MARKDOWN_FENCE) {
            const char *end = memchr(text, '\n', n);
            used = end ? (size_t)(end - text) : n;
            if (used) set_styles(s, m->line == SN_MARKDOWN_CODE ? CODE : DIM);
            put(s, text, used);
        } else {
            used = put_inline(s, text, n, whole, m->line == SN_MARKDOWN_HEADING ? BOLD | UNDERLINE : 0, 0);
        }
        at += used;
        if (used == n || text[used] != '\n') break;
        set_styles(s, 0);
        put(s, "\n", 1);
        m->line = SN_MARKDOWN_BEGIN;
        at++;
    }
    memmove(m->held.data, m->held.data + at, m->held.len - at);
    m->held.len -= at;
    return s->status;
}

void sn_markdown_init(sn_markdown *m) {
    *m = (sn_markdown){.before = '\n'};
    sn_buf_init(&m->held, HELD_MAX);
}

void sn_markdown_fini(sn_markdown *m) { sn_buf_fini(&m->held); }

sn_status sn_markdown_push(sn_markdown *m, const char *text, size_t n, sn_buf *out, sn_err *err) {
    sn_status status = sn_buf_append(&m->held, text, n, err);
    return status || !n ? status : markdown_run(&(sink){m, out, err, SN_OK}, false);
}

sn_status sn_markdown_end(sn_markdown *m, sn_buf *out, sn_err *err) {
    sink s = {m, out, err, SN_OK};
    if (m->held.len && markdown_run(&s, true)) return s.status;
    set_styles(&s, 0);
    m->line = SN_MARKDOWN_BEGIN;
    m->fence = 0;
    m->before = '\n';
    return s.status;
}

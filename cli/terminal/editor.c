/* How it works. libedit edits the line; read_character gives it the characters. That function waits for bytes, lets
 * keys.h part characters from pastes, and does what is to be done meanwhile (idle work, notices above the prompt,
 * interrupts). Text that must enter the line at once (a paste, what was typed ahead, a line break of a block) waits in
 * `insert`, and read_character sends the key INSERT_KEY, which is bound to insert_text.
 *
 * Terminal modes. libedit prepares the terminal once, and again after each line, so that nothing is echoed while the
 * program works. The handler of signals that end or stop the process needs the modes, which are therefore global. */
#include "cli/terminal/editor.h"

#include "base/terminal.h"
#include "cli/terminal/history.h"
#include "cli/terminal/keys.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum {
    IDLE_MS = 200,
    PASTE_END_MS = 2000, /* how long the rest of a paste that was typed ahead is awaited */
    VISIBLE_BYTES = 2000,
    VISIBLE_LINES = 12, /* a paste above one of these is shown by its size */
    PASTES_MAX = 64,
    ESC = 27,
    INSERT_KEY = 30, /* Ctrl-^ */
};

typedef struct paste {
    sn_buf text;
    char name[64]; /* that stands for it in the line */
} paste;

struct sn_editor {
    sn_editor_options options;
    EditLine *el;
    HistoryW *history;
    FILE *in, *out, *errors;
    wchar_t prompt[32];
    sn_keys keys;
    sn_buf insert; /* UTF-8 that is to enter the line */
    paste pastes[PASTES_MAX];
    size_t n_pastes;
    char *last_entry; /* of the history */
    bool ended, interrupted, after_escape;
    sn_status status; /* of read_character */
    sn_err *err;
};

/* -- modes of the terminal -- */

#define PASTES_ON  "\033[?2004h"
#define PASTES_OFF "\033[?2004l"

static struct {
    struct termios before, editing;
    bool smart; /* knows bracketed pastes */
    volatile sig_atomic_t open, continued, resized;
} modes;

static const int ending_signals[] = {SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
static struct sigaction actions_before[sizeof ending_signals / sizeof *ending_signals], resize_before;

static void announce_pastes(bool on) {
    const char *text = on ? PASTES_ON : PASTES_OFF;
    if (modes.smart && write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

void sn_editor_restore_terminal(void) {
    if (!modes.open) return;
    announce_pastes(false);
    tcsetattr(STDIN_FILENO, TCSANOW, &modes.before);
}

static void on_ending_signal(int number) {
    int saved = errno;
    struct sigaction ours, plain = {.sa_handler = SIG_DFL};
    sigset_t this_one;
    sigemptyset(&this_one);
    sigaddset(&this_one, number);
    sn_editor_restore_terminal();
    sigaction(number, &plain, &ours);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &this_one, NULL); /* the process ends or stops here */
    sigaction(number, &ours, NULL);
    tcsetattr(STDIN_FILENO, TCSANOW, &modes.editing);
    announce_pastes(true);
    modes.continued = 1;
    errno = saved;
}

static void on_resize(int number) {
    (void)number;
    modes.resized = 1;
}

static void watch_signals(void) {
    struct sigaction ending = {.sa_handler = on_ending_signal}, resize = {.sa_handler = on_resize};
    for (size_t i = 0; i < sizeof ending_signals / sizeof *ending_signals; i++)
        sigaction(ending_signals[i], &ending, &actions_before[i]);
    sigaction(SIGWINCH, &resize, &resize_before);
}

static void unwatch_signals(void) {
    for (size_t i = 0; i < sizeof ending_signals / sizeof *ending_signals; i++)
        sigaction(ending_signals[i], &actions_before[i], NULL);
    sigaction(SIGWINCH, &resize_before, NULL);
}

/* -- text in the line -- */

/* UTF-8 as wide characters; free it. NULL: memory is out. */
static wchar_t *widen(const char *text, size_t n) {
    wchar_t *wide = calloc(n + 1, sizeof *wide);
    size_t used = 0;
    for (size_t at = 0; wide && at < n;) {
        uint32_t c;
        size_t bytes = sn_utf8_next((const uint8_t *)text + at, n - at, &c);
        wide[used++] = (wchar_t)c;
        at += bytes ? bytes : n - at;
    }
    return wide;
}

static sn_status narrow(const wchar_t *wide, size_t n, sn_buf *out, sn_err *err) {
    sn_status status = SN_OK;
    char text[4];
    for (size_t i = 0; i < n && !status; i++)
        status = sn_buf_append(out, text, sn_utf8_put((uint32_t)wide[i], text), err);
    return status;
}

static unsigned char insert_text(EditLine *el, int key) {
    sn_editor *e;
    (void)key;
    el_wget(el, EL_CLIENTDATA, &e);
    wchar_t *wide = widen((char *)e->insert.data, e->insert.len);
    bool done = e->insert.len && wide && !el_winsertstr(el, wide);
    free(wide);
    e->insert.len = 0;
    return done ? CC_REFRESH : CC_NORM;
}

static unsigned char insert_newline(EditLine *el, int key) {
    (void)key;
    return el_winsertstr(el, L"\n") ? CC_ERROR : CC_REFRESH;
}

/* Whether the line begins a block with three quotes and does not end it. */
static bool in_block(const wchar_t *text, size_t n) {
    static const wchar_t quotes[] = L"\"\"\"";
    while (n && wcschr(L" \t\n", *text)) text++, n--;
    while (n && wcschr(L" \t\n", text[n - 1])) n--;
    if (n < 3 || wcsncmp(text, quotes, 3)) return false;
    return n < 6 || wcsncmp(text + n - 3, quotes, 3) != 0;
}

/* Puts pasted text into the line, or its name if it is large. Takes the buffer. */
static void take_paste(sn_editor *e, sn_buf *text) {
    size_t lines = 1;
    for (size_t i = 0; i < text->len; i++) lines += text->data[i] == '\n';
    if ((text->len > VISIBLE_BYTES || lines > VISIBLE_LINES) && e->n_pastes < PASTES_MAX) {
        paste *p = &e->pastes[e->n_pastes++];
        if (lines > 1)
            snprintf(p->name, sizeof p->name, "[pasted text %zu: %zu lines]", e->n_pastes, lines);
        else
            snprintf(p->name, sizeof p->name, "[pasted text %zu: %zu bytes]", e->n_pastes, text->len);
        p->text = *text;
        e->status = sn_buf_append(&e->insert, p->name, strlen(p->name), e->err);
        return;
    }
    e->status = sn_buf_append(&e->insert, text->data, text->len, e->err);
    sn_buf_fini(text);
}

static void forget_pastes(sn_editor *e) {
    while (e->n_pastes) sn_buf_fini(&e->pastes[--e->n_pastes].text);
}

/* -- what stands on the screen -- */

static int columns(void) {
    struct winsize size;
    return !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col > 1 ? size.ws_col : 80;
}

/* The row, counted from the prompt's, in which libedit shows the end of a text (n characters). */
static int row_of(const sn_editor *e, const wchar_t *text, size_t n) {
    int row = 0, column = (int)strlen(e->options.prompt), width = columns();
    for (size_t i = 0; i < n; i++) {
        int cells = wcwidth(text[i]);
        if (text[i] == '\n') {
            row++;
            column = 0;
            continue;
        }
        if (text[i] == '\t')
            cells = 8 - column % 8;
        else if (cells < 0)
            cells = text[i] < 128 ? 2 : 8; /* ^X, \U+abcd */
        if (column + cells > width) {
            row++;
            column = 0;
        }
        column += cells;
        if (column >= width) {
            row++;
            column = 0;
        }
    }
    return row;
}

static int cursor_row(const sn_editor *e) {
    const LineInfoW *line = el_wline(e->el);
    return row_of(e, line->buffer, (size_t)(line->cursor - line->buffer));
}

/* Prints text that may come from a peer, or names a file that others made. */
static void print_clean(const sn_editor *e, const char *text, size_t n) {
    sn_terminal_text state = {0};
    for (size_t at = 0, part; at < n; at += part) {
        char clean[3 * (256 + 4)];
        part = sn_min_size(256, n - at);
        fwrite(clean, 1, sn_terminal_clean(&state, text + at, part, clean), e->out);
    }
}

/* Shows text above the prompt, and the line again below it. */
static void show_above(sn_editor *e, const char *text, size_t n) {
    int row = cursor_row(e);
    if (modes.smart && row) fprintf(e->out, "\r\033[%dA\033[J", row);
    if (modes.smart && !row) fputs("\r\033[J", e->out);
    if (!modes.smart) fputc('\n', e->out);
    print_clean(e, text, n);
    if (n && text[n - 1] != '\n') fputc('\n', e->out);
    fflush(e->out);
    el_wset(e->el, EL_REFRESH);
}

/* Leaves the line as it stands, and begins a new one below it. */
static void leave_line(sn_editor *e) {
    const LineInfoW *line = el_wline(e->el);
    int rows = row_of(e, line->buffer, (size_t)(line->lastchar - line->buffer)) - cursor_row(e);
    if (line->lastchar > line->buffer) fputs("^C", e->out);
    for (; rows >= 0; rows--) fputc('\n', e->out);
    fflush(e->out);
}

/* -- waiting for keys -- */

static void show_notices(sn_editor *e) {
    sn_buf text;
    if (!e->options.notices) return;
    sn_buf_init(&text, 1 << 20);
    e->options.notices(e->options.ctx, &text);
    if (text.len) show_above(e, (char *)text.data, text.len);
    sn_buf_fini(&text);
}

/* Reads what the terminal has; false at its end. */
static bool read_keys(sn_editor *e) {
    char chunk[65536];
    ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (n <= 0) return false;
    e->status = sn_keys_push(&e->keys, chunk, (size_t)n, e->err);
    return true;
}

/* Waits for keys; false when there will be none: an interrupt, the end, or a failure. */
static bool wait_for_keys(sn_editor *e) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    int ready = poll(&in, 1, IDLE_MS);
    if (sn_is_cancelled(e->options.interrupt)) {
        e->interrupted = true;
        return false;
    }
    if (modes.resized) {
        modes.resized = 0;
        el_resize(e->el);
    }
    if (modes.continued) {
        modes.continued = 0;
        el_wset(e->el, EL_REFRESH);
    }
    if (ready > 0) {
        e->ended = !read_keys(e);
        return !e->ended && !e->status;
    }
    if (!ready && e->options.idle) e->options.idle(e->options.ctx);
    if (!ready && !e->keys.in_paste) show_notices(e);
    return true;
}

/* libedit's source of characters: 1 and a character, 0 at the end, -1 after an interrupt or a failure. */
static int read_character(EditLine *el, wchar_t *out) {
    sn_editor *e;
    el_wget(el, EL_CLIENTDATA, &e);
    while (!e->status) {
        sn_buf text;
        uint32_t c;
        if (e->insert.len) {
            *out = INSERT_KEY;
            return 1;
        }
        sn_buf_init(&text, SN_EDITOR_PASTE_MAX);
        sn_key key = sn_keys_next(&e->keys, &c, &text, &e->status, e->err);
        if (key == SN_KEY_PASTE && !e->status) {
            take_paste(e, &text);
        } else if (key == SN_KEY_CHARACTER) {
            const LineInfoW *line = el_wline(el);
            bool enter = (c == '\r' || c == '\n') && !e->after_escape;
            e->after_escape = c == ESC;
            *out = (wchar_t)c;
            if (!enter || !in_block(line->buffer, (size_t)(line->lastchar - line->buffer))) return 1;
            e->status = sn_buf_append(&e->insert, "\n", 1, e->err);
        } else {
            sn_buf_fini(&text);
            if (!wait_for_keys(e)) return e->ended ? 0 : -1;
        }
    }
    return -1;
}

/* What was typed since the last message becomes text of the line. */
static sn_status take_typed_ahead(sn_editor *e) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    sn_buf text;
    sn_buf_init(&text, SN_EDITOR_PASTE_MAX);
    while (!e->status && poll(&in, 1, e->keys.in_paste ? PASTE_END_MS : 0) > 0) {
        if (!read_keys(e)) break; /* the end shows again when the line is read */
        if (!e->status) e->status = sn_keys_typed_ahead(&e->keys, &text, e->err);
    }
    if (text.len && !e->status)
        take_paste(e, &text);
    else
        sn_buf_fini(&text);
    return e->status;
}

/* -- completion -- */

void sn_completions_add(sn_completions *c, const char *text, const char *before, const char *word) {
    char *whole;
    if (c->n == SN_COMPLETIONS_MAX || asprintf(&whole, "%s%s", before, word) < 0) return;
    if (strncmp(whole, text, strlen(text)))
        free(whole);
    else
        c->items[c->n++] = whole;
}

static size_t common_length(const sn_completions *c) {
    size_t n = strlen(c->items[0]);
    for (size_t i = 1; i < c->n; i++) {
        size_t same = 0;
        while (same < n && c->items[i][same] == c->items[0][same]) same++;
        n = same;
    }
    while (n && (c->items[0][n] & 0xc0) == 0x80) n--; /* not within a character */
    return n;
}

static void list_completions(sn_editor *e, const sn_completions *c) {
    fputc('\n', e->out);
    for (size_t i = 0; i < c->n; i++) {
        const char *space = strrchr(c->items[i], ' ');
        if (space && !space[1]) /* a space that follows the word */
            space = memrchr(c->items[i], ' ', (size_t)(space - c->items[i]));
        const char *word = space ? space + 1 : c->items[i];
        print_clean(e, word, strlen(word));
        fputs(i + 1 < c->n ? "  " : "\n", e->out);
    }
    fflush(e->out);
}

static unsigned char complete_text(EditLine *el, int key) {
    sn_editor *e;
    sn_completions found = {0};
    sn_buf text;
    unsigned char result = CC_REFRESH_BEEP;
    (void)key;
    el_wget(el, EL_CLIENTDATA, &e);
    const LineInfoW *line = el_wline(el);
    sn_buf_init(&text, 1 << 16);
    if (narrow(line->buffer, (size_t)(line->cursor - line->buffer), &text, NULL) || sn_buf_append(&text, "", 1, NULL))
        text.len = 0;
    if (text.len && e->options.complete) e->options.complete(e->options.ctx, (char *)text.data, &found);
    if (found.n) {
        size_t have = text.len - 1, common = common_length(&found);
        wchar_t *rest = common > have ? widen(found.items[0] + have, common - have) : NULL;
        if (rest && !el_winsertstr(el, rest)) {
            result = CC_REFRESH;
        } else if (found.n > 1) {
            list_completions(e, &found);
            result = CC_REDISPLAY;
        }
        free(rest);
    }
    while (found.n) free(found.items[--found.n]);
    sn_buf_fini(&text);
    return result;
}

/* -- messages -- */

/* The line with its pastes in place of their names. */
static sn_status expand_pastes(const sn_editor *e, const sn_buf *line, sn_buf *out, sn_err *err) {
    const char *at = (const char *)line->data;
    size_t n = line->len;
    sn_status status = SN_OK;
    for (size_t i = 0; i < e->n_pastes && !status; i++) {
        const paste *p = &e->pastes[i];
        const char *found = n ? memmem(at, n, p->name, strlen(p->name)) : NULL;
        if (!found) continue;
        status = sn_buf_append(out, at, (size_t)(found - at), err);
        if (!status) status = sn_buf_append(out, p->text.data, p->text.len, err);
        n -= (size_t)(found - at) + strlen(p->name);
        at = found + strlen(p->name);
    }
    return status ? status : sn_buf_append(out, at, n, err);
}

static void remember(sn_editor *e, const char *text, size_t n) {
    wchar_t *wide = n && n <= SN_HISTORY_ENTRY_BYTES ? widen(text, n) : NULL;
    HistEventW event;
    if (!wide || (e->last_entry && !strcmp(e->last_entry, text))) {
        free(wide);
        return;
    }
    history_w(e->history, &event, H_ENTER, wide);
    free(wide);
    free(e->last_entry);
    e->last_entry = strdup(text);
    if (e->options.history) sn_history_append(e->options.history, text);
}

/* Leaves what stands between the three quotes of a block. */
static void strip_block(sn_buf *message) {
    char *text = (char *)message->data;
    size_t n = message->len, begin = 0;
    while (n && strchr(" \t\n", text[n - 1])) n--;
    while (begin < n && strchr(" \t\n", text[begin])) begin++;
    if (n - begin < 6 || memcmp(text + begin, "\"\"\"", 3) || memcmp(text + n - 3, "\"\"\"", 3)) return;
    begin += 3;
    n -= 3;
    begin += begin < n && text[begin] == '\n';
    n -= n > begin && text[n - 1] == '\n';
    memmove(text, text + begin, n - begin);
    message->len = n - begin;
}

static sn_status take_message(sn_editor *e, const wchar_t *line, size_t n, sn_buf *out, sn_err *err) {
    sn_buf text;
    sn_buf_init(&text, SN_EDITOR_PASTE_MAX);
    if (n && line[n - 1] == '\n') n--;
    sn_status status = narrow(line, n, &text, err);
    if (!status) status = expand_pastes(e, &text, out, err);
    if (!status) status = sn_buf_append(out, "", 1, err);
    sn_buf_fini(&text);
    if (status) return status;
    out->len--;
    remember(e, (char *)out->data, out->len);
    strip_block(out);
    out->data[out->len] = 0;
    return SN_OK;
}

sn_status sn_editor_read(sn_editor *e, sn_buf *out, sn_editor_event *event, sn_err *err) {
    int n = 0;
    *event = SN_EDITOR_END;
    e->status = SN_OK;
    e->err = err;
    e->interrupted = e->ended = e->after_escape = false;
    modes.continued = modes.resized = 0;
    sn_status status = take_typed_ahead(e);
    if (status) return status;
    const wchar_t *line = el_wgets(e->el, &n);
    if (line && n > 0 && !e->interrupted && !e->status) {
        *event = SN_EDITOR_MESSAGE;
        status = take_message(e, line, (size_t)n, out, err);
    } else if (e->interrupted) {
        const LineInfoW *left = el_wline(e->el);
        *event = left->lastchar > left->buffer || e->keys.in_paste ? SN_EDITOR_DROPPED : SN_EDITOR_INTERRUPT;
        leave_line(e);
        sn_keys_drop(&e->keys);
    } else {
        fputc('\n', e->out);
        fflush(e->out);
    }
    el_wset(e->el, EL_PREP_TERM, 1); /* nothing is echoed until the next line is read */
    forget_pastes(e);
    return status ? status : e->status;
}

/* -- opening -- */

static wchar_t *show_prompt(EditLine *el) {
    sn_editor *e;
    el_wget(el, EL_CLIENTDATA, &e);
    return e->prompt;
}

static void bind_keys(EditLine *el) {
    static const char *const keys[][2] = {
        {"^R", "em-inc-search-prev"},  {"^W", "ed-delete-prev-word"}, {"^U", "vi-kill-line-prev"},
        {"^L", "ed-clear-screen"},     {"^I", "swarm-complete"},      {"^^", "swarm-insert"},
        {"\033\r", "swarm-newline"},   {"\033\n", "swarm-newline"},   {"\033[1;5C", "em-next-word"},
        {"\033[1;5D", "ed-prev-word"}, {"\033[H", "ed-move-to-beg"},  {"\033[F", "ed-move-to-end"},
        {"\033[1~", "ed-move-to-beg"}, {"\033[4~", "ed-move-to-end"}, {"\033[3~", "ed-delete-next-char"},
        {"\033[A", "ed-prev-history"}, {"\033[B", "ed-next-history"}, {"\033[C", "ed-next-char"},
        {"\033[D", "ed-prev-char"},    {"\033OA", "ed-prev-history"}, {"\033OB", "ed-next-history"},
        {"\033OC", "ed-next-char"},    {"\033OD", "ed-prev-char"},    {"\033OH", "ed-move-to-beg"},
        {"\033OF", "ed-move-to-end"},
    };
    el_wset(el, EL_ADDFN, L"swarm-insert", L"insert the text that waits", insert_text);
    el_wset(el, EL_ADDFN, L"swarm-newline", L"begin a new line of the message", insert_newline);
    el_wset(el, EL_ADDFN, L"swarm-complete", L"complete a command", complete_text);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) el_set(el, EL_BIND, keys[i][0], keys[i][1], NULL);
}

static void enter_history(void *ctx, const char *text) {
    sn_editor *e = ctx;
    HistEventW event;
    wchar_t *wide = widen(text, strlen(text));
    if (wide) history_w(e->history, &event, H_ENTER, wide);
    free(wide);
    free(e->last_entry);
    e->last_entry = strdup(text);
}

/* libedit drops a style that ends with the prompt, so the last character stands outside. */
static void set_prompt(sn_editor *e) {
    const char *text = e->options.prompt;
    size_t n = strlen(text), last = n ? n - 1 : 0, room = sizeof e->prompt / sizeof *e->prompt;
    if (e->options.styles && modes.smart)
        swprintf(e->prompt, room, L"\1\033[1m\1%.*s\1\033[0m\1%s", (int)last, text, text + last);
    else
        swprintf(e->prompt, room, L"%s", text);
    el_wset(e->el, EL_PROMPT_ESC, show_prompt, L'\1');
}

static sn_status start_libedit(sn_editor *e, sn_err *err) {
    HistEventW event;
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8")) setlocale(LC_CTYPE, "C.UTF-8");
    e->in = fdopen(dup(STDIN_FILENO), "r"); /* not stdin and stderr, which may be cleaned copies */
    e->out = fdopen(dup(STDERR_FILENO), "w");
    e->errors = fopen("/dev/null", "w");
    e->history = history_winit();
    if (e->in && e->out && e->errors && e->history)
        e->el = el_init_fd(e->options.program, e->in, e->out, e->errors, STDIN_FILENO, STDERR_FILENO, STDERR_FILENO);
    if (!e->el) return sn_fail(err, SN_REFUSED, "the terminal cannot be used for editing: %s", strerror(errno));
    el_wset(e->el, EL_CLIENTDATA, e);
    el_wset(e->el, EL_EDITOR, L"emacs");
    el_wset(e->el, EL_SIGNAL, 0);
    el_wset(e->el, EL_GETCFN, read_character);
    el_wset(e->el, EL_HIST, history_w, e->history);
    history_w(e->history, &event, H_SETSIZE, SN_HISTORY_ENTRIES);
    history_w(e->history, &event, H_SETUNIQUE, 1);
    bind_keys(e->el);
    set_prompt(e);
    return SN_OK;
}

sn_status sn_editor_open(const sn_editor_options *options, sn_editor **out, sn_err *err) {
    sn_editor *e = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&e, 1, sizeof *e, err);
    if (status) return status;
    const char *term = getenv("TERM");
    e->options = *options;
    sn_keys_init(&e->keys, SN_EDITOR_PASTE_MAX);
    sn_buf_init(&e->insert, SN_EDITOR_PASTE_MAX);
    modes.smart = term && *term && strcmp(term, "dumb") != 0;
    if (tcgetattr(STDIN_FILENO, &modes.before))
        status = sn_fail(err, SN_REFUSED, "the terminal cannot be read: %s", strerror(errno));
    if (!status) status = start_libedit(e, err);
    if (!status) {
        if (options->history) sn_history_read(options->history, enter_history, e);
        el_wset(e->el, EL_PREP_TERM, 1);
        tcgetattr(STDIN_FILENO, &modes.editing);
        modes.open = 1;
        watch_signals();
        announce_pastes(true);
    }
    if (status) sn_editor_close(&e);
    *out = e;
    return status;
}

void sn_editor_close(sn_editor **editor) {
    sn_editor *e = *editor;
    if (!e) return;
    if (modes.open) {
        el_wset(e->el, EL_PREP_TERM, 0);
        sn_editor_restore_terminal();
        unwatch_signals();
        modes.open = 0;
    }
    if (e->el) el_end(e->el);
    if (e->history) history_wend(e->history);
    if (e->in) fclose(e->in);
    if (e->out) fclose(e->out);
    if (e->errors) fclose(e->errors);
    forget_pastes(e);
    free(e->last_entry);
    sn_keys_fini(&e->keys);
    sn_buf_fini(&e->insert);
    free(e);
    *editor = NULL;
}

#include "base/options.h"

#include "base/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Strings from a file live as long as the options: a list of pieces. Those of the command line live in argv. */
struct sn_option_memory {
    struct sn_option_memory *next;
    char text[];
};

typedef enum given { GIVEN_NOT, GIVEN_FILE, GIVEN_HERE } given;

typedef struct parser {
    const sn_command *command;
    sn_options *out;
    given given[SN_OPTIONS_MAX]; /* by the option's number, counted over the groups */
    const char *config;          /* value of --config */
} parser;

static size_t count_options(const sn_command *command) {
    size_t n = 0;
    for (size_t g = 0; g < command->n_groups; g++) n += command->groups[g].n;
    return n;
}

static const sn_option *option_at(const sn_command *command, size_t i) {
    size_t g = 0;
    for (; i >= command->groups[g].n; g++) i -= command->groups[g].n;
    return &command->groups[g].options[i];
}

/* -- the nearest name ------------------------------------------------------------------------------------------------
 */

enum { NAME_MAX_LEN = 40 };

/* Damerau-Levenshtein distance without repeated transpositions ("optimal string alignment"). */
static size_t distance(const char *a, size_t n, const char *b, size_t m) {
    size_t rows[3][NAME_MAX_LEN + 1];
    for (size_t j = 0; j <= m; j++) rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *older = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = sn_min_size(sn_min_size(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = sn_min_size(now[j], older[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *sn_nearest(const char *word, const char *const *names, size_t n) {
    const char *best = NULL;
    size_t len = strlen(word), least = len / 3 + 1; /* so much may differ, and no more */
    if (!len || len > NAME_MAX_LEN) return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t name_len = strlen(names[i]);
        if (name_len > NAME_MAX_LEN) continue;
        size_t d = distance(word, len, names[i], name_len);
        bool begins = len >= 3 && !strncmp(word, names[i], len); /* "--temp" means --temperature */
        if (begins) d = sn_min_size(d, 1);
        if (d < least || (d == least && !best)) {
            best = names[i];
            least = d;
        }
    }
    return best;
}

static const char *nearest_option(const sn_command *command, const char *word) {
    static const char *const common[] = {"config", "help", "version"};
    const char *names[SN_OPTIONS_MAX + 3];
    size_t n = count_options(command);
    for (size_t i = 0; i < n; i++) names[i] = option_at(command, i)->name;
    memcpy(names + n, common, sizeof common);
    return sn_nearest(word, names, n + 3);
}

/* -- values ----------------------------------------------------------------------------------------------------------
 */

static sn_status parse_bool(const char *text, bool *out, sn_err *err) {
    *out = !strcmp(text, "true");
    if (*out || !strcmp(text, "false")) return SN_OK;
    return sn_fail(err, SN_REFUSED, "'%s' must be true or false", text);
}

static sn_status parse_range(const char *text, sn_block_range *out, sn_err *err) {
    sn_block_range range = {.given = true, .all = !strcmp(text, "all")};
    if (!range.all && sn_parse_blocks(text, &range.first, &range.end, err))
        return sn_fail(err, SN_REFUSED, "'%s' is no range of blocks: write A:B, first and end, as in 10:20, or all",
                       text);
    *out = range;
    return SN_OK;
}

static sn_status add_string(sn_strings *list, const char *text, sn_err *err) {
    if (list->n == SN_STRINGS_MAX)
        return sn_fail(err, SN_REFUSED, "it is given more than %d times", (int)SN_STRINGS_MAX);
    const char **grown = realloc(list->items, (list->n + 1) * sizeof *grown);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory for the options");
    grown[list->n++] = text;
    list->items = grown;
    return SN_OK;
}

static sn_status set_value(const sn_option *option, const char *text, sn_err *err) {
    switch (option->kind) {
    case SN_OPTION_STRING:
        *(const char **)option->target = text;
        return SN_OK;
    case SN_OPTION_STRINGS:
        return add_string(option->target, text, err);
    case SN_OPTION_SIZE:
        return sn_parse_size(text, option->target, err);
    case SN_OPTION_INT:
        return sn_parse_int(text, (int64_t)option->low, (int64_t)option->high, option->target, err);
    case SN_OPTION_FLOAT:
        return sn_parse_float(text, option->low, option->high, option->target, err);
    case SN_OPTION_FLAG:
        return parse_bool(text, option->target, err);
    case SN_OPTION_BLOCKS:
        return parse_range(text, option->target, err);
    }
    return sn_fail(err, SN_REFUSED, "the option --%s has no kind", option->name);
}

/* `from` is where the value stands. A file never overrides the command line, which is read after it. */
static sn_status take(parser *p, size_t i, const char *text, given from, sn_err *err) {
    const sn_option *option = option_at(p->command, i);
    if (from == GIVEN_HERE && p->given[i] == GIVEN_FILE && option->kind == SN_OPTION_STRINGS)
        ((sn_strings *)option->target)->n = 0;
    p->given[i] = from;
    return set_value(option, text, err);
}

static bool find_option(const sn_command *command, const char *name, size_t len, size_t *out) {
    size_t n = count_options(command);
    for (size_t i = 0; i < n; i++) {
        const char *known = option_at(command, i)->name;
        if (strlen(known) != len || memcmp(known, name, len)) continue;
        *out = i;
        return true;
    }
    return false;
}

/* -- a file ----------------------------------------------------------------------------------------------------------
 */

static sn_status keep_text(sn_options *options, const char *text, size_t len, const char **out, sn_err *err) {
    struct sn_option_memory *piece = malloc(sizeof *piece + len + 1);
    if (!piece) return sn_fail(err, SN_STOP, "out of memory for the options");
    memcpy(piece->text, text, len);
    piece->text[len] = 0;
    piece->next = options->memory;
    options->memory = piece;
    *out = piece->text;
    return SN_OK;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static void trim(const char **text, size_t *len) {
    while (*len && is_space(**text)) {
        ++*text;
        --*len;
    }
    while (*len && is_space((*text)[*len - 1])) --*len;
}

static size_t without_comment(const char *line, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (line[i] == '#' && (!i || is_space(line[i - 1]))) return i;
    return len;
}

static sn_status read_line(parser *p, const char *line, size_t len, sn_err *err) {
    len = without_comment(line, len);
    trim(&line, &len);
    if (!len) return SN_OK;
    if (memchr(line, 0, len)) return sn_fail(err, SN_REFUSED, "the line holds a zero byte; this is no text file");
    const char *equals = memchr(line, '=', len);
    if (!equals) return sn_fail(err, SN_REFUSED, "write name = value (a flag is name = true)");
    const char *name = line, *value = equals + 1;
    size_t name_len = (size_t)(equals - line), value_len = len - name_len - 1, i;
    trim(&name, &name_len);
    trim(&value, &value_len);
    if (!find_option(p->command, name, name_len, &i)) {
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)sn_min_size(name_len, sizeof word - 1), name);
        const char *near = nearest_option(p->command, word);
        return sn_fail(err, SN_REFUSED, "unknown option '%s'%s%s%s", word, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : " (see --help)");
    }
    if (!value_len) return sn_fail(err, SN_REFUSED, "%s has no value", option_at(p->command, i)->name);
    const char *text = NULL;
    sn_status status = keep_text(p->out, value, value_len, &text, err);
    if (!status) status = take(p, i, text, GIVEN_FILE, err);
    return status && err && err->status == SN_REFUSED ? sn_err_context(err, "%s", option_at(p->command, i)->name)
                                                      : status;
}

static sn_status read_text(parser *p, const char *text, size_t len, const char *name, sn_err *err) {
    sn_status status = SN_OK;
    for (int line = 1; len && !status; line++) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        status = read_line(p, text, n, err);
        if (status) return sn_err_context(err, "%s:%d", name, line);
        n += end != NULL;
        text += n;
        len -= n;
    }
    return SN_OK;
}

static sn_status read_config(parser *p, sn_err *err) {
    sn_buf file;
    sn_status status = sn_read_file(p->config, SN_OPTIONS_FILE_MAX, &file, err);
    if (status) return sn_err_context(err, "--config");
    status = read_text(p, (const char *)file.data, file.len, p->config, err);
    sn_buf_fini(&file);
    return status;
}

sn_status sn_options_parse_file(const sn_command *command, const char *text, size_t len, const char *name,
                                sn_options *out, sn_err *err) {
    *out = (sn_options){0};
    parser p = {.command = command, .out = out};
    return read_text(&p, text, len, name, err);
}

/* -- the command line ------------------------------------------------------------------------------------------------
 */

static sn_status unknown(const parser *p, const char *name, size_t len, sn_err *err) {
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)sn_min_size(len, sizeof word - 1), name);
    const char *near = nearest_option(p->command, word);
    if (near) return sn_fail(err, SN_REFUSED, "there is no option --%s; did you mean --%s?", word, near);
    return sn_fail(err, SN_REFUSED, "there is no option --%s; '%s --help' lists them all", word, p->command->program);
}

/* One option of the command line, argv[*at]; *at moves on to a value that stands in the next word. `apply` is false in
 * the first pass, which only looks for --config, --help and --version. */
static sn_status take_argument(parser *p, int argc, char *const *argv, int *at, bool apply, sn_err *err) {
    const char *name = argv[*at] + 2, *equals = strchr(name, '='), *value = equals ? equals + 1 : NULL;
    size_t len = equals ? (size_t)(equals - name) : strlen(name), i = 0;
    bool config = len == 6 && !memcmp(name, "config", 6);
    if (!config && !find_option(p->command, name, len, &i)) return unknown(p, name, len, err);
    const sn_option *option = config ? NULL : option_at(p->command, i);
    if (option && option->kind == SN_OPTION_FLAG && !value) value = "true";
    if (!value && *at + 1 < argc && strncmp(argv[*at + 1], "--", 2)) value = argv[++*at];
    if (!value && *at + 1 < argc)
        return sn_fail(err, SN_REFUSED, "--%s needs a value; one that begins with -- is written --%s=VALUE", name,
                       name);
    if (!value)
        return sn_fail(err, SN_REFUSED, "--%s needs a value: --%s %s", name, name, config ? "FILE" : option->word);
    if (config) p->config = value;
    if (config || !apply) return SN_OK;
    sn_status status = take(p, i, value, GIVEN_HERE, err);
    return status ? sn_err_context(err, "--%s", option->name) : SN_OK;
}

static sn_status pass(parser *p, int argc, char *const *argv, bool apply, sn_err *err) {
    bool only_words = false;
    for (int at = 1; at < argc; at++) {
        const char *word = argv[at];
        sn_status status = SN_OK;
        if (!only_words && !strcmp(word, "--")) {
            only_words = true;
        } else if (!only_words && !strncmp(word, "--", 2)) {
            status = take_argument(p, argc, argv, &at, apply, err);
        } else if (!only_words && word[0] == '-' && isalpha((unsigned char)word[1])) {
            status = sn_fail(err, SN_REFUSED, "options are written in full, with two dashes; '%s --help' lists them",
                             p->command->program);
        } else if (apply && p->out->words.n == p->command->max_words) {
            status = sn_fail(err, SN_REFUSED, "'%s' is one argument too many; '%s --help' shows what is taken", word,
                             p->command->program);
        } else if (apply) {
            status = add_string(&p->out->words, word, err);
        }
        if (status) return status;
    }
    return SN_OK;
}

static sn_status check_required(const parser *p, sn_err *err) {
    size_t n = count_options(p->command);
    for (size_t i = 0; i < n; i++) {
        const sn_option *option = option_at(p->command, i);
        if (option->required && !p->given[i])
            return sn_fail(err, SN_REFUSED, "--%s %s is missing: %s", option->name, option->word, option->help);
    }
    return SN_OK;
}

sn_status sn_options_parse(const sn_command *command, int argc, char *const *argv, sn_options *out, sn_err *err) {
    *out = (sn_options){0};
    parser p = {.command = command, .out = out};
    if (count_options(command) > SN_OPTIONS_MAX)
        return sn_fail(err, SN_REFUSED, "%s has too many options", command->program);
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        out->help = out->help || !strcmp(argv[i], "--help") || (i == 1 && !strcmp(argv[i], "-h"));
        out->version = out->version || !strcmp(argv[i], "--version");
    }
    if (out->help || out->version) return SN_OK;
    sn_status status = pass(&p, argc, argv, false, err);
    if (!status && p.config) status = read_config(&p, err);
    if (!status) status = pass(&p, argc, argv, true, err);
    if (!status) status = check_required(&p, err);
    return status;
}

void sn_options_fini(const sn_command *command, sn_options *options) {
    size_t n = count_options(command);
    for (size_t i = 0; i < n; i++) {
        const sn_option *option = option_at(command, i);
        if (option->kind == SN_OPTION_STRING) *(const char **)option->target = NULL;
        if (option->kind != SN_OPTION_STRINGS) continue;
        sn_strings *list = option->target;
        free(list->items);
        *list = (sn_strings){0};
    }
    while (options->memory) {
        struct sn_option_memory *next = options->memory->next;
        free(options->memory);
        options->memory = next;
    }
    free(options->words.items);
    *options = (sn_options){0};
}

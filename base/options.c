/* The parser of options: the command line, a file of options, and suggestions for misspelt names.
 *
 * sn_options_parse reads the command line twice. The first scan checks names only and finds --config; then the file is
 * read, and the second scan stores the values of the command line over those of the file. `source` remembers for each
 * option where its value came from: a required option must have one, and the first value of a repeatable option on the
 * command line drops the values of the file. Values point into argv or, from a file, into copies in sn_options.texts.
 * base/options_value.c has the kinds of options. */
#include "base/options_private.h"
#include "base/file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Strings from a file live as long as the options: a list of copies. Those of the command line live in argv. */
struct sn_option_text {
    struct sn_option_text *next;
    char text[];
};

typedef enum option_source { SOURCE_NONE, SOURCE_FILE, SOURCE_COMMAND_LINE } option_source;

typedef struct parser {
    const sn_command *command;
    sn_options *out;
    option_source source[SN_OPTIONS_MAX]; /* by the option's number, counted over the groups */
    const char *config;                   /* value of --config, or the standard file */
    const sn_program *program;            /* of which it is a command; NULL: sections are refused */
    const sn_command *section;            /* of the file's lines; NULL: they are for all commands */
} parser;

const sn_common_option sn_common_options[SN_COMMON_OPTIONS] = {
    {"config", "FILE", "read options from lines 'name = value' of a file; the command line wins over it"},
    {"help", "", "show this text"},
    {"version", "", "show the version; with --json also how it was built, and the licences"},
};

size_t sn_command_n_options(const sn_command *command) {
    size_t n = 0;
    for (size_t g = 0; g < command->n_groups; g++) n += command->groups[g]->n;
    return n;
}

const sn_option *sn_command_option(const sn_command *command, size_t i) {
    size_t g = 0;
    for (; i >= command->groups[g]->n; g++) i -= command->groups[g]->n;
    return &command->groups[g]->options[i];
}

char sn_option_letter(const char *name) {
    static const struct {
        const char *name;
        char letter;
    } short_forms[] = {{"help", 'h'},   {"join", 'j'},       {"model", 'm'},
                       {"prompt", 'p'}, {"max-tokens", 'n'}, {"threads", 't'}};
    for (size_t i = 0; i < sizeof short_forms / sizeof *short_forms; i++)
        if (!strcmp(name, short_forms[i].name)) return short_forms[i].letter;
    return 0;
}

/* -- the nearest name -- */

enum { NAME_MAX_LEN = 40 };

/* Damerau-Levenshtein distance without repeated transpositions ("optimal string alignment"). */
static size_t edit_distance(const char *a, size_t n, const char *b, size_t m) {
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

const char *sn_nearest_name(const char *word, const char *const *names, size_t n) {
    const char *best = NULL;
    size_t len = strlen(word), least = len / 3 + 1; /* the largest distance at which a name is near */
    if (!len || len > NAME_MAX_LEN) return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t name_len = strlen(names[i]);
        if (name_len > NAME_MAX_LEN) continue;
        size_t d = edit_distance(word, len, names[i], name_len);
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
    const char *names[SN_OPTIONS_MAX + SN_COMMON_OPTIONS];
    size_t n = sn_command_n_options(command);
    for (size_t i = 0; i < n; i++) names[i] = sn_command_option(command, i)->name;
    for (size_t i = 0; i < SN_COMMON_OPTIONS; i++) names[n + i] = sn_common_options[i].name;
    return sn_nearest_name(word, names, n + SN_COMMON_OPTIONS);
}

static void forget_given(sn_options *out, const sn_option *option) {
    size_t n = 0;
    for (size_t i = 0; i < out->n_given; i++)
        if (out->given[i].option != option) out->given[n++] = out->given[i];
    out->n_given = n;
}

static sn_status note_given(sn_options *out, const sn_option *option, const char *text, sn_err *err) {
    sn_written_option *grown = realloc(out->given, (out->n_given + 1) * sizeof *grown);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory for the options");
    grown[out->n_given++] = (sn_written_option){option, text};
    out->given = grown;
    return SN_OK;
}

/* `from` is where the value was found. The file is read before the values of the command line are stored. */
static sn_status option_assign(parser *p, size_t i, const char *text, option_source from, sn_err *err) {
    const sn_option *option = sn_command_option(p->command, i);
    bool first = from == SOURCE_COMMAND_LINE && p->source[i] == SOURCE_FILE;
    if (first && option->repeatable) ((sn_strings *)option->target)->n = 0;
    if (first || !option->repeatable) forget_given(p->out, option);
    p->source[i] = from;
    sn_status status = sn_option_set(option, text, err);
    return status ? status : note_given(p->out, option, text, err);
}

static bool find_option(const sn_command *command, const char *name, size_t len, size_t *out) {
    size_t n = sn_command_n_options(command);
    for (size_t i = 0; i < n; i++) {
        const char *known = sn_command_option(command, i)->name;
        if (strlen(known) != len || memcmp(known, name, len)) continue;
        *out = i;
        return true;
    }
    return false;
}

/* Whether a word stands where an option --model that was not given would take it. */
static bool lacks_model(const sn_command *command) {
    static const char name[] = "model";
    size_t i;
    if (!find_option(command, name, strlen(name), &i)) return false;
    const sn_option *option = sn_command_option(command, i);
    return option->kind == SN_OPTION_STRING && !*(const char **)option->target;
}

/* -- a file -- */

static sn_status options_store_text(sn_options *options, const char *text, size_t len, const char **out, sn_err *err) {
    struct sn_option_text *node = malloc(sizeof *node + len + 1);
    if (!node) return sn_fail(err, SN_STOP, "out of memory for the options");
    memcpy(node->text, text, len);
    node->text[len] = 0;
    node->next = options->texts;
    options->texts = node;
    *out = node->text;
    return SN_OK;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static void trim_spaces(const char **text, size_t *len) {
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

/* "[generate]": lines for this command follow. */
static sn_status config_read_section(parser *p, const char *line, size_t len, sn_err *err) {
    const char *names[SN_COMMANDS_MAX];
    char word[64];
    size_t n = p->program ? sn_min_size(p->program->n_commands, SN_COMMANDS_MAX) : 0;
    if (!n) return sn_fail(err, SN_REFUSED, "%s has no commands, so its file has no sections", p->command->program);
    snprintf(word, sizeof word, "%.*s", (int)sn_min_size(len > 1 ? len - 2 : 0, sizeof word - 1), line + 1);
    for (size_t i = 0; i < n; i++) {
        names[i] = p->program->commands[i]->program + strlen(p->program->name) + 1;
        if (line[len - 1] != ']' || strcmp(names[i], word)) continue;
        p->section = p->program->commands[i];
        return SN_OK;
    }
    const char *suggestion = sn_nearest_name(word, names, n);
    return sn_fail(err, SN_REFUSED, "'%.*s' is no section: write the name of a command, as in [%s]",
                   (int)sn_min_size(len, sizeof word), line, suggestion ? suggestion : names[0]);
}

static bool another_command_has(const parser *p, const char *name, size_t len) {
    size_t i, n = p->program ? p->program->n_commands : 0;
    for (size_t c = 0; c < n; c++)
        if (find_option(p->program->commands[c], name, len, &i)) return true;
    return false;
}

static sn_status config_fail_unknown(const sn_command *command, const char *name, size_t len, sn_err *err) {
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)sn_min_size(len, sizeof word - 1), name);
    const char *suggestion = nearest_option(command, word);
    return sn_fail(err, SN_REFUSED, "unknown option '%s'%s%s%s", word, suggestion ? "; did you mean " : "",
                   suggestion ? suggestion : "", suggestion ? "?" : " (see --help)");
}

static sn_status config_read_line(parser *p, const char *line, size_t len, sn_err *err) {
    len = without_comment(line, len);
    trim_spaces(&line, &len);
    if (!len) return SN_OK;
    if (memchr(line, 0, len)) return sn_fail(err, SN_REFUSED, "the line holds a zero byte; this is no text file");
    if (*line == '[') return config_read_section(p, line, len, err);
    const char *equals = memchr(line, '=', len);
    if (!equals) return sn_fail(err, SN_REFUSED, "write name = value (a flag is name = true)");
    const char *name = line, *value = equals + 1;
    size_t name_len = (size_t)(equals - line), value_len = len - name_len - 1, i;
    trim_spaces(&name, &name_len);
    trim_spaces(&value, &value_len);
    const sn_command *of = p->section ? p->section : p->command;
    if (!find_option(of, name, name_len, &i)) {
        if (!p->section && another_command_has(p, name, name_len)) return SN_OK;
        return config_fail_unknown(of, name, name_len, err);
    }
    if (!value_len) return sn_fail(err, SN_REFUSED, "%s has no value", sn_command_option(of, i)->name);
    if (of != p->command) return SN_OK;
    const char *text = NULL;
    sn_status status = options_store_text(p->out, value, value_len, &text, err);
    if (!status) status = option_assign(p, i, text, SOURCE_FILE, err);
    return status && err && err->status == SN_REFUSED
               ? sn_err_context(err, "%s", sn_command_option(p->command, i)->name)
               : status;
}

static sn_status config_read_text(parser *p, const char *text, size_t len, const char *name, sn_err *err) {
    sn_status status = SN_OK;
    for (int line = 1; len && !status; line++) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        status = config_read_line(p, text, n, err);
        if (status) return sn_err_context(err, "%s:%d", name, line);
        n += end != NULL;
        text += n;
        len -= n;
    }
    return SN_OK;
}

static sn_status config_read_file(parser *p, const char *standard_file, sn_err *err) {
    sn_buf file;
    sn_status status = sn_read_file(p->config, SN_OPTIONS_FILE_MAX, &file, err);
    if (status) return p->config == standard_file ? status : sn_err_context(err, "--config");
    status = config_read_text(p, (const char *)file.data, file.len, p->config, err);
    sn_buf_fini(&file);
    return status;
}

/* Which file is read: that of --config, else the standard file, where there is one. */
static void config_choose(parser *p, const char *standard_file) {
    if (p->config && p->program && !strcmp(p->config, "none"))
        p->config = NULL;
    else if (!p->config && standard_file && !access(standard_file, F_OK))
        p->config = standard_file;
}

sn_status sn_options_parse_file(const sn_command *command, const char *text, size_t len, const char *name,
                                sn_options *out, sn_err *err) {
    *out = (sn_options){0};
    parser p = {.command = command, .out = out};
    return config_read_text(&p, text, len, name, err);
}

/* -- the command line -- */

static sn_status fail_unknown_option(const parser *p, const char *name, size_t len, sn_err *err) {
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)sn_min_size(len, sizeof word - 1), name);
    const char *suggestion = nearest_option(p->command, word);
    if (suggestion) return sn_fail(err, SN_REFUSED, "there is no option --%s; did you mean --%s?", word, suggestion);
    return sn_fail(err, SN_REFUSED, "there is no option --%s; '%s --help' lists them all", word, p->command->program);
}

/* An option's value in the next word, where it is not in the same one. *at moves on to that word. */
static sn_status next_value(int argc, char *const *argv, int *at, const char *name, const char *metavar,
                            const char **value, sn_err *err) {
    bool more = *at + 1 < argc;
    if (more && strncmp(argv[*at + 1], "--", 2)) {
        *value = argv[++*at];
        return SN_OK;
    }
    if (more)
        return sn_fail(err, SN_REFUSED, "--%s needs a value; one that begins with -- is written --%s=VALUE", name,
                       name);
    return sn_fail(err, SN_REFUSED, "--%s needs a value: --%s %s", name, name, metavar);
}

/* Option i with its value, or NULL where that stands in the next word. `apply`: store it. */
static sn_status parse_option(parser *p, size_t i, const char *value, int argc, char *const *argv, int *at, bool apply,
                              sn_err *err) {
    const sn_option *option = sn_command_option(p->command, i);
    char metavar[128];
    sn_status status = SN_OK;
    if (!value && option->kind == SN_OPTION_FLAG) value = "true";
    sn_option_value_name(option, metavar, sizeof metavar);
    if (!value) status = next_value(argc, argv, at, option->name, metavar, &value, err);
    if (status || !apply) return status;
    return option_assign(p, i, value, SOURCE_COMMAND_LINE, err) ? sn_err_context(err, "--%s", option->name) : SN_OK;
}

/* "--name", "--name=value", argv[*at]. */
static sn_status parse_long(parser *p, int argc, char *const *argv, int *at, bool apply, sn_err *err) {
    const char *name = argv[*at] + 2, *equals = strchr(name, '='), *value = equals ? equals + 1 : NULL;
    size_t len = equals ? (size_t)(equals - name) : strlen(name), i;
    if (find_option(p->command, name, len, &i)) return parse_option(p, i, value, argc, argv, at, apply, err);
    const sn_common_option *config = &sn_common_options[0];
    if (len != strlen(config->name) || memcmp(config->name, name, len)) return fail_unknown_option(p, name, len, err);
    sn_status status = value ? SN_OK : next_value(argc, argv, at, config->name, config->metavar, &value, err);
    if (!status) p->config = value;
    return status;
}

/* "-n" or "-nVALUE", argv[*at]. */
static sn_status parse_short(parser *p, int argc, char *const *argv, int *at, bool apply, sn_err *err) {
    const char *word = argv[*at];
    size_t n = sn_command_n_options(p->command);
    for (size_t i = 0; i < n; i++)
        if (sn_option_letter(sn_command_option(p->command, i)->name) == word[1])
            return parse_option(p, i, word[2] ? word + 2 : NULL, argc, argv, at, apply, err);
    return sn_fail(err, SN_REFUSED, "there is no option -%c; '%s --help' lists them all", word[1], p->command->program);
}

static sn_status scan_arguments(parser *p, int argc, char *const *argv, bool apply, sn_err *err) {
    bool only_positionals = false;
    for (int at = 1; at < argc; at++) {
        const char *word = argv[at];
        sn_status status = SN_OK;
        if (!only_positionals && !strcmp(word, "--")) {
            only_positionals = true;
        } else if (!only_positionals && !strncmp(word, "--", 2)) {
            status = parse_long(p, argc, argv, &at, apply, err);
        } else if (!only_positionals && word[0] == '-' && isalpha((unsigned char)word[1])) {
            status = parse_short(p, argc, argv, &at, apply, err);
        } else if (apply && p->out->positionals.n == p->command->max_positionals) {
            status = lacks_model(p->command)
                         ? sn_fail(err, SN_REFUSED, "'%s' is one argument too many; a model is given as --model %s",
                                   word, word)
                         : sn_fail(err, SN_REFUSED, "'%s' is one argument too many; '%s --help' shows what is accepted",
                                   word, p->command->program);
        } else if (apply) {
            status = sn_strings_add(&p->out->positionals, word, err);
        }
        if (status) return status;
    }
    return SN_OK;
}

static sn_status check_required(const parser *p, sn_err *err) {
    size_t n = sn_command_n_options(p->command);
    for (size_t i = 0; i < n; i++) {
        const sn_option *option = sn_command_option(p->command, i);
        if (option->required && !p->source[i])
            return sn_fail(err, SN_REFUSED, "--%s %s is missing: %s", option->name, option->metavar, option->help);
    }
    return SN_OK;
}

/* --help and --version count wherever they stand, also in a line that is wrong otherwise. */
static sn_status find_help(int argc, char *const *argv, sn_options *out, sn_err *err) {
    static const char help[] = "--help=";
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        const char *form = argv[i] + strlen(help);
        out->version = out->version || !strcmp(argv[i], "--version");
        out->version_json = out->version_json || !strcmp(argv[i], "--json");
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            out->help = SN_HELP_TEXT;
        else if (strncmp(argv[i], help, strlen(help)))
            continue;
        else if (!strcmp(form, "man"))
            out->help = SN_HELP_MAN;
        else if (!strcmp(form, "completion"))
            out->help = SN_HELP_COMPLETION;
        else
            return sn_fail(err, SN_REFUSED, "--help: '%.60s' must be man or completion", form);
    }
    return SN_OK;
}

sn_status sn_options_parse(const sn_command *command, int argc, char *const *argv, sn_options *out, sn_err *err) {
    return sn_options_parse_command(NULL, NULL, command, argc, argv, out, err);
}

sn_status sn_options_parse_command(const sn_program *program, const char *standard_file, const sn_command *command,
                                   int argc, char *const *argv, sn_options *out, sn_err *err) {
    *out = (sn_options){0};
    parser p = {.command = command, .out = out, .program = program};
    if (sn_command_n_options(command) > SN_OPTIONS_MAX)
        return sn_fail(err, SN_REFUSED, "%s has too many options", command->program);
    sn_status status = find_help(argc, argv, out, err);
    if (status || out->help || out->version) return status;
    status = scan_arguments(&p, argc, argv, false, err);
    config_choose(&p, standard_file);
    if (!status && p.config) status = config_read_file(&p, standard_file, err);
    if (!status) status = scan_arguments(&p, argc, argv, true, err);
    if (!status) status = check_required(&p, err);
    return status;
}

bool sn_options_has(const sn_options *options, const char *name) {
    for (size_t i = 0; i < options->n_given; i++)
        if (!strcmp(options->given[i].option->name, name)) return true;
    return false;
}

sn_status sn_options_assign(const sn_command *command, const char *name, const char *text, sn_err *err) {
    size_t i;
    if (!find_option(command, name, strlen(name), &i))
        return sn_fail(err, SN_REFUSED, "%s has no option '%.60s'", command->program, name);
    return sn_option_set(sn_command_option(command, i), text, err) ? sn_err_context(err, "%s", name) : SN_OK;
}

void sn_options_fini(const sn_command *command, sn_options *options) {
    size_t n = sn_command_n_options(command);
    for (size_t i = 0; i < n; i++) {
        const sn_option *option = sn_command_option(command, i);
        if (option->kind != SN_OPTION_STRING && option->kind != SN_OPTION_ADDRESS) continue;
        if (!option->repeatable) {
            *(const char **)option->target = NULL;
            continue;
        }
        sn_strings *list = option->target;
        free(list->items);
        *list = (sn_strings){0};
    }
    while (options->texts) {
        struct sn_option_text *next = options->texts->next;
        free(options->texts);
        options->texts = next;
    }
    free(options->positionals.items);
    free(options->given);
    *options = (sn_options){0};
}

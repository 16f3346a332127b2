/* Options of a program: declared once in a table, which the parser, --help, the man page and the shell completion read.
 *
 * The central type is sn_option: name, kind, target variable, limits, help text. A command (sn_command) is a list of
 * groups of options. A program calls sn_options_parse once, on its main thread, before it starts others; the targets
 * are plain variables of the program, and their values before parsing are the defaults.
 *
 * The command line: "--name VALUE" and "--name=VALUE"; a value that begins with "--" needs the second form. An option
 * with a short form is also written "-n VALUE" and "-nVALUE". A flag is "--name" (or --name=false, which overrides a
 * file). Words without dashes are positional arguments, and so is every word after "--". When an option is given twice,
 * the last value counts; a repeatable option collects all values.
 *
 * --config FILE reads lines "name = value". Blank lines and text after a # (at the start of a line or after a space)
 * are ignored; a value reaches to the end of its line, without the spaces around it. The command line wins over the
 * file; a repeatable option on the command line replaces all values of the file. A file of a program with commands may
 * hold options of all of them, each command takes its own; lines after "[COMMAND]" are for that command only. Such a
 * program may have a standard file, which is read where there is no --config; --config none reads no file.
 *
 * Every command has --config, --help and --version. --help=man prints a man page and --help=completion a completion
 * script for bash. */
#ifndef SN_BASE_OPTIONS_H
#define SN_BASE_OPTIONS_H

#include "base/parse.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    SN_OPTIONS_MAX = 96,
    SN_OPTIONS_FILE_MAX = 1 << 20,
    SN_STRINGS_MAX = 1024,
    SN_INTS_MAX = 16,
    SN_COMMANDS_MAX = 64
};

/* Values of targets for which help shows no default: the option's text says what happens without it. The unset value of
 * a floating-point target is NAN. */
#define SN_SIZE_UNSET SIZE_MAX
#define SN_INT_UNSET  INT64_MIN

typedef enum sn_option_kind {
    SN_OPTION_STRING,   /* const char *, unset: NULL; sn_strings when the option is repeatable */
    SN_OPTION_ADDRESS,  /* the same, each value an address "HOST:PORT" in the option's form */
    SN_OPTION_ENUM,     /* int: the value of one of the option's words */
    SN_OPTION_SIZE,     /* size_t, bytes: "4096", "512MiB", "2GB" */
    SN_OPTION_DURATION, /* int64_t in [low, high], in units of unit_ms: "30" (seconds), "500ms", "5m", "2h" */
    SN_OPTION_INT,      /* int64_t in [low, high] */
    SN_OPTION_INTS,     /* sn_ints, each in [low, high]: "1,2,4" */
    SN_OPTION_FLOAT,    /* double in [low, high] */
    SN_OPTION_RATIO,    /* double in [low, 1] */
    SN_OPTION_FLAG,     /* bool */
    SN_OPTION_BLOCKS,   /* sn_block_range: "A:B" or "all" */
} sn_option_kind;

typedef struct sn_strings {
    const char **items;
    size_t n;
} sn_strings;

typedef struct sn_ints {
    int64_t items[SN_INTS_MAX];
    size_t n; /* unset: 0 */
} sn_ints;

typedef struct sn_block_range {
    bool given, all; /* all: first and end are left 0 */
    int first, end;  /* end exclusive */
} sn_block_range;

typedef struct sn_option {
    const char *name;    /* without the dashes */
    const char *metavar; /* stands for the value in help; NULL for a flag, and where the words stand for the value */
    const char *help;    /* begins with a small letter, no full stop, no default; NULL: this build refuses the option */
    sn_option_kind kind;
    void *target;           /* of the type that `kind` names */
    const sn_word *words;   /* of ENUM, and of a STRING that must be one of them; ends with a NULL name. Else NULL */
    double low, high;       /* of INT, INTS, FLOAT and RATIO; of DURATION, in the target's unit */
    int unit_ms;            /* of DURATION: 1 when the target holds milliseconds, 1000 when it holds seconds */
    sn_host_port_form form; /* of ADDRESS */
    bool required, repeatable;
} sn_option;

/* Entries of a table: SN_OPT_INT("threads", "N", &threads, 1, 64, "worker threads"). The compiler checks the type of
 * the target. */
#define SN_OPT_ENTRY(kind_, type, name_, target_, help_, ...)                                                          \
    {.name = (name_), .help = (help_), .kind = (kind_), .target = (1 ? (target_) : (type *)0), __VA_ARGS__}
#define SN_OPT_STRING(name, var, target, help)                                                                         \
    SN_OPT_ENTRY(SN_OPTION_STRING, const char *, name, target, help, .metavar = (var))
#define SN_OPT_REQUIRED(name, var, target, help)                                                                       \
    SN_OPT_ENTRY(SN_OPTION_STRING, const char *, name, target, help, .metavar = (var), .required = true)
#define SN_OPT_STRINGS(name, var, target, help)                                                                        \
    SN_OPT_ENTRY(SN_OPTION_STRING, sn_strings, name, target, help, .metavar = (var), .repeatable = true)
#define SN_OPT_WORD(name, target, words_, help)                                                                        \
    SN_OPT_ENTRY(SN_OPTION_STRING, const char *, name, target, help, .words = (words_))
#define SN_OPT_WORDS(name, target, words_, help)                                                                       \
    SN_OPT_ENTRY(SN_OPTION_STRING, sn_strings, name, target, help, .words = (words_), .repeatable = true)
#define SN_OPT_ADDRESS(name, var, target, form_, help)                                                                 \
    SN_OPT_ENTRY(SN_OPTION_ADDRESS, const char *, name, target, help, .metavar = (var), .form = (form_))
#define SN_OPT_ADDRESSES(name, var, target, form_, help)                                                               \
    SN_OPT_ENTRY(SN_OPTION_ADDRESS, sn_strings, name, target, help, .metavar = (var), .form = (form_),                 \
                 .repeatable = true)
#define SN_OPT_ENUM(name, target, words_, help) SN_OPT_ENTRY(SN_OPTION_ENUM, int, name, target, help, .words = (words_))
#define SN_OPT_SIZE(name, var, target, help)    SN_OPT_ENTRY(SN_OPTION_SIZE, size_t, name, target, help, .metavar = (var))
#define SN_OPT_DURATION_MS(name, target, low_ms, high_ms, help)                                                        \
    SN_OPT_ENTRY(SN_OPTION_DURATION, int64_t, name, target, help, .metavar = "DURATION", .unit_ms = 1,                 \
                 .low = (low_ms), .high = (high_ms))
#define SN_OPT_DURATION_S(name, target, low_s, high_s, help)                                                           \
    SN_OPT_ENTRY(SN_OPTION_DURATION, int64_t, name, target, help, .metavar = "DURATION", .unit_ms = 1000,              \
                 .low = (low_s), .high = (high_s))
#define SN_OPT_INT(name, var, target, low_, high_, help)                                                               \
    SN_OPT_ENTRY(SN_OPTION_INT, int64_t, name, target, help, .metavar = (var), .low = (low_), .high = (high_))
#define SN_OPT_INTS(name, target, low_, high_, help)                                                                   \
    SN_OPT_ENTRY(SN_OPTION_INTS, sn_ints, name, target, help, .metavar = "LIST", .low = (low_), .high = (high_))
#define SN_OPT_FLOAT(name, var, target, low_, high_, help)                                                             \
    SN_OPT_ENTRY(SN_OPTION_FLOAT, double, name, target, help, .metavar = (var), .low = (low_), .high = (high_))
#define SN_OPT_RATIO(name, var, target, low_, help)                                                                    \
    SN_OPT_ENTRY(SN_OPTION_RATIO, double, name, target, help, .metavar = (var), .low = (low_), .high = 1)
#define SN_OPT_FLAG(name, target, help) SN_OPT_ENTRY(SN_OPTION_FLAG, bool, name, target, help, .metavar = NULL)
#define SN_OPT_BLOCKS(name, var, target, help)                                                                         \
    SN_OPT_ENTRY(SN_OPTION_BLOCKS, sn_block_range, name, target, help, .metavar = (var))

typedef struct sn_option_group {
    const char *title; /* "Model:" */
    const sn_option *options;
    size_t n;
} sn_option_group;
#define SN_OPTION_GROUP(title_, table) {.title = (title_), .options = (table), .n = sizeof(table) / sizeof *(table)}

typedef struct sn_exit_code {
    int code;
    const char *meaning; /* NULL: the end of the list */
} sn_exit_code;

typedef struct sn_command {
    const char *program;  /* "swarm generate": a program, or a program and one of its commands */
    const char *summary;  /* what it does, in one line without a full stop: "generate text from a prompt" */
    const char *synopsis; /* what follows the name: "--model PATH [options]" */
    const char *about;    /* paragraphs, separated by "\n\n"; a line that begins with a space is printed unchanged */
    const sn_option_group *const *groups;
    size_t n_groups;
    size_t max_positionals;         /* positional arguments accepted */
    const char *notes;              /* more paragraphs after the options, or NULL */
    const sn_exit_code *exit_codes; /* or NULL */
} sn_command;

typedef enum sn_help {
    SN_HELP_NONE,
    SN_HELP_TEXT,       /* --help, -h */
    SN_HELP_MAN,        /* --help=man */
    SN_HELP_COMPLETION, /* --help=completion */
} sn_help;

typedef struct sn_written_option {
    const sn_option *option;
    const char *text;
} sn_written_option;

/* What sn_options_parse found besides the values of the targets. It owns the strings that the targets point to. */
typedef struct sn_options {
    sn_help help;             /* asked for: print it and exit. Nothing else was parsed, the targets hold the defaults */
    bool version;             /* the same for the version */
    bool version_json;        /* as JSON: --json stands beside --version */
    sn_strings positionals;   /* positional arguments */
    sn_written_option *given; /* (n_given): the values that count, as they were written */
    size_t n_given;
    struct sn_option_text *texts;
} sn_options;

/* Reads argv[1...argc-1] and the file of --config. SN_REFUSED with a sentence about the first mistake; some targets are
 * set then. Free *out with sn_options_fini in every case, after the last use of the targets. */
sn_status sn_options_parse(const sn_command *command, int argc, char *const *argv, sn_options *out,
                           sn_err *err) SN_MUST_USE;
/* The same for a command of a program: its files may hold options of other commands, too. standard_file (NULL: none) is
 * read where no --config is given; it need not exist. */
struct sn_program;
sn_status sn_options_parse_command(const struct sn_program *program, const char *standard_file,
                                   const sn_command *command, int argc, char *const *argv, sn_options *out,
                                   sn_err *err) SN_MUST_USE;
/* Whether the command line or a file gives the option of this name; and a value for it as a file would give it, which
 * must live as long as the target (SN_REFUSED also when there is no such option). */
bool sn_options_has(const sn_options *options, const char *name);
sn_status sn_options_assign(const sn_command *command, const char *name, const char *text, sn_err *err) SN_MUST_USE;
/* As sn_options_parse, for the text of a configuration file alone; error messages call it `name`. */
sn_status sn_options_parse_file(const sn_command *command, const char *text, size_t len, const char *name,
                                sn_options *out, sn_err *err) SN_MUST_USE;
void sn_options_fini(const sn_command *command, sn_options *options); /* sets string targets to NULL */

/* -- one option by itself, for values that come from elsewhere -- */

/* Stores the value that `text` spells. SN_REFUSED with a sentence that does not name the option. `text` of a string
 * must live as long as the target. */
sn_status sn_option_set(const sn_option *option, const char *text, sn_err *err) SN_MUST_USE;
/* What stands for the value in help: the metavar, or the words joined by "|". "" for a flag. Returns out. */
char *sn_option_value_name(const sn_option *option, char *out, size_t capacity);
/* The present value of the target, spelled as the option accepts it; "" when it is unset. Returns out. */
char *sn_option_format(const sn_option *option, char *out, size_t capacity);
/* -- help -- */

/* The three texts show the present values of the targets as defaults: print them before parsing, or after a parse that
 * found a request for help. */

/* The help text, wrapped at 100 columns. */
void sn_options_help(const sn_command *command, FILE *out);
/* A man page in roff (section 1). `see_also`: names of other pages, separated by spaces, or NULL. */
void sn_options_man(const sn_command *command, const char *see_also, FILE *out);

/* A program that has commands, as "swarm" has "swarm generate". */
typedef struct sn_program {
    const char *name;    /* "swarm" */
    const char *summary; /* as of sn_command */
    const char *about;
    const sn_command *const *commands;
    size_t n_commands;
    const sn_exit_code *exit_codes;
} sn_program;

void sn_program_help(const sn_program *program, FILE *out);
void sn_program_man(const sn_program *program, FILE *out);
/* A completion script for bash, for the program and all its commands. A program without commands has one entry in
 * `commands`, whose `program` is the program's name. */
void sn_program_completion(const sn_program *program, FILE *out);

/* The present value of an option's target, spelled as the option accepts it: the i-th one of a repeatable option. NULL:
 * there is none, the target is unset, or a flag is off. The text is the target's, or in out (64 bytes or more). */
const char *sn_option_value(const sn_option *option, size_t i, char *out, size_t capacity);

/* The name among `names` that is most like `name`, or NULL when none is near. For "did you mean". */
const char *sn_nearest_name(const char *name, const char *const *names, size_t n);

#endif

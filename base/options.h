/* Options of a program: declared once in a table, read from the command line and from a file, shown by --help.
 *
 * "--name value" and "--name=value"; a value that itself begins with "--" needs the second form. Words without "--" are
 * positional, and everything is after a lone "--". A flag is "--name" (or --name=false to undo what a file says). A
 * single value given twice: the last counts; one that is declared repeatable collects. There are no other forms.
 *
 * --config FILE reads lines "name = value". Blank lines and what follows a # (at the start of a line or after a space)
 * are ignored; a value reaches to the end of its line, without the spaces around it. The command line wins over the
 * file; a repeatable option on the command line replaces all of the file's. Every table has --config, --help and
 * --version. */
#ifndef SN_BASE_OPTIONS_H
#define SN_BASE_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { SN_OPTIONS_MAX = 96, SN_OPTIONS_FILE_MAX = 1 << 20, SN_STRINGS_MAX = 1024 };

typedef enum sn_option_kind {
    SN_OPTION_STRING,  /* const char *, NULL when not given */
    SN_OPTION_STRINGS, /* sn_strings: may be given several times */
    SN_OPTION_SIZE,    /* size_t, bytes */
    SN_OPTION_INT,     /* int64_t in [low, high] */
    SN_OPTION_FLOAT,   /* double in [low, high] */
    SN_OPTION_FLAG,    /* bool */
    SN_OPTION_BLOCKS,  /* sn_block_range: "A:B" or "all" */
} sn_option_kind;

typedef struct sn_strings {
    const char **items;
    size_t n;
} sn_strings;

typedef struct sn_block_range {
    bool given, all; /* all: first and end are left 0 */
    int first, end;
} sn_block_range;

typedef struct sn_option {
    const char *name; /* without the dashes */
    const char *word; /* stands for the value in --help; NULL for a flag */
    const char *help; /* starts with a small letter, no full stop; the default is added by itself, when above 0 */
    sn_option_kind kind;
    void *target;     /* of the type that `kind` says; its value before parsing is the default */
    double low, high; /* of SN_OPTION_INT and SN_OPTION_FLOAT */
    bool required;
} sn_option;

/* Entries of a table: SN_OPT_INT("threads", "N", &threads, 1, 64, "workers of the CPU"). The target's type is checked.
 */
#define SN_OPT_ENTRY(kind_, type, name_, word_, target_, low_, high_, required_, help_)                                \
    {                                                                                                                  \
        .name = (name_), .word = (word_), .help = (help_), .kind = (kind_), .target = (1 ? (target_) : (type *)0),     \
        .low = (low_), .high = (high_), .required = (required_)                                                        \
    }
#define SN_OPT_STRING(name, word, target, help)                                                                        \
    SN_OPT_ENTRY(SN_OPTION_STRING, const char *, name, word, target, 0, 0, false, help)
#define SN_OPT_REQUIRED(name, word, target, help)                                                                      \
    SN_OPT_ENTRY(SN_OPTION_STRING, const char *, name, word, target, 0, 0, true, help)
#define SN_OPT_STRINGS(name, word, target, help)                                                                       \
    SN_OPT_ENTRY(SN_OPTION_STRINGS, sn_strings, name, word, target, 0, 0, false, help)
#define SN_OPT_SIZE(name, word, target, help)                                                                          \
    SN_OPT_ENTRY(SN_OPTION_SIZE, size_t, name, word, target, 0, 0, false, help)
#define SN_OPT_INT(name, word, target, low, high, help)                                                                \
    SN_OPT_ENTRY(SN_OPTION_INT, int64_t, name, word, target, low, high, false, help)
#define SN_OPT_FLOAT(name, word, target, low, high, help)                                                              \
    SN_OPT_ENTRY(SN_OPTION_FLOAT, double, name, word, target, low, high, false, help)
#define SN_OPT_FLAG(name, target, help) SN_OPT_ENTRY(SN_OPTION_FLAG, bool, name, NULL, target, 0, 0, false, help)
#define SN_OPT_BLOCKS(name, word, target, help)                                                                        \
    SN_OPT_ENTRY(SN_OPTION_BLOCKS, sn_block_range, name, word, target, 0, 0, false, help)

typedef struct sn_option_group {
    const char *title; /* "Model:" */
    const sn_option *options;
    size_t n;
} sn_option_group;

typedef struct sn_command {
    const char *program;  /* "swarm generate" */
    const char *synopsis; /* what follows it: "--model PATH [options]" */
    const char *about; /* one or more paragraphs, separated by "\n\n"; a line that begins with a space stays as it is */
    const sn_option_group *groups;
    size_t n_groups;
    size_t max_words;     /* positional arguments taken */
    const char *epilogue; /* shown at the end of --help, like `about`; NULL: nothing */
} sn_command;

/* What a call of sn_options_parse found beside the targets, and owner of the strings that the targets point to. */
typedef struct sn_options {
    bool help, version; /* asked for: print it and leave. Nothing else was looked at, and targets are as before */
    sn_strings words;   /* positional arguments */
    struct sn_option_memory *memory;
} sn_options;

/* Reads argv[1...argc-1], and the file of --config. SN_REFUSED with a sentence on the first thing that is wrong;
 * targets are then in between. Free *out with sn_options_fini in every case, after the last use of the targets. */
sn_status sn_options_parse(const sn_command *command, int argc, char *const *argv, sn_options *out,
                           sn_err *err) SN_MUST_USE;
/* The same for the text of a configuration file alone; `name` stands for it in sentences. */
sn_status sn_options_parse_file(const sn_command *command, const char *text, size_t len, const char *name,
                                sn_options *out, sn_err *err) SN_MUST_USE;
void sn_options_fini(const sn_command *command, sn_options *options); /* sets string targets NULL again */

/* The whole help, wrapped at 100 columns. Shows the targets' present values as defaults. */
void sn_options_help(const sn_command *command, FILE *out);

/* The name among `names` that is most like `word`, or NULL when none is near. For "did you mean". */
const char *sn_nearest(const char *word, const char *const *names, size_t n);

#endif

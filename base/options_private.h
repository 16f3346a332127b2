/* What the files of base/options share: walking a command's table, values from and to text. */
#ifndef SN_BASE_OPTIONS_PRIVATE_H
#define SN_BASE_OPTIONS_PRIVATE_H

#include "base/options.h"

/* The options that every command has; they have no entry in its tables. */
typedef struct sn_common_option {
    const char *name, *metavar, *help;
} sn_common_option;
enum { SN_COMMON_OPTIONS = 3 };
extern const sn_common_option sn_common_options[SN_COMMON_OPTIONS];

/* The options of all groups of a command have one numbering. */
size_t sn_command_n_options(const sn_command *command);
const sn_option *sn_command_option(const sn_command *command, size_t i);

/* The letter of an option's short form, or 0. An option name has the same letter in every command. */
char sn_option_letter(const char *name);

sn_status sn_strings_add(sn_strings *list, const char *text, sn_err *err) SN_MUST_USE;

/* The help text with what the table knows: "TEXT; may be repeated (default VALUE)". Returns out. */
char *sn_option_describe(const sn_option *option, char *out, size_t capacity);

/* The exit codes as one sentence, "Exit codes: 0 done; 1 ..."; "" when there are none. Returns out. */
char *sn_exit_codes_format(const sn_exit_code *codes, char *out, size_t capacity);

#endif

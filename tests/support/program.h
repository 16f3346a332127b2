/* Runs a program with its standard streams in files, and returns what it printed. Every failure here aborts the
 * test. */
#ifndef SN_TESTS_PROGRAM_H
#define SN_TESTS_PROGRAM_H

#include <jansson.h>

typedef struct program {
    int code; /* exit code; 128 + signal when a signal ended it, which happens after two minutes */
    char *out, *err;
} program;

/* argv ends with NULL; argv[0] is the path. `input`: standard input, NULL: none. */
program program_run(const char *const *argv, const char *input);
void program_fini(program *p);

/* The standard output as JSON; the caller calls json_decref. */
json_t *program_json(const program *p);

#endif

/* Runs a program as a person would, and says what it printed. Whatever fails here aborts the test. */
#ifndef SN_TESTS_PROGRAM_H
#define SN_TESTS_PROGRAM_H

#include <jansson.h>

typedef struct program {
    int code; /* exit code; 128 + signal when it was killed; it is after two minutes */
    char *out, *err;
} program;

/* argv ends with NULL; argv[0] is the path. `input` is its standard input, NULL: none. */
program program_run(const char *const *argv, const char *input);
void program_fini(program *p);

/* What it printed on stdout, as JSON; the caller decrefs it. */
json_t *program_json(const program *p);

#endif

/* Prerequisites of a test: REQUIRE ends the process with a message when a call fails. */
#ifndef SN_TESTS_REQUIRE_H
#define SN_TESTS_REQUIRE_H

#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(call)                                                                                                  \
    do {                                                                                                               \
        sn_err err = {0};                                                                                              \
        sn_status status_ = (call);                                                                                    \
        if (status_) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, sn_status_name(status_), err.text);                 \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Parses an integer, for example of the command line; ends the program with a message if the text is not an integer
 * in [low, high]. */
static inline int require_int(const char *text, int low, int high) {
    int64_t value = 0;
    sn_err err;
    if (!sn_parse_int(text, low, high, &value, &err)) return (int)value;
    fprintf(stderr, "%s\n", err.text);
    exit(2);
}

#endif

/* Stop strings and whole characters: the bytes of tokens come in, text that is final goes out.
 *
 * An incomplete UTF-8 character at the end is held back, and so are bytes that may be the beginning of a stop string.
 * The output is always valid UTF-8; bytes that cannot belong to a character become U+FFFD, as Unicode recommends (one
 * for each maximal part of a character). A stop string ends the text; it and what follows are never output. Central
 * type: sn_stop_strings, one for each generated text, used by the generator on its thread. */
#ifndef SN_CLIENT_GENERATE_STOP_STRINGS_H
#define SN_CLIENT_GENERATE_STOP_STRINGS_H

#include "base/mem.h"

enum { SN_STOP_STRINGS_MAX = 64, SN_STOP_STRING_LEN_MAX = 1024 };

typedef struct sn_stop_strings {
    const char *const *stops; /* borrowed; no empty strings */
    size_t n_stops;
    sn_buf held;  /* bytes that are held back */
    bool stopped; /* a stop string has ended the text */
} sn_stop_strings;

/* SN_REFUSED: too many, empty or too long stop strings. */
sn_status sn_stop_strings_init(sn_stop_strings *h, const char *const *stops, size_t n_stops, sn_err *err) SN_MUST_USE;
void sn_stop_strings_fini(sn_stop_strings *h);

/* Adds bytes, and appends to `out` the text that is final now. After a stop string the bytes are dropped. */
sn_status sn_stop_strings_push(sn_stop_strings *h, const void *bytes, size_t len, sn_buf *out, sn_err *err) SN_MUST_USE;
/* The end of the text: appends what was held back. Then another text can begin. */
sn_status sn_stop_strings_flush(sn_stop_strings *h, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif

/* Text that is being generated, on its way to a reader: bytes come in token by token, whole characters go out.
 *
 * Held back: an incomplete UTF-8 character at the end, and what may be the beginning of a stop string. What goes out is
 * always valid UTF-8; bytes that can belong to no character become U+FFFD, as Unicode recommends (one for each maximal
 * part of a character). A stop string ends the text; itself and what follows it never go out. One thread. */
#ifndef SN_CLIENT_HOLDBACK_H
#define SN_CLIENT_HOLDBACK_H

#include "base/mem.h"

enum { SN_STOPS_MAX = 64, SN_STOP_LEN_MAX = 1024 };

typedef struct sn_holdback {
    const char *const *stops; /* borrowed, not empty strings */
    size_t n_stops;
    sn_buf held;  /* not yet gone out */
    bool stopped; /* a stop string was met: the text has ended */
} sn_holdback;

/* SN_REFUSED for too many, empty or too long stop strings. */
sn_status sn_holdback_init(sn_holdback *h, const char *const *stops, size_t n_stops, sn_err *err) SN_MUST_USE;
void sn_holdback_fini(sn_holdback *h);

/* Takes bytes, appends to `out` what can go out now. After a stop string it takes them in vain. */
sn_status sn_holdback_push(sn_holdback *h, const void *bytes, size_t len, sn_buf *out, sn_err *err) SN_MUST_USE;
/* The end: what was held back goes out. The holdback can then be used for another text. */
sn_status sn_holdback_end(sn_holdback *h, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif

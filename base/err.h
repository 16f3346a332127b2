/* Errors. A code names the reaction, not the place; the sentence says what happened and what to do.
 *
 * A function that can fail returns an sn_status that must be looked at and fills the caller's sn_err. Each layer may put
 * its context before the sentence (sn_err_context), once; only the top of a program prints it. Bytes from a peer or a
 * file never reach an assert: they end here. */
#ifndef SN_BASE_ERR_H
#define SN_BASE_ERR_H

#define SN_MUST_USE __attribute__((warn_unused_result))
#define SN_PRINTF(at, first) __attribute__((format(printf, at, first)))

typedef enum sn_status {
    SN_OK = 0,
    SN_RETRY,   /* nothing is wrong with the request: try later, or another node (busy, full, no answer in time) */
    SN_REBUILD, /* the session's state is gone or differs: open a new one and replay */
    SN_REFUSED, /* the request, file or option is wrong: do not repeat it unchanged */
    SN_STOP,    /* this device or process cannot go on (out of memory, device lost) */
} sn_status;

typedef struct sn_err {
    sn_status status;
    int wait_ms;    /* of SN_RETRY: when the same request may do, where that is known; else 0 */
    char text[512]; /* one sentence, no newline; cut, never overrun */
} sn_err;

/* Sets *err (NULL allowed) and returns `status`, so that a failure is one line: return sn_fail(err, SN_REFUSED, ...). */
sn_status sn_fail(sn_err *err, sn_status status, const char *format, ...) SN_PRINTF(3, 4);

/* Puts "context: " before the sentence of *err (NULL allowed) and returns its status. */
sn_status sn_err_context(sn_err *err, const char *format, ...) SN_PRINTF(2, 3);

/* A word for a status ("retry", "refused", ...), static. */
const char *sn_status_name(sn_status status);

#endif

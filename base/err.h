/* Errors. A code names the reaction of the caller, not the place of the error; the sentence says what happened and what
 * to do.
 *
 * A function that can fail returns an sn_status, which the caller must check, and fills the caller's sn_err. Each layer
 * may prefix the sentence with its context once (sn_err_context); only the top of a program prints it. Bytes from a
 * peer or a file never reach an assert: they end as an error. */
#ifndef SN_BASE_ERR_H
#define SN_BASE_ERR_H

#define SN_MUST_USE          __attribute__((warn_unused_result))
#define SN_PRINTF(at, first) __attribute__((format(printf, at, first)))

typedef enum sn_status {
    SN_OK = 0,
    SN_RETRY,   /* the request is valid: try again later, or another node (busy, full, no answer in time) */
    SN_REBUILD, /* the session's state is lost or differs: open a new session and replay */
    SN_REFUSED, /* the request, file or option is wrong: do not repeat it unchanged */
    SN_STOP,    /* this device or process cannot continue (out of memory, device lost) */
} sn_status;

/* Why, where programs act on it; the sentence is for people. */
typedef enum sn_reason {
    SN_REASON_NONE,
    SN_REASON_NO_ROOM, /* not SN_REFUSED: sessions, perhaps idle ones of the asker, have a node's KV memory or places */
    SN_REASON_TOO_LONG, /* SN_REFUSED: no KV memory there could hold a timeline of so many tokens */
    SN_REASONS
} sn_reason;

typedef struct sn_err {
    sn_status status;
    sn_reason reason;
    int retry_after_ms; /* after how long the same request may succeed, where that is known; else 0 */
    char text[512];     /* one sentence, no newline; truncated to fit */
} sn_err;

/* Sets *err (NULL allowed) and returns `status`, so that a failure is one line: return sn_fail(err, SN_REFUSED, ...).
 */
sn_status sn_fail(sn_err *err, sn_status status, const char *format, ...) SN_PRINTF(3, 4);

/* The same with a reason. */
sn_status sn_fail_because(sn_err *err, sn_status status, sn_reason reason, const char *format, ...) SN_PRINTF(4, 5);

/* Prefixes the sentence of *err (NULL allowed) with "context: " and returns its status. */
sn_status sn_err_context(sn_err *err, const char *format, ...) SN_PRINTF(2, 3);

/* For functions that are a sequence of calls and hold nothing: the first one that fails ends the function with its
 * status. */
#define SN_TRY(call)                                                                                                   \
    do {                                                                                                               \
        sn_status status_ = (call);                                                                                    \
        if (status_) return status_;                                                                                   \
    } while (0)

/* The name of a status ("retry", "refused", ...), static. */
const char *sn_status_name(sn_status status);

#endif

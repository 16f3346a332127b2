/* Structured log lines on stderr: "2026-01-31T12:00:00.123456Z info  step finished session=ab12 tokens=4", or one JSON
 * object per line. Any thread may log; a line is written by one write(2). */
#ifndef SN_BASE_LOG_H
#define SN_BASE_LOG_H

#include "base/clock.h"
#include "base/mem.h"
#include "base/parse.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum sn_log_level { SN_LOG_DEBUG, SN_LOG_INFO, SN_LOG_WARN, SN_LOG_ERROR, SN_LOG_OFF } sn_log_level;

/* Called once, before threads start, by a program. Before it, nothing is logged. */
void sn_log_setup(sn_log_level level, bool json);
extern const sn_word sn_log_level_words[]; /* "debug", "info", "warn", "error", "off" */

/* While it is on, lines are kept instead of written, SN_LOG_KEPT_BYTES at most: a program that talks to a person shows
 * them where they do not break into a text. Switching it off writes what is kept. Any thread. */
enum { SN_LOG_KEPT_BYTES = 1 << 18 };
void sn_log_keep(bool on);
/* Moves the lines that are kept to the end of `out`; those that find no room there are lost. */
void sn_log_take(sn_buf *out);

/* `event` is a short constant phrase; the rest is a printf of key=value pairs separated by spaces. Values contain no
 * spaces, except the last one, which must then be text=... */
void sn_log(sn_log_level level, const char *event, const char *pairs_format, ...) SN_PRINTF(3, 4);

/* As sn_log, for lines that strangers cause: each place in the source writes at most SN_LOG_RATE_LINES lines in
 * SN_LOG_RATE_S seconds, or `lines` of them where honest peers cause many, and its next line afterwards says how many
 * were not written. */
enum { SN_LOG_RATE_LINES = 10, SN_LOG_RATE_S = 10 };
#define sn_log_rated(level, event, ...) sn_log_rated_at(SN_LOG_RATE_LINES, level, event, __VA_ARGS__)
#define sn_log_rated_at(lines, level, event, ...)                                                                      \
    do {                                                                                                               \
        static sn_log_rate rate_of_this_place;                                                                         \
        if (sn_log_rate_allows(&rate_of_this_place, lines, sn_now_us(), event)) sn_log(level, event, __VA_ARGS__);     \
    } while (0)

typedef struct sn_log_rate {
    _Atomic int64_t until_us; /* end of the present interval; 0: none has begun */
    atomic_uint lines;        /* in it, written or not */
} sn_log_rate;
/* Whether a line of `event`, of which lines_max are written in SN_LOG_RATE_S, may be written now; counts it. Any
 * thread. */
bool sn_log_rate_allows(sn_log_rate *rate, unsigned lines_max, int64_t now_us, const char *event);

/* Copies a value without the characters that would break a line: at most capacity - 1 characters of `text` to `out`.
 * Characters other than letters, digits and ".:-_+" become question marks; an empty value becomes "-". Returns out. */
char *sn_log_sanitize(const char *text, char *out, size_t capacity);

#endif

/* Structured log lines on stderr: "2026-01-31T12:00:00.123456Z info  step finished session=ab12 tokens=4", or one JSON
 * object per line. Any thread may log; a line is written by one write(2). */
#ifndef SN_BASE_LOG_H
#define SN_BASE_LOG_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum sn_log_level { SN_LOG_DEBUG, SN_LOG_INFO, SN_LOG_WARN, SN_LOG_ERROR, SN_LOG_OFF } sn_log_level;

/* Called once, before threads start. */
void sn_log_setup(sn_log_level level, bool json);
extern const sn_word sn_log_level_words[]; /* "debug", "info", "warn", "error", "off" */

/* `event` is a short constant phrase; the rest is a printf of key=value pairs separated by spaces. Values contain no
 * spaces, except the last one, which must then be text=... */
void sn_log(sn_log_level level, const char *event, const char *pairs_format, ...) SN_PRINTF(3, 4);

/* Copies a value without the characters that would break a line: at most capacity - 1 characters of `text` to `out`.
 * Characters other than letters, digits and ".:-_+" become question marks; an empty value becomes "-". Returns out. */
char *sn_log_sanitize(const char *text, char *out, size_t capacity);

#endif

/* Structured log lines on stderr: "2026-01-31T12:00:00.123456Z info  step finished session=ab12 tokens=4", or one JSON object
 * a line. Callable from any thread; a line is written by one write(2). */
#ifndef SN_BASE_LOG_H
#define SN_BASE_LOG_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum sn_log_level { SN_LOG_DEBUG, SN_LOG_INFO, SN_LOG_WARN, SN_LOG_ERROR, SN_LOG_OFF } sn_log_level;

/* Call once, before threads start. */
void sn_log_setup(sn_log_level level, bool json);
sn_status sn_log_level_parse(const char *word, sn_log_level *out, sn_err *err) SN_MUST_USE;

/* `event` is a short constant phrase; the rest is a printf of key=value pairs separated by spaces, values without
 * spaces except the last one, which must then be text=... */
void sn_log(sn_log_level level, const char *event, const char *pairs_format, ...) SN_PRINTF(3, 4);

/* A value without what would break a line: at most room - 1 characters of `text` into `out`, those that are no letter,
 * digit or one of ".:-_+" made question marks; "-" for an empty one. Returns out. */
char *sn_log_word(const char *text, char *out, size_t room);

#endif

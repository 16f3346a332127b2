/* Reading what people write: sizes, numbers, addresses, whole files. */
#ifndef SN_BASE_TEXT_H
#define SN_BASE_TEXT_H

#include "base/mem.h"

sn_status sn_parse_size(const char *text, size_t *bytes, sn_err *err) SN_MUST_USE; /* "4096", "512MiB", "2GB", "1.5GiB" */
sn_status sn_parse_int(const char *text, int64_t low, int64_t high, int64_t *out, sn_err *err) SN_MUST_USE;
sn_status sn_parse_float(const char *text, double low, double high, double *out, sn_err *err) SN_MUST_USE;
/* "A:B" with 0 <= A < B. */
sn_status sn_parse_blocks(const char *text, int *first, int *end, sn_err *err) SN_MUST_USE;

/* "1.5 MiB" into out (at least 32 bytes); returns out. */
char *sn_format_size(size_t bytes, char out[32]);

/* The whole file, with a NUL behind it (not counted in len). Refuses one above `limit` bytes. */
sn_status sn_read_file(const char *path, size_t limit, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif

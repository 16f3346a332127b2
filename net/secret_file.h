/* Files that hold secrets: created with mode 0600, never overwritten, refused when others may read or write them.
 * Used by net/ and its sub-folders only. Blocks on the disk. */
#ifndef SN_NET_SECRET_FILE_H
#define SN_NET_SECRET_FILE_H

#include "base/err.h"

#include <stddef.h>

/* `what` names the content in sentences: "an identity". When it returns the file is synced to disk, or does not exist.
 */
sn_status sn_secret_save(const char *path, const char *text, size_t len, const char *what, sn_err *err) SN_MUST_USE;
/* Reads at most `capacity` bytes. */
sn_status sn_secret_load(const char *path, char *text, size_t capacity, size_t *len, sn_err *err) SN_MUST_USE;

#endif

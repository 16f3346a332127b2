/* Files that hold secrets: made with mode 0600, never overwritten, refused when others may read them. Internal to net/. */
#ifndef SN_NET_SECRET_FILE_H
#define SN_NET_SECRET_FILE_H

#include "base/err.h"

#include <stddef.h>

/* `what` names it in sentences: "an identity". Safe on disk, or not there at all, when it returns. */
sn_status sn_secret_save(const char *path, const char *text, size_t len, const char *what, sn_err *err) SN_MUST_USE;
/* At most `room` bytes of it. */
sn_status sn_secret_load(const char *path, char *text, size_t room, size_t *len, sn_err *err) SN_MUST_USE;

#endif

/* A file mapped read-only into memory. */
#ifndef SN_MODEL_MAP_H
#define SN_MODEL_MAP_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SN_MAP_PATH_MAX = 4096 };

typedef struct sn_map {
    const uint8_t *data; /* NULL when nothing is mapped */
    size_t len;
} sn_map;

/* SN_REFUSED for what is no regular file, is empty, or cannot be read. A file that another process shortens while it is
 * mapped ends this process when the lost part is touched: model files are replaced by renaming, not by writing into
 * them. */
sn_status sn_map_open(const char *path, sn_map *out, sn_err *err) SN_MUST_USE;
void sn_map_close(sn_map *map); /* safe on a zeroed one */

#endif

/* A file mapped read-only into memory. The caller owns it; any thread may read the bytes. */
#ifndef SN_MODEL_MAPPED_FILE_H
#define SN_MODEL_MAPPED_FILE_H

#include "base/err.h"
#include "base/file_facts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SN_MAPPED_FILE_PATH_MAX = 4096 };

typedef struct sn_mapped_file {
    const uint8_t *data; /* NULL when nothing is mapped */
    size_t len;
    char *path;          /* as it was opened */
    sn_file_facts facts; /* when it was opened */
} sn_mapped_file;

/* SN_REFUSED for a file that is not regular, is empty, or cannot be read. If another process shortens the file while it
 * is mapped, touching the lost part kills this process (SIGBUS): model files are to be replaced by renaming, not by
 * writing into them. */
sn_status sn_mapped_file_open(const char *path, sn_mapped_file *out, sn_err *err) SN_MUST_USE;
void sn_mapped_file_close(sn_mapped_file *map); /* accepts a zeroed one */
/* Several files in the order of their addresses, so that the one that holds given bytes is found by halving. */
void sn_mapped_files_sort(sn_mapped_file *maps, size_t n);
/* Whether `bytes` points into one of the files; then *path is that file's, and *offset the place in it. */
bool sn_mapped_files_have(const sn_mapped_file *maps, size_t n, const void *bytes, const char **path, uint64_t *offset);

#endif

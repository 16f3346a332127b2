/* Hashing a file piece by piece, on several threads, so that it can be cancelled, and goes on later where it was. */
#ifndef SN_SHARING_HUB_PIECE_HASHES_H
#define SN_SHARING_HUB_PIECE_HASHES_H

#include "sharing/hub/manifest.h"

/* The pieces that were hashed by an earlier, cancelled making: a file of hashes in the order in which they were
 * computed, in batches with a check each. What follows a batch that is wrong is cut off. Of one thread. */
typedef struct sn_piece_log {
    int fd;       /* -1: nothing is kept */
    sn_hash last; /* check of the batch before, by which the next one is checked */
} sn_piece_log;

void sn_piece_log_open(const char *path,
                       sn_piece_log *out); /* path NULL, or a file that cannot be used: none is kept */
void sn_piece_log_close(sn_piece_log *log);

/* Fills in the hashes of pieces (n), whose bytes lie in the file at `path`. bypass: what was read leaves the system's
 * page cache. making: cancel and threads. */
sn_status sn_pieces_hash(const char *path, sn_piece *pieces, size_t n, bool bypass, const sn_manifest_making *making,
                         sn_piece_log *log, sn_err *err) SN_MUST_USE;

#endif

/* A file of which only some bytes are there. It has its full size from the beginning and holes where nothing was
 * written, so a program maps it like a whole one; what is there stands in a second file, PATH.ranges, which is written
 * after the bytes are on the disk. A process that is killed loses at most what it fetched since then. A symbolic link
 * stands for a whole file that lies elsewhere; its target is never written.
 *
 * Central type: sn_partial_file, of one thread. The open file is locked against other processes, which wait. Errors:
 * SN_STOP when the disk is full or fails; SN_REFUSED: the path cannot be written. */
#ifndef SN_MODEL_PARTIAL_FILE_H
#define SN_MODEL_PARTIAL_FILE_H

#include "base/cancel.h"
#include "base/file.h"
#include "model/range_set.h"

enum { SN_ETAG_SIZE = 160 };

typedef struct sn_partial_file {
    char path[SN_PATH_SIZE];
    int fd, lock; /* -1: closed */
    uint64_t size;
    char etag[SN_ETAG_SIZE]; /* what the server calls this version of the file */
    sn_range_set present;
    uint64_t unsaved; /* bytes that were written since PATH.ranges was */
} sn_partial_file;

/* Opens or makes the file. What an older version left (another size or etag) is dropped. Waits while another process
 * fetches the file, until `cancel` (SN_RETRY). */
sn_status sn_partial_file_open(const char *path, uint64_t size, const char *etag, const sn_cancel *cancel,
                               sn_partial_file *out, sn_err *err) SN_MUST_USE;
sn_status sn_partial_file_write(sn_partial_file *file, uint64_t at, const void *data, size_t bytes,
                                sn_err *err) SN_MUST_USE;
/* The two halves of it: bytes that are not known to be right are put first, and added when they are. */
sn_status sn_partial_file_put(sn_partial_file *file, uint64_t at, const void *data, size_t bytes,
                              sn_err *err) SN_MUST_USE;
/* Saves now and then what is there, but not that the file is whole. */
sn_status sn_partial_file_add(sn_partial_file *file, uint64_t at, uint64_t bytes, sn_err *err) SN_MUST_USE;
bool sn_partial_file_is_whole(const sn_partial_file *file);
/* Puts a link to a whole file in this one's place. Then everything is there. */
sn_status sn_partial_file_link(sn_partial_file *file, const char *target, sn_err *err) SN_MUST_USE;
/* Writes PATH.ranges. */
sn_status sn_partial_file_save(sn_partial_file *file, sn_err *err) SN_MUST_USE;
bool sn_partial_file_exists(const char *path); /* there is a PATH.ranges */
/* What is there of a file that is opened by its path: *present and *size (*partial true) if it has holes, that is,
 * if PATH.ranges says so. A file without PATH.ranges is whole. */
sn_status sn_partial_file_present(const char *path, bool *partial, sn_range_set *present, sn_err *err) SN_MUST_USE;
/* Closes the file without saving. Accepts a closed one. */
void sn_partial_file_close(sn_partial_file *file);

#endif

/* Reading and writing of files as a whole: calls that transfer all bytes or fail, hashes of files of any size, and new
 * files that appear under their name only when they are complete and on the disk. Sizes and offsets have 64 bits, and
 * only sn_read_* hold a file in memory. Any thread may call these functions; an sn_new_file belongs to one thread.
 * SN_REFUSED with a sentence that names the path and the cause; SN_STOP when the disk is full or fails. */
#ifndef SN_BASE_FILE_H
#define SN_BASE_FILE_H

#include "base/cancel.h"
#include "base/hash.h"
#include "base/mem.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum { SN_PATH_SIZE = 4096 };

/* Reads or writes exactly `bytes` at offset `at` of an open file. Returns 0, or the errno of the failure; a file that
 * ends too soon is ENODATA. */
int sn_file_read_at(int fd, void *out, size_t bytes, uint64_t at) SN_MUST_USE;
int sn_file_write_at(int fd, const void *data, size_t bytes, uint64_t at) SN_MUST_USE;

/* Opens the file behind fd once more for reads that pass by the system's page cache (O_DIRECT): offsets, lengths and
 * addresses are then multiples of SN_FILE_PAGE. -1: the file system has no such reads. */
enum { SN_FILE_PAGE = 4096 };
int sn_file_open_uncached(int fd);
/* Reads one stretch of the file from offset `at` on to n places in memory, by one call where the system allows it.
 * Returns 0, or the errno of the failure; a file that ends too soon is ENODATA. `places` is overwritten. */
int sn_file_read_scattered(int fd, struct iovec *places, int n, uint64_t at) SN_MUST_USE;

/* Whether an open file may hold a secret: SN_REFUSED unless it is a regular file that only its owner may read or
 * write. */
sn_status sn_file_check_secret(int fd, const char *path, sn_err *err) SN_MUST_USE;

/* Reads the whole file and appends a NUL, which is not counted in len. SN_REFUSED when it is not a regular file, cannot
 * be read, or is larger than `limit` bytes. */
sn_status sn_read_file(const char *path, size_t limit, sn_buf *out, sn_err *err) SN_MUST_USE;
/* The same of a file that holds a secret: SN_REFUSED, too, when others may read or write it. */
sn_status sn_read_secret_file(const char *path, size_t limit, sn_buf *out, sn_err *err) SN_MUST_USE;
/* The same of a pipe or device, too. */
sn_status sn_read_file_or_pipe(const char *path, size_t limit, sn_buf *out, sn_err *err) SN_MUST_USE;

/* The same of what is open already, from where it stands to its end. A signal ends the wait for more once `stop` is set
 * (NULL: none does). */
sn_status sn_read_stream(int fd, const char *name, size_t limit, const sn_cancel *stop, sn_buf *out,
                         sn_err *err) SN_MUST_USE;

/* SHA-256 of the file's bytes. */
sn_status sn_file_hash(const char *path, sn_hash *out, sn_err *err) SN_MUST_USE;

/* "folder/name". SN_REFUSED when it is too long. */
sn_status sn_path_join(char out[SN_PATH_SIZE], const char *folder, const char *name, sn_err *err) SN_MUST_USE;

/* A new file, written from the beginning to the end under its name and ".part", which the next attempt removes when
 * the process is killed; a link of that name is removed, too, and never followed. */
typedef struct sn_new_file {
    int fd; /* -1: closed */
    uint64_t bytes;
    char path[SN_PATH_SIZE], unfinished[SN_PATH_SIZE];
} sn_new_file;

sn_status sn_new_file_create(const char *path, sn_new_file *out, sn_err *err) SN_MUST_USE;
sn_status sn_new_file_write(sn_new_file *file, const void *data, size_t bytes, sn_err *err) SN_MUST_USE;
/* Synchronises the file to the disk and gives it its name, in place of an older file. Whether the name is on the disk,
 * too, is up to sn_folder_sync. */
sn_status sn_new_file_commit(sn_new_file *file, sn_err *err) SN_MUST_USE;
/* Removes a file that was not committed. Does nothing after a commit. */
void sn_new_file_discard(sn_new_file *file);

/* What a failed write of a result means, with its errno: SN_STOP when the disk is full or fails, else SN_REFUSED. */
sn_status sn_fail_write(sn_err *err, const char *path, int error);

/* All of this for bytes in memory. */
sn_status sn_file_replace(const char *path, const void *data, size_t bytes, sn_err *err) SN_MUST_USE;

/* Synchronises the names in a folder to the disk. */
sn_status sn_folder_sync(const char *folder, sn_err *err) SN_MUST_USE;

#endif

#include "sharing/hub/manifest.h"

#include "base/file.h"
#include "model/partial_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The bytes of one file that are here; a file that is not there has none. */
static sn_status present_of(const char *path, const sn_manifest_file *file, sn_range_set *present, sn_err *err) {
    struct stat st;
    bool partial;
    if (stat(path, &st)) return SN_OK;
    if ((uint64_t)st.st_size != file->size)
        return sn_fail(err, SN_REFUSED, "%s has %" PRIu64 " bytes, and %" PRIu64 " in the manifest", path,
                       (uint64_t)st.st_size, file->size);
    sn_status status = sn_partial_file_present(path, &partial, present, err);
    return status || partial ? status : sn_range_set_add(present, 0, file->size, err);
}

/* The first piece, every step-th one behind it, and the last one. */
static sn_status check_pieces(const sn_manifest *m, const sn_manifest_file *file, const char *path, size_t step,
                              uint64_t *here, sn_err *err) {
    sn_range_set present = {0};
    uint8_t *bytes = malloc(SN_PIECE_MAX);
    sn_status status = bytes ? present_of(path, file, &present, err) : sn_fail(err, SN_STOP, "out of memory");
    int fd = !status && present.n ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const size_t last = file->n_pieces ? file->n_pieces - 1 : 0;
    for (size_t i = 0; !status && fd >= 0 && i < file->n_pieces; i = i < last && i + step > last ? last : i + step) {
        const sn_piece *piece = &m->pieces[file->first_piece + i];
        size_t n = (size_t)(piece->to - piece->from);
        if (!sn_range_set_covers(&present, piece->from, piece->to)) continue;
        int error = sn_file_read_at(fd, bytes, n, piece->from);
        if (error) status = sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(error));
        const sn_hash hash = sn_hash_of(bytes, error ? 0 : n);
        if (!status && memcmp(&hash, &piece->hash, sizeof hash))
            status = sn_fail(err, SN_REFUSED,
                             "%s is not what the manifest says, at byte %" PRIu64
                             ": fetch it again, after 'swarm models remove' where it lies in the cache",
                             path, piece->from);
        *here += n;
    }
    if (fd >= 0) close(fd);
    sn_range_set_fini(&present);
    free(bytes);
    return status;
}

sn_status sn_manifest_check_file(const sn_manifest *m, const sn_manifest_file *file, const char *path, uint64_t *here,
                                 sn_err *err) {
    return check_pieces(m, file, path, 1, here, err);
}

/* sample: of each file so many pieces, and the last one. */
enum { SAMPLE = 8 };
static sn_status check_files(const sn_manifest *m, const char *path, bool sample, uint64_t *here, uint64_t *missing,
                             sn_err *err) {
    char name[SN_PATH_SIZE];
    uint64_t all = 0;
    sn_status status = SN_OK;
    *here = *missing = 0;
    if (access(path, F_OK)) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    for (size_t i = 0; !status && i < m->n_files; i++) {
        all += m->files[i].size;
        status = sn_manifest_file_path(m, i, path, name, err);
        size_t n = m->files[i].n_pieces, step = sample && n > SAMPLE ? n / SAMPLE : 1;
        if (!status) status = check_pieces(m, &m->files[i], name, step, here, err);
    }
    *missing = all - *here;
    return status;
}

sn_status sn_manifest_check(const sn_manifest *m, const char *path, uint64_t *here, uint64_t *missing, sn_err *err) {
    return check_files(m, path, false, here, missing, err);
}

bool sn_manifest_fits(const sn_manifest *m, const char *path) {
    uint64_t here, missing;
    sn_err err;
    return !check_files(m, path, true, &here, &missing, &err);
}

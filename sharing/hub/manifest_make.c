/* Making a manifest. Where a piece ends is found by asking the model for what it needs of each block: its source
 * (model/source.h) fetches nothing and remembers the ranges. All pieces are listed before any is hashed. */
#include "sharing/hub/manifest.h"

#include "base/cgroup.h"
#include "base/file.h"
#include "base/parse.h"
#include "model/gguf_parts.h"
#include "sharing/hub/hub.h"
#include "sharing/hub/piece_hashes.h"
#include "model/source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_LINE = 80 }; /* bytes that a piece takes in the text, or less */

typedef struct mark {
    uint64_t from, bytes;
    int file, unit; /* unit: -1: the ends, else the block */
} mark;

typedef struct making {
    const sn_manifest_making *how;
    bool bypass; /* as sn_pieces_hash */
    sn_piece_log log;
    char paths[SN_MANIFEST_FILES_MAX][SN_PATH_SIZE];
    int n_paths;
    int unit; /* that is asked for now */
    mark *marks;
    size_t n_marks, capacity, n_noted; /* n_noted: n_marks once all are noted */
    sn_manifest_file files[SN_MANIFEST_FILES_MAX];
    uint64_t bytes;   /* of all files */
    sn_piece *pieces; /* likewise */
    size_t n_pieces, piece_capacity;
} making;

static sn_status note_range(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    making *m = context;
    if (m->n_noted) return SN_OK; /* the pieces are cut: a block is hashed */
    SN_TRY(sn_grow(&m->marks, &m->capacity, m->n_marks + 1, sizeof *m->marks, err));
    for (int i = 0; i < m->n_paths; i++)
        if (!strcmp(m->paths[i], path)) m->marks[m->n_marks++] = (mark){from, bytes, i, m->unit};
    return SN_OK;
}

static sn_status fetch_nothing(void *context, const char *what, sn_err *err) {
    (void)what;
    return sn_is_cancelled(((making *)context)->how->cancel) ? sn_fail(err, SN_RETRY, "the manifest was not finished")
                                                             : SN_OK;
}

static void free_nothing(void *context) { (void)context; }

static int compare_marks(const void *a, const void *b) {
    const mark *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static int compare_paths(const void *a, const void *b) { return strcmp(a, b); }

/* The files that a program opens: GGUF files, or those of a folder. */
static sn_status list_files(making *m, const char *path, sn_err *err) {
    struct stat st;
    sn_status status = SN_OK;
    if (stat(path, &st)) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        int n = sn_gguf_parts_of(path, NULL);
        if (n > SN_MANIFEST_FILES_MAX)
            return sn_fail(err, SN_REFUSED, "%s has more than %d parts", path, SN_MANIFEST_FILES_MAX);
        while (!status && m->n_paths < n) {
            status = sn_gguf_part_path(path, m->n_paths + 1, m->paths[m->n_paths], err);
            m->n_paths++;
        }
        return status;
    }
    DIR *folder = opendir(path);
    if (!folder) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    for (const struct dirent *entry; !status && (entry = readdir(folder));) {
        if (!sn_hub_is_model_file(entry->d_name)) continue;
        if (m->n_paths == SN_MANIFEST_FILES_MAX)
            status = sn_fail(err, SN_REFUSED, "%s has more than %d files", path, SN_MANIFEST_FILES_MAX);
        else
            status = sn_path_join(m->paths[m->n_paths++], path, entry->d_name, err);
    }
    closedir(folder);
    qsort(m->paths, (size_t)m->n_paths, sizeof *m->paths, compare_paths);
    return status;
}

static sn_status list_piece(making *m, uint64_t from, uint64_t to, sn_err *err) {
    SN_TRY(sn_grow(&m->pieces, &m->piece_capacity, m->n_pieces + 1, sizeof *m->pieces, err));
    m->pieces[m->n_pieces++] = (sn_piece){.from = from, .to = to};
    return m->n_pieces <= SN_MANIFEST_MAX / PIECE_LINE
               ? SN_OK
               : sn_fail(err, SN_REFUSED, "the model is too large for a manifest, which is of 3.4 TB at most");
}

/* Cuts the file where another block begins, and then every MiB. marks: those of the file. */
static sn_status list_pieces(making *m, const mark *marks, size_t n_marks, uint64_t size, sn_err *err) {
    sn_status status = SN_OK;
    size_t next = 0;
    for (uint64_t at = 0; !status && at < size;) {
        while (next < n_marks && (marks[next].from <= at || (next && marks[next].unit == marks[next - 1].unit))) next++;
        uint64_t to = next < n_marks ? marks[next].from : size;
        if (to > size) to = size;
        if (to - at > SN_PIECE_MAX) to = at + SN_PIECE_MAX;
        status = list_piece(m, at, to, err);
        at = to;
    }
    return status;
}

/* The marks of a file. */
static const mark *marks_of(const making *m, int file, size_t *n) {
    size_t first = 0;
    *n = 0;
    while (first < m->n_marks && m->marks[first].file < file) first++;
    while (first + *n < m->n_marks && m->marks[first + *n].file == file) ++*n;
    return m->marks + first;
}

static sn_status list_file(making *m, int file, sn_err *err) {
    size_t n;
    struct stat st;
    const mark *marks = marks_of(m, file, &n);
    if (stat(m->paths[file], &st))
        return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", m->paths[file], strerror(errno));
    m->files[file] = (sn_manifest_file){
        .size = (uint64_t)st.st_size, .header = n ? marks->from : (uint64_t)st.st_size, .first_piece = m->n_pieces};
    m->bytes += m->files[file].size;
    sn_status status = list_pieces(m, marks, n, m->files[file].size, err);
    m->files[file].n_pieces = m->n_pieces - m->files[file].first_piece;
    return status;
}

static sn_status add_file(making *m, int number, sn_buf *text, sn_err *err) {
    const char *path = m->paths[number], *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const sn_manifest_file *file = &m->files[number];
    sn_piece *pieces = m->pieces + file->first_piece;
    char hex[2 * SN_HASH_SIZE + 1];
    if (!file->size) return SN_OK;
    if (!sn_hub_path_is_safe(name) || strlen(name) >= SN_HUB_FILE_SIZE) {
        if (m->n_paths > 1) return sn_fail(err, SN_REFUSED, "%s has a name that cannot be shared: rename it", path);
        name = "model.gguf";
    }
    sn_status status = sn_buf_printf(text, err, "file %" PRIu64 " %" PRIu64 " %s\n", file->size, file->header, name);
    if (!status) status = sn_pieces_hash(path, pieces, file->n_pieces, m->bypass, m->how, &m->log, err);
    for (size_t i = 0; !status && i < file->n_pieces; i++)
        status = sn_buf_printf(text, err, "piece %" PRIu64 " %s\n", pieces[i].to - pieces[i].from,
                               sn_hex(pieces[i].hash.bytes, SN_HASH_SIZE, hex));
    return status;
}

static sn_status add_hash(sn_buf *text, const char *word, const sn_hash *hash, sn_err *err) {
    char hex[2 * SN_HASH_SIZE + 1];
    return sn_buf_printf(text, err, "%s %s\n", word, sn_hex(hash->bytes, SN_HASH_SIZE, hex));
}

/* Notes where the ends and each block lie, and lists the pieces. */
static sn_status cut(making *m, const sn_model *model, sn_err *err) {
    size_t memory, available;
    m->unit = -1;
    sn_status status = sn_model_need_ends(model, err);
    for (m->unit = 0; !status && m->unit < sn_model_hparams(model)->n_blocks; m->unit++)
        status = sn_model_need_block(model, m->unit, err);
    if (m->n_marks) qsort(m->marks, m->n_marks, sizeof *m->marks, compare_marks);
    for (int i = 0; !status && i < m->n_paths; i++) status = list_file(m, i, err);
    sn_memory_read(&memory, &available);
    m->bypass = m->bytes > memory / 4;
    m->n_noted = m->n_marks;
    return status;
}

static bool is_cancelled(void *ctx) { return sn_is_cancelled(((making *)ctx)->how->cancel); }

/* Lets go what was read for a block's hash. */
static void forget_block(const making *m, int block) {
    int fd = -1, file = -1;
    for (size_t i = 0; m->bypass && i < m->n_noted; i++) {
        const mark *at = &m->marks[i];
        if (at->unit != block) continue;
        if (at->file != file) {
            if (fd >= 0) close(fd);
            fd = open(m->paths[file = at->file], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        }
        if (fd >= 0) posix_fadvise(fd, (off_t)at->from, (off_t)at->bytes, POSIX_FADV_DONTNEED);
    }
    if (fd >= 0) close(fd);
}

/* Name and hashes. */
static sn_status add_model(making *m, const sn_model *model, sn_buf *text, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    const sn_halt stop = {is_cancelled, m};
    sn_hash hash, id = sn_model_id(model);
    char name[SN_MODEL_NAME_SIZE];
    snprintf(name, sizeof name, "%s", hp->name);
    sn_sanitize_text(name);
    sn_status status = sn_buf_printf(text, err, "swarm manifest 1\nname %s\n", name);
    if (!status) status = add_hash(text, "model", &id, err);
    if (!status) status = sn_model_hash_client(model, &stop, &hash, err);
    if (!status) status = add_hash(text, "ends", &hash, err);
    for (int b = 0; !status && b < hp->n_blocks; b++) {
        status = sn_model_hash_block(model, b, &stop, &hash, err);
        if (!status) status = add_hash(text, "block", &hash, err);
        forget_block(m, b);
    }
    return status;
}

static sn_status make(making *m, const char *path, const sn_model *model, sn_buf *text, sn_err *err) {
    sn_status status = list_files(m, path, err);
    if (!status && sn_model_has_holes(model))
        status = sn_fail(err, SN_REFUSED, "%s is here in part only: a manifest needs all of it", path);
    if (!status) status = cut(m, model, err);
    if (!status) status = add_model(m, model, text, err);
    for (int i = 0; !status && i < m->n_paths; i++) status = add_file(m, i, text, err);
    return status;
}

sn_status sn_manifest_make(const char *path, const sn_manifest_making *how, sn_buf *text, sn_err *err) {
    static const sn_manifest_making plain;
    sn_model *model = NULL;
    making *m = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->how = how ? how : &plain;
    sn_piece_log_open(m->how->resumed, &m->log);
    status = sn_model_open(path, &model, err);
    if (!status) sn_model_keep_hashes(model, m->how->cache);
    if (!status) sn_model_set_source(model, &(sn_model_source){note_range, fetch_nothing, free_nothing, m});
    if (!status) status = make(m, path, model, text, err);
    sn_model_close(&model);
    sn_piece_log_close(&m->log);
    free(m->pieces);
    free(m->marks);
    free(m);
    return status;
}

/* Making a manifest. Where a piece ends is found by asking the model for what it needs of each block: its source
 * (model/source.h) fetches nothing and remembers the ranges. */
#include "model/hub/manifest.h"

#include "base/file.h"
#include "base/text.h"
#include "model/gguf_parts.h"
#include "model/hub/hub.h"
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

typedef struct mark {
    uint64_t from;
    int file, unit; /* unit: -1: the ends, else the block */
} mark;

typedef struct making {
    const sn_cancel *cancel;
    char paths[SN_MANIFEST_FILES_MAX][SN_PATH_SIZE];
    int n_paths;
    int unit; /* that is asked for now */
    mark *marks;
    size_t n_marks, capacity;
} making;

static sn_status note_range(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    making *m = context;
    (void)bytes;
    if (m->n_marks == m->capacity) {
        size_t capacity = m->capacity ? 2 * m->capacity : 1024;
        mark *more = realloc(m->marks, capacity * sizeof *more);
        if (!more) return sn_fail(err, SN_STOP, "out of memory for a manifest");
        m->marks = more;
        m->capacity = capacity;
    }
    for (int i = 0; i < m->n_paths; i++)
        if (!strcmp(m->paths[i], path)) m->marks[m->n_marks++] = (mark){from, i, m->unit};
    return SN_OK;
}

static sn_status fetch_nothing(void *context, const char *what, sn_err *err) {
    (void)what;
    return sn_is_cancelled(((making *)context)->cancel) ? sn_fail(err, SN_RETRY, "the manifest was not finished")
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

static sn_status add_piece(int fd, const char *path, uint64_t from, uint64_t to, void *buffer, sn_buf *text,
                           sn_err *err) {
    char hex[2 * SN_HASH_SIZE + 1];
    int error = sn_file_read_at(fd, buffer, (size_t)(to - from), from);
    if (error) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(error));
    sn_hash hash = sn_hash_of(buffer, (size_t)(to - from));
    return sn_buf_printf(text, err, "piece %" PRIu64 " %s\n", to - from, sn_hex(hash.bytes, SN_HASH_SIZE, hex));
}

/* Cuts the file where another block begins, and then every MiB. marks: those of the file. */
static sn_status add_pieces(making *m, const char *path, const mark *marks, size_t n_marks, uint64_t size, sn_buf *text,
                            sn_err *err) {
    void *buffer = malloc(SN_PIECE_MAX);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    sn_status status = !buffer  ? sn_fail(err, SN_STOP, "out of memory for a piece")
                       : fd < 0 ? sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno))
                                : SN_OK;
    size_t next = 0;
    for (uint64_t at = 0; !status && at < size;) {
        while (next < n_marks && (marks[next].from <= at || (next && marks[next].unit == marks[next - 1].unit))) next++;
        uint64_t to = next < n_marks ? marks[next].from : size;
        if (to > size) to = size;
        if (to - at > SN_PIECE_MAX) to = at + SN_PIECE_MAX;
        status = fetch_nothing(m, "", err);
        if (!status) status = add_piece(fd, path, at, to, buffer, text, err);
        at = to;
    }
    if (fd >= 0) close(fd);
    free(buffer);
    return status;
}

static sn_status add_file(making *m, int file, sn_buf *text, sn_err *err) {
    const char *path = m->paths[file], *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t first = 0, n = 0;
    struct stat st;
    if (stat(path, &st)) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    while (first < m->n_marks && m->marks[first].file < file) first++;
    while (first + n < m->n_marks && m->marks[first + n].file == file) n++;
    uint64_t size = (uint64_t)st.st_size, header = n ? m->marks[first].from : size;
    if (!size) return SN_OK;
    if (!sn_hub_path_is_safe(name) || strlen(name) >= SN_HUB_FILE_SIZE) {
        if (m->n_paths > 1) return sn_fail(err, SN_REFUSED, "%s has a name that cannot be shared: rename it", path);
        name = "model.gguf";
    }
    sn_status status = sn_buf_printf(text, err, "file %" PRIu64 " %" PRIu64 " %s\n", size, header, name);
    return status ? status : add_pieces(m, path, m->marks + first, n, size, text, err);
}

static sn_status add_hash(sn_buf *text, const char *word, const sn_hash *hash, sn_err *err) {
    char hex[2 * SN_HASH_SIZE + 1];
    return sn_buf_printf(text, err, "%s %s\n", word, sn_hex(hash->bytes, SN_HASH_SIZE, hex));
}

/* Name and hashes; meanwhile the marks are noted. */
static sn_status add_model(making *m, const sn_model *model, sn_buf *text, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_hash hash, id = sn_model_id(model);
    char name[SN_MODEL_NAME_SIZE];
    snprintf(name, sizeof name, "%s", hp->name);
    sn_sanitize_text(name);
    sn_status status = sn_buf_printf(text, err, "swarm manifest 1\nname %s\n", name);
    if (!status) status = add_hash(text, "model", &id, err);
    m->unit = -1;
    if (!status) status = sn_model_client_hash(model, &hash, err);
    if (!status) status = add_hash(text, "ends", &hash, err);
    for (m->unit = 0; !status && m->unit < hp->n_blocks; m->unit++) {
        status = sn_model_block_hash(model, m->unit, &hash, err);
        if (!status) status = add_hash(text, "block", &hash, err);
    }
    return status;
}

sn_status sn_manifest_make(const char *path, const sn_cancel *cancel, sn_buf *text, sn_err *err) {
    sn_model *model = NULL;
    making *m = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->cancel = cancel;
    status = sn_model_open(path, &model, err);
    if (!status) status = list_files(m, path, err);
    if (!status && sn_model_has_holes(model))
        status = sn_fail(err, SN_REFUSED, "%s is here in part only: a manifest needs all of it", path);
    if (!status) sn_model_set_source(model, &(sn_model_source){note_range, fetch_nothing, free_nothing, m});
    if (!status) status = add_model(m, model, text, err);
    sn_model_close(&model);
    if (m->n_marks) qsort(m->marks, m->n_marks, sizeof *m->marks, compare_marks);
    for (int i = 0; !status && i < m->n_paths; i++) status = add_file(m, i, text, err);
    free(m->marks);
    free(m);
    return status;
}

/* A file is a header, which names the key and the hash of the image, and the image. Every file that was verified
 * (`has`) or written (`put`) stays open in store->files: a streamed block is read again and again, and a process that
 * removes or replaces the file does no harm then. The bytes that are hashed are tagged, part by part, while they are in
 * memory, so that every read later is checked by a tag.
 *
 * A file is written under a random name that ends in ".new", locked (flock), synced, and renamed. The lock tells other
 * processes that the file is being written: store_sweep removes unfinished files that no process has locked. */
#include "blocks/offload_store.h"

#include "base/file.h"
#include "base/log.h"
#include "base/tag.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 2, CHUNK = 1 << 20 };
static const char magic[8] = "SNBLOCK";
static const char unfinished[] = ".new";

typedef struct header { /* little-endian numbers: a big-endian machine reads another version */
    char magic[8];
    uint64_t version, bytes;
    sn_hash key, image;
    uint8_t zeros[SN_FILE_PAGE - 88];
} header;
_Static_assert(sizeof(header) == SN_FILE_PAGE, "an image begins at a page, and each bit before it is checked");

typedef struct verified_file {
    sn_hash key;
    size_t bytes, part;
    sn_tag *tags; /* of each part */
    int file;
} verified_file;

struct sn_offload_store {
    char *folder;
    int dir;
    sn_hasher *hasher;
    sn_tagger *tagger;
    uint8_t *chunk;
    struct digest { /* of the image that is being verified or written: its hash is in the hasher */
        sn_tag *tags;
        size_t part, in_part, n;
    } digest;
    verified_file *files;
    size_t n_files, capacity;
};

enum { NAME_SIZE = sizeof((sn_new_image *)0)->name };

static void block_file_name(const sn_hash *key, char out[NAME_SIZE]) {
    char hex[2 * SN_HASH_SIZE + 1];
    snprintf(out, NAME_SIZE, "%s.block", sn_hex(key->bytes, SN_HASH_SIZE, hex));
}

/* ---- open, close ---- */

/* Removes unfinished files whose process has ended: no process holds their lock. */
static void store_sweep(sn_offload_store *store) {
    int copy = openat(store->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        if (copy >= 0) close(copy);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t len = strlen(entry->d_name);
        if (len < sizeof unfinished || strcmp(entry->d_name + len - strlen(unfinished), unfinished)) continue;
        int file = openat(store->dir, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (file < 0) continue;
        if (!flock(file, LOCK_EX | LOCK_NB)) unlinkat(store->dir, entry->d_name, 0);
        close(file);
    }
    closedir(dir);
}

/* Creates a locked file under a new random name; -1 with errno on failure. */
static int open_unfinished(sn_offload_store *store, char name[NAME_SIZE]) {
    for (int i = 0; i < 100; i++) {
        uint64_t number;
        struct stat st;
        sn_random(&number, sizeof number);
        snprintf(name, NAME_SIZE, "%016llx%s", (unsigned long long)number, unfinished);
        int file = openat(store->dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST) return -1;
        /* Another process may have removed the file between open and flock: then try another name. */
        if (file >= 0 && !flock(file, LOCK_EX | LOCK_NB) && !fstat(file, &st) && st.st_nlink) return file;
        if (file >= 0) close(file);
    }
    errno = EBUSY;
    return -1;
}

static sn_status store_open_folder(sn_offload_store *store, sn_err *err) {
    struct stat st;
    char name[NAME_SIZE];
    if (mkdir(store->folder, 0700) && errno != EEXIST)
        return sn_fail(err, SN_REFUSED, "the offload folder %.256s cannot be made: %s", store->folder, strerror(errno));
    store->dir = open(store->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->dir < 0 || fstat(store->dir, &st))
        return sn_fail(err, SN_REFUSED, "the offload folder %.256s cannot be opened: %s", store->folder,
                       strerror(errno));
    if (st.st_mode & S_IWOTH)
        return sn_fail(err, SN_REFUSED, "the offload folder %.256s is world-writable: give another one", store->folder);
    int file = open_unfinished(store, name);
    if (file < 0)
        return sn_fail(err, SN_REFUSED, "nothing can be written to the offload folder %.256s: %s", store->folder,
                       strerror(errno));
    unlinkat(store->dir, name, 0);
    close(file);
    return SN_OK;
}

sn_status sn_offload_store_open(const char *folder, sn_offload_store **out, sn_err *err) {
    sn_offload_store *store = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&store, 1, sizeof *store, err);
    if (status) return status;
    store->dir = -1;
    store->folder = strdup(folder);
    store->hasher = sn_hasher_new();
    store->tagger = sn_tagger_new();
    status = sn_calloc(&store->chunk, CHUNK, 1, err);
    if (!status && (!store->folder || !store->hasher || !store->tagger))
        status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) status = store_open_folder(store, err);
    if (status) {
        sn_offload_store_close(&store);
        return status;
    }
    store_sweep(store);
    *out = store;
    return SN_OK;
}

static void file_close(verified_file *f) {
    close(f->file);
    free(f->tags);
}

void sn_offload_store_close(sn_offload_store **store) {
    sn_offload_store *s = *store;
    if (!s) return;
    for (size_t i = 0; i < s->n_files; i++) file_close(&s->files[i]);
    free(s->digest.tags);
    if (s->dir >= 0) close(s->dir);
    sn_hasher_free(s->hasher);
    sn_tagger_free(s->tagger);
    free(s->files);
    free(s->chunk);
    free(s->folder);
    free(s);
    *store = NULL;
}

/* ---- verified files ---- */

static verified_file *store_find(const sn_offload_store *store, const sn_hash *key) {
    for (size_t i = 0; i < store->n_files; i++)
        if (memcmp(&store->files[i].key, key, sizeof *key) == 0) return &store->files[i];
    return NULL;
}

static sn_status store_reserve(sn_offload_store *store, sn_err *err) {
    return sn_grow(&store->files, &store->capacity, store->n_files + 1, sizeof *store->files, err);
}

static void store_forget(sn_offload_store *store, const sn_hash *key) {
    verified_file *s = store_find(store, key);
    if (!s) return;
    file_close(s);
    *s = store->files[--store->n_files];
}

/* Adds an open file whose image was digested; the list has capacity for it (store_reserve). */
static void store_remember(sn_offload_store *store, const header *h, int file) {
    struct digest *d = &store->digest;
    store_forget(store, &h->key);
    store->files[store->n_files++] =
        (verified_file){.key = h->key, .bytes = (size_t)h->bytes, .part = d->part, .tags = d->tags, .file = file};
    d->tags = NULL;
}

/* ---- digests: the hash of an image and the tags of its parts ---- */

static sn_status digest_begin(sn_offload_store *store, size_t bytes, size_t part, sn_err *err) {
    struct digest *d = &store->digest;
    free(d->tags);
    *d = (struct digest){.part = part};
    (void)sn_hasher_end(store->hasher); /* an image that was discarded may have left some of itself */
    return sn_calloc(&d->tags, part ? bytes / part + 1 : 1, sizeof *d->tags, err);
}

static void digest_add(sn_offload_store *store, const void *data, size_t bytes) {
    struct digest *d = &store->digest;
    const uint8_t *at = data;
    sn_hasher_add(store->hasher, data, bytes);
    for (size_t n; bytes; at += n, bytes -= n) {
        n = sn_min_size(bytes, d->part - d->in_part);
        if (!d->in_part) sn_tagger_begin(store->tagger, NULL);
        sn_tagger_add(store->tagger, at, n);
        d->in_part += n;
        if (d->in_part < d->part) continue;
        d->tags[d->n++] = sn_tagger_end(store->tagger);
        d->in_part = 0;
    }
}

static sn_hash digest_end(sn_offload_store *store) {
    struct digest *d = &store->digest;
    if (d->in_part) d->tags[d->n++] = sn_tagger_end(store->tagger);
    return sn_hasher_end(store->hasher);
}

/* ---- has, put, get ---- */

static sn_hash store_digest_file(sn_offload_store *store, int file, size_t bytes, bool *whole) {
    *whole = true;
    for (size_t at = 0; at < bytes && *whole;) {
        size_t n = sn_min_size(CHUNK, bytes - at);
        *whole = !sn_file_read_at(file, store->chunk, n, sizeof(header) + at);
        if (*whole) digest_add(store, store->chunk, n);
        at += n;
    }
    return digest_end(store);
}

/* What is wrong with the file; NULL: nothing. */
static const char *store_check_file(sn_offload_store *store, int file, const sn_hash *key, size_t bytes, header *h) {
    struct stat st;
    bool whole, zeros = true;
    if (fstat(file, &st) || !S_ISREG(st.st_mode)) return "it is not a regular file";
    if (sn_file_read_at(file, h, sizeof *h, 0)) return "it is cut short";
    if (memcmp(h->magic, magic, sizeof magic) || h->version != VERSION) return "it is of another version";
    for (size_t i = 0; i < sizeof h->zeros; i++) zeros = zeros && !h->zeros[i];
    if (!zeros) return "its header is damaged";
    if (memcmp(&h->key, key, sizeof *key)) return "it holds another block";
    if (h->bytes != bytes) return "its size differs";
    if ((uint64_t)st.st_size - sizeof *h != bytes) return "it is cut short or has grown";
    sn_hash hash = store_digest_file(store, file, bytes, &whole);
    if (!whole) return "it cannot be read";
    return memcmp(&hash, &h->image, sizeof hash) ? "its hash differs" : NULL;
}

bool sn_offload_store_has(sn_offload_store *store, const sn_hash *key, size_t bytes, size_t part) {
    char name[NAME_SIZE];
    header h;
    block_file_name(key, name);
    store_forget(store, key);
    if (store_reserve(store, NULL) || digest_begin(store, bytes, part, NULL)) return false;
    int file = openat(store->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && errno != ELOOP) return false; /* there is none, or it cannot be opened now */
    const char *wrong = file < 0 ? "it is a link" : store_check_file(store, file, key, bytes, &h);
    if (!wrong) {
        store_remember(store, &h, file);
        return true;
    }
    if (file >= 0) close(file);
    unlinkat(store->dir, name, 0);
    sn_log(SN_LOG_WARN, "offloaded block rebuilt", "file=%s text=%s", name, wrong);
    return false;
}

static sn_status store_put_failed(const sn_offload_store *store, size_t bytes, int error, sn_err *err) {
    if (error == ENOSPC || error == EFBIG || error == EDQUOT)
        return sn_fail(
            err, SN_STOP,
            "the offload folder %.256s is full: %zu bytes of a block do not fit: free space (files of other models and "
            "versions in it may be deleted), or give another folder",
            store->folder, bytes);
    return sn_fail(err, SN_STOP, "a block of %zu bytes cannot be written to the offload folder %.256s: %s", bytes,
                   store->folder, strerror(error));
}

void sn_offload_store_discard(sn_offload_store *store, sn_new_image *image) {
    if (image->file < 0) return;
    unlinkat(store->dir, image->name, 0);
    close(image->file);
    image->file = -1;
}

sn_status sn_offload_store_begin(sn_offload_store *store, const sn_hash *key, size_t bytes, size_t part,
                                 sn_new_image *out, sn_err *err) {
    *out = (sn_new_image){.file = -1, .bytes = bytes, .key = *key};
    sn_status status = store_reserve(store, err);
    if (!status) status = digest_begin(store, bytes, part, err);
    if (status) return status;
    if (bytes > INT64_MAX - sizeof(header))
        return sn_fail(err, SN_REFUSED, "a block of %zu bytes is too large for a file", bytes);
    out->file = open_unfinished(store, out->name);
    if (out->file < 0) return store_put_failed(store, bytes, errno, err);
    /* On file systems that support it, a full disk is found before gigabytes are written. */
    if (fallocate(out->file, 0, 0, (off_t)(sizeof(header) + bytes)) &&
        (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
        return store_put_failed(store, bytes, errno, err);
    return SN_OK;
}

sn_status sn_offload_store_add(sn_offload_store *store, sn_new_image *image, const void *data, size_t bytes,
                               sn_err *err) {
    int error = sn_file_write_at(image->file, data, bytes, sizeof(header) + image->at);
    if (error) return store_put_failed(store, image->bytes, error, err);
    digest_add(store, data, bytes);
    image->at += bytes;
    return SN_OK;
}

sn_status sn_offload_store_commit(sn_offload_store *store, sn_new_image *image, sn_err *err) {
    char name[NAME_SIZE];
    header h = {.version = VERSION, .bytes = image->bytes, .key = image->key, .image = digest_end(store)};
    memcpy(h.magic, magic, sizeof magic);
    block_file_name(&image->key, name);
    int error = sn_file_write_at(image->file, &h, sizeof h, 0);
    if (!error && fsync(image->file)) error = errno;
    if (!error && renameat(store->dir, image->name, store->dir, name)) error = errno;
    if (error) return store_put_failed(store, image->bytes, error, err);
    fsync(store->dir); /* if power fails and the name is lost, the file is put again */
    flock(image->file, LOCK_UN);
    store_remember(store, &h, image->file);
    image->file = -1;
    return SN_OK;
}

sn_status sn_offload_store_put(sn_offload_store *store, const sn_hash *key, const void *image, size_t bytes,
                               sn_err *err) {
    sn_new_image file;
    sn_status status = sn_offload_store_begin(store, key, bytes, bytes, &file, err);
    if (!status) status = sn_offload_store_add(store, &file, image, bytes, err);
    if (!status) status = sn_offload_store_commit(store, &file, err);
    sn_offload_store_discard(store, &file);
    return status;
}

int sn_offload_store_file(const sn_offload_store *store, const sn_hash *key, size_t bytes, uint64_t *at, sn_tag *tags) {
    const verified_file *s = store_find(store, key);
    *at = sizeof(header);
    if (!s || s->bytes != bytes) return -1;
    memcpy(tags, s->tags, (bytes / s->part + (bytes % s->part > 0)) * sizeof *tags);
    return fcntl(s->file, F_DUPFD_CLOEXEC, 0);
}

/* Whether the image in memory is the one that was verified or written. */
static bool image_is_same(sn_offload_store *store, const verified_file *s, const uint8_t *image) {
    bool same = true;
    for (size_t at = 0, n, i = 0; at < s->bytes && same; at += n, i++) {
        n = sn_min_size(s->part, s->bytes - at);
        sn_tagger_begin(store->tagger, &s->tags[i]);
        sn_tagger_add(store->tagger, image + at, n);
        const sn_tag now = sn_tagger_end(store->tagger);
        same = sn_tag_equal(&now, &s->tags[i]);
    }
    return same;
}

sn_status sn_offload_store_get(sn_offload_store *store, const sn_hash *key, void *image, size_t bytes, sn_err *err) {
    char name[NAME_SIZE];
    const verified_file *s = store_find(store, key);
    block_file_name(key, name);
    if (!s || s->bytes != bytes)
        return sn_fail(err, SN_STOP, "%s: no block of %zu bytes was stored under this name in this run", name, bytes);
    bool whole = !sn_file_read_at(s->file, image, bytes, sizeof(header));
    if (!whole || !image_is_same(store, s, image))
        return sn_fail(err, SN_STOP, "%s in the offload folder %.256s was %s after it was checked: start again", name,
                       store->folder, whole ? "changed" : "cut short");
    return SN_OK;
}

/* A file is a header and the image. Each one that was seen stays open: it is read again and again, and another process
 * that removes or replaces it does no harm then. */
#include "blocks/store.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, CHUNK = 1 << 20 };
static const char magic[8] = "SNBLOCK";
static const char unfinished[] = ".new";

typedef struct header { /* numbers as on x86: a machine of another order sees another version */
    char magic[8];
    uint64_t version, bytes;
    sn_hash key, image;
} header;
_Static_assert(sizeof(header) == 88, "the header has no padding: each of its bits is checked");

typedef struct seen {
    sn_hash key, image;
    size_t bytes;
    int file;
} seen;

struct sn_store {
    char *folder;
    int dir;
    sn_hasher *hasher;
    uint8_t *chunk;
    seen *seen;
    size_t n_seen, room;
};

enum { NAME_SIZE = 2 * SN_HASH_SIZE + 40 };

static void name_of(const sn_hash *key, char out[NAME_SIZE]) {
    char hex[2 * SN_HASH_SIZE + 1];
    snprintf(out, NAME_SIZE, "%s.block", sn_hex(key->bytes, SN_HASH_SIZE, hex));
}

/* -- reading and writing whole ranges */

static bool read_at(int file, void *out, size_t bytes, size_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(file, (uint8_t *)out + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* 0 or an errno. */
static int write_at(int file, const void *data, size_t bytes, size_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(file, (const uint8_t *)data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno != EINTR) return errno;
        if (n > 0) done += (size_t)n;
    }
    return 0;
}

/* -- open, close */

/* Removes what a process left that did not live to finish it: nobody holds the lock on it. */
static void sweep(sn_store *store) {
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

/* A new file under a name of its own, locked. -1 with errno. */
static int open_unfinished(sn_store *store, char name[NAME_SIZE]) {
    for (int i = 0; i < 100; i++) {
        uint64_t number;
        struct stat st;
        sn_random(&number, sizeof number);
        snprintf(name, NAME_SIZE, "%016llx%s", (unsigned long long)number, unfinished);
        int file = openat(store->dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST) return -1;
        /* Another process's sweep may have come between the two calls. */
        if (file >= 0 && !flock(file, LOCK_EX | LOCK_NB) && !fstat(file, &st) && st.st_nlink) return file;
        if (file >= 0) close(file);
    }
    errno = EBUSY;
    return -1;
}

static sn_status open_folder(sn_store *store, sn_err *err) {
    struct stat st;
    char name[NAME_SIZE];
    if (mkdir(store->folder, 0700) && errno != EEXIST)
        return sn_fail(err, SN_REFUSED, "the offload folder %.256s cannot be made: %s", store->folder, strerror(errno));
    store->dir = open(store->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->dir < 0 || fstat(store->dir, &st))
        return sn_fail(err, SN_REFUSED, "the offload folder %.256s cannot be opened: %s", store->folder,
                       strerror(errno));
    if (st.st_mode & S_IWOTH)
        return sn_fail(err, SN_REFUSED, "anybody may write to the offload folder %.256s: give one of your own",
                       store->folder);
    int file = open_unfinished(store, name);
    if (file < 0)
        return sn_fail(err, SN_REFUSED, "nothing can be written to the offload folder %.256s: %s", store->folder,
                       strerror(errno));
    unlinkat(store->dir, name, 0);
    close(file);
    return SN_OK;
}

sn_status sn_store_open(const char *folder, sn_store **out, sn_err *err) {
    sn_store *store = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&store, 1, sizeof *store, err);
    if (status) return status;
    store->dir = -1;
    store->folder = strdup(folder);
    store->hasher = sn_hasher_new();
    status = sn_calloc(&store->chunk, CHUNK, 1, err);
    if (!status && (!store->folder || !store->hasher)) status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) status = open_folder(store, err);
    if (status) {
        sn_store_close(&store);
        return status;
    }
    sweep(store);
    *out = store;
    return SN_OK;
}

void sn_store_close(sn_store **store) {
    sn_store *s = *store;
    if (!s) return;
    for (size_t i = 0; i < s->n_seen; i++) close(s->seen[i].file);
    if (s->dir >= 0) close(s->dir);
    sn_hasher_free(s->hasher);
    free(s->seen);
    free(s->chunk);
    free(s->folder);
    free(s);
    *store = NULL;
}

/* -- what was seen */

static seen *find(sn_store *store, const sn_hash *key) {
    for (size_t i = 0; i < store->n_seen; i++)
        if (memcmp(&store->seen[i].key, key, sizeof *key) == 0) return &store->seen[i];
    return NULL;
}

static sn_status make_room(sn_store *store, sn_err *err) {
    if (store->n_seen < store->room) return SN_OK;
    size_t room = store->room * 2 + 16;
    seen *grown = realloc(store->seen, room * sizeof *grown);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory: a list of %zu blocks does not fit", room);
    store->seen = grown;
    store->room = room;
    return SN_OK;
}

static void forget(sn_store *store, const sn_hash *key) {
    seen *s = find(store, key);
    if (!s) return;
    close(s->file);
    *s = store->seen[--store->n_seen];
}

/* There is room (make_room). */
static void remember(sn_store *store, const header *h, int file) {
    forget(store, &h->key);
    store->seen[store->n_seen++] = (seen){h->key, h->image, (size_t)h->bytes, file};
}

/* -- has, put, get */

static sn_hash hash_of_file(sn_store *store, int file, size_t bytes, bool *whole) {
    *whole = true;
    for (size_t at = 0; at < bytes && *whole;) {
        size_t n = sn_min_size(CHUNK, bytes - at);
        *whole = read_at(file, store->chunk, n, sizeof(header) + at);
        if (*whole) sn_hasher_add(store->hasher, store->chunk, n);
        at += n;
    }
    return sn_hasher_end(store->hasher);
}

/* NULL if the file is good; else what is wrong with it. */
static const char *check_file(sn_store *store, int file, const sn_hash *key, size_t bytes, header *h) {
    struct stat st;
    bool whole;
    if (fstat(file, &st) || !S_ISREG(st.st_mode)) return "it is no file";
    if (!read_at(file, h, sizeof *h, 0)) return "it is cut short";
    if (memcmp(h->magic, magic, sizeof magic) || h->version != VERSION) return "it is of another version";
    if (memcmp(&h->key, key, sizeof *key)) return "it holds another block";
    if (h->bytes != bytes) return "its size is another one";
    if ((uint64_t)st.st_size - sizeof *h != bytes) return "it is cut short or has grown";
    sn_hash hash = hash_of_file(store, file, bytes, &whole);
    if (!whole) return "it cannot be read";
    return memcmp(&hash, &h->image, sizeof hash) ? "its hash differs" : NULL;
}

bool sn_store_has(sn_store *store, const sn_hash *key, size_t bytes) {
    char name[NAME_SIZE];
    header h;
    name_of(key, name);
    forget(store, key);
    if (make_room(store, NULL)) return false;
    int file = openat(store->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && errno != ELOOP) return false; /* as usual; or no file can be opened now, not its fault */
    const char *wrong = file < 0 ? "it is a link" : check_file(store, file, key, bytes, &h);
    if (!wrong) {
        remember(store, &h, file);
        return true;
    }
    if (file >= 0) close(file);
    unlinkat(store->dir, name, 0);
    sn_log(SN_LOG_WARN, "an offloaded block is made again", "file=%s text=%s", name, wrong);
    return false;
}

/* 0 or an errno. */
static int write_image(int file, const header *h, const void *image) {
    /* Fails before gigabytes are written, where the file system can tell. */
    if (fallocate(file, 0, 0, (off_t)(sizeof *h + h->bytes)) && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
        return errno;
    int error = write_at(file, h, sizeof *h, 0);
    if (!error) error = write_at(file, image, (size_t)h->bytes, sizeof *h);
    if (!error && fsync(file)) error = errno;
    return error;
}

static sn_status put_failed(const sn_store *store, size_t bytes, int error, sn_err *err) {
    if (error == ENOSPC || error == EFBIG || error == EDQUOT)
        return sn_fail(err, SN_STOP,
                       "the offload folder %.256s is full: %zu bytes of a block do not fit: make room or give another",
                       store->folder, bytes);
    return sn_fail(err, SN_STOP, "a block of %zu bytes cannot be written to the offload folder %.256s: %s", bytes,
                   store->folder, strerror(error));
}

sn_status sn_store_put(sn_store *store, const sn_hash *key, const void *image, size_t bytes, sn_err *err) {
    char name[NAME_SIZE], temporary[NAME_SIZE];
    header h = {.version = VERSION, .bytes = bytes, .key = *key, .image = sn_hash_of(image, bytes)};
    if (bytes > INT64_MAX - sizeof h) return sn_fail(err, SN_REFUSED, "a block of %zu bytes is no file", bytes);
    memcpy(h.magic, magic, sizeof magic);
    name_of(key, name);
    sn_status status = make_room(store, err);
    if (status) return status;
    int file = open_unfinished(store, temporary);
    if (file < 0) return put_failed(store, bytes, errno, err);
    int error = write_image(file, &h, image);
    if (!error && renameat(store->dir, temporary, store->dir, name)) error = errno;
    if (error) {
        unlinkat(store->dir, temporary, 0);
        close(file);
        return put_failed(store, bytes, error, err);
    }
    fsync(store->dir); /* the name may be lost with the power; the file is then made again */
    flock(file, LOCK_UN);
    remember(store, &h, file);
    return SN_OK;
}

sn_status sn_store_get(sn_store *store, const sn_hash *key, void *image, size_t bytes, sn_err *err) {
    char name[NAME_SIZE];
    const seen *s = find(store, key);
    name_of(key, name);
    if (!s || s->bytes != bytes)
        return sn_fail(err, SN_STOP, "%s: no block of %zu bytes was put there in this run", name, bytes);
    bool whole = read_at(s->file, image, bytes, sizeof(header));
    sn_hash hash = sn_hash_of(image, whole ? bytes : 0);
    if (!whole || memcmp(&hash, &s->image, sizeof hash))
        return sn_fail(err, SN_STOP, "%s in the offload folder %.256s was %s after it was checked: start again", name,
                       store->folder, whole ? "changed" : "cut short");
    return SN_OK;
}

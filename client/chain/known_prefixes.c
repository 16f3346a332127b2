/* Entries lie in a ring; `hand` is where the next one goes. What lies there is dropped, unless it was used since the
 * hand came by last: then the hand passes it by once. Entries of one bucket form a chain.
 *
 * The file is a line of text, then for each entry its key, the number of its hashes (8 bytes) and these. */
#include "client/chain/known_prefixes.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES_MAX = 1 << 16, HASHES_MAX = 256, NONE = -1 };
static const char HEAD[] = "swarm prefixes 1\n";

typedef struct entry {
    sn_hash key;
    sn_hash *timelines; /* (n); NULL: the entry is free */
    uint32_t n;
    int32_t next; /* in the bucket; or NONE */
    bool used;
} entry;

struct sn_known_prefixes {
    pthread_mutex_t lock;
    entry *entries;   /* (ENTRIES_MAX) */
    int32_t *buckets; /* (ENTRIES_MAX): the first entry of each */
    size_t hand, bytes, bytes_max;
    bool changed; /* since it was saved */
    char *path;
};

static int32_t *bucket_of(sn_known_prefixes *x, const sn_hash *key) {
    uint64_t bits;
    memcpy(&bits, key->bytes, sizeof bits);
    return &x->buckets[bits % ENTRIES_MAX];
}

static entry *find(sn_known_prefixes *x, const sn_hash *key) {
    int32_t i = *bucket_of(x, key);
    while (i != NONE && memcmp(&x->entries[i].key, key, sizeof *key)) i = x->entries[i].next;
    return i == NONE ? NULL : &x->entries[i];
}

static void drop(sn_known_prefixes *x, entry *e) {
    int32_t *at = bucket_of(x, &e->key);
    while (&x->entries[*at] != e) at = &x->entries[*at].next;
    *at = e->next;
    x->bytes -= e->n * sizeof *e->timelines;
    free(e->timelines);
    *e = (entry){0};
}

/* The next free place. */
static entry *make_room(sn_known_prefixes *x, size_t bytes) {
    for (;; x->hand = (x->hand + 1) % ENTRIES_MAX) {
        entry *e = &x->entries[x->hand];
        if (e->timelines && !e->used) drop(x, e);
        e->used = false;
        if (!e->timelines && x->bytes + bytes <= x->bytes_max) return e;
    }
}

static void put(sn_known_prefixes *x, const sn_hash *key, const sn_hash *timelines, size_t n) {
    const size_t bytes = n * sizeof *timelines;
    entry *e = find(x, key);
    if (!n || n > HASHES_MAX || bytes > x->bytes_max) return;
    if (e && e->n == n && !memcmp(e->timelines, timelines, bytes)) return;
    sn_hash *copy = malloc(bytes);
    if (!copy) return;
    memcpy(copy, timelines, bytes);
    if (e) drop(x, e);
    e = make_room(x, bytes);
    int32_t *first = bucket_of(x, key);
    *e = (entry){.key = *key, .timelines = copy, .n = (uint32_t)n, .next = *first};
    *first = (int32_t)(e - x->entries);
    x->hand = (x->hand + 1) % ENTRIES_MAX;
    x->bytes += bytes;
    x->changed = true;
}

void sn_known_prefixes_put(sn_known_prefixes *x, const sn_hash *key, const sn_hash *timelines, size_t n) {
    pthread_mutex_lock(&x->lock);
    put(x, key, timelines, n);
    pthread_mutex_unlock(&x->lock);
}

size_t sn_known_prefixes_get(sn_known_prefixes *x, const sn_hash *key, sn_hash *timelines, size_t most) {
    pthread_mutex_lock(&x->lock);
    entry *e = find(x, key);
    const size_t n = e && e->n <= most ? e->n : 0;
    if (n) memcpy(timelines, e->timelines, n * sizeof *timelines);
    if (n) e->used = true;
    pthread_mutex_unlock(&x->lock);
    return n;
}

/* -- the file -- */

/* Whatever is wrong with the file, what was read before it holds: prefixes that are missing are computed again. */
static void load(sn_known_prefixes *x, int fd) {
    char head[sizeof HEAD - 1];
    sn_hash hashes[1 + HASHES_MAX];
    uint64_t n, at = sizeof head;
    sn_err err;
    if (sn_file_check_secret(fd, x->path, &err)) {
        sn_log(SN_LOG_WARN, "prefixes not read", "text=%s", err.text);
        return;
    }
    if (sn_file_read_at(fd, head, sizeof head, 0) || memcmp(head, HEAD, sizeof head)) return;
    for (size_t i = 0; i < ENTRIES_MAX; i++, at += sizeof *hashes + sizeof n + n * sizeof *hashes) {
        if (sn_file_read_at(fd, hashes, sizeof *hashes, at)) return;
        if (sn_file_read_at(fd, &n, sizeof n, at + sizeof *hashes) || !n || n > HASHES_MAX) return;
        if (sn_file_read_at(fd, hashes + 1, n * sizeof *hashes, at + sizeof *hashes + sizeof n)) return;
        put(x, &hashes[0], hashes + 1, n);
    }
}

/* The oldest entries come first. */
static sn_status write_entries(const sn_known_prefixes *x, sn_new_file *file, sn_err *err) {
    sn_status status = sn_new_file_write(file, HEAD, sizeof HEAD - 1, err);
    for (size_t i = 0; i < ENTRIES_MAX && !status; i++) {
        const entry *e = &x->entries[(x->hand + i) % ENTRIES_MAX];
        const uint64_t n = e->n;
        if (!e->timelines) continue;
        status = sn_new_file_write(file, &e->key, sizeof e->key, err);
        if (!status) status = sn_new_file_write(file, &n, sizeof n, err);
        if (!status) status = sn_new_file_write(file, e->timelines, e->n * sizeof *e->timelines, err);
    }
    return status;
}

void sn_known_prefixes_save(sn_known_prefixes *x) {
    sn_err err;
    sn_new_file file;
    if (!x || !x->path) return;
    pthread_mutex_lock(&x->lock);
    if (x->changed) {
        x->changed = false;
        sn_status status = sn_new_file_create(x->path, &file, &err);
        if (!status) {
            if (fchmod(file.fd, 0600)) status = sn_fail_write(&err, x->path, errno);
            if (!status) status = write_entries(x, &file, &err);
            if (!status) status = sn_new_file_commit(&file, &err);
            sn_new_file_discard(&file);
        }
        if (status) sn_log(SN_LOG_WARN, "prefixes not saved", "text=%s", err.text);
    }
    pthread_mutex_unlock(&x->lock);
}

/* -- what is known -- */

sn_status sn_known_prefixes_new(size_t bytes_max, const char *path, sn_known_prefixes **out, sn_err *err) {
    sn_known_prefixes *x = NULL;
    sn_status status = sn_calloc(&x, 1, sizeof *x, err);
    *out = x;
    if (status) return status;
    pthread_mutex_init(&x->lock, NULL);
    x->bytes_max = bytes_max;
    status = sn_calloc(&x->entries, ENTRIES_MAX, sizeof *x->entries, err);
    if (!status) status = sn_calloc(&x->buckets, ENTRIES_MAX, sizeof *x->buckets, err);
    if (!status && path && !(x->path = strdup(path))) status = sn_fail(err, SN_STOP, "out of memory");
    if (status) {
        sn_known_prefixes_free(out);
        return status;
    }
    memset(x->buckets, 0xff, ENTRIES_MAX * sizeof *x->buckets); /* NONE */
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd >= 0) {
        load(x, fd);
        close(fd);
    }
    x->changed = false;
    return SN_OK;
}

void sn_known_prefixes_free(sn_known_prefixes **prefixes) {
    sn_known_prefixes *x = *prefixes;
    if (!x) return;
    for (size_t i = 0; x->entries && i < ENTRIES_MAX; i++) free(x->entries[i].timelines);
    free(x->entries);
    free(x->buckets);
    free(x->path);
    pthread_mutex_destroy(&x->lock);
    free(x);
    *prefixes = NULL;
}

#include "model/kept_hash.h"

#include "base/file.h"
#include "model/identity.h"
#include "model/packed.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void add_place(const sn_model *model, sn_hasher *hasher, const void *bytes) {
    char line[128];
    const char *path;
    uint64_t offset;
    size_t n, i = 0;
    const sn_mapped_file *files = sn_model_files(model, &n);
    if (!bytes || !sn_model_file_of(model, bytes, &path, &offset)) return; /* it is computed */
    while (i + 1 < n && files[i].path != path) i++;
    int len = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", files[i].facts.device,
                       files[i].facts.inode, offset);
    sn_hasher_add(hasher, line, (size_t)len);
}

/* Where a matrix lies, in place of its bytes. */
static sn_status add_places(void *ctx, sn_hasher *hasher, const sn_model_tensor *t, sn_err *err) {
    char line[256];
    (void)err;
    int n = snprintf(line, sizeof line, "%zu %d%d%d %zu %zu %zu %zu %d\n", t->first_row, t->scales_short,
                     t->scales_single, t->turned, t->group_rows, t->group_stride, t->row_step, t->col_step, t->n_parts);
    sn_hasher_add(hasher, line, (size_t)n);
    add_place(ctx, hasher, t->data);
    add_place(ctx, hasher, t->scales);
    /* Its parts are in these files, but config.json says how zeros are meant. */
    if (t->packed) sn_hasher_add(hasher, t->packed->zeros_less_one ? "1" : "0", 1);
    if (t->packed && t->packed->ordered) sn_hasher_add(hasher, "o", 1);
    return SN_OK;
}

/* The files in the order of their addresses, which is not the same at each start: their facts are added up without an
 * order. *settled: a later change of them will show. */
static bool add_files(const sn_model *model, sn_hasher *hasher, bool *settled) {
    size_t n;
    sn_hash all = {0};
    const sn_mapped_file *files = sn_model_files(model, &n);
    *settled = true;
    for (size_t i = 0; i < n; i++) {
        const sn_file_facts *f = &files[i].facts;
        char line[256];
        sn_file_facts now;
        if (!sn_file_facts_read(-1, files[i].path, &now) || !sn_file_facts_equal(&now, f)) return false;
        *settled &= sn_file_facts_are_settled(f);
        int len = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 "\n",
                           f->device, f->inode, f->size, f->modified_ns, f->changed_ns);
        const sn_hash hash = sn_hash_of(line, (size_t)len);
        for (size_t k = 0; k < SN_HASH_SIZE; k++) all.bytes[k] ^= hash.bytes[k];
    }
    sn_hasher_add(hasher, all.bytes, sizeof all.bytes);
    return true;
}

/* False: there is none, because a file is another one than was opened. */
static bool make_key(const sn_model *model, int block, sn_kept_hash *out) {
    static const char what[] = "kept block hash 1\n";
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return false;
    sn_hasher_add(hasher, what, sizeof what - 1);
    bool made = !sn_model_add_block(model, block, hasher, add_places, (void *)(uintptr_t)model, NULL) &&
                add_files(model, hasher, &out->keeps);
    out->key = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return made;
}

/* A file's text is the hash, and a hash of both hashes, which shows damage. */
typedef struct record {
    sn_hash hash, check;
} record;

static sn_hash check_of(const sn_hash *key, const sn_hash *hash) {
    const sn_hash both[2] = {*key, *hash};
    return sn_hash_of(both, sizeof both);
}

static bool path_of(const sn_model *model, const sn_hash *key, char folder[SN_PATH_SIZE], char out[SN_PATH_SIZE]) {
    char hex[2 * SN_HASH_SIZE + 1];
    sn_err err;
    return !sn_path_join(folder, sn_model_cache(model), "hashes", &err) &&
           !sn_path_join(out, folder, sn_hex(key->bytes, SN_HASH_SIZE, hex), &err);
}

/* Only files of this user, in a folder of this user. */
static bool read_record(const char *path, const sn_hash *key, sn_hash *out) {
    record r;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool good = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 002) &&
                st.st_size == sizeof r && !sn_file_read_at(fd, &r, sizeof r, 0);
    if (fd >= 0) close(fd);
    const sn_hash check = good ? check_of(key, &r.hash) : (sn_hash){0};
    good = good && !memcmp(&check, &r.check, sizeof check);
    if (good) *out = r.hash;
    return good;
}

bool sn_kept_hash_find(const sn_model *model, int block, sn_kept_hash *kept, sn_hash *out) {
    char folder[SN_PATH_SIZE], path[SN_PATH_SIZE];
    *kept = (sn_kept_hash){0};
    if (!sn_model_cache(model)) return false;
    if (!make_key(model, block, kept))
        kept->keeps = false;
    else if (path_of(model, &kept->key, folder, path))
        return read_record(path, &kept->key, out);
    return false;
}

void sn_kept_hash_keep(const sn_model *model, int block, const sn_kept_hash *kept, const sn_hash *hash) {
    char folder[SN_PATH_SIZE], path[SN_PATH_SIZE];
    sn_kept_hash now;
    sn_err err;
    if (!kept->keeps || !make_key(model, block, &now) || memcmp(&now.key, &kept->key, sizeof now.key)) return;
    if (!path_of(model, &kept->key, folder, path)) return;
    (void)mkdir(sn_model_cache(model), 0700); /* both may exist */
    (void)mkdir(folder, 0700);
    const record r = {*hash, check_of(&kept->key, hash)};
    if (sn_file_replace(path, &r, sizeof r, &err)) return;
}

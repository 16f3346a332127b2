#include "client/tune/checkpoint.h"

#include "base/mem.h"
#include "base/text.h"
#include "client/tune/adapter.h"
#include "model/peft.h"
#include "model/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, FILE_MAX = 1 << 30, VERSION = 1 };
static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", "swarm.json", "state.safetensors"};
enum { N_FILES = sizeof files / sizeof *files };

static sn_status join(char out[PATH_SIZE], const char *folder, const char *name, sn_err *err) {
    return snprintf(out, PATH_SIZE, "%s/%s", folder, name) < PATH_SIZE
               ? SN_OK
               : sn_fail(err, SN_REFUSED, "the path is too long");
}

static sn_status hash_file(const char *folder, const char *name, char hex[65], sn_err *err) {
    char path[PATH_SIZE];
    sn_buf bytes = {0};
    sn_status status = join(path, folder, name, err);
    if (!status) status = sn_read_file(path, FILE_MAX, &bytes, err);
    if (!status) {
        sn_hash hash = sn_hash_of(bytes.data, bytes.len);
        sn_hex(hash.bytes, SN_HASH_SIZE, hex);
    }
    sn_buf_fini(&bytes);
    return status;
}

static sn_status sync_path(const char *path, sn_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd);
    if (fd >= 0) close(fd);
    return failed ? sn_fail(err, SN_REFUSED, "%s cannot be brought to the disk: %s", path, strerror(errno)) : SN_OK;
}

/* -- saving */

static sn_status save_state(const char *folder, const sn_tuner *t, sn_err *err) {
    char path[PATH_SIZE];
    size_t n = t->params->n_floats;
    const sn_safetensors_entry entries[] = {
        {"values", SN_F32, 1, {n}, t->params->values},
        {"first", SN_F32, 1, {n}, t->first},
        {"second", SN_F32, 1, {n}, t->second},
        {"losses", SN_I64, 1, {(size_t)t->step}, t->losses}}; /* the bits of doubles */
    sn_status status = join(path, folder, "state.safetensors", err);
    return status ? status : sn_safetensors_write(path, entries, t->step ? 4 : 3, err);
}

static sn_status save_index(const char *folder, const sn_tuner *t, const sn_hash *model, const json_t *options,
                            sn_err *err) {
    char path[PATH_SIZE], hex[65];
    json_t *hashes = json_object();
    sn_status status = SN_OK;
    for (int i = 0; i < N_FILES && !status; i++) {
        status = hash_file(folder, files[i], hex, err);
        if (!status) json_object_set_new(hashes, files[i], json_string(hex));
        if (!status) status = join(path, folder, files[i], err);
        if (!status) status = sync_path(path, err);
    }
    json_t *index =
        json_pack("{si ss sI sI sI sI so sO}", "version", VERSION, "model", sn_hex(model->bytes, SN_HASH_SIZE, hex),
                  "step", (json_int_t)t->step, "epoch", (json_int_t)t->epoch, "position", (json_int_t)t->position,
                  "tokens", (json_int_t)t->tokens, "files", hashes, "options", options);
    if (!status) status = join(path, folder, "checkpoint.json", err);
    if (!status && (!index || json_dump_file(index, path, JSON_INDENT(2) | JSON_PRESERVE_ORDER)))
        status = sn_fail(err, SN_REFUSED, "%s cannot be written: is there room?", path);
    if (!status) status = sync_path(path, err);
    json_decref(index);
    return status;
}

static void remove_folder(const char *folder) {
    char path[PATH_SIZE];
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (e->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < (int)sizeof path)
            unlink(path);
    if (dir) closedir(dir);
    rmdir(folder);
}

/* The number of a folder "step-N", or -1. */
static long long number_of(const char *name) {
    long long n;
    int used = 0;
    return sscanf(name, "step-%12lld%n", &n, &used) == 1 && !name[used] ? n : -1;
}

/* Checkpoints but the newest two; and what was not finished. */
static void remove_old(const char *folder, long long newest) {
    char path[PATH_SIZE];
    long long kept = -1;
    for (int turn = 0; turn < 2; turn++) {
        DIR *dir = opendir(folder);
        for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
            long long n = number_of(e->d_name);
            size_t len = strlen(e->d_name);
            bool unfinished = !strncmp(e->d_name, "step-", 5) && len > 5 && !strcmp(e->d_name + len - 5, ".part");
            if (turn == 0 && n > kept && n < newest) kept = n;
            bool old = n >= 0 && n != kept && n != newest;
            if (turn == 1 && (old || unfinished) && !join(path, folder, e->d_name, &(sn_err){0})) remove_folder(path);
        }
        if (dir) closedir(dir);
    }
}

sn_status sn_checkpoint_save(const char *folder, const sn_tuner *t, const sn_hash *model, const sn_hash *weights,
                             char *const *labels, const json_t *options, sn_err *err) {
    char name[64], path[PATH_SIZE], unfinished[PATH_SIZE + 8];
    snprintf(name, sizeof name, "step-%lld", (long long)t->step);
    sn_status status = join(path, folder, name, err);
    if (status) return status;
    struct stat there;
    if (!stat(path, &there)) return SN_OK; /* the same steps give the same bits */
    snprintf(unfinished, sizeof unfinished, "%s.part", path);
    remove_folder(unfinished);
    if ((mkdir(folder, 0777) && errno != EEXIST) || mkdir(unfinished, 0777))
        return sn_fail(err, SN_REFUSED, "%s cannot be made: %s", unfinished, strerror(errno));
    status = sn_adapter_save(unfinished, t->params, t->hp, labels, err);
    if (!status) status = sn_peft_mark(unfinished, weights, t->hp->name, err);
    if (!status) status = save_state(unfinished, t, err);
    if (!status) status = save_index(unfinished, t, model, options, err);
    if (!status) status = sync_path(unfinished, err);
    if (!status && rename(unfinished, path))
        status = sn_fail(err, SN_REFUSED, "%s cannot be made: %s", path, strerror(errno));
    if (!status) status = sync_path(folder, err);
    if (status)
        remove_folder(unfinished);
    else
        remove_old(folder, (long long)t->step);
    return status;
}

/* -- finding */

static sn_status check_files(const char *path, const json_t *index, sn_err *err) {
    char hex[65];
    for (int i = 0; i < N_FILES; i++) {
        const char *want = json_string_value(json_object_get(json_object_get(index, "files"), files[i]));
        sn_status status = hash_file(path, files[i], hex, err);
        if (status) return status;
        if (!want || strcmp(want, hex))
            return sn_fail(err, SN_REFUSED, "%s/%s is damaged: its SHA-256 is not the one that the checkpoint names",
                           path, files[i]);
    }
    return SN_OK;
}

sn_status sn_checkpoint_find(const char *folder, const sn_hash *model, char path[4096], json_t **options, sn_err *err) {
    char name[64], at[PATH_SIZE], hex[65];
    json_error_t error;
    long long newest = -1;
    DIR *dir = opendir(folder);
    *options = NULL;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (number_of(e->d_name) > newest) newest = number_of(e->d_name);
    if (dir) closedir(dir);
    if (newest < 0)
        return sn_fail(err, SN_REFUSED, "%s holds no checkpoint (a folder step-N): begin without --resume", folder);
    snprintf(name, sizeof name, "step-%lld", newest);
    sn_status status = join(path, folder, name, err);
    if (!status) status = join(at, path, "checkpoint.json", err);
    if (status) return status;
    json_t *index = json_load_file(at, 0, &error);
    const char *of = json_string_value(json_object_get(index, "model"));
    if (!index) return sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", at, error.text);
    if (json_integer_value(json_object_get(index, "version")) != VERSION || !of)
        status = sn_fail(err, SN_REFUSED, "%s was written by another version of this program", at);
    else if (model && strcmp(of, sn_hex(model->bytes, SN_HASH_SIZE, hex)))
        status = sn_fail(err, SN_REFUSED, "%s is of another model: resume with the one that it began with", path);
    if (!status) status = check_files(path, index, err);
    if (!status) *options = json_incref(json_object_get(index, "options"));
    json_decref(index);
    return status;
}

/* -- loading */

static sn_status take_floats(const sn_safetensors *file, const char *name, float *out, size_t n, sn_err *err) {
    const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
    if (!t || t->dtype != SN_F32 || t->elements != n)
        return sn_fail(err, SN_REFUSED, "its %s are of another shape than these options give", name);
    memcpy(out, t->data, n * sizeof *out);
    return SN_OK;
}

static sn_status take_losses(const sn_safetensors *file, sn_tuner *t, size_t n, sn_err *err) {
    const sn_safetensors_tensor *losses = sn_safetensors_find(file, "losses");
    if (n && (!losses || losses->dtype != SN_I64 || losses->elements != n))
        return sn_fail(err, SN_REFUSED, "its losses are not there");
    free(t->losses);
    t->losses = NULL;
    t->losses_room = n;
    sn_status status = sn_calloc(&t->losses, n, sizeof *t->losses, err);
    if (!status && n) memcpy(t->losses, losses->data, n * sizeof *t->losses);
    return status;
}

static sn_status take_place(const char *path, sn_tuner *t, sn_err *err) {
    char at[PATH_SIZE];
    sn_status status = join(at, path, "checkpoint.json", err);
    json_t *index = status ? NULL : json_load_file(at, 0, NULL);
    json_int_t step = json_integer_value(json_object_get(index, "step")),
               position = json_integer_value(json_object_get(index, "position"));
    json_int_t epoch = json_integer_value(json_object_get(index, "epoch")),
               tokens = json_integer_value(json_object_get(index, "tokens"));
    json_decref(index);
    if (status) return status;
    if (step < 0 || epoch < 0 || tokens < 0 || position < 0 || (size_t)position > t->data->n)
        return sn_fail(err, SN_REFUSED, "%s says nonsense of where training stood", at);
    t->step = step;
    t->epoch = (uint64_t)epoch;
    t->position = (size_t)position;
    t->tokens = (uint64_t)tokens;
    sn_dataset_order(t->data, t->options.seed, t->epoch, t->order);
    return SN_OK;
}

sn_status sn_checkpoint_load(const char *path, sn_tuner *t, sn_err *err) {
    char at[PATH_SIZE];
    sn_safetensors *file = NULL;
    size_t n = t->params->n_floats;
    sn_status status = join(at, path, "state.safetensors", err);
    if (!status) status = sn_safetensors_open(at, &file, err);
    if (!status) status = take_floats(file, "values", t->params->values, n, err);
    if (!status) status = take_floats(file, "first", t->first, n, err);
    if (!status) status = take_floats(file, "second", t->second, n, err);
    if (!status) status = take_place(path, t, err);
    if (!status) status = take_losses(file, t, (size_t)t->step, err);
    sn_safetensors_close(&file);
    return status ? sn_err_context(err, "%s", path) : SN_OK;
}

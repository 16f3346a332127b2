/* Making, saving and loading evidence.
 *
 * The header of the file is one line of JSON, so that a person can read it; the rows follow as float32 bytes. Saving
 * writes everything through sink_put, which also feeds the checksum at the end, into a temporary file that is
 * renamed when it is complete. Loading takes no number from the file without a limit, and adds each statement with
 * sn_evidence_add, which checks the signature and that the receipt is about the evidence's tokens and blocks. */
#include "client/audit/evidence.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MAGIC[] = "swarm evidence 1\n";
enum { HEADER_MAX = 16 << 20 };
static const size_t FILE_MAX = (size_t)16 << 30;

void sn_evidence_fini(sn_evidence *e) {
    for (size_t i = 0; i < e->n; i++) {
        free(e->statements[i].announcement.data);
        free(e->statements[i].outputs);
    }
    free(e->statements);
    free(e->block_hash);
    free(e->inputs);
    *e = (sn_evidence){0};
}

static sn_status copy_bytes(void *out, const void *from, size_t bytes, sn_err *err) {
    void *to = NULL;
    sn_status status = sn_calloc(&to, bytes, 1, err);
    if (!status) memcpy(to, from, bytes);
    memcpy(out, &to, sizeof to);
    return status;
}

sn_status sn_evidence_add(sn_evidence *e, const uint8_t sealed[SN_RECEIPT_SIZE], const sn_blob *announcement,
                          const float *outputs, sn_err *err) {
    sn_receipt r;
    if (e->n == SN_STATEMENTS_MAX)
        return sn_fail(err, SN_REFUSED, "evidence holds at most %d receipts", SN_STATEMENTS_MAX);
    sn_status status = sn_receipt_open(sealed, SN_RECEIPT_SIZE, &r, err);
    if (status) return sn_err_context(err, "receipt %zu", e->n + 1);
    if (r.n_embd != (uint32_t)e->n_embd || r.first_block < (uint32_t)e->first || r.end_block > (uint32_t)e->end ||
        r.position + r.n > (uint64_t)e->n_tokens)
        return sn_fail(err, SN_REFUSED, "receipt %zu is about tokens or blocks that the evidence does not hold",
                       e->n + 1);
    sn_statement *grown = realloc(e->statements, (e->n + 1) * sizeof *grown);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory");
    e->statements = grown;
    sn_statement *s = &grown[e->n++];
    *s = (sn_statement){.receipt = r};
    memcpy(s->sealed, sealed, SN_RECEIPT_SIZE);
    if (announcement && announcement->len) {
        status = copy_bytes(&s->announcement.data, announcement->data, announcement->len, err);
        if (!status) s->announcement.len = announcement->len;
    }
    if (!status && outputs)
        status = copy_bytes(&s->outputs, outputs, (size_t)r.n * (size_t)e->n_embd * sizeof *outputs, err);
    return status;
}

/* -- saving -----------------------------------------------------------------------------------------------------------
 */

static json_t *hex_json(const void *data, size_t len) {
    char *text = malloc(2 * len + 1);
    json_t *json = text ? json_string(sn_hex(data, len, text)) : NULL;
    free(text);
    return json;
}

static json_t *header_json(const sn_evidence *e) {
    static const sn_hash none;
    json_t *o = json_object(), *hashes = json_array(), *statements = json_array();
    for (int b = e->first; b < e->end; b++)
        json_array_append_new(hashes, hex_json(&e->block_hash[b - e->first], SN_HASH_SIZE));
    for (size_t i = 0; i < e->n; i++) {
        const sn_statement *s = &e->statements[i];
        json_t *one = json_object();
        json_object_set_new(one, "receipt", hex_json(s->sealed, SN_RECEIPT_SIZE));
        json_object_set_new(one, "announcement", hex_json(s->announcement.data, s->announcement.len));
        json_object_set_new(one, "outputs", json_boolean(s->outputs != NULL));
        json_array_append_new(statements, one);
    }
    json_object_set_new(o, "model", hex_json(&e->model, SN_HASH_SIZE));
    if (memcmp(&e->adapter_hash, &none, sizeof none))
        json_object_set_new(o, "adapter", hex_json(&e->adapter_hash, SN_HASH_SIZE));
    json_object_set_new(o, "name", json_string(e->name));
    json_object_set_new(o, "first_block", json_integer(e->first));
    json_object_set_new(o, "end_block", json_integer(e->end));
    json_object_set_new(o, "n_embd", json_integer(e->n_embd));
    json_object_set_new(o, "tokens", json_integer(e->n_tokens));
    if (e->is_long) json_object_set_new(o, "long", json_true());
    json_object_set_new(o, "unix_ms", json_integer(e->unix_ms));
    json_object_set_new(o, "block_hashes", hashes);
    json_object_set_new(o, "statements", statements);
    return o;
}

/* Where bytes are written: a file, and the checksum over it. */
typedef struct sink {
    FILE *file;
    sn_hasher *hasher;
    bool failed;
} sink;

static void sink_put(sink *s, const void *data, size_t len) {
    if (len && fwrite(data, 1, len, s->file) != len) s->failed = true;
    sn_hasher_add(s->hasher, data, len);
}

static bool evidence_write(const sn_evidence *e, const char *json, sink *s) {
    size_t row = (size_t)e->n_embd * sizeof(float);
    sink_put(s, MAGIC, sizeof MAGIC - 1);
    sink_put(s, json, strlen(json));
    sink_put(s, "\n", 1);
    sink_put(s, e->inputs, (size_t)e->n_tokens * row);
    for (size_t i = 0; i < e->n; i++)
        if (e->statements[i].outputs) sink_put(s, e->statements[i].outputs, e->statements[i].receipt.n * row);
    sn_hash sum = sn_hasher_end(s->hasher);
    sink_put(s, &sum, sizeof sum);
    return !s->failed && !fflush(s->file) && !fsync(fileno(s->file));
}

sn_status sn_evidence_save(const sn_evidence *e, const char *folder, char path[1024], sn_err *err) {
    char temporary[1024];
    uint32_t suffix;
    sn_random(&suffix, sizeof suffix);
    if (mkdir(folder, 0700) && errno != EEXIST)
        return sn_fail(err, SN_REFUSED, "the folder %s for evidence cannot be created: %s", folder, strerror(errno));
    int n = snprintf(path, 1024, "%s/blocks-%d-%d-%lld-%08x.evidence", folder, e->first, e->end, (long long)e->unix_ms,
                     suffix);
    if (n >= 1000) return sn_fail(err, SN_REFUSED, "the path of the folder for evidence is too long");
    snprintf(temporary, sizeof temporary, "%.1000s.part", path);
    json_t *o = header_json(e);
    char *json = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    sink s = {.file = fd < 0 ? NULL : fdopen(fd, "wb"), .hasher = sn_hasher_new()};
    bool good = json && s.hasher && s.file && evidence_write(e, json, &s);
    int reason = errno;
    if (s.file) fclose(s.file);
    good = good && !rename(temporary, path);
    if (!good && fd >= 0) unlink(temporary);
    sn_hasher_free(s.hasher);
    free(json);
    return good ? SN_OK : sn_fail(err, SN_REFUSED, "evidence cannot be written to %s: %s", path, strerror(reason));
}

/* -- loading ----------------------------------------------------------------------------------------------------------
 */

static sn_status evidence_refuse(const char *what, sn_err *err) {
    return sn_fail(err, SN_REFUSED, "this is not a complete evidence file: %s", what);
}

static bool read_int(const json_t *o, const char *name, int low, int high, int *out) {
    const json_t *value = json_object_get(o, name);
    if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high) return false;
    *out = (int)json_integer_value(value);
    return true;
}

static bool read_hex(const json_t *value, void *out, size_t len) {
    return json_is_string(value) && json_string_length(value) == 2 * len &&
           !sn_unhex(json_string_value(value), out, len, NULL);
}

static sn_status evidence_read_header(const json_t *o, sn_evidence *e, sn_err *err) {
    const json_t *hashes = json_object_get(o, "block_hashes"), *name = json_object_get(o, "name");
    const json_t *adapter = json_object_get(o, "adapter");
    if (!read_hex(json_object_get(o, "model"), &e->model, SN_HASH_SIZE) ||
        !read_int(o, "first_block", 0, INT16_MAX, &e->first) ||
        !read_int(o, "end_block", e->first + 1, e->first + SN_SPAN_BLOCKS_MAX, &e->end) ||
        !read_int(o, "n_embd", 1, 1 << 20, &e->n_embd) || !read_int(o, "tokens", 1, 1 << 24, &e->n_tokens) ||
        (adapter && !read_hex(adapter, &e->adapter_hash, SN_HASH_SIZE)) || !json_is_string(name) ||
        json_array_size(hashes) != (size_t)(e->end - e->first))
        return evidence_refuse("a field of its header is missing or has a value that is not possible", err);
    snprintf(e->name, sizeof e->name, "%s", json_string_value(name));
    e->unix_ms = json_integer_value(json_object_get(o, "unix_ms"));
    e->is_long = json_is_true(json_object_get(o, "long"));
    sn_status status = sn_calloc(&e->block_hash, (size_t)(e->end - e->first), sizeof *e->block_hash, err);
    for (int i = 0; i < e->end - e->first && !status; i++)
        if (!read_hex(json_array_get(hashes, (size_t)i), &e->block_hash[i], SN_HASH_SIZE))
            status = evidence_refuse("a block's hash is not valid", err);
    return status;
}

static sn_status evidence_read_statement(const json_t *o, sn_evidence *e, const uint8_t **at, const uint8_t *end,
                                         sn_err *err) {
    uint8_t sealed[SN_RECEIPT_SIZE], sealed_bytes[SN_ANNOUNCEMENT_SIZE_MAX];
    const json_t *text = json_object_get(o, "announcement");
    sn_blob announcement = {sealed_bytes, json_string_length(text) / 2};
    if (!read_hex(json_object_get(o, "receipt"), sealed, sizeof sealed) || announcement.len > sizeof sealed_bytes ||
        !read_hex(text, sealed_bytes, announcement.len))
        return evidence_refuse("a statement is not a receipt with an announcement", err);
    sn_status status = sn_evidence_add(e, sealed, &announcement, NULL, err);
    if (status || !json_is_true(json_object_get(o, "outputs"))) return status;
    sn_statement *s = &e->statements[e->n - 1];
    size_t bytes = (size_t)s->receipt.n * (size_t)e->n_embd * sizeof(float);
    if ((size_t)(end - *at) < bytes) return evidence_refuse("outputs are missing", err);
    status = copy_bytes(&s->outputs, *at, bytes, err);
    *at += bytes;
    return status;
}

static sn_status evidence_read_body(const json_t *o, const uint8_t *at, const uint8_t *end, sn_evidence *e,
                                    sn_err *err) {
    const json_t *statements = json_object_get(o, "statements");
    sn_status status = evidence_read_header(o, e, err);
    if (status) return status;
    size_t bytes = (size_t)e->n_tokens * (size_t)e->n_embd * sizeof(float); /* 2^46 at most */
    if ((size_t)(end - at) < bytes) return evidence_refuse("inputs are missing", err);
    status = copy_bytes(&e->inputs, at, bytes, err);
    at += bytes;
    if (!status && (!json_array_size(statements) || json_array_size(statements) > SN_STATEMENTS_MAX))
        status = evidence_refuse("it has no statements, or too many", err);
    for (size_t i = 0; i < json_array_size(statements) && !status; i++)
        status = evidence_read_statement(json_array_get(statements, i), e, &at, end, err);
    return !status && at != end ? evidence_refuse("bytes follow after its end", err) : status;
}

sn_status sn_evidence_load(const char *path, sn_evidence *out, sn_err *err) {
    sn_buf file = {0};
    *out = (sn_evidence){0};
    sn_status status = sn_read_file(path, FILE_MAX, &file, err);
    if (status) return status;
    size_t magic_len = sizeof MAGIC - 1, rest = file.len < SN_HASH_SIZE ? 0 : file.len - SN_HASH_SIZE;
    json_t *o = NULL;
    if (rest <= magic_len || memcmp(file.data, MAGIC, magic_len)) {
        status = evidence_refuse("it does not begin with the line of an evidence file", err);
        goto out;
    }
    sn_hash sum = sn_hash_of(file.data, rest);
    if (memcmp(&sum, file.data + rest, sizeof sum)) {
        status = evidence_refuse("its checksum is wrong, so it was damaged or cut short", err);
        goto out;
    }
    const uint8_t *json = file.data + magic_len,
                  *line_end = memchr(json, '\n', sn_min_size(rest - magic_len, HEADER_MAX));
    if (line_end) o = json_loadb((const char *)json, (size_t)(line_end - json), JSON_REJECT_DUPLICATES, NULL);
    status = json_is_object(o) ? evidence_read_body(o, line_end + 1, file.data + rest, out, err)
                               : evidence_refuse("it has no header", err);
out:
    json_decref(o);
    sn_buf_fini(&file);
    if (status) sn_evidence_fini(out);
    return status ? sn_err_context(err, "%.200s", path) : SN_OK;
}

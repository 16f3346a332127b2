/* Reading: the text is taken line by line, and every number is checked before it is used. What is allocated is at most
 * in proportion to the text's lines. */
#include "sharing/hub/manifest.h"

#include "base/file.h"
#include "model/gguf_parts.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void sn_manifest_fini(sn_manifest *m) {
    free(m->blocks);
    free(m->files);
    free(m->pieces);
    *m = (sn_manifest){0};
}

/* The lines of the text, one at a time. */
typedef struct reader {
    const char *at, *end;
    size_t line;
} reader;

static sn_status fail(const reader *r, const char *what, sn_err *err) {
    return sn_fail(err, SN_REFUSED, "the manifest is wrong in line %zu: %s", r->line, what);
}

/* Takes "word " at the beginning of the next line. */
static bool take_word(reader *r, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) <= n || memcmp(r->at, word, n) || r->at[n] != ' ') return false;
    r->at += n + 1;
    r->line++;
    return true;
}

/* The rest of the line, without its end. */
static bool take_rest(reader *r, char *out, size_t size) {
    const char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
    if (!newline || (size_t)(newline - r->at) >= size) return false;
    snprintf(out, size, "%.*s", (int)(newline - r->at), r->at);
    r->at = newline + 1;
    return true;
}

static bool take_hash(reader *r, sn_hash *out) {
    char hex[2 * SN_HASH_SIZE + 1];
    return take_rest(r, hex, sizeof hex) && !sn_unhex(hex, out->bytes, SN_HASH_SIZE, NULL);
}

/* Digits and the blank after them. */
static bool take_number(reader *r, uint64_t *out) {
    size_t n = 0;
    for (*out = 0; r->at < r->end && isdigit((unsigned char)*r->at) && n < 19; n++)
        *out = *out * 10 + (uint64_t)(*r->at++ - '0');
    if (!n || r->at == r->end || *r->at != ' ') return false;
    r->at++;
    return true;
}

/* At least as many as read_pieces and its neighbours take: what they allocate is of this size. */
static size_t count_lines(const char *text, size_t len, const char *word) {
    size_t count = 0, n = strlen(word);
    for (const char *at = text, *end = text + len; at && (size_t)(end - at) >= n;) {
        count += !memcmp(at, word, n);
        at = memchr(at, '\n', (size_t)(end - at));
        if (at) at++;
    }
    return count;
}

static sn_status read_pieces(reader *r, sn_manifest *m, sn_manifest_file *file, sn_err *err) {
    uint64_t at = 0, bytes;
    file->first_piece = m->n_pieces;
    while (take_word(r, "piece")) {
        sn_piece *piece = &m->pieces[m->n_pieces++];
        if (!take_number(r, &bytes) || !bytes || bytes > SN_PIECE_MAX || bytes > file->size - at ||
            !take_hash(r, &piece->hash))
            return fail(r, "a piece has 1 to 1048576 bytes of its file, and a hash", err);
        piece->from = at;
        piece->to = at += bytes;
    }
    file->n_pieces = m->n_pieces - file->first_piece;
    return at == file->size ? SN_OK : fail(r, "the pieces before it are not the whole file", err);
}

static sn_status read_file(reader *r, sn_manifest *m, sn_err *err) {
    sn_manifest_file *file = &m->files[m->n_files];
    if (!take_number(r, &file->size) || !take_number(r, &file->header) ||
        !take_rest(r, file->name, sizeof file->name) || !file->size || file->size > INT64_MAX ||
        file->header > file->size)
        return fail(r, "a file has a size, the length of its header and a name", err);
    if (!sn_hub_path_is_safe(file->name) || strchr(file->name, '/'))
        return fail(r, "this is no plain name of a file", err);
    for (size_t i = 0; i < m->n_files; i++)
        if (!strcmp(m->files[i].name, file->name)) return fail(r, "the file is named twice", err);
    m->n_files++;
    return read_pieces(r, m, file, err);
}

static sn_status read_signature(reader *r, sn_manifest *m, sn_err *err) {
    char line[2 * sizeof m->signer + 1 + 2 * sizeof m->signature + 1];
    size_t n = 2 * sizeof m->signer;
    if (!take_rest(r, line, sizeof line) || strlen(line) != sizeof line - 1 || line[n] != ' ')
        return fail(r, "a signature is a key and 128 digits", err);
    line[n] = 0;
    m->is_signed = true;
    if (sn_unhex(line, m->signer, sizeof m->signer, NULL) ||
        sn_unhex(line + n + 1, m->signature, sizeof m->signature, NULL))
        return fail(r, "a signature is a key and 128 digits", err);
    return SN_OK;
}

sn_status sn_manifest_parse(const char *text, size_t len, sn_manifest *m, sn_err *err) {
    reader r = {text, text + len, 0};
    char version[8];
    size_t n_blocks = count_lines(text, len, "block "), n_files = count_lines(text, len, "file ");
    *m = (sn_manifest){0};
    if (len > SN_MANIFEST_MAX || !n_blocks || n_blocks > SN_BLOCKS_MAX || !n_files || n_files > SN_MANIFEST_FILES_MAX ||
        memchr(text, 0, len))
        return sn_fail(err, SN_REFUSED, "this is no manifest: make one with 'swarm hash'");
    sn_status status = sn_calloc(&m->blocks, n_blocks, sizeof *m->blocks, err);
    if (!status) status = sn_calloc(&m->files, n_files, sizeof *m->files, err);
    if (!status) status = sn_calloc(&m->pieces, count_lines(text, len, "piece ") + 1, sizeof *m->pieces, err);
    if (status) return status;
    if (!take_word(&r, "swarm manifest") || !take_rest(&r, version, sizeof version) || strcmp(version, "1"))
        return fail(&r, "it must be 'swarm manifest 1'", err);
    if (!take_word(&r, "name") || !take_rest(&r, m->name, sizeof m->name)) return fail(&r, "a name is due", err);
    if (!take_word(&r, "model") || !take_hash(&r, &m->model)) return fail(&r, "the model's hash is due", err);
    if (!take_word(&r, "ends") || !take_hash(&r, &m->ends)) return fail(&r, "the hash of the ends is due", err);
    while (take_word(&r, "block"))
        if (!take_hash(&r, &m->blocks[m->n_blocks++])) return fail(&r, "a block has a hash", err);
    while (!status && take_word(&r, "file")) status = read_file(&r, m, err);
    m->len = (size_t)(r.at - text);
    m->id = sn_hash_of(text, m->len);
    if (!status && take_word(&r, "signed")) status = read_signature(&r, m, err);
    if (!status && (r.at != r.end || !m->n_blocks || !m->n_files)) status = fail(&r, "what follows it is unknown", err);
    for (char *c = m->name; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?'; /* it goes to terminals */
    return status;
}

static bool is_folder(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* "PATH.manifest" (of a model in several GGUF files, that of the first), or swarm.manifest in the folder that the model
 * is or lies in. */
static sn_status place_beside(const char *model, bool in_folder, char out[SN_PATH_SIZE], sn_err *err) {
    char path[SN_PATH_SIZE];
    sn_status status = sn_gguf_part_path(model, 1, path, err);
    if (status) return status;
    const char *slash = strrchr(path, '/');
    int len = is_folder(path) || !in_folder ? (int)strlen(path) : slash ? (int)(slash - path) : 0;
    const char *name = !in_folder ? SN_MANIFEST_ENDING : len ? "/" SN_MANIFEST_NAME : SN_MANIFEST_NAME;
    if (snprintf(out, SN_PATH_SIZE, "%.*s%s", len, path, name) >= SN_PATH_SIZE)
        return sn_fail(err, SN_REFUSED, "the path %s is too long", path);
    return SN_OK;
}

sn_status sn_manifest_read_beside(const char *path, bool *found, sn_buf *text, sn_manifest *out, sn_err *err) {
    char place[SN_PATH_SIZE];
    sn_buf own = {0};
    if (!text) text = &own;
    *found = false;
    *out = (sn_manifest){0};
    sn_status status = place_beside(path, false, place, err);
    if (!status && (is_folder(path) || access(place, R_OK))) status = place_beside(path, true, place, err);
    if (status || access(place, R_OK)) return status;
    *found = true;
    status = sn_read_file(place, SN_MANIFEST_MAX, text, err);
    if (!status) status = sn_manifest_parse((const char *)text->data, text->len, out, err);
    sn_buf_fini(&own);
    return status;
}

sn_status sn_manifest_write_beside(const char *path, bool folder, const sn_buf *text, sn_err *err) {
    char place[SN_PATH_SIZE];
    sn_status status = place_beside(path, folder, place, err);
    return status ? status : sn_file_replace(place, text->data, text->len, err);
}

sn_status sn_manifest_file_path(const sn_manifest *m, size_t file, const char *path, char out[SN_PATH_SIZE],
                                sn_err *err) {
    char folder[SN_PATH_SIZE];
    const char *slash = strrchr(path, '/');
    bool single = m->n_files == 1 && !is_folder(path);
    if (is_folder(path)) return sn_path_join(out, path, m->files[file].name, err);
    if (snprintf(folder, sizeof folder, "%.*s", single || !slash ? (int)strlen(path) : (int)(slash - path), path) >=
        (int)sizeof folder)
        return sn_fail(err, SN_REFUSED, "the path %s is too long", path);
    if (!single) return sn_path_join(out, slash ? folder : ".", m->files[file].name, err);
    memcpy(out, folder, sizeof folder);
    return SN_OK;
}

void sn_manifest_tell(const char *path, sn_model *model) {
    bool found;
    sn_manifest m;
    const sn_hash id = sn_model_id(model);
    if (!sn_manifest_read_beside(path, &found, NULL, &m, NULL) && found && !memcmp(&m.model, &id, sizeof id) &&
        m.n_blocks == sn_model_hparams(model)->n_blocks && sn_manifest_fits(&m, path))
        sn_model_set_block_hashes(model, m.blocks);
    sn_manifest_fini(&m);
}

const sn_piece *sn_manifest_piece_at(const sn_manifest *m, const sn_manifest_file *file, uint64_t at) {
    size_t low = file->first_piece, high = low + file->n_pieces;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (m->pieces[middle].from <= at)
            low = middle;
        else
            high = middle;
    }
    return &m->pieces[low];
}

/* A part's fetch: open the file, take it whole from other tools' cache if it is there, list what is missing, make room,
 * fetch; a file that has become whole moves to that cache. Without a manifest bytes count as they arrive; with one they
 * are put into the file first, and a piece counts when all of it is there and has its hash. */
#include "sharing/hub/hub_private.h"

#include "base/clock.h"
#include "model/config.h"
#include "sharing/hub/cached.h"
#include "sharing/hub/http_private.h"
#include "model/gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    GAP = 64 << 10,         /* bytes that are fetched rather than asking twice */
    REST = 64 << 10,        /* bytes between tensors that are fetched for a whole file's sake */
    HEADER_FIRST = 1 << 20, /* holds most headers */
    HEADER_MAX = 512 << 20,
    PROGRESS_US = 200000
};

typedef struct receiving {
    const sn_hub_settings *settings;
    const sn_hub_part *part;
    sn_partial_file file;
    sn_range_set arrived; /* with a manifest: what is in the file, verified or not */
    void *piece;          /* with a manifest: of SN_PIECE_MAX bytes */
    sn_hub_progress progress;
    int64_t begun_us, told_us;
} receiving;

static void tell(receiving *r, bool now) {
    int64_t us = sn_now_us();
    if (!r->settings->progress || (!now && us - r->told_us < PROGRESS_US)) return;
    r->told_us = us;
    r->progress.bytes_per_s = (double)r->progress.done / ((double)(us - r->begun_us + 1) / 1e6);
    r->settings->progress(r->settings->context, &r->progress);
}

/* A piece whose bytes are all in the file counts from here on, if they are right. */
static sn_status verify_piece(receiving *r, const sn_piece *piece, sn_err *err) {
    size_t bytes = (size_t)(piece->to - piece->from);
    char shown[SN_URL_SIZE];
    if (!sn_range_set_covers(&r->arrived, piece->from, piece->to) ||
        sn_range_set_covers(&r->file.present, piece->from, piece->to))
        return SN_OK;
    int error = sn_file_read_at(r->file.fd, r->piece, bytes, piece->from);
    if (error) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", r->file.path, strerror(error));
    const sn_hash hash = sn_hash_of(r->piece, bytes);
    if (memcmp(&hash, &piece->hash, sizeof hash))
        return sn_fail(err, SN_REFUSED,
                       "%.300s is not the file of the manifest, at byte %" PRIu64 ": nothing of this was kept",
                       sn_http_show(r->part->url, shown), piece->from);
    return sn_partial_file_add(&r->file, piece->from, bytes, err);
}

static sn_status receive_verified(receiving *r, uint64_t at, const void *data, size_t n, sn_err *err) {
    sn_status status = sn_partial_file_put(&r->file, at, data, n, err);
    if (!status) status = sn_range_set_add(&r->arrived, at, at + n, err);
    for (uint64_t next = at; !status && next < at + n;) {
        const sn_piece *piece = sn_manifest_piece_at(r->part->manifest, r->part->of, next);
        status = verify_piece(r, piece, err);
        next = piece->to;
    }
    return status;
}

static sn_status receive(void *context, uint64_t at, const void *data, size_t n, sn_err *err) {
    receiving *r = context;
    sn_status status =
        r->part->manifest ? receive_verified(r, at, data, n, err) : sn_partial_file_write(&r->file, at, data, n, err);
    if (!r->part->manifest) *r->part->brought = true;
    r->progress.done += n;
    if (!status) tell(r, false);
    return status;
}

/* Of what is there, keeps whole pieces alone: those were compared. Parts of others came without a manifest. */
static sn_status keep_pieces(receiving *r, sn_err *err) {
    const sn_hub_part *part = r->part;
    sn_range_set kept = {0};
    sn_status status = SN_OK;
    if (!part->manifest) return SN_OK;
    for (size_t i = 0; !status && i < r->file.present.n; i++) {
        const sn_range *range = &r->file.present.ranges[i];
        const sn_piece *first = sn_manifest_piece_at(part->manifest, part->of, range->from),
                       *last = sn_manifest_piece_at(part->manifest, part->of, range->to - 1);
        status = sn_range_set_add(&kept, first->from < range->from ? first->to : first->from,
                                  last->to > range->to ? last->from : last->to, err);
    }
    sn_range_set_fini(&r->file.present);
    r->file.present = kept;
    return status;
}

/* Room for what arrives before it can be verified. */
static sn_status begin_verifying(receiving *r, sn_err *err) {
    if (!r->part->manifest) return SN_OK;
    r->piece = malloc(SN_PIECE_MAX);
    return r->piece ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a piece");
}

static sn_status fetch_missing(receiving *r, sn_http *http, const sn_range_set *missing, sn_err *err) {
    const sn_hub_part *part = r->part;
    sn_http_file file;
    char shown[SN_URL_SIZE];
    r->progress.total = sn_range_set_bytes(missing);
    sn_status status = sn_cached_make_room(r->settings->cache, r->settings->cache_max, r->progress.total, err);
    if (!status) status = begin_verifying(r, err);
    if (!status) status = sn_http_describe(http, part->url, &file, err);
    if (!status && file.size != part->size)
        status = sn_fail(err, SN_REFUSED, "%.200s has %" PRIu64 " bytes, and the hub said %" PRIu64,
                         sn_http_show(part->url, shown), file.size, part->size);
    if (!status && !part->snapshot && strcmp(file.etag, part->etag)) /* a commit does not change, what a URL has does */
        status = sn_fail(err, SN_REFUSED, "%.200s has changed while it was fetched: start again",
                         sn_http_show(part->url, shown));
    if (!status) status = sn_http_fetch(http, &file, missing, receive, r, err);
    if (!status && sn_partial_file_is_whole(&r->file)) status = sn_hub_snapshot_check(part, &r->file, err);
    if (status && sn_partial_file_is_whole(&r->file)) return status; /* it was not compared: the next call does */
    /* What came is kept, even if not all did. */
    sn_status saved = sn_partial_file_save(&r->file, status ? NULL : err);
    if (!status) tell(r, true);
    return status ? status : saved;
}

/* With a manifest, pieces are fetched whole. */
static sn_status widen(const sn_hub_part *part, sn_range_set *out, sn_err *err) {
    char shown[SN_URL_SIZE];
    sn_status status = SN_OK;
    for (size_t i = 0; !status && i < part->wanted.n; i++) {
        const sn_range *range = &part->wanted.ranges[i];
        uint64_t from = range->from, to = range->to;
        if (to > part->size)
            return sn_fail(err, SN_REFUSED, "the header of %.200s names bytes beyond its end",
                           sn_http_show(part->url, shown));
        if (part->manifest) {
            from = sn_manifest_piece_at(part->manifest, part->of, from)->from;
            to = sn_manifest_piece_at(part->manifest, part->of, to - 1)->to;
        }
        status = sn_range_set_add(out, from, to, err);
    }
    return status;
}

/* What is to be fetched: what is wanted and not there; the rest of the file, too, where only the bytes between tensors
 * would be left. */
static sn_status find_missing(const receiving *r, sn_range_set *out, sn_err *err) {
    const sn_hub_part *part = r->part;
    const sn_range_set *present = &r->file.present, all = {&(sn_range){0, part->size}, 1, 1};
    sn_range_set wanted = {0};
    sn_status status = widen(part, &wanted, err);
    if (!status) status = sn_range_set_missing(&wanted, present, part->manifest ? 0 : GAP, out, err);
    uint64_t have = sn_range_set_bytes(present) + sn_range_set_bytes(out);
    if (!status && out->n && (have >= part->size || part->size - have <= REST)) {
        out->n = 0;
        status = sn_range_set_missing(&all, present, 0, out, err);
    }
    sn_range_set_fini(&wanted);
    return status;
}

static sn_status open_file(receiving *r, sn_err *err) {
    const sn_hub_part *part = r->part;
    return sn_partial_file_open(part->path, part->size, part->etag, r->settings->http.cancel, &r->file, err);
}

/* Takes the file from the cache of other tools, if it is there and what the manifest says; else it is fetched. */
static sn_status take_whole(receiving *r, sn_err *err) {
    const sn_manifest_file *of = r->part->of;
    uint64_t here = 0;
    bool whole = sn_partial_file_is_whole(&r->file);
    sn_status status = sn_hub_snapshot_take(r->part, &r->file, err);
    if (status || whole || !of || !sn_partial_file_is_whole(&r->file)) return status;
    status = sn_manifest_check_file(r->part->manifest, of, r->part->path, &here, err);
    if (status != SN_REFUSED) return status;
    unlink(r->part->path);
    sn_partial_file_close(&r->file);
    return open_file(r, err);
}

sn_status sn_hub_part_fetch(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part, const char *what,
                            sn_err *err) {
    receiving r = {.settings = settings, .part = part, .progress.what = what, .begun_us = sn_now_us()};
    sn_range_set missing = {0};
    if (!part->wanted.n) return SN_OK;
    sn_status status = open_file(&r, err);
    if (status) return status;
    status = take_whole(&r, err);
    if (!status) status = keep_pieces(&r, err);
    if (!status) status = find_missing(&r, &missing, err);
    if (!status && missing.n) status = fetch_missing(&r, http, &missing, err);
    if (!status && missing.n && sn_partial_file_is_whole(&r.file)) status = sn_hub_snapshot_give(part, &r.file, err);
    if (!status) part->wanted.n = 0;
    sn_range_set_fini(&missing);
    sn_range_set_fini(&r.arrived);
    free(r.piece);
    sn_partial_file_close(&r.file);
    return status;
}

static sn_status read_prefix(const sn_hub_part *part, size_t bytes, void **out, sn_err *err) {
    *out = malloc(bytes);
    if (!*out) return sn_fail(err, SN_STOP, "out of memory for a header");
    FILE *file = fopen(part->path, "rb");
    bool read = file && fread(*out, 1, bytes, file) == bytes;
    if (file) fclose(file);
    return read ? SN_OK : sn_fail(err, SN_REFUSED, "%s cannot be read: %s", part->path, strerror(errno));
}

/* How long the header is, by its first bytes; 0: longer than these. */
static sn_status header_bytes(const sn_hub_part *part, size_t have, size_t *need, sn_err *err) {
    void *prefix = NULL;
    char shown[SN_URL_SIZE];
    size_t len = strlen(part->path);
    uint64_t json;
    sn_status status = read_prefix(part, have, &prefix, err);
    *need = 0;
    if (!status && len > 5 && !strcmp(part->path + len - 5, ".gguf")) {
        status = sn_gguf_header_bytes(prefix, have, need, err);
    } else if (!status && have >= sizeof json) { /* safetensors: the length of a JSON text, then the text */
        memcpy(&json, prefix, sizeof json);
        *need = json < HEADER_MAX ? sizeof json + (size_t)json : HEADER_MAX + (size_t)1;
    }
    free(prefix);
    return status ? sn_err_context(err, "%.200s", sn_http_show(part->url, shown)) : SN_OK;
}

/* Opening a GGUF file may read a tensor, too. */
static sn_status fetch_config_tensor(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part, sn_err *err) {
    uint64_t from, bytes;
    size_t len = strlen(part->path);
    if (len < 5 || strcmp(part->path + len - 5, ".gguf")) return SN_OK;
    sn_status status = sn_config_tensor_of_gguf(part->path, &from, &bytes, err);
    if (!status && bytes) status = sn_range_set_add(&part->wanted, from, from + bytes, err);
    return status ? status : sn_hub_part_fetch(settings, http, part, "header", err);
}

sn_status sn_hub_part_fetch_header(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part, sn_err *err) {
    size_t have = HEADER_FIRST, need = 0;
    char shown[SN_URL_SIZE];
    while (true) {
        if (have > part->size) have = (size_t)part->size;
        sn_status status = sn_range_set_add(&part->wanted, 0, have, err);
        if (!status) status = sn_hub_part_fetch(settings, http, part, "header", err);
        if (!status) status = header_bytes(part, have, &need, err);
        if (status) return status;
        if (need && need <= have) return fetch_config_tensor(settings, http, part, err);
        if (need > HEADER_MAX || have >= HEADER_MAX || have == part->size)
            return sn_fail(err, SN_REFUSED, "%.200s is no model file: its header does not end",
                           sn_http_show(part->url, shown));
        have = need ? need : 4 * have;
    }
}

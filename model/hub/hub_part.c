#include "model/hub/hub_private.h"

#include "base/clock.h"
#include "base/text.h"
#include "model/config.h"
#include "model/gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    GAP = 64 << 10,         /* bytes that are fetched rather than asking twice */
    HEADER_FIRST = 1 << 20, /* holds most headers */
    HEADER_MAX = 512 << 20,
    PROGRESS_US = 200000
};

typedef struct receiving {
    const sn_hub_settings *settings;
    sn_partial_file file;
    sn_hub_progress progress;
    int64_t begun_us, told_us;
} receiving;

const char *sn_hub_progress_text(const sn_hub_progress *p, char out[SN_HUB_PROGRESS_SIZE]) {
    char done[32], total[32], rate[32];
    double left_s = p->bytes_per_s > 0 ? (double)(p->total - p->done) / p->bytes_per_s : 0;
    snprintf(out, SN_HUB_PROGRESS_SIZE, "fetching %.60s: %s of %s, %s/s, %.0f s left", p->what,
             sn_format_size(p->done, done), sn_format_size(p->total, total),
             sn_format_size((size_t)p->bytes_per_s, rate), left_s);
    return out;
}

void sn_hub_show_progress(void *context, const sn_hub_progress *progress) {
    char line[SN_HUB_PROGRESS_SIZE];
    (void)context;
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s   %s", sn_hub_progress_text(progress, line), progress->done < progress->total ? "" : "\n");
}

static void tell(receiving *r, bool now) {
    int64_t us = sn_now_us();
    if (!r->settings->progress || (!now && us - r->told_us < PROGRESS_US)) return;
    r->told_us = us;
    r->progress.bytes_per_s = (double)r->progress.done / ((double)(us - r->begun_us + 1) / 1e6);
    r->settings->progress(r->settings->context, &r->progress);
}

static sn_status receive(void *context, uint64_t at, const void *data, size_t n, sn_err *err) {
    receiving *r = context;
    sn_status status = sn_partial_file_write(&r->file, at, data, n, err);
    r->progress.done += n;
    if (!status) tell(r, false);
    return status;
}

static sn_status fetch_missing(receiving *r, sn_http *http, const sn_hub_part *part, const sn_range_set *missing,
                               sn_err *err) {
    sn_http_file file;
    r->progress.total = sn_range_set_bytes(missing);
    sn_status status = sn_http_describe(http, part->url, &file, err);
    if (!status && file.size != part->size)
        status = sn_fail(err, SN_REFUSED, "%.200s has %" PRIu64 " bytes, and the hub said %" PRIu64, part->url,
                         file.size, part->size);
    if (!status) status = sn_http_fetch(http, &file, missing, receive, r, err);
    /* What came is kept, even if not all did. */
    sn_status saved = sn_partial_file_save(&r->file, status ? NULL : err);
    if (!status) tell(r, true);
    return status ? status : saved;
}

sn_status sn_hub_part_fetch(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part, const char *what,
                            sn_err *err) {
    receiving r = {.settings = settings, .progress.what = what, .begun_us = sn_now_us()};
    sn_range_set missing = {0};
    if (!part->wanted.n) return SN_OK;
    sn_status status = sn_partial_file_open(part->path, part->size, part->etag, settings->http.cancel, &r.file, err);
    if (status) return status;
    status = sn_range_set_missing(&part->wanted, &r.file.present, GAP, &missing, err);
    if (!status && missing.n) status = fetch_missing(&r, http, part, &missing, err);
    if (!status) part->wanted.n = 0;
    sn_range_set_fini(&missing);
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
    return status ? sn_err_context(err, "%.200s", part->url) : SN_OK;
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
    while (true) {
        if (have > part->size) have = (size_t)part->size;
        sn_status status = sn_range_set_add(&part->wanted, 0, have, err);
        if (!status) status = sn_hub_part_fetch(settings, http, part, "header", err);
        if (!status) status = header_bytes(part, have, &need, err);
        if (status) return status;
        if (need && need <= have) return fetch_config_tensor(settings, http, part, err);
        if (need > HEADER_MAX || have >= HEADER_MAX || have == part->size)
            return sn_fail(err, SN_REFUSED, "%.200s is no model file: its header does not end", part->url);
        have = need ? need : 4 * have;
    }
}

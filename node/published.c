#include "node/published.h"

#include "base/log.h"
#include "model/peft.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { IMAGE_MAX = 1 << 30, PATH_SIZE = 4096 };

/* Names go into messages, logs and command lines. */
static bool is_name(const char *name) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strlen(name);
    return *name != '.' && len && len <= SN_ADAPTER_NAME_MAX && strspn(name, plain) == len;
}

static sn_status load_one(const char *folder, const char *name, sn_span *span, const sn_hash *weights, struct sn_published_one *out, sn_err *err) {
    sn_buf image;
    char path[PATH_SIZE];
    sn_buf_init(&image, IMAGE_MAX);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path is too long");
    bool marked;
    char unsaid[SN_PEFT_NAME_SIZE];
    sn_status status = weights ? sn_peft_check(path, weights, sn_span_hparams(span)->name, &marked, unsaid, err) : SN_OK;
    if (!status) status = sn_peft_lora(path, sn_span_hparams(span), &image, err);
    if (!status && weights && !marked)
        sn_log(SN_LOG_INFO, "an adapter does not say which weights it was trained for", "name=%s base=%s", name, unsaid);
    if (!status) status = sn_tuning_load(span, image.data, image.len, &out->tuning, err);
    if (!status) out->hash = sn_hash_of(image.data, image.len);
    if (!status) snprintf(out->name, sizeof out->name, "%s", name);
    sn_buf_fini(&image);
    return status;
}

static void take(sn_published *p, const char *folder, const char *name, sn_span *span, const sn_hash *weights) {
    sn_err err;
    sn_status status = p->n == SN_ADAPTERS_MAX ? sn_fail(&err, SN_REFUSED, "a node publishes at most %d", SN_ADAPTERS_MAX)
                       : !is_name(name) ? sn_fail(&err, SN_REFUSED, "its name is to be 1 to %d letters, digits and . _ -",
                                                  SN_ADAPTER_NAME_MAX)
                                        : load_one(folder, name, span, weights, &p->at[p->n], &err);
    if (status) {
        sn_log(SN_LOG_WARN, "an adapter is left out", "name=%s text=%s", name, err.text);
        return;
    }
    char hex[17];
    sn_log(SN_LOG_INFO, "an adapter is published", "name=%s hash=%s bytes=%zu", name, sn_hex(p->at[p->n].hash.bytes, 8, hex),
           sn_tuning_bytes(p->at[p->n].tuning));
    p->n++;
}

sn_status sn_published_load(const char *folder, sn_span *span, const sn_hash *weights, sn_published *out, sn_err *err) {
    struct dirent **list = NULL;
    *out = (sn_published){.n = 0};
    int n = scandir(folder, &list, NULL, alphasort);
    if (n < 0) return sn_fail(err, SN_REFUSED, "--adapters %.300s cannot be read: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        char path[PATH_SIZE];
        struct stat is;
        bool fits = snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name) < (int)sizeof path;
        if (fits && list[i]->d_name[0] != '.' && !stat(path, &is) && S_ISDIR(is.st_mode)) take(out, folder, list[i]->d_name, span, weights);
        free(list[i]);
    }
    free(list);
    return SN_OK;
}

void sn_published_free(sn_published *p) {
    for (size_t i = 0; i < p->n; i++) sn_tuning_free(&p->at[i].tuning);
    *p = (sn_published){.n = 0};
}

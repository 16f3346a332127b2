#include "node/engine/adapter_store.h"

#include "base/log.h"
#include "model/base_weights.h"
#include "model/peft/peft.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { IMAGE_MAX = 1 << 30, PATH_SIZE = 4096 };

/* Restricted, because names occur in messages, log lines and command lines. */
static bool adapter_name_is_valid(const char *name) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strlen(name);
    return *name != '.' && len && len <= SN_ADAPTER_NAME_MAX && strspn(name, plain) == len;
}

/* The span's blocks must be those that the adapter was trained for, as far as its folder says. */
static sn_status adapter_check_base(const char *path, const char *name, const sn_span *span, sn_err *err) {
    sn_base_weights base;
    char base_name[SN_PEFT_NAME_SIZE];
    sn_status status = sn_base_weights_load(path, &base, err);
    if (!status && !base.n_blocks) {
        sn_peft_base_name(path, base_name);
        sn_log(SN_LOG_INFO, "adapter names no base weights", "name=%s base=%s", name, base_name);
    } else if (!status && base.n_blocks != sn_span_hparams(span)->n_blocks) {
        status = sn_fail(err, SN_REFUSED, "it was trained for a model of %d blocks", base.n_blocks);
    }
    for (int b = sn_span_first(span); b < sn_span_end(span) && !status; b++) {
        const sn_hash *hash = sn_base_weights_block(&base, b);
        if (hash && !sn_span_has_weights(span, b, hash)) status = sn_base_weights_block_differs(&base, b, err);
    }
    sn_base_weights_fini(&base);
    return status;
}

static sn_status adapter_load(const char *folder, const char *name, sn_span *span, struct sn_stored_adapter *out,
                              sn_err *err) {
    sn_buf image;
    char path[PATH_SIZE];
    sn_buf_init(&image, IMAGE_MAX);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path is too long");
    sn_status status = adapter_check_base(path, name, span, err);
    if (!status) status = sn_peft_lora(path, sn_span_hparams(span), &image, err);
    if (!status) status = sn_adapter_load(span, image.data, image.len, &out->adapter, err);
    if (!status) out->hash = sn_hash_of(image.data, image.len);
    if (!status) snprintf(out->name, sizeof out->name, "%s", name);
    sn_buf_fini(&image);
    return status;
}

static void adapter_store_add(sn_adapter_store *p, const char *folder, const char *name, sn_span *span) {
    sn_err err;
    sn_status status = p->n == SN_ADAPTERS_MAX
                           ? sn_fail(&err, SN_REFUSED, "a node publishes at most %d", SN_ADAPTERS_MAX)
                       : !adapter_name_is_valid(name)
                           ? sn_fail(&err, SN_REFUSED, "its name must be 1 to %d letters, digits, or any of . _ -",
                                     SN_ADAPTER_NAME_MAX)
                           : adapter_load(folder, name, span, &p->adapters[p->n], &err);
    if (status) {
        sn_log(SN_LOG_WARN, "adapter skipped", "name=%s text=%s", name, err.text);
        return;
    }
    char hex[17];
    sn_log(SN_LOG_INFO, "adapter published", "name=%s hash=%s bytes=%zu", name,
           sn_hex(p->adapters[p->n].hash.bytes, 8, hex), sn_adapter_bytes(p->adapters[p->n].adapter));
    p->n++;
}

sn_status sn_adapter_store_load(const char *folder, sn_span *span, sn_adapter_store *out, sn_err *err) {
    struct dirent **list = NULL;
    *out = (sn_adapter_store){.n = 0};
    int n = scandir(folder, &list, NULL, alphasort);
    if (n < 0) return sn_fail(err, SN_REFUSED, "--adapters %.300s cannot be read: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        char path[PATH_SIZE];
        struct stat is;
        bool fits = snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name) < (int)sizeof path;
        if (fits && list[i]->d_name[0] != '.' && !stat(path, &is) && S_ISDIR(is.st_mode))
            adapter_store_add(out, folder, list[i]->d_name, span);
        free(list[i]);
    }
    free(list);
    return SN_OK;
}

void sn_adapter_store_free(sn_adapter_store *p) {
    for (size_t i = 0; i < p->n; i++) sn_adapter_free(&p->adapters[i].adapter);
    *p = (sn_adapter_store){.n = 0};
}

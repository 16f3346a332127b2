#include "model/gguf_parts.h"

#include "base/mem.h"
#include "model/gguf_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char form[] = "-00000-of-00000.gguf"; /* 0: any digit */
enum { FORM_BYTES = sizeof form - 1, NUMBER_AT = 1, COUNT_AT = 10, DIGITS = 5 };

static int number_at(const char *digits) {
    int n = 0;
    for (int i = 0; i < DIGITS; i++) n = 10 * n + digits[i] - '0';
    return n;
}

int sn_gguf_parts_of(const char *path, int *number) {
    size_t len = strlen(path);
    const char *ending = path + len - FORM_BYTES;
    if (number) *number = 1;
    if (len < FORM_BYTES) return 1;
    for (int i = 0; i < FORM_BYTES; i++)
        if (form[i] == '0' ? ending[i] < '0' || ending[i] > '9' : ending[i] != form[i]) return 1;
    int count = number_at(ending + COUNT_AT), which = number_at(ending + NUMBER_AT);
    if (which < 1 || which > count || count > SN_GGUF_PARTS_MAX) return 1;
    if (number) *number = which;
    return count;
}

sn_status sn_gguf_part_path(const char *path, int number, char out[SN_PATH_SIZE], sn_err *err) {
    int count = sn_gguf_parts_of(path, NULL);
    size_t len = strlen(path);
    if (len >= SN_PATH_SIZE) return sn_fail(err, SN_REFUSED, "the path of the model is too long");
    memcpy(out, path, len + 1);
    size_t kept = len - FORM_BYTES;
    if (count > 1) snprintf(out + kept, SN_PATH_SIZE - kept, "-%05d-of-%05d.gguf", number, count);
    return SN_OK;
}

/* Which part of how many the file says it is, from 1; a whole model is part 1 of 1. */
static sn_status read_place(const sn_gguf *g, int *number, int *count, sn_err *err) {
    uint32_t no = 0, of = 1;
    sn_status status = sn_gguf_u32(g, "split.no", false, &no, err);
    if (!status) status = sn_gguf_u32(g, "split.count", false, &of, err);
    if (status) return status;
    if (of > SN_GGUF_PARTS_MAX || no >= (of ? of : 1))
        return sn_fail(err, SN_REFUSED, "it says that it is part %u of %u; up to %d parts are taken", no + 1, of,
                       SN_GGUF_PARTS_MAX);
    *number = (int)no + 1;
    *count = of ? (int)of : 1;
    return SN_OK;
}

static sn_status open_part(const char *path, int number, int count, sn_gguf **out, sn_err *err) {
    char part[SN_PATH_SIZE];
    int own = 0, of = 0;
    sn_status status = sn_gguf_part_path(path, number, part, err);
    if (!status && access(part, F_OK))
        return sn_fail(err, SN_REFUSED, "%s is missing, part %d of the %d of this model: put it beside the others",
                       part, number, count);
    if (!status) status = sn_gguf_open_file(part, out, err);
    if (!status) status = read_place(*out, &own, &of, err);
    if (!status && (own != number || of != count))
        status = sn_fail(err, SN_REFUSED, "%s holds part %d of %d of a model: it is misnamed, fetch it again", part,
                         own, of);
    return status;
}

/* Moves the tensors and the files of all parts to the first. */
static sn_status join_parts(sn_gguf **parts, int count, sn_err *err) {
    enum { TENSORS_MAX = 1 << 20 };
    sn_gguf *first = parts[0], whole = {0};
    size_t n = 0;
    int32_t said = -1;
    sn_status status = sn_gguf_i32(first, "split.tensors.count", false, &said, err);
    for (int i = 0; i < count; i++) n += parts[i]->n_tensors;
    if (!status && (n > TENSORS_MAX || (said >= 0 && (size_t)said != n)))
        return sn_fail(err, SN_REFUSED,
                       "the parts hold %zu tensors where the first says %d: they are of different models", n, said);
    if (!status) status = sn_calloc(&whole.tensors, n, sizeof *whole.tensors, err);
    if (!status) status = sn_calloc(&whole.by_name, n, sizeof *whole.by_name, err);
    if (!status) status = sn_calloc(&whole.maps, (size_t)count, sizeof *whole.maps, err);
    for (int i = 0; !status && i < count; i++) {
        memcpy(whole.tensors + whole.n_tensors, parts[i]->tensors, parts[i]->n_tensors * sizeof *whole.tensors);
        whole.n_tensors += parts[i]->n_tensors;
        whole.maps[whole.n_maps++] = parts[i]->maps[0];
        parts[i]->n_maps = 0;
    }
    if (status) {
        free(whole.tensors);
        free(whole.by_name);
        return status;
    }
    sn_mapped_files_sort(whole.maps, whole.n_maps);
    free(first->tensors);
    free(first->by_name);
    free(first->maps);
    first->tensors = whole.tensors, first->n_tensors = whole.n_tensors;
    first->by_name = whole.by_name;
    first->maps = whole.maps, first->n_maps = whole.n_maps;
    return sn_gguf_sort_names(first, err);
}

static sn_status open_parts(const char *path, int count, sn_gguf **out, sn_err *err) {
    sn_gguf **parts = NULL;
    sn_status status = sn_calloc(&parts, (size_t)count, sizeof *parts, err);
    for (int i = 0; !status && i < count; i++) status = open_part(path, i + 1, count, &parts[i], err);
    if (!status) status = join_parts(parts, count, err);
    for (int i = status ? 0 : 1; parts && i < count; i++) sn_gguf_close(&parts[i]);
    if (!status) *out = parts[0];
    free(parts);
    return status;
}

sn_status sn_gguf_open(const char *path, sn_gguf **out, sn_err *err) {
    int number, count, named, as;
    *out = NULL;
    sn_status status = sn_gguf_open_file(path, out, err);
    if (!status) status = read_place(*out, &number, &count, err);
    if (!status && count == 1) return SN_OK;
    sn_gguf_close(out);
    if (status) return sn_err_context(err, "%s", path), status;
    named = sn_gguf_parts_of(path, &as);
    if (named != count || as != number)
        return sn_fail(
            err, SN_REFUSED,
            "%s is part %d of %d of a model: name it NAME-%05d-of-%05d.gguf, beside its other parts, which are "
            "found by that",
            path, number, count, number, count);
    return open_parts(path, count, out, err);
}

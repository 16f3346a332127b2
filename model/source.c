#include "model/source.h"

#include "model/partial_file.h"

#include <stdio.h>

/* Where nothing is fetched, a file with holes is refused, so that its holes are never computed with. */
static sn_status check_bytes(const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    sn_range_set present = {0};
    bool partial;
    sn_status status = sn_partial_file_present(path, &partial, &present, err);
    if (!status && partial && !sn_range_set_covers(&present, from, from + bytes))
        status =
            sn_fail(err, SN_REFUSED,
                    "%.300s has been fetched in part only, and not this: open the model by its name, ORG/NAME", path);
    sn_range_set_fini(&present);
    return status;
}

static sn_status want_bytes(const sn_model *model, const void *data, size_t bytes, sn_err *err) {
    const sn_model_source *source = sn_model_get_source(model);
    const char *path;
    uint64_t from;
    if (!bytes || !sn_model_file_of(model, data, &path, &from)) return SN_OK; /* it is computed */
    return source->want ? source->want(source->context, path, from, bytes, err) : check_bytes(path, from, bytes, err);
}

/* All from the first run to the last: what lies between is of other roles of the same block, which are wanted, too.
 * Runs can be single rows, and a file can claim millions of them. */
static sn_status want_tensor(const sn_model *model, const sn_model_tensor *t, sn_err *err) {
    size_t bytes, n = sn_model_n_runs(t);
    if (!n) return SN_OK;
    const char *first = sn_model_run(t, 0, &bytes), *last = sn_model_run(t, n - 1, &bytes);
    sn_status status = want_bytes(model, first, (size_t)(last - first) + bytes, err);
    for (int i = 0; !status && (first = sn_model_packed_part(t, i, &bytes)) != NULL; i++)
        status = want_bytes(model, first, bytes, err);
    if (status || !t->scales) return status;
    first = sn_model_run_scales(t, 0, &bytes);
    last = sn_model_run_scales(t, n - 1, &bytes);
    return want_bytes(model, first, (size_t)(last - first) + bytes, err);
}

static sn_status want_roles(const sn_model *model, int first, int end, int block, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_status status = SN_OK;
    for (int role = first; role < end; role++)
        for (int i = 0; !status && i < sn_role_n_matrices(hp, (sn_role)role); i++) {
            sn_model_tensor t;
            status = sn_model_find_expert(model, (sn_role)role, block, i, &t, err);
            if (!status) status = want_tensor(model, &t, err);
        }
    return status;
}

sn_status sn_model_need_block(const sn_model *model, int block, sn_err *err) {
    const sn_model_source *source = sn_model_get_source(model);
    char what[32];
    if (!source->want && !sn_model_has_holes(model)) return SN_OK;
    snprintf(what, sizeof what, "block %d", block);
    sn_status status = want_roles(model, SN_ROLE_FIRST_OF_BLOCK, SN_ROLE_COUNT, block, err);
    return status || !source->want ? status : source->fetch(source->context, what, err);
}

sn_status sn_model_need_ends(const sn_model *model, sn_err *err) {
    const sn_model_source *source = sn_model_get_source(model);
    if (!source->want && !sn_model_has_holes(model)) return SN_OK;
    sn_status status = want_roles(model, 0, SN_ROLE_FIRST_OF_BLOCK, 0, err);
    return status || !source->want ? status : source->fetch(source->context, "embedding and LM head", err);
}

bool sn_model_holds_block(const sn_model *model, int block) {
    return sn_model_has_block(model, block) &&
           (sn_model_get_source(model)->want || !sn_model_need_block(model, block, NULL));
}

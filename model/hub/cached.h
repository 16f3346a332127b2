/* What was fetched and lies in our folder of caches: models of a hub, of a URL, of the swarm.
 *
 * Any thread may call these functions. SN_REFUSED names the path. */
#ifndef SN_MODEL_HUB_CACHED_H
#define SN_MODEL_HUB_CACHED_H

#include "base/file.h"
#include "model/hub/model_name.h"

typedef struct sn_cached_model {
    char name[SN_URL_SIZE];  /* "ORG/NAME@COMMIT", "swarm:ID", "url:DIGITS" */
    char path[SN_PATH_SIZE]; /* its folder */
    uint64_t bytes;          /* on the disk */
    bool has_manifest;
} sn_cached_model;

/* Calls `each` for every model, until it fails. */
sn_status sn_cached_models(const char *cache, sn_status (*each)(void *ctx, const sn_cached_model *model, sn_err *err),
                           void *ctx, sn_err *err) SN_MUST_USE;
/* Removes the model's folder. */
sn_status sn_cached_model_remove(const sn_cached_model *model, sn_err *err) SN_MUST_USE;

#endif

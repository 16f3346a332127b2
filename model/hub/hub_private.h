/* A repository at a revision, and the files of it that are here in part. */
#ifndef SN_MODEL_HUB_HUB_PRIVATE_H
#define SN_MODEL_HUB_HUB_PRIVATE_H

#include "model/hub/hub.h"

#include <jansson.h>

typedef struct sn_hub_repo {
    const sn_hub_settings *settings;
    sn_model_name name;
    char commit[SN_HTTP_COMMIT_SIZE];
    char folder[SN_PATH_SIZE]; /* of this commit in our cache */
    json_t *files;             /* object: name to [size, etag] */
} sn_hub_repo;

/* Asks the hub for the repository's commit and files; if it cannot be reached, takes what an earlier call remembered.
 */
sn_status sn_hub_repo_open(const sn_hub_settings *settings, sn_http *http, const sn_model_name *name, sn_hub_repo *out,
                           sn_err *err) SN_MUST_USE;
void sn_hub_repo_close(sn_hub_repo *repo);
bool sn_hub_repo_has(const sn_hub_repo *repo, const char *file, uint64_t *size, const char **etag);
/* The GGUF file to take when the name says none; out[0] is 0 for a folder of safetensors. */
sn_status sn_hub_repo_choose(const sn_hub_repo *repo, char out[SN_HUB_FILE_SIZE], sn_err *err) SN_MUST_USE;

/* A file that is fetched range by range. */
typedef struct sn_hub_part {
    char path[SN_PATH_SIZE], url[SN_URL_SIZE], etag[SN_ETAG_SIZE];
    uint64_t size;
    sn_range_set wanted;
} sn_hub_part;

/* Brings what is wanted of the part and not there; then nothing is wanted. */
sn_status sn_hub_part_fetch(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part, const char *what,
                            sn_err *err) SN_MUST_USE;
/* Fetches the beginning of a model file that is its header: all that sn_model_open reads. */
sn_status sn_hub_part_fetch_header(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part,
                                   sn_err *err) SN_MUST_USE;

#endif

/* A repository at a revision, and the files of it that are here in part. */
#ifndef SN_SHARING_HUB_HUB_PRIVATE_H
#define SN_SHARING_HUB_HUB_PRIVATE_H

#include "sharing/hub/hub.h"
#include "sharing/hub/manifest.h"

#include <jansson.h>

typedef struct sn_hub_repo {
    const sn_hub_settings *settings;
    sn_model_name name;
    char commit[SN_HTTP_COMMIT_SIZE];
    char folder[SN_PATH_SIZE];      /* of this commit in our cache */
    char ref[SN_HUB_REVISION_SIZE]; /* the branch or tag that is this commit; "": not known */
    int64_t ref_ns;                 /* when the hub said so, since 1970; 0: it did not */
    json_t *files;                  /* object: name to [size, etag] */
} sn_hub_repo;

/* Asks the hub for the repository's commit and files; if it cannot be reached, takes what an earlier call remembered,
 * or what Hugging Face's tools have. */
sn_status sn_hub_repo_open(const sn_hub_settings *settings, sn_http *http, const sn_model_name *name, sn_hub_repo *out,
                           sn_err *err) SN_MUST_USE;
void sn_hub_repo_close(sn_hub_repo *repo);
/* Whether it has the file. *size: SN_SIZE_NOT_SAID where the hub's list says none, as that of some mirrors. */
#define SN_SIZE_NOT_SAID UINT64_MAX
bool sn_hub_repo_has(const sn_hub_repo *repo, const char *file, uint64_t *size, const char **etag);
/* The GGUF file to take when the name says none; out[0] is 0 for a folder of safetensors. */
sn_status sn_hub_repo_choose(const sn_hub_repo *repo, char out[SN_HUB_FILE_SIZE], sn_err *err) SN_MUST_USE;

/* Where Hugging Face's tools have the files of a repository at a commit (hub_snapshot.c). */
typedef struct sn_hub_snapshot {
    char folder[SN_PATH_SIZE]; /* "HF_HUB_CACHE/models--ORG--NAME"; "": none is used */
    char commit[SN_HTTP_COMMIT_SIZE];
    char ref[SN_HUB_REVISION_SIZE]; /* as in sn_hub_repo */
    int64_t ref_ns;
} sn_hub_snapshot;

int64_t sn_hub_file_time_ns(const char *path); /* when it was written, since 1970; 0: there is none */

sn_status sn_hub_snapshot_of(const sn_hub_repo *repo, sn_hub_snapshot *out, sn_err *err) SN_MUST_USE;

/* What a hub would say of the repository, as far as it is there: the JSON document of sn_hub_repo_open. NULL: nothing.
 */
json_t *sn_hub_snapshot_describe(const sn_hub_repo *repo);

/* A file that is fetched range by range. */
typedef struct sn_hub_part {
    char path[SN_PATH_SIZE], url[SN_URL_SIZE], etag[SN_ETAG_SIZE];
    uint64_t size;
    sn_range_set wanted;
    char name[SN_HUB_FILE_SIZE];     /* in the repository; "": it comes from a URL */
    const sn_hub_snapshot *snapshot; /* of the repository; NULL: it comes from a URL */
    const sn_manifest *manifest;     /* by which its bytes are verified; NULL: none */
    const sn_manifest_file *of;      /* the manifest's file */
    bool *brought;                   /* set when bytes come that are not verified */
} sn_hub_part;

/* Takes the file from the snapshot, if it is whole there: the part's file becomes a link. */
sn_status sn_hub_snapshot_take(const sn_hub_part *part, sn_partial_file *file, sn_err *err) SN_MUST_USE;
/* Compares a whole file with the SHA that the hub names it by, if it has one. SN_REFUSED: it is another one, and
 * nothing of it counts as being there any more. */
sn_status sn_hub_snapshot_check(const sn_hub_part *part, sn_partial_file *file, sn_err *err) SN_MUST_USE;
/* Moves a whole file that was compared into the snapshot and leaves a link. */
sn_status sn_hub_snapshot_give(const sn_hub_part *part, sn_partial_file *file, sn_err *err) SN_MUST_USE;

/* Brings what is wanted of the part and not there; then nothing is wanted. */
sn_status sn_hub_part_fetch(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part, const char *what,
                            sn_err *err) SN_MUST_USE;
/* Fetches the beginning of a model file that is its header: all that sn_model_open reads. */
sn_status sn_hub_part_fetch_header(const sn_hub_settings *settings, sn_http *http, sn_hub_part *part,
                                   sn_err *err) SN_MUST_USE;

#endif

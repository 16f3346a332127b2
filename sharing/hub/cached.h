/* What was fetched and lies in our folder of caches: models of a hub, of a URL, of the swarm.
 *
 * A program holds the folder of a model that it uses (a lock on the file .use in it), so that no other one removes it.
 * When the folder was used last is the time of that file.
 *
 * Any thread may call these functions. SN_REFUSED names the path. */
#ifndef SN_SHARING_HUB_CACHED_H
#define SN_SHARING_HUB_CACHED_H

#include "base/file.h"
#include "sharing/hub/model_name.h"

typedef struct sn_cached_model {
    char name[SN_URL_SIZE];  /* "ORG/NAME@COMMIT", "swarm:ID", "url:DIGITS" */
    char path[SN_PATH_SIZE]; /* its folder */
    uint64_t bytes;          /* on the disk */
    uint64_t linked_bytes;   /* of whole files that lie in the cache of Hugging Face's tools, and are links here */
    int64_t used_ns;         /* when it was used last, since 1970 */
} sn_cached_model;

/* Calls `each` for every model, until it fails. */
sn_status sn_cached_models(const char *cache, sn_status (*each)(void *ctx, const sn_cached_model *model, sn_err *err),
                           void *ctx, sn_err *err) SN_MUST_USE;
/* Removes the model's folder. SN_REFUSED: a program uses it. */
sn_status sn_cached_model_remove(const sn_cached_model *model, sn_err *err) SN_MUST_USE;

/* Makes the folder of a model, and holds it. *held: closed by sn_cached_release, which accepts -1. */
sn_status sn_cached_hold(const char *folder, int *held, sn_err *err) SN_MUST_USE;
/* Holds the folder in which a model's path lies; *held is -1 where that is no folder of a cache. */
sn_status sn_cached_hold_path(const char *path, int *held, sn_err *err) SN_MUST_USE;
void sn_cached_release(int *held);

/* Makes room for `bytes` more: removes models that no program holds, those first that were not used for longest, until
 * all that is left has `max` bytes at most with them. max 0: nothing is done. SN_REFUSED: what is in use leaves no
 * room. */
sn_status sn_cached_make_room(const char *cache, uint64_t max, uint64_t bytes, sn_err *err) SN_MUST_USE;

#endif

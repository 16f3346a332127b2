/* Models by name: opens a model from a hub (or a URL) and fetches only the bytes that are needed. Headers,
 * configuration and tokenizer come when the model is opened, tensors before they are read (model/source.h).
 *
 * Files lie in `cache`/models/ORG--NAME/COMMIT/, with holes where nothing was fetched (partial_file.h); what is there
 * is not fetched again, by no process. A file that Hugging Face's tools have in their cache is a link to there, and so
 * is one that has become whole: it moves there, once its SHA is found to be that by which the hub names it. The commit
 * is fixed when the model is opened: a repository that changes under way does not mix versions.
 *
 * With a manifest (sharing/hub/manifest.h) every piece of a file is compared with its hash before it counts as being
 * there. The manifest then stays beside the files, and counts whenever the model is opened.
 *
 * Any thread may call these functions. Errors are those of http.h and model.h. */
#ifndef SN_SHARING_HUB_HUB_H
#define SN_SHARING_HUB_HUB_H

#include "sharing/hub/http.h"
#include "model/model.h"

struct sn_trusted_manifest;

typedef struct sn_hub_progress {
    const char *what;     /* "block 12" */
    uint64_t done, total; /* bytes of this part */
    double bytes_per_s;   /* so far, of this part */
} sn_hub_progress;

enum { SN_HUB_PROGRESS_SIZE = 200 };
/* "fetching block 12: 1.0 MiB of 4.0 MiB, 2.0 MiB/s, 2 s left", into out; returns out. */
const char *sn_hub_progress_text(const sn_hub_progress *progress, char out[SN_HUB_PROGRESS_SIZE]);

/* A function for `progress` of programs: shows the line on standard error, if that is a terminal. */
void sn_hub_show_progress(void *context, const sn_hub_progress *progress);

typedef struct sn_hub_settings {
    sn_http_settings http;       /* endpoint: the hub's */
    char cache[SN_PATH_SIZE];    /* our folder of fetched models */
    char hf_cache[SN_PATH_SIZE]; /* the one of Hugging Face's tools (HF_HUB_CACHE); "": it is not looked at */
    uint64_t cache_max;          /* bytes that `cache` may hold (sharing/hub/cached.h); 0: any */
    const struct sn_trusted_manifest
        *manifest; /* what the files are compared with; NULL: nothing, or what is beside them */
    void (*progress)(void *context, const sn_hub_progress *progress); /* NULL: silent; a few times a second */
    void (*notice)(void *context, const char *sentence); /* something to know about what was fetched; NULL: silent */
    void *context;
} sn_hub_settings;

/* Sets the hub's address. endpoint NULL: https://huggingface.co. SN_REFUSED: it is no URL. */
sn_status sn_hub_set_endpoint(sn_hub_settings *settings, const char *endpoint, sn_err *err) SN_MUST_USE;

/* Whether a file of this name in a folder of safetensors is read when the model is opened or computed: configuration,
 * tokenizer, weights. */
bool sn_hub_is_model_file(const char *name);

sn_status sn_hub_make_folders(const char *path, sn_err *err) SN_MUST_USE; /* a folder and those above it */

/* Opens the model that `name` names: a path, or what sn_model_name_is_remote says is to be fetched. `path` is then
 * where its files are, for tokenizer and chat template. SN_REFUSED lists the files when a repository has several
 * models. */
/* settings NULL: only paths. */
sn_status sn_hub_open_model(const char *name, const sn_hub_settings *settings, char path[SN_PATH_SIZE], sn_model **out,
                            sn_err *err) SN_MUST_USE;

/* The name with file and commit as they are now: "ORG/NAME:FILE@COMMIT". A program that opens a model more than once
 * pins its name first, so that all are one version, and the hub is asked once. A path or URL stays as it is. */
sn_status sn_hub_pin(const char *name, const sn_hub_settings *settings, char out[SN_URL_SIZE], sn_err *err) SN_MUST_USE;

#endif

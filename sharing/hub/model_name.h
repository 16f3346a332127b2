/* The names by which models are fetched: ORG/NAME[:FILE][@REVISION] of a hub, or an http(s) URL of one file.
 *
 * Any thread may call these functions. SN_REFUSED with a sentence that quotes the name. */
#ifndef SN_SHARING_HUB_MODEL_NAME_H
#define SN_SHARING_HUB_MODEL_NAME_H

#include "base/err.h"

#include <stdbool.h>

enum { SN_HUB_REPO_SIZE = 200, SN_HUB_FILE_SIZE = 256, SN_HUB_REVISION_SIZE = 128, SN_URL_SIZE = 4096 };

typedef struct sn_model_name {
    char repo[SN_HUB_REPO_SIZE];         /* "ORG/NAME"; "" for a URL */
    char file[SN_HUB_FILE_SIZE];         /* path inside the repository; "": not said */
    char revision[SN_HUB_REVISION_SIZE]; /* branch, tag or commit; "main" unless said */
    char url[SN_URL_SIZE];               /* "" for a repository */
} sn_model_name;

/* Whether `text` names a model to fetch rather than a path: a URL, or ORG/NAME where no file of this path exists. */
bool sn_model_name_is_remote(const char *text);
sn_status sn_model_name_parse(const char *text, sn_model_name *out, sn_err *err) SN_MUST_USE;
/* Whether a path from a hub stays inside the folder that it is joined to: no empty part, no "." or "..", plain
 * characters. */
bool sn_hub_path_is_safe(const char *path);

#endif

/* swarm.json: the weights that an adapter was trained for. */
#include "model/peft/peft.h"

#include "base/text.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

static sn_status path_join(char out[PATH_SIZE], const char *folder, const char *name, sn_err *err) {
    return snprintf(out, PATH_SIZE, "%s/%s", folder, name) < PATH_SIZE
               ? SN_OK
               : sn_fail(err, SN_REFUSED, "the path of an adapter is too long");
}

sn_status sn_peft_write_base(const char *folder, const sn_hash *weights, const char *model_name, sn_err *err) {
    char path[PATH_SIZE], unfinished[PATH_SIZE], hex[65];
    sn_status status = path_join(path, folder, "swarm.json", err);
    if (!status) status = path_join(unfinished, folder, "swarm.json.part", err);
    if (status) return status;
    json_t *mark = json_pack("{ss ss}", "weights", sn_hex(weights->bytes, SN_HASH_SIZE, hex), "model", model_name);
    if (!mark || json_dump_file(mark, unfinished, JSON_INDENT(2) | JSON_PRESERVE_ORDER) || rename(unfinished, path))
        status = sn_fail(err, SN_REFUSED, "%s cannot be written: check the free space and the permissions", path);
    json_decref(mark);
    return status;
}

sn_status sn_peft_check_base(const char *folder, const sn_hash *weights, const char *model_name, bool *has_base,
                             char base_name[SN_PEFT_NAME_SIZE], sn_err *err) {
    char path[PATH_SIZE], hex[65];
    json_error_t error;
    sn_status status = path_join(path, folder, "swarm.json", err);
    *has_base = !status && !access(path, F_OK);
    if (!status && !*has_base) {
        status = path_join(path, folder, "adapter_config.json", err);
        json_t *config =
            status ? NULL : json_load_file(path, 0, NULL); /* errors are reported when the adapter is loaded */
        const char *name = json_string_value(json_object_get(config, "base_model_name_or_path"));
        snprintf(base_name, SN_PEFT_NAME_SIZE, "%s", name ? name : "");
        json_decref(config);
    }
    if (status || !*has_base) return status;
    json_t *mark = json_load_file(path, 0, &error);
    const char *of = json_string_value(json_object_get(mark, "weights")),
               *model = json_string_value(json_object_get(mark, "model"));
    if (!of)
        status = sn_fail(err, SN_REFUSED, "%s does not name weights: remove it, or save the adapter again", path);
    else if (strcmp(of, sn_hex(weights->bytes, SN_HASH_SIZE, hex)))
        status = sn_fail(
            err, SN_REFUSED,
            "%s was trained for other weights (%.80s) than these (%.80s): use the model that it was trained for",
            folder, model ? model : "of no name", model_name);
    json_decref(mark);
    return status;
}

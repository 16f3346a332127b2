/* swarm models: what was fetched and lies in the cache; verifying it, and removing it. */
#include "base/parse.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "sharing/hub/cached.h"
#include "sharing/hub/environment.h"
#include "sharing/hub/manifest.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const sn_option options_table[] = {
    SN_OPT_STRING("cache", "FOLDER", &sn_program_settings.common.cache,
                  "folder of fetched models (default: SWARM_CACHE, or swarm-node in the user's folder for caches)"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print one JSON object"),
};
static const sn_option_group output_group = SN_OPTION_GROUP("Output:", options_table);

/* What is done with each model whose name begins with `name`. */
typedef struct work {
    const char *name; /* "": all */
    bool verify, remove;
    json_t *list;
    size_t n;
} work;

/* Compares the files with the manifest of this name in the model's folder. *here, *missing are added to. */
static sn_status verify_by(const sn_cached_model *model, const char *name, uint64_t *here, uint64_t *missing,
                           sn_err *err) {
    char path[SN_PATH_SIZE];
    sn_buf text = {0};
    sn_manifest m = {0};
    uint64_t right = 0, lacking = 0;
    bool folder = !strcmp(name, SN_MANIFEST_NAME);
    sn_status status = sn_path_join(path, model->path, name, err);
    if (!status) status = sn_read_file(path, SN_MANIFEST_MAX, &text, err);
    if (!status) status = sn_manifest_parse((const char *)text.data, text.len, &m, err);
    if (!status && folder && m.n_files == 1) status = sn_path_join(path, model->path, m.files[0].name, err);
    if (!folder) path[strlen(path) - strlen(SN_MANIFEST_ENDING)] = 0;
    if (!status) status = sn_manifest_check(&m, folder && m.n_files > 1 ? model->path : path, &right, &lacking, err);
    *here += right;
    *missing += lacking;
    sn_manifest_fini(&m);
    sn_buf_fini(&text);
    return status;
}

static sn_status verify_model(const sn_cached_model *model, char *out, size_t size, sn_err *err) {
    char here_text[32], missing_text[32];
    uint64_t here = 0, missing = 0;
    size_t n = 0, ending = strlen(SN_MANIFEST_ENDING);
    DIR *listed = opendir(model->path);
    sn_status status = SN_OK;
    for (const struct dirent *entry; listed && !status && (entry = readdir(listed));) {
        size_t len = strlen(entry->d_name);
        if (len <= ending || strcmp(entry->d_name + len - ending, SN_MANIFEST_ENDING)) continue;
        n++;
        status = verify_by(model, entry->d_name, &here, &missing, err);
    }
    if (listed) closedir(listed);
    if (!n) snprintf(out, size, "has no manifest to compare with");
    if (n && !status)
        snprintf(out, size, "%s right, %s not here", sn_format_size(here, here_text),
                 sn_format_size(missing, missing_text));
    return status;
}

static sn_status work_on(void *ctx, const sn_cached_model *model, sn_err *err) {
    work *w = ctx;
    char size[32], linked[32], said[SN_PATH_SIZE] = "";
    sn_status status = SN_OK;
    if (strncmp(model->name, w->name, strlen(w->name))) return SN_OK;
    w->n++;
    if (w->verify) status = verify_model(model, said, sizeof said, err);
    if (w->remove) status = sn_cached_model_remove(model, err);
    if (w->remove) snprintf(said, sizeof said, "removed");
    if (status) return status;
    if (sn_cli_output.json)
        json_array_append_new(w->list, json_pack("{ss sI sI ss ss}", "name", model->name, "bytes",
                                                 (json_int_t)model->bytes, "linked_bytes",
                                                 (json_int_t)model->linked_bytes, "path", model->path, "text", said));
    else
        printf("%10s %10s  %s%s%s\n", sn_format_size(model->bytes, size), sn_format_size(model->linked_bytes, linked),
               model->name, *said ? "  " : "", said);
    return SN_OK;
}

/* Models that lie in the folder as files, as scripts/quickstart.sh fetches one. They are listed; who put them there
 * removes them. */
static void list_files(const char *cache, work *w) {
    static const char ending[] = ".gguf";
    char path[SN_PATH_SIZE], size[32];
    struct stat st;
    DIR *listed = opendir(cache);
    for (const struct dirent *entry; listed && (entry = readdir(listed));) {
        size_t len = strlen(entry->d_name), n = sizeof ending - 1;
        if (len <= n || strcmp(entry->d_name + len - n, ending) || sn_path_join(path, cache, entry->d_name, NULL) ||
            stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        w->n++;
        if (sn_cli_output.json)
            json_array_append_new(w->list,
                                  json_pack("{ss sI sI ss ss}", "name", entry->d_name, "bytes", (json_int_t)st.st_size,
                                            "linked_bytes", (json_int_t)0, "path", path, "text", "a file"));
        else
            printf("%10s %10s  %s  a file: --model %s\n", sn_format_size((size_t)st.st_size, size), "0 B",
                   entry->d_name, path);
    }
    if (listed) closedir(listed);
}

static sn_status models_main(const sn_options *options, int *code, sn_err *err) {
    (void)code;
    const sn_strings *given = &options->positionals;
    const char *action = given->n ? given->items[0] : "list";
    sn_hub_settings hub;
    work w = {.name = given->n > 1 ? given->items[1] : "", .list = json_array()};
    w.verify = !strcmp(action, "verify");
    w.remove = !strcmp(action, "remove");
    sn_status status = sn_hub_settings_read(sn_program_settings.common.cache, &hub, err);
    if (!status && !w.verify && !w.remove && strcmp(action, "list"))
        status = sn_fail(err, SN_REFUSED, "'%s' is none of list, verify and remove", action);
    if (!status && w.remove && !*w.name)
        status = sn_fail(err, SN_REFUSED, "name the model to remove, as 'swarm models' lists it");
    if (!status) status = sn_cached_models(hub.cache, work_on, &w, err);
    if (!status && !w.verify && !w.remove && !*w.name) list_files(hub.cache, &w);
    if (!status && !w.n && !*w.name && !sn_cli_output.json) printf("no model was fetched to %s\n", hub.cache);
    if (!status && !w.n && *w.name)
        status = sn_fail(err, SN_REFUSED, "no fetched model has a name that begins with '%s'", w.name);
    if (!status && sn_cli_output.json) return sn_print_json(json_pack("{so}", "models", w.list), err);
    json_decref(w.list);
    return status;
}

static const sn_option_group *const groups[] = {&output_group, &sn_group_log};

const sn_cli_command sn_cmd_models = {
    .command = {.program = "swarm models",
                .summary = "list, verify or remove fetched models",
                .synopsis = "[list | verify [NAME] | remove NAME] [options]",
                .about = "Lists the models that were fetched from hubs and from the swarm, with the bytes that they "
                         "take here, and those of whole files in the cache of Hugging Face's tools; verify compares "
                         "those with a manifest; remove deletes one. NAME: its name, or the "
                         "beginning of it, which may be that of several.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .max_positionals = 2,
                .exit_codes = sn_exit_codes},
    .run = models_main,
};

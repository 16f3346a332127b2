#include "cli/fetch_model.h"

#include "cli/options.h"
#include "model/hub/environment.h"
#include "model/source.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void show_fetched(void *ctx, const sn_hub_progress *progress) {
    char line[SN_HUB_PROGRESS_SIZE];
    (void)ctx;
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s   %s", sn_hub_progress_text(progress, line), progress->done < progress->total ? "" : "\n");
}

/* Whether the command computes embeddings or logits; the others read headers and the tokenizer. */
static bool computes(const char *program) {
    static const char *const readers[] = {"swarm tokenize", "swarm render", "swarm inspect", "swarm route",
                                          "swarm status"};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (!strcmp(program, readers[i])) return false;
    return true;
}

/* Embedding, head and the blocks [first, end). */
static sn_status fetch(const char *name, bool ends, int first, int end, char path[SN_PATH_SIZE], sn_err *err) {
    sn_hub_settings hub;
    sn_model *model = NULL;
    sn_status status = sn_hub_settings_read(sn_program_settings.common.cache, &hub, err);
    hub.progress = show_fetched;
    if (!status) status = sn_hub_open_model(name, &hub, path, &model, err);
    if (!status && ends) status = sn_model_need_ends(model, err);
    for (int block = first; !status && block < end && block < sn_model_hparams(model)->n_blocks; block++)
        status = sn_model_need_block(model, block, err);
    sn_model_close(&model);
    return status;
}

sn_status sn_cli_fetch_model(const char *program, sn_err *err) {
    static char path[SN_PATH_SIZE], draft_path[SN_PATH_SIZE];
    sn_common_settings *o = &sn_program_settings.common;
    const char *draft = sn_program_settings.draft.model;
    sn_status status = SN_OK;
    if (o->model && sn_model_name_is_remote(o->model)) {
        int end = !o->local.given ? 0 : o->local.all ? SN_BLOCKS_MAX : o->local.end;
        status = fetch(o->model, computes(program), o->local.first, end, path, err);
        if (status) return sn_err_context(err, "--model");
        o->model = path;
    }
    if (!draft || !sn_model_name_is_remote(draft)) return SN_OK;
    status = fetch(draft, true, 0, SN_BLOCKS_MAX, draft_path, err);
    if (status) return sn_err_context(err, "--draft-model");
    sn_program_settings.draft.model = draft_path;
    return SN_OK;
}

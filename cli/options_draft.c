/* --draft, --draft-model, --draft-tokens: draft tokens, of generate, chat and bench. */
#include "cli/progress.h"
#include "cli/setup.h"

sn_draft_options sn_cli_draft = {.tokens = SN_DRAFT_TOKENS};

static const sn_word method_words[] = {{"off", SN_CLI_DRAFT_OFF}, {"ngram", SN_CLI_DRAFT_NGRAM}, {NULL, 0}};

static const sn_option draft_options[] = {
    SN_OPT_ENUM("draft", &sn_cli_draft.method, method_words,
                "ngram: draft the tokens that followed the same n-gram earlier in the text, and check several of them "
                "in one forward pass. The text stays the same"),
    SN_OPT_STRING("draft-model", "PATH", &sn_cli_draft.model,
                  "draft with a smaller model of the same vocabulary, computed in this process"),
    SN_OPT_INT("draft-tokens", "N", &sn_cli_draft.tokens, 1, SN_DRAFT_TOKENS_MAX,
               "limit of draft tokens in one forward pass; fewer are drafted while they are not accepted"),
};
const sn_option_group sn_group_draft = SN_OPTION_GROUP("Draft tokens:", draft_options);
const sn_option_group sn_group_bench_draft = SN_OPTION_GROUP(
    "Draft tokens (measured against none, on a text that repeats itself and on one that does not):", draft_options);

sn_status sn_setup_open_draft(sn_setup *setup, const sn_sampling *sampling, int max_context, sn_err *err) {
    const sn_draft_options *o = &sn_cli_draft;
    bool ngram = o->method == SN_CLI_DRAFT_NGRAM;
    if (ngram && o->model) return sn_fail(err, SN_REFUSED, "give --draft ngram or --draft-model, not both");
    if (ngram) setup->draft = sn_draft_make(sn_draft_ngram, NULL, (int)o->tokens);
    if (!o->model) return SN_OK;
    sn_draft_model_options model_options = {o->model,         setup->device, setup->hp,
                                            setup->tokenizer, *sampling,     max_context};
    sn_progress_bar *bar = sn_progress_bar_begin("loading the draft model");
    sn_status status = sn_draft_model_open(&model_options, &setup->draft_model, err);
    sn_progress_bar_end(&bar);
    setup->draft = sn_draft_make(sn_draft_model_propose, setup->draft_model, (int)o->tokens);
    return status;
}

sn_draft *sn_setup_get_draft(sn_setup *setup) { return setup->draft.source ? &setup->draft : NULL; }

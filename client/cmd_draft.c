/* --draft, --draft-model, --draft-tokens: guessing ahead, of generate, chat and bench. */
#include "client/cmd.h"

#include <string.h>

sn_draft_options sn_given_draft = {.tokens = SN_DRAFT_TOKENS};

static const sn_option draft_options[] = {
    SN_OPT_STRING("draft", "ngram", &sn_given_draft.how,
                  "guess what comes next from what followed the same words earlier; one pass through the chain then looks at "
                  "several tokens. The text stays the same"),
    SN_OPT_STRING("draft-model", "PATH", &sn_given_draft.model,
                  "let a smaller model of the same vocabulary guess, which is held here"),
    SN_OPT_INT("draft-tokens", "N", &sn_given_draft.tokens, 1, SN_DRAFT_TOKENS_MAX,
               "guess so many tokens at once at most; as long as guesses are wrong it is fewer"),
};
const sn_option_group sn_group_draft = {"Guessing ahead:", draft_options, sizeof draft_options / sizeof *draft_options};

sn_status sn_draft_given(bool *any, sn_err *err) {
    const sn_draft_options *o = &sn_given_draft;
    *any = o->how || o->model;
    if (o->how && strcmp(o->how, "ngram"))
        return sn_fail(err, SN_REFUSED, "--draft %s: it is ngram; a model is given by --draft-model PATH", o->how);
    if (o->how && o->model) return sn_fail(err, SN_REFUSED, "give --draft ngram or --draft-model, not both");
    return SN_OK;
}

sn_status sn_setup_draft(sn_setup *setup, const sn_sampling *sampling, int max_context, sn_err *err) {
    const sn_draft_options *o = &sn_given_draft;
    bool any;
    sn_status status = sn_draft_given(&any, err);
    if (status || !any) return status;
    if (o->how) {
        setup->draft = sn_draft_of(sn_draft_look_up, NULL, (int)o->tokens);
        return SN_OK;
    }
    sn_draft_wish wish = {o->model, setup->device, setup->hp, setup->tokenizer, *sampling, max_context};
    sn_progress_shown *shown = sn_progress_begin("loading the draft");
    status = sn_draft_model_open(&wish, &setup->draft_model, err);
    sn_progress_end(&shown);
    setup->draft = sn_draft_of(sn_draft_ask, setup->draft_model, (int)o->tokens);
    return status;
}

sn_draft *sn_setup_drafts(sn_setup *setup) { return setup->draft.source ? &setup->draft : NULL; }

/* Draft tokens, as the settings say. */
#include "client/api/setup.h"

sn_status sn_setup_open_draft(sn_setup *setup, const sn_sampling *sampling, int max_context, sn_err *err) {
    const sn_draft_settings *o = &setup->settings->draft;
    bool ngram = o->method == SN_DRAFT_NGRAM;
    if (ngram && o->model) return sn_fail(err, SN_REFUSED, "give --draft ngram or --draft-model, not both");
    if (ngram) setup->draft = sn_draft_make(sn_draft_ngram, NULL, (int)o->tokens);
    if (!o->model) return SN_OK;
    sn_status status = sn_setup_need_device(setup, err);
    if (status) return status;
    const sn_draft_model_options model_options = {.path = o->model,
                                                  .device = setup->device,
                                                  .hp = setup->hp,
                                                  .tokenizer = setup->tokenizer,
                                                  .sampling = *sampling,
                                                  .max_context = max_context,
                                                  .kv_dtype = (sn_kv_dtype)setup->settings->common.kv_dtype};
    sn_setup_phase(setup, "loading the draft model");
    status = sn_draft_model_open(&model_options, &setup->draft_model, err);
    sn_setup_phase(setup, NULL);
    setup->draft = sn_draft_make(sn_draft_model_propose, setup->draft_model, (int)o->tokens);
    return status;
}

sn_draft *sn_setup_get_draft(sn_setup *setup) { return setup->draft.source ? &setup->draft : NULL; }

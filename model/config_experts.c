#include "model/config_private.h"

sn_status sn_config_read_experts(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const sn_moe_config *m = family->moe;
    const json_t *dense = sn_config_field(config, "mlp_only_layers");
    bool slides = false, shares = !m || !m->softmax_over_all;
    int step = 1;
    if (!m) return SN_OK;
    h->n_experts = m->n_experts;
    h->n_experts_used = m->n_experts_used;
    h->n_ff = m->n_ff;
    sn_status status = sn_config_int(config, "num_experts", false, &h->n_experts, err); /* two spellings */
    if (!status) status = sn_config_int(config, "num_local_experts", false, &h->n_experts, err);
    if (!status) status = sn_config_int(config, "num_experts_per_tok", false, &h->n_experts_used, err);
    if (!status) status = sn_config_int(config, m->width, false, &h->n_ff, err);
    if (!status && m->softmax_over_all) status = sn_config_bool(config, "norm_topk_prob", &shares, err);
    if (!status) status = sn_config_int(config, "decoder_sparse_step", false, &step, err);
    if (!status) status = sn_config_bool(config, "use_sliding_window", &slides, err);
    if (status) return status;
    h->experts_over_all = !shares;
    if (h->n_experts < 1) return sn_fail(err, SN_REFUSED, "the model claims %d experts", h->n_experts);
    if (step != 1 || (dense && (!json_is_array(dense) || json_array_size(dense))))
        return sn_fail(err, SN_REFUSED,
                       "'decoder_sparse_step' or 'mlp_only_layers' mixes blocks with and without experts, which is not "
                       "supported");
    if (slides && family->window == SN_WINDOW_NONE)
        return sn_fail(err, SN_REFUSED, "'use_sliding_window' is set, which is not supported for this family");
    return SN_OK;
}

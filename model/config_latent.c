/* Latent attention (DeepSeek-AI 2024): what config.json says about it, and what follows from it in both containers. */
#include "model/config_private.h"

#include <math.h>
#include <string.h>

sn_status sn_config_finish_latent(sn_hparams *h, int rope_dim, const sn_rope_scaling *s, sn_err *err) {
    enum { DIM_MAX = 1024 };
    const struct {
        const char *what;
        int value, low, high;
    } ranges[] = {{"width of the latent", h->latent, 1, DIM_MAX},
                  {"number of rotated dimensions", rope_dim, 2, DIM_MAX / 2},
                  {"width of a head's keys without rope", h->nope_dim, 1, DIM_MAX},
                  {"width of a head's values", h->value_dim, 1, DIM_MAX},
                  {"rank of the queries", h->q_rank, 0, 1 << 17}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return sn_fail(err, SN_REFUSED, "the model's %s is %d; it must lie from %d to %d", ranges[i].what,
                           ranges[i].value, ranges[i].low, ranges[i].high);
    if ((h->latent + rope_dim) % 2 || h->latent + rope_dim > DIM_MAX)
        return sn_fail(err, SN_REFUSED,
                       "a latent of %d with %d rotated dimensions is not taken: together they must be "
                       "even, and at most %d",
                       h->latent, rope_dim, DIM_MAX);
    h->n_kv_heads = 1;
    h->head_dim = h->latent + rope_dim;
    h->rope_dim = rope_dim;
    h->latent_eps = 1e-6f; /* the reference's, whatever rms_norm_eps is */
    /* yarn lengthens q and k by g(mscale_all_dim) each: the rope's factor leaves that out, so that it applies to the
     * whole score, not to the rotated part alone */
    double growth = s->kind == SN_ROPE_SCALING_YARN ? sn_yarn_growth(s, s->mscale_all_dim) : 1;
    h->attn_scale = (float)(growth * growth / sqrt((double)(h->nope_dim + rope_dim)));
    return SN_OK;
}

sn_status sn_config_read_latent(const json_t *config, const sn_family *family, const sn_rope_scaling *scaling,
                                sn_hparams *h, sn_err *err) {
    int rope_dim = 0, every = 1;
    bool bias = false, neighbours = true;
    if (!family->latent) return SN_OK;
    sn_status status = sn_config_int(config, "kv_lora_rank", true, &h->latent, err);
    if (!status) status = sn_config_int(config, "q_lora_rank", false, &h->q_rank, err);
    if (!status) status = sn_config_int(config, "qk_nope_head_dim", true, &h->nope_dim, err);
    if (!status) status = sn_config_int(config, "qk_rope_head_dim", true, &rope_dim, err);
    if (!status) status = sn_config_int(config, "v_head_dim", true, &h->value_dim, err);
    int head_dim = rope_dim; /* how transformers calls the rotated part when it saves a configuration */
    if (!status) status = sn_config_int(config, "head_dim", false, &head_dim, err);
    if (!status && head_dim != rope_dim)
        return sn_fail(err, SN_REFUSED, "'head_dim' is %d and 'qk_rope_head_dim' %d: they must be equal", head_dim,
                       rope_dim);
    if (!status && scaling->kind != SN_ROPE_SCALING_NONE && scaling->kind != SN_ROPE_SCALING_YARN)
        return sn_fail(err, SN_REFUSED, "of kinds of rope scaling this family knows yarn alone");
    if (!status) status = sn_config_bool(config, "attention_bias", &bias, err);
    if (!status && family->moe->scoring == SN_ROUTER_SIGMOID) /* V2 does not read it */
        status = sn_config_bool(config, "rope_interleave", &neighbours, err);
    if (!status) status = sn_config_int(config, "moe_layer_freq", false, &every, err);
    if (!status && (bias || every != 1))
        return sn_fail(err, SN_REFUSED, "'%s' is set, which is not supported for this family",
                       bias ? "attention_bias" : "moe_layer_freq");
    h->rope_style = neighbours ? SN_ROPE_INTERLEAVED : SN_ROPE_NEOX;
    return status ? status : sn_config_finish_latent(h, rope_dim, scaling, err);
}

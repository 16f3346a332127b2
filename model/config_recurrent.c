#include "model/config_private.h"

#include <string.h>

/* layer_types, or every n-th block has attention. */
static sn_status read_kinds(const json_t *config, sn_hparams *h, sn_err *err) {
    const json_t *list = sn_config_field(config, "layer_types");
    int every = 4;
    sn_status status = sn_config_int(config, "full_attention_interval", false, &every, err);
    if (!status && every < 1) return sn_fail(err, SN_REFUSED, "'full_attention_interval' is %d", every);
    if (!status && list && (!json_is_array(list) || json_array_size(list) != (size_t)h->n_blocks))
        return sn_fail(err, SN_REFUSED, "'layer_types' must list the kinds of all %d blocks", h->n_blocks);
    for (int i = 0; i < h->n_blocks && !status; i++) {
        const char *kind = list ? json_string_value(json_array_get(list, (size_t)i)) : NULL;
        h->recurrent[i] = list ? kind && !strcmp(kind, "linear_attention") : (i + 1) % every != 0;
        if (list && !h->recurrent[i] && (!kind || strcmp(kind, "full_attention")))
            return sn_fail(err, SN_REFUSED,
                           "'layer_types' holds '%.64s'; full_attention and linear_attention are known here",
                           kind ? kind : "no text");
    }
    return status;
}

sn_status sn_config_read_recurrent(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const struct {
        const char *field;
        int *value, usual;
    } fields[] = {{"linear_conv_kernel_dim", &h->conv_taps, 4},
                  {"linear_num_key_heads", &h->delta_key_heads, 16},
                  {"linear_num_value_heads", &h->delta_value_heads, 32},
                  {"linear_key_head_dim", &h->delta_key_dim, 128},
                  {"linear_value_head_dim", &h->delta_value_dim, 128}};
    if (!family->recurrent) return SN_OK;
    bool gate = true;
    sn_status status = sn_config_bool(config, "attn_output_gate", &gate, err);
    if (!status && !gate)
        return sn_fail(err, SN_REFUSED, "'attn_output_gate' is false, which is not supported for this family");
    if (!status) status = read_kinds(config, h, err);
    for (size_t i = 0; i < sizeof fields / sizeof *fields && !status; i++) {
        *fields[i].value = fields[i].usual;
        status = sn_config_int(config, fields[i].field, false, fields[i].value, err);
    }
    h->delta_log_rates = true;
    return status;
}

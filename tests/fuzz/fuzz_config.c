/* Any bytes as a config.json: refused with an error, or hyperparameters that a program can compute with. */
#include "model/config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_hparams h;
    const sn_family *family;
    sn_err err = {0};
    if (sn_config_from_json((const char *)data, size, &h, &family, &err)) {
        if (!err.text[0]) abort(); /* every refusal has a message */
        return 0;
    }
    if (h.n_heads < 1 || h.n_kv_heads < 1 || h.n_heads % h.n_kv_heads || h.n_embd < 1 || h.n_blocks < 1) abort();
    if (h.alibi ? h.rope_dim != 0 : h.rope_dim < 2 || h.rope_dim > h.head_dim || h.rope_dim / 2 > SN_ROPE_FREQS_MAX)
        abort();
    for (int i = 0; i < h.rope_dim / 2; i++)
        if (!(sn_rope_freqs(&h, h.n_ropes - 1)[i] >= 0 && h.rope_freq[i] >= 0 && h.rope_freq[i] <= 1e6f)) abort();
    return 0;
}

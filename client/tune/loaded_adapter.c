#include "client/tune/loaded_adapter.h"

#include "model/peft/peft.h"

#include <string.h>

enum { IMAGE_MAX = 1 << 30 };

sn_status sn_loaded_adapter_load(const char *folder, const sn_hparams *hp, sn_loaded_adapter *out, sn_err *err) {
    bool lora = false;
    *out = (sn_loaded_adapter){.method = SN_METHOD_LORA};
    sn_buf_init(&out->image, IMAGE_MAX);
    sn_status status = sn_peft_is_lora(folder, &lora, err);
    if (!status && lora) status = sn_peft_lora(folder, hp, &out->image, err);
    if (!status && !lora) status = sn_adapter_folder_load(folder, hp, &out->folder, err);
    if (!status && !lora) {
        out->method = out->folder.params->shape.method;
        status = sn_params_image(out->folder.params, 0, hp->n_blocks, &out->image, err);
    }
    if (!status) status = sn_base_weights_load(folder, &out->base, err);
    if (status) sn_loaded_adapter_fini(out);
    return status;
}

sn_status sn_loaded_adapter_of(const sn_params *params, const sn_hparams *hp, bool with_prompt, sn_base_weights *base,
                               sn_loaded_adapter *out, sn_err *err) {
    sn_params **own = &out->folder.params;
    *out = (sn_loaded_adapter){.method = params->shape.method, .base = *base};
    *base = (sn_base_weights){0};
    sn_buf_init(&out->image, IMAGE_MAX);
    sn_status status = sn_params_image(params, params->first, params->end, &out->image, err);
    if (!status && with_prompt) status = sn_params_new(hp, &params->shape, own, err);
    if (!status && with_prompt) memcpy((*own)->values, params->values, params->n_floats * sizeof *params->values);
    if (status) sn_loaded_adapter_fini(out);
    return status;
}

void sn_loaded_adapter_fini(sn_loaded_adapter *loaded) {
    sn_buf_fini(&loaded->image);
    sn_base_weights_fini(&loaded->base);
    sn_adapter_folder_fini(&loaded->folder);
    *loaded = (sn_loaded_adapter){0};
}

sn_chain_adapter sn_loaded_adapter_for_chain(const sn_loaded_adapter *loaded) {
    sn_chain_adapter chain_adapter = {.image = loaded->image.data, .bytes = loaded->image.len, .base = &loaded->base};
    if (chain_adapter.bytes) chain_adapter.hash = sn_hash_of(chain_adapter.image, chain_adapter.bytes);
    if (loaded->folder.params) chain_adapter.n_prompt = sn_params_prompt(loaded->folder.params, &chain_adapter.prompt);
    return chain_adapter;
}

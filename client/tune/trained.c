#include "client/tune/trained.h"

#include "model/peft.h"

#include <string.h>

enum { IMAGE_MAX = 1 << 30 };

sn_status sn_trained_load(const char *folder, const sn_hparams *hp, sn_trained *out, sn_err *err) {
    bool lora = false;
    *out = (sn_trained){.method = SN_METHOD_LORA};
    sn_buf_init(&out->image, IMAGE_MAX);
    sn_status status = sn_peft_is_lora(folder, &lora, err);
    if (!status && lora) status = sn_peft_lora(folder, hp, &out->image, err);
    if (!status && !lora) status = sn_adapter_load(folder, hp, &out->adapter, err);
    if (!status && !lora) {
        out->method = out->adapter.params->shape.method;
        status = sn_params_image(out->adapter.params, 0, hp->n_blocks, &out->image, err);
    }
    if (status) sn_trained_fini(out);
    return status;
}

void sn_trained_fini(sn_trained *trained) {
    sn_buf_fini(&trained->image);
    sn_adapter_fini(&trained->adapter);
    *trained = (sn_trained){0};
}

sn_chain_tuned sn_trained_for_chain(const sn_trained *trained) {
    sn_chain_tuned tuned = {.image = trained->image.data, .bytes = trained->image.len};
    if (tuned.bytes) tuned.hash = sn_hash_of(tuned.image, tuned.bytes);
    if (trained->adapter.params) tuned.n_prompt = sn_params_prompt(trained->adapter.params, &tuned.prompt);
    return tuned;
}

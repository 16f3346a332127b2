#include "tests/support/desk.h"

#include "tests/support/need.h"
#include "tests/support/tokenizers.h"

desk desk_begin(size_t kv_memory, int context) {
    desk d = {.w = world_new(&(cluster_options){.kv_memory = kv_memory}), .context = context};
    sn_device_options how = {.threads = 1};
    NEED(sn_model_open(d.w->path, &d.model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &d.device, &err));
    NEED(sn_head_load(d.model, d.device, &d.head, &err));
    d.tokenizer = open_fixture("qwen2");
    return d;
}

void desk_end(desk *d) {
    sn_tokenizer_close(&d->tokenizer);
    sn_head_free(&d->head);
    sn_device_close(&d->device);
    sn_model_close(&d->model);
    world_free(&d->w);
}

sn_chain *desk_chain(const desk *d) {
    sn_chain_options options = {.device = d->device, .local_end = d->w->n_blocks, .max_tokens = d->context};
    sn_chain *chain = NULL;
    NEED(sn_chain_open(d->model, &options, &chain, &err));
    return chain;
}

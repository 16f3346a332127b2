#include "tests/support/generator_fixture.h"

#include "tests/support/require.h"
#include "tests/support/tokenizers.h"

generator_fixture generator_fixture_begin(size_t kv_memory, int context) {
    return generator_fixture_begin_with(NULL, kv_memory, context);
}

generator_fixture generator_fixture_begin_with(const char *model, size_t kv_memory, int context) {
    generator_fixture d = {.w = testbed_new(&(cluster_options){.model = model, .kv_memory = kv_memory}),
                           .context = context};
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_model_open(d.w->path, &d.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &d.device, &err));
    REQUIRE(sn_lm_head_load(d.model, d.device, &d.head, &err));
    d.tokenizer = open_fixture("qwen2");
    return d;
}

void generator_fixture_end(generator_fixture *d) {
    sn_tokenizer_close(&d->tokenizer);
    sn_lm_head_free(&d->head);
    sn_device_close(&d->device);
    sn_model_close(&d->model);
    testbed_free(&d->w);
}

sn_chain *generator_fixture_local_chain(const generator_fixture *d) {
    sn_chain_options options = {.max_tokens = d->context, .local = {.device = d->device, .end = d->w->n_blocks}};
    sn_chain *chain = NULL;
    REQUIRE(sn_chain_open(d->model, &options, &chain, &err));
    return chain;
}

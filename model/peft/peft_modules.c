#include "model/peft/peft_modules.h"

#include "model/tensor_view.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const sn_role adapted[] = {SN_ROLE_ATTN_Q,   SN_ROLE_ATTN_K, SN_ROLE_ATTN_V,  SN_ROLE_ATTN_O,
                                  SN_ROLE_FFN_GATE, SN_ROLE_FFN_UP, SN_ROLE_FFN_DOWN};
enum { N_ADAPTED = sizeof adapted / sizeof *adapted };

static const sn_family *family_of(const sn_hparams *hp) {
    const sn_family *family = NULL;
    sn_status status = sn_family_find(SN_CONTAINER_SAFETENSORS, hp->family, &family, &(sn_err){0});
    assert(!status);
    (void)status;
    return family;
}

bool sn_peft_norms_embeddings(const sn_hparams *hp) {
    return family_of(hp)->naming[SN_CONTAINER_SAFETENSORS]->names[SN_ROLE_EMBED_NORM];
}

int sn_peft_modules(const sn_hparams *hp, sn_peft_module out[SN_PEFT_MODULES_MAX]) {
    const sn_family *family = family_of(hp);
    const sn_tensor_naming *naming = family->naming[SN_CONTAINER_SAFETENSORS];
    int n = 0;
    /* no adapters: the rows of sn_peft_row would be other ones, or those of some blocks */
    if (hp->latent || naming->q_gated || hp->full_heads.n) return 0;
    for (int i = 0; i < N_ADAPTED; i++) {
        sn_role role = adapted[i];
        bool feed_forward = role == SN_ROLE_FFN_GATE || role == SN_ROLE_FFN_UP || role == SN_ROLE_FFN_DOWN;
        if (!sn_family_has_role(family, hp, role, 0) || (hp->n_experts && feed_forward)) continue;
        size_t outputs, len = strlen(naming->names[role]) - strlen(".weight");
        sn_peft_module *module = n ? &out[n - 1] : NULL; /* roles of one module are neighbours in `adapted` */
        if (!module || strncmp(module->name, naming->names[role], len) || module->name[len]) {
            module = &out[n++];
            *module = (sn_peft_module){0};
            snprintf(module->name, sizeof module->name, "%.*s", (int)len, naming->names[role]);
        }
        module->role[module->n_roles++] = role;
        sn_role_shape(hp, role, 0, &outputs, &module->inputs);
        module->outputs += outputs;
    }
    return n;
}

const char *sn_peft_module_end(const sn_peft_module *module) { return strrchr(module->name, '.') + 1; }

void sn_peft_module_name(const sn_hparams *hp, const sn_peft_module *module, int block, bool bare,
                         char out[SN_PEFT_NAME_MAX]) {
    const char *prefix =
        family_of(hp)->naming[SN_CONTAINER_SAFETENSORS]->block_prefix; /* "model.layers.", "transformer.h." */
    snprintf(out, SN_PEFT_NAME_MAX, "base_model.model.%s%d.%s", bare ? strchr(prefix, '.') + 1 : prefix, block,
             module->name);
}

/* GGUF files of the llama architecture have the rows of each head of Q and K in another order: rows (2i, 2i + 1) are
 * rows (i, i + half) of Hugging Face files. */
static size_t unpermuted_row(const sn_hparams *hp, sn_role role, size_t row) {
    size_t dim = (size_t)hp->head_dim, at = row % dim;
    bool permuted = hp->rope_style == SN_ROPE_INTERLEAVED && !family_of(hp)->neighbours &&
                    (role == SN_ROLE_ATTN_Q || role == SN_ROLE_ATTN_K);
    return permuted ? row - at + at % 2 * (dim / 2) + at / 2 : row;
}

size_t sn_peft_row(const sn_hparams *hp, sn_role role, size_t row) {
    size_t own, inputs;
    sn_role_shape(hp, role, 0, &own, &inputs);
    const sn_tensor_view v = sn_tensor_view_of(family_of(hp)->naming[SN_CONTAINER_SAFETENSORS], hp, role, own);
    row = unpermuted_row(hp, role, row);
    return v.first + row / v.group_rows * v.group_stride + row % v.group_rows;
}

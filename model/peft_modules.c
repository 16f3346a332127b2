#include "model/peft_modules.h"

#include "model/view.h"

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

void sn_peft_shape(const sn_hparams *hp, sn_role role, size_t *outputs, size_t *inputs) {
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff, dim = (size_t)hp->head_dim;
    size_t q = (size_t)hp->n_heads * dim, kv = (size_t)hp->n_kv_heads * dim;
    bool of_kv = role == SN_ROLE_ATTN_K || role == SN_ROLE_ATTN_V, o = role == SN_ROLE_ATTN_O, down = role == SN_ROLE_FFN_DOWN;
    *outputs = o || down ? embd : role == SN_ROLE_ATTN_Q ? q : of_kv ? kv : ff;
    *inputs = o ? q : down ? ff : embd;
}

bool sn_peft_norms_embeddings(const sn_hparams *hp) {
    return family_of(hp)->naming[SN_CONTAINER_SAFETENSORS]->of[SN_ROLE_EMBED_NORM];
}

int sn_peft_modules(const sn_hparams *hp, sn_peft_module out[SN_PEFT_MODULES_MAX]) {
    const sn_family *family = family_of(hp);
    const sn_naming *naming = family->naming[SN_CONTAINER_SAFETENSORS];
    int n = 0;
    for (int i = 0; i < N_ADAPTED; i++) {
        sn_role role = adapted[i];
        if (!sn_family_has_role(family, hp, role)) continue;
        size_t outputs, len = strlen(naming->of[role]) - strlen(".weight");
        sn_peft_module *module = n ? &out[n - 1] : NULL; /* roles in one matrix follow each other */
        if (!module || strncmp(module->name, naming->of[role], len) || module->name[len]) {
            module = &out[n++];
            *module = (sn_peft_module){0};
            snprintf(module->name, sizeof module->name, "%.*s", (int)len, naming->of[role]);
        }
        module->role[module->n_roles++] = role;
        sn_peft_shape(hp, role, &outputs, &module->inputs);
        module->outputs += outputs;
    }
    return n;
}

const char *sn_peft_module_end(const sn_peft_module *module) { return strrchr(module->name, '.') + 1; }

void sn_peft_module_name(const sn_hparams *hp, const sn_peft_module *module, int block, bool bare, char out[SN_PEFT_NAME_MAX]) {
    const char *prefix = family_of(hp)->naming[SN_CONTAINER_SAFETENSORS]->block_prefix; /* "model.layers.", "transformer.h." */
    snprintf(out, SN_PEFT_NAME_MAX, "base_model.model.%s%d.%s", bare ? strchr(prefix, '.') + 1 : prefix, block, module->name);
}

/* GGUF files of the llama architecture hold Q and K with the rows of each head in another order, (2i, 2i + 1) for (i, i + half). */
static size_t untwisted(const sn_hparams *hp, sn_role role, size_t row) {
    size_t dim = (size_t)hp->head_dim, at = row % dim;
    bool twisted = hp->rope_style == SN_ROPE_PAIRS && (role == SN_ROLE_ATTN_Q || role == SN_ROLE_ATTN_K);
    return twisted ? row - at + at % 2 * (dim / 2) + at / 2 : row;
}

size_t sn_peft_row(const sn_hparams *hp, sn_role role, size_t row) {
    size_t own, inputs;
    sn_peft_shape(hp, role, &own, &inputs);
    const sn_view v = sn_view_of(family_of(hp)->naming[SN_CONTAINER_SAFETENSORS], hp, role, own);
    row = untwisted(hp, role, row);
    return v.first + row / v.group_rows * v.group_stride + row % v.group_rows;
}

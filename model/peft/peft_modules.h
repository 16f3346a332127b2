/* The modules of PEFT: names of a model's matrices, as in the Hugging Face files of the family, whatever file this
 * model was read from. A module may hold several roles (query_key_value, gate_up_proj), whose rows lie in it as
 * family.h says. Private to model/peft/. */
#ifndef SN_MODEL_PEFT_PEFT_MODULES_H
#define SN_MODEL_PEFT_PEFT_MODULES_H

#include "model/model.h"

enum { SN_PEFT_MODULES_MAX = 7, SN_PEFT_ROLES_MAX = 3, SN_PEFT_NAME_MAX = 160 };

typedef struct sn_peft_module {
    char name[64]; /* "self_attn.q_proj" */
    sn_role role[SN_PEFT_ROLES_MAX];
    int n_roles;
    size_t outputs, inputs;
} sn_peft_module;

/* The modules of a block that can have adapters; returns their number, 0 where a family takes none (latent attention,
 * gated attention). */
int sn_peft_modules(const sn_hparams *hp, sn_peft_module out[SN_PEFT_MODULES_MAX]);

const char *sn_peft_module_end(const sn_peft_module *module); /* "q_proj": the name in target_modules */
/* "base_model.model.model.layers.3.self_attn.q_proj"; bare: of an adapter trained on the model without its LM head,
 * "base_model.model.layers...". */
void sn_peft_module_name(const sn_hparams *hp, const sn_peft_module *module, int block, bool bare,
                         char out[SN_PEFT_NAME_MAX]);

/* Which row of the module's matrix is row `row` of the role in this model's file. */
size_t sn_peft_row(const sn_hparams *hp, sn_role role, size_t row);

/* Whether the model has a norm after the embedding: PEFT's virtual tokens go through this norm, those of `swarm tune`
 * are inserted after it. */
bool sn_peft_norms_embeddings(const sn_hparams *hp);

#endif

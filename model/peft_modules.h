/* What PEFT calls a model's matrices: as the family's own Hugging Face files do, whatever file this model came from. A module may be
 * several roles in one (query_key_value, gate_up_proj), whose rows lie in it as family.h says. */
#ifndef SN_MODEL_PEFT_MODULES_H
#define SN_MODEL_PEFT_MODULES_H

#include "model/model.h"

enum { SN_PEFT_MODULES_MAX = 7, SN_PEFT_ROLES_MAX = 3, SN_PEFT_NAME_MAX = 160 };

typedef struct sn_peft_module {
    char name[64]; /* "self_attn.q_proj" */
    sn_role role[SN_PEFT_ROLES_MAX];
    int n_roles;
    size_t outputs, inputs;
} sn_peft_module;

/* The modules of a block that can have adapters; returns how many. */
int sn_peft_modules(const sn_hparams *hp, sn_peft_module out[SN_PEFT_MODULES_MAX]);

const char *sn_peft_module_end(const sn_peft_module *module); /* "q_proj": what stands in target_modules */
/* "base_model.model.model.layers.3.self_attn.q_proj"; bare: trained on the model without its head, "base_model.model.layers...". */
void sn_peft_module_name(const sn_hparams *hp, const sn_peft_module *module, int block, bool bare, char out[SN_PEFT_NAME_MAX]);

/* Outputs and inputs of a role's matrix. */
void sn_peft_shape(const sn_hparams *hp, sn_role role, size_t *outputs, size_t *inputs);

/* The row of its module's matrix that is row `row` of the role's as this model holds it. */
size_t sn_peft_row(const sn_hparams *hp, sn_role role, size_t row);

/* Whether the model norms what it embeds: PEFT's virtual tokens go through that norm, those of `swarm tune` stand behind it. */
bool sn_peft_norms_embeddings(const sn_hparams *hp);

#endif

/* Low-rank adapters (LoRA, Hu et al. 2021) as PEFT lays them out (https://github.com/huggingface/peft): a folder with
 * adapter_config.json and adapter_model.safetensors, from `swarm tune` or from transformers. */
#ifndef SN_MODEL_PEFT_H
#define SN_MODEL_PEFT_H

#include "base/mem.h"
#include "model/model.h"

/* What kind of adapter the folder holds, by its peft_type. SN_REFUSED: it cannot be read. */
sn_status sn_peft_is_lora(const char *folder, bool *lora, sn_err *err) SN_MUST_USE;

/* The folder's adapters as a tuning's image (blocks/tuning.h), which *image gets: float32, each scaled by alpha / r (or by
 * alpha / sqrt(r): rsLoRA; of its own alpha where alpha_pattern gives it one), rows of Q and K in the order of this model's file. Layers may differ in targets and rank. The
 * same folder and model give the same bytes, on every machine. SN_REFUSED with a sentence that names what this program does not
 * add as PEFT does (DoRA, trained biases, embeddings, ...), or the tensor that does not fit the model. */
sn_status sn_peft_lora(const char *folder, const sn_hparams *hp, sn_buf *image, sn_err *err) SN_MUST_USE;
/* The same of the two files' bytes. */
sn_status sn_peft_lora_parse(const char *config, size_t len, const void *tensors, size_t tensors_len, const sn_hparams *hp,
                             sn_buf *image, sn_err *err) SN_MUST_USE;

/* A file beside the two, swarm.json, says which weights (blocks/weights_id.h) an adapter was trained for; PEFT passes it over. */
sn_status sn_peft_mark(const char *folder, const sn_hash *weights, const char *model_name, sn_err *err) SN_MUST_USE;
/* SN_REFUSED when the adapter says that it was trained for others. One that does not say, as those of PEFT: SN_OK, and *unsaid
 * is the base_model_name_or_path of its configuration, perhaps empty; else *unsaid stays untouched. */
enum { SN_PEFT_NAME_SIZE = 128 };
sn_status sn_peft_check(const char *folder, const sn_hash *weights, const char *model_name, bool *marked,
                        char unsaid[SN_PEFT_NAME_SIZE], sn_err *err) SN_MUST_USE;

#endif

/* Reads low-rank adapters (LoRA, Hu et al. 2021) in the format of PEFT (https://github.com/huggingface/peft): a folder
 * with adapter_config.json and adapter_model.safetensors, written by `swarm tune` or by transformers. Functions without
 * state; any thread may call them. Everything that would not compute exactly what PEFT computes is SN_REFUSED. */
#ifndef SN_MODEL_PEFT_PEFT_H
#define SN_MODEL_PEFT_PEFT_H

#include "base/mem.h"
#include "model/model.h"

/* Whether the folder's adapter is LoRA, by its peft_type. SN_REFUSED: the configuration cannot be read. */
sn_status sn_peft_is_lora(const char *folder, bool *lora, sn_err *err) SN_MUST_USE;

/* Converts the folder's adapter to the image that blocks/adapter.h loads: float32, B scaled by alpha / r (rsLoRA: alpha
 * / sqrt(r); alpha_pattern may give a module its own alpha), rows of Q and K in the order of this model's file. Layers
 * may differ in their targets and ranks. The same folder and model give the same bytes on every machine. SN_REFUSED
 * names what is not supported (DoRA, trained biases, embeddings, ...), or the tensor that does not fit the model. */
sn_status sn_peft_lora(const char *folder, const sn_hparams *hp, sn_buf *image, sn_err *err) SN_MUST_USE;

/* The base_model_name_or_path of the folder's configuration, cut to fit; empty where there is none. */
enum { SN_PEFT_NAME_SIZE = 128 };
void sn_peft_base_name(const char *folder, char out[SN_PEFT_NAME_SIZE]);

#endif

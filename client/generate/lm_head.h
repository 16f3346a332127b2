/* Embedding and LM head: what a client holds of a model besides the blocks. Token embeddings before the first block;
 * final norm and output matrix after the last one.
 *
 * Central type: sn_lm_head, on one device, which no other thread uses. Several threads may call it: they take
 * turns, in their order, and those that wait for sn_lm_head_logits at the same time are computed in one pass over the
 * output matrix, each with a status of its own. All arrays are host memory, row-major. Errors: SN_REFUSED: an id
 * outside the vocabulary, or a tensor of the file cannot be used; SN_STOP: out of memory, or the device failed: a lost
 * device fails every later call at once, with the sentence that names it. */
#ifndef SN_CLIENT_GENERATE_LM_HEAD_H
#define SN_CLIENT_GENERATE_LM_HEAD_H

#include "device/device.h"
#include "model/model.h"

typedef struct sn_lm_head sn_lm_head;

/* Loads the tensors on the device, a tied matrix once; an embedding that is not tied stays in host memory. The model
 * may be closed afterwards; the device is borrowed. SN_STOP, before anything is allocated, when a device with memory of
 * its own has less free than the head takes. */
sn_status sn_lm_head_load(const sn_model *model, sn_device *device, sn_lm_head **out, sn_err *err) SN_MUST_USE;
void sn_lm_head_free(sn_lm_head **head); /* accepts NULL */

/* hidden (n, n_embd): the embeddings of the ids (n). */
sn_status sn_lm_head_embed(sn_lm_head *head, const int32_t *ids, int n, float *hidden, sn_err *err) SN_MUST_USE;
/* logits (n, n_vocab), of hidden (n, n_embd) as it leaves the last block. */
sn_status sn_lm_head_logits(sn_lm_head *head, const float *hidden, int n, float *logits, sn_err *err) SN_MUST_USE;
/* The same, of rows after a norm that takes the place of the final one (blocks/next_block.h). */
sn_status sn_lm_head_logits_of_normed(sn_lm_head *head, const float *normed, int n, float *logits,
                                      sn_err *err) SN_MUST_USE;
/* Around a step at nodes after which the caller wants logits: callers that have their rows wait a moment for it, less
 * than the time of a row. */
void sn_lm_head_expect(sn_lm_head *head);
void sn_lm_head_unexpect(sn_lm_head *head);
/* out (n, n_embd): the hidden states after the final norm; hidden and out may be one array. */
sn_status sn_lm_head_norm(sn_lm_head *head, const float *hidden, int n, float *out, sn_err *err) SN_MUST_USE;
/* Backward pass of sn_lm_head_logits: dhidden (n, n_embd) from dlogits (n, n_vocab), the gradient of the logits. */
sn_status sn_lm_head_logits_grad(sn_lm_head *head, const float *hidden, int n, const float *dlogits, float *dhidden,
                                 sn_err *err) SN_MUST_USE;

#endif

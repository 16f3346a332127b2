/* What a client holds of the model: token embeddings before the first block, final norm and output head behind the
 * last. */
#ifndef SN_CLIENT_HEAD_H
#define SN_CLIENT_HEAD_H

#include "device/device.h"
#include "model/model.h"

typedef struct sn_head sn_head;

/* Loads the client's tensors on the device, a tied matrix once. The model may be closed afterwards. */
sn_status sn_head_load(const sn_model *model, sn_device *device, sn_head **out, sn_err *err) SN_MUST_USE;
void sn_head_free(sn_head **head); /* NULL-safe */

/* hidden (n, n_embd), host: the embeddings of the ids. SN_REFUSED for an id outside the vocabulary. */
sn_status sn_head_embed(sn_head *head, const int32_t *ids, int n, float *hidden, sn_err *err) SN_MUST_USE;
/* logits (n, n_vocab), host, of hidden (n, n_embd), host, as it leaves the last block. */
sn_status sn_head_logits(sn_head *head, const float *hidden, int n, float *logits, sn_err *err) SN_MUST_USE;
/* out (n, n_embd), host: the hidden states, normed as for the logits. */
sn_status sn_head_norm(sn_head *head, const float *hidden, int n, float *out, sn_err *err) SN_MUST_USE;
/* Backwards: dhidden (n, n_embd), host, from the gradient of the logits, dlogits (n, n_vocab), host. */
sn_status sn_head_logits_grad(sn_head *head, const float *hidden, int n, const float *dlogits, float *dhidden,
                              sn_err *err) SN_MUST_USE;

#endif

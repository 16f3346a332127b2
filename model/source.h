/* Models whose files are not whole: their headers are there, and the bytes of tensors are fetched before they are read
 * (sharing/hub fetches them). For other models these functions do nothing.
 *
 * A function that reads tensors of a block calls sn_model_need_block first, on a thread that may wait for a network. */
#ifndef SN_MODEL_SOURCE_H
#define SN_MODEL_SOURCE_H

#include "model/model.h"

typedef struct sn_model_source {
    /* Adds bytes [from, from + bytes) of a file of the model to what the next call of `fetch` brings. */
    sn_status (*want)(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err);
    /* Returns when these bytes are there. `what` is for progress: "block 12". SN_RETRY: not now. */
    sn_status (*fetch)(void *context, const char *what, sn_err *err);
    void (*free)(void *context); /* when the model is closed */
    void *context;
} sn_model_source;

/* Once, before the model is used by other threads. The model frees the source. */
void sn_model_set_source(sn_model *model, const sn_model_source *source);
const sn_model_source *sn_model_get_source(const sn_model *model); /* zeroed: the files are whole */

/* Whether a file of the model says that it has holes (model/partial_file.h). */
bool sn_model_has_holes(const sn_model *model);

/* sn_model_has_block, of what is here now or can be fetched. */
bool sn_model_holds_block(const sn_model *model, int block);

/* SN_REFUSED: the files have holes here, and the model has no source. */
sn_status sn_model_need_block(const sn_model *model, int block, sn_err *err) SN_MUST_USE;
/* Embedding, its norm, the last norm and the LM head. */
sn_status sn_model_need_ends(const sn_model *model, sn_err *err) SN_MUST_USE;

#endif

/* Base weights: all the weights that an adapter was trained for, so that it is used with no others. They are the hashes
 * of the blocks and of what the client computes itself (model.h), and they stand in the file swarm.json of the
 * adapter's folder, which PEFT ignores. Folders of other programs have none; such an adapter fits any model of its
 * shapes. An adapter of some blocks names the weights of these.
 *
 * sn_base_weights owns its hashes. Functions without state; any thread may call them. SN_REFUSED says what is wrong
 * with a file, or which weights differ. */
#ifndef SN_MODEL_BASE_WEIGHTS_H
#define SN_MODEL_BASE_WEIGHTS_H

#include "model/model.h"

typedef struct sn_base_weights {
    char model[SN_MODEL_NAME_SIZE]; /* the model's name, for people */
    char folder[256];               /* from where it was read, for sentences; perhaps cut */
    sn_hash client;                 /* sn_model_client_hash */
    sn_hash *blocks;                /* (n_blocks): sn_model_block_hash of each; all zero: not known */
    int n_blocks;                   /* 0: nothing is known */
} sn_base_weights;

/* The base weights of a model: what its file says about the client's part, and these hashes of all its blocks. */
sn_status sn_base_weights_init(sn_base_weights *out, const sn_model *model, const sn_hash *hashes,
                               sn_err *err) SN_MUST_USE;
/* The same in two steps, for blocks [first, end): their hashes (end - first), without the client's part; and this. */
sn_status sn_base_weights_of_blocks(sn_base_weights *out, const sn_hparams *hp, int first, int end,
                                    const sn_hash *hashes, sn_err *err) SN_MUST_USE;
sn_status sn_base_weights_add_client(sn_base_weights *weights, const sn_model *model, sn_err *err) SN_MUST_USE;
/* The hash of a block; NULL: not known. weights may be NULL. */
const sn_hash *sn_base_weights_block(const sn_base_weights *weights, int block);
void sn_base_weights_fini(sn_base_weights *weights); /* accepts a zeroed struct */

/* Writes swarm.json to the folder. */
sn_status sn_base_weights_save(const sn_base_weights *weights, const char *folder, sn_err *err) SN_MUST_USE;
/* Reads the text of such a file; `path` names it in sentences. Free *out in any case. */
sn_status sn_base_weights_parse(const char *text, size_t len, const char *path, sn_base_weights *out,
                                sn_err *err) SN_MUST_USE;
/* Reads it; n_blocks is 0 when there is none. Free *out in any case. */
sn_status sn_base_weights_load(const char *folder, sn_base_weights *out, sn_err *err) SN_MUST_USE;

/* SN_REFUSED when the client's part of the model, or its number of blocks, differs from known base weights. Reads the
 * embedding and the LM head. */
sn_status sn_base_weights_check_client(const sn_base_weights *weights, const sn_model *model, sn_err *err) SN_MUST_USE;
/* SN_REFUSED with the sentence that this block differs. The caller has compared the hashes, because nodes and clients
 * learn them in different ways. */
sn_status sn_base_weights_block_differs(const sn_base_weights *weights, int block, sn_err *err);

#endif

/* Adapters that a node's owner publishes: each sub-folder of --adapters is one, LoRA as PEFT lays it out (model/peft.h), called by
 * the folder's name. They are loaded with the blocks, and again when the node moves. */
#ifndef SN_NODE_PUBLISHED_H
#define SN_NODE_PUBLISHED_H

#include "blocks/tuning.h"
#include "net/directory.h"

typedef struct sn_published {
    struct sn_published_one {
        char name[SN_ADAPTER_NAME_MAX + 1];
        sn_hash hash;       /* of its image: the same folder has the same at every node of a model */
        sn_tuning *tuning;  /* owned, until the core takes it */
    } at[SN_ADAPTERS_MAX];
    size_t n;
} sn_published;

/* What is broken, trained for other weights (NULL: they are not known, and it is believed), or one too many, is left out with a
 * warning. SN_REFUSED: the folder cannot be read. By the span's thread. */
sn_status sn_published_load(const char *folder, sn_span *span, const sn_hash *weights, sn_published *out,
                            sn_err *err) SN_MUST_USE;
void sn_published_free(sn_published *published); /* harmless when zeroed; before the span */

#endif

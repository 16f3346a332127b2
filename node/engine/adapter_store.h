/* The adapter store: adapters that the owner of a node publishes. Each sub-folder of --adapters is one, LoRA in the
 * layout of PEFT (model/peft/peft.h), named by the folder. They are loaded with the blocks, and again after a
 * rebalance, by the thread that loads; then the protocol takes them over (sn_protocol_publish_adapters). */
#ifndef SN_NODE_ENGINE_ADAPTER_STORE_H
#define SN_NODE_ENGINE_ADAPTER_STORE_H

#include "blocks/adapter.h"
#include "net/directory.h"

typedef struct sn_adapter_store {
    struct sn_stored_adapter {
        char name[SN_ADAPTER_NAME_MAX + 1];
        sn_hash hash;        /* of its image: the same at every node of the model */
        sn_adapter *adapter; /* owned, until the protocol takes it */
    } adapters[SN_ADAPTERS_MAX];
    size_t n;
} sn_adapter_store;

/* An adapter that is broken, was trained for other weights than the span's or exceeds SN_ADAPTERS_MAX is skipped with a
 * warning. SN_REFUSED: the folder cannot be read. By the span's thread. */
sn_status sn_adapter_store_load(const char *folder, sn_span *span, sn_adapter_store *out, sn_err *err) SN_MUST_USE;
void sn_adapter_store_free(sn_adapter_store *store); /* accepts a zeroed one; before the span */

#endif

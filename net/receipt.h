/* A receipt: what a node signs about one step, so that anybody can hold it to its answer later.
 *
 * The timeline hashes commit to the weights and to every row that went in, the output's hash to what came out: on a CPU
 * that is a function of the former, so a receipt and the inputs are proof enough of a lie. Bytes of fixed size, described
 * in docs/PROTOCOL.md; the first of them keep a receipt's signature from being taken for anything else's. */
#ifndef SN_NET_RECEIPT_H
#define SN_NET_RECEIPT_H

#include "net/identity.h"

enum { SN_RECEIPT_SIZE = 384, SN_RECEIPT_VERSION_SIZE = 20 };

typedef enum sn_receipt_device {
    SN_RECEIPT_EXACT, /* a CPU computed every block: the promise of equal bits holds */
    SN_RECEIPT_CLOSE, /* another device took part: results are close only */
} sn_receipt_device;

typedef struct sn_receipt {
    uint8_t node[SN_KEY_SIZE]; /* who signs */
    uint8_t session[SN_SESSION_ID_SIZE];
    uint8_t model[SN_HASH_SIZE];
    sn_hash weights;                         /* of the block hashes, as in the timeline */
    sn_hash timeline_before, timeline_after; /* at position, and position + n */
    sn_hash input, output;                   /* SHA-256 of the tensors' bytes as they came and went */
    uint64_t step, position, unix_ms;
    uint32_t first_block, end_block, n, n_embd;
    uint8_t input_dtype, output_dtype; /* on the wire, as in a step's reply_dtype */
    uint8_t kv_dtype;                  /* of the cache, the same numbers */
    uint8_t device;                    /* sn_receipt_device */
    char version[SN_RECEIPT_VERSION_SIZE + 1];
} sn_receipt;

/* Writes and signs; `node` is taken from the identity. */
sn_status sn_receipt_seal(const sn_receipt *receipt, const sn_identity *identity, uint8_t out[SN_RECEIPT_SIZE],
                          sn_err *err) SN_MUST_USE;
/* Reads, and checks the signature and that the numbers make sense together. SN_REFUSED with the reason. */
sn_status sn_receipt_open(const void *data, size_t len, sn_receipt *out, sn_err *err) SN_MUST_USE;

#endif

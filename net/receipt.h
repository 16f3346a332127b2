/* A receipt: a node's signed statement about one step. A verifier with the inputs and the model can compare it with its
 * own computation.
 *
 * The timeline hashes commit to the weights and to every row that went in, the output's hash to the rows that came out.
 * On a CPU the output is a function of the former, so a receipt and the inputs prove a wrong output. A receipt is bytes
 * of fixed size, described in docs/PROTOCOL.md; they begin with a tag, so its signature cannot pass for the signature
 * of anything else. Pure functions, any thread. */
#ifndef SN_NET_RECEIPT_H
#define SN_NET_RECEIPT_H

#include "base/dtype.h"
#include "net/identity.h"

enum { SN_RECEIPT_VERSION_SIZE = 20 };

typedef enum sn_receipt_device {
    SN_RECEIPT_EXACT = 0,       /* CPUs computed every block: a verifier gets equal bits */
    SN_RECEIPT_APPROXIMATE = 1, /* bit: another device took part: a verifier gets close values */
    SN_RECEIPT_CONTINUED = 2,   /* bit: KV pages came from elsewhere, and the signer does not vouch for them */
} sn_receipt_device;

typedef struct sn_receipt {
    uint8_t node[SN_KEY_SIZE]; /* id of the signer */
    uint8_t session[SN_SESSION_ID_SIZE];
    uint8_t model[SN_HASH_SIZE];
    sn_hash weights;                         /* hash of the block hashes, as in the timeline */
    sn_hash timeline_before, timeline_after; /* at position, and position + n */
    sn_hash input, output;                   /* SHA-256 of the tensors' bytes, as received and as sent */
    uint64_t step, position, unix_ms;
    uint32_t first_block, end_block, n, n_embd;
    uint8_t input_dtype, output_dtype; /* on the wire, as in a step's reply_dtype */
    uint8_t kv_dtype;                  /* in which the node keeps keys and values, the same numbers */
    uint8_t device;                    /* bits of sn_receipt_device */
    char version[SN_RECEIPT_VERSION_SIZE + 1];
} sn_receipt;

/* Encodes and signs; `node` is taken from the identity. */
sn_status sn_receipt_seal(const sn_receipt *receipt, const sn_identity *identity, uint8_t out[SN_RECEIPT_SIZE],
                          sn_err *err) SN_MUST_USE;
/* SHA-256 of n rows (n, n_embd) in the bytes that travel on the wire in this type (F32, F16, BF16, Q8): what a receipt
 * signs as input and output. SN_REFUSED for any other type. */
sn_status sn_rows_hash(const float *rows, int n, int n_embd, sn_dtype dtype, sn_hash *out, sn_err *err) SN_MUST_USE;
/* Adds n further rows to a hash that sn_hasher_end ends as sn_rows_hash of all would. */
sn_status sn_rows_hash_add(sn_hasher *hasher, const float *rows, int n, int n_embd, sn_dtype dtype,
                           sn_err *err) SN_MUST_USE;
/* Decodes, and checks the signature and that the numbers are consistent. SN_REFUSED with the reason. */
sn_status sn_receipt_open(const void *data, size_t len, sn_receipt *out, sn_err *err) SN_MUST_USE;

#endif

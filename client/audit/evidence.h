/* Evidence: what nodes signed about a step, with everything that is needed to compute the step again. Anyone with the
 * model's file can find out which node was wrong (swarm verify), without trusting the one who made the evidence.
 *
 * Central type: sn_evidence. An audit makes and saves it (audit.c), `swarm verify` loads and judges it. One thread.
 *
 * The file: a line `swarm evidence 1`; a line of JSON (header); the inputs, float32 rows; the claimed outputs of those
 * statements that have them, float32 rows; and a SHA-256 of all bytes before it, which detects damage. The signatures
 * of the receipts detect forgery. */
#ifndef SN_CLIENT_AUDIT_EVIDENCE_H
#define SN_CLIENT_AUDIT_EVIDENCE_H

#include "client/chain/chain.h"
#include "net/receipt.h"

/* What one node signed, and the rows that it sent. */
typedef struct sn_statement {
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_receipt receipt;   /* the same, read, with a valid signature */
    sn_blob announcement; /* sealed; may be empty */
    float *outputs;       /* (receipt.n, n_embd), or NULL; needed where the device is not exact */
} sn_statement;

enum { SN_STATEMENTS_MAX = 2 * SN_HOPS_MAX };

/* A timeline of rows through blocks [first, end), and the statements about parts of it. Zero-initialise it;
 * sn_evidence_fini frees everything. */
typedef struct sn_evidence {
    sn_hash model;
    char name[SN_MODEL_NAME_SIZE]; /* of the model, for display */
    int first, end, n_embd, n_tokens;
    bool is_long;         /* sn_is_long of the session */
    sn_hash adapter_hash; /* of the blocks' adapter; all zero: none */
    sn_hash *block_hash;  /* (end - first) */
    float *inputs;        /* (n_tokens, n_embd), as they enter block `first` */
    sn_statement *statements;
    size_t n;
    int64_t unix_ms; /* when it was made */
    bool first_hand; /* it is judged by the client whose session it is about; not in files */
} sn_evidence;

void sn_evidence_fini(sn_evidence *evidence);
/* Adds a statement. announcement (NULL allowed) and outputs (n, n_embd; NULL allowed) are copied. */
sn_status sn_evidence_add(sn_evidence *evidence, const uint8_t sealed[SN_RECEIPT_SIZE], const sn_blob *announcement,
                          const float *outputs, sn_err *err) SN_MUST_USE;

/* Writes a new file, named by blocks and time, into the folder (which is created with mode 0700), whole or not at all.
 */
sn_status sn_evidence_save(const sn_evidence *evidence, const char *folder, char path[1024], sn_err *err) SN_MUST_USE;
/* SN_REFUSED: the file is damaged, or a statement has no valid signature. */
sn_status sn_evidence_load(const char *path, sn_evidence *out, sn_err *err) SN_MUST_USE;

typedef enum sn_verdict_kind {
    SN_VERDICT_CORRECT,
    SN_VERDICT_WRONG,
    SN_VERDICT_INCONCLUSIVE, /* the statement is about something else: other weights, timeline or input */
} sn_verdict_kind;

typedef struct sn_verdict {
    sn_verdict_kind kind;
    char why[160]; /* one sentence */
    bool far;      /* the outputs in the evidence are not even close to the true ones, whatever its input was */
} sn_verdict;
/* Judges each statement by `reference`, a trusted chain over at least the evidence's blocks that is cut where
 * statements begin and end (sn_evidence_cuts) and has their wire type (sn_evidence_wire). out: (evidence->n). */
sn_status sn_evidence_judge(const sn_evidence *evidence, sn_chain *reference, sn_verdict *out, sn_err *err) SN_MUST_USE;
/* cut_at (n_blocks): true for each block at which a statement begins or ends. */
void sn_evidence_cuts(const sn_evidence *evidence, bool *cut_at, int n_blocks);
/* The wire type of the hidden states, and at which boundaries they were rounded to it (n_blocks + 1): the reference
 * chain's sn_chain_wire. F32: they were not rounded. A statement with another type than the first one that rounds is
 * inconclusive. */
sn_dtype sn_evidence_wire(const sn_evidence *evidence, bool *round_at, int n_blocks);

/* Whether n rows of a node agree with the rows of another device, within the difference that is allowed between devices
 * that are not exact: 3% of the row's largest value (docs/DEVICES.md, "What GPUs promise"). */
bool sn_rows_close(const float *a, const float *b, int n, int n_embd);

#endif

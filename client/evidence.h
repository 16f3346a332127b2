/* Evidence: what nodes signed about a step, with everything that is needed to compute the step again. Whoever has the
 * model's file finds out who lied (swarm verify); nobody has to be believed.
 *
 * The file: a line `swarm evidence 1`; a line of JSON with what is in it; the inputs, float32 rows; the outputs that were
 * claimed, where they are given; and a SHA-256 over all before it, against damage. Against forgery stand the signatures. */
#ifndef SN_CLIENT_EVIDENCE_H
#define SN_CLIENT_EVIDENCE_H

#include "client/chain.h"
#include "net/receipt.h"

/* What one node signed, and what it sent. */
typedef struct sn_statement {
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_receipt receipt; /* the same, read and its signature checked */
    sn_blob announcement; /* sealed; may be empty */
    float *outputs;       /* (receipt.n, n_embd) or NULL; needed where the device is not exact */
} sn_statement;

enum { SN_STATEMENTS_MAX = 2 * SN_HOPS_MAX };

/* A timeline of rows at blocks [first, end), and what was said about parts of it. Zero-initialise; fini frees all. */
typedef struct sn_evidence {
    sn_hash model;
    char name[SN_MODEL_NAME_SIZE]; /* of the model, for people */
    int first, end, n_embd, n_tokens;
    sn_hash tuned;       /* what was added to the weights; all zero: nothing */
    sn_hash *block_hash; /* (end - first) */
    float *inputs;       /* (n_tokens, n_embd), as they enter block `first` */
    sn_statement *statements;
    size_t n;
    int64_t unix_ms; /* when it was put together */
} sn_evidence;

void sn_evidence_fini(sn_evidence *evidence);
/* Adds a statement; `announcement` is copied, may be NULL; outputs (n, n_embd) are copied, may be NULL. */
sn_status sn_evidence_add(sn_evidence *evidence, const uint8_t sealed[SN_RECEIPT_SIZE], const sn_blob *announcement,
                          const float *outputs, sn_err *err) SN_MUST_USE;

/* Writes a new file of a telling name in the folder (made if need be, mode 0700), whole or not at all. */
sn_status sn_evidence_save(const sn_evidence *evidence, const char *folder, char path[1024], sn_err *err) SN_MUST_USE;
/* SN_REFUSED with a sentence for a file that is damaged, or whose statements nobody signed. */
sn_status sn_evidence_load(const char *path, sn_evidence *out, sn_err *err) SN_MUST_USE;

typedef enum sn_finding {
    SN_FOUND_TRUE,
    SN_FOUND_LIE,
    SN_FOUND_NOTHING, /* it speaks of something else: other weights, another past, another input */
} sn_finding;

/* Judges each statement by `truth`, a chain over at least the evidence's blocks, cut where statements begin and end
 * (sn_evidence_cuts), whose answers are believed. findings (evidence->n); why (evidence->n): a sentence for each. */
typedef struct sn_judgement {
    sn_finding finding;
    char why[160];
} sn_judgement;
sn_status sn_evidence_judge(const sn_evidence *evidence, sn_chain *truth, sn_judgement *out, sn_err *err) SN_MUST_USE;
/* Sets cut_at[b] (n_blocks of them) for each block at which a statement begins or ends. */
void sn_evidence_cuts(const sn_evidence *evidence, bool *cut_at, int n_blocks);
/* The type that hidden states travelled as, and where (n_blocks + 1): what sn_chain_options of the truth need. F32, and nowhere:
 * they were not rounded. A statement of another type than the first one that rounds proves nothing. */
sn_dtype sn_evidence_wire(const sn_evidence *evidence, bool *round_at, int n_blocks);

/* Whether rows that a node sent are what another device would have given, within what devices that are not exact may
 * differ: 3% of the largest value of the row (README, "What GPUs promise"). n rows. */
bool sn_rows_close(const float *a, const float *b, int n, int n_embd);
/* SHA-256 of n rows as they stand on the wire in this type (F32, F16, BF16, Q8). */
sn_status sn_rows_hash(const float *rows, int n, int n_embd, sn_dtype dtype, sn_hash *out, sn_err *err) SN_MUST_USE;

#endif

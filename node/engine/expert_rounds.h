/* Rounds: what a span that holds a part of the experts asks of other nodes within a forward pass, and what such nodes
 * ask of this one.
 *
 * A round is the pairs (a row and an expert that it chose) of one block in one forward pass that the span does not
 * hold. sn_expert_rounds is the span's exchange (blocks/expert_exchange.h): it makes a round of what the span asks for,
 * hands it to the network thread (sn_expert_rounds_next), which asks other nodes, and waits until it comes back
 * (sn_expert_rounds_answer). A round belongs to one thread at a time and holds copies only, so that a round that comes
 * back too late is freed and does no harm.
 *
 * While the device thread waits it computes what other nodes ask of it (`serve`). Those rounds need no other node, so
 * nodes that wait for each other never wait for ever. Errors: a round that has failed ends its forward pass with its
 * status, SN_RETRY where another node can serve the blocks. */
#ifndef SN_NODE_ENGINE_EXPERT_ROUNDS_H
#define SN_NODE_ENGINE_EXPERT_ROUNDS_H

#include "blocks/expert_exchange.h"
#include "net/message.h"

enum {
    SN_EXPERT_ROUND_US = 45000000, /* what a round may take: the network thread ends it by then */
    SN_EXPERT_ROUND_MARGIN_US = 5000000,
};

typedef struct sn_expert_round {
    uint64_t number;
    int block, n_embd;
    size_t n_rows, n_pairs;
    float *rows;           /* (n_rows, n_embd): those with a pair */
    sn_expert_pair *pairs; /* in the order of rows; row is an index of rows */
    float *out;            /* (n_pairs, n_embd): the result */
    int64_t until_us;      /* when it has failed at the latest */
    sn_status status;      /* the result, with err */
    sn_err err;
} sn_expert_round;

void sn_expert_round_free(sn_expert_round **round); /* accepts NULL */

/* What the device thread does for rounds; `ctx` is the first argument of each function. */
typedef struct sn_expert_rounds_host {
    void (*asked)(void *ctx); /* a round can be taken: wakes the network thread */
    /* Computes what other nodes have asked for, waits for more until until_us at most, and returns when there may be an
     * answer. False: the engine stops. */
    bool (*serve)(void *ctx, int64_t until_us);
    void *ctx;
} sn_expert_rounds_host;

typedef struct sn_expert_rounds sn_expert_rounds;

sn_status sn_expert_rounds_new(const sn_expert_rounds_host *host, sn_expert_rounds **out, sn_err *err) SN_MUST_USE;
void sn_expert_rounds_free(sn_expert_rounds **rounds); /* accepts NULL; frees the rounds that it holds */
const sn_expert_exchange *sn_expert_rounds_exchange(const sn_expert_rounds *rounds); /* valid as long as they are */

/* Network thread: the next round to be asked for, which is then the caller's; NULL: none. */
sn_expert_round *sn_expert_rounds_next(sn_expert_rounds *rounds);
/* Network thread: gives a round back that was answered or has failed. Takes it. The caller wakes the device thread. */
void sn_expert_rounds_answer(sn_expert_rounds *rounds, sn_expert_round *round);

/* -- what other nodes ask for -- */

/* The work of an SN_JOB_EXPERTS (job.h): an EXPERTS message that was checked. */
typedef struct sn_experts_task {
    sn_msg *request_msg; /* owned: the rows lie in it */
    uint64_t requester;  /* the peer that asked; 0: its connection has ended */
    uint8_t owner[SN_KEY_SIZE];
    int n_rows, k;
    int32_t *ids;    /* owned, (rows, k): the pairs of each row, then -1 */
    int32_t *part;   /* owned, as ids: those in the part, else -1 */
    uint32_t *order; /* owned, [n_pairs]: places in ids, by expert, then by row */
    size_t n_pairs, part_pairs, pairs_done;
} sn_experts_task;

/* Sorts the pairs that are in ids. */
sn_status sn_experts_task_order(sn_experts_task *task, sn_err *err) SN_MUST_USE;
/* The pairs of the next part, `most` at most: a GPU's way through an expert depends on how many pairs it has, so none
 * is cut that has no more of them than that. */
size_t sn_experts_task_next(const sn_experts_task *task, size_t most);
/* The next part, of n pairs: the rows that have one of them, rows (m, n_embd), and ids (m, k) of an sn_expert_request.
 * Returns m, at most n. */
int sn_experts_task_part(sn_experts_task *task, size_t n, size_t n_embd, float *rows, int32_t *ids);
/* Copies the outputs of the part, in its order of rows, to their places among those of all pairs; they are done. */
void sn_experts_task_place(sn_experts_task *task, const float *part, size_t n_embd, float *out);
void sn_experts_task_free(sn_experts_task **task); /* accepts NULL */

#endif

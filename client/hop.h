/* A hop: a stretch of blocks at one place, with one session there. The client keeps what went into it, so that another
 * place can be brought to the same point by replay. */
#ifndef SN_CLIENT_HOP_H
#define SN_CLIENT_HOP_H

#include "blocks/tuning.h"
#include "client/chain.h"
#include "client/route.h"
#include "net/receipt.h"

struct sn_spare;

typedef struct sn_hop_at {
    int first, end; /* blocks */
    bool local;
    bool pushed; /* its input comes from the node before it, not by the client */
    sn_dtype takes, gives; /* as what hidden states travel to it, and from it */
    /* of a node */
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    const char *flow; /* what the chain's work is called in logs; the chain's */
    sn_peer peer; /* the connection over which its session was opened */
    uint8_t session[SN_SESSION_ID_SIZE];
    uint64_t step; /* newest that it has done */
    int step_tokens_max, steps_ahead_max;
    sn_hash model, weights, tuned;    /* that its timeline begins with; tuned: zero where nothing is added to the weights */
    bool signs;                       /* a receipt is asked for with every step */
    uint8_t receipt[SN_RECEIPT_SIZE]; /* then: of the newest step */
    sn_receipt said;                  /* the same, read */
    /* of local blocks */
    sn_span *span;
    const sn_tuning *tuning; /* NULL: none */
    sn_kv *kv;

    /* The timeline at this hop. Of a pushed one only the hashes that its answers told are known, and there is nothing to
     * replay from. */
    int length, room;
    sn_hash *timeline; /* [i], i <= length; all zero where not known */
    float *inputs;     /* (length, n_embd) of a node's hop that is not pushed; else NULL */
    int inputs_from;   /* position from which they are known: one whose past came from elsewhere has not seen them all */

    struct sn_spare *spare; /* sessions at other nodes that get a copy of its past; NULL: none (chain_spare.c) */
    bool leaving;           /* its node says that it leaves */
    int64_t spare_us;       /* when to look for one again */
    sn_hop_report report;
    uint64_t last_network_us, last_queue_us, last_compute_us; /* of its newest step; the network as in the report */
} sn_hop_at;

/* A hop at `stop`, with the tuning of this name (all zero: none). */
sn_status sn_hop_init(sn_hop_at *hop, const sn_stop *stop, const sn_hash *model, const sn_hash *tuned, bool pushed,
                      sn_err *err) SN_MUST_USE;
void sn_hop_fini(sn_hop_at *hop, sn_link *link); /* tells the node without waiting for an answer; harmless when zeroed */

/* Opens its session at its node; predecessor: CURVE key of the node that will push into it, source: of the one that will put a
 * past into it; or NULL. */
sn_status sn_hop_open(sn_hop_at *hop, sn_link *link, const sn_hash *model, int max_tokens, const uint8_t *predecessor,
                      const uint8_t *source, int timeout_ms, sn_err *err) SN_MUST_USE;

/* Brings its tuning, whose image this is, to its node: before a session asks for it. */
sn_status sn_hop_tune(const sn_hop_at *hop, sn_link *link, const void *image, size_t bytes, int timeout_ms,
                      sn_err *err) SN_MUST_USE;

/* The session goes on at `position`: what was put into it is its past. Says how much of it is there. SN_REBUILD: it is not the
 * past of `timeline` (of a hop whose blocks hold this one's; [i] zero where not known). */
sn_status sn_hop_resume(sn_hop_at *hop, sn_link *link, int position, uint64_t step, const uint8_t *predecessor,
                        const sn_hash *timeline, int timeout_ms, int *length, sn_err *err) SN_MUST_USE;
/* Makes `hop`, whose past is a copy of the past of `old`, or of its blocks from a later one on, know what is known of `position`
 * tokens. Where both begin at the same block, it takes the inputs. */
sn_status sn_hop_take_over(sn_hop_at *hop, sn_hop_at *old, int position, int n_embd, sn_err *err) SN_MUST_USE;
/* Makes it know a past of `position` tokens that was put into it with these marks ([0]: the origin). inputs: (position, n_embd), or
 * NULL where they are not known. */
sn_status sn_hop_begin_at(sn_hop_at *hop, int position, int n_embd, const sn_hash *marks, const float *inputs,
                          sn_err *err) SN_MUST_USE;
bool sn_hop_can_replay(const sn_hop_at *hop, int from); /* the inputs from `from` on are known */

/* Forgets positions from `position` on and takes n rows there: inputs and hashes. */
sn_status sn_hop_record(sn_hop_at *hop, int position, int n, int n_embd, const float *rows, sn_hasher *hasher,
                        sn_err *err) SN_MUST_USE;
/* Forgets positions from `position` on and notes the hash after n more, as the node told it. */
sn_status sn_hop_note(sn_hop_at *hop, int position, int n, const uint8_t timeline[SN_HASH_SIZE], sn_err *err) SN_MUST_USE;
bool sn_hop_knows(const sn_hop_at *hop, int position); /* the hash at `position` is known */

/* Runs n rows at `position` through `n_hops` nodes that push to each other; hops[0] has recorded them. out: (n, n_embd).
 * Checks shape, route, hashes and that all numbers are finite. *failed: index of the hop to blame on failure; n_hops when
 * each of them lives but the answer got lost between them. SN_REBUILD: the session there is gone, or for all we know: the
 * node may be there again, or the connection have broken on the way. */
sn_status sn_hops_step(sn_hop_at *hops, size_t n_hops, sn_link *link, int position, int n, int n_embd, const float *rows,
                       int timeout_ms, float *out, size_t *failed, sn_err *err) SN_MUST_USE;

/* Checks the receipts that came with a result, each against its hop and all against what was sent (the hash of the tensor's
 * bytes) and came, and keeps them in the hops. *failed as above: n_hops when what one node sent is not what the next one got. */
sn_status sn_hops_take_receipts(sn_hop_at *hops, size_t n_hops, const sn_hash *sent, const sn_msg *result,
                                int position, int n, size_t *failed, sn_err *err) SN_MUST_USE;

/* The same in two halves, so that several steps may be under way over the same hops, one behind the other, and their answers be
 * waited for beside those of other hops. */
typedef struct sn_flight {
    uint64_t request;
    int position, n;
    int64_t began_us, deadline_us;
} sn_flight;
/* ahead: how many steps are under way there already. With some, the hashes that pushed hops build on are not known yet. */
sn_status sn_hops_send(sn_hop_at *hops, size_t n_hops, sn_link *link, size_t ahead, int position, int n, int n_embd,
                       const float *rows, int timeout_ms, sn_flight *out, sn_err *err) SN_MUST_USE;
/* What to wait for; fills peers (n_hops). */
sn_wait sn_hops_wait(const sn_hop_at *hops, size_t n_hops, const sn_flight *flight, sn_peer *peers);
/* Checks the answer to the oldest of them, and takes what it says. */
sn_status sn_hops_take(sn_hop_at *hops, size_t n_hops, const sn_flight *flight, const sn_msg *result, int n_embd, float *out,
                       size_t *failed, sn_err *err) SN_MUST_USE;

/* The same for local blocks. */
sn_status sn_hop_step_local(sn_hop_at *hop, int position, int n, int n_embd, const float *rows, float *out,
                            sn_err *err) SN_MUST_USE;

#endif

/* Speaking the protocol by hand with the nodes of a cluster, over one tiny model whose numbers are known: for tests of
 * what a node answers. Every function ends the process with a message when what it needs cannot be had. */
#ifndef SN_TESTS_TALK_H
#define SN_TESTS_TALK_H

#include "tests/support/cluster.h"

enum { WORLD_TOKENS = 96, WORLD_WAIT_MS = 10000 };

/* A model, a cluster without nodes, and what the whole model makes of WORLD_TOKENS rows of input. */
typedef struct world {
    char *path;
    cluster *cluster;
    sn_hash model, block_hash[8];
    int n_blocks, n_embd;
    size_t page_bytes;      /* of the cache of a node that holds all blocks */
    float *inputs, *hidden; /* (WORLD_TOKENS, n_embd) */
} world;

world *world_new(const cluster_options *options); /* its model is set here */
void world_free(world **w);
/* The reference again: rows (n, n_embd) as positions 0.. through blocks [first, end) into a new array; the caller frees
 * it. */
float *world_compute(const world *w, int first, int end, int n, const float *rows);
/* The same with a tuning, whose image this is. */
float *world_compute_tuned(const world *w, const sn_buf *image, int first, int end, int n, const float *rows);
/* An image of a deep prompt before block 1 and an adapter of block 2; another scale, another image. Free it. */
sn_buf world_tuning(const world *w, float scale);
/* The timeline of those rows at blocks [first, end): n + 1 hashes; the caller frees them. */
sn_hash *world_timeline(const world *w, int first, int end, int n, const float *rows);

/* A client of its own, connected to one node. */
typedef struct talk {
    sn_identity identity;
    sn_transport *transport;
    sn_peer node;
    uint64_t request;
} talk;

talk *talk_new(world *w, int node);
void talk_free(talk **t);
/* Sends *msg with a new request number, and only that. Takes it. */
uint64_t talk_send(talk *t, sn_msg **msg);
/* The answer to `request` (0: to any), or NULL when none comes. */
sn_msg *talk_hear(talk *t, uint64_t request, int timeout_ms);
sn_msg *talk_ask(talk *t, sn_msg **msg); /* both; ends the process when no answer comes */
sn_msg_status_is talk_status(talk *t);
/* Asks for the status until it shows this many bytes of cache in use; the process ends if it never does. */
void talk_tune(talk *t, const world *w, const sn_buf *image); /* until the node holds it */
void talk_await_kv_bytes(talk *t, uint64_t bytes);

/* A session at a node over blocks [first, end) whose input is the world's. */
typedef struct past {
    world *world;
    talk *talk;
    uint8_t id[SN_SESSION_ID_SIZE];
    int first, end;
    sn_hash *timeline; /* of the world's inputs (first == 0) */
    sn_hash tuning;    /* zero: none */
    float *hidden;     /* what the blocks make of them; NULL: the world's */
    uint64_t step;     /* newest that was done */
    int length;
} past;

sn_msg *past_open_message(past *p);                      /* as it should be, to be changed or sent */
sn_msg *past_step_message(past *p, int position, int n); /* the next step */
sn_msg *past_close_message(const past *p);
void past_init(past *p, world *w, talk *t, int first, int end); /* not yet opened */
/* The same with a tuning: its blocks are all, and its answers those of the tuned model. */
void past_init_tuned(past *p, world *w, talk *t, const sn_buf *image);
void past_open(past *p);                                        /* opened, or the process ends */
void past_close(past *p);                                       /* says CLOSE and waits for CLOSED; frees */
/* True if the step gave the reference's bits, float32, on the right timeline (blocks 0:n_blocks). */
bool past_goes_on(past *p, int position, int n);
/* The same for an answer that came: consumes it. */
bool past_took(past *p, sn_msg *answer, int position, int n);

/* Whether this is an ERROR with that status and sentence; prints what it was if not. Consumes it (NULL is none). */
bool is_refusal(sn_msg *answer, sn_status status, const char *part);

#endif

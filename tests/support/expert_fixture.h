/* The protocol of a node with a part of the experts, by hand: a clock that the test sets, holders that are bare
 * transports, and jobs that wait until the test ends them. Every function ends the process with a message when a
 * prerequisite is missing. */
#ifndef SN_TESTS_EXPERT_FIXTURE_H
#define SN_TESTS_EXPERT_FIXTURE_H

#include "node/protocol/protocol.h"
#include "tests/support/memory_transport.h"

enum { SECOND = 1000000, EMBD = 4, EXPERTS = 8, BLOCKS = 2, HOLDERS = 2, EXPERT_JOBS_MAX = 64 };

typedef struct expert_holder {
    sn_identity identity;
    sn_transport *transport;
    sn_peer node; /* dialled */
} expert_holder;

/* The node holds experts [0, 3) of both blocks; the holders of a test [3, 8). */
typedef struct expert_fixture {
    sn_hparams hp;
    sn_hash hashes[BLOCKS], model;
    sn_hub *hub;
    sn_transport *transport;
    sn_identity own;
    sn_protocol *protocol;
    expert_holder holders[HOLDERS];
    sn_expert_round *answered; /* the round that the node gave back last; the test takes or frees it */
    sn_job *jobs[EXPERT_JOBS_MAX];
    int n_jobs;
    bool silent; /* holders that are announced answer no PING */
    int64_t now, unix_ms;
} expert_fixture;

void experts_begin(expert_fixture *f); /* with a virtual clock */
void experts_end(expert_fixture *f);

void experts_read(expert_fixture *f); /* the node takes the messages that have arrived, and its tick */
void experts_pass(expert_fixture *f, int64_t us);
/* The holder announces experts [first, end) of all blocks, and answers when the node asks whether it is there. */
void experts_announce(expert_fixture *f, int holder, sn_node_state state, int first, int end);

sn_msg *experts_message(sn_msg_kind kind, uint64_t correlation_id);
void experts_send(expert_fixture *f, const expert_holder *h, sn_msg *msg); /* takes it */
/* The next message of this kind that the node has sent to the holder, and its peer there; NULL: none. */
sn_msg *experts_receive(const expert_holder *h, sn_msg_kind kind, sn_peer *peer);

#endif

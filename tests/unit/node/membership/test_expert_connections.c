/* What else a node does with its connections ends none over which it has asked for experts: a step would wait for an
 * answer that cannot come. */
#include "node/membership/membership_private.h" /* private: puts a connection among former neighbours */
#include "node/protocol/protocol_private.h"     /* private: asks, and dials as the node itself does */
#include "tests/support/expert_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

enum { FEW = 20, ROUNDS = 8 };

static expert_fixture f;
static sn_msg *request; /* of the node to the holder, */
static sn_peer asker;   /* over this connection */

/* A step waits for expert 3 of block 1. */
static void set_up(void) {
    experts_begin(&f);
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    sn_expert_round *round = calloc(1, sizeof *round);
    *round = (sn_expert_round){.number = 1, .block = 1, .n_embd = EMBD, .n_rows = 1, .n_pairs = 1};
    round->rows = calloc(EMBD, sizeof *round->rows);
    round->pairs = calloc(1, sizeof *round->pairs);
    round->out = calloc(EMBD, sizeof *round->out);
    round->until_us = f.now + SN_EXPERT_ROUND_US;
    round->pairs[0].expert = 3;
    sn_protocol_ask_experts(f.protocol, round, f.now);
    request = experts_receive(&f.holders[0], SN_MSG_EXPERTS, &asker);
    cr_assert(request);
}

static void tear_down(void) {
    sn_msg_free(&request);
    experts_end(&f);
}

TestSuite(expert_connections, .init = set_up, .fini = tear_down);

static sn_peer holder(void) { return f.protocol->experts.group.holders[0].peer; }

static void expect_that_the_answer_comes(void) {
    sn_msg *msg = experts_message(SN_MSG_EXPERTS_REPLY, request->correlation_id);
    void *data = NULL;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, EMBD}, &data, &err));
    REQUIRE(sn_transport_send(f.holders[0].transport, asker, &msg, &err));
    experts_read(&f);
    cr_assert(f.answered, "the connection was ended");
    cr_expect_eq(f.answered->status, SN_OK, "%s", f.answered->err.text);
}

static sn_peer dial(int number) {
    sn_outgoing_target to = {.curve_key = {1, (uint8_t)number}};
    sn_peer peer;
    snprintf(to.address, sizeof to.address, "invented%d:1", number);
    REQUIRE(sn_protocol_dial(f.protocol, f.own.curve_key, &to, ++f.now, &peer, &err));
    return peer;
}

/* Neighbours that are gone become former ones, until the holder, which was one before, is none any more. */
Test(expert_connections, gossip_lets_go_of_a_holder_without_hanging_up) {
    sn_gossip *g = &f.protocol->membership->gossip;
    g->former[g->next_former++ % SN_FORMER_NEIGHBOURS_MAX] = holder();
    for (int round = 0; round < ROUNDS && sn_membership_uses(f.protocol->membership, holder()); round++) {
        for (g->n_neighbours = 0; g->n_neighbours < SN_NEIGHBOURS_MAX; g->n_neighbours++)
            g->neighbours[g->n_neighbours] = (sn_neighbour){.peer = 1000 + g->n_neighbours, .id = {1}};
        sn_gossip_round(f.protocol->membership, f.unix_ms + SN_ANNOUNCE_LIFE_MS);
    }
    cr_expect_not(sn_membership_uses(f.protocol->membership, holder()));
    expect_that_the_answer_comes();
}

Test(expert_connections, other_nodes_that_are_dialled_take_no_place_of_a_holder_at_work) {
    f.protocol->setup.outgoing_max = FEW;
    for (int i = 0; i < 2 * FEW; i++) dial(i);
    cr_expect_eq(f.protocol->outgoing.n, FEW);
    expect_that_the_answer_comes();
    for (int i = 0; i < FEW; i++) dial(2 * FEW + i);
    cr_expect(sn_protocol_outgoing_has(f.protocol, holder()), "a holder that has answered makes room");
}

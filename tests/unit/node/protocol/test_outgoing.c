/* How many connections a node makes for clients and for itself where it has few descriptors (node/protocol/outgoing.c).
 */
#include "node/protocol/protocol_private.h" /* private: dials as a session does */
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>

enum { FEW = 20 };

static void cause(protocol_fixture *b, const uint8_t *client, int number) {
    sn_outgoing_target to = {.curve_key = {1, (uint8_t)number}};
    sn_peer peer;
    snprintf(to.address, sizeof to.address, "invented%d:1", number);
    REQUIRE(sn_protocol_dial(b->protocol, client, &to, T0 + number, &peer, &err));
}

static int caused_by(const protocol_fixture *b, uint8_t first) {
    int n = 0;
    for (size_t i = 0; i < b->protocol->outgoing.n; i++) n += b->protocol->outgoing.all[i].client[0] == first;
    return n;
}

Test(outgoing, connections_are_fewer_where_there_are_few_descriptors) {
    cr_expect_eq(sn_protocol_outgoing_max(SIZE_MAX), SN_OUTGOING_MAX);
    cr_expect_eq(sn_protocol_outgoing_max(8192), SN_OUTGOING_MAX);
    cr_expect_eq(sn_protocol_outgoing_max(1024), 64, "four descriptors each: half of what there is for all else");
    cr_expect_geq(sn_protocol_outgoing_max(64), 16);
}

Test(outgoing, all_clients_cause_no_more_than_there_are_descriptors_for) {
    protocol_fixture b;
    protocol_fixture_begin(&b);
    b.protocol->setup.outgoing_max = FEW;
    const uint8_t *own = b.protocol->setup.identity->curve_key;
    for (int i = 0; i < FEW / 2; i++) cause(&b, own, i);
    for (int i = FEW; i < 4 * FEW; i++) cause(&b, (const uint8_t[SN_KEY_SIZE]){2, (uint8_t)(i / 8)}, i);
    cr_expect_eq(b.protocol->outgoing.n, FEW);
    cr_expect_eq(caused_by(&b, 2), FEW / 2, "they have ended the node's own");
    for (int i = 4 * FEW; i < 6 * FEW; i++) cause(&b, own, i);
    cr_expect_eq(b.protocol->outgoing.n, FEW);
    cr_expect_eq(caused_by(&b, 2), FEW / 2 - 1, "the node's own have ended those of clients");
    protocol_fixture_end(&b);
}

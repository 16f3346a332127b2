#include "tests/support/invented_node.h"

#include "tests/support/require.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

invented_node invented_node_new(protocol_fixture *b, int number) {
    invented_node node = {0};
    char bound[SN_ADDRESS_MAX + 1];
    snprintf(node.address, sizeof node.address, "invented%d:1", number);
    node.transport = cluster_transport(b->w->cluster, &node.identity);
    REQUIRE(sn_transport_listen(node.transport, node.address, bound, &err));
    return node;
}

sn_buf invented_node_announce(const protocol_fixture *b, const invented_node *node, int64_t expires_unix_ms) {
    sn_announcement *a = calloc(1, sizeof *a);
    sn_buf sealed;
    if (!a) abort();
    memcpy(a->node, node->identity.id, SN_KEY_SIZE);
    memcpy(a->curve_key, node->identity.curve_key, SN_KEY_SIZE);
    memcpy(a->model, b->w->model.bytes, SN_HASH_SIZE);
    snprintf(a->address, sizeof a->address, "%s", node->address);
    a->protocol = SN_PROTOCOL_VERSION;
    a->sequence = 1;
    a->expires_unix_ms = (uint64_t)expires_unix_ms;
    a->state = SN_NODE_ONLINE;
    a->end_block = a->n_blocks = 4;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, &node->identity, &sealed, &err));
    free(a);
    return sealed;
}

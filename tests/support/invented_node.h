/* A node that a stranger invents and whose announcements it signs, for tests of where a node can be made to dial. */
#ifndef SN_TESTS_INVENTED_NODE_H
#define SN_TESTS_INVENTED_NODE_H

#include "tests/support/protocol_fixture.h"

/* It has an identity, and listens at an address within the test's hub. */
typedef struct invented_node {
    sn_identity identity;
    sn_transport *transport;
    char address[SN_ADDRESS_MAX + 1];
} invented_node;

/* It listens; free its transport before the fixture ends. */
invented_node invented_node_new(protocol_fixture *b, int number);
/* Its announcement; free it with sn_buf_fini. */
sn_buf invented_node_announce(const protocol_fixture *b, const invented_node *node, int64_t expires_unix_ms);

#endif

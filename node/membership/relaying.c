#include "node/membership/relaying.h"

#include "base/log.h"
#include "node/membership/membership_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct relayed_node {
    sn_peer peer;
    uint8_t key[SN_KEY_SIZE], network[SN_ADDRESS_PREFIX];
    int64_t until_us;
} relayed_node;

struct sn_relaying {
    sn_transport *transport;
    sn_membership *membership;
    int64_t bytes_per_s;
    bool allowed;
    sn_address_limit *of_address, *all; /* dial-backs; all: counts one address, of zeros */
    relayed_node nodes[SN_RELAYED_NODES_MAX];
    size_t n;
};

sn_status sn_relaying_new(sn_transport *transport, sn_membership *membership, int64_t bytes_per_s, sn_relaying **out,
                          sn_err *err) {
    sn_relaying *r = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&r, 1, sizeof *r, err);
    if (status) return status;
    *r = (sn_relaying){.transport = transport, .membership = membership, .bytes_per_s = bytes_per_s};
    status = sn_address_limit_new(SN_DIAL_BACKS_BURST, 1, &r->of_address, err);
    if (!status) status = sn_address_limit_new(SN_DIAL_BACKS_PER_S, SN_DIAL_BACKS_PER_S, &r->all, err);
    if (status)
        sn_relaying_free(&r);
    else
        sn_relaying_allow(r, true);
    *out = r;
    return status;
}

void sn_relaying_free(sn_relaying **relaying) {
    sn_relaying *r = *relaying;
    if (!r) return;
    sn_address_limit_free(&r->of_address);
    sn_address_limit_free(&r->all);
    free(r);
    *relaying = NULL;
}

void sn_relaying_allow(sn_relaying *r, bool allowed) {
    if (r->allowed == allowed) return;
    r->allowed = allowed;
    sn_portal_set_rate(r->transport->portal, allowed ? r->bytes_per_s : 0);
}

uint64_t sn_relaying_places(const sn_relaying *r) {
    return r->allowed && r->bytes_per_s ? SN_RELAYED_NODES_MAX - r->n : 0;
}

static bool speaks_protocol(const sn_relaying *r, const sn_event *event, uint64_t protocol) {
    sn_err err;
    if (protocol == SN_PROTOCOL_VERSION) return true;
    (void)sn_fail(&err, SN_REFUSED, "this node speaks protocol %d: use a matching version", SN_PROTOCOL_VERSION);
    sn_membership_refuse(r->membership, event->peer, event->msg, &err);
    return false;
}

/* -- dial-backs */

static bool may_dial_back(sn_relaying *r, const uint8_t network[SN_ADDRESS_PREFIX], int64_t now_us) {
    static const uint8_t all[SN_ADDRESS_PREFIX];
    return sn_address_limit_allows(r->of_address, network, now_us / SN_DIAL_BACK_EVERY_S) &&
           sn_address_limit_allows(r->all, all, now_us);
}

static sn_status dial_back(sn_relaying *r, const sn_event *event, int64_t now_us, char address[SN_ADDRESS_MAX + 1],
                           sn_err *err) {
    const sn_msg_dial_back *asked = &event->msg->dial_back;
    char host[SN_ADDRESS_MAX + 1];
    if (!asked->port || asked->port > 65535)
        return sn_fail(err, SN_REFUSED, "%llu is no port", (unsigned long long)asked->port);
    if (!sn_transport_peer_host(r->transport, event->peer, host))
        return sn_fail(err, SN_REFUSED, "this node does not see the address from which you ask");
    if (!may_dial_back(r, event->network, now_us))
        return sn_fail(err, SN_RETRY, "this node dials back to one address once in %d seconds: ask later",
                       SN_DIAL_BACK_EVERY_S);
    int len = snprintf(address, SN_ADDRESS_MAX + 1, "%s:%u", host, (unsigned)asked->port);
    if (len < 0 || len > SN_ADDRESS_MAX) return sn_fail(err, SN_REFUSED, "the address is too long");
    return sn_portal_dial_back(r->transport->portal, address, asked->token, err);
}

void sn_relaying_on_dial_back(sn_relaying *r, const sn_event *event, int64_t now_us) {
    char address[SN_ADDRESS_MAX + 1];
    sn_err err;
    if (!speaks_protocol(r, event, event->msg->dial_back.protocol)) return;
    if (dial_back(r, event, now_us, address, &err)) {
        sn_membership_refuse(r->membership, event->peer, event->msg, &err);
        return;
    }
    sn_msg *msg = sn_membership_new_msg(SN_MSG_DIAL_BACK_REPLY, event->msg->correlation_id);
    if (!msg) return;
    snprintf(msg->dial_back_reply.address, sizeof msg->dial_back_reply.address, "%s", address);
    sn_membership_send(r->membership, event->peer, &msg);
}

/* -- relayed nodes */

static relayed_node *find_key(sn_relaying *r, const uint8_t key[SN_KEY_SIZE]) {
    for (relayed_node *n = r->nodes; n < r->nodes + r->n; n++)
        if (!memcmp(n->key, key, SN_KEY_SIZE)) return n;
    return NULL;
}

static void end_node(sn_relaying *r, relayed_node *n) {
    sn_portal_unregister(r->transport->portal, n->key);
    *n = r->nodes[--r->n];
}

static sn_status register_node(sn_relaying *r, const sn_event *event, int64_t now_us, sn_err *err) {
    relayed_node *node = find_key(r, event->key);
    size_t of_address = 0;
    if (!r->allowed) return sn_fail(err, SN_REFUSED, "others do not reach this node directly: ask another one");
    for (const relayed_node *n = r->nodes; n < r->nodes + r->n; n++)
        of_address += n != node && !memcmp(n->network, event->network, SN_ADDRESS_PREFIX);
    if (of_address >= SN_RELAYED_OF_ADDRESS_MAX)
        return sn_fail(err, SN_RETRY, "this node relays for %d nodes of your network already: ask another one",
                       SN_RELAYED_OF_ADDRESS_MAX);
    sn_status status = sn_portal_register(r->transport->portal, event->key, err);
    if (status) return status;
    if (node && node->peer != event->peer) sn_portal_renew(r->transport->portal, event->key);
    if (!node) node = &r->nodes[r->n++]; /* the portal has refused more than there are */
    *node = (relayed_node){.peer = event->peer, .until_us = now_us + (int64_t)SN_RELAY_LIFE_MS * 1000};
    memcpy(node->key, event->key, SN_KEY_SIZE);
    memcpy(node->network, event->network, SN_ADDRESS_PREFIX);
    return SN_OK;
}

void sn_relaying_on_relay(sn_relaying *r, const sn_event *event, int64_t now_us) {
    sn_err err;
    bool new = !find_key(r, event->key);
    if (!speaks_protocol(r, event, event->msg->relay.protocol)) return;
    if (register_node(r, event, now_us, &err)) {
        sn_membership_refuse(r->membership, event->peer, event->msg, &err);
        return;
    }
    if (new) sn_log_rated(SN_LOG_INFO, "relays for a node", "nodes=%zu", r->n);
    sn_msg *msg = sn_membership_new_msg(SN_MSG_RELAY_REPLY, event->msg->correlation_id);
    if (!msg) return;
    msg->relay_reply.bytes_per_s = (uint64_t)r->bytes_per_s;
    sn_membership_send(r->membership, event->peer, &msg);
}

void sn_relaying_peer_gone(sn_relaying *r, sn_peer peer) {
    for (size_t i = r->n; i-- > 0;)
        if (r->nodes[i].peer == peer) end_node(r, &r->nodes[i]);
}

static void call_node(sn_relaying *r, const uint8_t key[SN_KEY_SIZE], const uint8_t token[SN_TOKEN_SIZE]) {
    const relayed_node *node = find_key(r, key);
    sn_msg *msg = node ? sn_membership_new_msg(SN_MSG_RELAY_CALL, 0) : NULL;
    if (!msg) return;
    memcpy(msg->relay_call.token, token, SN_TOKEN_SIZE);
    sn_membership_send(r->membership, node->peer, &msg);
}

void sn_relaying_tick(sn_relaying *r, int64_t now_us) {
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE];
    while (sn_portal_next_call(r->transport->portal, key, token)) call_node(r, key, token);
    for (size_t i = r->n; i-- > 0;)
        if (now_us >= r->nodes[i].until_us) end_node(r, &r->nodes[i]);
}

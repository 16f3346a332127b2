/* Connections that clients cause: where sessions push to (OPEN's next) and KV migrations send to (KV_SEND). Those to
 * holders of experts, which steps of any client need (experts.c), and to nodes that are asked for an answer count as
 * the node's own, also where a client has caused them first.
 *
 * A stranger must not make this node dial what it likes. So a client names another node by a sealed announcement and
 * not by an address: only what the key of a live announcement has signed is dialled, and only under that node's CURVE
 * key. A client may cause CLIENT_TARGETS_MAX connections; a connection counts until it was not used for IDLE_US, also
 * where no program answered; then the node hangs up. There are SN_OUTGOING_MAX in all, fewer where the process has few
 * descriptors: when they are taken, one makes room of those that are more, the node's own or those of clients, so that
 * strangers cannot end the others. Connections that gossip uses, too, are left to membership, which leaves it those
 * that are here. */
#include "node/protocol/protocol_private.h"

#include "base/log.h"
#include "net/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLIENT_TARGETS_MAX = 8, IDLE_US = 60000000, OUTGOING_MIN = 16, DESCRIPTORS_OF_ALL = 16 };

size_t sn_protocol_outgoing_max(size_t descriptors) {
    size_t n = descriptors / DESCRIPTORS_OF_ALL;
    return n < OUTGOING_MIN ? OUTGOING_MIN : n < SN_OUTGOING_MAX ? n : SN_OUTGOING_MAX;
}

static size_t outgoing_max(const sn_protocol *protocol) {
    size_t max = protocol->setup.outgoing_max;
    return max && max < SN_OUTGOING_MAX ? max : SN_OUTGOING_MAX;
}

/* The node is known by a newer announcement than the client's, which has expired. */
static sn_status target_from_directory(const sn_protocol *protocol, const sn_blob *sealed, sn_announcement *a,
                                       sn_err *err) {
    size_t len = sealed->len > SN_SIGNATURE_SIZE ? sealed->len - SN_SIGNATURE_SIZE : 0;
    sn_status status = sn_announcement_parse(sealed->data, len, a, err);
    if (status) return status;
    const sn_announcement *known = sn_directory_find(sn_protocol_directory(protocol), a->node);
    if (!known || sn_directory_find_expiry(sn_protocol_directory(protocol), a->node) <= (uint64_t)protocol->unix_ms)
        return sn_fail(err, SN_RETRY, "the announcement of the next node has expired: ask for a newer one");
    sn_announcement_copy(a, known);
    return SN_OK;
}

sn_status sn_protocol_read_target(const sn_protocol *protocol, const sn_blob *sealed, sn_outgoing_target *out,
                                  sn_err *err) {
    sn_announcement *a = NULL; /* too large for the stack */
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    status = sn_announcement_open(sealed->data, sealed->len, protocol->unix_ms, a, err);
    if (status) status = target_from_directory(protocol, sealed, a, err);
    if (!status && a->state == SN_NODE_OFFLINE) status = sn_fail(err, SN_RETRY, "the next node has left");
    if (!status && !protocol->setup.transport->dials_names) status = sn_address_check_numeric(a->address, err);
    if (!status) {
        memcpy(out->address, a->address, sizeof out->address);
        memcpy(out->curve_key, a->curve_key, SN_KEY_SIZE);
    }
    free(a);
    return status;
}

static bool is_own(const sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE]) {
    return !memcmp(client, protocol->setup.identity->curve_key, SN_KEY_SIZE);
}

static sn_outgoing_connection *outgoing_find(sn_outgoing *o, const sn_outgoing_target *to) {
    for (size_t i = 0; i < o->n; i++)
        if (!memcmp(o->all[i].to.curve_key, to->curve_key, SN_KEY_SIZE) && !strcmp(o->all[i].to.address, to->address))
            return &o->all[i];
    return NULL;
}

static void outgoing_hang_up(sn_protocol *protocol, sn_outgoing_connection *connection) {
    sn_outgoing *o = &protocol->outgoing;
    if (connection->peer && !sn_membership_uses(protocol->membership, connection->peer))
        sn_transport_hang_up(protocol->setup.transport, connection->peer);
    *connection = o->all[--o->n];
}

/* A client that uses one of the node's own connections does not keep it so. Those to holders of experts at work go
 * last: a step waits for them. */
static int64_t last_use_us(const sn_protocol *protocol, const sn_outgoing_connection *c) {
    if (!c->own_us) return c->used_us;
    return c->own_us + (sn_protocol_experts_need(protocol, c->peer) ? INT64_MAX / 2 : 0);
}

/* Of the node's own connections, or of those of clients, whichever are more, the one that was not used for longest. */
static sn_outgoing_connection *outgoing_oldest(sn_protocol *protocol, size_t max) {
    sn_outgoing *o = &protocol->outgoing;
    sn_outgoing_connection *oldest[2] = {NULL, NULL}; /* of clients, own */
    size_t n_own = 0;
    for (sn_outgoing_connection *c = o->all; c < o->all + o->n; c++) {
        const bool own = c->own_us != 0;
        sn_outgoing_connection **at = &oldest[own];
        n_own += own;
        if (!*at || last_use_us(protocol, c) < last_use_us(protocol, *at)) *at = c;
    }
    return oldest[n_own > max / 2];
}

static size_t outgoing_of(const sn_outgoing *o, const uint8_t client[SN_KEY_SIZE]) {
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++) n += !memcmp(o->all[i].client, client, SN_KEY_SIZE);
    return n;
}

static sn_status outgoing_add(sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE], const sn_outgoing_target *to,
                              sn_outgoing_connection **out, sn_err *err) {
    sn_outgoing *o = &protocol->outgoing;
    if (outgoing_of(o, client) >= CLIENT_TARGETS_MAX && !is_own(protocol, client))
        return sn_fail(err, SN_RETRY,
                       "this node connects to %d other nodes for one client: wait until one of them was not used for "
                       "%d s, or relay the rows yourself",
                       CLIENT_TARGETS_MAX, IDLE_US / 1000000);
    const size_t max = outgoing_max(protocol);
    if (o->n >= max) outgoing_hang_up(protocol, outgoing_oldest(protocol, max));
    *out = &o->all[o->n++];
    **out = (sn_outgoing_connection){.to = *to};
    memcpy((*out)->client, client, SN_KEY_SIZE);
    return SN_OK;
}

sn_status sn_protocol_dial(sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE], const sn_outgoing_target *to,
                           int64_t now_us, sn_peer *out, sn_err *err) {
    sn_outgoing_connection *connection = outgoing_find(&protocol->outgoing, to);
    sn_status status = connection ? SN_OK : outgoing_add(protocol, client, to, &connection, err);
    if (status) return status;
    connection->used_us = now_us;
    if (is_own(protocol, client)) connection->own_us = now_us;
    status = sn_transport_dial(protocol->setup.transport, to->address, to->curve_key, &connection->peer, err);
    *out = connection->peer;
    return status;
}

void sn_protocol_dial_early(sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE], const sn_outgoing_target *to,
                            int64_t now_us) {
    sn_peer peer;
    sn_err err;
    if (outgoing_of(&protocol->outgoing, client) >= CLIENT_TARGETS_MAX / 2) return;
    if (sn_protocol_dial(protocol, client, to, now_us, &peer, &err))
        sn_log(SN_LOG_DEBUG, "next node not dialled", "text=%s", err.text); /* the first step dials again */
}

void sn_protocol_meet(sn_protocol *protocol, const sn_announcement *node, int64_t now_us) {
    sn_outgoing_target to = {0};
    sn_peer peer;
    sn_err err;
    memcpy(to.address, node->address, sizeof to.address);
    memcpy(to.curve_key, node->curve_key, SN_KEY_SIZE);
    if (sn_protocol_dial(protocol, protocol->setup.identity->curve_key, &to, now_us, &peer, &err)) return;
    memcpy(outgoing_find(&protocol->outgoing, &to)->node, node->node, SN_KEY_SIZE);
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_PING, ++protocol->last_correlation_id);
    if (msg) sn_protocol_send(protocol, peer, &msg);
}

/* Only over a connection that this node has made to the announced address. */
void sn_protocol_met(sn_protocol *protocol, const sn_event *event) {
    const sn_outgoing *o = &protocol->outgoing;
    for (size_t i = 0; i < o->n; i++)
        if (o->all[i].peer == event->peer)
            sn_membership_prove(protocol->membership, o->all[i].node, event->key, protocol->unix_ms);
}

void sn_protocol_outgoing_lost(sn_protocol *protocol, sn_peer peer) {
    for (size_t i = 0; i < protocol->outgoing.n; i++)
        if (protocol->outgoing.all[i].peer == peer) protocol->outgoing.all[i].peer = 0;
}

bool sn_protocol_outgoing_has(const sn_protocol *protocol, sn_peer peer) {
    for (size_t i = 0; i < protocol->outgoing.n; i++)
        if (protocol->outgoing.all[i].peer == peer) return true;
    return false;
}

int64_t sn_protocol_outgoing_tick(sn_protocol *protocol, int64_t now_us) {
    sn_outgoing *o = &protocol->outgoing;
    int64_t soonest = INT64_MAX;
    for (size_t i = o->n; i-- > 0;) {
        int64_t due_us = o->all[i].used_us + IDLE_US;
        if (now_us >= due_us)
            outgoing_hang_up(protocol, &o->all[i]);
        else if (due_us < soonest)
            soonest = due_us;
    }
    return soonest;
}

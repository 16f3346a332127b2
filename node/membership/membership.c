/* The life cycle of sn_membership, the node's own announcement, and the rounds in which it is renewed. */
#include "node/membership/membership_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROVEN_MS = 600000 }; /* for which an answer of a node proves it */

sn_status sn_membership_new(const sn_membership_setup *setup, sn_membership **out, sn_err *err) {
    sn_membership *m = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->setup = *setup;
    snprintf(m->address, sizeof m->address, "%s", setup->address);
    snprintf(m->name, sizeof m->name, "%s", setup->name);
    m->setup.address = m->address;
    m->setup.name = m->name;
    sn_buf_init(&m->own.sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    sn_gossip_init(&m->gossip, sn_node_tag(setup->identity->id), setup->gossip_bytes_per_s);
    status = sn_directory_new(&m->directory, err);
    if (!status && setup->transport->dials_names) sn_directory_accept_names(m->directory);
    if (!status && setup->directory_max) sn_directory_limit(m->directory, setup->directory_max);
    if (status) sn_membership_free(&m);
    *out = m;
    return status;
}

void sn_membership_free(sn_membership **membership) {
    sn_membership *m = *membership;
    if (!m) return;
    sn_directory_free(&m->directory);
    sn_buf_fini(&m->own.sealed);
    free(m);
    *membership = NULL;
}

const sn_directory *sn_membership_directory(const sn_membership *m) { return m->directory; }

sn_blob sn_membership_own_announcement(const sn_membership *m) {
    return (sn_blob){m->own.sealed.data, m->own.sealed.len};
}

const char *sn_membership_address(const sn_membership *m) { return m->address; }

void sn_membership_set_reach(sn_membership *m, const char *address, sn_reach_kind reach) {
    snprintf(m->address, sizeof m->address, "%s", address);
    m->reach = reach;
}

void sn_membership_set_relay_places(sn_membership *m, uint64_t places) { m->relay_places = places; }

sn_msg *sn_membership_new_msg(sn_msg_kind kind, uint64_t correlation_id) {
    sn_msg *msg = NULL;
    sn_err err;
    if (sn_msg_new(kind, correlation_id, &msg, &err)) sn_log(SN_LOG_ERROR, "message not made", "text=%s", err.text);
    return msg;
}

/* -- the node's own announcement ----------------------------------------------------------------------------------- */

/* Grows with every announcement, also after a restart, because it follows the wall clock where it can. */
static uint64_t own_next_sequence(sn_membership *m, int64_t unix_ms) {
    if ((uint64_t)unix_ms > m->own.sequence)
        m->own.sequence = (uint64_t)unix_ms;
    else
        m->own.sequence++; /* a second one in this millisecond, or the clock was set back */
    return m->own.sequence;
}

static sn_status own_announcement_seal(sn_membership *m, int64_t unix_ms, sn_err *err) {
    sn_announcement *a = NULL; /* too large for the stack: it holds a hash for each block */
    const sn_identity *identity = m->setup.identity;
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    memcpy(a->node, identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, identity->curve_key, SN_KEY_SIZE);
    memcpy(a->address, m->address, sizeof a->address);
    a->reach = m->reach;
    a->relay_places = m->relay_places;
    memcpy(a->name, m->name, sizeof a->name);
    memcpy(a->version, SN_VERSION, sizeof SN_VERSION);
    a->protocol = SN_PROTOCOL_VERSION;
    a->sequence = own_next_sequence(m, unix_ms);
    a->expires_unix_ms = (uint64_t)unix_ms + SN_ANNOUNCE_LIFE_MS;
    a->network_bytes_per_s = sn_ping_stats_bytes_per_s(&m->ping_stats);
    sn_ping_stats_announce(&m->ping_stats, a);
    m->setup.host.describe(m->setup.host.ctx, a);
    sn_buf_fini(&m->own.sealed);
    sn_buf_init(&m->own.sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    status = sn_announcement_seal(a, identity, &m->own.sealed, err);
    free(a);
    return status;
}

sn_status sn_membership_copy_blob(const sn_blob *from, sn_blob *to, sn_err *err) {
    sn_status status = sn_calloc(&to->data, from->len, 1, err);
    if (status) return status;
    memcpy(to->data, from->data, from->len);
    to->len = from->len;
    return SN_OK;
}

sn_status sn_membership_copy_own(const sn_membership *m, sn_blob **out, size_t *n, sn_err *err) {
    const sn_blob own = sn_membership_own_announcement(m);
    sn_status status = sn_list_new(own.len ? 1 : 0, 1, sizeof **out, out, err);
    if (status || !own.len) return status;
    status = sn_membership_copy_blob(&own, *out, err);
    if (!status) *n = 1;
    return status;
}

void sn_membership_announce(sn_membership *m, int64_t now_us, int64_t unix_ms) {
    sn_err err;
    sn_directory_change change = SN_CHANGE_NONE;
    uint64_t tag = 0;
    sn_status status = own_announcement_seal(m, unix_ms, &err);
    if (!status)
        status = sn_directory_update(m->directory, m->own.sealed.data, m->own.sealed.len, unix_ms, NULL, &change, &tag,
                                     &err);
    if (!status) sn_directory_prove(m->directory, m->setup.identity->id, INT64_MAX);
    if (status)
        sn_log(SN_LOG_ERROR, "announcement failed", "text=%s", err.text);
    else if (change == SN_CHANGE_NODE)
        sn_gossip_announce_now(m);
    else
        sn_gossip_enqueue(m, tag, change, now_us);
}

/* -- proven nodes -------------------------------------------------------------------------------------------------- */

void sn_membership_prove(sn_membership *m, const uint8_t id[SN_KEY_SIZE], const uint8_t curve_key[SN_KEY_SIZE],
                         int64_t unix_ms) {
    const sn_announcement *a = sn_directory_find(m->directory, id);
    if (a && !memcmp(a->curve_key, curve_key, SN_KEY_SIZE)) sn_directory_prove(m->directory, id, unix_ms + PROVEN_MS);
}

void sn_membership_note_answer(sn_membership *m, const sn_event *event, int64_t unix_ms) {
    for (size_t i = 0; i < m->gossip.n_neighbours; i++)
        if (m->gossip.neighbours[i].peer == event->peer)
            sn_membership_prove(m, m->gossip.neighbours[i].id, event->key, unix_ms);
    for (size_t i = 0; i < SN_ANCHORS_MAX; i++)
        if (m->gossip.anchors[i].peer == event->peer)
            sn_membership_prove(m, m->gossip.anchors[i].id, event->key, unix_ms);
    for (size_t i = 0; i < m->n_bootstrap_peers; i++)
        if (m->bootstrap_peers[i].peer == event->peer && m->bootstrap_peers[i].known)
            sn_membership_prove(m, m->bootstrap_peers[i].id, event->key, unix_ms);
}

/* -- rounds and messages ------------------------------------------------------------------------------------------- */

bool sn_membership_round(sn_membership *m, int64_t now_us, int64_t unix_ms) {
    if (now_us < m->own.due_us) return false;
    m->own.due_us =
        now_us + SN_ANNOUNCE_EVERY_MS * 1000 - (int64_t)sn_rng_below(&m->gossip.seed, SN_ANNOUNCE_EVERY_MS * 1000 / 5);
    sn_directory_expire(m->directory, unix_ms);
    sn_gossip_round(m, unix_ms);
    sn_membership_announce(m, now_us, unix_ms);
    sn_gossip_tell_proven(m, unix_ms);
    sn_bootstrap_round(m);
    sn_ping_round(m, now_us);
    return true;
}

int64_t sn_membership_tick(sn_membership *m, int64_t now_us, int64_t unix_ms) {
    int64_t gossip_us = sn_gossip_tick(m, now_us, unix_ms);
    return gossip_us < m->own.due_us ? gossip_us : m->own.due_us;
}

void sn_membership_handle(sn_membership *m, const sn_event *event, int64_t now_us, int64_t unix_ms) {
    switch (event->msg->kind) {
    case SN_MSG_PEERS:
        sn_membership_on_peers(m, event, now_us, unix_ms);
        break;
    case SN_MSG_PEERS_REPLY:
        sn_membership_on_peers_reply(m, event, now_us, unix_ms);
        break;
    case SN_MSG_PING:
        sn_ping_on_ping(m, event);
        break;
    case SN_MSG_PONG:
        sn_ping_on_pong(m, event, now_us);
        sn_membership_note_answer(m, event, unix_ms);
        break;
    default:
        break;
    }
}

/* Bootstrap peers are dialled again for ever. Other peers are dialled again when there is a message for them, so that
 * connections to dead nodes do not accumulate. */
void sn_membership_peer_lost(sn_membership *m, const sn_event *event) {
    sn_log_rated(SN_LOG_INFO, "peer lost", "text=%s", event->err.text);
    sn_gossip_peer_lost(m, event->peer);
    if (*event->other_at) sn_directory_retire(m->directory, event->other_at, event->key);
    for (size_t i = 0; i < m->n_bootstrap_peers; i++)
        if (m->bootstrap_peers[i].peer == event->peer) {
            m->bootstrap_peers[i].answered = m->bootstrap_peers[i].met = false;
            sn_bootstrap_ask_key(m, &m->bootstrap_peers[i]);
            return;
        }
    if (m->relay == event->peer) m->relay = 0;
    sn_transport_hang_up(m->setup.transport, event->peer);
}

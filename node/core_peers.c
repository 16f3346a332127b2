/* Announcements: what a node says of itself, and the passing on of what it has heard. */
#include "node/core_private.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    KNOWN_PER_ROUND = 3, /* nodes from the directory that hear from us each round, besides those we joined */
    SOON_US = 100000,
};

/* What a token costs on the way in and out, as float32. */
static uint64_t token_bytes(const sn_core *core) { return 2 * sizeof(float) * (uint64_t)core->hp->n_embd; }

static void tell_rates(const sn_core *core, const sn_engine_figures *figures, sn_announcement *a) {
    a->decode_us = figures->decode_us;
    a->prompt_tokens_per_s = figures->prompt_tokens_per_s;
    a->network_bytes_per_s = sn_distance_bytes_per_s(&core->distance);
    sn_distance_tell(&core->distance, a);
    if (!a->decode_us) return;
    uint64_t carried = a->network_bytes_per_s / token_bytes(core);
    a->tokens_per_s = 1000000 / a->decode_us;
    if (a->network_bytes_per_s && carried < a->tokens_per_s) a->tokens_per_s = carried;
    if (!a->tokens_per_s) a->tokens_per_s = 1; /* 0 is kept for what was not measured */
}

static sn_status seal_own(sn_core *core, int64_t unix_ms, sn_err *err) {
    sn_engine_figures figures = core->setup.read(core->setup.ctx);
    sn_announcement *a = NULL; /* large for a stack: it holds a hash for each block */
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    const sn_span_facts *span = &core->setup.span;
    memcpy(a->node, core->setup.identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, core->setup.identity->curve_key, SN_KEY_SIZE);
    memcpy(a->address, core->address, sizeof a->address);
    memcpy(a->name, core->name, sizeof a->name);
    memcpy(a->version, SN_VERSION, sizeof SN_VERSION);
    a->protocol = SN_PROTOCOL;
    if ((uint64_t)unix_ms > core->sequence) core->sequence = (uint64_t)unix_ms; /* grows over restarts, too */
    else core->sequence++; /* twice in a millisecond, or the clock was set back */
    a->sequence = core->sequence;
    a->expires_unix_ms = (uint64_t)unix_ms + SN_ANNOUNCE_LIFE_MS;
    a->state = core->leaving ? SN_NODE_OFFLINE : core->draining ? SN_NODE_DRAINING : SN_NODE_ONLINE;
    memcpy(a->model, core->setup.model.bytes, SN_HASH_SIZE);
    a->first_block = (uint64_t)span->first;
    a->end_block = (uint64_t)span->end;
    a->n_blocks = (uint64_t)core->hp->n_blocks;
    for (int i = 0; i < span->end - span->first; i++) memcpy(a->block_hash[i], span->block_hash[i].bytes, SN_HASH_SIZE);
    tell_rates(core, &figures, a);
    a->wire_dtype[a->n_wire_dtype++] = SN_F32;
    a->wire_dtype[a->n_wire_dtype++] = SN_F16;
    a->wire_dtype[a->n_wire_dtype++] = SN_BF16;
    a->kv_bytes_free = core->setup.kv_bytes_max - figures.kv_bytes;
    a->sessions = sn_sessions_count(core->sessions);
    a->queue = figures.queue;
    sn_buf_fini(&core->sealed);
    sn_buf_init(&core->sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    status = sn_announcement_seal(a, core->setup.identity, &core->sealed, err);
    if (!status) status = sn_directory_take(core->directory, core->sealed.data, core->sealed.len, unix_ms, err);
    free(a);
    return status;
}

static sn_status copy_blob(sn_blob *out, const uint8_t *data, size_t len, sn_err *err) {
    sn_status status = sn_calloc(&out->data, len, 1, err);
    if (status) return status;
    memcpy(out->data, data, len);
    out->len = len;
    return SN_OK;
}

static bool is_zero(const uint8_t key[SN_KEY_SIZE]) {
    for (int i = 0; i < SN_KEY_SIZE; i++)
        if (key[i]) return false;
    return true;
}

/* Every live announcement of the model (zero: all), as many as a message takes. That we leave is not one of them, since a
 * directory lists nobody who is gone; it is told all the same. */
static sn_status list_known(const sn_core *core, const uint8_t model[SN_KEY_SIZE], sn_blob **out, size_t *n,
                            sn_err *err) {
    size_t own = core->leaving && core->sealed.len ? 1 : 0, kept = 0;
    size_t count = sn_min_size(own + sn_directory_count(core->directory), SN_ANNOUNCEMENTS_MAX);
    sn_status status = sn_list_new(count, SN_ANNOUNCEMENTS_MAX, sizeof **out, out, err);
    *n = 0;
    if (own && !status) {
        status = copy_blob(*out, core->sealed.data, core->sealed.len, err);
        if (!status) *n = ++kept;
    }
    for (size_t i = 0; i < sn_directory_count(core->directory) && kept < count && !status; i++) {
        if (!is_zero(model) && memcmp(sn_directory_at(core->directory, i)->model, model, SN_KEY_SIZE)) continue;
        const sn_blob *sealed = sn_directory_sealed_at(core->directory, i);
        status = copy_blob(&(*out)[kept], sealed->data, sealed->len, err);
        if (!status) *n = ++kept;
    }
    return status;
}

static void take_all(sn_core *core, const sn_blob *blobs, size_t n, int64_t unix_ms) {
    sn_err err;
    for (size_t i = 0; i < n; i++)
        if (sn_directory_take(core->directory, blobs[i].data, blobs[i].len, unix_ms, &err))
            sn_log(SN_LOG_DEBUG, "announcement dropped", "text=%s", err.text);
}

void sn_core_on_peers(sn_core *core, sn_event *event, int64_t unix_ms) {
    const sn_msg_peers *peers = &event->msg->peers;
    sn_err err;
    if (peers->protocol != SN_PROTOCOL) {
        (void)sn_fail(&err, SN_REFUSED, "this node speaks protocol %d: use a matching version", SN_PROTOCOL);
        sn_core_refuse(core, event->peer, event->msg, &err);
        return;
    }
    take_all(core, peers->announcements, peers->n_announcements, unix_ms);
    sn_msg *msg = sn_core_new_msg(SN_MSG_PEERS_ARE, event->msg->request);
    if (!msg) return;
    if (list_known(core, peers->model, &msg->peers_are.announcements, &msg->peers_are.n_announcements, &err))
        sn_core_refuse(core, event->peer, event->msg, &err);
    else
        sn_core_send(core, event->peer, &msg);
    sn_msg_free(&msg);
}

/* Whoever hears of nodes for the first time tells them of itself soon, not only in the next round. */
void sn_core_on_peers_are(sn_core *core, sn_event *event, int64_t unix_ms) {
    size_t before = sn_directory_count(core->directory);
    take_all(core, event->msg->peers_are.announcements, event->msg->peers_are.n_announcements, unix_ms);
    int64_t soon_us = event->arrived_us + SOON_US;
    if (sn_directory_count(core->directory) > before && soon_us < core->announce_us) core->announce_us = soon_us;
}

static void tell(sn_core *core, sn_peer peer) {
    sn_msg *msg = sn_core_new_msg(SN_MSG_PEERS, 0);
    sn_err err;
    if (!msg) return;
    msg->peers.protocol = SN_PROTOCOL;
    if (!list_known(core, msg->peers.model, &msg->peers.announcements, &msg->peers.n_announcements, &err))
        sn_core_send(core, peer, &msg);
    sn_msg_free(&msg);
}

void sn_core_announce(sn_core *core, int64_t unix_ms) {
    sn_err err;
    if (seal_own(core, unix_ms, &err)) {
        sn_log(SN_LOG_ERROR, "no announcement made", "text=%s", err.text);
        return;
    }
    for (size_t i = 0; i < core->n_joined; i++) tell(core, core->joined[i]);
    size_t count = sn_directory_count(core->directory);
    for (size_t i = 0; i < KNOWN_PER_ROUND && i < count; i++) {
        const sn_announcement *a = sn_directory_at(core->directory, core->next_known++ % count);
        sn_peer peer;
        bool self = !memcmp(a->node, core->setup.identity->id, SN_KEY_SIZE);
        if (!self && !sn_transport_dial(core->setup.transport, a->address, a->curve_key, &peer, &err)) tell(core, peer);
    }
}

/* Those that we were told to join are tried for ever; others are dialled anew when there is something to say to them, so
 * that the dead do not gather. */
void sn_core_on_loss(sn_core *core, const sn_event *event) {
    sn_log(SN_LOG_INFO, "peer lost", "text=%s", event->bad.text);
    for (size_t i = 0; i < core->n_joined; i++)
        if (core->joined[i] == event->peer) return;
    sn_transport_hang_up(core->setup.transport, event->peer);
}

void sn_core_join(sn_core *core, const char *address, const uint8_t curve_key[SN_KEY_SIZE]) {
    sn_peer peer;
    sn_err err;
    if (core->n_joined == SN_JOINED_MAX || !memcmp(curve_key, core->setup.identity->curve_key, SN_KEY_SIZE)) return;
    if (sn_transport_dial(core->setup.transport, address, curve_key, &peer, &err)) {
        sn_log(SN_LOG_WARN, "cannot join", "address=%s text=%s", address, err.text);
        return;
    }
    core->joined[core->n_joined++] = peer;
    if (core->sealed.len) tell(core, peer);
}

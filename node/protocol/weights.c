/* WEIGHTS_OFFER and WEIGHTS: the node gives bytes of its model's files to programs that ask. These check them
 * against the manifest, so nothing here is a matter of trust; what matters is that it costs the sessions nothing they
 * notice.
 *
 * Requests for bytes wait in one queue, in which a peer has few places, and are served in order: at a bounded rate, a
 * part of it while steps are computed, and no more than one between two rounds of the network thread, so that every
 * message that has arrived meanwhile comes first. Requests from the node's own network may have a rate of their own:
 * what they get takes nothing of the line to the internet. */
#include "node/protocol/protocol_private.h"

#include "base/mem.h"
#include "net/near.h"

#include <stdlib.h>
#include <string.h>

enum {
    PLACES_OF_PEER = 8,
    BURST = 1 << 20,         /* bytes that may be sent at once after a pause */
    AT_WORK_US = 1000000,    /* after a step, for which sessions count as being at work */
    AT_WORK_SHARE = 4,       /* the rate is divided by it then, */
    NEAR_SHARE = 32,         /* and that of the own network, which is not bounded by a line, by this */
    NEAR_LOOK_US = 10000000, /* for which a host that is near stays so */
    NOT_READ_US = 5000,      /* until bytes that were not in memory are looked for again */
    FULL_WAIT_MS = 200,      /* told to a peer whose places are taken */
    READ_TRIES = 400
};

void sn_protocol_share(sn_protocol *protocol, const sn_hash *manifest, int64_t now_us, int64_t unix_ms) {
    sn_sharing *s = &protocol->sharing;
    s->shares = manifest && protocol->setup.share.bytes_per_s;
    s->n = 0;
    if (manifest) s->manifest = *manifest;
    if (sn_membership_own_announcement(protocol->membership).len)
        sn_membership_announce(protocol->membership, now_us, unix_ms);
}

/* Whether the request is about what this node shares. */
static sn_status check_manifest(const sn_protocol *protocol, const uint8_t manifest[SN_KEY_SIZE], sn_err *err) {
    const sn_sharing *s = &protocol->sharing;
    if (s->shares && !memcmp(manifest, s->manifest.bytes, SN_KEY_SIZE)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "this node shares no files of this manifest");
}

void sn_protocol_on_weights_offer(sn_protocol *protocol, const sn_event *event) {
    const sn_msg_weights_offer *request = &event->msg->weights_offer;
    const sn_share *share = &protocol->setup.share;
    sn_msg *msg = NULL;
    sn_range_set present = {0};
    sn_err err;
    sn_status status = check_manifest(protocol, request->manifest, &err);
    if (!status) status = share->offer(share->ctx, request->file, &present, &err);
    if (!status) status = sn_msg_new(SN_MSG_WEIGHTS_OFFER_REPLY, event->msg->correlation_id, &msg, &err);
    size_t n = sn_min_size(present.n, SN_BYTE_RANGES_MAX);
    if (!status)
        status = sn_list_new(n, SN_BYTE_RANGES_MAX, sizeof(sn_byte_range), &msg->weights_offer_reply.ranges, &err);
    if (!status) msg->weights_offer_reply.n_ranges = n;
    for (size_t i = 0; !status && i < n; i++)
        msg->weights_offer_reply.ranges[i] = (sn_byte_range){present.ranges[i].from, present.ranges[i].to};
    sn_range_set_fini(&present);
    if (!status)
        sn_protocol_send(protocol, event->peer, &msg);
    else
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
    sn_msg_free(&msg);
}

/* Whether the peer may have the rate of the node's own network. One that comes over a relay has no host. */
static bool is_near(sn_protocol *protocol, const sn_event *event) {
    sn_sharing *s = &protocol->sharing;
    char host[SN_ADDRESS_MAX + 1];
    if (!protocol->setup.share.near_bytes_per_s) return false;
    if (!sn_transport_peer_host(protocol->setup.transport, event->peer, host)) return false;
    if (strcmp(host, s->asked.host) || event->arrived_us >= s->asked.until_us) {
        snprintf(s->asked.host, sizeof s->asked.host, "%s", host);
        s->asked.near = sn_host_is_near(host, protocol->setup.share.tunnel);
        s->asked.until_us = event->arrived_us + NEAR_LOOK_US;
    }
    return s->asked.near;
}

static sn_status enqueue(sn_protocol *protocol, const sn_event *event, sn_err *err) {
    sn_sharing *s = &protocol->sharing;
    const sn_msg_weights *request = &event->msg->weights;
    size_t of_peer = 0;
    sn_status status = check_manifest(protocol, request->manifest, err);
    if (status) return status;
    for (size_t i = 0; i < s->n; i++) of_peer += !memcmp(s->waiting[i].key, event->key, SN_KEY_SIZE);
    if (of_peer == PLACES_OF_PEER || s->n == SN_SHARING_WAITING_MAX) {
        (void)sn_fail(err, SN_RETRY, "this node gives weights to many already: ask again");
        err->retry_after_ms = FULL_WAIT_MS;
        return SN_RETRY;
    }
    sn_weights_request *w = &s->waiting[s->n++];
    *w = (sn_weights_request){.peer = event->peer,
                              .correlation_id = event->msg->correlation_id,
                              .file = request->file,
                              .from = request->from,
                              .bytes = (size_t)request->bytes,
                              .near = is_near(protocol, event)};
    memcpy(w->key, event->key, SN_KEY_SIZE);
    return SN_OK;
}

void sn_protocol_on_weights(sn_protocol *protocol, const sn_event *event) {
    sn_err err = {0};
    if (enqueue(protocol, event, &err)) sn_protocol_refuse(protocol, event->peer, event->msg, &err);
}

void sn_protocol_sharing_gone(sn_protocol *protocol, sn_peer peer) {
    sn_sharing *s = &protocol->sharing;
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->waiting[i].peer != peer) s->waiting[kept++] = s->waiting[i];
    s->n = kept;
}

/* The reply with the bytes that were asked for. SN_RETRY: they are not in memory. */
static sn_status make_reply(const sn_protocol *protocol, const sn_weights_request *w, sn_msg **out, sn_err *err) {
    static uint8_t bytes[SN_WEIGHTS_SIZE_MAX]; /* of the network thread */
    const sn_share *share = &protocol->setup.share;
    size_t n = (w->bytes + SN_ANNOUNCEMENT_SIZE_MAX - 1) / SN_ANNOUNCEMENT_SIZE_MAX;
    uint64_t size;
    sn_status status = share->read(share->ctx, w->file, w->from, w->bytes, bytes, &size, err);
    if (!status) status = sn_msg_new(SN_MSG_WEIGHTS_REPLY, w->correlation_id, out, err);
    if (status) return status;
    sn_msg_weights_reply *reply = &(*out)->weights_reply;
    reply->size = size;
    status = sn_list_new(n, SN_PADDINGS_MAX, sizeof *reply->bytes, &reply->bytes, err);
    if (!status) reply->n_bytes = n;
    for (size_t i = 0; !status && i < n; i++) {
        size_t at = i * SN_ANNOUNCEMENT_SIZE_MAX, len = sn_min_size(w->bytes - at, SN_ANNOUNCEMENT_SIZE_MAX);
        status = sn_calloc(&reply->bytes[i].data, len, 1, err);
        if (!status) memcpy(reply->bytes[i].data, bytes + at, len);
        if (!status) reply->bytes[i].len = len;
    }
    return status;
}

/* Serves a request of the queue, or moves it to the end where its bytes are not in memory yet. */
static void serve(sn_protocol *protocol, size_t at, int64_t now_us) {
    sn_sharing *s = &protocol->sharing;
    sn_weights_request w = s->waiting[at];
    sn_msg *msg = NULL;
    sn_err err;
    memmove(s->waiting + at, s->waiting + at + 1, (--s->n - at) * sizeof *s->waiting);
    sn_status status = make_reply(protocol, &w, &msg, &err);
    if (status == SN_RETRY && w.tries < READ_TRIES) {
        w.tries++;
        w.not_before_us = now_us + NOT_READ_US;
        s->waiting[s->n++] = w;
    } else if (status) {
        const sn_msg request = {.kind = SN_MSG_WEIGHTS, .correlation_id = w.correlation_id};
        sn_protocol_refuse(protocol, w.peer, &request, &err);
    } else {
        s->rates[w.near].left -= (int64_t)w.bytes;
        protocol->counters.shared_bytes += w.bytes;
        sn_protocol_send(protocol, w.peer, &msg);
    }
    sn_msg_free(&msg);
}

/* When bytes may be sent at the rate of the own network, or of the internet. */
static int64_t refill(sn_protocol *protocol, bool near, int64_t now_us) {
    const sn_share *share = &protocol->setup.share;
    sn_sharing *s = &protocol->sharing;
    int64_t rate = (int64_t)(near ? share->near_bytes_per_s : share->bytes_per_s);
    int64_t left = s->rates[near].left, passed = now_us - s->rates[near].refilled_us;
    if (s->stepped_us && now_us - s->stepped_us < AT_WORK_US) rate = rate / (near ? NEAR_SHARE : AT_WORK_SHARE) + 1;
    if (passed > AT_WORK_US || !s->rates[near].refilled_us) passed = AT_WORK_US;
    left += passed * rate / 1000000;
    if (left > BURST) left = BURST;
    s->rates[near].left = left;
    s->rates[near].refilled_us = now_us;
    if (!rate) return INT64_MAX;
    return left > 0 ? now_us : now_us + (1 - left) * 1000000 / rate + 1;
}

int64_t sn_protocol_sharing_tick(sn_protocol *protocol, int64_t now_us) {
    sn_sharing *s = &protocol->sharing;
    const int64_t due_us[2] = {refill(protocol, false, now_us), refill(protocol, true, now_us)};
    int64_t next_us = INT64_MAX;
    for (size_t i = 0; i < s->n; i++) {
        const sn_weights_request *w = &s->waiting[i];
        int64_t at_us = w->not_before_us > due_us[w->near] ? w->not_before_us : due_us[w->near];
        if (at_us <= now_us) {
            serve(protocol, i, now_us);
            return s->n ? now_us : INT64_MAX;
        }
        if (at_us < next_us) next_us = at_us;
    }
    return next_us;
}

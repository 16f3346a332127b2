/* WEIGHTS_OFFER and WEIGHTS: the node gives bytes of its model's files to programs that ask. These check them
 * against the manifest, so nothing here is a matter of trust; what matters is that it costs the sessions nothing they
 * notice.
 *
 * Requests for bytes wait in one queue, in which a peer has few places, and are served in order: at a bounded rate, a
 * quarter of it while steps are computed, and no more than one between two rounds of the network thread, so that every
 * message that has arrived meanwhile comes first. */
#include "node/protocol/protocol_private.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    PLACES_OF_PEER = 8,
    BURST = 1 << 20,      /* bytes that may be sent at once after a pause */
    AT_WORK_US = 1000000, /* after a step, for which sessions count as being at work */
    AT_WORK_SHARE = 4,    /* the rate is divided by it then */
    NOT_READ_US = 5000,   /* until bytes that were not in memory are looked for again */
    FULL_WAIT_MS = 200,   /* told to a peer whose places are taken */
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
                              .bytes = (size_t)request->bytes};
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

/* Serves the first request of the queue, or moves it to the end where its bytes are not in memory yet. */
static void serve_first(sn_protocol *protocol, int64_t now_us) {
    sn_sharing *s = &protocol->sharing;
    sn_weights_request first = s->waiting[0];
    sn_msg *msg = NULL;
    sn_err err;
    memmove(s->waiting, s->waiting + 1, --s->n * sizeof *s->waiting);
    sn_status status = make_reply(protocol, &first, &msg, &err);
    if (status == SN_RETRY && first.tries < READ_TRIES) {
        first.tries++;
        first.not_before_us = now_us + NOT_READ_US;
        s->waiting[s->n++] = first;
    } else if (status) {
        const sn_msg request = {.kind = SN_MSG_WEIGHTS, .correlation_id = first.correlation_id};
        sn_protocol_refuse(protocol, first.peer, &request, &err);
    } else {
        s->left -= (int64_t)first.bytes;
        protocol->counters.shared_bytes += first.bytes;
        sn_protocol_send(protocol, first.peer, &msg);
    }
    sn_msg_free(&msg);
}

int64_t sn_protocol_sharing_tick(sn_protocol *protocol, int64_t now_us) {
    sn_sharing *s = &protocol->sharing;
    int64_t rate = (int64_t)protocol->setup.share.bytes_per_s, passed = now_us - s->refilled_us;
    if (s->stepped_us && now_us - s->stepped_us < AT_WORK_US) rate = rate / AT_WORK_SHARE + 1;
    if (passed > AT_WORK_US || !s->refilled_us) passed = AT_WORK_US;
    s->left += passed * rate / 1000000;
    if (s->left > BURST) s->left = BURST;
    s->refilled_us = now_us;
    if (!s->n || !rate) return INT64_MAX;
    if (s->left <= 0) return now_us + (1 - s->left) * 1000000 / rate + 1;
    if (s->waiting[0].not_before_us > now_us) return s->waiting[0].not_before_us;
    serve_first(protocol, now_us);
    return s->n ? now_us : INT64_MAX;
}

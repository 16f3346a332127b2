#include "tests/support/fake.h"

#include "base/clock.h"
#include "base/wire.h"
#include "net/timeline.h"
#include "tests/support/need.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct fake {
    const world *world;
    int first, end;
    fake_way way;
    sn_identity identity;
    sn_transport *transport;
    sn_peer owner; /* who opened the newest session */
    sn_buf sealed;
    pthread_t thread;
    atomic_bool stop;
    atomic_int asked;
};

void fake_announce(const world *w, const sn_identity *identity, const char *address, int first, int end, int speed,
                   sn_buf *out) {
    sn_announcement *a = calloc(1, sizeof *a);
    if (!a) abort();
    memcpy(a->node, identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, identity->curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "%s", address);
    snprintf(a->name, sizeof a->name, "fake");
    a->protocol = SN_PROTOCOL;
    a->sequence = (uint64_t)sn_unix_ms() + 3600000; /* newer than what a core of its own may tell of it */
    a->expires_unix_ms = (uint64_t)sn_unix_ms() + SN_ANNOUNCE_LIFE_MS;
    a->state = SN_NODE_ONLINE;
    memcpy(a->model, w->model.bytes, SN_KEY_SIZE);
    a->first_block = (uint64_t)first;
    a->end_block = (uint64_t)end;
    a->n_blocks = (uint64_t)w->n_blocks;
    a->kv_bytes_free = (uint64_t)1 << 40;
    for (int i = 0; i < SN_WIRE_DTYPES; i++) a->wire_dtype[a->n_wire_dtype++] = sn_wire_dtypes[i];
    if (speed) a->decode_us = speed > 0 ? 1 : 1000000;
    for (int i = 0; speed > 0 && i < cluster_count(w->cluster) && i < SN_ROUND_TRIPS_MAX; i++) { /* near everybody, too */
        a->round_trip[i].node = sn_node_tag(sn_node_id(cluster_node(w->cluster, i)));
        a->round_trip[i].us = 1;
        a->n_round_trip = (size_t)i + 1;
    }
    for (int b = first; b < end; b++) memcpy(a->block_hash[b - first], w->block_hash[b].bytes, SN_HASH_SIZE);
    sn_buf_init(out, SN_ANNOUNCEMENT_SIZE_MAX);
    NEED(sn_announcement_seal(a, identity, out, &err));
    free(a);
}

static sn_msg *new_error(const sn_msg *asked, uint64_t status) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_ERROR, asked->request, &msg, &err));
    msg->error.status = status;
    snprintf(msg->error.text, sizeof msg->error.text, "the fake does not want to");
    if (asked->kind == SN_MSG_STEP) memcpy(msg->error.session, asked->step.session, SN_SESSION_ID_SIZE);
    return msg;
}

static sn_msg *new_other_kind(const sn_msg *asked) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_CLOSED, asked->request, &msg, &err));
    return msg;
}

static sn_msg *answer_open(const fake *f, const sn_msg *asked) {
    sn_msg *msg = NULL;
    if (f->way == FAKE_OPENS_SILENTLY) return NULL;
    if (f->way == FAKE_OPENS_NOT) return new_error(asked, SN_REFUSED);
    if (f->way == FAKE_OPENS_OTHER_KIND) return new_other_kind(asked);
    NEED(sn_msg_new(SN_MSG_OPENED, asked->request, &msg, &err));
    msg->opened.step_tokens_max = f->way == FAKE_OPENS_FOR_NOTHING ? 0 : SN_SPAN_ROWS_MAX;
    return msg;
}

/* The hash that an honest node would answer. */
static sn_hash honest_timeline(const sn_msg *asked) {
    sn_hash at;
    sn_hasher *hasher = sn_hasher_new();
    size_t width = (size_t)asked->tensor.shape[1];
    memcpy(at.bytes, asked->step.timeline, SN_HASH_SIZE);
    for (size_t i = 0; i < asked->tensor.shape[0]; i++)
        at = sn_timeline_next(hasher, &at, (const float *)asked->tensor.data + i * width, width);
    sn_hasher_free(hasher);
    return at;
}

/* A RESULT that is right but for the way of this fake; its numbers are zeros. */
static sn_msg *answer_step(const fake *f, const sn_msg *asked) {
    sn_msg *msg = NULL;
    void *data;
    if (f->way >= FAKE_ERROR_OK && f->way <= FAKE_ERROR_UNKNOWN)
        return new_error(asked, f->way == FAKE_ERROR_UNKNOWN ? 77 : (uint64_t)(f->way - FAKE_ERROR_OK));
    if (f->way == FAKE_SILENT) return NULL;
    if (f->way == FAKE_OTHER_KIND) return new_other_kind(asked);
    NEED(sn_msg_new(SN_MSG_RESULT, asked->request, &msg, &err));
    memcpy(msg->result.session, asked->step.session, SN_SESSION_ID_SIZE);
    msg->result.step = asked->step.step;
    size_t before = asked->step.n_trace, n = before + (f->way == FAKE_LONG_TRACE ? 2 : f->way != FAKE_NO_TRACE);
    NEED(sn_list_new(n, SN_HOPS_MAX, sizeof *msg->result.trace, &msg->result.trace, &err));
    msg->result.n_trace = n;
    if (before) memcpy(msg->result.trace, asked->step.trace, before * sizeof *msg->result.trace);
    sn_hash timeline = honest_timeline(asked);
    if (f->way == FAKE_WRONG_TIMELINE) timeline.bytes[0] ^= 1;
    if (f->way == FAKE_NO_TIMELINE) timeline = (sn_hash){{0}};
    for (size_t i = before; i < n; i++) {
        memcpy(msg->result.trace[i].node, f->identity.id, SN_KEY_SIZE);
        memcpy(msg->result.trace[i].timeline, timeline.bytes, SN_HASH_SIZE);
        if (f->way == FAKE_OTHER_ID) msg->result.trace[i].node[5] ^= 4;
    }
    uint64_t shape[] = {asked->tensor.shape[0] + (f->way == FAKE_WRONG_ROWS),
                        asked->tensor.shape[1] - (f->way == FAKE_WRONG_WIDTH)};
    NEED(sn_msg_new_tensor(msg, f->way == FAKE_HALF_NUMBERS ? SN_F16 : SN_F32, 2, shape, &data, &err));
    memset(data, 0, msg->tensor.bytes);
    if (f->way == FAKE_NANS) ((float *)data)[shape[0] * shape[1] - 1] = NAN;
    return msg;
}

static void answer(fake *f, const sn_event *event) {
    sn_msg *msg = NULL;
    sn_err gone;
    sn_peer to = event->peer;
    if (event->msg->kind == SN_MSG_OPEN) {
        f->owner = event->peer;
        msg = answer_open(f, event->msg);
    } else if (event->msg->kind == SN_MSG_STEP) {
        to = f->owner; /* a push comes from another node */
        msg = answer_step(f, event->msg);
    } else if (event->msg->kind == SN_MSG_STATUS && f->way != FAKE_SILENT) {
        NEED(sn_msg_new(SN_MSG_STATUS_IS, event->msg->request, &msg, &err));
    }
    if (event->msg->kind == SN_MSG_OPEN || event->msg->kind == SN_MSG_STEP) atomic_fetch_add(&f->asked, 1);
    if (msg && sn_transport_send(f->transport, to, &msg, &gone)) sn_msg_free(&msg);
}

static void *run(void *ctx) {
    fake *f = ctx;
    while (!atomic_load(&f->stop)) {
        sn_event event;
        NEED(sn_transport_recv(f->transport, sn_now_us() + 1000000, &event, &err));
        if (event.msg) answer(f, &event);
        sn_msg_free(&event.msg);
    }
    return NULL;
}

fake *fake_new(world *w, const char *address, int first, int end, fake_way way) {
    fake *f = calloc(1, sizeof *f);
    char bound[SN_ADDRESS_MAX + 1];
    if (!f) abort();
    f->world = w;
    f->first = first;
    f->end = end;
    f->way = way;
    f->transport = cluster_transport(w->cluster, &f->identity);
    NEED(sn_transport_listen(f->transport, address, bound, &err));
    fake_announce(w, &f->identity, address, first, end, 0, &f->sealed);
    if (pthread_create(&f->thread, NULL, run, f)) abort();
    return f;
}

void fake_free(fake **f) {
    if (!*f) return;
    atomic_store(&(*f)->stop, true);
    sn_transport_wake((*f)->transport);
    pthread_join((*f)->thread, NULL);
    sn_transport_free(&(*f)->transport);
    sn_buf_fini(&(*f)->sealed);
    free(*f);
    *f = NULL;
}

void fake_tell(const fake *f, sn_link *link) {
    NEED(sn_directory_take(sn_link_directory(link), f->sealed.data, f->sealed.len, sn_unix_ms(), &err));
}

int fake_asked(const fake *f) { return atomic_load(&f->asked); }

#include "tests/support/fake_node.h"

#include "base/clock.h"
#include "base/wire.h"
#include "net/timeline.h"
#include "tests/support/require.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { FORGED = 64, FORGE_US = 100000 };

struct fake_node {
    const testbed *testbed;
    int first, end;
    fake_node_fault fault;
    sn_identity identity;
    sn_transport *transport;
    sn_peer owner; /* peer that opened the newest session */
    sn_peer asker; /* peer that asked for the status */
    uint64_t seen; /* the correlation id of that request */
    sn_buf sealed;
    pthread_t thread;
    atomic_bool stop;
    atomic_int requests;
};

void make_announcement_of(const testbed *w, const sn_identity *identity, const char *address, int first, int end,
                          int speed, sn_buf *out) {
    sn_announcement *a = calloc(1, sizeof *a);
    if (!a) abort();
    memcpy(a->node, identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, identity->curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "%s", address);
    snprintf(a->name, sizeof a->name, "fake");
    a->protocol = SN_PROTOCOL_VERSION;
    /* newer than any announcement that a real protocol of this node would make */
    a->sequence = (uint64_t)sn_unix_ms() + 3600000;
    a->expires_unix_ms = (uint64_t)sn_unix_ms() + SN_ANNOUNCE_LIFE_MS;
    a->state = SN_NODE_ONLINE;
    memcpy(a->model, w->model.bytes, SN_KEY_SIZE);
    a->first_block = (uint64_t)first;
    a->end_block = (uint64_t)end;
    a->n_blocks = (uint64_t)w->n_blocks;
    a->kv_bytes_free = (uint64_t)1 << 40;
    for (int i = 0; i < SN_WIRE_DTYPES; i++) a->wire_dtype[a->n_wire_dtype++] = sn_wire_dtypes[i];
    a->adapters[a->n_adapters++] = 1; /* for which it never answers */
    if (speed) a->decode_us = speed > 0 ? 1 : 1000000;
    for (int i = 0; speed > 0 && i < cluster_count(w->cluster) && i < SN_ROUND_TRIPS_MAX;
         i++) { /* close to every node, too */
        a->round_trip[i].node = sn_node_tag(sn_node_id(cluster_node(w->cluster, i)));
        a->round_trip[i].us = 1;
        a->n_round_trip = (size_t)i + 1;
    }
    a->kv_dtype = (uint64_t)sn_kv_dtype_element(w->kv_dtype);
    for (int b = first; b < end; b++) memcpy(a->block_hash[b - first], w->block_hash[b].bytes, SN_HASH_SIZE);
    sn_buf_init(out, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, identity, out, &err));
    free(a);
}

static sn_msg *new_error(const sn_msg *request, uint64_t status) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_ERROR, request->correlation_id, &msg, &err));
    msg->error.status = status;
    snprintf(msg->error.text, sizeof msg->error.text, "the fake node refuses");
    if (request->kind == SN_MSG_STEP) memcpy(msg->error.session, request->step.session, SN_SESSION_ID_SIZE);
    return msg;
}

static sn_msg *new_other_kind(const sn_msg *request) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_CLOSE_REPLY, request->correlation_id, &msg, &err));
    return msg;
}

static sn_msg *answer_open(const fake_node *f, const sn_msg *request) {
    sn_msg *msg = NULL;
    if (f->fault == FAKE_OPEN_SILENT) return NULL;
    if (f->fault == FAKE_OPEN_REFUSED) return new_error(request, SN_REFUSED);
    if (f->fault == FAKE_OPEN_REBUILD) return new_error(request, SN_REBUILD);
    if (f->fault == FAKE_OPEN_OTHER_KIND) return new_other_kind(request);
    REQUIRE(sn_msg_new(SN_MSG_OPEN_REPLY, request->correlation_id, &msg, &err));
    msg->open_reply.step_tokens_max = SN_SPAN_ROWS - (f->fault == FAKE_OPEN_SHORT_STEPS);
    return msg;
}

/* The hash that an honest node answers. */
static sn_hash honest_timeline(const sn_msg *request) {
    sn_hash at;
    sn_hasher *hasher = sn_hasher_new();
    size_t width = (size_t)request->tensor.shape[1];
    memcpy(at.bytes, request->step.timeline, SN_HASH_SIZE);
    for (size_t i = 0; i < request->tensor.shape[0]; i++)
        at = sn_timeline_next(hasher, &at, (const float *)request->tensor.data + i * width, width);
    sn_hasher_free(hasher);
    return at;
}

/* A STEP_REPLY that is right except for the fault of this fake node; its numbers are zeros. */
static sn_msg *answer_step(const fake_node *f, const sn_msg *request) {
    sn_msg *msg = NULL;
    void *data;
    if (f->fault >= FAKE_ERROR_OK && f->fault <= FAKE_ERROR_STOP)
        return new_error(request, (uint64_t)(f->fault - FAKE_ERROR_OK));
    if (f->fault == FAKE_ERROR_LATER || (f->fault == FAKE_BOASTS && atomic_load(&f->requests) % 2)) {
        msg = new_error(request, SN_RETRY);
        msg->error.wait_ms = FAKE_LATER_MS;
        return msg;
    }
    if (f->fault == FAKE_BLAMES) {
        msg = new_error(request, SN_REBUILD);
        if (request->step.n_route) memcpy(msg->error.session, request->step.route[0].session, SN_SESSION_ID_SIZE);
        return msg;
    }
    if (f->fault == FAKE_SILENT || f->fault == FAKE_PONDERS || f->fault == FAKE_DIES) return NULL;
    if (f->fault == FAKE_OTHER_KIND) return new_other_kind(request);
    REQUIRE(sn_msg_new(SN_MSG_STEP_REPLY, request->correlation_id, &msg, &err));
    memcpy(msg->step_reply.session, request->step.session, SN_SESSION_ID_SIZE);
    msg->step_reply.step = request->step.step;
    size_t before = request->step.n_trace, n = before + (f->fault == FAKE_LONG_TRACE ? 2 : f->fault != FAKE_NO_TRACE);
    REQUIRE(sn_list_new(n, SN_HOPS_MAX, sizeof *msg->step_reply.trace, &msg->step_reply.trace, &err));
    msg->step_reply.n_trace = n;
    if (before) memcpy(msg->step_reply.trace, request->step.trace, before * sizeof *msg->step_reply.trace);
    sn_hash timeline = honest_timeline(request);
    if (f->fault == FAKE_WRONG_TIMELINE) timeline.bytes[0] ^= 1;
    if (f->fault == FAKE_NO_TIMELINE) timeline = (sn_hash){{0}};
    for (size_t i = before; i < n; i++) {
        memcpy(msg->step_reply.trace[i].node, f->identity.id, SN_KEY_SIZE);
        memcpy(msg->step_reply.trace[i].timeline, timeline.bytes, SN_HASH_SIZE);
        if (f->fault == FAKE_BOASTS) msg->step_reply.trace[i].compute_us = UINT64_C(1) << 48;
        if (f->fault == FAKE_OTHER_ID) msg->step_reply.trace[i].node[5] ^= 4;
    }
    uint64_t shape[] = {request->tensor.shape[0] + (f->fault == FAKE_WRONG_ROWS),
                        request->tensor.shape[1] - (f->fault == FAKE_WRONG_WIDTH)};
    REQUIRE(sn_msg_new_tensor(msg, f->fault == FAKE_OTHER_DTYPE ? SN_F16 : SN_F32, 2, shape, &data, &err));
    memset(data, 0, msg->tensor.bytes);
    if (f->fault == FAKE_NANS) ((float *)data)[shape[0] * shape[1] - 1] = NAN;
    if (f->fault == FAKE_HUGE) ((float *)data)[0] = -3e38f;
    return msg;
}

static void send_forged(const fake_node *f) {
    for (uint64_t i = 0; i < FORGED; i++) {
        const sn_msg request = {.correlation_id = f->seen - FORGED / 8 + i};
        sn_msg *msg = new_error(&request, SN_REFUSED);
        sn_err ignored;
        if (sn_transport_send(f->transport, f->asker, &msg, &ignored)) sn_msg_free(&msg);
    }
}

static void answer_message(fake_node *f, const sn_event *event) {
    sn_msg *msg = NULL;
    sn_err ignored;
    sn_peer to = event->peer;
    if (event->msg->kind == SN_MSG_OPEN) {
        f->owner = event->peer;
        msg = answer_open(f, event->msg);
    } else if (event->msg->kind == SN_MSG_STEP) {
        to = f->owner; /* a pushed step comes from another node, its reply goes to the client */
        msg = answer_step(f, event->msg);
    } else if (event->msg->kind == SN_MSG_STATUS && f->fault != FAKE_SILENT) {
        if (f->fault == FAKE_PONDERS) sn_sleep_us(FAKE_PONDERS_MS * 1000);
        f->asker = event->peer;
        f->seen = event->msg->correlation_id;
        REQUIRE(sn_msg_new(SN_MSG_STATUS_REPLY, event->msg->correlation_id, &msg, &err));
    }
    if (event->msg->kind == SN_MSG_OPEN || event->msg->kind == SN_MSG_STEP) atomic_fetch_add(&f->requests, 1);
    if (msg && sn_transport_send(f->transport, to, &msg, &ignored)) sn_msg_free(&msg);
    if (event->msg->kind == SN_MSG_STEP && f->fault == FAKE_DIES) atomic_store(&f->stop, true);
}

static void *node_main(void *ctx) {
    fake_node *f = ctx;
    while (!atomic_load(&f->stop)) {
        sn_event event;
        bool forges = f->fault == FAKE_FORGES && f->asker;
        REQUIRE(sn_transport_recv(f->transport, sn_now_us() + (forges ? FORGE_US : 1000000), &event, &err));
        if (event.msg) answer_message(f, &event);
        sn_msg_free(&event.msg);
        if (forges) send_forged(f);
    }
    if (f->fault == FAKE_DIES) sn_transport_free(&f->transport);
    return NULL;
}

fake_node *fake_node_new(testbed *w, const char *address, int first, int end, fake_node_fault fault) {
    fake_node *f = calloc(1, sizeof *f);
    char bound[SN_ADDRESS_MAX + 1];
    if (!f) abort();
    f->testbed = w;
    f->first = first;
    f->end = end;
    f->fault = fault;
    f->transport = cluster_transport(w->cluster, &f->identity);
    REQUIRE(sn_transport_listen(f->transport, address, bound, &err));
    make_announcement_of(w, &f->identity, address, first, end, 0, &f->sealed);
    if (pthread_create(&f->thread, NULL, node_main, f)) abort();
    return f;
}

void fake_node_free(fake_node **f) {
    if (!*f) return;
    if (!atomic_exchange(&(*f)->stop, true)) sn_transport_wake((*f)->transport);
    pthread_join((*f)->thread, NULL);
    sn_transport_free(&(*f)->transport);
    sn_buf_fini(&(*f)->sealed);
    free(*f);
    *f = NULL;
}

void fake_node_claim_speed(const fake_node *f, const testbed *w, const char *address, sn_link *link) {
    sn_buf sealed;
    make_announcement_of(w, &f->identity, address, 0, w->n_blocks, 1, &sealed);
    REQUIRE(sn_directory_add(sn_link_directory(link), sealed.data, sealed.len, sn_unix_ms(), &err));
    sn_buf_fini(&sealed);
}

void fake_node_announce_to(const fake_node *f, sn_link *link) {
    REQUIRE(sn_directory_add(sn_link_directory(link), f->sealed.data, f->sealed.len, sn_unix_ms(), &err));
    sn_directory_prove(sn_link_directory(link), f->identity.id, INT64_MAX); /* no stranger */
}

int fake_node_requests(const fake_node *f) { return atomic_load(&f->requests); }

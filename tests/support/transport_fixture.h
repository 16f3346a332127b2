/* Transports of one kind that reach each other, for tests of transports. */
#ifndef SN_TESTS_TRANSPORT_FIXTURE_H
#define SN_TESTS_TRANSPORT_FIXTURE_H

#include "base/clock.h"
#include "net/transport/emulated_link.h"
#include "tests/support/memory_transport.h"

#include <criterion/criterion.h>
#include <signal.h> /* Criterion needs it for its .timeout */
#include <stdio.h>
#include <string.h>

typedef struct transport_fixture {
    sn_hub *hub;                  /* NULL: ZeroMQ */
    const sn_emulated_link *link; /* NULL: none */
    int n;
} transport_fixture;

typedef struct endpoint {
    sn_identity identity;
    sn_transport *t;
    char address[SN_ADDRESS_MAX + 1];
} endpoint;

static inline void require_ok(sn_status status, const sn_err *err) { cr_assert_eq(status, SN_OK, "%s", err->text); }

static inline void endpoint_make_transport(transport_fixture *w, endpoint *m) {
    sn_err err = {0};
    require_ok(w->hub ? sn_transport_memory_new(w->hub, &m->identity, &m->t, &err)
                      : sn_transport_zmq_new(&m->identity, &m->t, &err),
               &err);
    sn_transport *inner = m->t;
    if (w->link) require_ok(sn_transport_emulated_new(&inner, w->link, NULL, &m->t, &err), &err);
}

static inline void endpoint_open(transport_fixture *w, endpoint *m, bool listens) {
    sn_err err = {0};
    require_ok(sn_identity_new(&m->identity, &err), &err);
    endpoint_make_transport(w, m);
    if (!listens) return;
    char name[64] = "127.0.0.1:0";
    if (w->hub) snprintf(name, sizeof name, "node%d:1", w->n++);
    require_ok(sn_transport_listen(m->t, name, m->address, &err), &err);
}

/* Opens the endpoint again at the same address, after it was closed. */
static inline void endpoint_reopen(transport_fixture *w, endpoint *m) {
    sn_err err = {0};
    endpoint_make_transport(w, m);
    char address[SN_ADDRESS_MAX + 1];
    memcpy(address, m->address, sizeof address);
    require_ok(sn_transport_listen(m->t, address, m->address, &err), &err);
}

static inline sn_peer endpoint_dial(endpoint *from, const endpoint *to) {
    sn_err err = {0};
    sn_peer peer;
    require_ok(sn_transport_dial(from->t, to->address, to->identity.curve_key, &peer, &err), &err);
    return peer;
}

static inline sn_msg *status_message(uint64_t request) {
    sn_err err = {0};
    sn_msg *msg;
    require_ok(sn_msg_new(SN_MSG_STATUS, request, &msg, &err), &err);
    msg->status.protocol = SN_PROTOCOL_VERSION;
    return msg;
}

static inline sn_msg *step_reply_message(uint64_t request, uint64_t floats) {
    sn_err err = {0};
    sn_msg *msg;
    void *data;
    require_ok(sn_msg_new(SN_MSG_STEP_REPLY, request, &msg, &err), &err);
    require_ok(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, floats}, &data, &err), &err);
    for (uint64_t i = 0; i < floats; i++) ((float *)data)[i] = (float)(request + i);
    return msg;
}

static inline sn_status send_message(sn_transport *t, sn_peer peer, sn_msg *msg) {
    sn_err err = {0};
    sn_status status = sn_transport_send(t, peer, &msg, &err);
    cr_assert_eq(msg == NULL, status == SN_OK);
    sn_msg_free(&msg);
    return status;
}

static inline sn_event receive_event(sn_transport *t, int wait_ms) {
    sn_err err = {0};
    sn_event event;
    require_ok(sn_transport_recv(t, wait_ms ? sn_now_us() + (int64_t)wait_ms * 1000 : 0, &event, &err), &err);
    return event;
}

/* Expected events are waited for up to WAIT_MS. A call that must not wait takes less than SOON, even on a machine
 * that stalls. */
enum { WAIT_MS = 60000, SOON_US = 30000000 };

/* Receives an event, which must be a message. */
static inline sn_event expect_message(sn_transport *t) {
    sn_event event = receive_event(t, WAIT_MS);
    cr_assert(event.msg, "%s", event.peer ? event.err.text : "nothing came");
    return event;
}

/* *other: whether another program runs at the address now. */
static inline void expect_outage(sn_transport *t, sn_peer peer, const char *address, bool *other) {
    sn_event event = receive_event(t, WAIT_MS);
    cr_assert_null(event.msg);
    *other = *event.other_at;
    if (*other) cr_assert_str_eq(event.other_at, address);
    cr_assert_eq(event.peer, peer);
    cr_assert(event.lost);
    cr_assert_eq(event.err.status, SN_RETRY);
    cr_assert(strstr(event.err.text, address), "%s", event.err.text);
}

static inline void expect_loss(sn_transport *t, sn_peer peer, const char *address) {
    bool other;
    expect_outage(t, peer, address, &other);
    cr_assert_not(other);
}

static inline void expect_silence(sn_transport *t, int wait_ms) {
    sn_event event = receive_event(t, wait_ms);
    cr_assert_null(event.msg);
    cr_assert_eq(event.peer, 0);
}

static inline void endpoint_close(endpoint *m) { sn_transport_free(&m->t); }

#endif

/* Transports of one kind that find each other, for tests of transports. */
#ifndef SN_TESTS_TRANSPORT_WORLD_H
#define SN_TESTS_TRANSPORT_WORLD_H

#include "base/clock.h"
#include "net/shaped.h"

#include <criterion/criterion.h>
#include <signal.h> /* Criterion needs it for its .timeout */
#include <stdio.h>
#include <string.h>

typedef struct world {
    sn_hub *hub; /* NULL: ZeroMQ */
    const sn_shape *shape; /* NULL: none */
    int n;
} world;

typedef struct member {
    sn_identity identity;
    sn_transport *t;
    char address[SN_ADDRESS_MAX + 1];
} member;

static inline void must(sn_status status, const sn_err *err) { cr_assert_eq(status, SN_OK, "%s", err->text); }

static inline void make_transport(world *w, member *m) {
    sn_err err = {0};
    must(w->hub ? sn_transport_memory_new(w->hub, &m->identity, &m->t, &err)
                : sn_transport_zmq_new(&m->identity, &m->t, &err),
         &err);
    sn_transport *inner = m->t;
    if (w->shape) must(sn_transport_shaped_new(&inner, w->shape, NULL, &m->t, &err), &err);
}

static inline void join(world *w, member *m, bool listens) {
    sn_err err = {0};
    must(sn_identity_new(&m->identity, &err), &err);
    make_transport(w, m);
    if (!listens) return;
    char name[64] = "tcp://127.0.0.1:0";
    if (w->hub) snprintf(name, sizeof name, "mem://node-%d", w->n++);
    must(sn_transport_listen(m->t, name, m->address, &err), &err);
}

/* The same member at the same address, after it has left. */
static inline void again(world *w, member *m) {
    sn_err err = {0};
    make_transport(w, m);
    char address[SN_ADDRESS_MAX + 1];
    memcpy(address, m->address, sizeof address);
    must(sn_transport_listen(m->t, address, m->address, &err), &err);
}

static inline sn_peer dial(member *from, const member *to) {
    sn_err err = {0};
    sn_peer peer;
    must(sn_transport_dial(from->t, to->address, to->identity.curve_key, &peer, &err), &err);
    return peer;
}

static inline sn_msg *status_message(uint64_t request) {
    sn_err err = {0};
    sn_msg *msg;
    must(sn_msg_new(SN_MSG_STATUS, request, &msg, &err), &err);
    msg->status.protocol = SN_PROTOCOL;
    return msg;
}

static inline sn_msg *result_message(uint64_t request, uint64_t floats) {
    sn_err err = {0};
    sn_msg *msg;
    void *data;
    must(sn_msg_new(SN_MSG_RESULT, request, &msg, &err), &err);
    must(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, floats}, &data, &err), &err);
    for (uint64_t i = 0; i < floats; i++) ((float *)data)[i] = (float)(request + i);
    return msg;
}

static inline sn_status send_it(sn_transport *t, sn_peer peer, sn_msg *msg) {
    sn_err err = {0};
    sn_status status = sn_transport_send(t, peer, &msg, &err);
    cr_assert_eq(msg == NULL, status == SN_OK);
    sn_msg_free(&msg);
    return status;
}

static inline sn_event receive(sn_transport *t, int wait_ms) {
    sn_err err = {0};
    sn_event event;
    must(sn_transport_recv(t, wait_ms ? sn_now_us() + (int64_t)wait_ms * 1000 : 0, &event, &err), &err);
    return event;
}

/* What must come is waited for so long, and what must not be waited for takes less than SOON, on a machine that stalls, too. */
enum { WAIT_MS = 60000, SOON_US = 30000000 };

/* Something arrives, and it is a message. */
static inline sn_event expect(sn_transport *t) {
    sn_event event = receive(t, WAIT_MS);
    cr_assert(event.msg, "%s", event.peer ? event.bad.text : "nothing came");
    return event;
}

static inline void expect_loss(sn_transport *t, sn_peer peer, const char *address) {
    sn_event event = receive(t, WAIT_MS);
    cr_assert_null(event.msg);
    cr_assert_eq(event.peer, peer);
    cr_assert(event.lost);
    cr_assert_eq(event.bad.status, SN_RETRY);
    cr_assert(strstr(event.bad.text, address), "%s", event.bad.text);
}

static inline void expect_silence(sn_transport *t, int wait_ms) {
    sn_event event = receive(t, wait_ms);
    cr_assert_null(event.msg);
    cr_assert_eq(event.peer, 0);
}

static inline void leave(member *m) { sn_transport_free(&m->t); }

#endif

/* Two transports in two threads, and a third thread that wakes both all the time, while clients come and go; first in
 * memory, then over ZeroMQ.
 * For ThreadSanitizer, which cannot run under Criterion. */
#include "base/clock.h"
#include "net/transport/transport.h"
#include "tests/support/memory_transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 300, VISITORS = 20 };

typedef struct pair {
    sn_transport *node, *client;
    atomic_bool done;
} pair;

static void require_ok(sn_status status, const sn_err *err) {
    if (status == SN_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static void *serve_main(void *ctx) {
    pair *p = ctx;
    sn_err err = {0};
    while (!p->done) {
        sn_event event;
        require_ok(sn_transport_recv(p->node, sn_now_us() + 100000, &event, &err), &err);
        if (event.msg && sn_transport_send(p->node, event.peer, &event.msg, &err)) sn_msg_free(&event.msg); /* gone */
    }
    return NULL;
}

static void *wake_main(void *ctx) {
    pair *p = ctx;
    while (!p->done) {
        sn_transport_wake(p->node);
        sn_transport_wake(p->client);
        sn_sleep_us(500);
    }
    return NULL;
}

/* Sends a tensor and waits for its echo. */
static void request_status(pair *p, sn_peer peer, uint64_t request) {
    sn_err err = {0};
    sn_msg *msg;
    void *data;
    require_ok(sn_msg_new(SN_MSG_STEP_REPLY, request, &msg, &err), &err);
    require_ok(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){576}, &data, &err), &err);
    for (int i = 0; i < 576; i++) ((float *)data)[i] = (float)i;
    require_ok(sn_transport_send(p->client, peer, &msg, &err), &err);
    int64_t deadline = sn_now_us() + 60000000;
    sn_event event = {0};
    while (!event.msg && sn_now_us() < deadline) require_ok(sn_transport_recv(p->client, deadline, &event, &err), &err);
    if (!event.msg || event.msg->correlation_id != request || ((const float *)event.msg->tensor.data)[575] != 575.0f) {
        fprintf(stderr, "message %llu did not come back\n", (unsigned long long)request);
        exit(1);
    }
    sn_msg_free(&event.msg);
}

/* A client that sends a tensor, hangs up, dials again, and leaves. */
static void visit(sn_hub *hub, const char *address, const uint8_t key[SN_KEY_SIZE], uint64_t number) {
    sn_err err = {0};
    sn_identity identity;
    pair p = {0};
    sn_peer peer;
    require_ok(sn_identity_new(&identity, &err), &err);
    require_ok(hub ? sn_transport_memory_new(hub, &identity, &p.client, &err)
                   : sn_transport_zmq_new(&identity, &p.client, &err),
               &err);
    require_ok(sn_transport_dial(p.client, address, key, &peer, &err), &err);
    request_status(&p, peer, number);
    sn_msg *msg = NULL;
    require_ok(sn_msg_new(SN_MSG_CLOSE_REPLY, number, &msg, &err), &err);
    if (sn_transport_send(p.client, peer, &msg, &err)) sn_msg_free(&msg);
    sn_transport_hang_up(p.client, peer);
    require_ok(sn_transport_dial(p.client, address, key, &peer, &err), &err);
    request_status(&p, peer, number);
    sn_transport_free(&p.client);
}

static void exercise_hub(sn_hub *hub) {
    sn_err err = {0};
    sn_identity identity;
    pair p = {0};
    char bound[SN_ADDRESS_MAX + 1];
    sn_peer peer;
    require_ok(sn_identity_new(&identity, &err), &err);
    require_ok(hub ? sn_transport_memory_new(hub, &identity, &p.node, &err)
                   : sn_transport_zmq_new(&identity, &p.node, &err),
               &err);
    require_ok(hub ? sn_transport_memory_new(hub, &identity, &p.client, &err)
                   : sn_transport_zmq_new(&identity, &p.client, &err),
               &err);
    require_ok(sn_transport_listen(p.node, hub ? "node:1" : "127.0.0.1:0", bound, &err), &err);
    require_ok(sn_transport_dial(p.client, bound, identity.curve_key, &peer, &err), &err);
    pthread_t server, waker;
    if (pthread_create(&server, NULL, serve_main, &p) || pthread_create(&waker, NULL, wake_main, &p)) exit(1);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        request_status(&p, peer, i);
        if (i % (ROUNDS / VISITORS) == 0) visit(hub, bound, identity.curve_key, i);
    }
    p.done = true;
    pthread_join(server, NULL);
    pthread_join(waker, NULL);
    sn_transport_free(&p.client);
    sn_transport_free(&p.node);
}

int main(void) {
    sn_err err = {0};
    sn_hub *hub;
    require_ok(sn_hub_new(&hub, &err), &err);
    exercise_hub(hub);
    sn_hub_free(&hub);
    exercise_hub(NULL);
    return 0;
}

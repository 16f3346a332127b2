/* The transport inside a process: the behaviour of the ZeroMQ transport without sockets, so that a whole swarm runs in
 * one test.
 *
 * A hub holds all transports and all connections. A connection has the transport that dialled at end 0 and the one that
 * listens at end 1, which is looked up again at every send, because it may come and go. Sending enqueues the message at
 * the receiving transport; recv takes it out. Every message passes through the encoder and the decoder, so tests over
 * this transport exercise both. One lock, the hub's, guards everything here; a message is encoded, decoded and its
 * tensor copied before the lock is taken. A message to an address where no transport listens, or one with another key,
 * is dropped, and the sender gets one event that reports the outage. When the dialling end leaves, the listening end
 * gets one event that reports it, after the messages that wait. */
#include "tests/support/memory_transport.h"

#include "base/clock.h"
#include "net/address.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 1024 }; /* messages, for each connection and direction */

typedef struct memory_transport memory_transport;

typedef struct connection {
    struct connection *next;
    memory_transport *ends[2]; /* [0] dialled, [1] listens; NULL: not there yet, or gone */
    sn_peer peers[2];          /* the handle of this connection at each end; 0: none */
    size_t queued[2];          /* messages that wait at each end */
    sn_msg *reordered[2];      /* kept back by SN_REORDER, for each end */
    bool outage_reported;      /* the dialling end has received the event of this outage */
    bool other_listens;        /* a transport with another key listens at the address */
    uint8_t key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
} connection;

typedef struct queued_msg {
    struct queued_msg *next;
    connection *connection;
    int end;                  /* of the receiver */
    uint8_t key[SN_KEY_SIZE]; /* of the sender, which may be gone when the message is read */
    sn_msg *msg;              /* NULL: the other end is gone */
    int64_t arrived_us;
} queued_msg;

struct sn_hub {
    pthread_mutex_t lock;
    memory_transport *transports;
    connection *connections;
    sn_peer last_peer;
    sn_hub_filter filter;
    void *filter_ctx;
};

struct memory_transport {
    sn_transport base;
    memory_transport *next;
    sn_hub *hub;
    uint8_t key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1]; /* empty: does not listen */
    pthread_cond_t changed;
    bool woken;
    queued_msg *first, **last;
};

/* -- the hub -- */

sn_status sn_hub_new(sn_hub **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (!status) pthread_mutex_init(&(*out)->lock, NULL);
    return status;
}

static void connection_free(connection *c) {
    for (int end = 0; end < 2; end++) sn_msg_free(&c->reordered[end]);
    free(c);
}

void sn_hub_free(sn_hub **hub) {
    if (!*hub) return;
    for (connection *c = (*hub)->connections, *next; c; c = next) {
        next = c->next;
        connection_free(c);
    }
    pthread_mutex_destroy(&(*hub)->lock);
    free(*hub);
    *hub = NULL;
}

void sn_hub_set_filter(sn_hub *hub, sn_hub_filter filter, void *ctx) {
    pthread_mutex_lock(&hub->lock);
    hub->filter = filter;
    hub->filter_ctx = ctx;
    pthread_mutex_unlock(&hub->lock);
}

/* Drops the messages of a connection (NULL: of all) that wait at a transport. */
static void transport_drop_queued(memory_transport *m, const connection *of) {
    m->last = &m->first;
    for (queued_msg *q = m->first, *next; q; q = next) {
        next = q->next;
        if (of && q->connection != of) {
            *m->last = q;
            m->last = &q->next;
            continue;
        }
        q->connection->queued[q->end]--;
        sn_msg_free(&q->msg);
        free(q);
    }
    *m->last = NULL;
}

static void transport_enqueue(memory_transport *to, connection *c, int end, queued_msg *q) {
    *q = (queued_msg){.connection = c, .end = end, .msg = q->msg, .arrived_us = sn_now_us()};
    memcpy(q->key, end == 1 ? c->ends[0]->key : c->key, SN_KEY_SIZE);
    *to->last = q;
    to->last = &q->next;
    c->queued[end]++;
    pthread_cond_signal(&to->changed);
}

/* Reports to the listening end, if it knows this peer, that the dialling end leaves; not at all where memory is out. */
static void connection_report_gone(connection *c) {
    queued_msg *q = c->ends[0] && c->ends[1] && c->peers[1] ? calloc(1, sizeof *q) : NULL;
    if (q) transport_enqueue(c->ends[1], c, 1, q);
}

/* Takes one end out of a connection: its handle is dead. What waits at the other end still arrives there. */
static void connection_leave(connection *c, int end) {
    if (c->ends[end]) transport_drop_queued(c->ends[end], c);
    if (end == 0) connection_report_gone(c);
    c->ends[end] = NULL;
    c->peers[end] = 0;
}

/* Frees the connections whose dialling end has left and on which nothing is queued. */
static void hub_sweep(sn_hub *hub) {
    for (connection **at = &hub->connections; *at;) {
        connection *c = *at;
        if (c->ends[0] || c->queued[1]) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        connection_free(c);
    }
}

static memory_transport *find_listener(sn_hub *hub, const char *address) {
    for (memory_transport *m = hub->transports; m; m = m->next)
        if (*m->address && !strcmp(m->address, address)) return m;
    return NULL;
}

static connection *connection_find(const memory_transport *m, sn_peer peer, int *end) {
    for (connection *c = m->hub->connections; c && peer; c = c->next)
        for (*end = 0; *end < 2; ++*end)
            if (c->ends[*end] == m && c->peers[*end] == peer) return c;
    return NULL;
}

/* -- operations -- */

static sn_status memory_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    memory_transport *m = (memory_transport *)t;
    sn_status status = sn_address_check(address, false, err);
    if (status) return status;
    pthread_mutex_lock(&m->hub->lock);
    if (*m->address)
        status = sn_fail(err, SN_REFUSED, "this transport listens already, at %s", m->address);
    else if (find_listener(m->hub, address))
        status =
            sn_fail(err, SN_REFUSED, "%s is in use by another transport: choose another --listen address", address);
    else
        memcpy(m->address, address, strlen(address) + 1), memcpy(bound, address, strlen(address) + 1);
    pthread_mutex_unlock(&m->hub->lock);
    return status;
}

static sn_status memory_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                             sn_err *err) {
    memory_transport *m = (memory_transport *)t;
    *out = 0;
    sn_status status = sn_address_check(address, false, err);
    if (status) return status;
    pthread_mutex_lock(&m->hub->lock);
    connection *c = m->hub->connections;
    while (c && !(c->ends[0] == m && !strcmp(c->address, address) && !memcmp(c->key, key, SN_KEY_SIZE))) c = c->next;
    if (!c && !(status = sn_calloc(&c, 1, sizeof *c, err))) {
        c->ends[0] = m;
        c->peers[0] = ++m->hub->last_peer;
        memcpy(c->key, key, SN_KEY_SIZE);
        memcpy(c->address, address, strlen(address) + 1);
        c->next = m->hub->connections;
        m->hub->connections = c;
    }
    if (!status) *out = c->peers[0];
    pthread_mutex_unlock(&m->hub->lock);
    return status;
}

/* Copies the message by encoding and decoding it. */
static sn_status copy_message(const sn_msg *msg, sn_msg **out, sn_err *err) {
    sn_buf frame;
    void *data = NULL;
    *out = NULL;
    sn_buf_init(&frame, SN_MAP_SIZE_MAX);
    sn_status status = sn_msg_encode(msg, &frame, err);
    if (!status) status = sn_msg_decode(frame.data, frame.len, out, err);
    if (!status && msg->tensor.rank) {
        const sn_wire_tensor *tensor = &msg->tensor;
        status = sn_msg_new_tensor(*out, tensor->dtype, tensor->rank, tensor->shape, &data, err);
        if (!status) memcpy(data, tensor->data, tensor->bytes);
    }
    sn_buf_fini(&frame);
    if (status) sn_msg_free(out);
    return status;
}

/* Reports to the dialling end, once, that the other end is not there; not at all where memory is out. */
static void connection_report_outage(connection *c) {
    queued_msg *q = c->outage_reported || !c->ends[0] ? NULL : calloc(1, sizeof *q);
    if (!q) return;
    c->outage_reported = true;
    transport_enqueue(c->ends[0], c, 0, q);
}

/* Puts the message into the receiver's queue; takes *msg when it is delivered. */
static sn_status connection_deliver(connection *c, int end, sn_msg **msg, sn_err *err) {
    memory_transport *to = c->ends[end];
    if (!c->peers[end]) c->peers[end] = ++to->hub->last_peer;
    queued_msg *q;
    sn_status status = sn_calloc(&q, 1, sizeof *q, err);
    if (status) return status;
    q->msg = *msg;
    *msg = NULL;
    transport_enqueue(to, c, end, q);
    return SN_OK;
}

/* Updates the listener of a dialled connection, which may have come or gone since the last message. */
static void connection_find_listener(sn_hub *hub, connection *c) {
    memory_transport *listener = find_listener(hub, c->address);
    c->other_listens = listener && memcmp(listener->key, c->key, SN_KEY_SIZE) != 0;
    if (c->other_listens) listener = NULL;
    if (!listener) connection_report_outage(c);
    if (listener == c->ends[1]) return;
    connection_leave(c, 1);
    c->ends[1] = listener;
    c->outage_reported = !listener;
}

static sn_status connection_post(memory_transport *m, sn_peer peer, sn_msg **copy, sn_err *err) {
    int end = 0;
    connection *c = connection_find(m, peer, &end);
    if (!c) return sn_fail(err, SN_RETRY, "this peer is gone");
    if (end == 0) connection_find_listener(m->hub, c);
    int to_end = 1 - end;
    memory_transport *to = c->ends[to_end];
    if (end == 1 && !to) return sn_fail(err, SN_RETRY, "this peer is gone");
    if (!to) return SN_OK;
    if (c->queued[to_end] >= QUEUE_MAX)
        return sn_fail(err, SN_RETRY, "the queue of this peer is full: try again later");
    sn_hub_action action =
        m->hub->filter ? m->hub->filter(m->hub->filter_ctx, m->address, to->address, *copy) : SN_DELIVER;
    if (action == SN_DROP) return SN_OK;
    if (action == SN_REORDER && !c->reordered[to_end]) {
        c->reordered[to_end] = *copy;
        *copy = NULL;
        return SN_OK;
    }
    sn_msg *duplicate = NULL;
    sn_status status = action == SN_DUPLICATE ? copy_message(*copy, &duplicate, err) : SN_OK;
    if (!status) status = connection_deliver(c, to_end, copy, err);
    if (!status && duplicate) status = connection_deliver(c, to_end, &duplicate, err);
    if (!status && c->reordered[to_end]) status = connection_deliver(c, to_end, &c->reordered[to_end], err);
    sn_msg_free(&duplicate);
    return status;
}

static sn_status memory_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    memory_transport *m = (memory_transport *)t;
    sn_msg *copy = NULL;
    sn_status status = copy_message(*msg, &copy, err);
    if (!status) {
        pthread_mutex_lock(&m->hub->lock);
        status = connection_post(m, peer, &copy, err);
        pthread_mutex_unlock(&m->hub->lock);
    }
    sn_msg_free(&copy);
    if (!status) sn_msg_free(msg);
    return status;
}

static void transport_dequeue(memory_transport *m, sn_event *out) {
    queued_msg *q = m->first;
    connection *c = q->connection;
    if (!(m->first = q->next)) m->last = &m->first;
    c->queued[q->end]--;
    *out = (sn_event){.msg = q->msg, .peer = c->peers[q->end], .arrived_us = q->arrived_us};
    memcpy(out->key, q->key, SN_KEY_SIZE);
    out->dialled = !q->end;
    if (!q->msg && q->end == 1) {
        out->gone = true;
        c->peers[1] = 0;
        (void)sn_fail(&out->err, SN_RETRY, "the peer has closed its connection");
    } else if (!q->msg) {
        out->lost = true;
        if (c->other_listens) memcpy(out->other_at, c->address, sizeof out->other_at);
        (void)sn_fail(&out->err, SN_RETRY, "the connection to %s was lost", c->address);
    }
    free(q);
    if (!c->ends[0]) hub_sweep(m->hub);
}

static sn_status memory_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    (void)err;
    memory_transport *m = (memory_transport *)t;
    *out = (sn_event){0};
    struct timespec until = {.tv_sec = deadline_us / 1000000, .tv_nsec = deadline_us % 1000000 * 1000};
    pthread_mutex_lock(&m->hub->lock);
    while (!m->first && !m->woken && deadline_us > 0)
        if (pthread_cond_timedwait(&m->changed, &m->hub->lock, &until)) break;
    m->woken = false;
    if (m->first) transport_dequeue(m, out);
    pthread_mutex_unlock(&m->hub->lock);
    return SN_OK;
}

static void memory_hang_up(sn_transport *t, sn_peer peer) {
    memory_transport *m = (memory_transport *)t;
    int end = 0;
    pthread_mutex_lock(&m->hub->lock);
    connection *c = connection_find(m, peer, &end);
    if (c) {
        if (c->ends[1 - end] && end == 0)
            transport_drop_queued(c->ends[1], c); /* what was queued for the peer is dropped */
        connection_leave(c, end);
        hub_sweep(m->hub);
    }
    pthread_mutex_unlock(&m->hub->lock);
}

static void memory_wake(sn_transport *t) {
    memory_transport *m = (memory_transport *)t;
    pthread_mutex_lock(&m->hub->lock);
    m->woken = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->hub->lock);
}

static void memory_free(sn_transport *t) {
    memory_transport *m = (memory_transport *)t;
    sn_hub *hub = m->hub;
    pthread_mutex_lock(&hub->lock);
    transport_drop_queued(m, NULL);
    for (connection *c = hub->connections; c; c = c->next)
        for (int end = 0; end < 2; end++)
            if (c->ends[end] == m) {
                connection_leave(c, end);
                if (end == 1) connection_report_outage(c);
            }
    hub_sweep(hub);
    memory_transport **at = &hub->transports;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    pthread_mutex_unlock(&hub->lock);
    pthread_cond_destroy(&m->changed);
    free(m);
}

static const sn_transport_ops memory_ops = {memory_listen,  memory_dial, memory_send, memory_recv,
                                            memory_hang_up, memory_wake, memory_free, NULL,
                                            NULL,           NULL,        NULL};

sn_status sn_transport_memory_new(sn_hub *hub, const sn_identity *identity, sn_transport **out, sn_err *err) {
    memory_transport *m;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->base = (sn_transport){&memory_ops, .dials_names = true};
    m->hub = hub;
    m->last = &m->first;
    memcpy(m->key, identity->curve_key, SN_KEY_SIZE);
    pthread_condattr_t attributes; /* deadlines are on the clock of sn_now_us, the monotonic one */
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_lock(&hub->lock);
    m->next = hub->transports;
    hub->transports = m;
    pthread_mutex_unlock(&hub->lock);
    *out = &m->base;
    return SN_OK;
}

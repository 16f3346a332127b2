/* The transport over ZeroMQ (net/transport/transport.h): a listener for the peers that dial this transport
 * (listener.c), and one DEALER of libzmq for each peer that it dials, with CURVE on all.
 *
 * A message is one or two frames: the encoded map and the tensor. The tensor is neither copied on its way to libzmq,
 * which frees the message when the frame has left, nor on its way in: the message owns the frame. A DEALER has exactly
 * one peer. A monitor for each DEALER (zmq_monitor.c) says when its connection is up or down, because libzmq itself
 * reconnects without a report. recv asks the listener and the DEALERs in turn, then the monitors, then waits for any of
 * them, an eventfd (wake) or a timer.
 *
 * Threads: the owner's, which alone uses the sockets here; libzmq's I/O thread and the listener's, which encrypt, and
 * which free a sent tensor (sn_msg.release runs there).
 *
 * libzmq's endpoints are "tcp://HOST:PORT"; this file adds the prefix. */
#include "net/address.h"
#include "net/transport/portal.h"
#include "net/transport/listener_private.h"
#include "net/transport/zmq_frames_private.h"
#include "net/transport/zmq_monitor_private.h"

#include "base/clock.h"
#include "base/parse.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <zmq.h>

enum {
    SEND_QUEUE_MAX = 1024, /* messages, for each peer */
    RECV_QUEUE_MAX = 64,   /* the same; further messages wait at the sender */
    DIALLED_MAX = 4096,
    CURVE_OVERHEAD = 64, /* bytes; encryption adds less to a frame */
    LINGER_MS = 1000,
    PORTAL_MIN = 16, /* connections that the portal holds */
    PORTAL_MAX = 512,
    /* Waits below this end to the microsecond by the timer, for emulated_link.c; zmq_poll waits whole milliseconds. */
    EXACT_US = 1000000,
    HELD_US = 250000, /* between looks at outages, and at what libzmq holds of each dialled peer and for it */
};

typedef struct dealer {
    void *socket, *monitor; /* NULL: this transport has ended the connection */
    int fd;                 /* of the connection, which is libzmq's (-1: there is none), */
    uint64_t taken;         /* and the bytes of it that were in messages */
    /* Bytes of tensors that libzmq has for it, and one while this is here; who takes off the last ones frees it. */
    atomic_size_t *unsent;
    bool up, outage_seen; /* outage_seen: what the monitor said last is this outage */
    struct {
        bool due, was_up;
        int passed; /* messages of this peer that came before it was reported */
        sn_connection how;
    } outage;   /* due: the owner has not received the event of it */
    int bridge; /* the port of its bridge to a relay; 0: it needs none */
    sn_peer handle;
    uint8_t key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
} dealer;

typedef struct zmq {
    sn_transport base;
    sn_identity identity;
    void *context;
    sn_portal *bridges;           /* NULL: no relay was dialled yet */
    sn_listener *listener;        /* NULL if the transport does not listen */
    char own[SN_ADDRESS_MAX + 1]; /* at which this program reaches its own listener */
    dealer *dealers;
    zmq_pollitem_t *items; /* (3 + 2 * dealers_capacity): wake, timer, listener, dealers and their monitors */
    size_t n_dealers, dealers_capacity, next_socket;
    bool turn_of_listener;
    sn_peer next_peer;
    sn_buf frame; /* scratch: frame 0 of the message being sent */
    int wake_fd, timer_fd;
    int64_t held_us; /* when it looks again at what libzmq holds, */
    bool looks;      /* and at outages, though messages wait */
} zmq;

/* -- sockets -- */

#define TCP "tcp://"
enum { ENDPOINT_MAX = sizeof TCP - 1 + SN_ADDRESS_MAX };

/* The endpoint of libzmq for an address that was checked. Returns out. */
static const char *endpoint_of(const char *address, char out[ENDPOINT_MAX + 1]) {
    snprintf(out, ENDPOINT_MAX + 1, TCP "%s", address);
    return out;
}

static bool set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static void *make_dealer(zmq *z, const char *address, sn_err *err) {
    void *socket = zmq_socket(z->context, ZMQ_DEALER);
    int64_t largest = (int64_t)SN_TENSOR_SIZE_MAX + CURVE_OVERHEAD;
    if (socket && set_int(socket, ZMQ_LINGER, LINGER_MS) && set_int(socket, ZMQ_SNDHWM, SEND_QUEUE_MAX) &&
        set_int(socket, ZMQ_RCVHWM, RECV_QUEUE_MAX) && set_int(socket, ZMQ_HEARTBEAT_IVL, 5000) &&
        set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, 15000) && set_int(socket, ZMQ_HANDSHAKE_IVL, 5000) &&
        set_int(socket, ZMQ_CONNECT_TIMEOUT, 10000) && set_int(socket, ZMQ_TCP_MAXRT, 30000) &&
        set_int(socket, ZMQ_RECONNECT_IVL_MAX, 5000) && set_int(socket, ZMQ_IPV6, strchr(address, '[') != NULL) &&
        !zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest) &&
        !zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, z->identity.curve_secret, SN_KEY_SIZE))
        return socket;
    int reason = zmq_errno();
    sn_fail(err, reason == EMFILE ? SN_RETRY : SN_STOP, "a ZeroMQ socket cannot be opened: %s", zmq_strerror(reason));
    if (socket) zmq_close(socket);
    return NULL;
}

static void portal_wakes(void *ctx) { sn_transport_wake(ctx); }
static void portal_brings(void *ctx, int fd, const struct sockaddr_storage *from) {
    sn_listener_adopt(((zmq *)ctx)->listener, fd, from);
}
static void listener_diverts(void *ctx, int fd, const struct sockaddr_storage *from) { sn_portal_take(ctx, fd, from); }

/* A joined connection of a relay takes two descriptors: the portal gets a quarter of the process's, the listener half.
 */
static sn_status make_portal(zmq *z, sn_err *err) {
    struct rlimit descriptors = {.rlim_cur = 4 * PORTAL_MIN};
    getrlimit(RLIMIT_NOFILE, &descriptors);
    size_t n = descriptors.rlim_cur / 8 < PORTAL_MAX ? (size_t)descriptors.rlim_cur / 8 : PORTAL_MAX;
    const sn_portal_host host = {portal_wakes, portal_brings, z};
    sn_status status = sn_portal_new(&host, n < PORTAL_MIN ? PORTAL_MIN : n, &z->base.portal, err);
    if (!status) sn_listener_divert(z->listener, listener_diverts, z->base.portal);
    return status;
}

static sn_status zmq_transport_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1],
                                      sn_err *err) {
    zmq *z = (zmq *)t;
    if (z->listener) return sn_fail(err, SN_REFUSED, "this transport listens already: make another for %s", address);
    sn_status status = sn_address_check(address, true, err);
    if (!status) status = sn_listener_new(&z->identity, address, bound, &z->listener, err);
    if (status) return status;
    sn_address_of_own(bound, z->own);
    return make_portal(z, err);
}

static sn_status dealers_reserve(zmq *z, sn_err *err) {
    if (z->n_dealers == DIALLED_MAX)
        return sn_fail(err, SN_RETRY, "%d peers are dialled already: hang up on some", DIALLED_MAX);
    if (z->n_dealers < z->dealers_capacity) return SN_OK;
    size_t capacity = 2 * z->dealers_capacity + 8;
    dealer *dealers = realloc(z->dealers, capacity * sizeof *dealers);
    if (dealers) z->dealers = dealers;
    zmq_pollitem_t *items = realloc(z->items, (2 * capacity + 3) * sizeof *items);
    if (items) z->items = items;
    if (!dealers || !items) return sn_fail(err, SN_STOP, "out of memory: no space for another peer");
    z->dealers_capacity = capacity;
    return SN_OK;
}

/* Reads the monitor of a dealer; true: there is an outage that the owner does not know yet. */
static bool dealer_has_gone(dealer *d) {
    sn_connection how;
    while (!d->outage.due && d->monitor && (how = sn_zmq_monitor_read(d->monitor, &d->fd)) != SN_CONNECTION_UNCHANGED) {
        if (how == SN_CONNECTION_MADE) {
            d->taken = 0;
            continue;
        }
        bool was_up = d->up, seen = d->outage_seen;
        d->up = how == SN_CONNECTION_UP;
        if (!d->up) d->fd = -1;
        d->outage_seen = !d->up;
        if (d->outage_seen && !seen) {
            d->outage.due = true;
            d->outage.was_up = was_up;
            d->outage.how = how;
        }
    }
    return d->outage.due;
}

static void unsent_release(atomic_size_t *unsent, size_t bytes) {
    if (atomic_fetch_sub(unsent, bytes) == bytes) free(unsent);
}

/* Messages queued for a peer that is not there are dropped at once instead of lingering. */
static void close_dealer(dealer *d) {
    if (!d->socket) return;
    while (dealer_has_gone(d)) d->outage.due = false;
    if (d->outage_seen) set_int(d->socket, ZMQ_LINGER, 0);
    sn_zmq_monitor_close(d->socket, d->monitor);
    zmq_close(d->socket);
    d->socket = d->monitor = NULL;
    d->fd = -1;
    if (d->unsent) unsent_release(d->unsent, 1);
    d->unsent = NULL;
}

/* Ends the connection; what waits to be sent is dropped. */
static void end_dealer(zmq *z, dealer *d) {
    if (d->socket) set_int(d->socket, ZMQ_LINGER, 0);
    if (d->bridge) sn_portal_unbridge(z->bridges, d->bridge);
    d->bridge = 0;
    close_dealer(d);
}

/* A relay is a SOCKS5 proxy, of which the node's key is asked for (portal.h). Where the relay is this program itself,
 * it goes to its own listener: its address outside may be one of a router that passes nothing from inside to inside. */
static bool connect_dealer(zmq *z, dealer *d) {
    sn_host_port at;
    char endpoint[ENDPOINT_MAX + 1], relay[SN_ADDRESS_MAX + 1];
    sn_err err;
    if (sn_parse_host_port(d->address, SN_HOST_PORT_DIAL, &at, NULL)) return false;
    if (!at.relayed) return !zmq_connect(d->socket, endpoint_of(d->address, endpoint));
    snprintf(relay, sizeof relay, "%.*s", (int)(strlen(d->address) - strlen(SN_RELAYED)), d->address);
    if (z->base.portal && sn_portal_serves(z->base.portal, d->key)) snprintf(relay, sizeof relay, "%s", z->own);
    if (!z->bridges && sn_portal_new(&(sn_portal_host){0}, PORTAL_MAX, &z->bridges, &err)) return false;
    if (sn_portal_bridge(z->bridges, relay, d->key, &d->bridge, &err)) return false;
    snprintf(endpoint, sizeof endpoint, TCP "127.0.0.1:%d", d->bridge);
    return !zmq_connect(d->socket, endpoint);
}

/* Of a key that was proven at an address of a private network, the address outside is the same node, which a router may
 * not lead back inside; so is the way through a relay. */
static bool stands_for(const dealer *d, const char *address) {
    sn_host_port at;
    if (!d->up || d->bridge || sn_parse_host_port(address, SN_HOST_PORT_DIAL, &at, NULL)) return false;
    return at.relayed || sn_address_scope(d->address) < sn_address_scope(address);
}

static const dealer *find_dialled(const zmq *z, const char *address, const uint8_t key[SN_KEY_SIZE]) {
    const dealer *near = NULL;
    for (const dealer *d = z->dealers; d < z->dealers + z->n_dealers; d++) {
        if (!d->socket || memcmp(d->key, key, SN_KEY_SIZE) != 0) continue;
        if (!strcmp(d->address, address)) return d;
        if (stands_for(d, address)) near = d;
    }
    return near;
}

static sn_status zmq_transport_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                                    sn_err *err) {
    zmq *z = (zmq *)t;
    const dealer *dialled = find_dialled(z, address, key);
    *out = dialled ? dialled->handle : 0;
    if (dialled) return SN_OK;
    sn_status status = sn_address_check_numeric(address, err);
    if (!status) status = dealers_reserve(z, err);
    if (status) return status;
    dealer d = {.handle = z->next_peer, .fd = -1};
    memcpy(d.key, key, SN_KEY_SIZE);
    memcpy(d.address, address, strlen(address) + 1);
    if (!(d.socket = make_dealer(z, address, err))) return err ? err->status : SN_STOP;
    if ((status = sn_zmq_monitor_open(z->context, d.socket, d.handle, &d.monitor, err))) {
        zmq_close(d.socket);
        return status;
    }
    status = sn_calloc(&d.unsent, 1, sizeof *d.unsent, err);
    if (!status) atomic_init(d.unsent, 1);
    if (!status &&
        (zmq_setsockopt(d.socket, ZMQ_CURVE_SERVERKEY, key, SN_KEY_SIZE) ||
         zmq_setsockopt(d.socket, ZMQ_CURVE_PUBLICKEY, z->identity.curve_key, SN_KEY_SIZE) || !connect_dealer(z, &d)))
        status = sn_fail(err, SN_REFUSED, "%s cannot be dialled: %s", address, zmq_strerror(zmq_errno()));
    if (status) {
        close_dealer(&d);
        return status;
    }
    z->dealers[z->n_dealers++] = d;
    *out = z->next_peer++;
    return SN_OK;
}

static dealer *find_dealer(zmq *z, sn_peer peer) {
    for (dealer *d = z->dealers; d < z->dealers + z->n_dealers; d++)
        if (d->handle == peer) return d;
    return NULL;
}

static void zmq_transport_hang_up(sn_transport *t, sn_peer peer) {
    zmq *z = (zmq *)t;
    if (z->listener) sn_listener_hang_up(z->listener, peer);
    dealer *d = find_dealer(z, peer);
    if (!d) return;
    end_dealer(z, d);
    *d = z->dealers[--z->n_dealers];
}

/* -- sending -- */

/* What the frame of a tensor owns while libzmq has it. */
typedef struct sent_tensor {
    sn_msg *msg; /* NULL: it does not own the data, and a copy follows */
    atomic_size_t *unsent;
    size_t bytes;
    uint8_t copy[];
} sent_tensor;

static void sent_tensor_free(void *data, void *hint) {
    (void)data;
    sent_tensor *c = hint;
    sn_msg_free(&c->msg);
    unsent_release(c->unsent, c->bytes);
    free(c);
}

/* The tensor as a frame that frees the message when it has left; a copy if the message does not own the data. */
static sn_status tensor_frame(sn_msg *msg, const dealer *d, zmq_msg_t *out, sent_tensor **c, sn_err *err) {
    const sn_wire_tensor *tensor = &msg->tensor;
    sn_status status = sn_calloc(c, 1, sizeof **c + (msg->release ? 0 : tensor->bytes), err);
    if (status) return status;
    **c = (sent_tensor){.unsent = d->unsent, .bytes = tensor->bytes};
    if (!msg->release) memcpy((*c)->copy, tensor->data, tensor->bytes);
    void *data = msg->release ? (void *)(uintptr_t)tensor->data : (*c)->copy;
    if (zmq_msg_init_data(out, data, tensor->bytes, sent_tensor_free, *c)) {
        free(*c);
        return sn_fail(err, SN_STOP, "out of memory: no space for a tensor's frame");
    }
    atomic_fetch_add(d->unsent, tensor->bytes);
    if (msg->release) (*c)->msg = msg;
    return SN_OK;
}

/* Puts the first frame into the peer's queue. */
static sn_status send_first(void *socket, zmq_msg_t *frame, bool more, sn_err *err) {
    int sent = zmq_msg_send(frame, socket, (more ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
    if (sent < 0 && zmq_errno() == EAGAIN)
        return sn_fail(err, SN_RETRY, "the queue of this peer is full: try again later");
    if (sent < 0) return sn_fail(err, SN_STOP, "libzmq cannot send: %s", zmq_strerror(zmq_errno()));
    return SN_OK;
}

static sn_status send_frames(const dealer *d, const sn_buf *map, sn_msg **msg, sn_err *err) {
    zmq_msg_t frame, tensor;
    sent_tensor *c = NULL;
    bool more = (*msg)->tensor.rank != 0, owns = (*msg)->release != NULL;
    if (zmq_msg_init_size(&frame, map->len)) return sn_fail(err, SN_STOP, "out of memory: no space for a message");
    memcpy(zmq_msg_data(&frame), map->data, map->len);
    sn_status status = more ? tensor_frame(*msg, d, &tensor, &c, err) : SN_OK;
    bool framed = more && !status;
    if (!status) status = send_first(d->socket, &frame, more, err);
    if (status) { /* the message remains the caller's */
        if (framed) c->msg = NULL;
        if (framed) zmq_msg_close(&tensor);
        zmq_msg_close(&frame);
        return status;
    }
    /* If the connection is lost in between, the message is lost like any other that was on its way. */
    if (more && zmq_msg_send(&tensor, d->socket, ZMQ_DONTWAIT) < 0) zmq_msg_close(&tensor);
    if (more && owns)
        *msg = NULL;
    else
        sn_msg_free(msg);
    return SN_OK;
}

static sn_status zmq_transport_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    zmq *z = (zmq *)t;
    const dealer *d = find_dealer(z, peer);
    if (d ? !d->socket : !z->listener) return sn_fail(err, SN_RETRY, "this peer is gone");
    z->frame.len = 0;
    sn_status status = sn_msg_encode(*msg, &z->frame, err);
    if (status) return status;
    return d ? send_frames(d, &z->frame, msg, err) : sn_listener_send(z->listener, peer, &z->frame, msg, err);
}

/* -- receiving -- */

enum { PARTS_MAX = 2 }; /* map, tensor */

/* Reads all frames of one message and keeps the first `capacity`. *n: how many there are, 0: no message waits. */
static sn_status read_parts(dealer *from, zmq_msg_t *parts, size_t capacity, size_t *n, sn_err *err) {
    bool more = true;
    for (*n = 0; more; ++*n) {
        zmq_msg_t surplus, *part = *n < capacity ? &parts[*n] : &surplus;
        zmq_msg_init(&surplus);
        if (zmq_msg_recv(part, from->socket, ZMQ_DONTWAIT) < 0) {
            int reason = zmq_errno();
            if (!*n && (reason == EAGAIN || reason == EINTR)) return SN_OK;
            return sn_fail(err, SN_STOP, "libzmq cannot receive: %s", zmq_strerror(reason));
        }
        more = zmq_msg_more(part);
        from->taken += sn_zmq_frame_bytes(zmq_msg_size(part));
        zmq_msg_close(&surplus);
    }
    return SN_OK;
}

/* A message that cannot be decoded is an event of its peer, unless memory is out. */
static sn_status decoded(sn_status status, sn_event *out, sn_err *err) {
    out->arrived_us = sn_now_us();
    if (status != SN_STOP) return SN_OK;
    if (err) *err = out->err;
    return SN_STOP;
}

/* Receives one message of a dialled peer, if one waits. */
static sn_status receive_from(dealer *from, sn_event *out, sn_err *err) {
    zmq_msg_t parts[PARTS_MAX];
    size_t n;
    if (from->fd < 0) (void)dealer_has_gone(from); /* before what came over a new connection is counted as read of it */
    for (int i = 0; i < PARTS_MAX; i++) zmq_msg_init(&parts[i]);
    sn_status status = read_parts(from, parts, PARTS_MAX, &n, err);
    if (!status && n) {
        memcpy(out->key, from->key, SN_KEY_SIZE);
        out->peer = from->handle;
        out->dialled = true;
        status = sn_zmq_decode(&parts[0], &parts[1], n - 1, &out->msg, &out->err);
        if (status) out->correlation_id = sn_msg_correlation_id(zmq_msg_data(&parts[0]), zmq_msg_size(&parts[0]));
        status = decoded(status, out, err);
    }
    for (int i = 0; i < PARTS_MAX; i++) zmq_msg_close(&parts[i]);
    return status;
}

/* As sn_zmq_decode; the tensor's frame becomes the message's. */
static sn_status decode_inbound(sn_zmtp_message *message, sn_msg **out, sn_err *err) {
    sn_zmtp_frame *map = &message->frames[0], *tensor = &message->frames[1];
    sn_status status = sn_msg_decode(map->data, map->len, out, err);
    bool attached = !status && message->n_frames == 2 && (*out)->tensor.rank;
    if (!status)
        status = attached ? sn_msg_attach_tensor(*out, 1, tensor->data, tensor->len, free, tensor->memory, err)
                          : sn_msg_attach_tensor(*out, message->n_frames - 1, NULL, 0, NULL, NULL, err);
    if (attached && !status) tensor->memory = NULL;
    if (status) sn_msg_free(out);
    return status;
}

/* Receives one event of a peer that has dialled this transport, if there is one. */
static sn_status receive_inbound(zmq *z, sn_event *out, sn_err *err) {
    sn_inbound inbound;
    sn_listener_receive(z->listener, &inbound);
    if (!inbound.peer) return SN_OK;
    out->peer = inbound.peer;
    memcpy(out->key, inbound.key, SN_KEY_SIZE);
    memcpy(out->network, inbound.network, SN_ADDRESS_PREFIX);
    out->gone = inbound.gone != NULL;
    sn_status status = inbound.gone ? sn_fail(&out->err, SN_RETRY, "%s", inbound.gone)
                                    : decode_inbound(&inbound.message, &out->msg, &out->err);
    if (status && !inbound.gone)
        out->correlation_id = sn_msg_correlation_id(inbound.message.frames[0].data, inbound.message.frames[0].len);
    sn_zmtp_message_free(&inbound.message);
    return decoded(status, out, err);
}

/* Receives a message of a dialled peer, of each in turn. */
static sn_status receive_dialled(zmq *z, sn_event *out, sn_err *err) {
    for (size_t i = 0; i < z->n_dealers; i++) {
        size_t at = (z->next_socket + i) % z->n_dealers;
        if (!z->dealers[at].socket) continue;
        sn_status status = receive_from(&z->dealers[at], out, err);
        if (status) return status;
        if (!out->peer) continue;
        z->next_socket = at + 1;
        return SN_OK;
    }
    return SN_OK;
}

/* Every other turn is the listener's: strangers can make a node dial many peers, and these send at no charge. */
static sn_status receive_any(zmq *z, sn_event *out, sn_err *err) {
    sn_status status = SN_OK;
    bool of_listener = z->turn_of_listener = !z->turn_of_listener;
    for (int i = 0; i < 2 && !status && !out->peer; i++, of_listener = !of_listener)
        if (!of_listener || z->listener)
            status = of_listener ? receive_inbound(z, out, err) : receive_dialled(z, out, err);
    return status;
}

/* A dialled peer with an outage that the owner does not know yet, or NULL. */
static dealer *find_outage(zmq *z) {
    for (dealer *d = z->dealers; d < z->dealers + z->n_dealers; d++)
        if (dealer_has_gone(d)) return d;
    return NULL;
}

/* Each outage is reported once. */
static void report_outage(dealer *d, sn_event *out) {
    d->outage.due = false;
    d->outage.passed = 0;
    *out = (sn_event){.peer = d->handle, .lost = true, .arrived_us = sn_now_us()};
    memcpy(out->key, d->key, SN_KEY_SIZE);
    if (d->socket && !d->outage.was_up && d->outage.how == SN_CONNECTION_DOWN)
        memcpy(out->other_at, d->address, sizeof out->other_at);
    (void)sn_fail(
        &out->err, SN_RETRY,
        !d->socket
            ? "%s read nothing, or sent more than was taken, or messages without an end: the connection was closed"
        : d->outage.was_up                    ? "the connection to %s was lost"
        : d->outage.how == SN_CONNECTION_DOWN ? "%s took the connection and did not prove the expected key"
                                              : "no program accepts connections at %s",
        d->address);
}

/* libzmq keeps the frames of a message until the last one has come, as many as there are, and in the handshake one of
 * the same size, so a peer could fill the memory without a message ever coming. */
static uint64_t unread_of(const dealer *d) {
    uint64_t came = d->fd >= 0 ? sn_zmq_bytes_received(d->fd) : 0;
    return came > d->taken ? came - d->taken : 0;
}

/* It keeps a thousand messages for a peer that reads nothing, of any size. */
static uint64_t unsent_of(const dealer *d) { return d->unsent ? atomic_load(d->unsent) - 1 : 0; }

/* The connection with most bytes of a kind ends when all have too many. */
static void end_greedy(zmq *z, uint64_t (*held_of)(const dealer *), uint64_t held_max) {
    uint64_t all = 0, most = 0;
    dealer *worst = NULL;
    for (dealer *d = z->dealers; d < z->dealers + z->n_dealers; d++) {
        uint64_t held = held_of(d);
        all += held;
        if (held <= most) continue;
        most = held;
        worst = d;
    }
    if (all <= held_max) return;
    end_dealer(z, worst);
    worst->outage.due = true;
}

/* Waits for any socket or a wake. */
static sn_status wait_for_any(zmq *z, int64_t deadline_us, bool *woken, sn_err *err) {
    int n = 0;
    z->items[n++] = (zmq_pollitem_t){.fd = z->wake_fd, .events = ZMQ_POLLIN};
    int64_t left_us = deadline_us - sn_now_us();
    if (left_us > 0 && left_us < EXACT_US) {
        struct itimerspec end = {.it_value.tv_nsec = (long)left_us * 1000}; /* setting clears an earlier expiry */
        timerfd_settime(z->timer_fd, 0, &end, NULL);
        z->items[n++] = (zmq_pollitem_t){.fd = z->timer_fd, .events = ZMQ_POLLIN};
    }
    if (z->listener) z->items[n++] = (zmq_pollitem_t){.fd = sn_listener_fd(z->listener), .events = ZMQ_POLLIN};
    for (size_t i = 0; i < z->n_dealers; i++) {
        if (!z->dealers[i].socket) continue;
        z->items[n++] = (zmq_pollitem_t){.socket = z->dealers[i].socket, .events = ZMQ_POLLIN};
        z->items[n++] = (zmq_pollitem_t){.socket = z->dealers[i].monitor, .events = ZMQ_POLLIN};
    }
    long wait_ms = left_us > 0 ? (long)(left_us / 1000 + 1) : 0;
    int ready = zmq_poll(z->items, n, wait_ms);
    if (ready < 0 && zmq_errno() == EINTR) {
        *woken = true; /* a signal: the caller may have to react to it */
        return SN_OK;
    }
    if (ready < 0) return sn_fail(err, SN_STOP, "libzmq cannot wait: %s", zmq_strerror(zmq_errno()));
    uint64_t count;
    *woken = z->items[0].revents && read(z->wake_fd, &count, sizeof count) > 0;
    return SN_OK;
}

/* Outages that are due though messages wait: a peer that sends all the time must not hide those of others, nor that
 * they have connected, without which what they send is not bounded. What the lost peer had sent comes first, and not
 * all that it sends when it has connected again. */
static sn_status overdue_outage(zmq *z, sn_event *out, sn_err *err) {
    dealer *lost = z->looks ? find_outage(z) : NULL;
    bool had_sent = lost && lost->socket && lost->outage.passed++ < 2 * RECV_QUEUE_MAX;
    sn_status status = had_sent ? receive_from(lost, out, err) : SN_OK;
    if (lost && !status && !out->peer) report_outage(lost, out);
    z->looks = lost != NULL;
    return status;
}

/* Messages that arrived before an outage come first, those that came after no socket had one, too. */
static sn_status next_event(zmq *z, sn_event *out, sn_err *err) {
    sn_status overdue = overdue_outage(z, out, err);
    if (overdue || out->peer) return overdue;
    sn_status status = receive_any(z, out, err);
    dealer *lost = status || out->peer ? NULL : find_outage(z);
    if (!lost) return status;
    status = receive_any(z, out, err);
    if (!status && !out->peer) report_outage(lost, out);
    return status;
}

static sn_status zmq_transport_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    zmq *z = (zmq *)t;
    bool woken = false;
    *out = (sn_event){0};
    for (;;) {
        int64_t now_us = z->n_dealers ? sn_now_us() : 0;
        if (now_us > z->held_us) {
            z->held_us = now_us + HELD_US;
            z->looks = true;
            end_greedy(z, unread_of, sn_zmq_unread_max());
            end_greedy(z, unsent_of, sn_zmq_unsent_max());
        }
        sn_status status = next_event(z, out, err);
        if (status || out->peer || woken) return status;
        bool last = sn_now_us() >= deadline_us;
        int64_t held_us = z->listener ? sn_listener_held_until(z->listener) : INT64_MAX;
        if (z->n_dealers && z->held_us < held_us) held_us = z->held_us;
        if ((status = wait_for_any(z, held_us < deadline_us ? held_us : deadline_us, &woken, err))) return status;
        if (last) return next_event(z, out, err);
    }
}

static bool zmq_transport_peer_host(sn_transport *t, sn_peer peer, char host[SN_ADDRESS_MAX + 1]) {
    zmq *z = (zmq *)t;
    return z->listener && sn_listener_peer_host(z->listener, peer, host);
}

static void zmq_transport_charge(sn_transport *t, sn_peer peer) {
    zmq *z = (zmq *)t;
    if (z->listener) sn_listener_charge(z->listener, peer);
}

static void zmq_transport_wake(sn_transport *t) {
    uint64_t one = 1;
    ssize_t written =
        write(((zmq *)t)->wake_fd, &one, sizeof one); /* fails only if the counter is full: then recv wakes anyway */
    (void)written;
}

/* -- creation and release -- */

static void zmq_transport_free(sn_transport *t) {
    zmq *z = (zmq *)t;
    sn_portal_stop(z->base.portal); /* it gives connections to the listener, which gives some to it */
    sn_listener_free(&z->listener, (int64_t)LINGER_MS * 1000);
    sn_portal_free(&z->base.portal);
    for (size_t i = 0; i < z->n_dealers; i++) close_dealer(&z->dealers[i]);
    if (z->context)
        while (zmq_ctx_term(z->context) && zmq_errno() == EINTR) {}
    sn_portal_free(&z->bridges);
    if (z->wake_fd >= 0) close(z->wake_fd);
    if (z->timer_fd >= 0) close(z->timer_fd);
    sn_buf_fini(&z->frame);
    free(z->dealers);
    free(z->items);
    explicit_bzero(&z->identity, sizeof z->identity);
    free(z);
}

static const sn_transport_ops zmq_ops = {zmq_transport_listen, zmq_transport_dial,      zmq_transport_send,
                                         zmq_transport_recv,   zmq_transport_hang_up,   zmq_transport_wake,
                                         zmq_transport_free,   zmq_transport_peer_host, zmq_transport_charge};

sn_status sn_transport_zmq_new(const sn_identity *identity, sn_transport **out, sn_err *err) {
    zmq *z;
    *out = NULL;
    sn_status status = sn_calloc(&z, 1, sizeof *z, err);
    if (status) return status;
    *z = (zmq){.base.ops = &zmq_ops, .identity = *identity, .next_peer = 1};
    sn_buf_init(&z->frame, SN_MAP_SIZE_MAX);
    z->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    z->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    z->context = zmq_ctx_new();
    if (z->wake_fd < 0 || z->timer_fd < 0 || !z->context || zmq_ctx_set(z->context, ZMQ_MAX_SOCKETS, 3 * DIALLED_MAX))
        status = sn_fail(err, SN_STOP, "ZeroMQ cannot start: %s", strerror(errno));
    if (!status) status = dealers_reserve(z, err);
    if (status)
        zmq_transport_free(&z->base);
    else
        *out = &z->base;
    return status;
}

/* The transport over ZeroMQ's protocol (net/transport/transport.h). A message is one or two frames: the encoded map and
 * the tensor, which is not copied on its way in: the message owns the frame. All connections are of one thread
 * (listener_private.h), which frees a sent tensor, too (sn_msg.release runs there). recv asks it, then waits for it or
 * for an eventfd (wake). */
#include "net/address.h"
#include "net/transport/listener_private.h"
#include "net/transport/portal.h"

#include "base/clock.h"
#include "base/parse.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    LINGER_US = 1000000,
    PORTAL_MIN = 16, /* connections that the portal holds */
    PORTAL_MAX = 512,
};

typedef struct zmq {
    sn_transport base;
    sn_identity identity;
    sn_listener *listener;        /* NULL: it has not listened or dialled yet */
    char own[SN_ADDRESS_MAX + 1]; /* at which this program reaches its own port */
    sn_buf frame;                 /* scratch: frame 0 of the message being sent */
    int wake_fd;
} zmq;

/* -- listening and dialling -- */

static sn_status require_listener(zmq *z, sn_err *err) {
    return z->listener ? SN_OK : sn_listener_new(&z->identity, &z->listener, err);
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
    sn_status status = sn_address_check(address, true, err);
    if (!status) status = require_listener(z, err);
    if (!status) status = sn_listener_listen(z->listener, address, bound, err);
    if (status) return status;
    sn_address_of_own(bound, z->own);
    return make_portal(z, err);
}

/* Where the relay is this program itself, it goes to its own port: its address outside may be one of a router that
 * passes nothing from inside to inside. */
static sn_status zmq_transport_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                                    sn_err *err) {
    zmq *z = (zmq *)t;
    sn_host_port at;
    char relay[SN_ADDRESS_MAX + 1];
    *out = 0;
    sn_status status = sn_address_check_numeric(address, err);
    if (!status) status = sn_parse_host_port(address, SN_HOST_PORT_DIAL, &at, err);
    if (!status) status = require_listener(z, err);
    if (status) return status;
    if (at.relayed) snprintf(relay, sizeof relay, "%.*s", (int)(strlen(address) - strlen(SN_RELAYED)), address);
    if (at.relayed && z->base.portal && sn_portal_serves(z->base.portal, key))
        snprintf(relay, sizeof relay, "%s", z->own);
    return sn_listener_dial(z->listener, address, at.relayed ? relay : NULL, key, out, err);
}

static void zmq_transport_hang_up(sn_transport *t, sn_peer peer) {
    zmq *z = (zmq *)t;
    if (z->listener) sn_listener_hang_up(z->listener, peer);
}

/* -- sending and receiving -- */

static sn_status zmq_transport_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    zmq *z = (zmq *)t;
    if (!z->listener) return sn_fail(err, SN_RETRY, "this peer is gone");
    z->frame.len = 0;
    sn_status status = sn_msg_encode(*msg, &z->frame, err);
    return status ? status : sn_listener_send(z->listener, peer, &z->frame, msg, err);
}

/* The tensor's frame becomes the message's. */
static sn_status decode(sn_zmtp_message *message, sn_msg **out, sn_err *err) {
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

static void report_outage(const sn_inbound *inbound, sn_event *out) {
    static const char *const why[] = {
        [SN_OUTAGE_LOST] = "the connection to %s was lost",
        [SN_OUTAGE_SILENT] = "%s fell silent: its machine acknowledges nothing",
        [SN_OUTAGE_REFUSED] = "no program accepts connections at %s",
        [SN_OUTAGE_UNPROVEN] = "%s took the connection and did not prove the expected key",
        [SN_OUTAGE_NO_DESCRIPTOR] = "%s cannot be dialled: this process has no descriptor left (ulimit -n)",
        [SN_OUTAGE_LEFT] = "%s read nothing, or sent more than was taken: the connection was closed",
    };
    out->lost = true;
    out->silent = inbound->outage == SN_OUTAGE_SILENT;
    if (inbound->outage == SN_OUTAGE_UNPROVEN) memcpy(out->other_at, inbound->address, sizeof out->other_at);
    (void)sn_fail(&out->err, SN_RETRY, why[inbound->outage], inbound->address);
}

/* A message that cannot be decoded is an event of its peer, unless memory is out. */
static sn_status receive_message(sn_inbound *inbound, sn_event *out, sn_err *err) {
    const sn_zmtp_frame *map = &inbound->message.frames[0];
    sn_status status = decode(&inbound->message, &out->msg, &out->err);
    if (status) out->correlation_id = sn_msg_correlation_id(map->data, map->len);
    sn_zmtp_message_free(&inbound->message);
    if (status != SN_STOP) return SN_OK;
    if (err) *err = out->err;
    return SN_STOP;
}

/* The next event, if there is one. */
static sn_status receive(zmq *z, sn_event *out, sn_err *err) {
    sn_inbound inbound = {0};
    if (z->listener) sn_listener_receive(z->listener, &inbound);
    if (!inbound.peer) return SN_OK;
    out->peer = inbound.peer;
    out->arrived_us = sn_now_us();
    memcpy(out->key, inbound.key, SN_KEY_SIZE);
    memcpy(out->network, inbound.network, SN_ADDRESS_PREFIX);
    out->gone = inbound.gone != NULL;
    if (inbound.outage) {
        report_outage(&inbound, out);
    } else if (inbound.gone) {
        (void)sn_fail(&out->err, SN_RETRY, "%s", inbound.gone);
    } else {
        out->dialled = inbound.dialled;
        return receive_message(&inbound, out, err);
    }
    return SN_OK;
}

/* Waits for an event or a wake; to the microsecond, for emulated_link.c. */
static sn_status wait_for_any(const zmq *z, int64_t deadline_us, bool *woken, sn_err *err) {
    struct pollfd fds[2] = {{.fd = z->wake_fd, .events = POLLIN},
                            {.fd = z->listener ? sn_listener_fd(z->listener) : -1, .events = POLLIN}};
    int64_t left_us = deadline_us - sn_now_us();
    if (left_us < 0) left_us = 0;
    struct timespec left = {.tv_sec = left_us / 1000000, .tv_nsec = left_us % 1000000 * 1000};
    uint64_t count;
    if (ppoll(fds, 2, &left, NULL) >= 0) {
        *woken = fds[0].revents && read(z->wake_fd, &count, sizeof count) > 0;
        return SN_OK;
    }
    *woken = true; /* a signal: the caller may have to react to it */
    return errno == EINTR ? SN_OK : sn_fail(err, SN_STOP, "the transport cannot wait: %s", strerror(errno));
}

static sn_status zmq_transport_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    zmq *z = (zmq *)t;
    bool woken = false;
    *out = (sn_event){0};
    for (;;) {
        sn_status status = receive(z, out, err);
        if (status || out->peer || woken) return status;
        bool last = sn_now_us() >= deadline_us;
        int64_t held_us = z->listener ? sn_listener_held_until(z->listener) : INT64_MAX;
        if ((status = wait_for_any(z, held_us < deadline_us ? held_us : deadline_us, &woken, err))) return status;
        if (last) return receive(z, out, err);
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

static void zmq_transport_watch(sn_transport *t, sn_peer peer, bool on) {
    zmq *z = (zmq *)t;
    if (z->listener) sn_listener_watch(z->listener, peer, on);
}

static int64_t zmq_transport_round_trip_us(sn_transport *t, sn_peer peer) {
    zmq *z = (zmq *)t;
    return z->listener ? sn_listener_round_trip_us(z->listener, peer) : 0;
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
    sn_listener_free(&z->listener, LINGER_US);
    sn_portal_free(&z->base.portal);
    if (z->wake_fd >= 0) close(z->wake_fd);
    sn_buf_fini(&z->frame);
    explicit_bzero(&z->identity, sizeof z->identity);
    free(z);
}

static const sn_transport_ops zmq_ops = {zmq_transport_listen, zmq_transport_dial,         zmq_transport_send,
                                         zmq_transport_recv,   zmq_transport_hang_up,      zmq_transport_wake,
                                         zmq_transport_free,   zmq_transport_peer_host,    zmq_transport_charge,
                                         zmq_transport_watch,  zmq_transport_round_trip_us};

sn_status sn_transport_zmq_new(const sn_identity *identity, sn_transport **out, sn_err *err) {
    zmq *z;
    *out = NULL;
    sn_status status = sn_calloc(&z, 1, sizeof *z, err);
    if (status) return status;
    *z = (zmq){.base.ops = &zmq_ops, .identity = *identity};
    sn_buf_init(&z->frame, SN_MAP_SIZE_MAX);
    z->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (z->wake_fd >= 0) {
        *out = &z->base;
        return SN_OK;
    }
    status = sn_fail(err, SN_STOP, "no descriptor is left for a transport: %s", strerror(errno));
    zmq_transport_free(&z->base);
    return status;
}

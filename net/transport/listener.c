/* The listener (listener_private.h): its queues, the owner's side of them, its making and its end.
 *
 * A connection has a slot, one of `2 * capacity` or, of a peer that is dialled, of DIALLED_MAX behind them, and a
 * number that is never used again; both make its handle, which the owner gets with the first message, or when it dials.
 * The lock guards the queues of all connections and the lists that tell where there is something in them: `ready` for
 * the owner, `todo` for the thread (listener_thread.c), each with a descriptor that wakes it. A connection that ends
 * stays in its slot until the owner has read its last message and its end; that of a dialled peer until it is hung up.
 */
#include "net/transport/listener_private.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"
#include "net/address.h"
#include "net/transport/listener_state_private.h"
#include "net/transport/tcp_listen_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    CAPACITY_MIN = 16,
    CAPACITY_MAX = 4096, /* connections; half of the process's descriptors if that is less */
    SLOT_BITS = 14,
    SECOND_US = 1000000,
};
static_assert(2 * CAPACITY_MAX + DIALLED_MAX <= 1 << SLOT_BITS, "a handle names every slot");

/* -- the queues between the owner and the thread; all with the lock -- */

void listener_signal(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0) return; /* the counter is full: the other side wakes anyway */
}

void listener_clear(int fd) {
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0) return;
}

void listener_make_ready(sn_listener *l, connection *c) {
    if (c->is_ready) return;
    c->is_ready = true;
    c->next_ready = NULL;
    if (!l->ready[0].first && !l->ready[1].first) listener_signal(l->ready_fd);
    *l->ready[c->dialled != NULL].end = c;
    l->ready[c->dialled != NULL].end = &c->next_ready;
}

void listener_make_todo(sn_listener *l, connection *c) {
    if (c->is_todo) return;
    c->is_todo = true;
    if (!l->todo) listener_signal(l->todo_fd);
    c->next_todo = l->todo;
    l->todo = c;
}

void listener_free_outgoing(outgoing *m) {
    if (m) sn_msg_free(&m->msg);
    free(m);
}

void listener_drop_sent(sn_listener *l, connection *c) {
    for (outgoing *m = c->sent, *next; m; m = next) {
        next = m->next;
        listener_free_outgoing(m);
    }
    c->sent = NULL;
    c->sent_end = &c->sent;
    l->sent_bytes -= c->sent_bytes;
    c->n_sent = c->sent_bytes = 0;
}

void listener_count_sealed(sn_listener *l, connection *c, size_t bytes) {
    l->sent_bytes = l->sent_bytes - c->sealed_bytes + bytes;
    c->sealed_bytes = bytes;
}

/* The report of an outage is the connection's own. */
static void free_incoming(connection *c, incoming *m) {
    if (c->dialled && m == &c->dialled->report)
        c->dialled->reporting = false;
    else
        free(m);
}

void listener_drop_received(sn_listener *l, connection *c) {
    for (incoming *m = c->received, *next; m; m = next) {
        next = m->next;
        sn_zmtp_message_free(&m->message);
        free_incoming(c, m);
    }
    c->received = NULL;
    c->received_end = &c->received;
    l->received_bytes -= c->received_bytes;
    c->n_received = c->received_bytes = 0;
}

static bool is_of_network(const connection *c, const uint8_t network[SN_ADDRESS_PREFIX]) {
    return !memcmp(c->standing.prefix, network, SN_ADDRESS_PREFIX);
}

/* The bucket of addresses that hold most. */
static size_t heaviest_bucket(const sn_listener *l, size_t (*held_of)(const connection *), int64_t now) {
    size_t held[SN_ADMISSION_BUCKETS] = {0}, heaviest = 0;
    for (size_t i = 0; i < l->n_slots; i++) {
        const connection *c = l->slots[i];
        if (!c) continue;
        size_t at = sn_admission_bucket(&c->standing, now);
        held[at] += held_of(c);
        if (held[at] > held[heaviest]) heaviest = at;
    }
    return heaviest;
}

/* Of the addresses that share the heaviest bucket, the one that has more than half of what they hold, if one has: what
 * others hold is taken off what it holds. NULL: none holds anything. */
static const uint8_t *heaviest_network(const sn_listener *l, size_t (*held_of)(const connection *)) {
    const int64_t now = sn_now_us();
    const size_t bucket = heaviest_bucket(l, held_of, now);
    const uint8_t *network = NULL;
    size_t ahead = 0;
    for (size_t i = 0; i < l->n_slots; i++) {
        const connection *c = l->slots[i];
        if (!c || sn_admission_bucket(&c->standing, now) != bucket) continue;
        const size_t held = held_of(c);
        if (network && is_of_network(c, network)) {
            ahead += held;
        } else if (held > ahead) {
            network = c->standing.prefix;
            ahead = held - ahead;
        } else {
            ahead -= held;
        }
    }
    return network;
}

connection *listener_heaviest(const sn_listener *l, size_t (*held_of)(const connection *)) {
    const uint8_t *network = heaviest_network(l, held_of);
    connection *most = NULL;
    for (size_t i = 0; network && i < l->n_slots; i++) {
        connection *c = l->slots[i];
        if (c && is_of_network(c, network) && (!most || held_of(c) > held_of(most))) most = c;
    }
    return most;
}

void listener_free_connection(sn_listener *l, connection *c) {
    listener_drop_received(l, c);
    listener_drop_sent(l, c);
    listener_free_outgoing(c->sealing);
    l->slots[c->slot] = NULL;
    l->n_dialled -= c->dialled != NULL;
    free(c->dialled);
    free(c);
}

static sn_peer handle_of(const connection *c) { return c->number << SLOT_BITS | c->slot; }

static connection *find_peer(const sn_listener *l, sn_peer peer) {
    uint64_t slot = peer & ((1 << SLOT_BITS) - 1);
    connection *c = slot < l->n_slots ? l->slots[slot] : NULL;
    return c && c->known && handle_of(c) == peer ? c : NULL;
}

/* -- for the owner -- */

int sn_listener_fd(const sn_listener *l) { return l->ready_fd; }

/* Takes what came first of a connection. */
static void take_received(sn_listener *l, connection *c, sn_inbound *out) {
    incoming *m = c->received;
    c->received = m->next;
    if (!c->received) c->received_end = &c->received;
    c->n_received--;
    c->received_bytes -= m->bytes;
    l->received_bytes -= m->bytes;
    if (c->dialled && m == &c->dialled->report) {
        out->outage = c->dialled->outage;
        memcpy(out->address, c->dialled->address, sizeof out->address);
    }
    out->message = m->message;
    free_incoming(c, m);
    c->known = true;
}

/* Takes the next message of a connection, or its end. */
static void take_next(sn_listener *l, connection *c, sn_inbound *out) {
    bool any = c->received != NULL;
    if (any)
        take_received(l, c, out);
    else if (c->known && !c->dialled)
        out->gone = c->gone;
    if (any || out->gone) {
        out->peer = handle_of(c);
        out->dialled = c->dialled != NULL;
        memcpy(out->key, c->key, SN_KEY_SIZE);
        if (!c->dialled) memcpy(out->network, c->standing.prefix, SN_ADDRESS_PREFIX);
    }
    c->known = c->known && !out->gone;
    c->drained = c->gone && !c->received && !c->known;
    bool reads_again = c->full && c->n_received <= RECEIVED_MAX / 2 && c->received_bytes <= RECEIVED_BYTES_MAX / 2;
    if (reads_again) c->full = false;
    if (c->drained || reads_again) listener_make_todo(l, c);
    if (c->received || (c->gone && c->known && !c->dialled)) listener_make_ready(l, c);
}

/* Puts a connection aside until it may be read again; false: it may be read now. */
static bool hold(sn_listener *l, connection *c, int64_t now) {
    if (c->held_us <= now) return false;
    c->is_ready = true;
    c->next_ready = l->held;
    l->held = c;
    if (c->held_us < l->held_us) l->held_us = c->held_us;
    return true;
}

/* Moves the held connections whose time has come to those that can be read. What ended ones had sent is lost: they
 * would occupy their places until it was read. */
static void release_held(sn_listener *l, int64_t now) {
    connection *next = l->held;
    l->held = NULL;
    l->held_us = INT64_MAX;
    for (connection *c = next; c; c = next) {
        next = c->next_ready;
        c->is_ready = false;
        if (c->gone) listener_drop_received(l, c);
        if (!hold(l, c, now)) listener_make_ready(l, c);
    }
}

/* Of those that have dialled, or of those that were. */
static void take_ready(sn_listener *l, bool dialled, int64_t now, sn_inbound *out) {
    while (l->ready[dialled].first && !out->peer) {
        connection *c = l->ready[dialled].first;
        l->ready[dialled].first = c->next_ready;
        if (!c->next_ready) l->ready[dialled].end = &l->ready[dialled].first;
        c->is_ready = false;
        if (!hold(l, c, now)) take_next(l, c, out);
    }
}

/* Every other turn is of those that have dialled: strangers can make a node dial many peers, and these send at no
 * charge. */
void sn_listener_receive(sn_listener *l, sn_inbound *out) {
    *out = (sn_inbound){0};
    int64_t now = sn_now_us();
    pthread_mutex_lock(&l->lock);
    if (now >= l->held_us) release_held(l, now);
    l->turn_of_dialled = !l->turn_of_dialled;
    for (int i = 0; i < 2 && !out->peer; i++) take_ready(l, l->turn_of_dialled != i, now, out);
    if (!l->ready[0].first && !l->ready[1].first) listener_clear(l->ready_fd);
    pthread_mutex_unlock(&l->lock);
}

int64_t sn_listener_held_until(const sn_listener *l) { return l->held_us; }

/* Counts one message at a rate of which `burst` may come at once; returns until when the next one must wait. */
static int64_t charge(int64_t *paid_us, int64_t now, int per_s, int burst) {
    const int64_t each_us = SECOND_US / per_s;
    *paid_us = (*paid_us > now ? *paid_us : now) + each_us;
    return *paid_us - burst * each_us;
}

void sn_listener_charge(sn_listener *l, sn_peer peer) {
    int64_t now = sn_now_us();
    pthread_mutex_lock(&l->lock);
    connection *c = find_peer(l, peer);
    if (c && c->dialled) c = NULL;
    bool crowded = c && charge(&l->paid_us, now, SN_ALL_CHARGED_PER_S, SN_ALL_CHARGED_BURST) > now;
    if (crowded) l->paid_us = now + SECOND_US / SN_ALL_CHARGED_PER_S * SN_ALL_CHARGED_BURST; /* no debt grows */
    const int64_t most_us = now + (int64_t)SECOND_US / SN_CHARGED_PER_S * SN_CHARGED_BURST;
    if (c && !crowded && c->paid_us > most_us) c->paid_us = most_us; /* what a crowd has raised ends with it */
    if (crowded)
        c->held_us = charge(&c->paid_us, now, SN_CROWDED_PER_S, SN_CROWDED_BURST);
    else if (c)
        c->held_us = charge(&c->paid_us, now, SN_CHARGED_PER_S, SN_CHARGED_BURST);
    pthread_mutex_unlock(&l->lock);
}

static sn_status outgoing_new(const sn_buf *map, const sn_msg *msg, outgoing **out, sn_err *err) {
    const sn_wire_tensor *tensor = &msg->tensor;
    bool any = tensor->rank != 0, copied = any && !msg->release;
    outgoing *m = malloc(sizeof *m + map->len + (copied ? tensor->bytes : 0));
    if (!m) return sn_fail(err, SN_STOP, "out of memory: no space for a message");
    *m = (outgoing){.map_len = map->len, .tensor_len = any ? tensor->bytes : 0};
    memcpy(m->map, map->data, map->len);
    if (copied) memcpy(m->map + map->len, tensor->data, tensor->bytes);
    if (any) m->tensor = copied ? m->map + map->len : tensor->data;
    *out = m;
    return SN_OK;
}

static size_t unsent(const connection *c) { return c->sent_bytes + c->sealed_bytes; }

/* While all connections together leave too much unread, one for which most waits ends, and further ones until it is
 * enough. */
static void bound_sent(sn_listener *l) {
    connection *most;
    while (l->sent_bytes > l->held_max && (most = listener_heaviest(l, unsent))) {
        listener_drop_sent(l, most);
        listener_count_sealed(l, most, 0);
        most->unread = true;
        listener_make_todo(l, most);
    }
}

sn_status sn_listener_send(sn_listener *l, sn_peer peer, const sn_buf *map, sn_msg **msg, sn_err *err) {
    outgoing *m = NULL;
    sn_status status = outgoing_new(map, *msg, &m, err);
    if (status) return status;
    pthread_mutex_lock(&l->lock);
    connection *c = find_peer(l, peer);
    if (!c || c->gone || c->unread) {
        status = sn_fail(err, SN_RETRY, "this peer is gone");
    } else if (c->n_sent >= SENT_MAX || (!c->dialled && c->sent_bytes >= SENT_BYTES_MAX)) {
        status = sn_fail(err, SN_RETRY, "the queue of this peer is full: try again later");
    } else {
        if (m->tensor && (*msg)->release) {
            m->msg = *msg;
            *msg = NULL;
        }
        *c->sent_end = m;
        c->sent_end = &m->next;
        c->n_sent++;
        c->sent_bytes += m->map_len + m->tensor_len;
        l->sent_bytes += m->map_len + m->tensor_len;
        listener_make_todo(l, c);
        bound_sent(l);
    }
    pthread_mutex_unlock(&l->lock);
    if (status)
        free(m);
    else
        sn_msg_free(msg);
    return status;
}

void sn_listener_hang_up(sn_listener *l, sn_peer peer) {
    pthread_mutex_lock(&l->lock);
    connection *c = find_peer(l, peer);
    if (c) {
        c->known = false;
        c->number = ++l->last_number;
        listener_drop_sent(l, c);
    }
    if (c && c->dialled) {
        listener_drop_received(l, c);
        c->gone = "this transport has hung up";
        c->drained = !c->is_ready; /* else the owner takes it from that list first */
        listener_make_todo(l, c);
    }
    pthread_mutex_unlock(&l->lock);
}

bool sn_listener_peer_host(sn_listener *l, sn_peer peer, char host[SN_ADDRESS_MAX + 1]) {
    struct sockaddr_storage from = {0};
    pthread_mutex_lock(&l->lock);
    const connection *c = find_peer(l, peer);
    bool known = c && !c->adopted && !c->dialled;
    if (known) from = c->from;
    pthread_mutex_unlock(&l->lock);
    return known && sn_address_host(&from, host);
}

/* -- dialling -- */

/* Of a key that was proven at an address of a private network, the address outside is the same node, which a router may
 * not lead back inside; so is the way through a relay. */
static bool stands_for(const dialled_peer *d, const char *address, bool relayed) {
    return d->up && !d->relayed && (relayed || sn_address_scope(d->address) < sn_address_scope(address));
}

static const connection *find_dialled(const sn_listener *l, const char *address, bool relayed,
                                      const uint8_t key[SN_KEY_SIZE]) {
    const connection *near = NULL;
    for (size_t i = l->n_accepted; i < l->n_slots; i++) {
        const connection *c = l->slots[i];
        if (!c || c->gone || memcmp(c->key, key, SN_KEY_SIZE)) continue;
        if (!strcmp(c->dialled->address, address)) return c;
        if (stands_for(c->dialled, address, relayed)) near = c;
    }
    return near;
}

/* Gives a new connection its place, and to the thread. */
static sn_status begin_dialled(sn_listener *l, connection *c, sn_err *err) {
    size_t slot = l->n_accepted;
    while (slot < l->n_slots && l->slots[slot]) slot++;
    if (slot == l->n_slots) return sn_fail(err, SN_RETRY, "%d peers are dialled already: hang up on some", DIALLED_MAX);
    c->slot = slot;
    c->number = ++l->last_number;
    l->slots[slot] = c;
    l->n_dialled++;
    listener_make_todo(l, c);
    return SN_OK;
}

sn_status sn_listener_dial(sn_listener *l, const char *address, const char *relay, const uint8_t key[SN_KEY_SIZE],
                           sn_peer *out, sn_err *err) {
    connection *fresh = NULL;
    socklen_t len;
    *out = 0;
    pthread_mutex_lock(&l->lock);
    const connection *c = find_dialled(l, address, relay != NULL, key);
    if (c) *out = handle_of(c);
    pthread_mutex_unlock(&l->lock);
    if (c) return SN_OK;
    sn_status status = sn_calloc(&fresh, 1, sizeof *fresh, err);
    if (!status) status = sn_calloc(&fresh->dialled, 1, sizeof *fresh->dialled, err);
    if (!status) status = sn_address_read(relay ? relay : address, &fresh->from, &len, err);
    if (!status) {
        fresh->fd = -1;
        fresh->known = true;
        fresh->received_end = &fresh->received;
        fresh->sent_end = &fresh->sent;
        fresh->dialled->relayed = relay != NULL;
        memcpy(fresh->key, key, SN_KEY_SIZE);
        memcpy(fresh->dialled->address, address, strlen(address) + 1);
        sn_address_prefix(&fresh->from, fresh->standing.prefix);
        pthread_mutex_lock(&l->lock);
        status = begin_dialled(l, fresh, err);
        if (!status) *out = handle_of(fresh);
        pthread_mutex_unlock(&l->lock);
    }
    if (!status || !fresh) return status;
    free(fresh->dialled);
    free(fresh);
    return status;
}

void sn_listener_watch(sn_listener *l, sn_peer peer, bool on) {
    const int64_t now = sn_now_us();
    pthread_mutex_lock(&l->lock);
    connection *c = find_peer(l, peer);
    if (c && c->dialled && on != (c->dialled->watched_us != 0)) c->dialled->watched_us = on ? now : 0;
    pthread_mutex_unlock(&l->lock);
}

int64_t sn_listener_round_trip_us(sn_listener *l, sn_peer peer) {
    pthread_mutex_lock(&l->lock);
    const connection *c = find_peer(l, peer);
    const int64_t us = c && c->dialled ? c->dialled->round_trip_us : 0;
    pthread_mutex_unlock(&l->lock);
    return us;
}

void sn_listener_divert(sn_listener *l, sn_listener_diverted diverted, void *ctx) {
    pthread_mutex_lock(&l->lock);
    l->diverted = diverted;
    l->diverted_ctx = ctx;
    pthread_mutex_unlock(&l->lock);
}

void sn_listener_adopt(sn_listener *l, int fd, const struct sockaddr_storage *from) {
    pthread_mutex_lock(&l->lock);
    bool room = l->n_adopted < ADOPTED_MAX;
    if (room) {
        l->adopted[l->n_adopted].fd = fd;
        l->adopted[l->n_adopted++].from = *from;
    }
    listener_signal(l->todo_fd);
    pthread_mutex_unlock(&l->lock);
    if (!room) close(fd);
}

/* -- creation and release -- */

static sn_status watch_own(sn_listener *l, int *fd, sn_err *err) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = fd};
    if (*fd >= 0 && !epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, *fd, &event)) return SN_OK;
    return sn_fail(err, SN_STOP, "the listening socket cannot be watched: %s", strerror(errno));
}

static sn_status listener_start(sn_listener *l, sn_err *err) {
    int failed;
    l->started = sn_thread_start(&l->thread, listener_run, l, &failed);
    return failed ? sn_fail(err, SN_STOP, "the thread that listens cannot start: %s", strerror(failed)) : SN_OK;
}

static sn_status open_descriptors(sn_listener *l, sn_err *err) {
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->todo_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->ready_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (l->epoll_fd >= 0 && l->todo_fd >= 0 && l->ready_fd >= 0 && l->spare_fd >= 0)
        return watch_own(l, &l->todo_fd, err);
    return sn_fail(err, SN_RETRY, "no descriptor is left for connections: %s", strerror(errno));
}

sn_status listener_open(const sn_identity *identity, sn_listener **out, sn_err *err) {
    struct rlimit descriptors = {.rlim_cur = 2 * CAPACITY_MAX};
    sn_listener *l;
    *out = NULL;
    if (sodium_init() < 0) return sn_fail(err, SN_STOP, "libsodium cannot start: it finds no source of randomness");
    sn_status status = sn_calloc(&l, 1, sizeof *l, err);
    if (status) return status;
    getrlimit(RLIMIT_NOFILE, &descriptors);
    *l = (sn_listener){.identity = identity,
                       .listen_fd = -1,
                       .linger_us = -1,
                       .held_max = listener_held_max(),
                       .held_us = INT64_MAX,
                       .retry_us = INT64_MAX,
                       .warm_us = INT64_MAX,
                       .pace_us = INT64_MAX};
    for (int i = 0; i < 2; i++) l->ready[i].end = &l->ready[i].first;
    l->turned_us = l->sweep_us = sn_now_us();
    l->capacity = (size_t)(descriptors.rlim_cur / 2 < CAPACITY_MAX ? descriptors.rlim_cur / 2 : CAPACITY_MAX);
    if (l->capacity < CAPACITY_MIN) l->capacity = CAPACITY_MIN;
    l->n_accepted = 2 * l->capacity;
    l->n_slots = l->n_accepted + DIALLED_MAX;
    pthread_mutex_init(&l->lock, NULL);
    status = open_descriptors(l, err);
    if (!status) status = sn_calloc(&l->slots, l->n_slots, sizeof *l->slots, err);
    if (!status) status = sn_calloc(&l->standings, l->n_accepted, sizeof *l->standings, err);
    if (!status) status = sn_calloc(&l->scratch, READ_SIZE, 1, err);
    if (!status) status = sn_address_limit_new(SN_HANDSHAKE_BURST, SN_HANDSHAKES_PER_S, &l->handshakes, err);
    if (!status)
        status = sn_address_limit_new(SN_ALL_HANDSHAKES_PER_S, SN_ALL_HANDSHAKES_PER_S, &l->all_handshakes, err);
    if (status)
        sn_listener_free(&l, 0);
    else
        *out = l;
    return status;
}

sn_status sn_listener_new(const sn_identity *identity, sn_listener **out, sn_err *err) {
    sn_status status = listener_open(identity, out, err);
    if (!status) status = listener_start(*out, err);
    if (status) sn_listener_free(out, 0);
    return status;
}

sn_status sn_listener_listen(sn_listener *l, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    if (l->listen_fd >= 0)
        return sn_fail(err, SN_REFUSED, "this transport listens already: make another for %s", address);
    sn_status status = sn_tcp_listen(address, &l->listen_fd, bound, err);
    return status ? status : watch_own(l, &l->listen_fd, err);
}

void sn_listener_free(sn_listener **listener, int64_t linger_us) {
    sn_listener *l = *listener;
    if (!l) return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->linger_us = linger_us;
        listener_signal(l->todo_fd);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    /* All end before the first is freed: the lists of the others refer to it. */
    for (size_t i = 0; l->slots && i < l->n_slots; i++)
        if (l->slots[i]) listener_end_connection(l, l->slots[i], "this transport ends");
    for (size_t i = 0; l->slots && i < l->n_slots; i++)
        if (l->slots[i]) listener_free_connection(l, l->slots[i]);
    for (size_t i = 0; i < l->n_adopted; i++) close(l->adopted[i].fd);
    const int fds[] = {l->listen_fd, l->epoll_fd, l->todo_fd, l->ready_fd, l->spare_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    sn_address_limit_free(&l->handshakes);
    sn_address_limit_free(&l->all_handshakes);
    pthread_mutex_destroy(&l->lock);
    free(l->slots);
    free(l->standings);
    free(l->scratch);
    free(l);
    *listener = NULL;
}

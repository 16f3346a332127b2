/* The thread of a listener (listener_private.h): it alone owns the sockets and the ZMTP state of connections. How it
 * makes those to peers that are dialled stands in dialled.c.
 *
 * It waits in epoll, reads what has come, opens it and puts messages into the connection's queue; it takes messages
 * from the queue in the other direction, seals them and writes them; large ones piece by piece, one piece a round. A
 * sweep four times a second ends connections that stall. Connections that ended in a round of events are freed at its
 * end, because the round may still refer to them.
 */
#include "net/transport/listener_state_private.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECT_US = 10000000, /* for a peer that is dialled, and as long for its relay */
    HANDSHAKE_US = 5000000,
    SILENT_US = 10000000, /* for the first message, when half of the places are taken */
    PING_US = 5000000,    /* of silence, then the peer is asked whether it lives */
    DEAD_US = 15000000,   /* of silence, then it is taken for dead */
    SWEEP_US = 250000,
    STALL_US = 2000000,      /* this thread did not run for so long: no silence is counted */
    SEALED_AHEAD = 64 << 10, /* bytes that are sealed before the socket takes them */
    READS_AT_ONCE = 8,       /* of one connection, then it is the turn of others */
    EVENTS = 64,
    SMALL_MESSAGE = 64, /* bytes of memory that an empty message has; one read brings 1800 of them */
    ACCEPTS_AT_ONCE = 64,
    /* A message of 1 GiB, which a client asks for with a few bytes (gradients of an adapter), and need not read, takes
     * seconds to seal; a piece takes a millisecond or two. */
    PIECE_BYTES = 1 << 20,
    /* Linux closes the congestion window of a connection on which nothing was sent for a retransmission time-out, 0.2 s
     * at least, to 10 segments: of a row that is larger, the rest would wait another round trip. */
    WARM_BYTES = 12 << 10,  /* of a message, behind which the window is kept open, */
    WARM_FOR_US = 5000000,  /* for so long: a step comes back within it, */
    WARM_EVERY_US = 150000, /* by a PONG that nobody has asked for and nobody answers */
};

/* Bytes of all messages that arrive or wait for the owner, and as many of those that wait to be sent. */
size_t listener_held_max(void) { return (size_t)2 << 30; }

/* -- the life of a connection, on the listener's thread -- */

static void end_sealing(sn_listener *l, connection *c) {
    l->n_sealing -= c->sealing != NULL;
    listener_free_outgoing(c->sealing);
    c->sealing = NULL;
}

void listener_disconnect(sn_listener *l, connection *c) {
    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->fd = -1;
    l->partial -= c->partial;
    c->partial = 0;
    c->warm_us = c->pace_us = 0;
    c->pace = (sn_pace){0};
    sn_zmtp_fini(&c->zmtp);
    end_sealing(l, c);
    if (c->dialled) return;
    l->n_open--;
    l->standings[c->slot] = NULL;
}

static const char *const fell_silent = "its machine acknowledges nothing";

void listener_end_connection(sn_listener *l, connection *c, const char *why) {
    if (c->fd < 0) return;
    listener_disconnect(l, c);
    pthread_mutex_lock(&l->lock);
    listener_count_sealed(l, c, 0);
    if (c->dialled) {
        const sn_outage lost = why == fell_silent ? SN_OUTAGE_SILENT : SN_OUTAGE_LOST;
        dialled_is_down(l, c, c->dialled->up ? lost : c->begun ? SN_OUTAGE_UNPROVEN : SN_OUTAGE_REFUSED);
    } else {
        c->gone = why;
        listener_drop_sent(l, c);
        if (c->known || c->received || c->is_ready)
            listener_make_ready(l, c);
        else
            c->drained = true;
        listener_make_todo(l, c); /* freed at the end of the round, because this round may still refer to it */
    }
    pthread_mutex_unlock(&l->lock);
}

/* Ends a connection for what it holds. */
static void expel(sn_listener *l, connection *c, const char *why) {
    if (c->dialled)
        dialled_leave(l, c);
    else
        listener_end_connection(l, c, why);
}

static void refuse(int fd, const char *why) {
    close(fd);
    sn_log_rated(SN_LOG_INFO, "connection refused", "text=%s", why);
}

/* Makes room for a newcomer; false: there is none. */
static bool make_room(sn_listener *l, const uint8_t prefix[SN_ADDRESS_PREFIX], size_t capacity, int64_t now) {
    int decision = sn_admission_decide(l->standings, l->n_accepted, capacity, prefix, now);
    if (decision >= 0) {
        sn_log_rated(SN_LOG_INFO, "connection closed", "text=another connection needs its place");
        listener_end_connection(l, l->slots[decision], "its place was needed for another connection");
    }
    return decision != SN_ADMIT_NOT;
}

static void connection_begin(sn_listener *l, int fd, const struct sockaddr_storage *from, bool adopted, int64_t now) {
    uint8_t prefix[SN_ADDRESS_PREFIX];
    int one = 1;
    size_t slot = 0;
    sn_err err;
    sn_address_prefix(from, prefix);
    if (!make_room(l, prefix, l->capacity, now)) {
        refuse(fd, "all places for connections are taken");
        return;
    }
    while (slot < l->n_accepted && l->slots[slot]) slot++; /* ended ones that the owner has not seen keep theirs */
    connection *c = slot < l->n_accepted ? calloc(1, sizeof *c) : NULL;
    if (!c || sn_zmtp_init(&c->zmtp, l->identity, NULL, &err)) {
        free(c);
        refuse(fd, "there is no memory for another connection");
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->slot = slot;
    c->fd = fd;
    c->from = *from;
    c->adopted = adopted;
    c->interest = EPOLLIN;
    c->opened_us = c->heard_us = c->standing.since_us = now;
    memcpy(c->standing.prefix, prefix, sizeof prefix);
    c->received_end = &c->received;
    c->sent_end = &c->sent;
    l->standings[slot] = &c->standing;
    l->n_open++;
    pthread_mutex_lock(&l->lock);
    c->number = ++l->last_number;
    l->slots[slot] = c;
    pthread_mutex_unlock(&l->lock);
    struct epoll_event event = {.events = c->interest, .data.ptr = c};
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &event)) listener_end_connection(l, c, "it could not be watched");
}

/* Without a descriptor for a newcomer, one is taken from a connection, or the newcomer is told at once. */
static void accept_without_descriptor(sn_listener *l, int64_t now) {
    uint8_t none[SN_ADDRESS_PREFIX] = {0};
    if (l->n_open && make_room(l, none, l->n_open, now)) return;
    close(l->spare_fd);
    int fd = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) refuse(fd, "the process has no descriptor left: raise its limit (ulimit -n)");
    l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static bool newcomer_waits(const sn_listener *l) {
    struct pollfd fd = {.fd = l->listen_fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

static void accept_newcomers(sn_listener *l, int64_t now) {
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof from;
        int fd = accept4(l->listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            connection_begin(l, fd, &from, false, now);
        else if ((errno == EMFILE || errno == ENFILE) && newcomer_waits(l)) /* these errors come without one, too */
            accept_without_descriptor(l, now);
        else if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

/* -- writing -- */

/* A message of so many bytes is sent: its connection's window stays open for a while. */
static void warm_behind(sn_listener *l, connection *c, size_t bytes) {
    if (bytes < WARM_BYTES) return;
    const int64_t now = sn_now_us();
    c->warm_us = now + WARM_FOR_US;
    if (now + WARM_EVERY_US < l->warm_us) l->warm_us = now + WARM_EVERY_US;
}

/* Seals the next message that waits, or begins to; false: none may be sealed now, or the connection has ended. */
static bool seal_next(sn_listener *l, connection *c) {
    if (c->sealing) return false;
    pthread_mutex_lock(&l->lock);
    outgoing *m = c->sent;
    if (m) {
        c->sent = m->next;
        if (!c->sent) c->sent_end = &c->sent;
        c->n_sent--;
        c->sent_bytes -= m->map_len + m->tensor_len;
        l->sent_bytes -= m->map_len + m->tensor_len;
    }
    pthread_mutex_unlock(&l->lock);
    if (!m) return false;
    bool large = m->tensor && m->tensor_len > PIECE_BYTES;
    bool sealed = sn_zmtp_send(&c->zmtp, m->map, m->map_len, m->tensor != NULL);
    if (sealed && large)
        sealed = sn_zmtp_send_begin(&c->zmtp, m->tensor, m->tensor_len);
    else if (sealed && m->tensor)
        sealed = sn_zmtp_send(&c->zmtp, m->tensor, m->tensor_len, false);
    c->sealing = m;
    c->sealing_number = ++l->sealing_number;
    l->n_sealing++;
    warm_behind(l, c, m->map_len + m->tensor_len);
    if (!sealed || !large) end_sealing(l, c);
    c->standing.since_us = sn_now_us();
    if (!sealed) listener_end_connection(l, c, "there is no memory for a message to it");
    return sealed;
}

void listener_watch(sn_listener *l, connection *c) {
    const uint8_t *data;
    bool connects = c->dialled && !c->begun && !c->dialled->asks;
    bool writes = connects || (c->begun && !c->pace_us && sn_zmtp_output(&c->zmtp, &data) > 0);
    uint32_t interest = (c->paused && sn_zmtp_is_ready(&c->zmtp) ? 0 : EPOLLIN) | (writes ? EPOLLOUT : 0);
    struct epoll_event event = {.events = interest, .data.ptr = c};
    if (interest == c->interest) return;
    c->interest = interest;
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, c->fd, &event)) listener_end_connection(l, c, "it could not be watched");
}

/* How many of these bytes may be written now (pace_private.h); 0: none, it is the connection's turn later. *speed: for
 * sn_pace_note. */
static size_t may_write(sn_listener *l, connection *c, size_t len, uint64_t *speed, int64_t now) {
    struct tcp_info info = {0};
    *speed = 0;
    c->pace_us = 0;
    if (len < SN_PACE_STEP && c->pace.gone_us <= now) return len; /* one row, behind nothing */
    if (!getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &(socklen_t){sizeof info}))
        *speed = sn_pace_speed(info.tcpi_rtt, info.tcpi_snd_cwnd, info.tcpi_snd_mss);
    len = sn_pace_allows(&c->pace, *speed, len, now, &c->pace_us);
    if (!len && c->pace_us < l->pace_us) l->pace_us = c->pace_us;
    return len;
}

/* Writes what the socket takes. */
void listener_write(sn_listener *l, connection *c) {
    const uint8_t *data;
    while (c->fd >= 0 &&
           c->begun) { /* what comes first decides whether this is ZMTP: not even the greeting goes before it */
        while (sn_zmtp_may_send(&c->zmtp) && sn_zmtp_output(&c->zmtp, &data) < SEALED_AHEAD && seal_next(l, c)) {}
        uint64_t speed;
        const int64_t now = sn_now_us();
        size_t len = c->fd < 0 ? 0 : sn_zmtp_output(&c->zmtp, &data);
        if (!len || !(len = may_write(l, c, len, &speed, now))) break;
        ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n < 0)
            listener_end_connection(l, c, "the peer has closed its connection");
        else
            sn_zmtp_written(&c->zmtp, (size_t)n);
        if (n > 0) sn_pace_note(&c->pace, speed, (size_t)n, now);
    }
    if (c->fd < 0) return;
    pthread_mutex_lock(&l->lock);
    if (!c->unread) listener_count_sealed(l, c, sn_zmtp_output_memory(&c->zmtp));
    pthread_mutex_unlock(&l->lock);
    listener_watch(l, c);
}

/* The one that waits for longest, or the one of which least is left. */
static connection *sealing_next(const sn_listener *l, bool oldest) {
    connection *next = NULL;
    for (size_t i = 0; i < l->n_slots; i++) {
        connection *c = l->slots[i];
        if (!c || !c->sealing) continue;
        if (!next || (oldest ? c->sealing_number < next->sealing_number
                             : sn_zmtp_unsealed(&c->zmtp) < sn_zmtp_unsealed(&next->zmtp)))
            next = c;
    }
    return next;
}

/* Goes on with one large message: the shortest and the oldest by turns. So a short one waits little for longer ones,
 * none waits for ever, and few are half sealed at a time. */
static void seal_piece(sn_listener *l) {
    if (!l->n_sealing) return;
    connection *c = sealing_next(l, l->n_pieces++ % 2);
    if (!sn_zmtp_seal(&c->zmtp, PIECE_BYTES)) return;
    end_sealing(l, c);
    listener_write(l, c);
}

/* -- reading -- */

static const char *const off_protocol = "what it sends is not the protocol of this transport";

static bool queue_message(sn_listener *l, connection *c, sn_zmtp_message *message, int64_t now) {
    incoming *m = calloc(1, sizeof *m);
    if (!m) {
        sn_zmtp_message_free(message);
        return false;
    }
    m->message = *message;
    m->bytes = sizeof *m + SMALL_MESSAGE + message->frames[0].len + message->frames[1].len;
    c->standing.named = true;
    c->standing.since_us = now;
    pthread_mutex_lock(&l->lock);
    memcpy(c->key, c->zmtp.curve.peer_key, SN_KEY_SIZE);
    *c->received_end = m;
    c->received_end = &m->next;
    c->n_received++;
    c->received_bytes += m->bytes;
    l->received_bytes += m->bytes;
    if (c->gone) listener_drop_received(l, c); /* the owner has hung up */
    c->full = c->paused = c->n_received >= RECEIVED_MAX || c->received_bytes >= RECEIVED_BYTES_MAX;
    if (!c->gone) listener_make_ready(l, c);
    pthread_mutex_unlock(&l->lock);
    return true;
}

static bool may_shake_hands(sn_listener *l, const connection *c, int64_t now) {
    static const uint8_t all[SN_ADDRESS_PREFIX];
    return sn_address_limit_allows(l->handshakes, c->standing.prefix, now) &&
           sn_address_limit_allows(l->all_handshakes, all, now);
}

/* Takes bytes that have come; returns why the connection must end, or NULL. */
static const char *take_bytes(sn_listener *l, connection *c, const uint8_t *data, size_t len, int64_t now) {
    c->heard_us = now;
    while (len) {
        sn_zmtp_message message;
        const bool was_ready = sn_zmtp_is_ready(&c->zmtp);
        const sn_zmtp_result result = sn_zmtp_receive(&c->zmtp, &data, &len, &message);
        if (c->dialled && !was_ready && sn_zmtp_is_ready(&c->zmtp)) dialled_is_up(l, c);
        switch (result) {
        case SN_ZMTP_MORE:
            break;
        case SN_ZMTP_GREETED:
            if (!c->dialled && !may_shake_hands(l, c, now)) return "there are too many handshakes";
            break;
        case SN_ZMTP_MESSAGE:
            if (!queue_message(l, c, &message, now)) return "there is no memory for its message";
            break;
        case SN_ZMTP_FAILED:
            return off_protocol;
        }
    }
    return NULL;
}

/* Of one that has ended, too: others would end for what it has left here. */
static size_t held_of(const connection *c) { return c->partial + c->received_bytes; }

/* The connection that must end because all together hold too much, or NULL. What it sent is dropped: it would hold its
 * memory until the owner reads it. */
static connection *drop_heaviest(sn_listener *l) {
    pthread_mutex_lock(&l->lock);
    bool within = l->partial + l->received_bytes <= l->held_max;
    connection *most = within ? NULL : listener_heaviest(l, held_of);
    if (most) listener_drop_received(l, most);
    pthread_mutex_unlock(&l->lock);
    return most;
}

/* While all connections together hold too much, those that hold most end. */
static void bound_memory(sn_listener *l, connection *c) {
    size_t partial = sn_zmtp_partial(&c->zmtp);
    l->partial = l->partial - c->partial + partial;
    c->partial = partial;
    for (connection *most; (most = drop_heaviest(l));) {
        sn_log_rated(SN_LOG_WARN, "connection closed", "text=messages that arrive hold more than %zu MiB",
                     l->held_max >> 20);
        expel(l, most, "its network address held the most memory of all");
    }
}

/* What comes first decides what the connection is. False: nothing has come, or it is no peer's and has been given away.
 */
static bool connection_sort(sn_listener *l, connection *c) {
    enum { ZMTP = 0xff };
    uint8_t first;
    ssize_t n = recv(c->fd, &first, 1, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    c->begun = n <= 0 || first == ZMTP || c->adopted;
    if (c->begun) return true;
    pthread_mutex_lock(&l->lock);
    sn_listener_diverted diverted = l->diverted;
    void *ctx = l->diverted_ctx;
    pthread_mutex_unlock(&l->lock);
    int fd = diverted ? fcntl(c->fd, F_DUPFD_CLOEXEC, 0) : -1;
    struct sockaddr_storage from = c->from;
    listener_end_connection(l, c, diverted ? "it is no connection of a peer" : off_protocol);
    if (fd >= 0) diverted(ctx, fd, &from);
    return false;
}

static void connection_read(sn_listener *l, connection *c, int64_t now) {
    if (!c->begun && !connection_sort(l, c)) return;
    for (int i = 0; i < READS_AT_ONCE && c->fd >= 0; i++) {
        ssize_t n = recv(c->fd, l->scratch, READ_SIZE, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        bool was_ready = sn_zmtp_is_ready(&c->zmtp);
        const char *why = n <= 0 ? "the peer has closed its connection" : take_bytes(l, c, l->scratch, (size_t)n, now);
        if (why && n > 0 && !c->dialled)
            sn_log_rated(SN_LOG_INFO, "connection closed", "handshake=%s text=%s", was_ready ? "done" : "not_done",
                         why);
        if (why)
            listener_end_connection(l, c, why);
        else
            bound_memory(l, c);
        if (n < READ_SIZE || c->paused) break;
    }
    listener_write(l, c); /* answers of the handshake and to pings */
}

/* -- the thread -- */

static void sweep_connection(sn_listener *l, connection *c, int64_t now) {
    bool ready = sn_zmtp_is_ready(&c->zmtp);
    if (c->paused || c->sealing) c->heard_us = now; /* it is not read, or not asked */
    if (!ready && now - c->opened_us > (c->dialled && !c->begun ? CONNECT_US : HANDSHAKE_US)) {
        listener_end_connection(l, c, "its handshake took too long");
    } else if (!c->dialled && !c->standing.named && now - c->opened_us > SILENT_US && 2 * l->n_open > l->capacity) {
        listener_end_connection(l, c, "it sent nothing and others need its place");
    } else if (now - c->heard_us > DEAD_US) {
        listener_end_connection(l, c, "the peer has been silent for too long");
    } else if (ready && c->dialled && dialled_is_silent(l, c, now)) {
        listener_end_connection(l, c, fell_silent);
    } else if (c->fd < 0) {
        return;
    } else if (ready && now - c->heard_us > PING_US && now - c->pinged_us > PING_US) {
        c->pinged_us = now;
        if (sn_zmtp_ping(&c->zmtp))
            listener_write(l, c);
        else
            listener_end_connection(l, c, "there is no memory for a ping");
    }
}

/* Sends a few bytes on connections whose windows are to stay open, but for those that send anyway. What one costs its
 * peer are so few frames for each large message that it got. */
static void keep_warm(sn_listener *l, int64_t now) {
    const uint8_t *data;
    l->warm_us = INT64_MAX;
    for (size_t i = 0; i < l->n_slots; i++) {
        connection *c = l->slots[i];
        if (!c || c->fd < 0 || c->warm_us <= now) continue;
        l->warm_us = now + WARM_EVERY_US;
        if (!sn_zmtp_is_ready(&c->zmtp) || sn_zmtp_output(&c->zmtp, &data)) continue;
        if (sn_zmtp_pong(&c->zmtp))
            listener_write(l, c);
        else
            listener_end_connection(l, c, "there is no memory to keep its window open");
    }
}

/* Lets those connections write that had to wait. */
static void write_paced(sn_listener *l, int64_t now) {
    l->pace_us = INT64_MAX;
    for (size_t i = 0; i < l->n_slots; i++) {
        connection *c = l->slots[i];
        if (!c || c->fd < 0 || !c->pace_us) continue;
        if (c->pace_us <= now)
            listener_write(l, c);
        else if (c->pace_us < l->pace_us)
            l->pace_us = c->pace_us;
    }
}

static void sweep(sn_listener *l, int64_t now, bool stalled) {
    for (size_t i = 0; i < l->n_slots; i++) {
        connection *c = l->slots[i];
        if (!c || c->fd < 0) continue;
        if (stalled) c->heard_us = now;
        if (stalled && c->dialled) c->opened_us = now; /* its key is not unproven because this program stood still */
        if (stalled && c->dialled) c->dialled->unanswered_us = 0;
        sweep_connection(l, c, now);
    }
}

/* Begins the connections that others have made for this listener. */
static void take_adopted(sn_listener *l, int64_t now) {
    for (;;) {
        pthread_mutex_lock(&l->lock);
        bool any = l->n_adopted > 0;
        int fd = any ? l->adopted[--l->n_adopted].fd : -1;
        struct sockaddr_storage from = {0};
        if (any) from = l->adopted[l->n_adopted].from;
        pthread_mutex_unlock(&l->lock);
        if (!any) return;
        connection_begin(l, fd, &from, true, now);
    }
}

/* Frees a connection that the owner does not know any more, or ends what is left of one that it has hung up on. */
static void clear_ended(sn_listener *l, connection *c, bool drained) {
    if (c->fd >= 0) listener_disconnect(l, c);
    pthread_mutex_lock(&l->lock);
    listener_count_sealed(l, c, 0);
    if (drained) listener_free_connection(l, c);
    pthread_mutex_unlock(&l->lock);
}

/* The next connection of those for which something is to do, or NULL. */
static connection *take_todo(sn_listener *l, int64_t now, bool *drained, bool *ended, bool *unread) {
    pthread_mutex_lock(&l->lock);
    connection *c = l->todo;
    if (c) {
        l->todo = c->next_todo;
        c->is_todo = false;
        if (c->paused && !c->full) c->heard_us = now;
        c->paused = c->full;
        *drained = c->drained;
        *ended = c->drained || c->gone;
        *unread = c->unread;
    }
    pthread_mutex_unlock(&l->lock);
    return c;
}

/* Does what was asked for: writes, reads again, dials, frees what has ended. At the end of a round, when no event
 * refers to a connection any more. */
static void do_todo(sn_listener *l, int64_t now) {
    bool drained, ended, unread;
    listener_clear(l->todo_fd);
    take_adopted(l, now);
    for (size_t i = 0; i < l->n_slots; i++) {
        connection *c = take_todo(l, now, &drained, &ended, &unread);
        if (!c) return;
        if (ended) {
            clear_ended(l, c, drained);
        } else if (unread) {
            sn_log_rated(SN_LOG_WARN, "connection closed", "text=messages that wait to be read hold more than %zu MiB",
                         l->held_max >> 20);
            expel(l, c, "its network address left the most memory of all unread");
        } else if (c->fd < 0 && c->dialled && !c->dialled->retry_us) {
            l->retry_us = now; /* it was never dialled */
        } else {
            listener_write(l, c);
        }
    }
    listener_signal(l->todo_fd); /* the owner adds as fast as this thread takes: look at the sockets first */
}

/* Whether messages wait to be sent. */
static bool has_output(sn_listener *l) {
    bool any = false;
    const uint8_t *data;
    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->n_slots && !any; i++) {
        const connection *c = l->slots[i];
        any = c &&
              ((c->fd >= 0 && (c->sent || c->sealing || sn_zmtp_output(&c->zmtp, &data))) || (c->dialled && c->sent));
        if (any && c->dialled) any = !c->gone && !c->dialled->down; /* others are not there */
    }
    pthread_mutex_unlock(&l->lock);
    return any;
}

/* One round: waits for events at most `wait_ms`, and handles them. */
static void listener_round(sn_listener *l, int wait_ms) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(l->epoll_fd, events, EVENTS, l->n_sealing ? 0 : wait_ms);
    int64_t now = sn_now_us();
    for (int i = 0; i < n; i++) {
        connection *c = events[i].data.ptr;
        if ((void *)c == &l->listen_fd)
            accept_newcomers(l, now);
        else if ((void *)c != &l->todo_fd && c->fd >= 0 && c->dialled && !c->begun)
            dialled_proceed(l, c, now);
        else if ((void *)c != &l->todo_fd && c->fd >= 0 && events[i].events & ~(uint32_t)EPOLLOUT)
            connection_read(l, c, now);
        else if ((void *)c != &l->todo_fd && c->fd >= 0)
            listener_write(l, c);
    }
    do_todo(l, now);
    if (now >= l->retry_us) dialled_retry(l, now);
    if (now >= l->pace_us) write_paced(l, now);
    seal_piece(l);
}

void listener_turn(sn_listener *l, int wait_ms) {
    listener_round(l, wait_ms);
    int64_t now = sn_now_us();
    bool stalled = now - l->turned_us > STALL_US;
    if (now >= l->sweep_us) {
        sweep(l, now, stalled);
        l->sweep_us = now + SWEEP_US;
    }
    if (now >= l->warm_us) keep_warm(l, now);
    l->turned_us = now;
}

/* How long the thread may wait for events, in ms; -1: for ever. *linger_us: how long unsent messages have at its end,
 * if that has come; else -1. */
static int wait_of(sn_listener *l, int64_t *linger_us) {
    pthread_mutex_lock(&l->lock);
    *linger_us = l->linger_us;
    bool any = l->n_dialled > 0;
    pthread_mutex_unlock(&l->lock);
    if (!any && !l->n_open) return -1;
    int64_t due_us = l->retry_us < l->warm_us ? l->retry_us : l->warm_us;
    if (l->pace_us < due_us) due_us = l->pace_us;
    const int64_t left_us = due_us < INT64_MAX ? due_us - sn_now_us() : SWEEP_US;
    return left_us <= 0 ? 0 : left_us < SWEEP_US ? (int)(left_us / 1000) + 1 : SWEEP_US / 1000;
}

void *listener_run(void *arg) {
    sn_listener *l = arg;
    int64_t linger_us;
    for (int wait_ms; wait_ms = wait_of(l, &linger_us), linger_us < 0;) listener_turn(l, wait_ms);
    if (l->listen_fd >= 0) epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, l->listen_fd, NULL);
    for (int64_t until = sn_now_us() + linger_us; has_output(l) && sn_now_us() < until;) listener_round(l, 10);
    return NULL;
}

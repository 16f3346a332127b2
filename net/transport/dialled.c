/* Connections that a listener makes (listener_private.h): to a peer, or to its relay, which is asked for it by SOCKS5
 * (portal.h). From then on they are as those that were accepted. One that ends is reported to the owner once, until it
 * is up again, among the messages that came before; it is made again after a pause, which doubles until it is up. What
 * waits to be sent stays. All of it is on the listener's thread. */
#include "base/clock.h"
#include "base/hash.h"
#include "net/transport/listener_state_private.h"
#include "net/transport/portal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PAUSE_FIRST_US = 100000,
    PAUSE_MAX_US = 5000000,
    UNANSWERED_MS = 30000, /* for what was written, then the kernel ends the connection */
    /* Of a peer that is watched: TCP has repeated itself twice or more by then, whatever packet was lost. */
    ASK_US = 300000,      /* of silence, then it is sent something to acknowledge; */
    QUIET_US = 1250000,   /* so long nothing was acknowledged, */
    QUIET_ROUND_TRIPS = 6 /* and for so many round trips: it is down */
};

/* Puts the report of an outage behind what was received. With the lock. */
static void report(sn_listener *l, connection *c, sn_outage outage) {
    dialled_peer *d = c->dialled;
    d->outage = outage;
    if (d->reporting) return;
    d->report = (incoming){0};
    d->reporting = true;
    *c->received_end = &d->report;
    c->received_end = &d->report.next;
    c->n_received++;
    listener_make_ready(l, c);
}

void dialled_is_down(sn_listener *l, connection *c, sn_outage outage) {
    dialled_peer *d = c->dialled;
    uint16_t drawn;
    sn_random(&drawn, sizeof drawn); /* many peers of a program that has ended do not come back at once */
    d->retry_us = sn_now_us() + d->pause_us + drawn;
    d->pause_us = 2 * d->pause_us < PAUSE_MAX_US ? 2 * d->pause_us : PAUSE_MAX_US;
    if (d->retry_us < l->retry_us) l->retry_us = d->retry_us;
    if (!d->down && !c->gone) report(l, c, outage);
    d->down = true;
    d->up = false;
}

void dialled_is_up(sn_listener *l, connection *c) {
    c->dialled->pause_us = PAUSE_FIRST_US;
    pthread_mutex_lock(&l->lock);
    c->dialled->up = true;
    c->dialled->down = false;
    pthread_mutex_unlock(&l->lock);
}

void dialled_leave(sn_listener *l, connection *c) {
    if (c->fd >= 0) listener_disconnect(l, c);
    pthread_mutex_lock(&l->lock);
    listener_count_sealed(l, c, 0);
    listener_drop_sent(l, c);
    if (!c->gone) report(l, c, SN_OUTAGE_LEFT);
    c->dialled->up = false;
    c->gone = "it held too much";
    pthread_mutex_unlock(&l->lock);
}

/* What the kernel of the peer's machine acknowledges tells whether the way to it is whole, however busy its program is.
 */
bool dialled_is_silent(sn_listener *l, connection *c, int64_t now) {
    dialled_peer *d = c->dialled;
    struct tcp_info info = {0};
    pthread_mutex_lock(&l->lock);
    const int64_t watched_us = d->watched_us;
    pthread_mutex_unlock(&l->lock);
    if (!watched_us || getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &(socklen_t){sizeof info})) {
        d->unanswered_us = 0;
        return false;
    }
    const int64_t quiet_us = (int64_t)info.tcpi_last_ack_recv * 1000,
                  trips_us = QUIET_ROUND_TRIPS * (int64_t)info.tcpi_rtt;
    if (!info.tcpi_unacked || !d->unanswered_us || quiet_us < now - d->unanswered_us)
        d->unanswered_us = info.tcpi_unacked ? now : 0;
    if (!info.tcpi_unacked && quiet_us > ASK_US && now - watched_us > ASK_US && sn_zmtp_ping(&c->zmtp)) {
        d->unanswered_us = now;
        listener_write(l, c);
    }
    return c->fd >= 0 && d->unanswered_us && now - d->unanswered_us > (trips_us > QUIET_US ? trips_us : QUIET_US);
}

/* Begins to connect; false: an outage. */
static bool begin(sn_listener *l, connection *c, int64_t now) {
    int one = 1, unanswered = UNANSWERED_MS;
    sn_err err;
    socklen_t len = c->from.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    c->fd = socket(c->from.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    c->begun = c->dialled->asks = false;
    c->dialled->answer_len = 0;
    c->dialled->unanswered_us = 0;
    c->opened_us = c->heard_us = now;
    c->interest = EPOLLIN | EPOLLOUT;
    struct epoll_event event = {.events = c->interest, .data.ptr = c};
    if (c->fd < 0 || sn_zmtp_init(&c->zmtp, l->identity, c->key, &err)) return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
    return (!connect(c->fd, (const struct sockaddr *)&c->from, len) || errno == EINPROGRESS) &&
           !epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
}

static void dial(sn_listener *l, connection *c, int64_t now) {
    if (!c->dialled->pause_us) c->dialled->pause_us = PAUSE_FIRST_US;
    if (begin(l, c, now)) return;
    bool none_left = c->fd < 0 && errno != EAFNOSUPPORT; /* a kernel without IPv6 */
    sn_outage outage = none_left ? SN_OUTAGE_NO_DESCRIPTOR : SN_OUTAGE_REFUSED;
    if (c->fd >= 0) listener_disconnect(l, c);
    pthread_mutex_lock(&l->lock);
    dialled_is_down(l, c, outage);
    pthread_mutex_unlock(&l->lock);
}

void dialled_retry(sn_listener *l, int64_t now) {
    l->retry_us = INT64_MAX;
    for (size_t i = l->n_accepted; i < l->n_slots; i++) {
        connection *c = l->slots[i];
        if (!c || c->fd >= 0) continue;
        pthread_mutex_lock(&l->lock);
        bool gone = c->gone != NULL;
        pthread_mutex_unlock(&l->lock);
        if (gone) continue;
        if (now >= c->dialled->retry_us)
            dial(l, c, now);
        else if (c->dialled->retry_us < l->retry_us)
            l->retry_us = c->dialled->retry_us;
    }
}

/* Sends a relay the greeting and the request of SOCKS, one after the other without a wait in between: no
 * authentication; connect, to the name that the key makes. */
static bool ask(connection *c) {
    static const uint8_t begin[] = {5, 1, 0, 5, 1, 0, 3, SN_RELAY_NAME_LEN};
    char name[SN_RELAY_NAME_LEN + 1];
    uint8_t request[sizeof begin + SN_RELAY_NAME_LEN + 2] = {0};
    sn_relay_name(c->key, name);
    memcpy(request, begin, sizeof begin);
    memcpy(request + sizeof begin, name, SN_RELAY_NAME_LEN);
    request[sizeof request - 1] = 1;
    c->dialled->asks = true;
    return send(c->fd, request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request;
}

/* Reads what the relay says, and not a byte more. False: it brings nobody. */
static bool read_answer(connection *c) {
    enum { CODE_AT = 3 };
    dialled_peer *d = c->dialled;
    ssize_t n = recv(c->fd, d->answer + d->answer_len, SOCKS_ANSWER - d->answer_len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    if (n > 0) d->answer_len += (size_t)n;
    bool good = n > 0 && (d->answer_len <= CODE_AT || !d->answer[CODE_AT]);
    c->begun = good && d->answer_len == SOCKS_ANSWER;
    return good;
}

/* The kernel has measured it while it connected: no message is needed for that. */
static void note_round_trip(sn_listener *l, connection *c) {
    struct tcp_info info = {0};
    if (c->dialled->relayed || getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &(socklen_t){sizeof info})) return;
    pthread_mutex_lock(&l->lock);
    c->dialled->round_trip_us = info.tcpi_rtt ? info.tcpi_rtt : 1;
    pthread_mutex_unlock(&l->lock);
}

void dialled_proceed(sn_listener *l, connection *c, int64_t now) {
    int failed = 0;
    bool good;
    if (c->dialled->asks) {
        good = read_answer(c);
    } else {
        good = !getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &failed, &(socklen_t){sizeof failed}) && !failed;
        c->begun = good && !c->dialled->relayed;
        if (good) note_round_trip(l, c);
        if (good && c->dialled->relayed) good = ask(c);
        c->opened_us = c->heard_us = now;
    }
    if (c->begun) c->opened_us = c->heard_us = now;
    if (good)
        listener_write(l, c);
    else
        listener_end_connection(l, c, "");
}

/* The emulated link (net/transport/emulated_link.h).
 *
 * recv takes events from the inner transport as soon as they arrive, computes when each is due, and keeps it in a list
 * in the order of due times; it returns the first event whose time has come. A line for each peer remembers when the
 * last message has left it and is due; lines without messages are dropped when the table grows. While DELAYED_MAX
 * events are kept, further ones wait in the inner transport. All other operations are the inner transport's. */
#include "net/transport/emulated_link.h"

#include "base/clock.h"
#include "base/random.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { DELAYED_MAX = 4096, DELAYED_FULL_US = 1000 }; /* events kept; pause while there are so many */

/* An event that has arrived and is not due yet. */
typedef struct delayed {
    struct delayed *next;
    int64_t due_us;
    sn_event event;
} delayed;

/* The line of one peer. */
typedef struct line {
    sn_peer peer;
    int64_t free_us; /* when the last bit of the last message has left the line */
    int64_t due_us;  /* when the last message is due */
} line;

typedef struct emulated {
    sn_transport base;
    sn_transport *inner;
    sn_emulated_link link;
    int64_t (*now_us)(void);
    delayed *first, *last; /* in the order of due_us */
    size_t n_delayed;
    line *lines;
    size_t n_lines, lines_capacity;
    uint64_t rng_state; /* of the jitter */
    atomic_bool woken;
    sn_buf frame; /* scratch: an encoded message, for its size */
} emulated;

/* -- the link -- */

/* Reads "100mbit" or "2.5ms" up to a comma or the end: a number, then one of the units. */
static bool read_quantity(const char **text, const char *const *units, const double *factors, double *out) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    double value = strtod(*text, &end);
    size_t len = strcspn(end, ",");
    for (size_t i = 0; units[i]; i++) {
        if (strlen(units[i]) != len || strncmp(units[i], end, len) != 0) continue;
        *out = value * factors[i];
        *text = end + len;
        return *out <= 1e15;
    }
    return false;
}

static bool link_parse(const char *text, sn_emulated_link *out) {
    static const char *const rates[] = {"kbit", "mbit", "gbit", NULL}, *const times[] = {"us", "ms", "s", NULL};
    static const double per_rate[] = {1e3, 1e6, 1e9}, per_time[] = {1, 1e3, 1e6};
    double rate, rtt, jitter = 0;
    if (!read_quantity(&text, rates, per_rate, &rate) || *text != ',') return false;
    text++;
    if (!read_quantity(&text, times, per_time, &rtt)) return false;
    if (*text == ',') {
        text++;
        if (!read_quantity(&text, times, per_time, &jitter)) return false;
    }
    if (*text || rate < 1000 || rtt > 60e6 || jitter > 60e6) return false;
    *out = (sn_emulated_link){(uint64_t)rate, (int64_t)rtt, (int64_t)jitter};
    return true;
}

sn_status sn_emulated_link_parse(const char *text, sn_emulated_link *out, sn_err *err) {
    *out = (sn_emulated_link){0};
    if (!strcmp(text, "none") || link_parse(text, out)) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "'%s' is no link: write bandwidth, round trip (a minute at most) and, if there is any, jitter, as "
                   "in 100mbit,100ms or 1gbit,5ms,1ms; or none",
                   text);
}

bool sn_emulated_link_is_none(const sn_emulated_link *link) {
    return !link->bits_per_s && !link->rtt_us && !link->jitter_us;
}

/* -- delaying -- */

static void drop_free_lines(emulated *e, int64_t now) {
    size_t kept = 0;
    for (size_t i = 0; i < e->n_lines; i++)
        if (e->lines[i].due_us > now) e->lines[kept++] = e->lines[i];
    e->n_lines = kept;
}

static line *line_of_peer(emulated *e, sn_peer peer, int64_t now, sn_err *err) {
    for (size_t i = 0; i < e->n_lines; i++)
        if (e->lines[i].peer == peer) return &e->lines[i];
    if (e->n_lines == e->lines_capacity) drop_free_lines(e, now);
    if (e->n_lines == e->lines_capacity) {
        size_t capacity = 2 * e->lines_capacity + 16;
        line *grown = realloc(e->lines, capacity * sizeof *grown);
        if (!grown) {
            (void)sn_fail(err, SN_STOP, "out of memory: no space for another peer");
            return NULL;
        }
        e->lines = grown;
        e->lines_capacity = capacity;
    }
    e->lines[e->n_lines] = (line){.peer = peer};
    return &e->lines[e->n_lines++];
}

static size_t event_wire_size(emulated *e, const sn_event *event) {
    e->frame.len = 0;
    if (!event->msg || sn_msg_encode(event->msg, &e->frame, NULL)) return 0; /* an outage has no bytes */
    return e->frame.len + event->msg->tensor.bytes;
}

/* Takes the event, also on failure, and keeps it until it is due. */
static sn_status delay_event(emulated *e, sn_event *event, int64_t now, sn_err *err) {
    line *l = line_of_peer(e, event->peer, now, err);
    delayed *d = l ? calloc(1, sizeof *d) : NULL;
    if (!d) {
        sn_msg_free(&event->msg);
        return sn_fail(err, SN_STOP, "out of memory: no space for a message");
    }
    double bits = 8.0 * (double)event_wire_size(e, event);
    int64_t on_line = e->link.bits_per_s ? (int64_t)(bits * 1e6 / (double)e->link.bits_per_s) : 0;
    l->free_us = (l->free_us > now ? l->free_us : now) + on_line;
    int64_t due = l->free_us + e->link.rtt_us / 2;
    if (e->link.jitter_us) due += (int64_t)sn_rng_below(&e->rng_state, (uint64_t)e->link.jitter_us + 1);
    if (due < l->due_us) due = l->due_us;
    l->due_us = d->due_us = due;
    d->event = *event;
    delayed **at = e->last && e->last->due_us <= due ? &e->last->next : &e->first; /* most events go to the end */
    while (*at && (*at)->due_us <= due) at = &(*at)->next;
    d->next = *at;
    *at = d;
    if (!d->next) e->last = d;
    e->n_delayed++;
    return SN_OK;
}

static void release_due(emulated *e, sn_event *out) {
    delayed *d = e->first;
    *out = d->event;
    out->arrived_us = d->due_us;
    e->first = d->next;
    if (!e->first) e->last = NULL;
    e->n_delayed--;
    free(d);
}

static sn_status emulated_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    emulated *e = (emulated *)t;
    bool last = false;
    *out = (sn_event){0};
    for (;;) {
        int64_t now = e->now_us();
        if (e->first && e->first->due_us <= now) {
            release_due(e, out);
            return SN_OK;
        }
        if (last || atomic_exchange(&e->woken, false)) return SN_OK;
        int64_t until = e->first && e->first->due_us < deadline_us ? e->first->due_us : deadline_us;
        if (e->n_delayed == DELAYED_MAX) { /* further events wait in the inner transport */
            if (now >= deadline_us) return SN_OK;
            sn_sleep_us(DELAYED_FULL_US);
            continue;
        }
        sn_event event;
        sn_status status = sn_transport_recv(e->inner, until, &event, err);
        now = e->now_us();
        if (!status && event.peer)
            status = delay_event(e, &event, now, err);
        else
            last = now >= deadline_us;
        if (status) return status;
    }
}

/* -- the other operations -- */

static sn_status emulated_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    sn_transport *inner = ((emulated *)t)->inner;
    sn_status status = sn_transport_listen(inner, address, bound, err);
    t->portal = inner->portal;
    return status;
}
static sn_status emulated_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                               sn_err *err) {
    return sn_transport_dial(((emulated *)t)->inner, address, key, out, err);
}
static sn_status emulated_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    return sn_transport_send(((emulated *)t)->inner, peer, msg, err);
}

/* Also drops the events of the peer that are delayed here. */
static void emulated_hang_up(sn_transport *t, sn_peer peer) {
    emulated *e = (emulated *)t;
    sn_transport_hang_up(e->inner, peer);
    e->last = NULL;
    for (delayed **at = &e->first; *at;) {
        delayed *d = *at;
        if (d->event.peer != peer) {
            e->last = d;
            at = &d->next;
            continue;
        }
        *at = d->next;
        sn_msg_free(&d->event.msg);
        free(d);
        e->n_delayed--;
    }
}

static bool emulated_peer_host(sn_transport *t, sn_peer peer, char host[SN_ADDRESS_MAX + 1]) {
    return sn_transport_peer_host(((emulated *)t)->inner, peer, host);
}

static void emulated_watch(sn_transport *t, sn_peer peer, bool on) {
    sn_transport_watch(((emulated *)t)->inner, peer, on);
}

static void emulated_wake(sn_transport *t) {
    emulated *e = (emulated *)t;
    atomic_store(&e->woken, true);
    sn_transport_wake(e->inner);
}

static void emulated_free(sn_transport *t) {
    emulated *e = (emulated *)t;
    while (e->first) {
        sn_event event;
        release_due(e, &event);
        sn_msg_free(&event.msg);
    }
    sn_transport_free(&e->inner);
    sn_buf_fini(&e->frame);
    free(e->lines);
    free(e);
}

static void emulated_charge(sn_transport *t, sn_peer peer) { sn_transport_charge(((emulated *)t)->inner, peer); }

static const sn_transport_ops emulated_ops = {emulated_listen,  emulated_dial,  emulated_send, emulated_recv,
                                              emulated_hang_up, emulated_wake,  emulated_free, emulated_peer_host,
                                              emulated_charge,  emulated_watch, NULL};

sn_status sn_transport_emulated_new(sn_transport **inner, const sn_emulated_link *link, int64_t (*now_us)(void),
                                    sn_transport **out, sn_err *err) {
    emulated *e = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&e, 1, sizeof *e, err);
    if (status) {
        sn_transport_free(inner);
        return status;
    }
    *e = (emulated){.base = {.ops = &emulated_ops, .dials_names = (*inner)->dials_names},
                    .inner = *inner,
                    .link = *link,
                    .now_us = now_us ? now_us : sn_now_us};
    sn_buf_init(&e->frame, SN_MAP_SIZE_MAX);
    *inner = NULL;
    *out = &e->base;
    return SN_OK;
}

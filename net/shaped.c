#include "net/shaped.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 4096, HELD_FULL_US = 1000 };

/* What has arrived and is not to be seen yet: in order of `due_us`. */
typedef struct held {
    struct held *next;
    int64_t due_us;
    sn_event event;
} held;

/* The line by which one peer's messages come. Forgotten when nothing is on it any more. */
typedef struct line {
    sn_peer peer;
    int64_t free_us; /* when the last bit of the last message is through */
    int64_t due_us;  /* of the last message */
} line;

typedef struct shaped {
    sn_transport base;
    sn_transport *inner;
    sn_shape shape;
    int64_t (*now_us)(void);
    held *first, *last;
    size_t n_held;
    line *lines;
    size_t n_lines, lines_room;
    uint64_t chance; /* splitmix64 */
    atomic_bool woken;
    sn_buf frame; /* scratch: a message's map, for its size */
} shaped;

/* -- the shape -- */

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

static bool read_shape(const char *text, sn_shape *out) {
    static const char *const rates[] = {"kbit", "mbit", "gbit", NULL}, *const times[] = {"us", "ms", "s", NULL};
    static const double per_rate[] = {1e3, 1e6, 1e9}, per_time[] = {1, 1e3, 1e6};
    double rate, rtt, jitter = 0;
    if (!read_quantity(&text, rates, per_rate, &rate) || *text++ != ',') return false;
    if (!read_quantity(&text, times, per_time, &rtt)) return false;
    if (*text && (*text++ != ',' || !read_quantity(&text, times, per_time, &jitter))) return false;
    if (*text || rate < 1000 || rtt > 60e6 || jitter > 60e6) return false;
    *out = (sn_shape){(uint64_t)rate, (int64_t)rtt, (int64_t)jitter};
    return true;
}

sn_status sn_shape_parse(const char *text, sn_shape *out, sn_err *err) {
    *out = (sn_shape){0};
    if (!strcmp(text, "none") || read_shape(text, out)) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "'%s' is no link: write its bandwidth, its round trip (a minute at most) and, if it has, its jitter, as "
                   "in 100mbit,100ms or 1gbit,5ms,1ms; or none",
                   text);
}

bool sn_shape_is_none(const sn_shape *shape) { return !shape->bits_per_s && !shape->rtt_us && !shape->jitter_us; }

/* -- holding back -- */

static uint64_t next_chance(shaped *s) {
    uint64_t z = s->chance += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void forget_free_lines(shaped *s, int64_t now) {
    size_t kept = 0;
    for (size_t i = 0; i < s->n_lines; i++)
        if (s->lines[i].due_us > now) s->lines[kept++] = s->lines[i];
    s->n_lines = kept;
}

static line *line_of(shaped *s, sn_peer peer, int64_t now, sn_err *err) {
    for (size_t i = 0; i < s->n_lines; i++)
        if (s->lines[i].peer == peer) return &s->lines[i];
    if (s->n_lines == s->lines_room) forget_free_lines(s, now);
    if (s->n_lines == s->lines_room) {
        size_t room = 2 * s->lines_room + 16;
        line *grown = realloc(s->lines, room * sizeof *grown);
        if (!grown) {
            (void)sn_fail(err, SN_STOP, "out of memory: no room for another peer");
            return NULL;
        }
        s->lines = grown;
        s->lines_room = room;
    }
    s->lines[s->n_lines] = (line){.peer = peer};
    return &s->lines[s->n_lines++];
}

static size_t size_of(shaped *s, const sn_event *event) {
    s->frame.len = 0;
    if (!event->msg || sn_msg_encode(event->msg, &s->frame, NULL)) return 0; /* news of the transport itself weighs nothing */
    return s->frame.len + event->msg->tensor.bytes;
}

/* Keeps the event until it is due; it is consumed in any case. */
static sn_status hold(shaped *s, sn_event *event, int64_t now, sn_err *err) {
    line *l = line_of(s, event->peer, now, err);
    held *h = l ? calloc(1, sizeof *h) : NULL;
    if (!h) {
        sn_msg_free(&event->msg);
        return sn_fail(err, SN_STOP, "out of memory: no room for a message");
    }
    double bits = 8.0 * (double)size_of(s, event);
    int64_t on_line = s->shape.bits_per_s ? (int64_t)(bits * 1e6 / (double)s->shape.bits_per_s) : 0;
    l->free_us = (l->free_us > now ? l->free_us : now) + on_line;
    int64_t due = l->free_us + s->shape.rtt_us / 2;
    if (s->shape.jitter_us) due += (int64_t)(next_chance(s) % (uint64_t)(s->shape.jitter_us + 1));
    if (due < l->due_us) due = l->due_us;
    l->due_us = h->due_us = due;
    h->event = *event;
    held **at = s->last && s->last->due_us <= due ? &s->last->next : &s->first; /* most often it is the last */
    while (*at && (*at)->due_us <= due) at = &(*at)->next;
    h->next = *at;
    *at = h;
    if (!h->next) s->last = h;
    s->n_held++;
    return SN_OK;
}

static void release(shaped *s, sn_event *out) {
    held *h = s->first;
    *out = h->event;
    out->arrived_us = h->due_us;
    s->first = h->next;
    if (!s->first) s->last = NULL;
    s->n_held--;
    free(h);
}

static sn_status shaped_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    shaped *s = (shaped *)t;
    bool last = false;
    *out = (sn_event){0};
    for (;;) {
        int64_t now = s->now_us();
        if (s->first && s->first->due_us <= now) {
            release(s, out);
            return SN_OK;
        }
        if (last || atomic_exchange(&s->woken, false)) return SN_OK;
        int64_t until = s->first && s->first->due_us < deadline_us ? s->first->due_us : deadline_us;
        if (s->n_held == HELD_MAX) { /* what comes beyond them waits in the inner transport */
            if (now >= deadline_us) return SN_OK;
            sn_sleep_us(HELD_FULL_US);
            continue;
        }
        sn_event event;
        sn_status status = sn_transport_recv(s->inner, until, &event, err);
        now = s->now_us();
        if (!status && event.peer) status = hold(s, &event, now, err);
        else last = now >= deadline_us;
        if (status) return status;
    }
}

/* -- the rest is the inner one's -- */

static sn_status shaped_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    return sn_transport_listen(((shaped *)t)->inner, address, bound, err);
}
static sn_status shaped_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                             sn_err *err) {
    return sn_transport_dial(((shaped *)t)->inner, address, key, out, err);
}
static sn_status shaped_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    return sn_transport_send(((shaped *)t)->inner, peer, msg, err);
}

/* Nothing more is heard of a peer that was hung up on. */
static void shaped_hang_up(sn_transport *t, sn_peer peer) {
    shaped *s = (shaped *)t;
    sn_transport_hang_up(s->inner, peer);
    s->last = NULL;
    for (held **at = &s->first; *at;) {
        held *h = *at;
        if (h->event.peer != peer) {
            s->last = h;
            at = &h->next;
            continue;
        }
        *at = h->next;
        sn_msg_free(&h->event.msg);
        free(h);
        s->n_held--;
    }
}

static void shaped_wake(sn_transport *t) {
    shaped *s = (shaped *)t;
    atomic_store(&s->woken, true);
    sn_transport_wake(s->inner);
}

static void shaped_free(sn_transport *t) {
    shaped *s = (shaped *)t;
    while (s->first) {
        sn_event event;
        release(s, &event);
        sn_msg_free(&event.msg);
    }
    sn_transport_free(&s->inner);
    sn_buf_fini(&s->frame);
    free(s->lines);
    free(s);
}

static const sn_transport_ops shaped_ops = {shaped_listen,  shaped_dial, shaped_send, shaped_recv,
                                            shaped_hang_up, shaped_wake, shaped_free};

sn_status sn_transport_shaped_new(sn_transport **inner, const sn_shape *shape, int64_t (*now_us)(void),
                                  sn_transport **out, sn_err *err) {
    shaped *s = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) {
        sn_transport_free(inner);
        return status;
    }
    *s = (shaped){.base.ops = &shaped_ops, .inner = *inner, .shape = *shape, .now_us = now_us ? now_us : sn_now_us};
    sn_buf_init(&s->frame, SN_MAP_SIZE_MAX);
    *inner = NULL;
    *out = &s->base;
    return SN_OK;
}

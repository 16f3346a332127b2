/* The transport inside a process: what ZeroMQ does for real, without sockets, so that a whole swarm runs in one test.
 *
 * Every message passes through the encoder and the decoder, so tests over it exercise both. One lock, the hub's, guards
 * everything here; a message is encoded, decoded and its tensor copied before the lock is taken. What is sent to an
 * address where nobody listens, or where another key lives, vanishes, and the sender is told once that nobody is there. */
#include "net/transport.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 1024 }; /* messages on their way, for each connection and direction */

typedef struct memory memory;

/* A connection: `ends[0]` dialled, `ends[1]` listens. */
typedef struct link {
    struct link *next;
    memory *ends[2];  /* NULL: nobody (yet), or gone */
    sn_peer peers[2]; /* the handle of this link at each end; 0: none */
    size_t queued[2]; /* messages that wait at each end */
    sn_msg *late[2];  /* one that is kept back from each end */
    bool told;        /* the dialling end knows that the other is not there */
    uint8_t key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
} link;

typedef struct parcel {
    struct parcel *next;
    link *link;
    int end;                  /* of the receiver */
    uint8_t key[SN_KEY_SIZE]; /* of the sender, who may be gone when it is read */
    sn_msg *msg; /* NULL: the connection was lost */
    int64_t arrived_us;
} parcel;

struct sn_hub {
    pthread_mutex_t lock;
    memory *members;
    link *links;
    sn_peer last_peer;
    sn_hub_filter filter;
    void *filter_ctx;
};

struct memory {
    sn_transport base;
    memory *next;
    sn_hub *hub;
    uint8_t key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1]; /* empty: does not listen */
    pthread_cond_t changed;
    bool woken;
    parcel *first, **last;
};

/* -- the hub -- */

sn_status sn_hub_new(sn_hub **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (!status) pthread_mutex_init(&(*out)->lock, NULL);
    return status;
}

static void free_link(link *l) {
    for (int end = 0; end < 2; end++) sn_msg_free(&l->late[end]);
    free(l);
}

void sn_hub_free(sn_hub **hub) {
    if (!*hub) return;
    for (link *l = (*hub)->links, *next; l; l = next) {
        next = l->next;
        free_link(l);
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

/* Drops the parcels of a link (NULL: of all) that wait at a member. */
static void drop_parcels(memory *m, const link *of) {
    m->last = &m->first;
    for (parcel *p = m->first, *next; p; p = next) {
        next = p->next;
        if (of && p->link != of) {
            *m->last = p;
            m->last = &p->next;
            continue;
        }
        p->link->queued[p->end]--;
        sn_msg_free(&p->msg);
        free(p);
    }
    *m->last = NULL;
}

/* Ends one end's part in a link: the handle is dead, and what waits at the other end still arrives there. A link that
 * nobody dials from any more and nothing is queued on goes. */
static void leave(link *l, int end) {
    if (l->ends[end]) drop_parcels(l->ends[end], l);
    l->ends[end] = NULL;
    l->peers[end] = 0;
}

static void sweep(sn_hub *hub) {
    for (link **at = &hub->links; *at;) {
        link *l = *at;
        if (l->ends[0] || l->queued[1]) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free_link(l);
    }
}

static memory *find_listener(sn_hub *hub, const char *address) {
    for (memory *m = hub->members; m; m = m->next)
        if (*m->address && !strcmp(m->address, address)) return m;
    return NULL;
}

static link *find_link(const memory *m, sn_peer peer, int *end) {
    for (link *l = m->hub->links; l && peer; l = l->next)
        for (*end = 0; *end < 2; ++*end)
            if (l->ends[*end] == m && l->peers[*end] == peer) return l;
    return NULL;
}

/* -- operations -- */

static sn_status check_address(const char *address, sn_err *err) {
    size_t len = strnlen(address, SN_ADDRESS_MAX + 1);
    if (len > SN_ADDRESS_MAX || len <= strlen("mem://") || strncmp(address, "mem://", strlen("mem://")) != 0)
        return sn_fail(err, SN_REFUSED, "'%.*s' is no address inside this process: write mem://NAME", SN_ADDRESS_MAX,
                       address);
    return SN_OK;
}

static sn_status memory_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    memory *m = (memory *)t;
    sn_status status = check_address(address, err);
    if (status) return status;
    pthread_mutex_lock(&m->hub->lock);
    if (*m->address)
        status = sn_fail(err, SN_REFUSED, "this transport listens already, at %s", m->address);
    else if (find_listener(m->hub, address))
        status = sn_fail(err, SN_REFUSED, "%s is in use by another member: choose another --listen address", address);
    else
        memcpy(m->address, address, strlen(address) + 1), memcpy(bound, address, strlen(address) + 1);
    pthread_mutex_unlock(&m->hub->lock);
    return status;
}

static sn_status memory_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                             sn_err *err) {
    memory *m = (memory *)t;
    *out = 0;
    sn_status status = check_address(address, err);
    if (status) return status;
    pthread_mutex_lock(&m->hub->lock);
    link *l = m->hub->links;
    while (l && !(l->ends[0] == m && !strcmp(l->address, address) && !memcmp(l->key, key, SN_KEY_SIZE))) l = l->next;
    if (!l && !(status = sn_calloc(&l, 1, sizeof *l, err))) {
        l->ends[0] = m;
        l->peers[0] = ++m->hub->last_peer;
        memcpy(l->key, key, SN_KEY_SIZE);
        memcpy(l->address, address, strlen(address) + 1);
        l->next = m->hub->links;
        m->hub->links = l;
    }
    if (!status) *out = l->peers[0];
    pthread_mutex_unlock(&m->hub->lock);
    return status;
}

/* The message as it would come out of the wire at the other side. */
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

static void enqueue(memory *to, link *l, int end, parcel *p) {
    *p = (parcel){.link = l, .end = end, .msg = p->msg, .arrived_us = sn_now_us()};
    memcpy(p->key, end == 1 ? l->ends[0]->key : l->key, SN_KEY_SIZE);
    *to->last = p;
    to->last = &p->next;
    l->queued[end]++;
    pthread_cond_signal(&to->changed);
}

/* Tells the dialling end that nobody is at the other, once. Where memory is out it shows by silence. */
static void tell_of_outage(link *l) {
    parcel *p = l->told || !l->ends[0] ? NULL : calloc(1, sizeof *p);
    if (!p) return;
    l->told = true;
    enqueue(l->ends[0], l, 0, p);
}

/* Puts the message into the receiver's queue; takes *msg when it is delivered. */
static sn_status deliver(link *l, int end, sn_msg **msg, sn_err *err) {
    memory *to = l->ends[end];
    if (!l->peers[end]) l->peers[end] = ++to->hub->last_peer;
    parcel *p;
    sn_status status = sn_calloc(&p, 1, sizeof *p, err);
    if (status) return status;
    p->msg = *msg;
    *msg = NULL;
    enqueue(to, l, end, p);
    return SN_OK;
}

/* The listener that a dialled link leads to; one that came or went since the last message is found out here. */
static void connect_link(sn_hub *hub, link *l) {
    memory *listener = find_listener(hub, l->address);
    if (listener && memcmp(listener->key, l->key, SN_KEY_SIZE) != 0) listener = NULL;
    if (!listener) tell_of_outage(l);
    if (listener == l->ends[1]) return;
    leave(l, 1);
    l->ends[1] = listener;
    l->told = !listener;
}

static sn_status post(memory *m, sn_peer peer, sn_msg **copy, sn_err *err) {
    int end = 0;
    link *l = find_link(m, peer, &end);
    if (!l) return sn_fail(err, SN_RETRY, "this peer is gone");
    if (end == 0) connect_link(m->hub, l);
    int there = 1 - end;
    memory *to = l->ends[there];
    if (end == 1 && !to) return sn_fail(err, SN_RETRY, "this peer is gone");
    if (!to) return SN_OK;
    if (l->queued[there] >= QUEUE_MAX) return sn_fail(err, SN_RETRY, "the queue of this peer is full: try again later");
    sn_fate fate = m->hub->filter ? m->hub->filter(m->hub->filter_ctx, m->address, to->address, *copy) : SN_DELIVER;
    if (fate == SN_DROP) return SN_OK;
    if (fate == SN_LATE && !l->late[there]) {
        l->late[there] = *copy;
        *copy = NULL;
        return SN_OK;
    }
    sn_msg *twin = NULL;
    sn_status status = fate == SN_DUPLICATE ? copy_message(*copy, &twin, err) : SN_OK;
    if (!status) status = deliver(l, there, copy, err);
    if (!status && twin) status = deliver(l, there, &twin, err);
    if (!status && l->late[there]) status = deliver(l, there, &l->late[there], err);
    sn_msg_free(&twin);
    return status;
}

static sn_status memory_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    memory *m = (memory *)t;
    sn_msg *copy = NULL;
    sn_status status = copy_message(*msg, &copy, err);
    if (!status) {
        pthread_mutex_lock(&m->hub->lock);
        status = post(m, peer, &copy, err);
        pthread_mutex_unlock(&m->hub->lock);
    }
    sn_msg_free(&copy);
    if (!status) sn_msg_free(msg);
    return status;
}

static void take_parcel(memory *m, sn_event *out) {
    parcel *p = m->first;
    link *l = p->link;
    if (!(m->first = p->next)) m->last = &m->first;
    l->queued[p->end]--;
    *out = (sn_event){.msg = p->msg, .peer = l->peers[p->end], .arrived_us = p->arrived_us};
    memcpy(out->key, p->key, SN_KEY_SIZE);
    if (!p->msg) {
        out->lost = true;
        (void)sn_fail(&out->bad, SN_RETRY, "the connection to %s was lost", l->address);
    }
    free(p);
    if (!l->ends[0]) sweep(m->hub);
}

static sn_status memory_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    (void)err;
    memory *m = (memory *)t;
    *out = (sn_event){0};
    struct timespec until = {.tv_sec = deadline_us / 1000000, .tv_nsec = deadline_us % 1000000 * 1000};
    pthread_mutex_lock(&m->hub->lock);
    while (!m->first && !m->woken && deadline_us > 0)
        if (pthread_cond_timedwait(&m->changed, &m->hub->lock, &until)) break;
    m->woken = false;
    if (m->first) take_parcel(m, out);
    pthread_mutex_unlock(&m->hub->lock);
    return SN_OK;
}

static void memory_hang_up(sn_transport *t, sn_peer peer) {
    memory *m = (memory *)t;
    int end = 0;
    pthread_mutex_lock(&m->hub->lock);
    link *l = find_link(m, peer, &end);
    if (l) {
        if (l->ends[1 - end] && end == 0) drop_parcels(l->ends[1], l); /* what was queued for the peer */
        leave(l, end);
        sweep(m->hub);
    }
    pthread_mutex_unlock(&m->hub->lock);
}

static void memory_wake(sn_transport *t) {
    memory *m = (memory *)t;
    pthread_mutex_lock(&m->hub->lock);
    m->woken = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->hub->lock);
}

static void memory_free(sn_transport *t) {
    memory *m = (memory *)t;
    sn_hub *hub = m->hub;
    pthread_mutex_lock(&hub->lock);
    drop_parcels(m, NULL);
    for (link *l = hub->links; l; l = l->next)
        for (int end = 0; end < 2; end++)
            if (l->ends[end] == m) {
                leave(l, end);
                if (end == 1) tell_of_outage(l);
            }
    sweep(hub);
    memory **at = &hub->members;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    pthread_mutex_unlock(&hub->lock);
    pthread_cond_destroy(&m->changed);
    free(m);
}

static const sn_transport_ops memory_ops = {memory_listen,  memory_dial, memory_send, memory_recv,
                                            memory_hang_up, memory_wake, memory_free};

sn_status sn_transport_memory_new(sn_hub *hub, const sn_identity *identity, sn_transport **out, sn_err *err) {
    memory *m;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->base.ops = &memory_ops;
    m->hub = hub;
    m->last = &m->first;
    memcpy(m->key, identity->curve_key, SN_KEY_SIZE);
    pthread_condattr_t attributes; /* the deadlines are those of sn_now_us, the monotonic clock */
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_lock(&hub->lock);
    m->next = hub->members;
    hub->members = m;
    pthread_mutex_unlock(&hub->lock);
    *out = &m->base;
    return SN_OK;
}

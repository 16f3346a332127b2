/* The private swarm (net/transport/private_swarm.h).
 *
 * Both ends send a proof: the dialling end with its first message and again after each outage, because another process
 * may listen there then; the listening end in answer to a valid proof. A CURVE key that has sent a valid proof enters a
 * hash table of fixed size, and all its connections may talk from then on; a key that the table evicts has to prove
 * itself again. recv passes an event on if its key is in the table. Any other message is answered with a refusal if the
 * peer dialled, and becomes an error of that peer if this transport dialled. */
#include "net/transport/private_swarm.h"

#include "base/clock.h"
#include "net/secret_file.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 16384, /* keys in the table */
    PROBES = 8,
    FILE_SIZE_MAX = 128,
};

static const char label[] = "swarm member 1"; /* with its NUL */
static const char file_header[] = "swarm key 1\n";

typedef struct private_swarm {
    sn_transport base;
    sn_transport *inner;
    uint8_t key[SN_SWARM_KEY_SIZE], own_key[SN_KEY_SIZE];
    uint8_t (*proven)[SN_KEY_SIZE]; /* (SLOTS): CURVE keys that have sent a valid proof; zero: free */
    struct dialled {
        sn_peer peer;
        uint8_t key[SN_KEY_SIZE];
    } *dialled;
    size_t n_dialled, capacity;
} private_swarm;

void sn_private_swarm_proof(const uint8_t key[SN_SWARM_KEY_SIZE], const uint8_t from[SN_KEY_SIZE],
                            const uint8_t to[SN_KEY_SIZE], uint8_t out[SN_KEY_SIZE]) {
    uint8_t text[sizeof label + 2 * SN_KEY_SIZE];
    memcpy(text, label, sizeof label);
    memcpy(text + sizeof label, from, SN_KEY_SIZE);
    memcpy(text + sizeof label + SN_KEY_SIZE, to, SN_KEY_SIZE);
    if (!HMAC(EVP_sha256(), key, SN_SWARM_KEY_SIZE, text, sizeof text, out, NULL)) sn_random(out, SN_KEY_SIZE);
}

/* -- proofs -- */

static size_t proven_slot(const uint8_t key[SN_KEY_SIZE]) {
    uint64_t x;
    memcpy(&x, key, sizeof x);
    return (size_t)(x % SLOTS);
}

static bool is_proven(const private_swarm *p, const uint8_t key[SN_KEY_SIZE]) {
    for (size_t i = 0, at = proven_slot(key); i < PROBES; i++)
        if (!memcmp(p->proven[(at + i) % SLOTS], key, SN_KEY_SIZE)) return true;
    return false;
}

static void note_proven(private_swarm *p, const uint8_t key[SN_KEY_SIZE]) {
    static const uint8_t none[SN_KEY_SIZE];
    size_t at = proven_slot(key), to = at;
    if (is_proven(p, key)) return;
    for (size_t i = 0; i < PROBES; i++) {
        to = (at + i) % SLOTS;
        if (!memcmp(p->proven[to], none, SN_KEY_SIZE)) break;
    }
    memcpy(p->proven[to], key, SN_KEY_SIZE);
}

static void send_proof(private_swarm *p, sn_peer peer, const uint8_t to[SN_KEY_SIZE], uint64_t correlation_id) {
    sn_msg *msg = NULL;
    sn_err err;
    if (sn_msg_new(SN_MSG_ADMIT, correlation_id, &msg, &err)) return;
    sn_private_swarm_proof(p->key, p->own_key, to, msg->admit.proof);
    if (sn_transport_send(p->inner, peer, &msg, &err))
        sn_msg_free(&msg); /* the other end then refuses what is sent next */
}

static struct dialled *find_dialled(private_swarm *p, sn_peer peer) {
    for (size_t i = 0; i < p->n_dialled; i++)
        if (p->dialled[i].peer == peer) return &p->dialled[i];
    return NULL;
}

/* -- operations -- */

static sn_status private_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    sn_transport *inner = ((private_swarm *)t)->inner;
    sn_status status = sn_transport_listen(inner, address, bound, err);
    t->portal = inner->portal;
    return status;
}

static sn_status private_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                              sn_err *err) {
    private_swarm *p = (private_swarm *)t;
    if (p->n_dialled == p->capacity) {
        size_t capacity = 2 * p->capacity + 16;
        struct dialled *grown = realloc(p->dialled, capacity * sizeof *grown);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory: no space for another peer");
        p->dialled = grown;
        p->capacity = capacity;
    }
    sn_status status = sn_transport_dial(p->inner, address, key, out, err);
    if (status || find_dialled(p, *out)) return status;
    struct dialled *d = &p->dialled[p->n_dialled++];
    d->peer = *out;
    memcpy(d->key, key, SN_KEY_SIZE);
    send_proof(p, *out, key, 0);
    return SN_OK;
}

static sn_status private_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    return sn_transport_send(((private_swarm *)t)->inner, peer, msg, err);
}

static void send_refusal(private_swarm *p, const sn_event *event) {
    sn_msg *msg = NULL;
    sn_err err;
    if (!event->msg || event->msg->kind == SN_MSG_ERROR ||
        sn_msg_new(SN_MSG_ERROR, event->msg->correlation_id, &msg, &err))
        return;
    msg->error.status = SN_REFUSED;
    snprintf(msg->error.text, sizeof msg->error.text, "this swarm is private: give its key with --swarm-key FILE");
    if (sn_transport_send(p->inner, event->peer, &msg, &err)) sn_msg_free(&msg);
}

static void receive_proof(private_swarm *p, const sn_event *event) {
    uint8_t expected[SN_KEY_SIZE];
    sn_private_swarm_proof(p->key, event->key, p->own_key, expected);
    if (CRYPTO_memcmp(expected, event->msg->admit.proof, sizeof expected)) {
        send_refusal(p, event);
        return;
    }
    note_proven(p, event->key);
    if (!find_dialled(p, event->peer)) send_proof(p, event->peer, event->key, event->msg->correlation_id);
}

/* True: the event is passed on to the owner. */
static bool filter_event(private_swarm *p, sn_event *event) {
    struct dialled *d = find_dialled(p, event->peer);
    if (!event->peer) return true;
    if (event->lost) { /* another process may listen there next */
        if (d) send_proof(p, d->peer, d->key, 0);
        return true;
    }
    if (event->msg && event->msg->kind == SN_MSG_ADMIT) {
        receive_proof(p, event);
        return false;
    }
    if (is_proven(p, event->key)) return true;
    if (event->gone) return false; /* the owner has never heard of it */
    if (!d) {
        send_refusal(p, event);
        return false;
    }
    sn_msg_free(&event->msg);
    (void)sn_fail(&event->err, SN_REFUSED,
                  "the node has not proven that it holds this swarm's key: give --swarm-key with the key of its swarm");
    return true;
}

/* What is not passed on brings no work and is charged, proofs too. A stranger that goes on sending does not make this
 * wait beyond its deadline. */
static sn_status private_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    private_swarm *p = (private_swarm *)t;
    for (;;) {
        sn_status status = sn_transport_recv(p->inner, deadline_us, out, err);
        if (status || filter_event(p, out)) return status;
        sn_transport_charge(p->inner, out->peer);
        sn_msg_free(&out->msg);
        *out = (sn_event){0};
        if (sn_now_us() >= deadline_us) return SN_OK;
    }
}

static void private_hang_up(sn_transport *t, sn_peer peer) {
    private_swarm *p = (private_swarm *)t;
    struct dialled *d = find_dialled(p, peer);
    if (d) *d = p->dialled[--p->n_dialled];
    sn_transport_hang_up(p->inner, peer);
}

static bool private_peer_host(sn_transport *t, sn_peer peer, char host[SN_ADDRESS_MAX + 1]) {
    return sn_transport_peer_host(((private_swarm *)t)->inner, peer, host);
}

static void private_watch(sn_transport *t, sn_peer peer, bool on) {
    sn_transport_watch(((private_swarm *)t)->inner, peer, on);
}

static int64_t private_round_trip_us(sn_transport *t, sn_peer peer) {
    return sn_transport_round_trip_us(((private_swarm *)t)->inner, peer);
}

static void private_wake(sn_transport *t) { sn_transport_wake(((private_swarm *)t)->inner); }

static void private_free(sn_transport *t) {
    private_swarm *p = (private_swarm *)t;
    sn_transport_free(&p->inner);
    free(p->proven);
    free(p->dialled);
    explicit_bzero(p->key, sizeof p->key);
    free(p);
}

static void private_charge(sn_transport *t, sn_peer peer) { sn_transport_charge(((private_swarm *)t)->inner, peer); }

static const sn_transport_ops private_ops = {private_listen,  private_dial,  private_send,         private_recv,
                                             private_hang_up, private_wake,  private_free,         private_peer_host,
                                             private_charge,  private_watch, private_round_trip_us};

sn_status sn_transport_private_swarm_new(sn_transport **inner, const sn_identity *identity,
                                         const uint8_t key[SN_SWARM_KEY_SIZE], sn_transport **out, sn_err *err) {
    private_swarm *p = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&p, 1, sizeof *p, err);
    if (!status) status = sn_calloc(&p->proven, SLOTS, sizeof *p->proven, err);
    if (status) {
        free(p);
        sn_transport_free(inner);
        return status;
    }
    p->base = (sn_transport){.ops = &private_ops, .dials_names = (*inner)->dials_names};
    p->inner = *inner;
    *inner = NULL;
    memcpy(p->key, key, sizeof p->key);
    memcpy(p->own_key, identity->curve_key, SN_KEY_SIZE);
    *out = &p->base;
    return SN_OK;
}

/* -- the file -- */

sn_status sn_swarm_key_make(const char *path, sn_err *err) {
    uint8_t key[SN_SWARM_KEY_SIZE];
    char text[FILE_SIZE_MAX], hex[2 * SN_SWARM_KEY_SIZE + 1];
    sn_random(key, sizeof key);
    int len = snprintf(text, sizeof text, "%s%s\n", file_header, sn_hex(key, sizeof key, hex));
    sn_status status = sn_secret_save(path, text, (size_t)len, "a swarm's key", err);
    explicit_bzero(key, sizeof key);
    explicit_bzero(text, sizeof text);
    explicit_bzero(hex, sizeof hex);
    return status;
}

sn_status sn_swarm_key_load(const char *path, uint8_t out[SN_SWARM_KEY_SIZE], sn_err *err) {
    char text[FILE_SIZE_MAX + 1] = {0};
    size_t head = sizeof file_header - 1, digits = 2 * SN_SWARM_KEY_SIZE, len = 0;
    sn_status status = sn_secret_load(path, text, FILE_SIZE_MAX, &len, err);
    if (!status && (len != head + digits + 1 || strncmp(text, file_header, head) != 0 || text[len - 1] != '\n'))
        status = sn_fail(err, SN_REFUSED, "%s is no swarm's key: make one with swarm keygen --swarm-key FILE", path);
    if (!status) text[len - 1] = 0;
    if (!status && sn_unhex(text + head, out, SN_SWARM_KEY_SIZE, NULL))
        status = sn_fail(err, SN_REFUSED, "%s is no swarm's key: it must be hexadecimal digits", path);
    explicit_bzero(text, sizeof text);
    return status;
}

#include "net/members.h"

#include "base/clock.h"
#include "net/secret_file.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 16384, /* keys that have proven themselves; where there are more, some must do so again */
    PROBES = 8,
    FILE_SIZE_MAX = 128,
};

static const char label[] = "swarm member 1"; /* with its zero */
static const char file_head[] = "swarm key 1\n";

typedef struct members {
    sn_transport base;
    sn_transport *inner;
    uint8_t key[SN_SWARM_KEY_SIZE], own[SN_KEY_SIZE];
    uint8_t (*proven)[SN_KEY_SIZE]; /* (SLOTS): CURVE keys, zero: free */
    struct dialled {
        sn_peer peer;
        uint8_t key[SN_KEY_SIZE];
    } *dialled;
    size_t n_dialled, room;
} members;

void sn_member_proof(const uint8_t key[SN_SWARM_KEY_SIZE], const uint8_t from[SN_KEY_SIZE], const uint8_t to[SN_KEY_SIZE],
                     uint8_t out[SN_KEY_SIZE]) {
    uint8_t text[sizeof label + 2 * SN_KEY_SIZE];
    memcpy(text, label, sizeof label);
    memcpy(text + sizeof label, from, SN_KEY_SIZE);
    memcpy(text + sizeof label + SN_KEY_SIZE, to, SN_KEY_SIZE);
    if (!HMAC(EVP_sha256(), key, SN_SWARM_KEY_SIZE, text, sizeof text, out, NULL)) sn_random(out, SN_KEY_SIZE);
}

/* -- who has proven himself ------------------------------------------------------------------------------------------ */

static size_t slot_of(const uint8_t key[SN_KEY_SIZE]) {
    uint64_t x;
    memcpy(&x, key, sizeof x);
    return (size_t)(x % SLOTS);
}

static bool is_proven(const members *m, const uint8_t key[SN_KEY_SIZE]) {
    for (size_t i = 0, at = slot_of(key); i < PROBES; i++)
        if (!memcmp(m->proven[(at + i) % SLOTS], key, SN_KEY_SIZE)) return true;
    return false;
}

static void note_proven(members *m, const uint8_t key[SN_KEY_SIZE]) {
    static const uint8_t none[SN_KEY_SIZE];
    size_t at = slot_of(key), to = at;
    if (is_proven(m, key)) return;
    for (size_t i = 0; i < PROBES; i++) {
        to = (at + i) % SLOTS;
        if (!memcmp(m->proven[to], none, SN_KEY_SIZE)) break;
    }
    memcpy(m->proven[to], key, SN_KEY_SIZE);
}

static void send_proof(members *m, sn_peer peer, const uint8_t to[SN_KEY_SIZE], uint64_t request) {
    sn_msg *msg = NULL;
    sn_err err;
    if (sn_msg_new(SN_MSG_ADMIT, request, &msg, &err)) return;
    sn_member_proof(m->key, m->own, to, msg->admit.proof);
    if (sn_transport_send(m->inner, peer, &msg, &err)) sn_msg_free(&msg); /* he will find that he is not heard */
}

static struct dialled *find_dialled(members *m, sn_peer peer) {
    for (size_t i = 0; i < m->n_dialled; i++)
        if (m->dialled[i].peer == peer) return &m->dialled[i];
    return NULL;
}

/* -- the transport's operations -------------------------------------------------------------------------------------- */

static sn_status private_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    return sn_transport_listen(((members *)t)->inner, address, bound, err);
}

static sn_status private_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                              sn_err *err) {
    members *m = (members *)t;
    if (m->n_dialled == m->room) {
        size_t room = 2 * m->room + 16;
        struct dialled *grown = realloc(m->dialled, room * sizeof *grown);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory: no room for another peer");
        m->dialled = grown;
        m->room = room;
    }
    sn_status status = sn_transport_dial(m->inner, address, key, out, err);
    if (status || find_dialled(m, *out)) return status;
    struct dialled *d = &m->dialled[m->n_dialled++];
    d->peer = *out;
    memcpy(d->key, key, SN_KEY_SIZE);
    send_proof(m, *out, key, 0);
    return SN_OK;
}

static sn_status private_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    return sn_transport_send(((members *)t)->inner, peer, msg, err);
}

static void refuse(members *m, const sn_event *event) {
    sn_msg *msg = NULL;
    sn_err err;
    if (!event->msg || event->msg->kind == SN_MSG_ERROR || sn_msg_new(SN_MSG_ERROR, event->msg->request, &msg, &err)) return;
    msg->error.status = SN_REFUSED;
    snprintf(msg->error.text, sizeof msg->error.text,
             "this swarm is private: who has its key gives it with --swarm-key FILE");
    if (sn_transport_send(m->inner, event->peer, &msg, &err)) sn_msg_free(&msg);
}

static void hear_proof(members *m, const sn_event *event) {
    uint8_t expected[SN_KEY_SIZE];
    sn_member_proof(m->key, event->key, m->own, expected);
    if (CRYPTO_memcmp(expected, event->msg->admit.proof, sizeof expected)) {
        refuse(m, event);
        return;
    }
    note_proven(m, event->key);
    if (!find_dialled(m, event->peer)) send_proof(m, event->peer, event->key, event->msg->request);
}

/* True: the event is the owner's. */
static bool let_through(members *m, sn_event *event) {
    struct dialled *d = find_dialled(m, event->peer);
    if (!event->peer) return true;
    if (event->lost) { /* when it is up again, who is there may be another process */
        if (d) send_proof(m, d->peer, d->key, 0);
        return true;
    }
    if (event->msg && event->msg->kind == SN_MSG_ADMIT) {
        hear_proof(m, event);
        return false;
    }
    if (is_proven(m, event->key)) return true;
    if (!d) {
        refuse(m, event);
        return false;
    }
    sn_msg_free(&event->msg);
    (void)sn_fail(&event->bad, SN_REFUSED, "a node answered that has not proven to hold this swarm's key");
    return true;
}

static sn_status private_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    members *m = (members *)t;
    for (;;) {
        sn_status status = sn_transport_recv(m->inner, deadline_us, out, err);
        if (status || let_through(m, out)) return status;
        sn_msg_free(&out->msg);
    }
}

static void private_hang_up(sn_transport *t, sn_peer peer) {
    members *m = (members *)t;
    struct dialled *d = find_dialled(m, peer);
    if (d) *d = m->dialled[--m->n_dialled];
    sn_transport_hang_up(m->inner, peer);
}

static void private_wake(sn_transport *t) { sn_transport_wake(((members *)t)->inner); }

static void private_free(sn_transport *t) {
    members *m = (members *)t;
    sn_transport_free(&m->inner);
    free(m->proven);
    free(m->dialled);
    explicit_bzero(m->key, sizeof m->key);
    free(m);
}

static const sn_transport_ops private_ops = {private_listen, private_dial,    private_send, private_recv,
                                             private_hang_up, private_wake, private_free};

sn_status sn_transport_private_new(sn_transport **inner, const sn_identity *identity,
                                   const uint8_t key[SN_SWARM_KEY_SIZE], sn_transport **out, sn_err *err) {
    members *m = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (!status) status = sn_calloc(&m->proven, SLOTS, sizeof *m->proven, err);
    if (status) {
        free(m);
        sn_transport_free(inner);
        return status;
    }
    m->base.ops = &private_ops;
    m->inner = *inner;
    *inner = NULL;
    memcpy(m->key, key, sizeof m->key);
    memcpy(m->own, identity->curve_key, SN_KEY_SIZE);
    *out = &m->base;
    return SN_OK;
}

/* -- the file -------------------------------------------------------------------------------------------------------- */

sn_status sn_swarm_key_make(const char *path, sn_err *err) {
    uint8_t key[SN_SWARM_KEY_SIZE];
    char text[FILE_SIZE_MAX], hex[2 * SN_SWARM_KEY_SIZE + 1];
    sn_random(key, sizeof key);
    int len = snprintf(text, sizeof text, "%s%s\n", file_head, sn_hex(key, sizeof key, hex));
    sn_status status = sn_secret_save(path, text, (size_t)len, "a swarm's key", err);
    explicit_bzero(key, sizeof key);
    explicit_bzero(text, sizeof text);
    explicit_bzero(hex, sizeof hex);
    return status;
}

sn_status sn_swarm_key_load(const char *path, uint8_t out[SN_SWARM_KEY_SIZE], sn_err *err) {
    char text[FILE_SIZE_MAX + 1] = {0};
    size_t head = sizeof file_head - 1, digits = 2 * SN_SWARM_KEY_SIZE, len = 0;
    sn_status status = sn_secret_load(path, text, FILE_SIZE_MAX, &len, err);
    if (!status && (len != head + digits + 1 || strncmp(text, file_head, head) != 0 || text[len - 1] != '\n'))
        status = sn_fail(err, SN_REFUSED, "%s is no swarm's key: make one with swarm keygen --swarm FILE", path);
    if (!status) text[len - 1] = 0;
    if (!status && sn_unhex(text + head, out, SN_SWARM_KEY_SIZE, NULL))
        status = sn_fail(err, SN_REFUSED, "%s is no swarm's key: it must be hexadecimal digits", path);
    explicit_bzero(text, sizeof text);
    return status;
}

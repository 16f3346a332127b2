/* Signposts in OpenDHT, through its C interface. The one file that includes it. */
#include "net/dht.h"

#include "base/log.h"
#include "base/text.h"

#include <opendht/opendht_c.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FOUND_MAX = 64, SEEN_MAX = 64 };

struct sn_dht {
    dht_runner *runner;
    dht_infohash place; /* of the model's signposts */
    uint8_t model[SN_KEY_SIZE];
    void (*found)(void *);
    void *ctx;
    pthread_mutex_t lock; /* of what follows: the table's thread puts in, ours takes out */
    struct {
        uint8_t data[SN_SIGNPOST_SIZE_MAX];
        size_t len;
    } queue[FOUND_MAX]; /* what comes when it is full is dropped: it comes again */
    size_t first, n;
    uint8_t seen[SEEN_MAX][SN_KEY_SIZE]; /* ours: nodes that were given out */
    size_t n_seen;
};

static bool enqueue(const dht_value *value, void *ctx) {
    sn_dht *d = ctx;
    dht_data_view view = dht_value_get_data(value);
    if (!view.size || view.size > SN_SIGNPOST_SIZE_MAX) return true;
    pthread_mutex_lock(&d->lock);
    if (d->n < FOUND_MAX) {
        size_t at = (d->first + d->n++) % FOUND_MAX;
        memcpy(d->queue[at].data, view.data, view.size);
        d->queue[at].len = view.size;
    }
    pthread_mutex_unlock(&d->lock);
    d->found(d->ctx);
    return true; /* go on looking */
}

static void search_done(bool ok, void *ctx) {
    (void)ok;
    ((sn_dht *)ctx)->found(((sn_dht *)ctx)->ctx);
}

static sn_status meet(sn_dht *d, const char *contact, sn_err *err) {
    char host[SN_ADDRESS_MAX + 1];
    const char *colon = strrchr(contact, ':');
    if (!strcmp(contact, "on")) return SN_OK;
    size_t len = colon ? (size_t)(colon - contact) : 0;
    int64_t port;
    sn_err why;
    if (!len || len >= sizeof host || sn_parse_int(colon + 1, 1, 65535, &port, &why))
        return sn_fail(err, SN_REFUSED, "--dht %.80s: give HOST:PORT of a node of the table, or on", contact);
    memcpy(host, contact, len);
    host[len] = 0;
    dht_runner_bootstrap(d->runner, host, colon + 1);
    return SN_OK;
}

sn_status sn_dht_open(const char *contact, int port, const uint8_t model[SN_KEY_SIZE], void (*found)(void *), void *ctx,
                      sn_dht **out, sn_err *err) {
    static const char salt[] = "swarm-node 2 ";
    uint8_t name[sizeof salt - 1 + SN_KEY_SIZE];
    sn_dht *d = NULL;
    sn_status status = sn_calloc(&d, 1, sizeof *d, err);
    if (status) return status;
    d->found = found;
    d->ctx = ctx;
    memcpy(d->model, model, SN_KEY_SIZE);
    memcpy(name, salt, sizeof salt - 1);
    memcpy(name + sizeof salt - 1, model, SN_KEY_SIZE);
    dht_infohash_get(&d->place, name, sizeof name);
    pthread_mutex_init(&d->lock, NULL);
    d->runner = dht_runner_new();
    if (!d->runner) status = sn_fail(err, SN_STOP, "OpenDHT cannot be started");
    if (!status && (dht_runner_run(d->runner, (in_port_t)port) || !dht_runner_is_running(d->runner)))
        status = sn_fail(err, SN_REFUSED, "--dht: UDP port %d cannot be used: give another --dht-port", port);
    if (!status) status = meet(d, contact, err);
    if (status) sn_dht_close(&d);
    else sn_dht_search(d);
    *out = d;
    return status;
}

void sn_dht_close(sn_dht **dht) {
    sn_dht *d = *dht;
    if (!d) return;
    if (d->runner) dht_runner_delete(d->runner); /* joins its thread: no callback comes any more */
    pthread_mutex_destroy(&d->lock);
    free(d);
    *dht = NULL;
}

int sn_dht_port(const sn_dht *dht) { return dht_runner_get_bound_port(dht->runner, AF_INET); }
void sn_dht_search(sn_dht *dht) { dht_runner_get(dht->runner, &dht->place, enqueue, search_done, dht); }

sn_status sn_dht_offer(sn_dht *d, const sn_identity *identity, const char *address, int64_t now_unix_ms, sn_err *err) {
    sn_signpost post = {.expires_unix_ms = (uint64_t)now_unix_ms + SN_SIGNPOST_LIFE_MS};
    sn_buf sealed;
    memcpy(post.node, identity->id, SN_KEY_SIZE);
    memcpy(post.curve_key, identity->curve_key, SN_KEY_SIZE);
    memcpy(post.model, d->model, SN_KEY_SIZE);
    snprintf(post.address, sizeof post.address, "%s", address);
    sn_buf_init(&sealed, SN_SIGNPOST_SIZE_MAX);
    sn_status status = sn_signpost_seal(&post, identity, &sealed, err);
    dht_value *value = status ? NULL : dht_value_new(sealed.data, sealed.len);
    if (value) dht_runner_put(d->runner, &d->place, value, NULL, NULL, false);
    dht_value_unref(value);
    sn_buf_fini(&sealed);
    return status;
}

static bool take_bytes(sn_dht *d, uint8_t *data, size_t *len) {
    pthread_mutex_lock(&d->lock);
    bool any = d->n > 0;
    if (any) {
        *len = d->queue[d->first].len;
        memcpy(data, d->queue[d->first].data, *len);
        d->first = (d->first + 1) % FOUND_MAX;
        d->n--;
    }
    pthread_mutex_unlock(&d->lock);
    return any;
}

static bool is_new(sn_dht *d, const uint8_t *id) {
    for (size_t i = 0; i < d->n_seen && i < SEEN_MAX; i++)
        if (!memcmp(d->seen[i], id, SN_KEY_SIZE)) return false;
    memcpy(d->seen[d->n_seen++ % SEEN_MAX], id, SN_KEY_SIZE);
    return true;
}

bool sn_dht_take(sn_dht *d, int64_t now_unix_ms, char address[SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2]) {
    uint8_t data[SN_SIGNPOST_SIZE_MAX];
    char key[2 * SN_KEY_SIZE + 1];
    size_t len = 0;
    while (take_bytes(d, data, &len)) {
        sn_signpost post;
        sn_err err;
        if (sn_signpost_open(data, len, d->model, now_unix_ms, &post, &err)) {
            sn_log(SN_LOG_DEBUG, "signpost dropped", "text=%s", err.text);
            continue;
        }
        if (!is_new(d, post.node)) continue;
        snprintf(address, SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2, "%s#%s", post.address,
                 sn_hex(post.curve_key, SN_KEY_SIZE, key));
        return true;
    }
    return false;
}

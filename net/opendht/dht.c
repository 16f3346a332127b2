/* net/dht.h with OpenDHT's C interface; the only file that includes it.
 *
 * OpenDHT's thread calls record_enqueue for each value that a search finds; it copies the bytes into a bag of fixed
 * size under the lock, where of too many a random sample stays. sn_dht_next, on the caller's thread, takes them out and
 * verifies them. */
#include "net/dht.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "base/parse.h"

#include <opendht/opendht_c.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAG_MAX = 256 };

struct sn_dht {
    dht_runner *runner;
    dht_infohash infohash; /* key of the model's records */
    uint8_t model[SN_KEY_SIZE];
    void (*on_found)(void *);
    void *ctx;
    pthread_mutex_t lock; /* guards the bag: OpenDHT's thread writes it, the caller's thread reads it */
    struct {
        uint8_t data[SN_DHT_RECORD_SIZE_MAX];
        size_t len;
    } bag[BAG_MAX];
    size_t n, n_full; /* n_full: records that came since it is full */
    uint64_t seed;
};

static bool record_enqueue(const dht_value *value, void *ctx) {
    sn_dht *d = ctx;
    dht_data_view view = dht_value_get_data(value);
    if (!view.size || view.size > SN_DHT_RECORD_SIZE_MAX) return true;
    pthread_mutex_lock(&d->lock);
    size_t at = d->n < BAG_MAX ? d->n++ : (size_t)sn_rng_below(&d->seed, BAG_MAX + ++d->n_full);
    if (at < BAG_MAX) {
        memcpy(d->bag[at].data, view.data, view.size);
        d->bag[at].len = view.size;
    }
    pthread_mutex_unlock(&d->lock);
    d->on_found(d->ctx);
    return true; /* go on looking */
}

static void search_done(bool ok, void *ctx) {
    (void)ok;
    ((sn_dht *)ctx)->on_found(((sn_dht *)ctx)->ctx);
}

static sn_status runner_bootstrap(sn_dht *d, const char *bootstrap, sn_err *err) {
    sn_host_port at;
    char port[8];
    if (!strcmp(bootstrap, "on")) return SN_OK;
    if (sn_parse_host_port(bootstrap, SN_HOST_PORT_DIAL, &at, err))
        return sn_err_context(err, "--dht: give a node of the DHT, or on");
    snprintf(port, sizeof port, "%d", at.port);
    dht_runner_bootstrap(d->runner, at.host, port);
    return SN_OK;
}

sn_status sn_dht_open(const char *bootstrap, int port, const uint8_t model[SN_KEY_SIZE], void (*on_found)(void *),
                      void *ctx, sn_dht **out, sn_err *err) {
    static const char salt[] = "swarm-node 3 ";
    uint8_t name[sizeof salt - 1 + SN_KEY_SIZE];
    sn_dht *d = NULL;
    sn_status status = sn_calloc(&d, 1, sizeof *d, err);
    if (status) return status;
    d->on_found = on_found;
    d->ctx = ctx;
    sn_random(&d->seed, sizeof d->seed);
    memcpy(d->model, model, SN_KEY_SIZE);
    memcpy(name, salt, sizeof salt - 1);
    memcpy(name + sizeof salt - 1, model, SN_KEY_SIZE);
    dht_infohash_get(&d->infohash, name, sizeof name);
    pthread_mutex_init(&d->lock, NULL);
    d->runner = dht_runner_new();
    if (!d->runner) status = sn_fail(err, SN_STOP, "OpenDHT cannot be started");
    if (!status && (dht_runner_run(d->runner, (in_port_t)port) || !dht_runner_is_running(d->runner)))
        status = sn_fail(err, SN_REFUSED, "--dht: UDP port %d cannot be used: give another --dht-port", port);
    if (!status) status = runner_bootstrap(d, bootstrap, err);
    if (status)
        sn_dht_close(&d);
    else
        sn_dht_search(d);
    *out = d;
    return status;
}

void sn_dht_close(sn_dht **dht) {
    sn_dht *d = *dht;
    if (!d) return;
    if (d->runner) dht_runner_delete(d->runner); /* joins its thread: no callback follows */
    pthread_mutex_destroy(&d->lock);
    free(d);
    *dht = NULL;
}

int sn_dht_port(const sn_dht *dht) { return dht_runner_get_bound_port(dht->runner, AF_INET); }
void sn_dht_search(sn_dht *dht) { dht_runner_get(dht->runner, &dht->infohash, record_enqueue, search_done, dht); }

sn_status sn_dht_publish(sn_dht *d, const sn_identity *identity, const char *address, int64_t now_unix_ms,
                         sn_err *err) {
    sn_dht_record record = {.expires_unix_ms = (uint64_t)now_unix_ms + SN_DHT_RECORD_LIFE_MS};
    sn_buf sealed;
    memcpy(record.node, identity->id, SN_KEY_SIZE);
    memcpy(record.curve_key, identity->curve_key, SN_KEY_SIZE);
    memcpy(record.model, d->model, SN_KEY_SIZE);
    snprintf(record.address, sizeof record.address, "%s", address);
    sn_buf_init(&sealed, SN_DHT_RECORD_SIZE_MAX);
    sn_status status = sn_dht_record_seal(&record, identity, &sealed, err);
    dht_value *value = status ? NULL : dht_value_new(sealed.data, sealed.len);
    if (value) dht_runner_put(d->runner, &d->infohash, value, NULL, NULL, false);
    dht_value_unref(value);
    sn_buf_fini(&sealed);
    return status;
}

static bool record_take(sn_dht *d, uint8_t *data, size_t *len) {
    pthread_mutex_lock(&d->lock);
    bool any = d->n > 0;
    if (any) {
        d->n_full = 0;
        *len = d->bag[--d->n].len;
        memcpy(data, d->bag[d->n].data, *len);
    }
    pthread_mutex_unlock(&d->lock);
    return any;
}

bool sn_dht_next(sn_dht *d, int64_t now_unix_ms, sn_dht_record *record) {
    uint8_t data[SN_DHT_RECORD_SIZE_MAX];
    size_t len = 0;
    while (record_take(d, data, &len)) {
        sn_err err;
        if (!sn_dht_record_open(data, len, d->model, now_unix_ms, record, &err)) return true;
        sn_log(SN_LOG_DEBUG, "DHT record dropped", "text=%s", err.text);
    }
    return false;
}

#include "client/net/bootstrap.h"

#include "base/clock.h"
#include "net/dht.h"

enum { DHT_POLL_US = 20000, SEARCH_US = 1000000, MORE_US = 300000 };

static void ignore_wake(void *ctx) { (void)ctx; } /* the loop below polls */

static void bootstrap_take_found(sn_bootstrap *c, size_t *n_found, sn_dht *dht) {
    while (*n_found < SN_BOOTSTRAP_FOUND_MAX && c->n < SN_BOOTSTRAP_MAX &&
           sn_dht_next(dht, sn_unix_ms(), c->found[*n_found]))
        c->items[c->n++] = c->found[(*n_found)++];
}

sn_status sn_bootstrap_find(sn_bootstrap *c, const sn_bootstrap_options *options, const sn_hash *model, int timeout_ms,
                            sn_err *err) {
    sn_dht *dht = NULL;
    size_t n_found = 0;
    c->n = 0;
    for (size_t i = 0; i < options->n_join && c->n < SN_BOOTSTRAP_MAX; i++) c->items[c->n++] = options->join[i];
    if (!options->dht) return SN_OK;
    sn_status status = sn_dht_open(options->dht, 0, model->bytes, ignore_wake, NULL, &dht, err);
    if (status) return status;
    int64_t now = sn_now_us(), until = now + (int64_t)timeout_ms * 1000, search = now + SEARCH_US;
    for (; now < until && n_found < SN_BOOTSTRAP_FOUND_MAX && !sn_is_cancelled(options->cancel); now = sn_now_us()) {
        bool before = n_found > 0;
        bootstrap_take_found(c, &n_found, dht);
        if (n_found && !before && now + MORE_US < until) until = now + MORE_US; /* further ones may follow at once */
        if (now >= search) {
            sn_dht_search(dht);
            search = now + SEARCH_US;
        }
        sn_sleep_us(DHT_POLL_US);
    }
    sn_dht_close(&dht);
    if (c->n) return SN_OK;
    return sn_fail(err, SN_RETRY,
                   "--dht %s: no node of this model was found within %.1f s: is the DHT's address right?", options->dht,
                   timeout_ms / 1e3);
}

#include "client/net/bootstrap.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "net/dht.h"

#include <stdio.h>
#include <stdlib.h>

enum { DHT_POLL_US = 20000, SEARCH_US = 1000000, MORE_US = 300000 };

static void ignore_wake(void *ctx) { (void)ctx; } /* the loop below polls */

static bool take_found(sn_dht_found *found, sn_dht *dht) {
    sn_dht_record record;
    for (size_t i = 0; i < SN_DHT_FOUND_MAX && sn_dht_next(dht, sn_unix_ms(), &record); i++)
        sn_dht_found_add(found, &record);
    return found->n > 0;
}

static void bootstrap_choose(sn_bootstrap *c, sn_dht_found *found) {
    const sn_dht_record *record;
    char key[2 * SN_KEY_SIZE + 1];
    for (size_t i = 0; i < SN_BOOTSTRAP_FOUND_MAX && c->n < SN_BOOTSTRAP_MAX; i++) {
        if (!(record = sn_dht_found_next(found, true, sn_unix_ms()))) return;
        snprintf(c->found[i], sizeof c->found[i], "%s#%s", record->address,
                 sn_hex(record->curve_key, SN_KEY_SIZE, key));
        c->items[c->n++] = c->found[i];
    }
}

/* Searches until some were found, and then for a little while, because further ones may follow at once. */
static void bootstrap_search(sn_dht *dht, sn_dht_found *found, const sn_cancel *cancel, int timeout_ms) {
    int64_t now = sn_now_us(), until = now + (int64_t)timeout_ms * 1000, search = now + SEARCH_US;
    sn_random(&found->seed, sizeof found->seed);
    for (bool before = false; now < until && !sn_is_cancelled(cancel); now = sn_now_us()) {
        bool any = take_found(found, dht);
        if (any && !before && now + MORE_US < until) until = now + MORE_US;
        before = any;
        if (now >= search) {
            sn_dht_search(dht);
            search = now + SEARCH_US;
        }
        sn_sleep_us(DHT_POLL_US);
    }
}

sn_status sn_bootstrap_find(sn_bootstrap *c, const sn_bootstrap_options *options, const sn_hash *model, int timeout_ms,
                            sn_err *err) {
    sn_dht *dht = NULL;
    sn_dht_found *found = NULL;
    c->n = 0;
    for (size_t i = 0; i < options->n_join && c->n < SN_BOOTSTRAP_MAX; i++) c->items[c->n++] = options->join[i];
    if (!options->dht) return SN_OK;
    sn_status status = sn_calloc(&found, 1, sizeof *found, err);
    if (!status) status = sn_dht_open(options->dht, 0, model->bytes, ignore_wake, NULL, &dht, err);
    if (!status) {
        bootstrap_search(dht, found, options->cancel, timeout_ms);
        bootstrap_choose(c, found);
    }
    sn_dht_close(&dht);
    free(found);
    if (status || c->n) return status;
    return sn_fail(err, SN_RETRY,
                   "--dht %s: no node of this model was found within %.1f s: is the DHT's address right?", options->dht,
                   timeout_ms / 1e3);
}

#include "client/contacts.h"

#include "base/clock.h"
#include "client/cmd.h"
#include "net/dht.h"

enum { LOOK_US = 20000, SEARCH_US = 1000000, MORE_US = 300000 };

static void nothing(void *ctx) { (void)ctx; } /* it is looked after often enough */

static void look(sn_contacts *c, size_t *n_found, sn_dht *dht) {
    while (*n_found < SN_CONTACTS_FOUND_MAX && c->n < SN_CONTACTS_MAX &&
           sn_dht_take(dht, sn_unix_ms(), c->found[*n_found]))
        c->items[c->n++] = c->found[(*n_found)++];
}

sn_status sn_contacts_find(sn_contacts *c, const sn_hash *model, int timeout_ms, sn_err *err) {
    sn_dht *dht = NULL;
    size_t n_found = 0;
    c->n = 0;
    for (size_t i = 0; i < sn_given.join.n && c->n < SN_CONTACTS_MAX; i++) c->items[c->n++] = sn_given.join.items[i];
    if (!sn_given.dht) return SN_OK;
    sn_status status = sn_dht_open(sn_given.dht, 0, model->bytes, nothing, NULL, &dht, err);
    if (status) return status;
    int64_t now = sn_now_us(), until = now + (int64_t)timeout_ms * 1000, search = now + SEARCH_US;
    for (; now < until && n_found < SN_CONTACTS_FOUND_MAX && !sn_interrupted; now = sn_now_us()) {
        bool before = n_found > 0;
        look(c, &n_found, dht);
        if (n_found && !before && now + MORE_US < until) until = now + MORE_US; /* a few more, if they come at once */
        if (now >= search) {
            sn_dht_search(dht);
            search = now + SEARCH_US;
        }
        sn_sleep_us(LOOK_US);
    }
    sn_dht_close(&dht);
    if (c->n) return SN_OK;
    return sn_fail(err, SN_RETRY, "--dht %s: nobody there offers this model (%.1f s waited): is the table's address right?",
                   sn_given.dht, timeout_ms / 1e3);
}

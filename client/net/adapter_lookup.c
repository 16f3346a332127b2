#include "client/net/adapter_lookup.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { NODES_ASKED_MAX = 256, ASK_MS = 3000 };

typedef struct adapter_search {
    const char *wanted, *digits; /* digits: first hexadecimal digits of the hash; NULL: any */
    size_t len;                  /* of the name in `wanted` */
    bool found;
    sn_hash hash;
} adapter_search;

static bool search_matches(const adapter_search *s, const struct sn_adapter_info *entry) {
    char hex[2 * SN_HASH_SIZE + 1];
    if (strlen(entry->name) != s->len || memcmp(entry->name, s->wanted, s->len)) return false;
    return !s->digits || !strncmp(sn_hex(entry->hash, SN_HASH_SIZE, hex), s->digits, strlen(s->digits));
}

static sn_status search_take_reply(adapter_search *s, const sn_msg_adapters_reply *reply, sn_err *err) {
    for (size_t i = 0; i < reply->n_adapters; i++) {
        const struct sn_adapter_info *entry = &reply->adapters[i];
        char one[17], other[17];
        if (!search_matches(s, entry)) continue;
        if (s->found && memcmp(s->hash.bytes, entry->hash, SN_HASH_SIZE))
            return sn_fail(err, SN_REFUSED,
                           "%.*s means different adapters at different nodes: say which, %.*s@%s or %.*s@%s",
                           (int)s->len, s->wanted, (int)s->len, s->wanted, sn_hex(s->hash.bytes, 8, one), (int)s->len,
                           s->wanted, sn_hex(entry->hash, 8, other));
        memcpy(s->hash.bytes, entry->hash, SN_HASH_SIZE);
        s->found = true;
    }
    return SN_OK;
}

/* The nodes of the model that announce adapters, proven ones first: a stranger may have announced any number. */
static size_t list_publishers(const sn_directory *directory, const sn_hash *model,
                              const sn_announcement *nodes[NODES_ASKED_MAX]) {
    int64_t now_ms = sn_unix_ms();
    size_t n = 0;
    for (int proven = 1; proven >= 0; proven--)
        for (size_t i = 0; i < sn_directory_count(directory) && n < NODES_ASKED_MAX; i++) {
            const sn_announcement *a = sn_directory_at(directory, i);
            if (memcmp(a->model, model->bytes, SN_HASH_SIZE) || !a->n_adapters || a->state != SN_NODE_ONLINE) continue;
            if (sn_directory_is_proven_at(directory, i, now_ms) == proven) nodes[n++] = a;
        }
    return n;
}

static sn_status search_nodes(adapter_search *s, sn_link *link, const sn_hash *model, int timeout_ms, sn_err *err) {
    const sn_announcement *nodes[NODES_ASKED_MAX];
    sn_node_reply *replies = NULL;
    size_t n = list_publishers(sn_link_directory(link), model, nodes);
    const sn_link_query query = {nodes, n, .adapters = true, .timeout_ms = timeout_ms};
    sn_status status = sn_calloc(&replies, n, sizeof *replies, err);
    if (!status) status = sn_link_query_nodes(link, &query, replies, err);
    for (size_t i = 0; replies && i < n; i++) {
        if (!status && replies[i].adapters) status = search_take_reply(s, &replies[i].adapters->adapters_reply, err);
        sn_msg_free(&replies[i].adapters);
    }
    free(replies);
    return status;
}

sn_status sn_adapter_lookup(sn_link *link, const sn_hash *model, const char *wanted, int timeout_ms, sn_hash *out,
                            sn_err *err) {
    const char *at = strchr(wanted, '@');
    adapter_search s = {
        .wanted = wanted, .digits = at ? at + 1 : NULL, .len = at ? (size_t)(at - wanted) : strlen(wanted)};
    int64_t deadline_us = sn_now_us() + (int64_t)timeout_ms * 1000;
    sn_status status = sn_link_discover(link, model, timeout_ms, err);
    int64_t left_ms = (deadline_us - sn_now_us()) / 1000;
    if (!status && left_ms > 0) status = search_nodes(&s, link, model, left_ms < ASK_MS ? (int)left_ms : ASK_MS, err);
    if (!status && !s.found)
        status =
            sn_fail(err, SN_RETRY,
                    "no node publishes an adapter %.100s of this model: swarm status shows which there are", wanted);
    if (!status) *out = s.hash;
    return status;
}

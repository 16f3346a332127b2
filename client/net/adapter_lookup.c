#include "client/net/adapter_lookup.h"

#include <stdlib.h>
#include <string.h>

enum { NODES_ASKED_MAX = 64, ASK_MS = 3000 };

sn_status sn_adapter_lookup_list(sn_link *link, const sn_announcement *node, int timeout_ms, sn_msg **out,
                                 sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_ADAPTERS, 0, &msg, err);
    if (status) return status;
    msg->adapters.protocol = SN_PROTOCOL_VERSION;
    sn_call call = {node->address, node->curve_key, SN_MSG_ADAPTERS_REPLY, timeout_ms};
    return sn_link_call(link, &call, &msg, NULL, out, err);
}

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

sn_status sn_adapter_lookup(sn_link *link, const sn_hash *model, const char *wanted, int timeout_ms, sn_hash *out,
                            sn_err *err) {
    const char *at = strchr(wanted, '@');
    adapter_search s = {
        .wanted = wanted, .digits = at ? at + 1 : NULL, .len = at ? (size_t)(at - wanted) : strlen(wanted)};
    sn_announcement *nodes[NODES_ASKED_MAX] = {NULL}; /* copies: while nodes are asked the directory may change */
    size_t n = 0;
    sn_status status = sn_link_discover(link, model, timeout_ms, err);
    const sn_directory *directory = sn_link_directory(link);
    for (size_t i = 0; i < sn_directory_count(directory) && n < NODES_ASKED_MAX && !status; i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        if (memcmp(a->model, model->bytes, SN_HASH_SIZE) || !a->n_adapters || a->state != SN_NODE_ONLINE) continue;
        status = sn_calloc(&nodes[n], 1, sn_announcement_size(a), err);
        if (!status) sn_announcement_copy(nodes[n++], a);
    }
    for (size_t i = 0; i < n && !status; i++) {
        sn_msg *reply = NULL;
        sn_err silent;
        if (!sn_adapter_lookup_list(link, nodes[i], timeout_ms < ASK_MS ? timeout_ms : ASK_MS, &reply, &silent))
            status = search_take_reply(&s, &reply->adapters_reply, err);
        sn_msg_free(&reply);
    }
    for (size_t i = 0; i < n; i++) free(nodes[i]);
    if (!status && !s.found)
        status =
            sn_fail(err, SN_RETRY,
                    "no node publishes an adapter %.100s of this model: swarm status shows which there are", wanted);
    if (!status) *out = s.hash;
    return status;
}

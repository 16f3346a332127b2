#include "client/net/peers_query.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS_MIN = 4 }; /* a shorter word is no beginning of an id */

sn_status sn_peers_query_message(const sn_peers_query *query, uint64_t correlation_id, sn_msg **out, sn_err *err) {
    sn_status status = sn_msg_new(SN_MSG_PEERS, correlation_id, out, err);
    if (status) return status;
    sn_msg_peers *peers = &(*out)->peers;
    peers->protocol = SN_PROTOCOL_VERSION;
    peers->from_tag = query->from_tag;
    peers->to_tag = query->to_tag;
    if (query->name) snprintf(peers->name, sizeof peers->name, "%s", query->name);
    if (query->model) memcpy(peers->model, query->model->bytes, SN_KEY_SIZE);
    return SN_OK;
}

bool sn_peers_query_digits(const char *digits, uint64_t *from_tag, uint64_t *to_tag) {
    static const char all[] = "0123456789abcdef";
    size_t n = strlen(digits);
    *from_tag = *to_tag = 0;
    if (n < DIGITS_MIN || n != strspn(digits, all)) return false;
    for (size_t i = 0; i < 16; i++) {
        const char *at = i < n ? strchr(all, digits[i]) : NULL;
        uint64_t value = at ? (uint64_t)(at - all) : 0;
        *from_tag = *from_tag << 4 | value;
        *to_tag = *to_tag << 4 | (at ? value : 15);
    }
    return true;
}

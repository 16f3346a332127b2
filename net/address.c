#include "net/codec.h"

#include <string.h>

static const char *const host_characters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."; /* libzmq gives ; and / a meaning of their own
                                                                         */

static bool host_is_fine(const char *host, size_t len, bool to_listen) {
    if (to_listen && len == 1 && *host == '*') return true;
    if (len > 2 && host[0] == '[' && host[len - 1] == ']')
        return strspn(host + 1, "0123456789abcdefABCDEF:.") == len - 2;
    return len && strspn(host, host_characters) == len;
}

static bool port_is_fine(const char *port, bool to_listen) {
    size_t digits = strspn(port, "0123456789");
    if (!digits || digits > 5 || port[digits]) return false;
    unsigned value = 0;
    for (size_t i = 0; i < digits; i++) value = value * 10 + (unsigned)(port[i] - '0');
    return value <= 65535 && (value || to_listen);
}

sn_status sn_address_check(const char *address, bool to_listen, sn_err *err) {
    size_t len = strnlen(address, SN_ADDRESS_MAX + 1);
    if (len > SN_ADDRESS_MAX)
        return sn_fail(err, SN_REFUSED, "an address has at most %d bytes: give a shorter one", SN_ADDRESS_MAX);
    const char *host = address + strlen("tcp://"), *colon = strrchr(address, ':');
    if (strncmp(address, "tcp://", strlen("tcp://")) != 0 || colon < host ||
        !host_is_fine(host, (size_t)(colon - host), to_listen) || !port_is_fine(colon + 1, to_listen)) {
        if (!sn_is_printable(address, len)) address = "(not printable)";
        return sn_fail(err, SN_REFUSED, "'%.*s' is no address: write tcp://HOST:PORT, as in tcp://127.0.0.1:7001",
                       SN_ADDRESS_MAX, address);
    }
    return SN_OK;
}

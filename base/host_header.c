#include "base/host_header.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool sn_host_header_name(const char *host, char out[256]) {
    const bool bracketed = *host == '[';
    const char *name = host + bracketed, *end = bracketed ? strchr(name, ']') : name + strcspn(name, ":");
    if (!end || end == name || end - name > 255) return false;
    const char *rest = end + bracketed;
    if (*rest == ':') rest += 1 + strspn(rest + 1, "0123456789");
    if (*rest) return false;
    snprintf(out, 256, "%.*s", (int)(end - name), name);
    return true;
}

bool sn_host_header_is_address(const char *host) {
    char name[256];
    struct in6_addr address;
    if (!host || !sn_host_header_name(host, name)) return false;
    return inet_pton(*host == '[' ? AF_INET6 : AF_INET, name, &address) == 1 || !strcasecmp(name, "localhost");
}

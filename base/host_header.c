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

bool sn_path_has_nul(const char *sent) { return strstr(sent, "%00"); }

bool sn_host_header_is_known(const char *host, const char *const *names, size_t n) {
    char name[256];
    if (sn_host_header_is_address(host)) return true;
    if (!host || !sn_host_header_name(host, name)) return false;
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(name, names[i])) return true;
    return false;
}

bool sn_host_header_is_address(const char *host) {
    char name[256];
    struct in6_addr address;
    if (!host || !sn_host_header_name(host, name)) return false;
    return inet_pton(*host == '[' ? AF_INET6 : AF_INET, name, &address) == 1 || !strcasecmp(name, "localhost");
}

#include "gateway/http/access.h"

#include "base/host_header.h"
#include "base/file.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static sn_status add_key(sn_access *access, const char *key, size_t len, sn_err *err) {
    if (len < SN_KEY_CHARS_MIN)
        return sn_fail(err, SN_REFUSED,
                       "key %zu has %zu characters: a key needs %d or more, as 'openssl rand -hex 32' makes",
                       access->n_keys + 1, len, SN_KEY_CHARS_MIN);
    if (access->n_keys == SN_KEYS_MAX) return sn_fail(err, SN_REFUSED, "there are more than %d keys", SN_KEYS_MAX);
    access->keys[access->n_keys++] = sn_hash_of(key, len);
    return SN_OK;
}

sn_status sn_access_read_keys(sn_access *access, const char *path, sn_err *err) {
    sn_buf text = {0};
    sn_status status = sn_read_secret_file(path, SN_KEY_FILE_MAX, &text, err);
    if (!status) status = sn_calloc(&access->keys, SN_KEYS_MAX, sizeof *access->keys, err);
    const char *at = (const char *)text.data, *end = at + text.len;
    while (!status && at < end) {
        const char *line = at, *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((newline ? newline : end) - line);
        at += len + 1;
        while (len && strchr(" \t\r", line[len - 1])) len--;
        if (len && *line != '#') status = add_key(access, line, len, err);
    }
    if (!status && !access->n_keys) status = sn_fail(err, SN_REFUSED, "there is no key in it");
    if (text.data) explicit_bzero(text.data, text.len);
    sn_buf_fini(&text);
    return status ? sn_err_context(err, "%s", path) : SN_OK;
}

void sn_access_fini(sn_access *access) {
    free(access->keys);
    access->keys = NULL;
    access->n_keys = 0;
}

static uint8_t difference(const sn_hash *a, const sn_hash *b) {
    uint8_t bits = 0;
    for (size_t i = 0; i < sizeof a->bytes; i++) bits |= (uint8_t)(a->bytes[i] ^ b->bytes[i]);
    return bits;
}

static const char scheme[] = "Bearer ";

bool sn_access_has_key(const sn_access *access, const char *authorization) {
    if (!access->n_keys) return true;
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1)) return false;
    const char *key = authorization + sizeof scheme - 1;
    const sn_hash given = sn_hash_of(key, strlen(key));
    bool found = false;
    for (size_t i = 0; i < access->n_keys; i++) found |= !difference(&access->keys[i], &given);
    return found;
}

/* -- whose a request is -- */

/* An IPv4 address as IPv6 writes it; all zero: another family. */
static struct in6_addr address_of(const struct sockaddr *from) {
    struct in6_addr out = {.s6_addr = {[10] = 0xFF, [11] = 0xFF}};
    if (from && from->sa_family == AF_INET6) return ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    if (from && from->sa_family == AF_INET)
        memcpy(&out.s6_addr[12], &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    return out;
}

static bool parse_address(const char *text, size_t len, struct in6_addr *out) {
    char word[INET6_ADDRSTRLEN];
    *out = (struct in6_addr){.s6_addr = {[10] = 0xFF, [11] = 0xFF}};
    if (len >= sizeof word) return false;
    memcpy(word, text, len);
    word[len] = 0;
    return inet_pton(AF_INET, word, &out->s6_addr[12]) == 1 || inet_pton(AF_INET6, word, out) == 1;
}

static bool is_proxy(const sn_access *access, const struct in6_addr *address) {
    struct in6_addr proxy;
    for (size_t i = 0; i < access->n_proxies; i++)
        if (parse_address(access->proxies[i], strlen(access->proxies[i]), &proxy) &&
            !memcmp(&proxy, address, sizeof proxy))
            return true;
    return false;
}

uint64_t sn_access_owner(const sn_access *access, const struct sockaddr *from, const char *authorization,
                         const char *forwarded) {
    uint64_t owner;
    if (access->n_keys && sn_access_has_key(access, authorization)) {
        const char *word = authorization + sizeof scheme - 1; /* however the scheme is written */
        const sn_hash key = sn_hash_of(word, strlen(word));
        memcpy(&owner, key.bytes, sizeof owner);
        return owner;
    }
    struct in6_addr address = address_of(from), behind;
    const char *last = forwarded ? strrchr(forwarded, ',') : NULL;
    if (forwarded && is_proxy(access, &address)) {
        last = last ? last + 1 : forwarded;
        last += strspn(last, " \t");
        if (parse_address(last, strcspn(last, " \t"), &behind)) address = behind;
    }
    memcpy(&owner, address.s6_addr + (IN6_IS_ADDR_V4MAPPED(&address) ? 8 : 0), sizeof owner);
    return owner;
}

bool sn_access_knows_host(const sn_access *access, const char *host) {
    return sn_host_header_is_known(host, access->hosts, access->n_hosts);
}

sn_origin sn_access_origin(const sn_access *access, const char *origin, const char *host) {
    if (!origin) return SN_ORIGIN_SAME;
    for (size_t i = 0; i < access->n_origins; i++)
        if (!strcasecmp(origin, access->origins[i])) return SN_ORIGIN_NAMED;
    const char *authority = strstr(origin, "://");
    bool web = authority && (!strncmp(origin, "http://", 7) || !strncmp(origin, "https://", 8));
    return web && host && !strcasecmp(authority + 3, host) ? SN_ORIGIN_SAME : SN_ORIGIN_REFUSED;
}

sn_status sn_access_check_origin(const char *origin, sn_err *err) {
    const char *authority = strstr(origin, "://");
    char name[256];
    if (authority && authority != origin && sn_host_header_name(authority + 3, name) && !strpbrk(name, "*/ \t"))
        return SN_OK;
    return sn_fail(err, SN_REFUSED, "'%.100s' is no origin: write a scheme and a host, as in https://example.org",
                   origin);
}

sn_status sn_access_check_proxy(const char *address, sn_err *err) {
    struct in6_addr parsed;
    if (parse_address(address, strlen(address), &parsed)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "'%.100s' is no IP address", address);
}

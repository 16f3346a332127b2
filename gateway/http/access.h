/* Who may use the server: keys, the names in Host, and the Origins of web pages. Pure functions over headers.
 *
 * A key is compared as a hash, with all keys, in constant time. Host must be an IP address, localhost, or a name that
 * the owner gave: so a web page whose name is made to point at this machine (DNS rebinding) is refused. A page of
 * another origin is refused unless the owner named its origin. */
#ifndef SN_GATEWAY_HTTP_ACCESS_H
#define SN_GATEWAY_HTTP_ACCESS_H

#include "base/hash.h"
#include "base/mem.h"

#include <sys/socket.h>

enum { SN_KEYS_MAX = 1024, SN_KEY_CHARS_MIN = 16, SN_KEY_FILE_MAX = 1 << 20 };

typedef struct sn_access {
    sn_hash *keys; /* (n_keys) of the keys' text; none: all clients may use the server */
    size_t n_keys;
    const char *const *hosts; /* (n_hosts) borrowed */
    size_t n_hosts;
    const char *const *origins; /* (n_origins) borrowed, as "https://example.org" */
    size_t n_origins;
    const char *const *proxies; /* (n_proxies) borrowed: addresses whose X-Forwarded-For is believed */
    size_t n_proxies;
} sn_access;

/* Reads a file with a key in each line; empty lines and lines that begin with # are ignored. */
sn_status sn_access_read_keys(sn_access *access, const char *path, sn_err *err) SN_MUST_USE;
void sn_access_fini(sn_access *access);

/* The value of the header Authorization; NULL: there is none. */
bool sn_access_has_key(const sn_access *access, const char *authorization);
/* The value of the header Host; NULL: refused. */
bool sn_access_knows_host(const sn_access *access, const char *host);
/* SN_ORIGIN_SAME: there is none, or it is the server itself. SN_ORIGIN_NAMED: the owner named it, so replies say that
 * its pages may read them. */
typedef enum sn_origin { SN_ORIGIN_REFUSED, SN_ORIGIN_SAME, SN_ORIGIN_NAMED } sn_origin;
sn_origin sn_access_origin(const sn_access *access, const char *origin, const char *host);
/* Whose a request is, for shares of what the server has: that of a key where keys are wanted, else that of an address,
 * of which the first 64 bits count with IPv6. forwarded: the header X-Forwarded-For of a proxy, whose last entry is the
 * address that the proxy saw; NULL: there is none. */
uint64_t sn_access_owner(const sn_access *access, const struct sockaddr *from, const char *authorization,
                         const char *forwarded);
/* SN_REFUSED unless the text is an origin: a scheme and a host, and nothing behind them. */
sn_status sn_access_check_origin(const char *origin, sn_err *err) SN_MUST_USE;
/* SN_REFUSED unless the text is an IP address. */
sn_status sn_access_check_proxy(const char *address, sn_err *err) SN_MUST_USE;

#endif

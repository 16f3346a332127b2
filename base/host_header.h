/* What the head of an HTTP request says, where it must not be believed. A web page whose name is made to point at this
 * machine (DNS rebinding) sends that name in the header Host. */
#ifndef SN_BASE_HOST_HEADER_H
#define SN_BASE_HOST_HEADER_H

#include <stdbool.h>
#include <stddef.h>

/* The name in "name", "name:port", "[address]:port"; false: it is none of these. */
bool sn_host_header_name(const char *host, char out[256]);
/* Whether it is an IP address or localhost, which no web page is called. NULL is not. */
bool sn_host_header_is_address(const char *host);
/* Whether it is an address or one of n names. */
bool sn_host_header_is_known(const char *host, const char *const *names, size_t n);

/* Whether a path as it was sent (/a%20b?c) has a NUL in it, and ends there for its reader. */
bool sn_path_has_nul(const char *sent);

#endif

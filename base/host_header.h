/* The header Host of HTTP. A web page whose name is made to point at this machine (DNS rebinding) sends that name. */
#ifndef SN_BASE_HOST_HEADER_H
#define SN_BASE_HOST_HEADER_H

#include <stdbool.h>

/* The name in "name", "name:port", "[address]:port"; false: it is none of these. */
bool sn_host_header_name(const char *host, char out[256]);
/* Whether it is an IP address or localhost, which no web page is called. NULL is not. */
bool sn_host_header_is_address(const char *host);

#endif

/* The pages of a browser: the chat and the map of a swarm, whose files the build puts into the program.
 *
 * Paths: "/" is the chat, "/swarm" the map, "/pages/NAME" what both load. Constant data, for any thread. */
#ifndef SN_GATEWAY_PAGES_PAGES_H
#define SN_GATEWAY_PAGES_PAGES_H

#include <stddef.h>

typedef struct sn_page {
    const char *path, *type; /* type: Content-Type */
    const unsigned char *data;
    size_t len; /* bytes */
} sn_page;

/* The page of a path (without a query); NULL: there is none. */
const sn_page *sn_page_find(const char *path);

/* What a reply with a page must have: the browser then loads and runs nothing but these files, and shows them in no
 * other page. */
enum { SN_PAGE_HEADERS = 6 };
extern const struct sn_page_header {
    const char *name, *value;
} sn_page_headers[SN_PAGE_HEADERS];

#endif

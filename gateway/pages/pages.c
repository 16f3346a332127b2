#include "gateway/pages/pages.h"

#include <string.h>

/* Made by cmake/embed_pages.cmake. */
extern const sn_page sn_pages_embedded[];
extern const size_t sn_pages_embedded_count;

const struct sn_page_header sn_page_headers[SN_PAGE_HEADERS] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri "
     "'none'; "
     "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-cache"},
};

const sn_page *sn_page_find(const char *path) {
    for (size_t i = 0; i < sn_pages_embedded_count; i++)
        if (!strcmp(sn_pages_embedded[i].path, path)) return &sn_pages_embedded[i];
    return NULL;
}

/* Fetching over HTTP(S) with libcurl: small documents, what a server says of a file, and byte ranges of it, several at
 * once, tried again where that helps.
 *
 * Redirects are followed here and not by libcurl: the token goes to the endpoint's own host only, and what a hub says
 * of a file stands in the answer that redirects. Proxies come from libcurl's usual variables.
 *
 * Central type: sn_http, of one thread. Errors: SN_RETRY: the server could not be reached, is busy, or the call was
 * cancelled; SN_REFUSED: it refused (no such file, no access), or what it sent is not what it said; sentences name the
 * URL without its query, which may hold a signature. */
#ifndef SN_SHARING_HUB_HTTP_H
#define SN_SHARING_HUB_HTTP_H

#include "base/cancel.h"
#include "base/mem.h"
#include "sharing/hub/model_name.h"
#include "model/partial_file.h"

enum { SN_HTTP_TOKEN_SIZE = 512, SN_HTTP_COMMIT_SIZE = 64 };

typedef struct sn_http sn_http;

typedef struct sn_http_settings {
    char endpoint[SN_URL_SIZE];     /* the only host that gets the token: "https://..." without a slash at its end */
    char token[SN_HTTP_TOKEN_SIZE]; /* "": none */
    int64_t patience_ms;            /* with a server that is busy; 0: 60 s */
    int stall_s;                    /* a request that is slower than 512 bytes a second for this long fails; 0: 30 */
    const sn_cancel *cancel;        /* NULL: never */
} sn_http_settings;

sn_status sn_http_new(const sn_http_settings *settings, sn_http **out, sn_err *err) SN_MUST_USE;
void sn_http_free(sn_http **http); /* accepts NULL */

/* The document at a URL, at most `limit` bytes, appended to `out` with a NUL that its length does not count. */
sn_status sn_http_get(sn_http *http, const char *url, size_t limit, sn_buf *out, sn_err *err) SN_MUST_USE;

/* What a server says of a file. */
typedef struct sn_http_file {
    char url[SN_URL_SIZE];            /* that was asked */
    char location[SN_URL_SIZE];       /* where the bytes are; signed locations expire, and are asked for again */
    char etag[SN_ETAG_SIZE];          /* SHA-256 or git's SHA-1 at a hub, without quotes; else ETag or Last-Modified */
    char commit[SN_HTTP_COMMIT_SIZE]; /* of the revision, at a hub; else "" */
    uint64_t size;
} sn_http_file;
sn_status sn_http_describe(sn_http *http, const char *url, sn_http_file *out, sn_err *err) SN_MUST_USE;

/* Called with bytes [at, at + n) of the file, in any order. A failure ends the fetching. */
typedef sn_status (*sn_http_sink)(void *context, uint64_t at, const void *data, size_t n, sn_err *err);
/* Fetches ranges of a file, up to four at once. SN_REFUSED when the file's size or name of version has changed since it
 * was described. */
sn_status sn_http_fetch(sn_http *http, sn_http_file *file, const sn_range_set *ranges, sn_http_sink sink, void *context,
                        sn_err *err) SN_MUST_USE;

#endif

/* One request of sn_http, and how its answer is judged. */
#ifndef SN_SHARING_HUB_HTTP_PRIVATE_H
#define SN_SHARING_HUB_HTTP_PRIVATE_H

#include "sharing/hub/http.h"

#include <curl/curl.h>

struct sn_http {
    sn_http_settings settings;
};

/* The headers of an answer that count here. */
typedef struct sn_http_answer {
    long code;
    char location[SN_URL_SIZE], etag[SN_ETAG_SIZE], modified[SN_ETAG_SIZE], commit[SN_HTTP_COMMIT_SIZE];
    char linked_etag[SN_ETAG_SIZE];
    int64_t size, linked_size;           /* -1: not said */
    int64_t range_from, range_to, total; /* of Content-Range, range_to exclusive; -1: not said */
    int64_t retry_after_ms;              /* -1: not said */
    bool encoded;                        /* compressed, which was not asked for: `size` is not the file's */
} sn_http_answer;

/* A handle for a GET of `url`, whose headers go to *answer; *headers belongs to the caller. SN_STOP: out of memory. */
sn_status sn_http_prepare(const sn_http *http, const char *url, sn_http_answer *answer, CURL **out,
                          struct curl_slist **headers, sn_err *err) SN_MUST_USE;
/* A redirect's target: absolute, or on the host of `url`. SN_REFUSED: no URL, or one of another kind. */
sn_status sn_http_redirect(const char *url, const char *location, char out[SN_URL_SIZE], sn_err *err) SN_MUST_USE;
/* The failure of a request as a sentence; SN_RETRY where trying again may help. */
sn_status sn_http_fail(const sn_http *http, const char *url, CURLcode result, const sn_http_answer *answer,
                       sn_err *err);
/* How long to wait before the next try, of those that failed with SN_RETRY: as the server says, up to five minutes,
 * else ever longer within the caller's patience. Below 0: it is not tried again. A long pause is logged. tried: so
 * often. */
int64_t sn_http_pause_ms(const sn_http *http, const char *url, int tried, const sn_http_answer *answer);
/* curl_multi_perform, whose threads take no signals (base/thread.h): libcurl's resolver begins them. */
bool sn_http_perform(CURLM *multi, int *running) SN_MUST_USE;
/* "https://host/path": without query. */
const char *sn_http_show(const char *url, char out[SN_URL_SIZE]);

#endif

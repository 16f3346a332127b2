/* Headers are read by one callback, which keeps what counts here and forgets the rest, and what came before another
 * "HTTP/" line. A request is made once; request_patiently tries again while a server is busy, as long as it says and
 * patience lasts; the two public functions follow redirects over it. http_fetch.c has requests that run at once. */
#include "sharing/hub/http_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    REDIRECTS_MAX = 8,
    TRIES = 5,
    PATIENCE_MS = 60000,
    WAIT_MS = 100,     /* at a time */
    DOCUMENT_S = 1800, /* for a whole document, of 64 MiB at most */
    STALL_S = 30,      /* at fewer bytes a second than SLOW: four requests at once over a modem are faster */
    SLOW = 512,
    CONNECT_MS = 15000,
    BACK_OFF_MS = 500,            /* and twice as long with each try */
    PAUSE_MAX_MS = 300000,        /* that a server may ask for; a longer one is the user's to wait */
    PAUSE_SAID_MAX_S = 7 * 86400, /* more is as good as this */
    PAUSE_TOLD_MS = 3000
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static void init_curl(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

sn_status sn_http_new(const sn_http_settings *settings, sn_http **out, sn_err *err) {
    pthread_once(&curl_once, init_curl);
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->settings = *settings;
    if (!settings->patience_ms) (*out)->settings.patience_ms = PATIENCE_MS;
    return SN_OK;
}

void sn_http_free(sn_http **http) {
    free(*http);
    *http = NULL;
}

const char *sn_http_show(const char *url, char out[SN_URL_SIZE]) {
    snprintf(out, SN_URL_SIZE, "%.*s", (int)strcspn(url, "?#"), url);
    return out;
}

/* ---- headers ---- */

static bool header_is(const char *line, size_t len, const char *name, const char **value) {
    size_t n = strlen(name);
    if (len <= n || strncasecmp(line, name, n) || line[n] != ':') return false;
    *value = line + n + 1;
    return true;
}

/* The value between line and end without blanks, "W/" and quotes. Too long ones are left out: they name nothing. */
static void take_text(const char *value, const char *end, char *out, size_t size) {
    while (value < end && isspace((unsigned char)*value)) value++;
    while (end > value && isspace((unsigned char)end[-1])) end--;
    if (end - value > 2 && !strncmp(value, "W/", 2)) value += 2;
    if (end - value >= 2 && *value == '"' && end[-1] == '"') value++, end--;
    if ((size_t)(end - value) < size) snprintf(out, size, "%.*s", (int)(end - value), value);
}

static int64_t take_number(const char **at, const char *end) {
    int64_t n = 0;
    while (*at < end && isspace((unsigned char)**at)) ++*at;
    if (*at == end || !isdigit((unsigned char)**at)) return -1;
    for (; *at < end && isdigit((unsigned char)**at); ++*at) {
        if (n > (INT64_MAX - 9) / 10) return -1;
        n = n * 10 + (**at - '0');
    }
    return n;
}

/* "bytes 5-9/100" */
static void take_content_range(const char *value, const char *end, sn_http_answer *a) {
    while (value < end && !isdigit((unsigned char)*value)) value++;
    a->range_from = take_number(&value, end);
    if (value < end && *value == '-') value++;
    int64_t last = take_number(&value, end);
    a->range_to = last < 0 || last == INT64_MAX ? -1 : last + 1;
    if (value < end && *value == '/') value++;
    a->total = take_number(&value, end);
}

static void forget_answer(sn_http_answer *a) {
    *a = (sn_http_answer){
        .size = -1, .linked_size = -1, .range_from = -1, .range_to = -1, .total = -1, .retry_after_ms = -1};
}

static size_t on_header(char *line, size_t each, size_t n, void *context) {
    sn_http_answer *a = context;
    size_t len = each * n;
    const char *value, *end = line + len;
    if (len > 5 && !strncmp(line, "HTTP/", 5)) forget_answer(a); /* after "100 Continue", or a proxy's answer */
    if (header_is(line, len, "location", &value)) take_text(value, end, a->location, sizeof a->location);
    if (header_is(line, len, "etag", &value)) take_text(value, end, a->etag, sizeof a->etag);
    if (header_is(line, len, "last-modified", &value)) take_text(value, end, a->modified, sizeof a->modified);
    if (header_is(line, len, "x-linked-etag", &value)) take_text(value, end, a->linked_etag, sizeof a->linked_etag);
    if (header_is(line, len, "x-repo-commit", &value)) take_text(value, end, a->commit, sizeof a->commit);
    if (header_is(line, len, "content-length", &value)) a->size = take_number(&value, end);
    if (header_is(line, len, "x-linked-size", &value)) a->linked_size = take_number(&value, end);
    if (header_is(line, len, "content-range", &value)) take_content_range(value, end, a);
    if (header_is(line, len, "content-encoding", &value)) a->encoded = true;
    if (header_is(line, len, "retry-after", &value)) {
        int64_t seconds = take_number(&value, end); /* a date is taken as "not said" */
        a->retry_after_ms = seconds < 0 ? -1 : 1000 * (seconds < PAUSE_SAID_MAX_S ? seconds : PAUSE_SAID_MAX_S);
    }
    return len;
}

/* ---- requests ---- */

/* Whether the URL is on the endpoint's host (scheme and port, too): only it gets the token. */
static bool is_endpoint(const sn_http *http, const char *url) {
    size_t n = strlen(http->settings.endpoint);
    return n && !strncmp(url, http->settings.endpoint, n) && (url[n] == '/' || url[n] == '?' || !url[n]);
}

static int on_progress(void *context, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up) {
    (void)down_total, (void)down, (void)up_total, (void)up;
    return sn_is_cancelled(context);
}

sn_status sn_http_prepare(const sn_http *http, const char *url, sn_http_answer *answer, CURL **out,
                          struct curl_slist **headers, sn_err *err) {
    CURL *easy = curl_easy_init();
    *out = easy;
    *headers = NULL;
    if (!easy) return sn_fail(err, SN_STOP, "out of memory for a request");
    forget_answer(answer);
    if (*http->settings.token && is_endpoint(http, url)) {
        char line[SN_HTTP_TOKEN_SIZE + 32];
        snprintf(line, sizeof line, "Authorization: Bearer %s", http->settings.token);
        *headers = curl_slist_append(NULL, line);
        if (!*headers) return sn_fail(err, SN_STOP, "out of memory for a request");
    }
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "swarm-node/" SN_VERSION);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_ACCEPT_ENCODING, "identity"); /* what comes compressed all the same is decoded */
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, answer);
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, http->settings.cancel);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)(http->settings.stall_s ? http->settings.stall_s : STALL_S));
    return SN_OK;
}

sn_status sn_http_redirect(const char *url, const char *location, char out[SN_URL_SIZE], sn_err *err) {
    char shown[SN_URL_SIZE];
    char *absolute = NULL;
    CURLU *parts = curl_url();
    bool right =
        parts && !curl_url_set(parts, CURLUPART_URL, url, 0) && !curl_url_set(parts, CURLUPART_URL, location, 0) &&
        !curl_url_get(parts, CURLUPART_URL, &absolute, 0) && strlen(absolute) < SN_URL_SIZE &&
        (!strncmp(absolute, "https://", 8) || (!strncmp(url, "http://", 7) && !strncmp(absolute, "http://", 7)));
    if (right) snprintf(out, SN_URL_SIZE, "%s", absolute);
    curl_free(absolute);
    curl_url_cleanup(parts);
    if (right) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%s redirects to something that is not fetched from there",
                   sn_http_show(url, shown));
}

sn_status sn_http_fail(const sn_http *http, const char *url, CURLcode result, const sn_http_answer *a, sn_err *err) {
    char shown[SN_URL_SIZE];
    sn_http_show(url, shown);
    if (sn_is_cancelled(http->settings.cancel)) return sn_fail(err, SN_RETRY, "fetching %.200s was cancelled", shown);
    if (result == CURLE_OUT_OF_MEMORY) return sn_fail(err, SN_STOP, "out of memory while fetching %.200s", shown);
    bool lasting = result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_URL_MALFORMAT ||
                   result == CURLE_UNSUPPORTED_PROTOCOL;
    if (result)
        return sn_fail(err, lasting ? SN_REFUSED : SN_RETRY, "%.200s cannot be fetched: %s", shown,
                       curl_easy_strerror(result));
    if (a->code == 401 || a->code == 403)
        return sn_fail(err, SN_REFUSED,
                       "%.200s may not be fetched (%ld): give a token of an account that may (HF_TOKEN)", shown,
                       a->code);
    if (a->code == 404) return sn_fail(err, SN_REFUSED, "%.200s does not exist: check the name", shown);
    bool busy = a->code == 408 || a->code == 429 || a->code >= 500;
    if (!busy || a->retry_after_ms <= 0)
        return sn_fail(err, busy ? SN_RETRY : SN_REFUSED, "%.200s answers %ld", shown, a->code);
    sn_status status = sn_fail(err, SN_RETRY, "%.200s answers %ld, and asks for a pause: try again in %lld s", shown,
                               a->code, (long long)a->retry_after_ms / 1000);
    if (err) err->retry_after_ms = (int)a->retry_after_ms;
    return status;
}

int64_t sn_http_pause_ms(const sn_http *http, const char *url, int tried, const sn_http_answer *a) {
    char shown[SN_URL_SIZE];
    int64_t asked = a->retry_after_ms, own = (int64_t)BACK_OFF_MS << (tried - 1);
    if (asked < 0) return own > http->settings.patience_ms ? -1 : own;
    if (asked > PAUSE_MAX_MS) return -1;
    if (asked >= PAUSE_TOLD_MS)
        sn_log_rated(SN_LOG_WARN, "hub asks for a pause", "code=%ld url=%.200s text=fetching goes on in %lld s",
                     a->code, sn_http_show(url, shown), (long long)asked / 1000);
    return asked;
}

/* Waits before the next try. False: cancelled, or patience is out, which pauses that the server asked for do not use.
 */
static bool wait_for_retry(const sn_http *http, const char *url, int tried, const sn_http_answer *a,
                           int64_t *begin_us) {
    int64_t ms = sn_http_pause_ms(http, url, tried, a);
    if (a->retry_after_ms >= 0) *begin_us += 1000 * ms;
    if (ms < 0 || (a->retry_after_ms < 0 && (sn_now_us() - *begin_us) / 1000 + ms > http->settings.patience_ms))
        return false;
    for (int64_t end = sn_now_us() + ms * 1000; sn_now_us() < end;) {
        if (sn_is_cancelled(http->settings.cancel)) return false;
        sn_sleep_us(20000);
    }
    return true;
}

bool sn_http_perform(CURLM *multi, int *running) {
    sigset_t before;
    sn_thread_no_signals(&before);
    CURLMcode result = curl_multi_perform(multi, running);
    sn_thread_signals(&before);
    return !result;
}

static CURLcode perform(CURL *easy) {
    CURLM *multi = curl_multi_init();
    CURLcode result = CURLE_OUT_OF_MEMORY;
    int running = 1, left;
    if (multi && !curl_multi_add_handle(multi, easy)) {
        while (sn_http_perform(multi, &running) && running && !curl_multi_poll(multi, NULL, 0, WAIT_MS, NULL)) {}
        const CURLMsg *done = curl_multi_info_read(multi, &left);
        if (done) result = done->data.result;
        curl_multi_remove_handle(multi, easy);
    }
    curl_multi_cleanup(multi);
    return result;
}

typedef struct document {
    sn_buf *out;
    bool full;
} document;

static size_t on_document(char *data, size_t each, size_t n, void *context) {
    document *d = context;
    d->full = sn_buf_append(d->out, data, each * n, NULL) != SN_OK;
    return d->full ? 0 : each * n;
}

/* One request; *answer and what was read, even if the server refused. */
static sn_status request(sn_http *http, const char *url, bool head, sn_buf *body, sn_http_answer *answer, sn_err *err) {
    CURL *easy;
    struct curl_slist *headers;
    char shown[SN_URL_SIZE];
    document d = {.out = body};
    sn_status status = sn_http_prepare(http, url, answer, &easy, &headers, err);
    if (!status) {
        curl_easy_setopt(easy, CURLOPT_NOBODY, head ? 1L : 0L);
        curl_easy_setopt(easy, CURLOPT_TIMEOUT, (long)DOCUMENT_S);
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_document);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, &d);
        if (body) body->len = 0;
        CURLcode result = perform(easy);
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer->code);
        bool redirect = !result && answer->code >= 300 && answer->code < 400 && *answer->location;
        if (d.full)
            status = sn_fail(err, SN_REFUSED, "%.200s is longer than %zu bytes", sn_http_show(url, shown), body->limit);
        else if (result || (!redirect && answer->code != 200))
            status = sn_http_fail(http, url, result, answer, err);
    }
    curl_slist_free_all(headers);
    if (easy) curl_easy_cleanup(easy);
    return status;
}

static sn_status request_patiently(sn_http *http, const char *url, bool head, sn_buf *body, sn_http_answer *answer,
                                   sn_err *err) {
    int64_t begin = sn_now_us();
    for (int tried = 1;; tried++) {
        sn_status status = request(http, url, head, body, answer, err);
        if (status != SN_RETRY || tried == TRIES || !wait_for_retry(http, url, tried, answer, &begin)) return status;
    }
}

static bool is_redirect(const sn_http_answer *a) { return a->code >= 300 && a->code < 400; }

sn_status sn_http_get(sn_http *http, const char *url, size_t limit, sn_buf *out, sn_err *err) {
    char at[SN_URL_SIZE], shown[SN_URL_SIZE];
    sn_http_answer answer;
    snprintf(at, sizeof at, "%s", url);
    sn_buf_init(out, limit + 1);
    sn_status status = SN_OK;
    for (int i = 0; !status; i++) {
        status = request_patiently(http, at, false, out, &answer, err);
        if (status || !is_redirect(&answer)) break;
        if (i == REDIRECTS_MAX)
            status = sn_fail(err, SN_REFUSED, "%.200s redirects without end", sn_http_show(url, shown));
        if (!status) status = sn_http_redirect(at, answer.location, at, err);
    }
    if (!status) status = sn_buf_append(out, "", 1, err);
    if (!status) out->len--;
    if (status) sn_buf_fini(out);
    return status;
}

/* What a hub says of a file stands in the answer that redirects to the bytes, so the first answer that has it counts.
 */
static void collect(const sn_http_answer *a, sn_http_file *file) {
    const char *etag = *a->linked_etag ? a->linked_etag : is_redirect(a) ? "" : *a->etag ? a->etag : a->modified;
    int64_t size = a->linked_size >= 0 ? a->linked_size : is_redirect(a) ? -1 : a->size;
    if (!*file->commit) snprintf(file->commit, sizeof file->commit, "%s", a->commit);
    if (!*file->etag) snprintf(file->etag, sizeof file->etag, "%s", etag);
    if (!file->size && size > 0) file->size = (uint64_t)size;
}

sn_status sn_http_describe(sn_http *http, const char *url, sn_http_file *out, sn_err *err) {
    char shown[SN_URL_SIZE];
    sn_http_answer answer;
    *out = (sn_http_file){0};
    if (strlen(url) >= sizeof out->url) return sn_fail(err, SN_REFUSED, "the URL is too long");
    snprintf(out->url, sizeof out->url, "%s", url);
    snprintf(out->location, sizeof out->location, "%s", url);
    for (int i = 0;; i++) {
        sn_status status = request_patiently(http, out->location, true, NULL, &answer, err);
        if (status) return status;
        collect(&answer, out);
        if (!is_redirect(&answer)) break;
        if (i == REDIRECTS_MAX)
            return sn_fail(err, SN_REFUSED, "%.200s redirects without end", sn_http_show(url, shown));
        status = sn_http_redirect(out->location, answer.location, out->location, err);
        if (status) return status;
        if (out->size && *out->etag) break; /* the rest of the way is the bytes' */
    }
    if (out->size) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%.200s does not say its size, so it cannot be fetched in parts",
                   sn_http_show(url, shown));
}

/* Ranges of a file, up to four at once in one thread. A range is cut into pieces; a piece that breaks off continues
 * where it ended. As long as bytes arrive, there is patience: what is counted is tries in a row that brought too few.
 */
#include "sharing/hub/http_private.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    SLOTS = 4,
    PIECE = 32 << 20,
    ENOUGH = 1 << 16, /* bytes of a try that count as an answer: a server that trickles has no endless patience */
    TRIES = 6,
    REDIRECTS_MAX = 8,
    WAIT_MS = 100
};

struct fetching;

/* A piece of the file that is on its way. */
typedef struct slot {
    struct fetching *all;
    CURL *easy; /* NULL: no request runs */
    struct curl_slist *headers;
    sn_http_answer answer;
    uint64_t at, to; /* still missing; at == to: the slot is free */
    uint64_t skip;   /* bytes of an answer with the whole file that come before `at` */
    bool judged;     /* the answer's headers were looked at */
    int tried;       /* in a row that brought less than ENOUGH, or what was missing */
    uint64_t begun;  /* where the present try began */
    int64_t not_before_us;
    sn_status status; /* of the sink, or of an answer that cannot be right */
    sn_err err;
} slot;

typedef struct fetching {
    sn_http *http;
    sn_http_file *file;
    const sn_range_set *ranges;
    sn_http_sink sink;
    void *context;
    size_t range; /* the next piece begins at `at` of this range */
    uint64_t at;
    CURLM *multi;
    slot slots[SLOTS];
    bool located_again; /* the location was asked for again since bytes arrived */
    int redirects;      /* since bytes arrived */
} fetching;

/* Code 0: the connection ended before there was an answer, which is no word of the server's. */
static bool is_http_error(const slot *s) { return s->answer.code && s->answer.code != 200 && s->answer.code != 206; }

/* Looks at the headers before the first byte is used. */
static sn_status judge(slot *s) {
    const sn_http_answer *a = &s->answer;
    const sn_http_file *file = s->all->file;
    char shown[SN_URL_SIZE];
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->answer.code);
    if (is_http_error(s)) return SN_OK;
    bool partial = a->code == 206;
    int64_t total = partial ? a->total : a->encoded ? -1 : a->size;
    if (total >= 0 && (uint64_t)total != file->size)
        return sn_fail(&s->err, SN_REFUSED,
                       "%.200s has changed while it was fetched (%" PRId64 " bytes, %" PRIu64 " before): start again",
                       sn_http_show(file->url, shown), total, file->size);
    /* A hub's name for the file is not that of the store that has the bytes. */
    if (!*file->commit && *a->etag && *file->etag && strcmp(a->etag, file->etag))
        return sn_fail(&s->err, SN_REFUSED, "%.200s has changed while it was fetched: start again",
                       sn_http_show(file->url, shown));
    if (partial && (a->range_from < 0 || (uint64_t)a->range_from != s->at || a->range_to <= a->range_from))
        return sn_fail(&s->err, SN_REFUSED, "%.200s sends other bytes than were asked for",
                       sn_http_show(file->url, shown));
    s->skip = partial ? 0 : s->at; /* the server does not know ranges */
    return SN_OK;
}

static size_t on_bytes(char *data, size_t each, size_t n, void *context) {
    slot *s = context;
    size_t len = each * n, skip;
    if (!s->judged) s->status = judge(s);
    s->judged = true;
    if (s->status) return 0;
    if (is_http_error(s)) return 0;
    skip = s->skip < len ? (size_t)s->skip : len;
    s->skip -= skip;
    size_t bytes = sn_min_size(len - skip, s->to - s->at);
    if (bytes) s->status = s->all->sink(s->all->context, s->at, data + skip, bytes, &s->err);
    if (s->status) return 0;
    s->at += bytes;
    if (s->at - s->begun >= ENOUGH) s->tried = 0;
    if (bytes) s->all->located_again = false, s->all->redirects = 0;
    return s->at == s->to && skip + bytes < len ? 0 : len; /* enough: more is not read */
}

static void slot_stop(slot *s) {
    if (!s->easy) return;
    curl_multi_remove_handle(s->all->multi, s->easy);
    curl_easy_cleanup(s->easy);
    curl_slist_free_all(s->headers);
    s->easy = NULL;
    s->headers = NULL;
}

static sn_status slot_start(slot *s, sn_err *err) {
    char range[64];
    s->judged = false;
    s->skip = 0;
    s->begun = s->at;
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, s->at, s->to - 1);
    sn_status status = sn_http_prepare(s->all->http, s->all->file->location, &s->answer, &s->easy, &s->headers, err);
    if (status) return status;
    curl_easy_setopt(s->easy, CURLOPT_RANGE, range);
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    if (curl_multi_add_handle(s->all->multi, s->easy)) return sn_fail(err, SN_STOP, "out of memory for a request");
    return SN_OK;
}

/* Gives a free slot the next piece. False: there is none. */
static bool next_piece(fetching *f, slot *s) {
    if (f->range == f->ranges->n) return false;
    const sn_range *range = &f->ranges->ranges[f->range];
    s->at = f->at > range->from ? f->at : range->from;
    s->to = range->to - s->at > PIECE ? s->at + PIECE : range->to;
    s->tried = 0;
    s->not_before_us = 0;
    f->at = s->to;
    if (s->to == range->to) f->range++;
    return true;
}

/* A signed location has expired, or the place has moved: the first server is asked again, once until bytes arrive. */
static sn_status locate_again(fetching *f, sn_err *err) {
    sn_http_file now;
    char shown[SN_URL_SIZE];
    f->located_again = true;
    sn_status status = sn_http_describe(f->http, f->file->url, &now, err);
    if (status) return status;
    if (now.size != f->file->size || strcmp(now.etag, f->file->etag))
        return sn_fail(err, SN_REFUSED, "%.200s has changed while it was fetched: start again",
                       sn_http_show(f->file->url, shown));
    snprintf(f->file->location, sizeof f->file->location, "%s", now.location);
    return SN_OK;
}

/* What the end of a request means: the piece is complete, continues later, or the fetching fails. */
static sn_status slot_ended(slot *s, CURLcode result, sn_err *err) {
    fetching *f = s->all;
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->answer.code);
    slot_stop(s);
    if (s->status) {
        if (err) *err = s->err;
        return s->status;
    }
    if (s->at == s->to) return SN_OK;
    if (is_http_error(s)) result = CURLE_OK; /* on_bytes broke off the page that explains it */
    long code = s->answer.code;
    if (!result && code >= 300 && code < 400 && *s->answer.location && f->redirects++ < REDIRECTS_MAX)
        return sn_http_redirect(f->file->location, s->answer.location, f->file->location, err);
    if (!result && (code == 401 || code == 403 || code == 404) && !f->located_again &&
        strcmp(f->file->url, f->file->location))
        return locate_again(f, err);
    if (!result && !is_http_error(s)) result = CURLE_PARTIAL_FILE;
    sn_status status = sn_http_fail(f->http, f->file->location, result, &s->answer, err);
    if (status != SN_RETRY || ++s->tried == TRIES || sn_is_cancelled(f->http->settings.cancel)) return status;
    int64_t ms = sn_http_pause_ms(f->http, f->file->location, s->tried, &s->answer);
    if (ms < 0) return status;
    s->not_before_us = sn_now_us() + 1000 * ms;
    return SN_OK;
}

/* Starts what can start; *running: slots that have something to do. */
static sn_status start_slots(fetching *f, int *running, sn_err *err) {
    *running = 0;
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &f->slots[i];
        if (s->at == s->to && !next_piece(f, s)) continue;
        ++*running;
        if (s->easy || sn_now_us() < s->not_before_us) continue;
        sn_status status = slot_start(s, err);
        if (status) return status;
    }
    return SN_OK;
}

static sn_status end_slots(fetching *f, sn_err *err) {
    CURLMsg *msg;
    int left;
    sn_status status = SN_OK;
    while (!status && (msg = curl_multi_info_read(f->multi, &left))) {
        slot *s = NULL;
        if (msg->msg != CURLMSG_DONE) continue;
        CURLcode result = msg->data.result; /* msg ends with the handle */
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&s);
        status = slot_ended(s, result, err);
    }
    return status;
}

sn_status sn_http_fetch(sn_http *http, sn_http_file *file, const sn_range_set *ranges, sn_http_sink sink, void *context,
                        sn_err *err) {
    fetching f = {.http = http, .file = file, .ranges = ranges, .sink = sink, .context = context};
    int running = 0, handles;
    char shown[SN_URL_SIZE];
    sn_http_show(file->url, shown);
    for (int i = 0; i < SLOTS; i++) f.slots[i].all = &f;
    for (size_t i = 0; i < ranges->n; i++)
        if (ranges->ranges[i].to > file->size)
            return sn_fail(err, SN_REFUSED, "a range lies beyond the end of the file");
    f.multi = curl_multi_init();
    if (!f.multi) return sn_fail(err, SN_STOP, "out of memory for requests");
    sn_status status;
    while (!(status = start_slots(&f, &running, err)) && running) {
        if (sn_is_cancelled(http->settings.cancel)) {
            status = sn_fail(err, SN_RETRY, "fetching %.200s was cancelled", shown);
            break;
        }
        if (!sn_http_perform(f.multi, &handles) || curl_multi_poll(f.multi, NULL, 0, WAIT_MS, NULL)) {
            status = sn_fail(err, SN_STOP, "libcurl cannot go on with fetching %.200s", shown);
            break;
        }
        status = end_slots(&f, err);
        if (status) break;
    }
    for (int i = 0; i < SLOTS; i++) slot_stop(&f.slots[i]);
    curl_multi_cleanup(f.multi);
    return status;
}

/* One thread runs the requests of a round: it adds a handle for each client to a multi handle, and works until all have
 * ended. A request ends with its stream, with an error, or when no token came for the limit of silence, whatever else
 * the server sends. Handles live as long as the case, so that rounds use the same connections. */
#include "cli/bench/server.h"

#include "base/clock.h"
#include "base/random.h"
#include "cli/bench/stream.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 1 << 16, KEY_MAX = 4096, POLL_MS = 200, CHUNKS_PER_TOKEN_MAX = 8 };

typedef struct client {
    CURL *easy;
    json_t *body;
    char *text; /* of the body */
    sn_bench_stream stream;
    sn_buf refusal; /* the body of another answer than 200 */
    int64_t began_us;
    int64_t chunks_max;
    bool running;
    sn_status status;
    sn_err err;
} client;

typedef struct session {
    const sn_server_plan *plan;
    const sn_server_result *about;
    CURLM *multi;
    struct curl_slist *headers;
    char endpoint[640];
    client *clients;
    int n;
} session;

/* -- requests -- */

/* Words that most tokenizers know as one token each. */
static const char *const words[] = {
    "time",  "people", "water", "light", "house", "small", "world", "night",  "river", "stone", "green",  "paper",
    "music", "story",  "point", "plant", "money", "heart", "table", "field",  "voice", "power", "school", "family",
    "state", "place",  "group", "woman", "child", "book",  "case",  "system", "part",  "work",  "number", "week",
};

static char *prompt_of(const sn_server_plan *p, int client_index, int round) {
    uint64_t state = ((uint64_t)p->seed << 32) + (uint64_t)(round + 1) * 1000003 + (uint64_t)client_index;
    size_t n_words = sizeof words / sizeof *words, size = (size_t)p->prompt_words * 8 + 1, at = 0;
    char *text = malloc(size);
    for (int i = 0; text && i < p->prompt_words; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? " " : "", words[sn_rng_next(&state) % n_words]);
    return text;
}

static char *make_body(const session *s, int client_index, int round) {
    const sn_server_plan *p = s->plan;
    char *prompt = prompt_of(p, client_index, round);
    json_t *o = json_pack("{s:s,s:b,s:{s:b},s:i,s:f,s:b}", "model", s->about->model, "stream", 1, "stream_options",
                          "include_usage", 1, "max_tokens", p->new_tokens, "temperature", 0.0, "ignore_eos", 1);
    if (p->chat)
        json_object_set_new(o, "messages", json_pack("[{s:s,s:s}]", "role", "user", "content", prompt));
    else
        json_object_set_new(o, "prompt", json_string(prompt));
    char *text = prompt && o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    free(prompt);
    return text;
}

static size_t take_bytes(char *bytes, size_t size, size_t n, void *ctx) {
    client *c = ctx;
    long code = 0;
    (void)size; /* 1 */
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200) {
        size_t room = BODY_MAX - c->refusal.len;
        c->status = sn_buf_append(&c->refusal, bytes, n < room ? n : room, &c->err);
    } else {
        c->status = sn_bench_stream_feed(&c->stream, bytes, n, sn_now_us(), &c->err);
        if (!c->status && c->stream.chunks > c->chunks_max)
            c->status = sn_fail(&c->err, SN_REFUSED, "the server sends more tokens than the %d that were asked for",
                                (int)(c->chunks_max / CHUNKS_PER_TOKEN_MAX));
    }
    return c->status ? 0 : n;
}

static sn_status begin_request(session *s, int i, int round, sn_err *err) {
    client *c = &s->clients[i];
    sn_bench_stream_fini(&c->stream);
    sn_bench_stream_init(&c->stream);
    c->refusal.len = 0;
    c->status = SN_OK;
    free(c->text);
    c->text = make_body(s, i, round);
    if (!c->text) return sn_fail(err, SN_STOP, "out of memory for a request");
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(c->text));
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, c->text);
    c->began_us = sn_now_us();
    c->running = true;
    if (curl_multi_add_handle(s->multi, c->easy)) return sn_fail(err, SN_STOP, "libcurl cannot begin a request");
    return SN_OK;
}

/* What a request that libcurl has ended means. */
static void end_request(session *s, client *c, CURLcode result) {
    long code = 0;
    char text[256];
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &code);
    curl_multi_remove_handle(s->multi, c->easy);
    c->running = false;
    if (c->status) return;
    if (result)
        c->status = sn_fail(&c->err, SN_RETRY, "%s: %s", s->endpoint, curl_easy_strerror(result));
    else if (code != 200) {
        sn_bench_stream_error((const char *)c->refusal.data, c->refusal.len, text, sizeof text);
        c->status = sn_fail(&c->err, SN_RETRY, "%s answered with status %ld: %s", s->endpoint, code, text);
    } else if (!c->stream.done)
        c->status = sn_fail(&c->err, SN_RETRY, "%s ended a stream without [DONE]", s->endpoint);
    else if (!c->stream.chunks)
        c->status = sn_fail(&c->err, SN_RETRY, "%s ended a stream that holds no text", s->endpoint);
}

static void end_silent_requests(session *s) {
    for (int i = 0; i < s->n; i++) {
        client *c = &s->clients[i];
        int64_t heard_us = c->stream.last_us ? c->stream.last_us : c->began_us;
        if (!c->running || sn_now_us() - heard_us < (int64_t)s->plan->timeout_ms * 1000) continue;
        c->status =
            sn_fail(&c->err, SN_RETRY, "%s sent no token for %g seconds", s->endpoint, s->plan->timeout_ms / 1000.0);
        end_request(s, c, CURLE_OPERATION_TIMEDOUT);
    }
}

static client *client_of(session *s, const CURL *easy) {
    for (int i = 0; i < s->n; i++)
        if (s->clients[i].easy == easy) return &s->clients[i];
    return NULL;
}

/* A request of every client; returns when all have ended. */
static sn_status run_round(session *s, int round, sn_err *err) {
    sn_status status = SN_OK;
    int running = 0, left;
    for (int i = 0; i < s->n && !status; i++) {
        status = begin_request(s, i, round, err);
        running += !status;
    }
    while (running && !status) {
        if (curl_multi_perform(s->multi, &left)) return sn_fail(err, SN_STOP, "libcurl cannot go on");
        for (CURLMsg *m; (m = curl_multi_info_read(s->multi, &left));)
            if (m->msg == CURLMSG_DONE) end_request(s, client_of(s, m->easy_handle), m->data.result);
        end_silent_requests(s);
        running = 0;
        for (int i = 0; i < s->n; i++) running += s->clients[i].running;
        if (sn_interrupted) status = sn_fail(err, SN_RETRY, "interrupted");
        if (running && !status) curl_multi_poll(s->multi, NULL, 0, POLL_MS, NULL);
    }
    return status;
}

/* -- a case -- */

static void add_round(const session *s, sn_server_row *row, double *tok_s) {
    int64_t first = INT64_MAX, last = 0, tokens = 0;
    for (int i = 0; i < s->n; i++) {
        const client *c = &s->clients[i];
        if (c->status && !row->errors++) row->error = c->err;
        if (c->status) continue;
        const sn_bench_stream *t = &c->stream;
        int64_t answer = t->answer_tokens > 0 ? t->answer_tokens : t->chunks;
        first = c->began_us < first ? c->began_us : first;
        last = t->last_us > last ? t->last_us : last;
        tokens += answer;
        row->first_ms[row->n_first] = (double)(t->first_us - c->began_us) / 1000;
        row->between_ms[row->n_first++] =
            answer > 1 ? (double)(t->last_us - t->first_us) / 1000 / (double)(answer - 1) : 0;
        row->answer_tokens += answer;
        row->prompt_tokens =
            t->prompt_tokens < 0 || row->prompt_tokens < 0 ? -1 : row->prompt_tokens + t->prompt_tokens;
    }
    *tok_s = last > first ? (double)tokens * 1e6 / (double)(last - first) : 0;
}

static void close_clients(session *s) {
    for (int i = 0; i < s->n; i++) {
        client *c = &s->clients[i];
        if (c->running) curl_multi_remove_handle(s->multi, c->easy);
        curl_easy_cleanup(c->easy);
        sn_bench_stream_fini(&c->stream);
        sn_buf_fini(&c->refusal);
        free(c->text);
    }
    free(s->clients);
    s->clients = NULL;
    s->n = 0;
}

/* What every request of a handle has. Proxies of the environment are left out: the server itself is measured. */
static void set_common(CURL *easy, const session *s) {
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, s->headers);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)s->plan->timeout_ms);
}

static sn_status open_clients(session *s, int n, sn_err *err) {
    sn_status status = sn_calloc(&s->clients, (size_t)n, sizeof *s->clients, err);
    for (int i = 0; i < n && !status; i++, s->n++) {
        client *c = &s->clients[i];
        sn_bench_stream_init(&c->stream);
        sn_buf_init(&c->refusal, BODY_MAX);
        c->chunks_max = (int64_t)s->plan->new_tokens * CHUNKS_PER_TOKEN_MAX;
        c->easy = curl_easy_init();
        if (!c->easy) return sn_fail(err, SN_STOP, "libcurl cannot make a handle");
        set_common(c->easy, s);
        curl_easy_setopt(c->easy, CURLOPT_URL, s->endpoint);
        curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, take_bytes);
        curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    }
    return status;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static sn_status measure_case(session *s, sn_server_row *row, sn_progress_bar *bar, sn_err *err) {
    const sn_server_plan *p = s->plan;
    size_t most = (size_t)row->clients * (size_t)p->repeat;
    double *tok_s = NULL;
    sn_status status = sn_calloc(&row->first_ms, most, sizeof(double), err);
    if (!status) status = sn_calloc(&row->between_ms, most, sizeof(double), err);
    if (!status) status = sn_calloc(&tok_s, (size_t)p->repeat, sizeof(double), err);
    if (!status) status = open_clients(s, row->clients, err);
    for (int i = -p->warmup; i < p->repeat && !status; i++) {
        sn_progress_bar_set(bar, (size_t)(i + p->warmup), (size_t)(p->repeat + p->warmup));
        status = run_round(s, (i + p->warmup) * SN_INTS_MAX + (int)(row - s->about->rows), err);
        if (!status && i >= 0) add_round(s, row, &tok_s[i]);
    }
    close_clients(s);
    if (!status && !row->n_first) {
        *err = row->error;
        status = row->error.status;
    }
    qsort(row->first_ms, row->n_first, sizeof(double), compare_doubles);
    qsort(row->between_ms, row->n_first, sizeof(double), compare_doubles);
    if (!status) row->tok_s = sn_bench_spread_of(tok_s, (size_t)p->repeat);
    free(tok_s);
    return status;
}

/* -- the server -- */

static sn_status find_base(const char *url, char *out, size_t size, sn_err *err) {
    CURLU *parsed = curl_url();
    char *scheme = NULL, *query = NULL;
    bool right = parsed && !curl_url_set(parsed, CURLUPART_URL, url, 0) &&
                 !curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) &&
                 (!strcmp(scheme, "http") || !strcmp(scheme, "https")) &&
                 curl_url_get(parsed, CURLUPART_QUERY, &query, 0) == CURLUE_NO_QUERY;
    curl_free(scheme);
    curl_free(query);
    curl_url_cleanup(parsed);
    size_t n = strlen(url);
    while (n && url[n - 1] == '/') n--;
    bool versioned = n > 3 && !memcmp(url + n - 3, "/v1", 3);
    if (!right || n + 4 > size)
        return sn_fail(err, SN_REFUSED, "--server %.200s is not the address of a server, as in http://127.0.0.1:8080",
                       url);
    snprintf(out, size, "%.*s%s", (int)n, url, versioned ? "" : "/v1");
    return SN_OK;
}

static sn_status add_header(session *s, const char *line, sn_err *err) {
    struct curl_slist *more = curl_slist_append(s->headers, line);
    if (more) s->headers = more;
    return more ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a header");
}

static sn_status add_key(session *s, sn_err *err) {
    sn_buf key;
    char line[KEY_MAX + 32];
    sn_status status = sn_read_input(s->plan->api_key_file, KEY_MAX, &key, err);
    if (!status) {
        size_t n = 0;
        while (n < key.len && key.data[n] > ' ') n++;
        snprintf(line, sizeof line, "Authorization: Bearer %.*s", (int)n, n ? (const char *)key.data : "");
        status = add_header(s, line, err);
    }
    sn_buf_fini(&key);
    return status;
}

static size_t take_models(char *bytes, size_t size, size_t n, void *ctx) {
    sn_err err;
    (void)size;
    return sn_buf_append(ctx, bytes, n, &err) ? 0 : n;
}

/* The name of the first model that the server lists. */
static sn_status find_model(const session *s, const char *base, char *out, size_t size, sn_err *err) {
    char url[640], text[256];
    long code = 0;
    sn_buf body;
    CURL *easy = curl_easy_init();
    sn_buf_init(&body, BODY_MAX);
    snprintf(url, sizeof url, "%s/models", base);
    if (!easy) return sn_fail(err, SN_STOP, "libcurl cannot make a handle");
    set_common(easy, s);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)s->plan->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_models);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
    CURLcode result = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(easy);
    json_t *o = result || !body.len ? NULL : json_loadb((const char *)body.data, body.len, 0, NULL);
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    sn_status status = SN_OK;
    if (result)
        status = sn_fail(err, SN_RETRY, "%s: %s", url, curl_easy_strerror(result));
    else if (code != 200) {
        sn_bench_stream_error((const char *)body.data, body.len, text, sizeof text);
        status = sn_fail(err, SN_RETRY, "%s answered with status %ld: %s", url, code, text);
    } else if (!id || strlen(id) >= size)
        status = sn_fail(err, SN_REFUSED, "%s lists no model: is it a server of the OpenAI API?", url);
    else
        memcpy(out, id, strlen(id) + 1);
    json_decref(o);
    sn_buf_fini(&body);
    return status;
}

static sn_status measure(session *s, sn_server_result *out, sn_err *err) {
    const sn_server_plan *p = s->plan;
    sn_status status = add_header(s, "Content-Type: application/json", err);
    if (!status && p->api_key_file) status = add_key(s, err);
    if (!status) status = find_model(s, out->base, out->model, sizeof out->model, err);
    snprintf(s->endpoint, sizeof s->endpoint, "%s/%s", out->base, p->chat ? "chat/completions" : "completions");
    for (size_t i = 0; i < p->clients.n && !status; i++) {
        char what[64];
        out->rows[i].clients = (int)p->clients.items[i];
        snprintf(what, sizeof what, "%d clients", out->rows[i].clients);
        sn_progress_bar *bar = sn_progress_bar_begin(what);
        sn_progress_bar_unit(bar, "repeats");
        status = measure_case(s, &out->rows[i], bar, err);
        sn_progress_bar_end(&bar);
        out->n = i + !status;
    }
    return status;
}

sn_status sn_server_measure(const sn_server_plan *plan, sn_server_result *out, sn_err *err) {
    session s = {.plan = plan, .about = out};
    *out = (sn_server_result){0};
    sn_status status = find_base(plan->url, out->base, sizeof out->base, err);
    if (status) return status;
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) return sn_fail(err, SN_STOP, "libcurl cannot begin");
    s.multi = curl_multi_init();
    status = s.multi ? measure(&s, out, err) : sn_fail(err, SN_STOP, "libcurl cannot begin");
    curl_multi_cleanup(s.multi);
    curl_slist_free_all(s.headers);
    curl_global_cleanup();
    return status;
}

void sn_server_result_fini(sn_server_result *result) {
    for (size_t i = 0; i < SN_INTS_MAX; i++) {
        free(result->rows[i].first_ms);
        free(result->rows[i].between_ms);
    }
}

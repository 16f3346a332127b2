/* What a stranger takes of the HTTP server: places, time, memory and processors. */
#include "base/clock.h"
#include "client/api/api_private.h"    /* private: a connection without a swarm */
#include "gateway/http/http_private.h" /* private: the processors of a server */
#include "tests/support/api_fixture.h"
#include "tests/support/require.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(http_door, .timeout = 120);
TestSuite(http_load, .timeout = 120);
TestSuite(http_server, .timeout = 120);

/* Whether the other end is closed within this time. */
static bool ends(int fd, int ms) {
    char rest[4096];
    for (const int64_t until_us = sn_now_us() + ms * 1000LL; sn_now_us() < until_us;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (poll(&readable, 1, 20) > 0 && recv(fd, rest, sizeof rest, 0) <= 0) return true;
    }
    return false;
}

/* -- the door -- */

enum { PLACES = 4 };

typedef struct visit {
    int ends[2];
    sn_guest *guest;
} visit;

static visit come(sn_door *door) {
    visit v;
    cr_assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, v.ends));
    v.guest = sn_door_enter(door, v.ends[0]);
    cr_assert(v.guest);
    return v;
}

static void go(sn_door *door, visit *v) {
    sn_door_leave(door, v->guest);
    close(v->ends[0]);
    close(v->ends[1]);
}

Test(http_door, who_is_late_is_shut_out) {
    sn_door *door;
    REQUIRE(sn_door_new(PLACES, &door, &err));
    visit late = come(door), patient = come(door), renewed = come(door);
    sn_door_allow(door, late.guest, 100, 100);
    sn_door_allow(door, patient.guest, 0, 0);
    sn_door_allow(door, renewed.guest, 100, 100);
    sn_door_allow(door, renewed.guest, 60000, 60000);
    cr_expect(ends(late.ends[1], 10000));
    cr_expect(!ends(patient.ends[1], 500) && !ends(renewed.ends[1], 20));
    go(door, &patient);
    go(door, &late);
    go(door, &renewed);
    sn_door_free(&door);
}

Test(http_door, a_crowd_has_less_time) {
    sn_door *door;
    visit v[PLACES];
    REQUIRE(sn_door_new(PLACES, &door, &err));
    v[0] = come(door);
    sn_door_allow(door, v[0].guest, 60000, 100);
    cr_expect_not(ends(v[0].ends[1], 600));
    for (int i = 1; i < PLACES; i++) v[i] = come(door);
    cr_expect(ends(v[0].ends[1], 10000));
    for (int i = 0; i < PLACES; i++) go(door, &v[i]);
    sn_door_free(&door);
}

/* -- memory and processors -- */

Test(http_load, an_owner_has_a_share_and_small_requests_always_fit) {
    static sn_load load;
    sn_load_init(&load);
    sn_taken one = {.owner = 1}, more = {.owner = 1}, other = {.owner = 2}, third = {.owner = 3};
    cr_expect_not(sn_load_take(&load, &one, SN_LOAD_SHARE_MAX + 1));
    cr_expect_not(sn_load_take(&load, &one, SIZE_MAX));
    cr_assert(sn_load_take(&load, &one, SN_LOAD_SHARE_MAX));
    cr_expect_not(sn_load_take(&load, &more, SN_LOAD_SMALL + 1));
    cr_expect(sn_load_take(&load, &more, SN_LOAD_SMALL));
    cr_assert(sn_load_take(&load, &other, SN_LOAD_SHARE_MAX), "another owner's share is free");
    cr_expect_not(sn_load_take(&load, &third, SN_LOAD_SMALL + 1), "all is taken");
    cr_expect(sn_load_take(&load, &third, SN_LOAD_SMALL));
    sn_load_give_back(&load, &other);
    sn_load_give_back(&load, &other);
    cr_assert(sn_load_take(&load, &third, SN_LOAD_SMALL + 1));
    cr_assert(sn_load_take(&load, &one, SN_LOAD_SMALL + 1), "a part may become less");
    cr_expect(sn_load_take(&load, &more, SN_LOAD_SHARE_MAX - SN_LOAD_SMALL - 1));
    sn_load_give_back(&load, &one);
    sn_load_give_back(&load, &more);
    sn_load_give_back(&load, &third);
    cr_expect(!load.bytes && !load.n_owners);
    sn_load_fini(&load);
}

static bool stays(const void *ctx) { return ctx != NULL; }

Test(http_load, as_many_requests_are_prepared_as_there_are_processors) {
    static sn_load load;
    sn_load_init(&load);
    const size_t most = load.preparing_max;
    for (size_t i = 0; i < most; i++) cr_assert(sn_load_begin(&load, i, 0, stays, NULL));
    cr_expect_not(sn_load_begin(&load, 0, 300, stays, NULL));
    cr_expect_not(sn_load_begin(&load, 0, 60000, stays, &load), "its client has left");
    cr_expect_eq(load.waiting, 0);
    sn_load_end(&load);
    cr_expect(sn_load_begin(&load, 0, 0, stays, NULL));
    sn_load_fini(&load);
}

static sn_load crowd;
static atomic_int served;

typedef struct request {
    uint64_t owner;
    int place; /* among those that are served */
    pthread_t thread;
} request;

static void *prepare(void *ctx) {
    request *r = ctx;
    cr_assert(sn_load_begin(&crowd, r->owner, 60000, stays, NULL));
    r->place = atomic_fetch_add(&served, 1);
    sn_load_end(&crowd);
    return NULL;
}

static size_t waiting(void) {
    pthread_mutex_lock(&crowd.lock);
    const size_t n = crowd.waiting;
    pthread_mutex_unlock(&crowd.lock);
    return n;
}

Test(http_load, owners_get_processors_in_turn) {
    enum { MANY = 8, N = MANY + 2 };
    request requests[N];
    sn_load_init(&crowd);
    crowd.preparing_max = 1;
    cr_assert(sn_load_begin(&crowd, 1, 0, stays, NULL));
    for (size_t i = 0; i < N; i++) {
        requests[i] = (request){.owner = i < MANY ? 1 : i};
        cr_assert(!pthread_create(&requests[i].thread, NULL, prepare, &requests[i]));
        while (waiting() <= i) sn_sleep_us(1000);
    }
    const int64_t now_us = sn_now_us(), hour_us = 3600000000;
    cr_expect(sn_load_is_wanted(&crowd, 1, now_us - hour_us));
    cr_expect_not(sn_load_is_wanted(&crowd, 1, now_us + hour_us), "it has it for no time yet");
    sn_load_end(&crowd);
    for (size_t i = 0; i < N; i++) pthread_join(requests[i].thread, NULL);
    cr_expect_eq(requests[0].place, 0);
    cr_expect_eq(requests[MANY].place, 1);
    cr_expect_eq(requests[MANY + 1].place, 2);
    for (int i = 1; i < MANY; i++) cr_expect_eq(requests[i].place, 2 + i);
    sn_load_fini(&crowd);
}

/* -- a server -- */

static char *folder;
static swarm_model *model;
static swarm_connection *connection;
static sn_server_queue *queue;
static sn_server *server;

static sn_status open_no_link(void *ctx, sn_link **out, sn_err *err) {
    (void)ctx, (void)out;
    return sn_fail(err, SN_RETRY, "there is no swarm");
}

static void start_server_for(int64_t headers_ms, int64_t body_ms, int64_t read_ms) {
    static const char *const proxies[] = {"127.0.0.1"};
    folder = api_folder();
    model = api_model(folder);
    REQUIRE(sn_connection_new(NULL, NULL, &connection, &err));
    connection->open_link = open_no_link;
    const sn_server_queue_options jobs = {.model = model, .sessions_max = 1, .queue_max = 2, .idle_ms = 60000};
    REQUIRE(sn_server_queue_new(&jobs, &queue, &err));
    const sn_server_options options = {.model = model,
                                       .connection = connection,
                                       .queue = queue,
                                       .model_name = "tiny",
                                       .context = 96,
                                       .choices_max = 3,
                                       .host = "127.0.0.1",
                                       .access = {.proxies = proxies, .n_proxies = 1},
                                       .headers_ms = headers_ms,
                                       .body_ms = body_ms,
                                       .read_ms = read_ms};
    REQUIRE(sn_server_new(&options, &server, &err));
}

static void start_server(int64_t headers_ms) { start_server_for(headers_ms, 0, 0); }

static void stop_server(void) {
    sn_server_free(&server);
    sn_server_queue_free(&queue);
    swarm_disconnect(connection);
    swarm_model_close(model);
    api_folder_remove(&folder);
}

static int dial(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)sn_server_port(server))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

static void say(int fd, const char *text) { (void)!send(fd, text, strlen(text), MSG_NOSIGNAL); }

/* Reads a reply until `word` has come. */
static bool hear(int fd, const char *word) {
    char text[16384] = "";
    for (size_t n = 0; !strstr(text, word) && n < sizeof text - 1;) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        text[n] = 0;
    }
    return true;
}

/* Whether the connection ends within ten seconds while a byte comes every 50 ms. */
static bool ends_while_bytes_come(int fd) {
    enum { TURNS = 200 };
    for (int i = 0; i < TURNS; i++) {
        say(fd, "a");
        if (ends(fd, 50)) return true;
    }
    return false;
}

#define ASK "GET /health HTTP/1.1\r\nHost: localhost\r\n"

Test(http_server, headers_that_come_byte_by_byte_end_with_their_connection) {
    enum { LIMIT_MS = 1000 };
    start_server(LIMIT_MS);
    int slow = dial(), other = dial();
    say(slow, ASK "x-slow: ");
    say(other, ASK "\r\n");
    cr_expect(hear(other, "\"ok\""));
    cr_expect(ends_while_bytes_come(slow));
    close(slow);
    close(other);
    stop_server();
}

Test(http_server, a_connection_has_its_time_again_after_each_reply) {
    enum { LIMIT_MS = 2000, TURN_US = 500000, TURNS = 8 };
    start_server(LIMIT_MS);
    int fd = dial();
    for (int i = 0; i < TURNS; i++) {
        say(fd, ASK "\r\n");
        cr_assert(hear(fd, "\"ok\""), "turn %d", i);
        sn_sleep_us(TURN_US);
    }
    close(fd);
    stop_server();
}

Test(http_server, headers_of_a_further_request_have_a_limit_as_well) {
    enum { LIMIT_MS = 1000 };
    start_server(LIMIT_MS);
    int fd = dial();
    say(fd, ASK "\r\n");
    cr_expect(hear(fd, "\"ok\""));
    say(fd, ASK "x-slow: ");
    cr_expect(ends_while_bytes_come(fd));
    close(fd);
    stop_server();
}

Test(http_server, a_body_that_comes_byte_by_byte_ends_with_its_connection) {
    enum { LIMIT_MS = 500 };
    start_server_for(0, LIMIT_MS, 0);
    int fd = dial();
    say(fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    cr_expect(ends_while_bytes_come(fd));
    close(fd);
    stop_server();
}

static void post(int fd, const char *path, const char *body) {
    char head[200];
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", path,
             strlen(body));
    say(fd, head);
    say(fd, body);
}

/* Everything that comes until the connection ends, or nothing has come for ten seconds. */
static char *hear_all(int fd) {
    enum { ROOM = 16384, QUIET_MS = 10000 };
    static char text[ROOM];
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    size_t n = 0;
    for (ssize_t got; n < ROOM - 1 && poll(&readable, 1, QUIET_MS) > 0; n += (size_t)got)
        if ((got = recv(fd, text + n, ROOM - 1 - n, 0)) <= 0) break;
    text[n] = 0;
    return text;
}

/* What a proxy takes for a body would be a further request. */
Test(http_server, a_body_whose_end_is_not_clear_is_refused_with_its_connection) {
    static const char *const heads[] = {
        "Content-Length: 2\r\nContent-Length: 48\r\n\r\n{}",
        "Content-Length : 46\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 51\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    };
    start_server(0);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        int fd = dial();
        say(fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n");
        say(fd, heads[i]);
        say(fd, ASK "\r\n");
        const char *text = hear_all(fd);
        cr_expect(!strncmp(text, "HTTP/1.1 400", 12), "%s%s", heads[i], text); /* by libmicrohttpd, where it is new */
        cr_expect_not(strstr(text, "\"ok\""), "%s%s", heads[i], text);
        close(fd);
    }
    int fd = dial();
    say(fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" ASK
            "\r\n");
    cr_expect(hear(fd, "\"ok\""), "one that is clear has a next request behind it");
    close(fd);
    stop_server();
}

/* Computed in this process. */
Test(http_server, answers_come_when_their_bodies_are_gone) {
    start_server(0);
    for (int stream = 0; stream < 2; stream++) {
        int fd = dial();
        post(fd, "/v1/completions",
             stream ? "{\"prompt\":[5,6,7,8],\"max_tokens\":2,\"stream\":true}"
                    : "{\"prompt\":[5,6,7,8],\"max_tokens\":2}");
        cr_expect(hear(fd, stream ? "[DONE]" : "\"usage\""));
        close(fd);
    }
    stop_server();
}

/* Where nodes are silent a status takes seconds, and a page asks for one after the other. */
Test(http_server, a_session_is_opened_while_the_swarm_is_asked, .timeout = 20) {
    sn_link *link = NULL;
    sn_err err;
    start_server(0);
    pthread_mutex_lock(&connection->lock);
    cr_expect_eq(sn_connection_give_link(connection, &link, &err), SN_RETRY, "it makes its own link");
    pthread_mutex_unlock(&connection->lock);
    stop_server();
}

/* Sends so much of a body, which was announced as one byte longer. */
static void send_most_with(int fd, size_t n, const char *headers) {
    char head[300];
    char *body = malloc(n);
    memset(body, ' ', n);
    snprintf(head, sizeof head, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n", headers,
             n + 1);
    say(fd, head);
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(fd, body + at, n - at, MSG_NOSIGNAL);
        cr_assert_gt(sent, 0);
        at += (size_t)sent;
    }
    free(body);
}

static void send_most(int fd, size_t n) { send_most_with(fd, n, ""); }

static size_t metric(const char *name) {
    char text[16384] = "", line[64];
    size_t n = 0, value = SIZE_MAX;
    int fd = dial();
    say(fd, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    for (ssize_t got; (got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0;) n += (size_t)got;
    close(fd);
    snprintf(line, sizeof line, "\nswarm_serve_%s ", name);
    const char *at = strstr(text, line);
    cr_assert(at && sscanf(at + strlen(line), "%zu", &value) == 1, "%s", text);
    return value;
}

static size_t counted(void) { return metric("held_bytes"); }

static bool becomes(size_t bytes) {
    for (int i = 0; i < 500 && counted() != bytes; i++) sn_sleep_us(10000);
    return counted() == bytes;
}

Test(http_server, a_body_counts_until_it_is_answered_or_left) {
    enum { LARGE = 2 << 20 };
    start_server(0);
    int first = dial(), second = dial();
    send_most(first, LARGE);
    cr_expect(becomes(LARGE), "%zu", counted());
    send_most(second, LARGE);
    cr_expect(becomes(2 * (size_t)LARGE), "%zu", counted());
    say(first, "x");
    cr_expect(hear(first, "400"));
    cr_expect(becomes(LARGE), "%zu", counted());
    close(second);
    cr_expect(becomes(0), "%zu", counted());
    close(first);
    stop_server();
}

/* Whose memory the server counts first. */
static uint64_t first_owner(void) {
    pthread_mutex_lock(&server->load.lock);
    const uint64_t owner = server->load.n_owners ? server->load.owners[0].owner : 0;
    pthread_mutex_unlock(&server->load.lock);
    return owner;
}

/* The client behind a proxy writes what it likes, and some proxies add a header of their own behind it. */
Test(http_server, the_last_forwarded_address_of_the_last_header_counts) {
    enum { LARGE = 2 << 20 };
    const struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    start_server(0);
    int fd = dial();
    send_most_with(fd, LARGE, "X-Forwarded-For: 10.0.0.1, 10.0.0.2\r\nX-Forwarded-For: 10.0.0.3, 10.0.0.4\r\n");
    cr_expect(becomes(LARGE), "%zu", counted());
    cr_expect_eq(first_owner(),
                 sn_access_owner(&server->options.access, (const struct sockaddr *)&from, NULL, "10.0.0.4"));
    close(fd);
    stop_server();
}

/* A connection whose kernels hold some ten thousand bytes that are not read, and no more. */
static int dial_narrow(void) {
    enum { SEGMENT = 536, ROOM = 4096 };
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)sn_server_port(server))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), segment = SEGMENT, room = ROOM;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert(!setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment));
    cr_assert(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room));
    cr_assert(!connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

/* Its client reads nothing, so that its connection asks for no more bytes. One on which nothing moves is closed after
 * half a minute by other means. */
static void expect_limit_of_reading(bool stream) {
    enum { LIMIT_MS = 500, TURNS = 200, TURN_US = 100000 };
    char body[200];
    start_server_for(0, 0, LIMIT_MS);
    int fd = dial_narrow();
    snprintf(body, sizeof body,
             "{\"prompt\":[5],\"max_tokens\":90,\"n\":3,\"logprobs\":20,\"ignore_eos\":true,\"stream\":%s}",
             stream ? "true" : "false");
    post(fd, "/v1/completions", body);
    int turn = 0;
    while (turn++ < TURNS && !metric("cancelled_total")) sn_sleep_us(TURN_US);
    cr_expect_eq(metric("cancelled_total"), 1);
    cr_expect_eq(metric("generated_tokens_total"), 270, "it was whole");
    close(fd);
    stop_server();
}

Test(http_server, a_finished_stream_has_a_limit_though_its_connection_is_full) { expect_limit_of_reading(true); }
Test(http_server, a_finished_answer_has_a_limit_though_its_connection_is_full) { expect_limit_of_reading(false); }

/* The reply itself has less than a MiB, which is not counted. */
Test(http_server, log_probabilities_count_until_their_reply_is_gone) {
    enum { TURNS = 200, TURN_US = 50000, HELD = 270 * 21 * 256 };
    start_server(0);
    int fd = dial_narrow();
    post(fd, "/v1/completions", "{\"prompt\":[5],\"max_tokens\":90,\"n\":3,\"logprobs\":20,\"ignore_eos\":true}");
    for (int turn = 0; turn < TURNS && counted() < HELD; turn++) sn_sleep_us(TURN_US);
    cr_expect_geq(counted(), HELD);
    close(fd);
    cr_expect(becomes(0), "%zu", counted());
    stop_server();
}

/* The request itself is small. */
Test(http_server, tokens_count_until_their_reply_is_gone) {
    enum { TURNS = 200, TURN_US = 50000, TEXT = 300000 };
    static const char begin[] = "{\"with_pieces\":true,\"content\":\"", end[] = "\"}";
    char *body = malloc(TEXT + sizeof begin + sizeof end);
    cr_assert(body);
    size_t n = sizeof begin - 1;
    memcpy(body, begin, n);
    for (size_t i = 0; i < TEXT / 4; i++, n += 4) memcpy(body + n, "\xf0\x9f\x92\xa9", 4);
    memcpy(body + n, end, sizeof end);
    start_server(0);
    int fd = dial_narrow();
    post(fd, "/tokenize", body);
    for (int turn = 0; turn < TURNS && counted() < SN_LOAD_SMALL; turn++) sn_sleep_us(TURN_US);
    cr_expect_geq(counted(), SN_LOAD_SMALL);
    close(fd);
    cr_expect(becomes(0), "%zu", counted());
    server->load.bytes = SN_LOAD_BYTES_MAX;
    fd = dial();
    post(fd, "/tokenize", body);
    cr_expect(hear(fd, "are not read yet"));
    close(fd);
    server->load.bytes = 0;
    stop_server();
    free(body);
}

static void *wait_behind(void *requests_wait) {
    cr_assert(sn_load_begin(&server->load, 99, 60000, stays, NULL));
    const int64_t until_us = sn_now_us() + 10000000;
    size_t *n = requests_wait;
    while (!*n && sn_now_us() < until_us) {
        sn_sleep_us(1000);
        pthread_mutex_lock(&server->load.lock);
        *n = server->load.waiting;
        pthread_mutex_unlock(&server->load.lock);
    }
    sn_load_end(&server->load);
    return NULL;
}

static void wait_for_line(size_t n) {
    for (size_t now = 0; now != n; sn_sleep_us(1000)) {
        pthread_mutex_lock(&server->load.lock);
        now = server->load.waiting;
        pthread_mutex_unlock(&server->load.lock);
    }
}

Test(http_server, a_request_of_many_prompts_makes_way_between_them) {
    pthread_t other;
    size_t requests_wait = 0;
    start_server(0);
    server->load.preparing_max = 1;
    server->load.slice_us = 0;
    cr_assert(sn_load_begin(&server->load, 98, 0, stays, NULL));
    int fd = dial();
    post(fd, "/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"max_tokens\":1}");
    wait_for_line(1);
    cr_assert(!pthread_create(&other, NULL, wait_behind, &requests_wait));
    wait_for_line(2);
    sn_load_end(&server->load);
    pthread_join(other, NULL);
    cr_expect_eq(requests_wait, 1, "the request has one prompt, and waits for the turn of the next");
    cr_expect(hear(fd, "\"usage\""));
    close(fd);
    stop_server();
}

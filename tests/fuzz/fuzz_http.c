/* The input is a request to a server over a tiny model, which this process computes: a head (method, path, headers),
 * and behind the first NUL a body, whose length and "Connection: close" are added to the head. Whatever comes is
 * answered, never with 500, or ends with its connection; what it began is soon over. */
#include "client/api/api_private.h" /* private: a connection without a swarm */
#include "base/clock.h"
#include "gateway/http/server.h"
#include "tests/support/files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { QUIET_MS = 300, END_MS = 10000, PORTS_MS = 90000, TURN_MS = 10, SESSIONS = 2, HEAD_MAX = 4096 };

static sn_server *server;
static sn_server_queue *queue;

static void require(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "fuzz_http: %s\n", what);
    abort();
}

static sn_status open_no_link(void *ctx, sn_link **out, sn_err *err) {
    (void)ctx, (void)out;
    return sn_fail(err, SN_RETRY, "there is no swarm");
}

static swarm_model *open_model(void) {
    static const char config[] = "{\"chat_template\": \"{% for m in messages %}{{ m.content }}{% endfor %}\"}";
    char *folder = temp_folder();
    swarm_model *model = NULL;
    copy_file(SN_FIXTURES "/golden/llama", folder, "config.json");
    copy_file(SN_FIXTURES "/golden/llama", folder, "model.safetensors");
    copy_file(SN_FIXTURES "/tokenizer/sentencepiece", folder, "tokenizer.json");
    write_file(folder, "tokenizer_config.json", config, strlen(config));
    require(!swarm_model_open(folder, NULL, &model, NULL), "no model");
    temp_folder_remove(&folder); /* it is mapped */
    return model;
}

/* Runs until the process ends. */
static void start_server(void) {
    sn_err err;
    swarm_connection *connection = NULL;
    swarm_model *model = open_model();
    require(!sn_connection_new(NULL, NULL, &connection, &err), "no connection");
    connection->open_link = open_no_link;
    const sn_server_queue_options jobs = {.model = model, .sessions_max = SESSIONS, .queue_max = 2, .idle_ms = 60000};
    require(!sn_server_queue_new(&jobs, &queue, &err), "no queue");
    const sn_server_options options = {.model = model,
                                       .connection = connection,
                                       .queue = queue,
                                       .model_name = "tiny",
                                       .context = 96,
                                       .choices_max = SESSIONS + 2,
                                       .host = "127.0.0.1"};
    require(!sn_server_new(&options, &server, &err), err.text);
}

/* libFuzzer's clock interrupts calls of this thread: a connection that was begun then goes on, and is waited for. */
static int finish_connecting(int fd) {
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    int reason = ETIMEDOUT;
    socklen_t len = sizeof reason;
    for (int64_t end_us = sn_now_us() + END_MS * 1000LL; sn_now_us() < end_us;)
        if (poll(&writable, 1, TURN_MS) > 0)
            return getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &len) ? errno : reason;
    return reason;
}

/* A machine whose ports are all in use, by connections that ended a moment ago, is waited for. */
static int dial(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)sn_server_port(server))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int64_t end_us = sn_now_us() + PORTS_MS * 1000LL;; sn_sleep_us(TURN_MS * 1000)) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), reason = fd < 0 ? errno : 0;
        require(fd >= 0, strerror(reason));
        if (connect(fd, (struct sockaddr *)&to, sizeof to)) reason = errno == EINTR ? finish_connecting(fd) : errno;
        if (!reason) return fd;
        close(fd);
        if (reason == EADDRNOTAVAIL && sn_now_us() < end_us) continue;
        fprintf(stderr, "fuzz_http: connect: %s\n", strerror(reason));
        require(false, "the server takes no connection");
    }
}

static void put(int fd, const void *data, size_t len) {
    while (len) { /* the server may have refused already, and closed */
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return;
        data = (const char *)data + n;
        len -= (size_t)n;
    }
}

/* Processor time of the other threads. */
static int64_t server_cpu_us(void) {
    struct timespec all, own;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &all);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own);
    return (int64_t)(all.tv_sec - own.tv_sec) * 1000000 + (all.tv_nsec - own.tv_nsec) / 1000;
}

typedef struct patience {
    int64_t begin_us, last_us;
    int still_ms;
} patience;

static patience patience_begin(void) { return (patience){.begin_us = server_cpu_us(), .last_us = server_cpu_us()}; }

/* To be called after each wait of this length. False: the server hangs, which is that it computed less than a
 * millisecond in END_MS of such waits, or that it computed for END_MS. A machine that leaves it no time is no reason.
 */
static bool is_patient(patience *p, int waited_ms) {
    const int64_t now = server_cpu_us();
    p->still_ms = now - p->last_us < 1000 ? p->still_ms + waited_ms : 0;
    if (!p->still_ms) p->last_us = now;
    return p->still_ms < END_MS && now - p->begin_us < END_MS * 1000LL;
}

/* Reads the reply to its end. A server that waits for more, as the head may say, finds that there is none. */
static void read_reply(int fd) {
    char begin[16] = "", rest[4096];
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    size_t have = 0;
    bool ended = false;
    patience waits = {0};
    for (;;) {
        if (poll(&readable, 1, ended ? TURN_MS : QUIET_MS) <= 0) {
            require(!ended || is_patient(&waits, TURN_MS), "a connection stays open");
            if (ended) continue;
            (void)shutdown(fd, SHUT_WR);
            waits = patience_begin();
            ended = true;
            continue;
        }
        ssize_t n = recv(fd, rest, sizeof rest, 0);
        if (n <= 0) break;
        size_t taken = sn_min_size((size_t)n, sizeof begin - 1 - have);
        memcpy(begin + have, rest, taken);
        have += taken;
    }
    require(!have || !strncmp(begin, "HTTP/1.", 7), "a reply that is not HTTP");
    require(strncmp(begin + 8, " 500", 4) != 0, "status 500");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char end[80];
    if (!server) start_server();
    const uint8_t *nul = size ? memchr(data, 0, sn_min_size(size, HEAD_MAX)) : NULL;
    const size_t head = nul ? (size_t)(nul - data) : sn_min_size(size, HEAD_MAX), body = nul ? size - head - 1 : 0;
    const int fd = dial();
    snprintf(end, sizeof end, "\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", body);
    put(fd, data, head);
    put(fd, end, strlen(end));
    put(fd, data + size - body, body);
    read_reply(fd);
    close(fd);
    for (patience p = patience_begin(); sn_server_queue_get_load(queue).running; sn_sleep_us(1000))
        require(is_patient(&p, 1), "a job does not end");
    return 0;
}

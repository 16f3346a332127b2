/* A server that trickles: bytes come, and never enough of them. It is given up as one that is silent. */
#include "sharing/hub/http.h"
#include "tests/support/require.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener, port;
static atomic_bool ends;
static atomic_int asked;

/* Each request is answered by a byte every 20 ms, of a document or of the rest of a file, of 1 MiB. */
static void trickle(int fd) {
    enum { SIZE = 1 << 20 };
    char request[4096] = "", head[256];
    bool good = read(fd, request, sizeof request - 1) > 0;
    const char *range = strstr(request, "bytes=");
    const int at = range ? (int)(strtoul(range + strlen("bytes="), NULL, 10) % SIZE) : 0;
    int n =
        range ? snprintf(head, sizeof head,
                         "HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n\r\n",
                         SIZE - at, at, SIZE - 1, SIZE)
              : snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", SIZE);
    good = good && write(fd, head, (size_t)n) == n;
    while (good && !atomic_load(&ends)) {
        good = write(fd, "x", 1) == 1;
        usleep(20000);
    }
    close(fd);
}

static void *serve(void *unused) {
    (void)unused;
    while (!atomic_load(&ends)) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        if (poll(&ready, 1, 20) <= 0) continue;
        int fd = accept(listener, NULL, NULL);
        atomic_fetch_add(&asked, 1);
        if (fd >= 0) trickle(fd);
    }
    return NULL;
}

static pthread_t server;

static void set_up(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    signal(SIGPIPE, SIG_IGN);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 8) &&
              !getsockname(listener, (struct sockaddr *)&at, &len));
    port = ntohs(at.sin_port);
    cr_assert(!pthread_create(&server, NULL, serve, NULL));
}

/* Instead of the C library's, for libcurl, too: which signals the calling thread takes. */
static atomic_int resolved, takes_signals;
__attribute__((visibility("default"))) int getaddrinfo(const char *host, const char *service,
                                                       const struct addrinfo *hints, struct addrinfo **out) {
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
    sigset_t blocked;
    *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGTERM)) atomic_fetch_add(&takes_signals, 1);
    atomic_fetch_add(&resolved, 1);
    return next(!strcmp(host, "hub.test") ? "127.0.0.1" : host, service, hints, out);
}

static void tear_down(void) {
    atomic_store(&ends, true);
    pthread_join(server, NULL);
    close(listener);
}

TestSuite(slow_hub, .init = set_up, .fini = tear_down, .timeout = 40);

static sn_http *open_http(int64_t patience_ms) {
    sn_http_settings settings = {.patience_ms = patience_ms, .stall_s = 1};
    sn_http *http = NULL;
    REQUIRE(sn_http_new(&settings, &http, &err));
    return http;
}

Test(slow_hub, a_document_that_trickles_is_given_up) {
    char url[64];
    sn_buf text;
    sn_err err = {0};
    sn_http *http = open_http(1);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/list", port);
    cr_expect_eq(sn_http_get(http, url, 2 << 20, &text, &err), SN_RETRY);
    cr_expect(strstr(err.text, "cannot be fetched"), "%s", err.text);
    sn_http_free(&http);
}

static sn_status take(void *context, uint64_t at, const void *data, size_t n, sn_err *err) {
    (void)at, (void)data, (void)err;
    *(size_t *)context += n;
    return SN_OK;
}

/* A byte is no answer: a second try that trickles has less patience than the first one, as one that is silent. */
Test(slow_hub, a_file_that_trickles_is_given_up_though_bytes_come) {
    sn_http_file file = {.size = 1 << 20};
    sn_range_set all = {0};
    sn_err why = {0};
    size_t got = 0;
    sn_http *http = open_http(600);
    snprintf(file.url, sizeof file.url, "http://127.0.0.1:%d/model.gguf", port);
    snprintf(file.location, sizeof file.location, "%s", file.url);
    REQUIRE(sn_range_set_add(&all, 0, file.size, &err));
    cr_expect_eq(sn_http_fetch(http, &file, &all, take, &got, &why), SN_RETRY);
    cr_expect(strstr(why.text, "cannot be fetched"), "%s", why.text);
    cr_expect_gt(got, 0);
    cr_expect_eq(atomic_load(&asked), 2);
    sn_range_set_fini(&all);
    sn_http_free(&http);
}

/* Those of a Python program, for example, stay with its own threads. */
Test(slow_hub, threads_that_resolve_a_name_take_no_signals) {
    char url[64];
    sn_buf text;
    sn_err why = {0};
    sn_range_set all = {0};
    sn_http_file file = {.size = 1 << 20};
    size_t got = 0;
    sn_http *http = open_http(1);
    snprintf(url, sizeof url, "http://hub.test:%d/list", port);
    cr_expect_eq(sn_http_get(http, url, 2 << 20, &text, &why), SN_RETRY);
    cr_expect_eq(atomic_load(&resolved), 1);
    snprintf(file.url, sizeof file.url, "%s", url);
    snprintf(file.location, sizeof file.location, "%s", url);
    REQUIRE(sn_range_set_add(&all, 0, file.size, &err));
    cr_expect_eq(sn_http_fetch(http, &file, &all, take, &got, &why), SN_RETRY);
    cr_expect_gt(atomic_load(&resolved), 1);
    cr_expect_eq(atomic_load(&takes_signals), 0);
    sn_range_set_fini(&all);
    sn_http_free(&http);
}

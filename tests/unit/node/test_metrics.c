#include "node/metrics.h"

#include "tests/support/require.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static const char *const hosts[] = {"node.example"};
static const sn_metrics_facts facts = {"0badcafe", "a \"quoted\\ name\nof two lines", 1500, NULL, NULL, hosts, 1};

static bool has_line(const char *page, const char *line) {
    for (const char *at = page; (at = strstr(at, line)); at++)
        if ((at == page || at[-1] == '\n') && at[strlen(line)] == '\n') return true;
    return false;
}

#define HAS(page, line) cr_expect(has_line(page, line), "the line is missing: %s", line)

Test(metrics, a_page_lists_each_metric_once_in_its_unit) {
    sn_node_stats f = {.model = "llama",
                       .first = 2,
                       .end = 5,
                       .engine = {.forward_passes = 7,
                                  .compute_us = 2500000,
                                  .device_transfer_bytes = 99,
                                  .kv_bytes = 4096,
                                  .queued_steps = 3},
                       .kv_bytes_max = 8192,
                       .sessions = 2,
                       .sessions_max = 64,
                       .steps = 11,
                       .tokens = 12,
                       .refusals = {0, 1, 2, 3, 4},
                       .quota_refusals = {0, 8, 9},
                       .sessions_migrated = 6,
                       .relay = {.relayed_nodes = 2, .relayed_connections = 5, .relayed_bytes = 77, .places = 30}};
    sn_histogram_add(&f.step, 1000);
    sn_histogram_add(&f.step, 1001);
    sn_histogram_add(&f.step, 31000000);
    sn_histogram_add(&f.step, -1);
    sn_buf page;
    sn_buf_init(&page, 1 << 16);
    REQUIRE(sn_metrics_write(&facts, &f, &page, &err));
    REQUIRE(sn_buf_append(&page, "", 1, &err));
    const char *text = (const char *)page.data;
    HAS(text, "swarm_node_span_info{node=\"0badcafe\",name=\"a \\\"quoted\\\\ name\\nof two lines\",model=\"llama\","
              "first_block=\"2\",end_block=\"5\"} 1");
    HAS(text, "swarm_node_start_time_seconds 1.500000");
    HAS(text, "# TYPE swarm_node_sessions gauge");
    HAS(text, "swarm_node_sessions 2");
    HAS(text, "swarm_node_sessions_max 64");
    HAS(text, "swarm_node_kv_bytes 4096");
    HAS(text, "swarm_node_kv_max_bytes 8192");
    HAS(text, "swarm_node_queued_steps 3");
    HAS(text, "# TYPE swarm_node_steps_total counter");
    HAS(text, "swarm_node_steps_total 11");
    HAS(text, "swarm_node_tokens_total 12");
    HAS(text, "swarm_node_forward_passes_total 7");
    HAS(text, "swarm_node_compute_seconds_total 2.500000");
    HAS(text, "swarm_node_device_transfer_bytes_total 99");
    HAS(text, "swarm_node_sessions_migrated_total 6");
    HAS(text, "swarm_node_relayed_nodes 2");
    HAS(text, "swarm_node_relay_places 30");
    HAS(text, "swarm_node_relayed_connections 5");
    HAS(text, "swarm_node_relayed_bytes_total 77");
    HAS(text, "swarm_node_refusals_total{kind=\"retry\"} 1");
    HAS(text, "swarm_node_refusals_total{kind=\"rebuild\"} 2");
    HAS(text, "swarm_node_refusals_total{kind=\"refused\"} 3");
    HAS(text, "swarm_node_refusals_total{kind=\"stop\"} 4");
    HAS(text, "# TYPE swarm_node_quota_refusals_total counter");
    HAS(text, "swarm_node_quota_refusals_total{quota=\"sessions\"} 0");
    HAS(text, "swarm_node_quota_refusals_total{quota=\"kv\"} 8");
    HAS(text, "swarm_node_quota_refusals_total{quota=\"steps\"} 9");
    HAS(text, "# TYPE swarm_node_step_seconds histogram");
    HAS(text, "swarm_node_step_seconds_bucket{le=\"0.001\"} 2");
    HAS(text, "swarm_node_step_seconds_bucket{le=\"0.002\"} 3");
    HAS(text, "swarm_node_step_seconds_bucket{le=\"30\"} 3");
    HAS(text, "swarm_node_step_seconds_bucket{le=\"+Inf\"} 4");
    HAS(text, "swarm_node_step_seconds_sum 31.002001");
    HAS(text, "swarm_node_step_seconds_count 4");
    HAS(text, "swarm_node_queue_seconds_count 0");
    sn_buf_fini(&page);
}

Test(metrics, an_invalid_address_is_refused) {
    const char *const bad[] = {
        "", "x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", ":9100", "1.2.3.4.5:80", "-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sn_metrics *m = NULL;
        sn_err err = {0};
        cr_expect_eq(sn_metrics_new(bad[i], &facts, &m, &err), SN_REFUSED, "'%s': %s", bad[i], err.text);
        cr_expect(strstr(err.text, "--metrics"), "%s", err.text);
        cr_expect_null(m);
    }
}

static int connect_to(int port) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 60};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* The complete reply to a request line. */
static const char *send_request(int port, const char *line, const char *host) {
    static char answer[1 << 16];
    char request[256];
    size_t n = 0;
    ssize_t got;
    int fd = connect_to(port);
    int len = snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", line, host);
    cr_assert_eq(write(fd, request, (size_t)len), len);
    while (n + 1 < sizeof answer && (got = read(fd, answer + n, sizeof answer - 1 - n)) > 0) n += (size_t)got;
    answer[n] = 0;
    close(fd);
    return answer;
}

static void *publish_on(void *ctx) {
    sn_metrics *m = ((void **)ctx)[0];
    atomic_bool *stop = ((void **)ctx)[1];
    for (sn_node_stats f = {.steps = 1, .tokens = 1}; !atomic_load(stop); f.steps++, f.tokens++)
        sn_metrics_publish(m, &f);
    return NULL;
}

Test(metrics, are_served_during_updates_and_with_silent_clients) {
    sn_metrics *m = NULL, *second = NULL;
    sn_err why;
    REQUIRE(sn_metrics_new("0", &facts, &m, &err));
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%d", sn_metrics_port(m));
    cr_expect_eq(sn_metrics_new(taken, &facts, &second, &why), SN_RETRY);
    cr_expect(strstr(why.text, "in use"), "%s", why.text);
    int silent = connect_to(sn_metrics_port(m));
    atomic_bool stop = false;
    pthread_t publisher;
    void *ctx[] = {m, &stop};
    cr_assert_eq(pthread_create(&publisher, NULL, publish_on, ctx), 0);
    unsigned long long last = 0, steps, tokens;
    for (int i = 0; i < 100; i++) {
        const char *page = send_request(sn_metrics_port(m), "GET /metrics", "node.example:9100");
        cr_assert_eq(strncmp(page, "HTTP/1.1 200 ", 13), 0, "%.100s", page);
        cr_assert(strstr(page, "Content-Type: text/plain; version=0.0.4"), "%.300s", page);
        cr_assert_eq(sscanf(strstr(page, "\nswarm_node_steps_total "), "\nswarm_node_steps_total %llu", &steps), 1);
        cr_assert_eq(sscanf(strstr(page, "\nswarm_node_tokens_total "), "\nswarm_node_tokens_total %llu", &tokens), 1);
        cr_assert(steps == tokens && steps >= last, "%llu steps, %llu tokens, %llu before", steps, tokens, last);
        last = steps;
    }
    cr_expect_gt(last, 0);
    cr_expect_eq(strncmp(send_request(sn_metrics_port(m), "GET /", "localhost"), "HTTP/1.1 404 ", 13), 0);
    static const char *const names[] = {"localhost:9100", "127.0.0.1",         "[::1]:9100",
                                        "NODE.example",   "evil.example:9100", "localhost.evil"};
    static const char *const asked[] = {"GET /swarm", "GET /metrics"};
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) { /* it is for no name that a web page may have */
        const char *answer = send_request(sn_metrics_port(m), asked[i % 2], names[i / 2]);
        cr_expect_eq(strncmp(answer, i / 2 < 4 ? "HTTP/1.1 200 " : "HTTP/1.1 403 ", 13), 0, "%s: %.40s", names[i / 2],
                     answer);
    }
    static const char *const cut[] = {"GET /metrics%00", "GET /metrics%00x", "GET /swarm%00/..?a", "GET /%00"};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        cr_expect_eq(strncmp(send_request(sn_metrics_port(m), cut[i], "localhost"), "HTTP/1.1 400 ", 13), 0, "%s",
                     cut[i]);
    cr_expect_eq(strncmp(send_request(sn_metrics_port(m), "POST /metrics", "x"), "HTTP/1.1 405 ", 13), 0);
    atomic_store(&stop, true);
    pthread_join(publisher, NULL);
    close(silent);
    sn_metrics_free(&m);
}

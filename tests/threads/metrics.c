/* One thread updates the metrics while the server's thread reads them for a scraper. For ThreadSanitizer, which
 * cannot run under Criterion. */
#include "node/metrics.h"
#include "tests/support/require.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_bool stop;

static void *publish(void *metrics) {
    for (sn_node_stats f = {.model = "m"}; !atomic_load(&stop); f.steps++) sn_metrics_publish(metrics, &f);
    return NULL;
}

static void scrape(int port) {
    static const char ask[] = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char page[4096];
    ssize_t got, sum = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) || write(fd, ask, sizeof ask - 1) < 0) abort();
    while ((got = read(fd, page, sizeof page)) > 0) sum += got;
    if (sum < 1000) abort();
    close(fd);
}

int main(void) {
    sn_metrics *metrics = NULL;
    const sn_metrics_facts facts = {.node = "id", .name = "name", .started_unix_ms = 1};
    pthread_t thread;
    REQUIRE(sn_metrics_new("0", &facts, &metrics, &err));
    if (pthread_create(&thread, NULL, publish, metrics)) abort();
    for (int i = 0; i < 50; i++) scrape(sn_metrics_port(metrics));
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    sn_metrics_free(&metrics);
    return 0;
}

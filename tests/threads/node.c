/* A swarm of three nodes over the in-memory transport, and four clients that step concurrently while one of the
 * nodes is stopped. Every client must get the right bits. For ThreadSanitizer, which cannot run under Criterion. */
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { CLIENTS = 4, TOKENS = 90, PROMPT = 30 };

typedef struct client {
    testbed *w;
    sn_link *link;
    bool push;
    atomic_int *at_work; /* number of clients that have finished prefill */
    float out[TOKENS * 64];
} client;

static void *client_main(void *ctx) {
    client *c = ctx;
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    size_t row = (size_t)c->w->n_embd;
    sn_chain_options options = sn_chain_options_default();
    options.link = c->link;
    options.limits.timeout_ms = 10000;
    options.routing.push = c->push;
    REQUIRE(sn_model_open(c->w->path, &model, &err));
    REQUIRE(sn_chain_open(model, &options, &chain, &err));
    for (int at = 0, n; at < TOKENS; at += n) {
        n = at < PROMPT ? PROMPT : 1;
        REQUIRE(sn_chain_step(chain, at, n, c->w->inputs + (size_t)at * row, c->out + (size_t)at * row, &err));
        if (!at) atomic_fetch_add(c->at_work, 1);
    }
    if (memcmp(c->out, c->w->hidden, TOKENS * row * sizeof(float))) {
        fprintf(stderr, "a client got other bits\n");
        exit(1);
    }
    sn_chain_close(&chain);
    sn_model_close(&model);
    return NULL;
}

int main(void) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .threads = 2});
    static client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    atomic_int at_work = 0;
    cluster_add(w->cluster, 0, 2);
    int stops = cluster_add(w->cluster, 2, 4);
    cluster_add(w->cluster, 1, 4); /* replaces the node that stops */
    for (int i = 0; i < CLIENTS; i++) clients[i] = (client){w, cluster_link(w->cluster), i % 2, &at_work, {0}};
    for (int i = 0; i < CLIENTS; i++)
        if (pthread_create(&threads[i], NULL, client_main, &clients[i])) abort();
    while (atomic_load(&at_work) < CLIENTS) sn_sleep_us(1000);
    cluster_stop(w->cluster, stops);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        sn_link_close(&clients[i].link);
    }
    testbed_free(&w);
    return 0;
}

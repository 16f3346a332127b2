/* A swarm of three nodes over the in-memory transport, and four clients that step at once while one of the nodes is
 * stopped: for ThreadSanitizer, which cannot run under Criterion. Every client must get the right bits. */
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { CLIENTS = 4, TOKENS = 90, PROMPT = 30 };

typedef struct client {
    world *w;
    sn_link *link;
    bool push;
    atomic_int *at_work; /* counts the clients that have read their prompt */
    float out[TOKENS * 64];
} client;

static void *work(void *ctx) {
    client *c = ctx;
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    size_t row = (size_t)c->w->n_embd;
    sn_chain_options options = {.link = c->link, .timeout_ms = 10000, .push = c->push};
    NEED(sn_model_open(c->w->path, &model, &err));
    NEED(sn_chain_open(model, &options, &chain, &err));
    for (int at = 0, n; at < TOKENS; at += n) {
        n = at < PROMPT ? PROMPT : 1;
        NEED(sn_chain_step(chain, at, n, c->w->inputs + (size_t)at * row, c->out + (size_t)at * row, &err));
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
    world *w = world_new(&(cluster_options){.kv_memory = 64, .threads = 2});
    static client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    atomic_int at_work = 0;
    cluster_add(w->cluster, 0, 2);
    int stops = cluster_add(w->cluster, 2, 4);
    cluster_add(w->cluster, 1, 4); /* takes the place of the one that stops */
    for (int i = 0; i < CLIENTS; i++) clients[i] = (client){w, cluster_link(w->cluster), i % 2, &at_work, {0}};
    for (int i = 0; i < CLIENTS; i++)
        if (pthread_create(&threads[i], NULL, work, &clients[i])) abort();
    while (atomic_load(&at_work) < CLIENTS) sn_sleep_us(1000);
    cluster_stop(w->cluster, stops);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        sn_link_close(&clients[i].link);
    }
    world_free(&w);
    return 0;
}

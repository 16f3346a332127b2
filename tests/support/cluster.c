#include "tests/support/cluster.h"

#include "base/clock.h"
#include "tests/support/need.h"
#include "tests/support/own_time.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { NODES_MAX = 16 };

typedef struct member {
    sn_node *node;
    char address[64], join[160], model[256];
    int first, end;
    sn_identity identity;
    pthread_t thread;
    bool stopped, asked; /* to leave; and it has */
    atomic_bool cut_off, doubled, left;
    atomic_int steps_left; /* until it is cut off; 0: not counted */
} member;

struct cluster {
    cluster_options options;
    sn_hub *hub;
    member members[NODES_MAX];
    atomic_int n; /* the filter reads it in other threads: a member is whole before it counts */
};

static sn_fate deliver(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    cluster *c = ctx;
    sn_fate fate = SN_DELIVER;
    for (int i = 0; i < c->n; i++) {
        member *m = &c->members[i];
        bool to_it = !strcmp(to, m->address);
        if (!to_it && strcmp(from, m->address)) continue;
        if (to_it && msg->kind == SN_MSG_STEP && atomic_load(&m->steps_left) && atomic_fetch_sub(&m->steps_left, 1) == 1)
            atomic_store(&m->cut_off, true);
        if (atomic_load(&m->cut_off)) return SN_DROP;
        if (atomic_load(&m->doubled)) fate = SN_DUPLICATE;
    }
    return fate;
}

cluster *cluster_new(const cluster_options *options) {
    cluster *c = calloc(1, sizeof *c);
    if (!c) abort();
    own_time_begin();
    c->options = *options;
    if (!c->options.threads) c->options.threads = 1;
    if (!c->options.kv_memory) c->options.kv_memory = 64u << 20;
    if (!c->options.sessions_max) c->options.sessions_max = 64;
    if (!c->options.room_timeout_s) c->options.room_timeout_s = 1;
    NEED(sn_hub_new(&c->hub, &err));
    sn_hub_set_filter(c->hub, deliver, c);
    return c;
}

static void *run(void *ctx) {
    member *m = ctx;
    NEED(sn_node_run(m->node, &err));
    atomic_store(&m->left, true);
    return NULL;
}

static int count_blocks(const char *path) {
    sn_model *model = NULL;
    NEED(sn_model_open(path, &model, &err));
    int n = sn_model_hparams(model)->n_blocks;
    sn_model_close(&model);
    return n;
}

/* The member's node, with its thread. */
static void start(cluster *c, member *m) {
    char path[] = "/tmp/swarm-test-identity-XXXXXX"; /* a name for the file that save makes */
    char file[64];
    const char *join = m->join;
    if (!mkdtemp(path)) abort();
    snprintf(file, sizeof file, "%s/id", path);
    NEED(sn_identity_save(&m->identity, file, &err));
    sn_node_config config = {
        .model_path = m->model,
        .first = m->first,
        .end = m->end,
        .listen = m->address,
        .join = &join,
        .n_join = *m->join ? 1 : 0,
        .identity_path = file,
        .swarm_key_path = c->options.swarm_key,
        .quota = c->options.quota,
        .name = m->address + strlen("mem://"),
        .placing = {.device = c->options.device ? c->options.device : "cpu",
                    .device_map = c->options.device_map,
                    .options = {.threads = c->options.threads, .isa = c->options.isa},
                    .kv_memory = c->options.kv_memory},
        .sessions_max = (size_t)c->options.sessions_max,
        .session_timeout_s = 600,
        .room_timeout_s = c->options.room_timeout_s,
        .drain_timeout_s = c->options.drain_timeout_s,
        .kv_dtype = c->options.kv_dtype,
        .prefix_memory = c->options.prefix_memory,
        .tune_memory = c->options.tune_memory,
        .share_all = c->options.share_all,
        .idle_to = c->options.idle_to,
        .idle_dir = c->options.idle_dir,
        .idle_memory = c->options.idle_memory,
        .idle_after_s = c->options.idle_after_s,
    };
    sn_transport *transport = NULL;
    NEED(sn_transport_memory_new(c->hub, &m->identity, &transport, &err));
    NEED(sn_node_new(&config, &transport, NULL, NULL, &m->node, &err));
    remove(file);
    remove(path);
    if (pthread_create(&m->thread, NULL, run, m)) abort();
}

int cluster_add_of(cluster *c, const char *model, int first, int end) {
    if (c->n == NODES_MAX) abort();
    member *m = &c->members[c->n];
    NEED(sn_identity_new(&m->identity, &err));
    snprintf(m->address, sizeof m->address, "mem://node%d", c->n);
    snprintf(m->model, sizeof m->model, "%s", model);
    m->first = first;
    m->end = end ? end : count_blocks(model);
    if (c->n) {
        char key[2 * SN_KEY_SIZE + 1];
        snprintf(m->join, sizeof m->join, "%s#%s", c->members[0].address,
                 sn_hex(sn_node_curve_key(c->members[0].node), SN_KEY_SIZE, key));
    }
    start(c, m);
    return c->n++;
}

int cluster_add(cluster *c, int first, int end) { return cluster_add_of(c, c->options.model, first, end); }

void cluster_compute_with(cluster *c, const char *isa, int threads) {
    c->options.isa = isa;
    c->options.threads = threads;
}

const sn_node *cluster_node(const cluster *c, int number) { return c->members[number].node; }
int cluster_count(const cluster *c) { return atomic_load(&((cluster *)(uintptr_t)c)->n); }
sn_hub *cluster_hub(cluster *c) { return c->hub; }
void cluster_cut_off(cluster *c, int number) { atomic_store(&c->members[number].cut_off, true); }
void cluster_cut_off_at_step(cluster *c, int number, int n) { atomic_store(&c->members[number].steps_left, n); }
void cluster_double(cluster *c, int number) { atomic_store(&c->members[number].doubled, true); }

void cluster_stop(cluster *c, int number) {
    member *m = &c->members[number];
    if (m->stopped) return;
    m->stopped = true;
    if (!m->asked) sn_node_stop(m->node);
    if (atomic_load(&m->cut_off)) sn_node_stop(m->node); /* nobody can tell it that its sessions are over */
    pthread_join(m->thread, NULL);
}

void cluster_restart(cluster *c, int number) {
    member *m = &c->members[number];
    cluster_stop(c, number);
    sn_node_free(&m->node);
    m->stopped = m->asked = false;
    atomic_store(&m->left, false);
    start(c, m);
}

void cluster_drain(cluster *c, int number) {
    c->members[number].asked = true;
    sn_node_stop(c->members[number].node);
}

bool cluster_has_left(const cluster *c, int number) { return atomic_load(&c->members[number].left); }

void cluster_free(cluster **c) {
    if (!*c) return;
    for (int i = 0; i < (*c)->n; i++) {
        cluster_stop(*c, i);
        sn_node_free(&(*c)->members[i].node);
    }
    sn_hub_free(&(*c)->hub);
    free(*c);
    *c = NULL;
}

sn_transport *cluster_transport(cluster *c, sn_identity *identity) {
    NEED(sn_identity_new(identity, &err));
    return cluster_transport_as(c, identity);
}

sn_transport *cluster_transport_as(cluster *c, const sn_identity *identity) {
    sn_transport *transport = NULL;
    NEED(sn_transport_memory_new(c->hub, identity, &transport, &err));
    return transport;
}

sn_link *cluster_link(cluster *c) {
    sn_identity identity;
    sn_transport *transport = cluster_transport(c, &identity);
    sn_seed seeds[NODES_MAX];
    for (int i = 0; i < c->n; i++) {
        snprintf(seeds[i].address, sizeof seeds[i].address, "%s", c->members[i].address);
        memcpy(seeds[i].curve_key, sn_node_curve_key(c->members[i].node), SN_KEY_SIZE);
    }
    sn_link *link = NULL;
    NEED(sn_link_over(&transport, seeds, (size_t)c->n, &link, &err));
    return link;
}

int cluster_holder(const sn_chain *chain, int block) {
    sn_hop_report hops[SN_HOPS_MAX];
    size_t n = sn_chain_hops(chain, hops, SN_HOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(hops[i].node, "mem://node");
        int number;
        if (hops[i].first_block <= block && block < hops[i].end_block && at && sscanf(at, "mem://node%d", &number) == 1) return number;
    }
    return -1;
}

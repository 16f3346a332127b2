/* How it works: a member is a real node (sn_node) that runs in a thread of its own and talks over one in-memory hub
 * (sn_transport_memory_new). cluster_new starts the virtual clock, so that timeouts and long waits cost no real
 * time.
 *
 * The hub calls filter_message for every message. The filter looks for the sender and the receiver among the
 * members, and drops or duplicates messages of members that are cut off or duplicated; it runs in the threads of the
 * nodes, so that it reads only atomics.
 *
 * Members are appended and never removed. cluster_restart frees the node of a member and starts a new one with the
 * same identity, address and blocks. */
#include "tests/support/cluster.h"

#include "base/clock.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { NODES_MAX = 32 };

typedef struct member {
    sn_node *node;
    char address[64], join[160], model[256];
    const char *joined; /* join; the node reads it as long as it runs */
    int first, end;
    sn_expert_range experts;
    sn_identity identity;
    pthread_t thread;
    bool stopped, asked; /* stopped: joined; asked: sn_node_stop was called */
    atomic_bool cut_off, duplicated, left;
    atomic_int steps_left; /* STEPs until the member is cut off; 0: not counted */
} member;

struct cluster {
    cluster_options options;
    sn_hub *hub;
    member members[NODES_MAX];
    atomic_bool cut_off_holder; /* the receiver of the next EXPERTS */
    atomic_int holder_cut_off;  /* its number + 1 */
    atomic_int n;               /* the filter reads n in other threads: a member is complete before it is counted */
};

static sn_hub_action filter_message(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    cluster *c = ctx;
    sn_hub_action action = SN_DELIVER;
    for (int i = 0; i < c->n; i++) {
        member *m = &c->members[i];
        bool is_receiver = !strcmp(to, m->address);
        if (!is_receiver && strcmp(from, m->address)) continue;
        if (is_receiver && msg->kind == SN_MSG_STEP && atomic_load(&m->steps_left) &&
            atomic_fetch_sub(&m->steps_left, 1) == 1)
            atomic_store(&m->cut_off, true);
        if (is_receiver && msg->kind == SN_MSG_EXPERTS && atomic_exchange(&c->cut_off_holder, false)) {
            atomic_store(&c->holder_cut_off, i + 1);
            atomic_store(&m->cut_off, true);
        }
        if (atomic_load(&m->cut_off)) return SN_DROP;
        if (atomic_load(&m->duplicated)) action = SN_DUPLICATE;
    }
    return action;
}

cluster *cluster_new(const cluster_options *options) {
    cluster *c = calloc(1, sizeof *c);
    if (!c) abort();
    virtual_clock_begin();
    c->options = *options;
    if (!c->options.threads) c->options.threads = 1;
    if (!c->options.kv_memory) c->options.kv_memory = 64u << 20;
    if (!c->options.sessions_max) c->options.sessions_max = 64;
    if (!c->options.kv_timeout_s) c->options.kv_timeout_s = 1;
    REQUIRE(sn_hub_new(&c->hub, &err));
    sn_hub_set_filter(c->hub, filter_message, c);
    return c;
}

static void *node_main(void *ctx) {
    member *m = ctx;
    REQUIRE(sn_node_run(m->node, &err));
    atomic_store(&m->left, true);
    return NULL;
}

static int count_blocks(const char *path) {
    sn_model *model = NULL;
    REQUIRE(sn_model_open(path, &model, &err));
    int n = sn_model_hparams(model)->n_blocks;
    sn_model_close(&model);
    return n;
}

/* Creates the member's node and starts its thread. */
static void start_member(cluster *c, member *m) {
    char path[] = "/tmp/swarm-test-identity-XXXXXX"; /* holds the identity file that the node reads */
    char file[64];
    m->joined = m->join;
    if (!mkdtemp(path)) abort();
    snprintf(file, sizeof file, "%s/id", path);
    REQUIRE(sn_identity_save(&m->identity, file, &err));
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(m->address, ":"), m->address);
    sn_node_config config = {
        .model_path = m->model,
        .first = m->first,
        .end = m->end,
        .listen = m->address,
        .join = &m->joined,
        .n_join = *m->join ? 1 : 0,
        .identity_path = file,
        .swarm_key_path = c->options.swarm_key,
        .quota = c->options.quota,
        .name = name,
        .device_placement = {.device = c->options.device ? c->options.device : "cpu",
                             .device_map = c->options.device_map,
                             .device_memory = &c->options.device_memory,
                             .n_device_memory = c->options.device_memory ? 1 : 0,
                             .device_options = {.threads = c->options.threads,
                                                .isa = c->options.isa,
                                                .batch_rows = c->options.batch_rows},
                             .experts = m->experts,
                             .kv_memory = c->options.kv_memory},
        .sessions_max = (size_t)c->options.sessions_max,
        .session_timeout_s = 600,
        .kv_timeout_s = c->options.kv_timeout_s,
        .drain_timeout_s = c->options.drain_timeout_s,
        .kv_dtype = c->options.kv_dtype,
        .prefix_cache_memory = c->options.prefix_cache_memory,
        .tune_memory = c->options.tune_memory,
        .adapters = c->options.adapters,
        .prefix_cache_shared = c->options.prefix_cache_shared,
        .swap_to = c->options.swap_to,
        .swap_dir = c->options.swap_dir,
        .swap_memory = c->options.swap_memory,
        .swap_after_s = c->options.swap_after_s,
    };
    sn_transport *transport = NULL;
    REQUIRE(sn_transport_memory_new(c->hub, &m->identity, &transport, &err));
    REQUIRE(sn_node_new(&config, &transport, NULL, NULL, &m->node, &err));
    remove(file);
    remove(path);
    if (pthread_create(&m->thread, NULL, node_main, m)) abort();
}

static int add_member(cluster *c, const char *model, int first, int end, sn_expert_range experts) {
    if (c->n == NODES_MAX) abort();
    member *m = &c->members[c->n];
    REQUIRE(sn_identity_new(&m->identity, &err));
    snprintf(m->address, sizeof m->address, "node%d:1", c->n);
    snprintf(m->model, sizeof m->model, "%s", model);
    m->first = first;
    m->experts = experts;
    m->end = end ? end : count_blocks(model);
    if (c->n) {
        char key[2 * SN_KEY_SIZE + 1];
        snprintf(m->join, sizeof m->join, "%s#%s", c->members[0].address,
                 sn_hex(sn_node_curve_key(c->members[0].node), SN_KEY_SIZE, key));
    }
    start_member(c, m);
    return c->n++;
}

int cluster_add_of(cluster *c, const char *model, int first, int end) {
    return add_member(c, model, first, end, (sn_expert_range){0});
}

int cluster_add_part(cluster *c, int first, int end, sn_expert_range experts) {
    return add_member(c, c->options.model, first, end, experts);
}

int cluster_add(cluster *c, int first, int end) { return cluster_add_of(c, c->options.model, first, end); }

void cluster_compute_with(cluster *c, const char *isa, int threads) {
    c->options.isa = isa;
    c->options.threads = threads;
}

void cluster_batch_rows(cluster *c, int rows) { c->options.batch_rows = rows; }

const sn_node *cluster_node(const cluster *c, int number) { return c->members[number].node; }
int cluster_count(const cluster *c) { return atomic_load(&((cluster *)(uintptr_t)c)->n); }
sn_hub *cluster_hub(cluster *c) { return c->hub; }
void cluster_cut_off(cluster *c, int number) { atomic_store(&c->members[number].cut_off, true); }
void cluster_cut_off_at_step(cluster *c, int number, int n) { atomic_store(&c->members[number].steps_left, n); }
void cluster_cut_off_next_holder(cluster *c) { atomic_store(&c->cut_off_holder, true); }
int cluster_cut_off_number(const cluster *c) { return atomic_load(&((cluster *)(uintptr_t)c)->holder_cut_off) - 1; }
void cluster_duplicate_messages(cluster *c, int number) { atomic_store(&c->members[number].duplicated, true); }

void cluster_stop(cluster *c, int number) {
    member *m = &c->members[number];
    if (m->stopped) return;
    m->stopped = true;
    if (!m->asked) sn_node_stop(m->node);
    /* a node that is cut off never receives CLOSE for its sessions: the second stop ends its drain */
    if (atomic_load(&m->cut_off)) sn_node_stop(m->node);
    pthread_join(m->thread, NULL);
}

void cluster_kill(cluster *c, int number) {
    cluster_stop(c, number);
    sn_node_free(&c->members[number].node);
}

void cluster_restart(cluster *c, int number) {
    member *m = &c->members[number];
    cluster_stop(c, number);
    sn_node_free(&m->node);
    m->stopped = m->asked = false;
    atomic_store(&m->left, false);
    start_member(c, m);
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
    REQUIRE(sn_identity_new(identity, &err));
    return cluster_transport_as(c, identity);
}

sn_transport *cluster_transport_as(cluster *c, const sn_identity *identity) {
    sn_transport *transport = NULL;
    REQUIRE(sn_transport_memory_new(c->hub, identity, &transport, &err));
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
    REQUIRE(sn_link_open_transport(&transport, seeds, (size_t)c->n, &link, &err));
    return link;
}

int cluster_node_of_block(const sn_chain *chain, int block) {
    sn_hop_report hops[SN_HOPS_MAX];
    size_t n = sn_chain_hops(chain, hops, SN_HOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(hops[i].node, "node");
        int number;
        if (hops[i].first_block <= block && block < hops[i].end_block && at && sscanf(at, "node%d:1", &number) == 1)
            return number;
    }
    return -1;
}

#include "tests/support/crowd.h"

#include "tests/support/need.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_US = 50000, LOAD_US = 2000000 };

static bool submit(void *ctx, sn_job *job) {
    (void)ctx, (void)job;
    return false;
}
static sn_engine_figures read_figures(void *ctx) {
    return (sn_engine_figures){.decode_us = ((const crowd_member *)ctx)->decode_us};
}

static int number_of(const char *address) {
    int number = -1; /* a client's, which has no address */
    return sscanf(address, "mem://%d", &number) == 1 ? number : -1;
}

static sn_fate deliver(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    const crowd *c = ctx;
    (void)msg;
    return c->cut && (number_of(from) < c->cut) != (number_of(to) < c->cut) ? SN_DROP : SN_DELIVER;
}

crowd *crowd_new(int n_blocks, size_t bytes_per_s) {
    crowd *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->hp.n_blocks = n_blocks;
    c->hp.n_embd = 64;
    c->bytes_per_s = bytes_per_s;
    c->now_us = 1000 * (int64_t)CROWD_SECOND;
    c->unix_ms = 1800000000000;
    NEED(sn_hub_new(&c->hub, &err));
    sn_hub_set_filter(c->hub, deliver, c);
    return c;
}

void crowd_free(crowd *c) {
    for (int i = 0; i < c->n; i++) {
        sn_core_free(&c->nodes[i].core);
        sn_transport_free(&c->nodes[i].transport);
    }
    sn_hub_free(&c->hub);
    free(c);
}

int crowd_add(crowd *c, int joins) {
    crowd_member *m = &c->nodes[c->n];
    char address[32], bound[SN_ADDRESS_MAX + 1];
    int first = c->n % c->hp.n_blocks;
    if (c->n == CROWD_MAX) abort();
    m->decode_us = 1000;
    snprintf(address, sizeof address, "mem://%d", c->n);
    m->identity.sign_secret[1] = m->identity.curve_secret[1] = (uint8_t)(c->n + 1); /* X25519 looks at byte 0 in part */
    NEED(sn_identity_complete(&m->identity, &err));
    NEED(sn_transport_memory_new(c->hub, &m->identity, &m->transport, &err));
    NEED(sn_transport_listen(m->transport, address, bound, &err));
    const sn_core_setup setup = {
        .transport = m->transport,
        .identity = &m->identity,
        .address = address,
        .name = "",
        .span = {.hp = &c->hp, .first = first, .end = first + 1, .block_hash = c->block_hash},
        .auto_blocks = c->auto_blocks,
        .loading = c->auto_blocks > 0,
        .expects_others = joins >= 0,
        .rebalance_us = (int64_t)c->rebalance_s * CROWD_SECOND,
        .rebalance_gain = 20,
        .move_us_max = 5 * CROWD_SECOND,
        .sessions_max = 1,
        .gossip_bytes_per_s = c->bytes_per_s,
        .submit = submit,
        .read = read_figures,
        .ctx = m};
    NEED(sn_core_new(&setup, c->now_us, &m->core, &err));
    m->core->gossip.seed = (uint64_t)c->n + 1; /* as the identity: the same run every time */
    if (joins >= 0) {
        char to[32];
        snprintf(to, sizeof to, "mem://%d", joins);
        sn_core_join(m->core, to, c->nodes[joins].identity.curve_key);
    }
    return c->n++;
}

static bool hear(crowd *c, crowd_member *m) {
    sn_event event;
    bool any = false;
    for (;;) {
        NEED(sn_transport_recv(m->transport, 0, &event, &err));
        if (!event.peer) return any;
        any = true;
        if (m->gone) sn_msg_free(&event.msg);
        else sn_core_handle(m->core, &event, c->now_us, c->unix_ms + m->skew_ms);
    }
}

/* The daemon's part. */
static void attend(crowd *c, crowd_member *m) {
    if (m->loaded_us && c->now_us >= m->loaded_us) {
        const sn_span_facts facts = {
            .hp = &c->hp, .first = m->first, .end = m->end, .block_hash = c->block_hash + m->first};
        m->loaded_us = 0;
        sn_core_serve(m->core, &facts, 1 << 20, c->now_us, c->unix_ms + m->skew_ms);
    }
    if (sn_core_wants_to_move(m->core)) sn_core_vacate(m->core, c->now_us, c->unix_ms + m->skew_ms);
    if (sn_core_wants_blocks(m->core, &m->first, &m->end)) m->loaded_us = c->now_us + LOAD_US;
}

void crowd_run(crowd *c, double seconds) {
    for (int64_t until = c->now_us + (int64_t)(seconds * CROWD_SECOND); c->now_us < until;) {
        c->now_us += STEP_US;
        c->unix_ms += STEP_US / 1000;
        for (int i = 0; i < c->n; i++) {
            crowd_member *m = &c->nodes[i];
            bool heard = hear(c, m);
            if (m->gone || (!heard && c->now_us < m->due_us && !m->loaded_us)) continue;
            m->due_us = sn_core_tick(m->core, c->now_us, c->unix_ms + m->skew_ms);
            attend(c, m);
        }
        if (c->watch) c->watch(c);
    }
}

size_t crowd_known(const crowd *c, int i) { return sn_directory_count(c->nodes[i].core->directory); }

size_t crowd_least_known(const crowd *c) {
    size_t least = SIZE_MAX;
    for (int i = 0; i < c->n; i++)
        if (!c->nodes[i].gone && crowd_known(c, i) < least) least = crowd_known(c, i);
    return least;
}

int crowd_serving(const crowd *c, int block) {
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        const sn_seat *seat = &c->nodes[i].core->seat;
        n += !c->nodes[i].gone && sn_core_serving(c->nodes[i].core) && seat->first <= block && block < seat->end;
    }
    return n;
}

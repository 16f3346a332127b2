#include "client/route.h"

#include "tests/support/need.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 10 };
static const int64_t NOW = 1700000000000;

typedef struct map {
    sn_directory *directory;
    sn_identity nodes[80];
    int n;
    sn_offer_wish wish;
    sn_route way;
    bool push;
    sn_err err;
} map;

/* Who serves what is told by an announcement that a test may change before it is signed. */
typedef struct server {
    int first, end, sessions, queue, n_blocks, kv_free, decode_us;
    bool q8;           /* takes Q8 */
    int near, near_us; /* a round trip to the server of this number, less 1 */
    sn_node_state state;
    int other; /* 1: another model; 10 + b: other weights in block b */
} server;

static map *map_new(void) {
    map *m = calloc(1, sizeof *m);
    NEED(sn_directory_new(&m->directory, &err));
    m->wish = (sn_offer_wish){.directory = m->directory, .model = {{7}}, .n_blocks = BLOCKS};
    return m;
}

static void map_free(map **m) {
    sn_directory_free(&(*m)->directory);
    free(*m);
    *m = NULL;
}

static int add_server(map *m, server s) {
    sn_announcement *a = calloc(1, sizeof *a);
    sn_buf sealed;
    sn_identity *identity = &m->nodes[m->n];
    NEED(sn_identity_new(identity, &err));
    memcpy(a->node, identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, identity->curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "tcp://127.0.0.1:%d", 7000 + m->n);
    a->protocol = SN_PROTOCOL;
    a->sequence = 1;
    a->expires_unix_ms = (uint64_t)NOW + SN_ANNOUNCE_LIFE_MS;
    a->state = s.state;
    a->model[0] = s.other == 1 ? 8 : 7;
    a->first_block = (uint64_t)s.first;
    a->end_block = (uint64_t)s.end;
    a->n_blocks = (uint64_t)(s.n_blocks ? s.n_blocks : m->wish.n_blocks);
    for (int b = s.first; b < s.end; b++) a->block_hash[b - s.first][0] = (uint8_t)(s.other == 10 + b ? 99 : b);
    if (s.q8) a->wire_dtype[a->n_wire_dtype++] = SN_F32, a->wire_dtype[a->n_wire_dtype++] = SN_Q8;
    a->sessions = (uint64_t)s.sessions;
    a->queue = (uint64_t)s.queue;
    a->kv_bytes_free = (uint64_t)s.kv_free;
    a->decode_us = (uint64_t)s.decode_us;
    if (s.near) a->round_trip[0] = (struct sn_round_trip){sn_node_tag(m->nodes[s.near - 1].id), (uint64_t)s.near_us};
    a->n_round_trip = s.near != 0;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    NEED(sn_announcement_seal(a, identity, &sealed, &err));
    NEED(sn_directory_take(m->directory, sealed.data, sealed.len, NOW, &err));
    sn_buf_fini(&sealed);
    free(a);
    return m->n++;
}

static int add(map *m, int first, int end) { return add_server(m, (server){first, end, .state = SN_NODE_ONLINE}); }

static sn_status plan(map *m, int first, int end) {
    sn_offers offers;
    NEED(sn_offers_make(&m->wish, &offers, &err));
    sn_status status = sn_route_shortest(offers.at, offers.n, m->push, first, end, &m->way, &m->err);
    sn_offers_fini(&offers);
    return status;
}

/* The route as text: "0:4@1 4:10@here", with the numbers that add gave. */
static const char *route(map *m, int first, int end) {
    static char text[2048];
    size_t n = 0;
    text[0] = 0;
    if (plan(m, first, end)) return m->err.text;
    for (size_t i = 0; i < m->way.n; i++) {
        const sn_stop *stop = &m->way.stops[i];
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d:%d@", i ? " " : "", stop->first, stop->end);
        int who = 0;
        while (stop->node && memcmp(m->nodes[who].id, stop->node->node, SN_KEY_SIZE)) who++;
        n += (size_t)(stop->node ? snprintf(text + n, sizeof text - n, "%d", who)
                                 : snprintf(text + n, sizeof text - n, "here"));
    }
    return text;
}

Test(route, takes_the_fewest_nodes) {
    map *m = map_new();
    add(m, 0, 3);
    add(m, 3, 6);
    add(m, 6, 10);
    cr_expect_str_eq(route(m, 0, 10), "0:3@0 3:6@1 6:10@2");
    add(m, 0, 6);
    cr_expect_str_eq(route(m, 0, 10), "0:6@3 6:10@2");
    add_server(m, (server){0, 10, .queue = 1, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route(m, 0, 10), "0:10@4"); /* who waits for a step is still quicker than one more way */
    cr_expect_str_eq(route(m, 2, 5), "2:5@3");
    map_free(&m);
}

Test(route, leaves_a_node_in_the_middle_of_its_span) {
    map *m = map_new();
    add(m, 0, 8);
    add(m, 4, 10);
    const char *way = route(m, 0, 10);
    int cut = 0;
    cr_expect_eq(sscanf(way, "0:%d@0", &cut), 1, "%s", way);
    cr_expect(cut >= 4 && cut <= 8, "%s", way);
    cr_expect_eq(m->way.n, 2);
    cr_expect(m->way.stops[1].first == cut && m->way.stops[1].end == 10);
    cr_expect_str_eq(route(m, 5, 9), "5:9@1");
    map_free(&m);
}

Test(route, names_every_gap) {
    map *m = map_new();
    cr_expect(strstr(route(m, 0, 10), "nobody serves blocks 0:10"), "%s", m->err.text);
    add(m, 1, 3);
    add(m, 5, 6);
    cr_expect(strstr(route(m, 0, 10), "nobody serves blocks 0:1, 3:5, 6:10"), "%s", m->err.text);
    cr_expect_eq(m->err.status, SN_RETRY);
    m->wish.local_first = 3;
    m->wish.local_end = 5;
    cr_expect(strstr(route(m, 0, 8), "nobody serves blocks 0:1, 6:8"), "%s", m->err.text);
    cr_expect_str_eq(route(m, 1, 6), "1:3@0 3:5@here 5:6@1");
    m->wish.directory = NULL; /* a client without a network */
    cr_expect_str_eq(route(m, 3, 5), "3:5@here");
    cr_expect(strstr(route(m, 3, 6), "5:6"), "%s", m->err.text);
    map_free(&m);
}

Test(route, prefers_blocks_that_are_here) {
    map *m = map_new();
    add(m, 0, 10);
    m->wish.local_end = 4;
    cr_expect_str_eq(route(m, 0, 10), "0:4@here 4:10@0");
    m->wish.local_end = 10;
    cr_expect_str_eq(route(m, 0, 10), "0:10@here");
    map_free(&m);
}

Test(route, prefers_the_node_with_less_to_do) {
    map *m = map_new();
    add_server(m, (server){0, 10, .sessions = 3, .state = SN_NODE_ONLINE});
    add_server(m, (server){0, 10, .sessions = 1, .queue = 1, .state = SN_NODE_ONLINE});
    add_server(m, (server){0, 10, .queue = 4, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route(m, 0, 10), "0:10@0"); /* a step that waits costs more than sessions that may rest */
    add_server(m, (server){0, 10, .sessions = 2, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route(m, 0, 10), "0:10@3");
    map_free(&m);
}

Test(route, is_no_longer_than_a_node_has_room_for) {
    map *m = map_new();
    add_server(m, (server){0, 10, .kv_free = 4000, .state = SN_NODE_ONLINE});
    add_server(m, (server){0, 10, .kv_free = 999, .state = SN_NODE_ONLINE});
    m->wish.kv_bytes_per_block = 1000;
    cr_expect(strstr(route(m, 0, 10), "too full"), "%s", m->err.text);
    cr_expect_eq(m->err.status, SN_RETRY);
    cr_expect_str_eq(route(m, 0, 4), "0:4@0");
    add_server(m, (server){0, 10, .kv_free = 6000, .state = SN_NODE_ONLINE});
    cr_expect_eq(plan(m, 0, 10), SN_OK);
    cr_expect_eq(m->way.n, 2);
    map_free(&m);
}

Test(route, uses_what_nodes_measured_of_themselves_and_of_each_other) {
    map *m = map_new();
    add_server(m, (server){0, 10, .decode_us = 9000, .state = SN_NODE_ONLINE});
    add_server(m, (server){0, 10, .decode_us = 8000, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route(m, 0, 10), "0:10@1");
    map_free(&m);
    m = map_new();
    m->push = true;
    add(m, 0, 5);
    add(m, 5, 10);
    add_server(m, (server){5, 10, .state = SN_NODE_ONLINE, .near = 1, .near_us = 100});
    add_server(m, (server){5, 10, .state = SN_NODE_ONLINE, .near = 1, .near_us = 90000});
    cr_expect_str_eq(route(m, 0, 10), "0:5@0 5:10@2");
    m->push = false; /* then all comes by the client: they are equal */
    cr_expect_eq(plan(m, 0, 10), SN_OK);
    cr_expect_eq(m->way.cost_ns, 2 * (SN_GUESS_RTT_US + SN_HANDLING_US) * 1000 + 10 * SN_GUESS_BLOCK_US * 1000);
    map_free(&m);
}

Test(route, a_distance_that_was_not_measured_is_guessed_to_be_as_the_others) {
    map *m = map_new();
    sn_seen *seen = NULL;
    sn_offers offers;
    for (int i = 0; i < 4; i++) add(m, 0, 10);
    NEED(sn_seen_new(&seen, &err));
    for (int i = 0; i < 3; i++) sn_seen_round_trip(seen, m->nodes[i].id, 1000 * (i + 1), 5);
    m->wish.seen = seen;
    m->wish.now_us = 6;
    NEED(sn_offers_make(&m->wish, &offers, &err));
    for (size_t i = 0; i < offers.n; i++)
        if (!memcmp(offers.at[i].node->node, m->nodes[3].id, SN_KEY_SIZE)) {
            cr_expect_not(offers.at[i].rtt_measured);
            cr_expect_eq(offers.at[i].rtt_ns, 2000000);
        }
    sn_offers_fini(&offers);
    cr_expect_str_eq(route(m, 0, 10), "0:10@0");
    sn_seen_free(&seen);
    map_free(&m);
}

Test(route, goes_over_nodes_only_that_take_hidden_states_as_asked) {
    map *m = map_new();
    add(m, 0, 10);
    add_server(m, (server){0, 5, .state = SN_NODE_ONLINE, .q8 = true});
    m->wish.wire = SN_Q8;
    cr_expect(strstr(route(m, 0, 10), "nobody serves blocks 5:10 with hidden states as this --wire: choose f32"), "%s", route(m, 0, 10));
    add_server(m, (server){5, 10, .state = SN_NODE_ONLINE, .q8 = true});
    cr_expect_str_eq(route(m, 0, 10), "0:5@1 5:10@2");
    m->wish.wire = SN_BF16;
    cr_expect(strstr(route(m, 0, 10), "blocks 0:10 with hidden states"), "%s", route(m, 0, 10));
    m->wish.wire = SN_F32; /* which every node takes */
    cr_expect_str_eq(route(m, 0, 10), "0:10@0");
    map_free(&m);
}

Test(route, seeds_decide_among_equals) {
    map *m = map_new();
    bool taken[4] = {0};
    for (int i = 0; i < 4; i++) add(m, 0, 10);
    for (m->wish.seed = 1; m->wish.seed < 50; m->wish.seed++) {
        char first[32];
        snprintf(first, sizeof first, "%.31s", route(m, 0, 10));
        cr_expect_str_eq(route(m, 0, 10), first);
        taken[first[5] - '0'] = true;
    }
    cr_expect(taken[0] && taken[1] && taken[2] && taken[3]);
    map_free(&m);
}

Test(route, passes_over_nodes_that_may_not_or_cannot_be_used) {
    map *m = map_new();
    const server bad[] = {{0, 10, .state = SN_NODE_JOINING},
                          {0, 10, .state = SN_NODE_DRAINING},
                          {0, 10, .state = SN_NODE_OFFLINE},
                          {0, 10, .state = SN_NODE_ONLINE, .other = 1},
                          {0, 10, .state = SN_NODE_ONLINE, .n_blocks = 12}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        add_server(m, bad[i]);
        cr_expect(strstr(route(m, 0, 10), "nobody serves blocks 0:10"), "server %zu: %s", i, route(m, 0, 10));
    }
    char id[2 * SN_KEY_SIZE + 1];
    const char *names[] = {sn_hex(m->nodes[add(m, 0, 10)].id, SN_KEY_SIZE, id)};
    id[12] = 0;
    m->wish.pick = (sn_pick){.deny = names, .n_deny = 1};
    cr_expect(strstr(route(m, 0, 10), "nobody serves blocks 0:10"));
    id[3] = 0; /* too short for an id */
    cr_expect(strstr(route(m, 0, 10), "0:10@"), "%s", m->err.text);
    sn_hex(m->nodes[m->n - 1].id, SN_KEY_SIZE, id);
    int good = add(m, 0, 10);
    char want[32];
    snprintf(want, sizeof want, "0:10@%d", good);
    cr_expect_str_eq(route(m, 0, 10), want);
    map_free(&m);
}

Test(route, passes_over_nodes_with_other_weights_where_the_weights_are_known) {
    map *m = map_new();
    sn_hash hashes[BLOCKS] = {0};
    const sn_hash *known[BLOCKS] = {0};
    for (int b = 0; b < BLOCKS; b++) hashes[b].bytes[0] = (uint8_t)b;
    add_server(m, (server){2, 8, .state = SN_NODE_ONLINE, .other = 16});
    m->wish.block_hash = known;
    cr_expect_str_eq(route(m, 2, 8), "2:8@0"); /* nothing is known */
    known[2] = &hashes[2];
    known[8] = &hashes[8];
    cr_expect_str_eq(route(m, 2, 8), "2:8@0");
    known[6] = &hashes[6];
    cr_expect(strstr(route(m, 2, 8), "nobody serves blocks 2:8"), "%s", m->err.text);
    add(m, 2, 8);
    cr_expect_str_eq(route(m, 2, 8), "2:8@1");
    map_free(&m);
}

Test(route, has_a_limit_of_hops) {
    map *m = map_new();
    m->wish.n_blocks = SN_HOPS_MAX + 1;
    for (int b = 0; b <= SN_HOPS_MAX; b++) add(m, b, b + 1);
    cr_expect_eq(plan(m, 0, SN_HOPS_MAX), SN_OK);
    cr_expect_eq(m->way.n, SN_HOPS_MAX);
    cr_expect(strstr(route(m, 0, SN_HOPS_MAX + 1), "more than 64 nodes"), "%s", m->err.text);
    cr_expect_eq(m->err.status, SN_RETRY);
    map_free(&m);
}

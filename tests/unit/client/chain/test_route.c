#include "client/routing/route.h"

#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 10 };
static const int64_t NOW = 1700000000000;

typedef struct fixture {
    sn_directory *directory;
    sn_identity nodes[80];
    int n;
    sn_candidate_query query;
    sn_route found;
    bool push;
    sn_err err;
} fixture;

/* The served blocks are announced; a test may change the announcement before it is signed. */
typedef struct node_spec {
    int first, end, sessions, queue, n_blocks, kv_free, decode_us, tokens_max;
    bool q8; /* accepts Q8 */
    bool relayed;
    int neighbour, neighbour_rtt_us; /* a round trip to the node of this number - 1 */
    sn_node_state state;
    int other; /* 1: another model; 10 + b: other weights in block b */
} node_spec;

static fixture *fixture_new(void) {
    fixture *m = calloc(1, sizeof *m);
    REQUIRE(sn_directory_new(&m->directory, &err));
    m->query = (sn_candidate_query){.directory = m->directory, .model = {{7}}, .n_blocks = BLOCKS};
    return m;
}

static void fixture_free(fixture **m) {
    sn_directory_free(&(*m)->directory);
    free(*m);
    *m = NULL;
}

static int add_node(fixture *m, node_spec s) {
    sn_announcement *a = calloc(1, sizeof *a);
    sn_buf sealed;
    sn_identity *identity = &m->nodes[m->n];
    REQUIRE(sn_identity_new(identity, &err));
    memcpy(a->node, identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, identity->curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "127.0.0.1:%d", 7000 + m->n);
    a->protocol = SN_PROTOCOL_VERSION;
    a->sequence = 1;
    a->expires_unix_ms = (uint64_t)NOW + SN_ANNOUNCE_LIFE_MS;
    a->state = s.state;
    a->model[0] = s.other == 1 ? 8 : 7;
    a->first_block = (uint64_t)s.first;
    a->end_block = (uint64_t)s.end;
    a->n_blocks = (uint64_t)(s.n_blocks ? s.n_blocks : m->query.n_blocks);
    for (int b = s.first; b < s.end; b++) a->block_hash[b - s.first][0] = (uint8_t)(s.other == 10 + b ? 99 : b);
    if (s.relayed) {
        snprintf(a->address, sizeof a->address, "127.0.0.1:%d/relay", 7000 + m->n);
        a->reach = SN_REACH_RELAYED;
    }
    if (s.q8) a->wire_dtype[a->n_wire_dtype++] = SN_F32, a->wire_dtype[a->n_wire_dtype++] = SN_Q8;
    a->sessions = (uint64_t)s.sessions;
    a->queued_steps = (uint64_t)s.queue;
    a->kv_bytes_free = (uint64_t)s.kv_free;
    a->decode_us = (uint64_t)s.decode_us;
    a->kv_tokens_max = (uint64_t)s.tokens_max;
    if (s.neighbour)
        a->round_trip[0] =
            (struct sn_round_trip){sn_node_tag(m->nodes[s.neighbour - 1].id), (uint64_t)s.neighbour_rtt_us};
    a->n_round_trip = s.neighbour != 0;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, identity, &sealed, &err));
    REQUIRE(sn_directory_add(m->directory, sealed.data, sealed.len, NOW, &err));
    sn_buf_fini(&sealed);
    free(a);
    return m->n++;
}

static int add_online_node(fixture *m, int first, int end) {
    return add_node(m, (node_spec){first, end, .state = SN_NODE_ONLINE});
}

static sn_status plan_route(fixture *m, int first, int end) {
    sn_candidates candidates;
    REQUIRE(sn_candidates_make(&m->query, &candidates, &err));
    sn_status status = sn_route_shortest(candidates.at, candidates.n, m->push, first, end, &m->found, &m->err);
    sn_candidates_fini(&candidates);
    return status;
}

/* The route as text: "0:4@1 4:10@here", with the numbers that add_node returned. */
static const char *route_text(fixture *m, int first, int end) {
    static char text[2048];
    size_t n = 0;
    text[0] = 0;
    if (plan_route(m, first, end)) return m->err.text;
    for (size_t i = 0; i < m->found.n; i++) {
        const sn_route_leg *leg = &m->found.legs[i];
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d:%d@", i ? " " : "", leg->first, leg->end);
        int index = 0;
        while (leg->node && memcmp(m->nodes[index].id, leg->node->node, SN_KEY_SIZE)) index++;
        n += (size_t)(leg->node ? snprintf(text + n, sizeof text - n, "%d", index)
                                : snprintf(text + n, sizeof text - n, "here"));
    }
    return text;
}

Test(route, takes_the_fewest_nodes) {
    fixture *m = fixture_new();
    add_online_node(m, 0, 3);
    add_online_node(m, 3, 6);
    add_online_node(m, 6, 10);
    cr_expect_str_eq(route_text(m, 0, 10), "0:3@0 3:6@1 6:10@2");
    add_online_node(m, 0, 6);
    cr_expect_str_eq(route_text(m, 0, 10), "0:6@3 6:10@2");
    add_node(m, (node_spec){0, 10, .queue = 1, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@4"); /* waiting for a step is still faster than one more hop */
    cr_expect_str_eq(route_text(m, 2, 5), "2:5@3");
    fixture_free(&m);
}

static int longest_of(fixture *m, int first, int end) {
    sn_candidates candidates;
    REQUIRE(sn_candidates_make(&m->query, &candidates, &err));
    const int longest = sn_candidates_tokens_max(&candidates, first, end);
    sn_candidates_fini(&candidates);
    return longest;
}

Test(route, goes_where_the_timeline_fits) {
    fixture *m = fixture_new();
    add_node(m, (node_spec){0, 6, .state = SN_NODE_ONLINE, .tokens_max = 100});
    add_node(m, (node_spec){6, 10, .state = SN_NODE_ONLINE, .tokens_max = 1000});
    m->query.tokens = 100;
    cr_expect_str_eq(route_text(m, 0, 10), "0:6@0 6:10@1");
    m->query.tokens = 101;
    cr_expect_eq(longest_of(m, 0, 10), 100);
    cr_expect(strstr(route_text(m, 0, 10), "1 too little KV memory"), "%s", m->err.text);
    add_node(m, (node_spec){0, 6, .queue = 9, .state = SN_NODE_ONLINE, .tokens_max = 500});
    cr_expect_str_eq(route_text(m, 0, 10), "0:6@2 6:10@1");
    cr_expect_eq(longest_of(m, 0, 10), 500);
    add_node(m, (node_spec){0, 6, .state = SN_NODE_DRAINING, .tokens_max = 800}); /* another time it may serve */
    cr_expect_eq(longest_of(m, 0, 10), 800);
    add_node(m, (node_spec){0, 6, .state = SN_NODE_ONLINE, .tokens_max = 900, .other = 12}); /* never */
    cr_expect_eq(longest_of(m, 0, 10), 800 + 100 * (m->query.block_hash == NULL));
    add_online_node(m, 0, 6); /* does not say */
    cr_expect_eq(longest_of(m, 0, 6), INT_MAX);
    cr_expect_eq(longest_of(m, 0, 10), 1000);
    fixture_free(&m);
}

Test(route, leaves_a_node_in_the_middle_of_its_span) {
    fixture *m = fixture_new();
    add_online_node(m, 0, 8);
    add_online_node(m, 4, 10);
    const char *found = route_text(m, 0, 10);
    int cut = 0;
    cr_expect_eq(sscanf(found, "0:%d@0", &cut), 1, "%s", found);
    cr_expect(cut >= 4 && cut <= 8, "%s", found);
    cr_expect_eq(m->found.n, 2);
    cr_expect(m->found.legs[1].first == cut && m->found.legs[1].end == 10);
    cr_expect_str_eq(route_text(m, 5, 9), "5:9@1");
    fixture_free(&m);
}

/* The route that is drawn, as the number of its legs; none of them begins at a bound block. */
static size_t draw_route(fixture *m, uint64_t seed) {
    sn_candidates candidates;
    REQUIRE(sn_candidates_make(&m->query, &candidates, &err));
    REQUIRE(sn_route_sample(candidates.at, candidates.n, m->push, 0, BLOCKS, seed, &m->found, &err));
    for (size_t i = 0; i < m->found.n; i++)
        cr_expect(!m->query.bound[m->found.legs[i].first], "a leg begins at block %d", m->found.legs[i].first);
    sn_candidates_fini(&candidates);
    return m->found.n;
}

Test(route, begins_no_leg_at_a_bound_block) {
    static const bool bound[BLOCKS] = {[3] = true, [4] = true, [6] = true, [9] = true}; /* cuts: 0 1 2 5 7 8 10 */
    fixture *m = fixture_new();
    m->query.bound = bound;
    add_online_node(m, 0, 4);
    add_online_node(m, 4, 10);
    cr_expect(strstr(route_text(m, 0, 10), "meet where this model cannot be cut"), "%s", m->err.text);
    add_online_node(m, 1, 6); /* its last block is of no use */
    cr_assert_eq(plan_route(m, 0, BLOCKS), SN_OK, "%s", m->err.text);
    cr_assert_eq(m->found.n, 3);
    cr_expect(m->found.legs[1].first == 1 || m->found.legs[1].first == 2);
    cr_expect_eq(m->found.legs[2].first, 5);
    const int64_t least = m->found.cost_ns;
    for (uint64_t seed = 1; seed < 30; seed++) cr_expect_eq(draw_route(m, seed), 3u);
    sn_candidates candidates;
    int64_t costs[3];
    REQUIRE(sn_candidates_make(&m->query, &candidates, &err));
    REQUIRE(sn_route_cost_through(candidates.at, candidates.n, false, 0, BLOCKS, costs, &err));
    for (int i = 0; i < 3; i++) cr_expect_eq(costs[i], least, "through node %d", i);
    sn_candidates_fini(&candidates);
    fixture_free(&m);
}

Test(route, names_every_gap) {
    fixture *m = fixture_new();
    cr_expect(strstr(route_text(m, 0, 10), "no node serves blocks 0:10"), "%s", m->err.text);
    add_online_node(m, 1, 3);
    add_online_node(m, 5, 6);
    cr_expect(strstr(route_text(m, 0, 10), "no node serves blocks 0:1, 3:5, 6:10"), "%s", m->err.text);
    cr_expect_eq(m->err.status, SN_RETRY);
    m->query.local_first = 3;
    m->query.local_end = 5;
    cr_expect(strstr(route_text(m, 0, 8), "no node serves blocks 0:1, 6:8"), "%s", m->err.text);
    cr_expect_str_eq(route_text(m, 1, 6), "1:3@0 3:5@here 5:6@1");
    m->query.directory = NULL; /* a client without a network */
    cr_expect_str_eq(route_text(m, 3, 5), "3:5@here");
    cr_expect(strstr(route_text(m, 3, 6), "5:6"), "%s", m->err.text);
    fixture_free(&m);
}

Test(route, prefers_local_blocks) {
    fixture *m = fixture_new();
    add_online_node(m, 0, 10);
    m->query.local_end = 4;
    cr_expect_str_eq(route_text(m, 0, 10), "0:4@here 4:10@0");
    m->query.local_end = 10;
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@here");
    fixture_free(&m);
}

Test(route, prefers_the_less_loaded_node) {
    fixture *m = fixture_new();
    add_node(m, (node_spec){0, 10, .sessions = 3, .state = SN_NODE_ONLINE});
    add_node(m, (node_spec){0, 10, .sessions = 1, .queue = 1, .state = SN_NODE_ONLINE});
    add_node(m, (node_spec){0, 10, .queue = 4, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@0"); /* a waiting step costs more than sessions that may be idle */
    add_node(m, (node_spec){0, 10, .sessions = 2, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@3");
    fixture_free(&m);
}

Test(route, uses_only_the_free_kv_cache_of_a_node) {
    fixture *m = fixture_new();
    add_node(m, (node_spec){0, 10, .kv_free = 4000, .state = SN_NODE_ONLINE});
    add_node(m, (node_spec){0, 10, .kv_free = 999, .state = SN_NODE_ONLINE});
    m->query.kv_bytes_per_block = 1000;
    cr_expect(strstr(route_text(m, 0, 10), "too little free KV memory"), "%s", m->err.text);
    cr_expect_eq(m->err.status, SN_RETRY);
    cr_expect_str_eq(route_text(m, 0, 4), "0:4@0");
    add_node(m, (node_spec){0, 10, .kv_free = 6000, .state = SN_NODE_ONLINE});
    cr_expect_eq(plan_route(m, 0, 10), SN_OK);
    cr_expect_eq(m->found.n, 2);
    fixture_free(&m);
}

Test(route, uses_measured_throughput_and_distances) {
    fixture *m = fixture_new();
    add_node(m, (node_spec){0, 10, .decode_us = 9000, .state = SN_NODE_ONLINE});
    add_node(m, (node_spec){0, 10, .decode_us = 8000, .state = SN_NODE_ONLINE});
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@1");
    fixture_free(&m);
    m = fixture_new();
    m->push = true;
    add_online_node(m, 0, 5);
    add_online_node(m, 5, 10);
    add_node(m, (node_spec){5, 10, .state = SN_NODE_ONLINE, .neighbour = 1, .neighbour_rtt_us = 100});
    add_node(m, (node_spec){5, 10, .state = SN_NODE_ONLINE, .neighbour = 1, .neighbour_rtt_us = 90000});
    cr_expect_str_eq(route_text(m, 0, 10), "0:5@0 5:10@2");
    m->push = false; /* without push all hidden states pass through the client: both cost the same */
    cr_expect_eq(plan_route(m, 0, 10), SN_OK);
    cr_expect_eq(m->found.cost_ns,
                 2 * (SN_DEFAULT_RTT_US + SN_STEP_OVERHEAD_US) * 1000 + 10 * SN_DEFAULT_BLOCK_US * 1000);
    fixture_free(&m);
}

Test(route, an_unmeasured_distance_is_estimated_from_the_others) {
    fixture *m = fixture_new();
    sn_peer_stats *peer_stats = NULL;
    sn_candidates candidates;
    for (int i = 0; i < 4; i++) add_online_node(m, 0, 10);
    REQUIRE(sn_peer_stats_new(&peer_stats, &err));
    for (int i = 0; i < 3; i++) sn_peer_stats_note_rtt(peer_stats, m->nodes[i].id, 1000 * (i + 1), 5);
    m->query.peer_stats = peer_stats;
    m->query.now_us = 6;
    REQUIRE(sn_candidates_make(&m->query, &candidates, &err));
    for (size_t i = 0; i < candidates.n; i++)
        if (!memcmp(candidates.at[i].node->node, m->nodes[3].id, SN_KEY_SIZE)) {
            cr_expect_not(candidates.at[i].rtt_measured);
            cr_expect_eq(candidates.at[i].rtt_ns, 2000000);
        }
    sn_candidates_fini(&candidates);
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@0");
    sn_peer_stats_free(&peer_stats);
    fixture_free(&m);
}

Test(route, a_node_behind_a_relay_costs_its_relay) {
    fixture *m = fixture_new();
    add_node(m, (node_spec){0, 10, .state = SN_NODE_ONLINE, .relayed = true});
    add_node(m, (node_spec){0, 10, .queue = 1, .state = SN_NODE_ONLINE}); /* a wait that is shorter than the way */
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@1");
    fixture_free(&m);
}

Test(route, uses_only_nodes_that_accept_the_wire_dtype) {
    fixture *m = fixture_new();
    add_online_node(m, 0, 10);
    add_node(m, (node_spec){0, 5, .state = SN_NODE_ONLINE, .q8 = true});
    m->query.wire = SN_Q8;
    cr_expect(strstr(route_text(m, 0, 10), "no node serves blocks 5:10 with this --wire-dtype: choose f32"), "%s",
              route_text(m, 0, 10));
    add_node(m, (node_spec){5, 10, .state = SN_NODE_ONLINE, .q8 = true});
    cr_expect_str_eq(route_text(m, 0, 10), "0:5@1 5:10@2");
    m->query.wire = SN_BF16;
    cr_expect(strstr(route_text(m, 0, 10), "blocks 0:10 with this --wire-dtype"), "%s", route_text(m, 0, 10));
    m->query.wire = SN_F32; /* which every node accepts */
    cr_expect_str_eq(route_text(m, 0, 10), "0:10@0");
    fixture_free(&m);
}

Test(route, missing_blocks_come_with_the_reasons_why_known_nodes_are_not_used) {
    static const char *const deny[] = {"denied"};
    fixture *m = fixture_new();
    add_online_node(m, 0, 6);
    add_node(m, (node_spec){5, 10, .state = SN_NODE_DRAINING});
    add_node(m, (node_spec){0, 5, .state = SN_NODE_DRAINING}); /* has none of the missing blocks */
    cr_expect(strstr(route_text(m, 0, 10), "no node serves blocks 6:10 for this session (nodes that are not used: 1 "
                                           "not online): they start or leave; try again soon"),
              "%s", m->err.text);
    m->query.node_filter = (sn_node_filter){.only = deny, .n_only = 1};
    cr_expect(strstr(route_text(m, 0, 10), "blocks 0:10"), "%s", m->err.text);
    cr_expect(strstr(m->err.text, "1 not among --only"), "%s", m->err.text);
    cr_expect(strstr(m->err.text, "2 not online, 1 not among --only): they start or leave"), "%s", m->err.text);
    fixture_free(&m);
}

Test(route, the_seed_decides_between_equal_routes) {
    fixture *m = fixture_new();
    bool taken[4] = {0};
    for (int i = 0; i < 4; i++) add_online_node(m, 0, 10);
    for (m->query.seed = 1; m->query.seed < 50; m->query.seed++) {
        char first[32];
        snprintf(first, sizeof first, "%.31s", route_text(m, 0, 10));
        cr_expect_str_eq(route_text(m, 0, 10), first);
        taken[first[5] - '0'] = true;
    }
    cr_expect(taken[0] && taken[1] && taken[2] && taken[3]);
    fixture_free(&m);
}

Test(route, skips_denied_and_unusable_nodes) {
    fixture *m = fixture_new();
    const node_spec bad[] = {{0, 10, .state = SN_NODE_JOINING},
                             {0, 10, .state = SN_NODE_DRAINING},
                             {0, 10, .state = SN_NODE_OFFLINE},
                             {0, 10, .state = SN_NODE_ONLINE, .other = 1},
                             {0, 10, .state = SN_NODE_ONLINE, .n_blocks = 12}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        add_node(m, bad[i]);
        cr_expect(strstr(route_text(m, 0, 10), "no node serves blocks 0:10"), "server %zu: %s", i,
                  route_text(m, 0, 10));
    }
    char id[2 * SN_KEY_SIZE + 1];
    const char *names[] = {sn_hex(m->nodes[add_online_node(m, 0, 10)].id, SN_KEY_SIZE, id)};
    id[12] = 0;
    m->query.node_filter = (sn_node_filter){.deny = names, .n_deny = 1};
    cr_expect(strstr(route_text(m, 0, 10), "no node serves blocks 0:10"));
    id[3] = 0; /* too short for an id */
    cr_expect(strstr(route_text(m, 0, 10), "0:10@"), "%s", m->err.text);
    sn_hex(m->nodes[m->n - 1].id, SN_KEY_SIZE, id);
    int good = add_online_node(m, 0, 10);
    char want[32];
    snprintf(want, sizeof want, "0:10@%d", good);
    cr_expect_str_eq(route_text(m, 0, 10), want);
    fixture_free(&m);
}

Test(route, skips_nodes_with_other_weights_where_hashes_are_known) {
    fixture *m = fixture_new();
    sn_hash hashes[BLOCKS] = {0};
    const sn_hash *known[BLOCKS] = {0};
    for (int b = 0; b < BLOCKS; b++) hashes[b].bytes[0] = (uint8_t)b;
    add_node(m, (node_spec){2, 8, .state = SN_NODE_ONLINE, .other = 16});
    m->query.block_hash = known;
    cr_expect_str_eq(route_text(m, 2, 8), "2:8@0"); /* the client knows no hashes */
    known[2] = &hashes[2];
    known[8] = &hashes[8];
    cr_expect_str_eq(route_text(m, 2, 8), "2:8@0");
    known[6] = &hashes[6];
    cr_expect(strstr(route_text(m, 2, 8), "no node serves blocks 2:8"), "%s", m->err.text);
    add_online_node(m, 2, 8);
    cr_expect_str_eq(route_text(m, 2, 8), "2:8@1");
    fixture_free(&m);
}

Test(route, has_a_limit_of_hops) {
    fixture *m = fixture_new();
    m->query.n_blocks = SN_HOPS_MAX + 1;
    for (int b = 0; b <= SN_HOPS_MAX; b++) add_online_node(m, b, b + 1);
    cr_expect_eq(plan_route(m, 0, SN_HOPS_MAX), SN_OK);
    cr_expect_eq(m->found.n, SN_HOPS_MAX);
    cr_expect(strstr(route_text(m, 0, SN_HOPS_MAX + 1), "more than 64 nodes"), "%s", m->err.text);
    cr_expect_eq(m->err.status, SN_RETRY);
    fixture_free(&m);
}

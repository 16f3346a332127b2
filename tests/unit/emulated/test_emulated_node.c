/* A node whose emulated CUDA device or XPU is lost: it announces and serves the blocks of its other devices, tries the
 * device again, and takes the blocks back. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "base/clock.h"
#include "net/directory.h"
#include "tests/support/cuda_stand_in/stand_in.h"
#include "tests/support/emulated_memory.h"
#include "tests/support/node_client.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_TRY_S = 5, A_MINUTE_US = 60000000 };

/* The device that the running test loses. */
static const char *device;

static void lose(void) {
#ifdef SN_ZE_TEST_DRIVER
    if (!strcmp(device, "xpu:0")) return ze_test_faults.lose(1);
#endif
    cuda_stand_in_lose(1);
}

static void heal(void) {
#ifdef SN_ZE_TEST_DRIVER
    ze_test_faults.heal();
#endif
    cuda_stand_in_heal();
}

typedef struct fixture {
    testbed *w;
    node_client *client;
} fixture;

/* A node that computes blocks [0, end) on the device, and the others on the CPU. */
static fixture fixture_begin(int end) {
    static char both[32], map[64]; /* the node borrows them */
    snprintf(both, sizeof both, "cpu,%s", device);
    snprintf(map, sizeof map, end == 4 ? "0:%d=%s" : "0:%d=%s,%d:4=cpu", end, device, end);
    cuda_stand_in_reset();
    fixture f = {.w = testbed_new(&(cluster_options){.kv_memory = 64, .device = both, .device_map = map})};
    cluster_add(f.w->cluster, 0, 0);
    f.client = node_client_new(f.w, 0);
    return f;
}

static void fixture_end(fixture *f) {
    node_client_free(&f->client);
    testbed_free(&f->w);
    cr_expect_eq(emulated_memory_used(), 0, "memory of the lost device is still held");
}

/* What the node says of itself now. */
static bool announces(fixture *f, sn_node_state state, uint64_t first, uint64_t end) {
    sn_msg *msg = NULL; /* holds the list */
    static sn_announcement a;
    REQUIRE(sn_msg_new(SN_MSG_KV_SEND, 0, &msg, &err));
    node_client_announcement(f->w, 0, &msg->kv_send.node, &msg->kv_send.n_node);
    REQUIRE(sn_announcement_open(msg->kv_send.node[0].data, msg->kv_send.node[0].len, sn_unix_ms(), &a, &err));
    sn_msg_free(&msg);
    return a.state == state && a.first_block == first && a.end_block == end &&
           (first == end || !memcmp(a.block_hash[end - first - 1], &f->w->block_hash[end - 1], SN_HASH_SIZE));
}

static void await_announced(fixture *f, sn_node_state state, uint64_t first, uint64_t end) {
    int64_t until = sn_now_us() + A_MINUTE_US;
    while (!announces(f, state, first, end) && sn_now_us() < until) sn_sleep_us(500000);
    cr_assert(announces(f, state, first, end));
}

static sn_msg *open_session(node_session *s, fixture *f, int first, int end) {
    node_session_init(s, f->w, f->client, first, end);
    sn_msg *msg = node_session_open_message(s);
    return node_client_request(f->client, &msg);
}

static void expect_opened(node_session *s, fixture *f, int first, int end) {
    sn_msg *answer = open_session(s, f, first, end);
    cr_assert_eq(answer->kind, SN_MSG_OPEN_REPLY, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    sn_msg_free(&answer);
}

static sn_msg *step(node_session *s, int position) {
    sn_msg *msg = node_session_step_message(s, position, 1);
    return node_client_request(s->client, &msg);
}

static void expect_steps(node_session *s) {
    sn_msg *answer = step(s, 0);
    cr_expect_eq(answer->kind, SN_MSG_STEP_REPLY, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    sn_msg_free(&answer);
}

static void expect_part_served(void) {
    node_session all, part, refused, later;
    fixture f = fixture_begin(1);
    expect_opened(&all, &f, 0, 4);
    cr_assert(announces(&f, SN_NODE_ONLINE, 0, 4));
    lose();
    cr_expect(is_refusal(step(&all, 0), SN_STOP, device));
    cr_expect(announces(&f, SN_NODE_ONLINE, 1, 4));
    cr_expect(is_refusal(open_session(&refused, &f, 0, 4), SN_REFUSED, "this node serves 1:4"));
    expect_opened(&part, &f, 1, 4);
    expect_steps(&part);
    sn_sleep_us(4 * FIRST_TRY_S * 1000000); /* it is tried again in vain */
    cr_expect(announces(&f, SN_NODE_ONLINE, 1, 4));
    node_session_close(&part);
    node_session_close(&all);
    heal();
    await_announced(&f, SN_NODE_ONLINE, 0, 4);
    expect_opened(&later, &f, 0, 4);
    expect_steps(&later);
    node_session_close(&later);
    free(refused.timeline);
    fixture_end(&f);
}

static void expect_nothing_served(void) {
    node_session all, refused, later;
    fixture f = fixture_begin(4);
    expect_opened(&all, &f, 0, 4);
    lose();
    cr_expect(is_refusal(step(&all, 0), SN_STOP, device));
    cr_expect(announces(&f, SN_NODE_JOINING, 0, 0));
    cr_expect(is_refusal(open_session(&refused, &f, 0, 4), SN_RETRY, "lost the device"));
    heal();
    await_announced(&f, SN_NODE_ONLINE, 0, 4);
    expect_opened(&later, &f, 0, 4);
    expect_steps(&later);
    node_session_close(&later);
    free(refused.timeline);
    free(all.timeline);
    fixture_end(&f);
}

static void for_each_device(void (*expect)(void)) {
    device = "cuda:0";
    expect();
#ifdef SN_ZE_TEST_DRIVER
    device = "xpu:0";
    expect();
#endif
}

Test(emulated_node, serves_and_announces_what_works_until_its_lost_device_is_back) {
    for_each_device(expect_part_served);
}

Test(emulated_node, announces_no_block_while_its_only_device_is_lost) { for_each_device(expect_nothing_served); }

/* The device works while it is tried, and fails when the blocks are loaded onto it. */
Test(emulated_node, blocks_that_cannot_be_loaded_are_tried_again) {
    enum { NTH_ALLOCATION = 12 }; /* a try has fewer, a try and a load more */
    node_session all, later;
    device = "cuda:0";
    fixture f = fixture_begin(1);
    expect_opened(&all, &f, 0, 4);
    lose();
    cr_expect(is_refusal(step(&all, 0), SN_STOP, device));
    node_session_close(&all);
    heal();
    cuda_stand_in_fail_allocation(NTH_ALLOCATION);
    await_announced(&f, SN_NODE_JOINING, 0, 0);
    await_announced(&f, SN_NODE_ONLINE, 0, 4);
    expect_opened(&later, &f, 0, 4);
    expect_steps(&later);
    node_session_close(&later);
    fixture_end(&f);
}

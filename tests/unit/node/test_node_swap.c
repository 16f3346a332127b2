/* A node that swaps idle sessions to disk: the client does not notice, unless the disk returns other data. */
#include "base/clock.h"
#include "node/serving.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

/* Waits until the node reports this many swapped bytes. */
static bool swapped_becomes(node_client *t, uint64_t bytes) {
    for (int64_t until = sn_now_us() + 8000000; sn_now_us() < until; sn_sleep_us(20000))
        if (node_client_status(t).swapped_bytes == bytes) return true;
    return false;
}

Test(node_swap, a_session_swaps_to_disk_and_back_or_must_be_rebuilt) {
    testbed *w = testbed_new(&(cluster_options){
        .kv_memory = 8, .swap_to = SN_ON_DISK, .swap_dir = "/tmp", .swap_memory = 1 << 20, .swap_after_s = 1});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session a, b;
    node_session_init(&a, w, t, 0, 4), node_session_init(&b, w, t, 0, 4);
    node_session_open(&a), node_session_open(&b);
    cr_expect(node_session_step_ok(&a, 0, 70));
    cr_expect(node_session_step_ok(&b, 0, 10));
    cr_assert(swapped_becomes(t, 4 * w->page_bytes));
    node_client_await_kv_bytes(t, 0);
    cr_expect(node_session_step_ok(&a, 70, 5));
    cr_assert(swapped_becomes(t, 4 * w->page_bytes));
    uint8_t zeros[64] = {0};
    for (uint64_t page = 0; page < 4; page++)
        cr_assert_eq(pwrite(unnamed_file(), zeros, sizeof zeros, (off_t)(page * w->page_bytes + 128)), 64);
    sn_msg *msg = node_session_step_message(&a, 75, 1);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "is damaged there"));
    msg = node_session_step_message(&b, 3, 1);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "is damaged there"));
    node_session_close(&b);
    node_session_close(&a);
    node_client_await_kv_bytes(t, 0);
    cr_expect(swapped_becomes(t, 0));
    node_client_free(&t);
    testbed_free(&w);
}

Test(node_swap, two_clients_alternate_in_a_cache_that_holds_one) {
    testbed *w = testbed_new(
        &(cluster_options){.kv_memory = 3, .swap_to = SN_IN_HOST, .swap_memory = 1 << 20, .kv_timeout_s = 4});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *u = node_client_new(w, 0);
    node_session a, b;
    node_session_init(&a, w, t, 0, 4), node_session_init(&b, w, u, 0, 4);
    node_session_open(&a), node_session_open(&b);
    cr_expect(node_session_step_ok(&a, 0, 80));
    cr_expect(node_session_step_ok(&b, 0, 80));
    cr_expect(node_session_step_ok(&a, 80, 1));
    cr_expect(node_session_step_ok(&b, 80, 16));
    cr_expect(node_session_step_ok(&a, 40, 30));
    node_session_close(&a), node_session_close(&b);
    node_client_await_kv_bytes(t, 0);
    node_client_free(&t), node_client_free(&u);
    testbed_free(&w);
}

Test(node_swap, by_default_idle_sessions_get_a_share_of_what_the_blocks_leave) {
    const size_t mib = 1 << 20;
    cr_expect_eq(sn_serving_swap_default(512 * mib, false, true, 16384 * mib), 2048 * mib);
    cr_expect_eq(sn_serving_swap_default(512 * mib, false, true, 4608 * mib), 1024 * mib);
    cr_expect_eq(sn_serving_swap_default(512 * mib, false, false, 4096 * mib), 1024 * mib);
    cr_expect_eq(sn_serving_swap_default(512 * mib, false, true, 100 * mib), 0);
    cr_expect_eq(sn_serving_swap_default(512 * mib, true, true, 100 * mib), 2048 * mib);
    cr_expect_eq(sn_serving_swap_default(SIZE_MAX / 2, true, true, 0), SIZE_MAX);
}

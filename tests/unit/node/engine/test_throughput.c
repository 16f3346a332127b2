#include "node/engine/throughput.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>

Test(throughput, is_a_running_mean_of_decode_and_prefill_batches) {
    sn_throughput s = {0};
    sn_throughput_update(&s, 1, 800);
    sn_throughput_update(&s, 64, 64000);
    cr_expect_eq(s.decode_us, 800);
    cr_expect_eq(s.prompt_tokens_per_s, 1000);
    sn_throughput_update(&s, 1, 1600);
    cr_expect_eq(s.decode_us, 900);
    sn_throughput_update(&s, 0, 5); /* a batch over other blocks, or of no decode row */
    sn_throughput_update(&s, 8, 5); /* several decode rows: neither mean changes */
    cr_expect_eq(s.decode_us, 900);
    cr_expect_eq(s.prompt_tokens_per_s, 1000);
}

Test(throughput, estimates_what_a_row_adds_to_a_batch) {
    sn_throughput s = {0};
    sn_throughput_update(&s, 1, 50000); /* streamed blocks: a batch takes this long in any case */
    cr_expect_eq(s.row_ns, 0);
    sn_throughput_update(&s, 65, 82000);
    cr_expect_eq(s.row_ns, 500001);
    sn_throughput_update(&s, 9, 49000); /* never less than 0 */
    cr_expect_eq(s.row_ns, (7 * 500001 + 1 + 7) / 8);
}

/* A node measures its throughput before it begins to serve, frees the pages that the measurement took, and announces
 * it. */
Test(throughput, is_measured_before_a_node_serves_and_announced) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 4);
    sn_link *link = cluster_link(w->cluster);
    sn_err err = {0};
    cr_assert_eq(sn_link_discover(link, NULL, 5000, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_directory_count(sn_link_directory(link)), 1);
    const sn_announcement *a = sn_directory_at(sn_link_directory(link), 0);
    cr_expect_eq(a->state, SN_NODE_ONLINE);
    cr_expect_gt(a->decode_us, 0);
    cr_expect_gt(a->prompt_tokens_per_s, 0);
    cr_expect_eq(a->tokens_per_s, a->decode_us > 1000000 ? 1 : 1000000 / a->decode_us);
    cr_expect_eq(a->kv_bytes_free, 64 * w->page_bytes);
    cr_expect_eq(a->n_wire_dtype, 4);
    sn_link_close(&link);
    testbed_free(&w);
}

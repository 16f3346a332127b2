#include "node/speed.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>

Test(speed, is_a_running_mean_of_passes_of_one_row_and_of_many) {
    sn_speed s = {0};
    sn_speed_note(&s, 1, 800);
    sn_speed_note(&s, 64, 64000);
    cr_expect_eq(s.decode_us, 800);
    cr_expect_eq(s.prompt_tokens_per_s, 1000);
    sn_speed_note(&s, 1, 1600);
    cr_expect_eq(s.decode_us, 900);
    sn_speed_note(&s, 0, 5); /* a pass over other blocks, or none */
    sn_speed_note(&s, 8, 5); /* several that decode: neither */
    cr_expect_eq(s.decode_us, 900);
    cr_expect_eq(s.prompt_tokens_per_s, 1000);
}

Test(speed, knows_what_a_row_adds_to_a_pass) {
    sn_speed s = {0};
    sn_speed_note(&s, 1, 50000); /* blocks that are streamed: a pass takes that anyway */
    cr_expect_eq(s.row_ns, 0);
    sn_speed_note(&s, 65, 82000);
    cr_expect_eq(s.row_ns, 500001);
    sn_speed_note(&s, 9, 49000); /* no less than nothing */
    cr_expect_eq(s.row_ns, (7 * 500001 + 1 + 7) / 8);
}

/* A node knows its speed when it begins to serve, gives back the pages that it took, and announces it. */
Test(speed, is_measured_before_a_node_serves_and_announced) {
    world *w = world_new(&(cluster_options){.kv_memory = 64});
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
    world_free(&w);
}

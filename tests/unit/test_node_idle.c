/* A node whose sessions rest on disk: a client notices nothing, but when the disk gives back something else. */
#include "base/clock.h"
#include "tests/support/files.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

/* Waits until the node says that so many bytes rest. */
static bool rests(talk *t, uint64_t bytes) {
    for (int64_t until = sn_now_us() + 8000000; sn_now_us() < until; sn_sleep_us(20000))
        if (talk_status(t).idle_bytes == bytes) return true;
    return false;
}

Test(node_idle, a_session_goes_to_disk_and_comes_back_with_its_bits_or_is_to_be_rebuilt) {
    world *w = world_new(&(cluster_options){
        .kv_memory = 8, .idle_to = "disk", .idle_dir = "/tmp", .idle_memory = 1 << 20, .idle_after_s = 1});
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past a, b;
    past_init(&a, w, t, 0, 4), past_init(&b, w, t, 0, 4);
    past_open(&a), past_open(&b);
    cr_expect(past_goes_on(&a, 0, 70));
    cr_expect(past_goes_on(&b, 0, 10));
    cr_assert(rests(t, 4 * w->page_bytes));
    talk_await_kv_bytes(t, 0);
    cr_expect(past_goes_on(&a, 70, 5));
    cr_assert(rests(t, 4 * w->page_bytes));
    uint8_t zeros[64] = {0};
    for (uint64_t page = 0; page < 4; page++)
        cr_assert_eq(pwrite(unnamed_file(), zeros, sizeof zeros, (off_t)(page * w->page_bytes + 128)), 64);
    sn_msg *msg = past_step_message(&a, 75, 1);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "came back damaged"));
    msg = past_step_message(&b, 3, 1);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "came back damaged"));
    past_close(&b);
    past_close(&a);
    talk_await_kv_bytes(t, 0);
    cr_expect(rests(t, 0));
    talk_free(&t);
    world_free(&w);
}

Test(node_idle, two_clients_take_turns_in_a_cache_that_holds_one) {
    world *w = world_new(&(cluster_options){
        .kv_memory = 3, .idle_to = "host", .idle_memory = 1 << 20, .room_timeout_s = 4});
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *u = talk_new(w, 0);
    past a, b;
    past_init(&a, w, t, 0, 4), past_init(&b, w, u, 0, 4);
    past_open(&a), past_open(&b);
    cr_expect(past_goes_on(&a, 0, 80));
    cr_expect(past_goes_on(&b, 0, 80));
    cr_expect(past_goes_on(&a, 80, 1));
    cr_expect(past_goes_on(&b, 80, 16));
    cr_expect(past_goes_on(&a, 40, 30));
    past_close(&a), past_close(&b);
    talk_await_kv_bytes(t, 0);
    talk_free(&t), talk_free(&u);
    world_free(&w);
}

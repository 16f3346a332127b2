/* The context that a server offers, by what its nodes say of their memory. */
#include "cli/serve_room.h"

#include <criterion/criterion.h>
#include <string.h>

static const char description[] = "{\"id\": \"m\", \"blocks\": [{}, {}, {}, {}]}";
#define NODE(model, state, blocks, tokens)                                                                             \
    "{\"model\": \"" model "\", \"state\": \"" state "\", \"blocks\": \"" blocks "\", \"kv_tokens_max\": " tokens      \
    ", \"kv_bytes_max\": 65536}"

static void expect_room(const char *nodes, size_t longest, size_t all) {
    json_t *status = json_loads(nodes, JSON_DECODE_ANY, NULL), *model = json_loads(description, 0, NULL);
    json_t *wrapped = json_pack("{s:O}", "nodes", status);
    cr_assert(status && model);
    const sn_serve_room room = sn_serve_room_of(wrapped, model);
    cr_expect(room.longest == longest && room.all == all, "%s: %zu and %zu", nodes, room.longest, room.all);
    json_decref(wrapped);
    json_decref(status);
    json_decref(model);
}

Test(serve_room, a_timeline_is_as_long_as_the_tightest_block_allows) {
    expect_room("[" NODE("m", "online", "0:3", "1024") ", " NODE("m", "online", "3:4", "2048") "]", 1024, 896);
    expect_room("[" NODE("m", "online", "0:3", "1024") ", " NODE("m", "online", "0:3",
                                                                 "512") ", " NODE("m", "online", "3:4", "4096") "]",
                1024, 1344);
}

Test(serve_room, idle_sessions_that_are_swapped_out_count_for_all_and_not_for_one) {
    expect_room("[{\"model\": \"m\", \"state\": \"online\", \"blocks\": \"0:4\", \"kv_tokens_max\": 1024, "
                "\"kv_bytes_max\": 65536, \"swap_bytes_max\": 131072}]",
                1024, 2688);
}

Test(serve_room, what_no_node_of_the_model_says_does_not_count) {
    expect_room("[]", 0, 0);
    expect_room("[" NODE("m", "draining", "0:3", "1024") ", " NODE("x", "online", "0:3", "1024") "]", 0, 0);
    expect_room("[" NODE("m", "online", "0:9", "1024") ", " NODE("m", "online", "x", "1024") ", " NODE(
                    "m", "online", "0:3", "0") ", " NODE("m", "online", "2:2", "5") ", 5, {}]",
                0, 0);
    expect_room("[" NODE("m", "online", "0:1", "1024") "]", 1024, 896); /* others serve the other blocks later */
}

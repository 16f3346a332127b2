/* The context that a server offers, by what its nodes say of their memory. */
#include "cli/serve_room.h"

#include <criterion/criterion.h>
#include <string.h>

/* Four blocks of 8 numbers a token, of which the last one has no attention. */
static const char description[] =
    "{\"id\": \"m\", \"blocks\": [{\"kv_floats\": 8}, {\"kv_floats\": 8}, {\"kv_floats\": 8}, "
    "{\"kv_floats\": 0}]}";
#define NODE(model, state, blocks, bytes)                                                                              \
    "{\"model\": \"" model "\", \"state\": \"" state "\", \"blocks\": \"" blocks "\", \"kv_bytes_max\": " bytes "}"

static void expect_room(const char *nodes, size_t longest, size_t all) {
    json_t *status = json_loads(nodes, JSON_DECODE_ANY, NULL), *model = json_loads(description, 0, NULL);
    json_t *wrapped = json_pack("{s:O}", "nodes", status);
    cr_assert(status && model);
    const sn_serve_room room = sn_serve_room_of(wrapped, model, 4);
    cr_expect(room.longest == longest && room.all == all, "%s: %zu and %zu", nodes, room.longest, room.all);
    json_decref(wrapped);
    json_decref(status);
    json_decref(model);
}

Test(serve_room, a_timeline_is_as_long_as_the_tightest_block_allows) {
    expect_room("[" NODE("m", "online", "0:3", "98304") ", " NODE("m", "online", "3:4", "1") "]", 896, 896);
    expect_room("[" NODE("m", "online", "0:2", "65536") ", " NODE("m", "online", "2:4", "65536") "]", 896, 896);
    expect_room("[" NODE("m", "online", "0:3", "98304") ", " NODE("m", "online", "0:3",
                                                                  "49152") ", " NODE("m", "online", "3:4", "1") "]",
                896, 1344);
}

Test(serve_room, what_no_node_of_the_model_says_does_not_count) {
    expect_room("[]", 0, 0);
    expect_room("[" NODE("m", "draining", "0:3", "98304") ", " NODE("x", "online", "0:3", "98304") "]", 0, 0);
    expect_room("[" NODE("m", "online", "0:9", "98304") ", " NODE("m", "online", "x", "98304") ", " NODE(
                    "m", "online", "0:3", "0") ", " NODE("m", "online", "2:2", "5") ", 5, {}]",
                0, 0);
    expect_room("[" NODE("m", "online", "0:1", "32768") "]", 896, 896); /* others serve the other blocks later */
}

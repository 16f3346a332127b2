/* What a chain reports of a node: its name is the node's own word. */
#include "client/chain/hop.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>

/* 29 letters and one of two bytes, which the report has no room for; it is JSON, so it must be UTF-8. */
Test(hop, the_name_of_a_node_is_reported_as_printable_text) {
    static sn_announcement node = {.name = "\x1b[31mabcdefghijklmnopqrstuvwx\xc3\xa4z", .address = "127.0.0.1:1"};
    const sn_route_leg leg = {&node, 0, 1, 0};
    const sn_hash none = {{0}};
    sn_hop hop;
    REQUIRE(sn_hop_init(&hop, &leg, &none, &none, false, &err));
    cr_expect_str_eq(hop.report.node, "?[31mabcdefghijklmnopqrstuvwx?@127.0.0.1:1");
    sn_hop_fini(&hop, NULL);
}

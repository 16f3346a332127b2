/* Whom to ask of the nodes that were found in a DHT. */
#include "net/dht_found.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { NOW = 1000000, HONEST = 1000000 };

static sn_dht_found found;

/* Node `number`; its record ends so many ms from now. */
static void add(int number, const char *address, int life_ms) {
    sn_dht_record record = {.expires_unix_ms = (uint64_t)(NOW + life_ms)};
    memcpy(record.node, &number, sizeof number);
    memcpy(record.curve_key, &number, sizeof number);
    snprintf(record.address, sizeof record.address, "%s", address);
    sn_dht_found_add(&found, &record);
}

static int number_of(const sn_dht_record *record) {
    int number = -1;
    if (record) memcpy(&number, record->node, sizeof number);
    return number;
}

static bool holds(int number) {
    for (size_t i = 0; i < found.n; i++)
        if (number_of(&found.nodes[i].record) == number) return true;
    return false;
}

/* Invented nodes, each in a network of its own if `spread`. */
static void flood(int n, bool spread) {
    char address[32];
    for (int i = 0; i < n; i++) {
        if (spread)
            snprintf(address, sizeof address, "10.%d.%d.1:1", i >> 8 & 255, i & 255);
        else
            snprintf(address, sizeof address, "[2001:db8:1:%x::1]:1", i);
        add(i, address, 1000);
    }
}

Test(dht_found, of_too_many_records_a_random_sample_is_kept) {
    for (int last = 0; last < 2; last++) {
        int kept = 0;
        for (int k = 0; k < 100; k++) {
            found = (sn_dht_found){.seed = (uint64_t)(400 + 2 * k + last)};
            if (!last) add(HONEST, "192.0.2.1:1", 1000);
            flood(1000, true);
            if (last) add(HONEST, "192.0.2.1:1", 1000);
            kept += holds(HONEST);
        }
        cr_assert(kept > 10 && kept < 45, "a sample of 256 of 1001 held one of them %d times of 100", kept);
    }
}

/* Whatever comes first, each node of a full sample is asked in the end. */
Test(dht_found, all_nodes_have_their_turn_and_come_again) {
    bool asked[200] = {0};
    found = (sn_dht_found){.seed = 1};
    flood(200, true);
    for (int i = 0; i < 200; i++) {
        int number = number_of(sn_dht_found_next(&found, true, NOW));
        cr_assert(number >= 0 && number < 200 && !asked[number]);
        asked[number] = true;
    }
    cr_assert_null(sn_dht_found_next(&found, true, NOW));
    cr_assert_not_null(sn_dht_found_next(&found, false, NOW));
}

Test(dht_found, those_that_were_asked_make_room_for_others) {
    for (uint64_t seed = 1; seed < 20; seed++) {
        found = (sn_dht_found){.seed = seed};
        flood(1000, true);
        while (sn_dht_found_next(&found, true, NOW)) {}
        add(HONEST, "192.0.2.1:1", 1000);
        cr_assert(holds(HONEST), "seed %d", (int)seed);
        cr_assert_eq(number_of(sn_dht_found_next(&found, false, NOW)), HONEST, "seed %d", (int)seed);
    }
}

Test(dht_found, the_order_is_drawn) {
    int first = 0;
    for (int k = 0; k < 100; k++) {
        found = (sn_dht_found){.seed = (uint64_t)k};
        flood(20, true);
        first += number_of(sn_dht_found_next(&found, true, NOW)) == 0;
    }
    cr_assert_lt(first, 30);
}

Test(dht_found, a_network_does_not_crowd_out_others) {
    found = (sn_dht_found){.seed = 1};
    add(HONEST, "192.0.2.1:1", 1000);
    flood(5000, false);
    add(HONEST + 1, "192.0.3.1:1/relay", 1000);
    cr_assert(holds(HONEST) && holds(HONEST + 1));
    bool asked[2] = {0};
    for (int i = 0; i < 3; i++) { /* one of each network */
        int number = number_of(sn_dht_found_next(&found, true, NOW)) - HONEST;
        if (number >= 0) asked[number] = true;
    }
    cr_assert(asked[0] && asked[1]);
}

Test(dht_found, a_newer_record_replaces_an_older_one_and_expired_ones_go) {
    found = (sn_dht_found){.seed = 1};
    add(1, "192.0.2.1:1", 1000);
    add(1, "192.0.2.1:2", 2000);
    add(1, "192.0.2.1:3", 500);
    cr_assert_eq(found.n, 1);
    cr_assert_str_eq(sn_dht_found_next(&found, true, NOW)->address, "192.0.2.1:2");
    add(2, "192.0.2.1:1", 100);
    cr_assert_null(sn_dht_found_next(&found, true, NOW + 1000));
    cr_assert_null(sn_dht_found_next(&found, false, NOW + 2000));
}

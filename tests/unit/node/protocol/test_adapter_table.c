/* Whose adapters make room for others (node/protocol/adapter_table.h). */
#include "node/protocol/adapter_table.h"

#include <criterion/criterion.h>

enum { MIB = 1 << 20, BYTES_MAX = 128 * MIB };
static const int64_t SECOND = 1000000, NOW = 1000 * 1000000LL;
static const uint8_t honest[SN_ADDRESS_PREFIX] = {1}, stranger[SN_ADDRESS_PREFIX] = {2}, third[SN_ADDRESS_PREFIX] = {3};
static sn_adapter_table table;

static sn_adapter_entry *hold(int at, const uint8_t network[SN_ADDRESS_PREFIX], size_t bytes, int64_t used_us) {
    sn_adapter_entry *entry = &table.entries[at];
    *entry = (sn_adapter_entry){.state = SN_ADAPTER_ENTRY_READY, .bytes = bytes, .used_us = used_us};
    memcpy(entry->network, network, SN_ADDRESS_PREFIX);
    return entry;
}

static sn_adapter_entry *oldest(const uint8_t network[SN_ADDRESS_PREFIX]) {
    return sn_adapter_table_find_oldest(&table, network, BYTES_MAX, NOW);
}

static void clear(void) { table = (sn_adapter_table){0}; }
TestSuite(adapter_table, .init = clear);

Test(adapter_table, a_network_that_sends_adapter_after_adapter_unloads_its_own) {
    hold(0, honest, 60 * MIB, NOW - 50 * SECOND);
    for (int i = 1; i <= SN_ADAPTER_ENTRIES_MAX / 2; i++) hold(i, stranger, MIB, NOW - (40 - i) * SECOND);
    cr_expect_eq(oldest(stranger), &table.entries[1]);
    cr_expect_null(oldest(third), "adapters in use by modest networks make room for no other one");
    hold(SN_ADAPTER_ENTRIES_MAX / 2 + 1, stranger, MIB, NOW);
    cr_expect_eq(oldest(third), &table.entries[1], "a network with more than a half of the entries makes room");
    cr_expect_eq(oldest(honest), &table.entries[0], "a client replaces its own");
}

Test(adapter_table, a_network_with_most_bytes_makes_room_for_others) {
    hold(0, honest, 60 * MIB, NOW - 50 * SECOND);
    sn_adapter_entry *large = hold(1, stranger, 65 * MIB, NOW);
    cr_expect_eq(oldest(third), large);
}

Test(adapter_table, what_was_not_used_for_a_minute_makes_room_for_all) {
    sn_adapter_entry *unused = hold(0, honest, MIB, NOW - SN_ADAPTER_KEPT_US);
    cr_expect_eq(oldest(stranger), unused);
    unused->users = 1;
    cr_expect_null(oldest(stranger));
}

Test(adapter_table, a_network_loads_no_more_than_a_half_at_once) {
    cr_expect(sn_adapter_table_may_load(&table, stranger, BYTES_MAX, BYTES_MAX), "the first one may take all");
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX / 2; i++) {
        cr_expect(sn_adapter_table_may_load(&table, stranger, MIB, BYTES_MAX), "%d", i);
        hold(i, stranger, MIB, NOW)->state = SN_ADAPTER_ENTRY_LOADING;
    }
    cr_expect(!sn_adapter_table_may_load(&table, stranger, 0, BYTES_MAX), "places are left to others");
    cr_expect(sn_adapter_table_may_load(&table, honest, BYTES_MAX, BYTES_MAX));
    clear();
    hold(0, stranger, 60 * MIB, NOW)->state = SN_ADAPTER_ENTRY_LOADING;
    cr_expect(sn_adapter_table_may_load(&table, stranger, 4 * MIB, BYTES_MAX));
    cr_expect(!sn_adapter_table_may_load(&table, stranger, 4 * MIB + 1, BYTES_MAX), "memory is left to others");
    table.entries[0].state = SN_ADAPTER_ENTRY_READY;
    cr_expect(sn_adapter_table_may_load(&table, stranger, BYTES_MAX, BYTES_MAX), "it is loaded");
}

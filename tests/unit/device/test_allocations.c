#include "device/allocations.h"

#include "tests/support/require.h"

#include <criterion/criterion.h>

#define AT(address) ((const void *)(uintptr_t)(address))

Test(allocations, contain_what_was_added_and_not_removed) {
    enum { N = 1000 };
    sn_allocations h = {0};
    bool held[N] = {false};
    for (int i = 0; i < 5 * N; i++) { /* 607 and N are coprime: every slot is visited, in no particular order */
        int k = i * 607 % N;
        REQUIRE(sn_allocations_reserve(&h, &err));
        if (held[k])
            sn_allocations_remove(&h, AT(4096 * (k + 1)));
        else
            sn_allocations_add(&h, AT(4096 * (k + 1)), 4095 - (size_t)k);
        held[k] = !held[k];
        if (i % 97) continue;
        for (int j = 0; j < N; j++) {
            uintptr_t at = 4096 * ((uintptr_t)j + 1);
            size_t bytes = 4095 - (size_t)j;
            cr_assert_eq(sn_allocations_contain(&h, AT(at), bytes), held[j]);
            cr_assert_eq(sn_allocations_contain(&h, AT(at + 7), bytes - 7), held[j]);
            cr_assert_not(sn_allocations_contain(&h, AT(at), bytes + 1));
            cr_assert_not(sn_allocations_contain(&h, AT(at + 7), SIZE_MAX));
            cr_assert_not(sn_allocations_contain(&h, AT(at + bytes), 1));
        }
    }
    sn_allocations_fini(&h);
}

Test(allocations, removing_unknown_addresses_is_harmless) {
    sn_allocations h = {0};
    sn_allocations_remove(&h, AT(4096));
    cr_assert_not(sn_allocations_contain(&h, AT(4096), 0));
    cr_assert_not(sn_allocations_contain(&h, NULL, 0));
    REQUIRE(sn_allocations_reserve(&h, &err));
    sn_allocations_add(&h, AT(4096), 10);
    sn_allocations_remove(&h, AT(4097));
    sn_allocations_remove(&h, AT(4095));
    cr_assert(sn_allocations_contain(&h, AT(4096), 10));
    sn_allocations_fini(&h);
    sn_allocations_fini(&h);
}

/* An array that grows keeps what it has, and stays as it was when there is no memory. */
#include "base/mem.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* AddressSanitizer's allocator ends the program where others return NULL, unless it is told. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

Test(grow, an_array_keeps_its_elements_and_gets_room_for_those_asked_for) {
    uint64_t *list = NULL;
    size_t capacity = 0, changes = 0;
    for (size_t n = 0; n < 5000; n++) {
        const size_t before = capacity;
        REQUIRE(sn_grow(&list, &capacity, n + 1, sizeof *list, &err));
        cr_assert_geq(capacity, n + 1);
        changes += capacity != before;
        list[n] = n;
    }
    for (size_t n = 0; n < 5000; n++) cr_assert_eq(list[n], n);
    cr_expect_lt(changes, 20, "the array was moved %zu times", changes);
    REQUIRE(sn_grow(&list, &capacity, 100000, sizeof *list, &err));
    cr_expect_geq(capacity, 100000);
    cr_expect_eq(list[4999], 4999);
    free(list);
}

Test(grow, what_cannot_be_allocated_leaves_the_array_as_it_was) {
    sn_err why;
    uint8_t *list = NULL;
    size_t capacity = 0;
    cr_expect_eq(sn_grow(&list, &capacity, SIZE_MAX / 4 + 2, 4, &why), SN_STOP); /* four bytes, to who does not check */
    cr_expect(!list && !capacity);
    REQUIRE(sn_grow(&list, &capacity, 3, 1, &err));
    const uint8_t *const before = list;
    const size_t held = capacity;
    cr_expect_eq(sn_grow(&list, &capacity, SIZE_MAX / 2, 1, &why), SN_STOP); /* more than any machine has */
    cr_expect(list == before && capacity == held);
    capacity = SIZE_MAX / 2 + 2; /* twice that has no number */
    cr_expect_eq(sn_grow(&list, &capacity, SIZE_MAX - 1, 1, &why), SN_STOP);
    cr_expect(list == before);
    free(list);
}

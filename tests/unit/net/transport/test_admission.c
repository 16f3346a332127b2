/* Which connections a listener holds (net/transport/admission_private.h). */
#include "net/transport/admission_private.h" /* private: the rule without sockets */

#include <criterion/criterion.h>
#include <string.h>

enum { CAPACITY = 64, SECOND = 1000000 };

typedef struct table {
    sn_standing places[CAPACITY];
    const sn_standing *standings[CAPACITY];
    int64_t now_us;
} table;

/* A newcomer of an address (10.0.x.y); returns its place, or -1 when it is refused. *ended: the place that it took. */
static int arrive(table *t, unsigned address, int *ended) {
    uint8_t prefix[SN_ADDRESS_PREFIX] = {10, 0, (uint8_t)(address >> 8), (uint8_t)address};
    int decision = sn_admission_decide(t->standings, CAPACITY, CAPACITY, prefix, t->now_us), place = 0;
    *ended = decision >= 0 ? decision : -1;
    if (decision == SN_ADMIT_NOT) return -1;
    if (decision >= 0) t->standings[decision] = NULL;
    while (t->standings[place]) place++;
    t->places[place] = (sn_standing){.since_us = t->now_us++};
    memcpy(t->places[place].prefix, prefix, sizeof prefix);
    t->standings[place] = &t->places[place];
    return place;
}

static int count(const table *t, unsigned address, bool named) {
    int n = 0;
    for (int i = 0; i < CAPACITY; i++)
        n += t->standings[i] && t->standings[i]->prefix[3] == address && t->standings[i]->named == named;
    return n;
}

Test(admission, silent_connections_of_one_address_take_places_from_each_other) {
    table t = {.now_us = SECOND};
    int ended, honest = arrive(&t, 1, &ended);
    for (int i = 0; i < 1000; i++) {
        cr_assert_geq(arrive(&t, 2, &ended), 0);
        cr_assert_neq(ended, honest);
    }
    cr_expect_eq(count(&t, 2, false), CAPACITY / 4);
    cr_expect_geq(arrive(&t, 3, &ended), 0);
    cr_expect_eq(ended, -1, "a newcomer of another address needs no other's place");
}

Test(admission, silent_connections_of_many_addresses_take_no_named_place) {
    table t = {.now_us = SECOND};
    int ended, honest = arrive(&t, 1, &ended);
    t.places[honest].named = true;
    for (unsigned i = 0; i < 5000; i++) cr_assert(arrive(&t, 2 + i % 5000, &ended) >= 0 && ended != honest);
    int newcomer = arrive(&t, 1, &ended);
    cr_expect(newcomer >= 0 && ended >= 0 && ended != honest, "the oldest silent connection makes room");
    for (unsigned i = 0; i < CAPACITY / 2; i++) cr_assert(arrive(&t, 6000 + i, &ended) >= 0 && ended != newcomer);
}

Test(admission, one_address_cannot_take_all_places_with_named_connections) {
    table t = {.now_us = SECOND};
    int ended, place;
    for (int i = 0; i < 1000; i++)
        if ((place = arrive(&t, 2, &ended)) >= 0) t.places[place].named = true;
    cr_expect_eq(count(&t, 2, true), 3 * CAPACITY / 4);
    cr_expect_geq(arrive(&t, 1, &ended), 0);
}

Test(admission, busy_connections_keep_their_places_and_idle_ones_make_room) {
    table t = {.now_us = SECOND};
    int ended;
    for (unsigned i = 0; i < CAPACITY; i++) t.places[arrive(&t, 10 + i, &ended)].named = true;
    cr_expect_eq(arrive(&t, 1, &ended), -1);
    t.now_us += SN_ADMISSION_IDLE_US;
    for (int i = 0; i < CAPACITY; i++)
        if (i != 5) t.places[i].since_us = t.now_us;
    cr_expect_geq(arrive(&t, 1, &ended), 0);
    cr_expect_eq(ended, 5);
}

/* Two addresses hold all places, with connections that are in use. */
static void fill_by_two(table *t) {
    int ended, place;
    t->now_us = SECOND;
    for (int i = 0; i < 1000; i++)
        if ((place = arrive(t, i < 500 ? 2 : 3, &ended)) >= 0) t->places[place].named = true;
    cr_assert_eq(count(t, 2, true), 3 * CAPACITY / 4);
    cr_assert_eq(count(t, 3, true), CAPACITY / 4);
}

Test(admission, two_addresses_cannot_keep_others_out) {
    table t = {0};
    fill_by_two(&t);
    int ended, newcomer = arrive(&t, 1, &ended);
    cr_assert_geq(newcomer, 0, "there is no place");
    cr_expect_eq(count(&t, 2, true), 3 * CAPACITY / 4 - 1, "an address with fewer makes room");
    for (unsigned i = 0; i < 200; i++) {
        arrive(&t, 2 + i % 2, &ended);
        cr_assert_neq(ended, newcomer, "an address with many takes the only place of another one");
    }
    for (unsigned i = 0; i < CAPACITY / 8 - 1; i++) {
        cr_expect_geq(arrive(&t, 10 + i, &ended), 0);
        cr_expect_neq(ended, newcomer);
    }
}

Test(admission, many_silent_connections_make_room_for_an_address_with_many) {
    table t = {.now_us = SECOND};
    int ended;
    for (unsigned i = 0; i < CAPACITY; i++) {
        int place = arrive(&t, i < CAPACITY / 2 ? 2 : 10 + i, &ended);
        t.places[place].named = i < CAPACITY / 2;
    }
    cr_expect_geq(arrive(&t, 2, &ended), 0);
    cr_expect_geq(ended, 0);
    cr_expect_eq(count(&t, 2, true), CAPACITY / 2);
}

Test(admission, a_newcomer_takes_no_place_of_an_address_with_a_few) {
    enum { FEW = 4 };
    table t = {.now_us = SECOND};
    int ended;
    for (unsigned i = 0; i < CAPACITY; i++) t.places[arrive(&t, 10 + i / FEW, &ended)].named = true;
    for (int i = 0; i < 1000; i++, t.now_us++) cr_expect_eq(arrive(&t, 1, &ended), -1);
}

/* A process without descriptors does not know the address of a newcomer. */
Test(admission, for_an_unknown_newcomer_no_address_gives_a_place) {
    table t = {0};
    fill_by_two(&t);
    const uint8_t unknown[SN_ADDRESS_PREFIX] = {0};
    cr_expect_eq(sn_admission_decide(t.standings, CAPACITY, CAPACITY, unknown, t.now_us), SN_ADMIT_NOT);
}

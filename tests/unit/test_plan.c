#include "blocks/plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static sn_err err;
static sn_plan plan;

#define CPU {SN_DEVICE_CPU, 0}
#define CUDA(n) {SN_DEVICE_CUDA, n}
#define XPU(n) {SN_DEVICE_XPU, n}

/* Accelerate's published example: three modules, two devices. */
static const sn_block_cost published[] = {{.weights = 64}, {.weights = 72}, {.weights = 100}};
static sn_plan_device two_devices[] = {{CUDA(0), 200, 0}, {CUDA(1), 200, 0}};

static sn_plan_wish published_wish(void) {
    return (sn_plan_wish){.first = 0, .end = 3, .costs = published, .devices = two_devices, .n_devices = 2};
}

static sn_block_cost even[SN_PLAN_BLOCKS_MAX]; /* blocks 10:10+n of `weights` and `cache` each */
static sn_plan_wish even_wish(int n, size_t weights, size_t cache, const sn_plan_device *devices, int n_devices) {
    for (int b = 0; b < n; b++) even[b] = (sn_block_cost){.weights = weights, .cache = cache};
    return (sn_plan_wish){.first = 10, .end = 10 + n, .costs = even, .devices = devices, .n_devices = n_devices};
}

/* "0 0 1d 1h 1p": for each block the plan's device; d disk, h host, p preloaded. */
static const char *places(void) {
    static char text[SN_PLAN_BLOCKS_MAX * 8];
    size_t at = 0;
    text[0] = 0;
    for (int b = 0; b < plan.end - plan.first; b++) {
        const sn_place *p = &plan.places[b];
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d%s%s", b ? " " : "", p->device,
                               (const char *[]){"", "h", "d"}[p->residence], p->preload ? "p" : "");
    }
    return text;
}

static void auto_gives(const sn_plan_wish *wish, const char *wanted) {
    cr_assert_eq(sn_plan_auto(wish, &plan, &err), SN_OK, "%s", err.text);
    cr_assert_str_eq(places(), wanted);
}
static void auto_refuses(const sn_plan_wish *wish, const char *because) {
    cr_assert_eq(sn_plan_auto(wish, &plan, &err), SN_REFUSED);
    cr_assert(strstr(err.text, because), "%s", err.text);
}
static void map_gives(const sn_plan_wish *wish, const char *map, const char *wanted) {
    cr_assert_eq(sn_plan_explicit(wish, map, &plan, &err), SN_OK, "%s: %s", map, err.text);
    cr_assert_str_eq(places(), wanted);
}
static void map_refuses(const sn_plan_wish *wish, const char *map, const char *because) {
    cr_assert_eq(sn_plan_explicit(wish, map, &plan, &err), SN_REFUSED, "%s", map);
    cr_assert(strstr(err.text, because), "%s: %s", map, err.text);
}

/* -- the published oracles */

Test(plan, published_example_puts_the_first_on_one_device_and_the_rest_on_the_other) {
    sn_plan_wish wish = published_wish();
    auto_gives(&wish, "0 1 1");
    cr_assert(plan.device_bytes[0] == 64 && plan.device_bytes[1] == 172);
    cr_assert(sn_device_same(plan.devices[1], (sn_device_id)CUDA(1)));
    cr_assert(plan.host_bytes == 0 && plan.disk_bytes == 0);
}

Test(plan, published_example_with_a_shared_weight_keeps_all_together) {
    const sn_block_cost shared[] = {{.weights = 16, .n_ties = 1, .ties = {{7, 80}}},
                                    {.weights = 72},
                                    {.weights = 20, .n_ties = 1, .ties = {{7, 80}}}};
    sn_plan_wish wish = published_wish();
    wish.costs = shared;
    auto_gives(&wish, "0 0 0");
    cr_assert_eq(plan.device_bytes[0], 16 + 72 + 20 + 80);
    cr_assert_eq(plan.n_devices, 1);
}

/* -- budgets */

Test(plan, an_exact_budget_is_enough_and_one_byte_less_is_not) {
    sn_plan_device one[] = {{CPU, 0, 30}};
    sn_plan_wish wish = even_wish(4, 100, 7, one, 1);
    one->budget = 4 * 107 + 30;
    auto_gives(&wish, "0 0 0 0");
    cr_assert_eq(plan.device_bytes[0], one->budget);
    one->budget--;
    auto_refuses(&wish, "blocks 10:14 do not fit: cpu would need 1 bytes more");
    cr_assert(strstr(err.text, "--offload"));
}

Test(plan, scratch_is_counted_on_each_device_that_computes_and_on_no_other) {
    sn_plan_device devices[] = {{CUDA(0), 300, 50}, {XPU(0), 40, 50}, {CPU, 250, 50}};
    sn_plan_wish wish = even_wish(4, 80, 20, devices, 3); /* 2 on cuda:0, not even the scratch on xpu:0, 2 on the cpu */
    auto_gives(&wish, "0 0 1 1");
    cr_assert_eq(plan.n_devices, 2);
    cr_assert(sn_device_same(plan.devices[1], (sn_device_id)CPU));
    cr_assert(plan.device_bytes[0] == 250 && plan.device_bytes[1] == 250);
    devices[2].budget--;
    auto_refuses(&wish, "cpu would need 1 bytes more");
}

Test(plan, the_first_device_keeps_room_for_the_largest_block_unless_it_is_needed) {
    sn_plan_device devices[] = {{CUDA(0), 300, 0}, {CUDA(1), 200, 0}};
    sn_plan_wish wish = even_wish(4, 100, 0, devices, 2);
    auto_gives(&wish, "0 0 1 1");
    wish = even_wish(5, 100, 0, devices, 2);
    auto_gives(&wish, "0 0 0 1 1");
    wish = even_wish(6, 100, 0, devices, 2);
    auto_refuses(&wish, "cuda:1 would need 100 bytes more");
    devices[0].budget = 400;
    wish = even_wish(4, 100, 0, devices, 2);
    auto_gives(&wish, "0 0 0 0");
}

Test(plan, sizes_that_overflow_fit_nowhere) {
    sn_plan_device one[] = {{CPU, SIZE_MAX, 0}};
    sn_plan_wish wish = even_wish(3, SIZE_MAX / 2, 10, one, 1);
    cr_assert_eq(sn_plan_auto(&wish, &plan, &err), SN_REFUSED);
    map_refuses(&wish, "10:13=cpu", "too little memory");
    cr_assert_eq(sn_plan_fitting(&wish), 1);
    wish.offload = SN_IN_HOST; /* two slots overflow as well */
    cr_assert_eq(sn_plan_auto(&wish, &plan, &err), SN_REFUSED);
}

/* -- tied weights */

Test(plan, tied_weights_are_counted_once_a_device) {
    sn_plan_device devices[] = {{CUDA(0), 150, 0}, {CUDA(1), 150, 0}};
    sn_plan_wish wish = even_wish(4, 30, 0, devices, 2);
    for (int b = 0; b < 4; b++) {
        even[b].n_ties = 2; /* named twice by one block: still one */
        even[b].ties[0].group = even[b].ties[1].group = 5;
        even[b].ties[0].bytes = even[b].ties[1].bytes = 60;
    }
    auto_gives(&wish, "0 0 1 1"); /* 120 each; a third would need the room for the largest */
    cr_assert(plan.device_bytes[0] == 120 && plan.device_bytes[1] == 120);
    map_gives(&wish, "10:11=cuda:0,11:14=cuda:1", "0 1 1 1");
    cr_assert(plan.device_bytes[0] == 90 && plan.device_bytes[1] == 150);
    devices[1].budget = 149;
    map_refuses(&wish, "10:11=cuda:0,11:14=cuda:1", "cuda:1 would need 1 bytes more");
}

Test(plan, a_cut_avoids_splitting_a_tie_group_where_the_blocks_fit_either_way) {
    sn_plan_device devices[] = {{CUDA(0), 300, 0}, {CUDA(1), 400, 0}};
    sn_plan_wish wish = even_wish(5, 50, 0, devices, 2);
    even[2].n_ties = even[3].n_ties = 1; /* blocks 12 and 13 share 150: all need 400, the first device keeps 50 free */
    even[2].ties[0].group = even[3].ties[0].group = 99;
    even[2].ties[0].bytes = even[3].ties[0].bytes = 150;
    auto_gives(&wish, "0 0 1 1 1"); /* three on the first would hold the 150 twice */
    cr_assert(plan.device_bytes[0] == 100 && plan.device_bytes[1] == 300);
    devices[1].budget = 250; /* now they fit only if the group is cut */
    auto_gives(&wish, "0 0 0 1 1");
    cr_assert(plan.device_bytes[0] == 300 && plan.device_bytes[1] == 250);
    devices[1].budget = 249;
    auto_refuses(&wish, "cuda:1 would need 1 bytes more");
}

Test(plan, tied_weights_of_streamed_blocks_stay_on_the_device_once) {
    sn_plan_device one[] = {{XPU(0), 2 * 50 + 40, 0}};
    sn_plan_wish wish = even_wish(3, 50, 0, one, 1);
    for (int b = 0; b < 3; b++) even[b].n_ties = 1, even[b].ties[0].group = 1, even[b].ties[0].bytes = 40;
    wish.offload = SN_IN_HOST;
    auto_gives(&wish, "0h 0h 0h");
    cr_assert_eq(plan.device_bytes[0], 140);
    one->budget--;
    auto_refuses(&wish, "xpu:0 would need 1 bytes more");
}

/* -- offload */

Test(plan, what_does_not_fit_is_streamed_through_two_slots_of_the_largest) {
    sn_plan_device one[] = {{CUDA(0), 0, 10}};
    sn_plan_wish wish = even_wish(6, 100, 5, one, 1);
    one->budget = 10 + 6 * 5 + 4 * 100;
    wish.offload = SN_IN_HOST;
    auto_gives(&wish, "0 0 0h 0h 0h 0h");
    cr_assert_eq(plan.device_bytes[0], one->budget);
    cr_assert_eq(plan.host_bytes, 400);
    one->budget--;
    wish.offload = SN_ON_DISK;
    auto_gives(&wish, "0 0d 0d 0d 0d 0d");
    cr_assert(plan.disk_bytes == 500 && plan.host_bytes == 0);
    one->budget = 10 + 6 * 5 + 200;
    auto_gives(&wish, "0d 0d 0d 0d 0d 0d");
    one->budget--;
    auto_refuses(&wish, "cuda:0 would need 1 bytes more, with all that is not preloaded streamed to it");
}

Test(plan, other_devices_hold_residents_and_the_first_with_room_streams) {
    sn_plan_device devices[] = {{CUDA(0), 300, 0}, {CUDA(1), 200, 0}};
    sn_plan_wish wish = even_wish(8, 100, 0, devices, 2);
    wish.offload = SN_IN_HOST;
    auto_gives(&wish, "0 1 1 0h 0h 0h 0h 0h");
    devices[0].budget = 199; /* room for one block, not for two slots */
    devices[1].budget = 300;
    auto_gives(&wish, "0 1 1h 1h 1h 1h 1h 1h");
}

Test(plan, a_block_too_large_for_two_slots_stays_and_smaller_ones_are_streamed) {
    sn_plan_device one[] = {{CUDA(0), 1250, 0}};
    sn_plan_wish wish = even_wish(5, 100, 0, one, 1);
    even[4].weights = 1000;
    wish.offload = SN_IN_HOST;
    auto_gives(&wish, "0h 0h 0h 0h 0");
    cr_assert_eq(plan.device_bytes[0], 1200);
}

Test(plan, all_that_is_not_preloaded_is_offloaded_on_wish) {
    sn_plan_device one[] = {{CPU, 10000, 0}};
    sn_plan_wish wish = even_wish(4, 100, 0, one, 1);
    wish.offload = SN_ON_DISK;
    auto_gives(&wish, "0 0 0 0");
    wish.all_offloaded = true;
    auto_gives(&wish, "0d 0d 0d 0d");
    cr_assert_eq(plan.device_bytes[0], 200);
    wish.preload = "11:12,13:14";
    auto_gives(&wish, "0d 0p 0d 0p");
    cr_assert(plan.device_bytes[0] == 400 && plan.disk_bytes == 200);
    wish.preload = "all";
    auto_gives(&wish, "0p 0p 0p 0p");
    wish.offload = SN_ON_DEVICE;
    auto_refuses(&wish, "need a place to rest");
}

/* -- preload */

Test(plan, preloaded_blocks_are_the_ones_that_stay) {
    sn_plan_device one[] = {{CUDA(0), 400, 0}};
    sn_plan_wish wish = even_wish(6, 100, 0, one, 1);
    wish.offload = SN_IN_HOST;
    wish.preload = "14:16";
    auto_gives(&wish, "0h 0h 0h 0h 0p 0p");
    wish.preload = "13:16";
    auto_refuses(&wish, "cuda:0 would need 100 bytes more");
    wish.preload = "all";
    auto_refuses(&wish, "cuda:0 would need 200 bytes more");
    one->budget = 600;
    auto_gives(&wish, "0p 0p 0p 0p 0p 0p");
}

Test(plan, preload_ranges_that_are_none_are_refused) {
    sn_plan_device one[] = {{CPU, 10000, 0}};
    sn_plan_wish wish = even_wish(6, 100, 0, one, 1);
    static const char *const wrong[] = {"",          "12",          "12:12",  "13:12",
                                        "9:11",      "15:17",       "10:12,", "10:12,,14:15",
                                        "ALL,10:11", "10:12;13:14", "-1:11",  "99999999999:11"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        wish.preload = wrong[i];
        auto_refuses(&wish, "preload: ");
        map_refuses(&wish, "10:16=cpu", "preload: ");
    }
    auto_refuses(&wish, "is no range of blocks");
    wish.preload = "9:11";
    auto_refuses(&wish, "the blocks 9:11 are not all of this span, which is 10:16");
    wish.preload = "10:12,11:13,15:16"; /* named twice: as good as once */
    auto_gives(&wish, "0p 0p 0p 0 0 0p");
    char long_one[300];
    memset(long_one, '0', sizeof long_one);
    memcpy(long_one + 290, "10:12", sizeof "10:12");
    wish.preload = long_one;
    auto_refuses(&wish, "preload: ");
}

/* -- explicit maps */

static sn_plan_device unlike[] = {{CPU, 10000, 1}, {CUDA(0), 500, 20}, {XPU(0), 330, 30}};

Test(plan, explicit_maps_are_honoured_exactly) {
    sn_plan_wish wish = even_wish(12, 100, 0, unlike, 3);
    map_gives(&wish, "10:14=cuda:0,14:17=xpu:0,17:20=cpu,20:22=cpu", "0 0 0 0 1 1 1 2 2 2 2 2");
    cr_assert(plan.device_bytes[0] == 420 && plan.device_bytes[1] == 330 && plan.device_bytes[2] == 501);
    cr_assert(sn_device_same(plan.devices[0], (sn_device_id)CUDA(0)));
    cr_assert(sn_device_same(plan.devices[1], (sn_device_id)XPU(0)));
    cr_assert(sn_device_same(plan.devices[2], (sn_device_id)CPU));
    map_gives(&wish, "20:22=CPU:0,10:12=gpu,12:20=cpu", "0 0 1 1 1 1 1 1 1 1 1 1");
    cr_assert(sn_device_same(plan.devices[0], (sn_device_id)CUDA(0)));
}

Test(plan, host_and_disk_compute_on_the_first_device_that_the_map_names) {
    sn_plan_wish wish = even_wish(8, 100, 0, unlike, 3);
    map_gives(&wish, "16:18=disk,10:11=xpu:0,11:14=cpu,14:16=Host", "0 1 1 1 0h 0h 0d 0d");
    cr_assert_eq(plan.device_bytes[0], 30 + 100 + 200);
    cr_assert(plan.host_bytes == 200 && plan.disk_bytes == 200);
    map_gives(&wish, "10:18=disk", "0d 0d 0d 0d 0d 0d 0d 0d");
    cr_assert(sn_device_same(plan.devices[0], (sn_device_id)CPU));
    wish.preload = "10:11,17:18"; /* stays, wherever it rests: no slot, its whole weight */
    map_gives(&wish, "10:11=cuda:0,11:18=disk", "0p 0d 0d 0d 0d 0d 0d 0dp");
    cr_assert_eq(plan.device_bytes[0], 20 + 2 * 100 + 200);
}

Test(plan, maps_that_leave_out_or_repeat_blocks_are_refused_whole) {
    sn_plan_wish wish = even_wish(6, 10, 0, unlike, 3);
    map_refuses(&wish, "10:12=cpu,13:16=cpu", "device map: blocks 12:13 are not covered");
    map_refuses(&wish, "10:12=cpu", "blocks 12:16 are not covered");
    map_refuses(&wish, "12:16=cpu", "blocks 10:12 are not covered");
    map_refuses(&wish, "10:13=cpu,12:16=cuda:0", "block 12 is covered twice");
    map_refuses(&wish, "10:16=cpu,10:16=cpu", "block 10 is covered twice");
    map_refuses(&wish, "10:17=cpu", "the blocks 10:17 are not all of this span, which is 10:16");
    map_refuses(&wish, "9:16=cpu", "the blocks 9:16 are not all of this span");
    map_refuses(&wish, "16:10=cpu", "is no range of blocks");
    map_refuses(&wish, "10:10=cpu,10:16=cpu", "is no range of blocks");
    map_refuses(&wish, "", "maps nothing");
    map_refuses(&wish, "10:16", "maps nothing: write FIRST:END=DEVICE");
    map_refuses(&wish, "10:16=cpu,", "maps nothing");
    map_refuses(&wish, "=cpu", "is no range of blocks");
    map_refuses(&wish, "10:16 =cpu", "is no range of blocks");
}

Test(plan, maps_to_unknown_devices_say_which_there_are) {
    sn_plan_wish wish = even_wish(6, 10, 0, unlike, 3);
    map_refuses(&wish, "10:16=cuda:1", "there is no device \"cuda:1\" here: there is cpu, cuda:0, xpu:0");
    map_refuses(&wish, "10:16=tpu:0", "\"tpu:0\" is no device");
    map_refuses(&wish, "10:16=", "\"\" is no device");
    map_refuses(&wish, "10:16=cpu=cpu", "\"cpu=cpu\" is no device");
    char map[400];
    memset(map, 'x', sizeof map);
    memcpy(map, "10:16=", 6);
    map[sizeof map - 1] = 0;
    map_refuses(&wish, map, "is no device");
}

Test(plan, a_map_that_needs_too_much_says_where_and_by_how_many_bytes) {
    sn_plan_wish wish = even_wish(12, 100, 0, unlike, 3);
    map_refuses(&wish, "10:15=cuda:0,15:22=cpu", "too little memory: cuda:0 would need 20 bytes more than it may use");
    map_refuses(&wish, "10:15=cuda:0,15:19=xpu:0,19:22=cpu",
                "cuda:0 would need 20 bytes more, xpu:0 would need 100 bytes more");
    map_gives(&wish, "10:14=cuda:0,14:17=xpu:0,17:22=cpu", "0 0 0 0 1 1 1 2 2 2 2 2");
    map_refuses(&wish, "10:12=xpu:0,12:15=host,15:22=cpu", "xpu:0 would need 100 bytes more"); /* two slots */
}

/* -- wishes that make no sense, --blocks auto, the table */

Test(plan, senseless_wishes_are_refused) {
    sn_plan_device twice[] = {{CUDA(0), 10, 0}, {CPU, 10, 0}, {CUDA(0), 10, 0}};
    sn_plan_wish wish = even_wish(2, 1, 0, twice, 3);
    auto_refuses(&wish, "cuda:0 is given twice");
    map_refuses(&wish, "10:12=cpu", "given twice");
    cr_assert_eq(sn_plan_fitting(&wish), 0);
    wish.n_devices = 0;
    auto_refuses(&wish, "on 0 devices");
    wish.n_devices = 17;
    auto_refuses(&wish, "on 17 devices");
    wish = even_wish(2, 1, 0, unlike, 1);
    wish.end = wish.first;
    auto_refuses(&wish, "1 to 256 blocks");
    wish.end = wish.first + 257;
    auto_refuses(&wish, "1 to 256 blocks");
    wish.first = -1;
    auto_refuses(&wish, "1 to 256 blocks");
    wish = even_wish(2, 1, 0, unlike, 1);
    even[1].n_ties = SN_TIES_MAX + 1;
    auto_refuses(&wish, "block 11 shares 9 weights");
}

Test(plan, as_many_blocks_are_taken_as_fit) {
    sn_plan_device devices[] = {{CUDA(0), 250, 10}, {CPU, 330, 10}};
    sn_plan_wish wish = even_wish(20, 90, 10, devices, 2);
    cr_assert_eq(sn_plan_fitting(&wish), 5);
    devices[0].budget = 210, devices[1].budget = 109;
    cr_assert_eq(sn_plan_fitting(&wish), 2);
    devices[0].budget = 109;
    cr_assert_eq(sn_plan_fitting(&wish), 0);
    devices[1].budget = SIZE_MAX;
    cr_assert_eq(sn_plan_fitting(&wish), 20);
    wish.preload = "nonsense"; /* is not asked for */
    cr_assert_eq(sn_plan_fitting(&wish), 20);
}

Test(plan, the_largest_span_over_the_most_devices_is_planned) {
    sn_plan_device devices[SN_PLAN_DEVICES_MAX];
    for (int d = 0; d < SN_PLAN_DEVICES_MAX; d++) devices[d] = (sn_plan_device){CUDA(d), 16 * 100, 0};
    sn_plan_wish wish = even_wish(SN_PLAN_BLOCKS_MAX, 100, 0, devices, SN_PLAN_DEVICES_MAX);
    for (int b = 0; b < SN_PLAN_BLOCKS_MAX; b++) {
        even[b].n_ties = SN_TIES_MAX;
        for (int t = 0; t < SN_TIES_MAX; t++) even[b].ties[t].group = (uint64_t)(b * SN_TIES_MAX + t);
    }
    cr_assert_eq(sn_plan_auto(&wish, &plan, &err), SN_OK);
    cr_assert(plan.n_devices == SN_PLAN_DEVICES_MAX && plan.places[255].device == 15);
    cr_assert_eq(sn_plan_fitting(&wish), 256);
}

Test(plan, the_table_shows_runs_and_devices) {
    sn_plan_wish wish = even_wish(8, 1 << 20, 0, unlike, 3);
    sn_buf out;
    unlike[0].budget = unlike[1].budget = 64 << 20;
    wish.preload = "10:11";
    map_gives(&wish, "10:13=cuda:0,13:15=cpu,15:17=host,17:18=disk", "0p 0 0 1 1 0h 0h 0d");
    sn_buf_init(&out, 10000);
    cr_assert_eq(sn_plan_print(&plan, &wish, &out, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    cr_assert_str_eq((char *)out.data, "blocks     computed on       weights  rest\n"
                                       "10:11      cuda:0            1.0 MiB  on it, preloaded\n"
                                       "11:13      cuda:0            2.0 MiB  on it\n"
                                       "13:15      cpu               2.0 MiB  on it\n"
                                       "15:17      cuda:0            2.0 MiB  in host memory, streamed\n"
                                       "17:18      cuda:0            1.0 MiB  on disk, streamed\n"
                                       "\n"
                                       "memory                       planned\n"
                                       "cuda:0                       5.0 MiB of 64.0 MiB\n"
                                       "cpu                          2.0 MiB of 64.0 MiB\n"
                                       "host                         2.0 MiB\n"
                                       "disk                         1.0 MiB\n");
    /* No room for the table: an error, never half a table as success. */
    for (size_t cap = 0; cap < out.len - 1; cap += 13) {
        sn_buf small;
        sn_buf_init(&small, cap);
        cr_assert_eq(sn_plan_print(&plan, &wish, &small, &err), SN_REFUSED);
        sn_buf_fini(&small);
    }
    sn_buf_fini(&out);
}

/* -- random wishes against counting anew and trying everything */

static uint64_t random_state = 20261121;
static unsigned pick(unsigned n) { /* 0..n-1; splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ z >> 31) % n);
}

enum { WISHES = 2000, BLOCKS = 6, DEVICES = 3 };

typedef struct trial {
    sn_block_cost costs[BLOCKS];
    sn_plan_device devices[DEVICES];
    bool preload[BLOCKS];
    char ranges[128];
    sn_plan_wish wish;
    int n;
    bool uniform;
} trial;

static void make_trial(trial *t) {
    *t = (trial){.n = 1 + (int)pick(BLOCKS), .uniform = pick(2)};
    size_t total = 0;
    for (int b = 0; b < t->n; b++) {
        sn_block_cost *c = &t->costs[b];
        if (t->uniform && b) {
            *c = t->costs[0];
        } else {
            *c = (sn_block_cost){.weights = 1 + pick(50), .cache = pick(10), .n_ties = t->uniform ? 0 : (int)pick(3)};
            for (int i = 0; i < c->n_ties; i++) c->ties[i].bytes = 10 * (c->ties[i].group = 1 + pick(3));
        }
        total += c->weights + c->cache;
        t->preload[b] = pick(6) == 0;
        size_t len = strlen(t->ranges);
        if (t->preload[b]) snprintf(t->ranges + len, sizeof t->ranges - len, "%s%d:%d", len ? "," : "", 3 + b, 4 + b);
    }
    t->wish = (sn_plan_wish){.first = 3, .end = 3 + t->n, .costs = t->costs, .devices = t->devices,
                             .n_devices = 1 + (int)pick(DEVICES), .offload = (sn_residence)pick(3),
                             .preload = t->ranges[0] ? t->ranges : NULL};
    t->wish.all_offloaded = t->wish.offload && pick(4) == 0;
    for (int d = 0; d < t->wish.n_devices; d++)
        t->devices[d] = (sn_plan_device){CUDA(d), pick((unsigned)(total * 3 / (unsigned)t->wish.n_devices)), pick(20)};
}

/* What a device needs, from the definition. */
static size_t needed(const trial *t, const int *device, const bool *streamed, int d) {
    size_t sum = 0, largest = 0;
    bool any = false, groups[4] = {false};
    for (int b = 0; b < t->n; b++) {
        if (device[b] != d) continue;
        any = true;
        sum += t->costs[b].cache + (streamed[b] ? 0 : t->costs[b].weights);
        if (streamed[b] && t->costs[b].weights > largest) largest = t->costs[b].weights;
        for (int i = 0; i < t->costs[b].n_ties; i++) groups[t->costs[b].ties[i].group] = true;
    }
    for (size_t g = 1; g < 4; g++) sum += groups[g] ? 10 * g : 0;
    return any ? sum + 2 * largest + t->devices[d].scratch : 0;
}

static bool within_budgets(const trial *t, const int *device, const bool *streamed) {
    for (int d = 0; d < t->wish.n_devices; d++)
        if (needed(t, device, streamed, d) > t->devices[d].budget) return false;
    return true;
}

/* True if these blocks can be streamed, to any one device, with the others in order over the devices, in any way. */
static bool possible(const trial *t, const bool *streamed) {
    int device[BLOCKS], ways = 1;
    for (int b = 0; b < t->n; b++) ways *= t->wish.n_devices;
    for (int x = 0; x < t->wish.n_devices; x++)
        for (int way = 0; way < ways; way++) {
            int rest = way, last = 0;
            bool ordered = true;
            for (int b = 0; b < t->n; b++, rest /= t->wish.n_devices) {
                device[b] = streamed[b] ? x : rest % t->wish.n_devices;
                if (streamed[b]) continue;
                ordered &= device[b] >= last;
                last = device[b];
            }
            if (ordered && within_budgets(t, device, streamed)) return true;
        }
    return false;
}

static int count(const bool *streamed, int n) {
    int k = 0;
    for (int b = 0; b < n; b++) k += streamed[b];
    return k;
}

/* May these blocks be the streamed ones by the rule? The last ones not preloaded, but for some largest sizes. */
static bool by_the_rule(const trial *t, const bool *streamed) {
    size_t largest = 0;
    bool begun = false;
    for (int b = 0; b < t->n; b++)
        if (streamed[b] && t->costs[b].weights > largest) largest = t->costs[b].weights;
    for (int b = 0; b < t->n; b++) {
        bool may = !t->preload[b] && t->costs[b].weights <= largest;
        if ((streamed[b] && !may) || (begun && may && !streamed[b])) return false;
        if (t->wish.all_offloaded && !t->preload[b] && !streamed[b]) return false;
        begun |= streamed[b];
    }
    return true;
}

/* The fewest streamed blocks with which it is possible, or -1. For equal blocks every choice of them is tried. */
static int fewest(const trial *t) {
    int best = -1;
    for (int set = 0; set < 1 << t->n; set++) {
        bool streamed[BLOCKS], may = true;
        for (int b = 0; b < t->n; b++) {
            streamed[b] = set >> b & 1;
            may &= !streamed[b] || (!t->preload[b] && t->wish.offload);
            may &= streamed[b] || t->preload[b] || !t->wish.all_offloaded;
        }
        int k = count(streamed, t->n);
        if (!may || (best >= 0 && k >= best) || (!t->uniform && !by_the_rule(t, streamed))) continue;
        if (possible(t, streamed)) best = k;
    }
    return best;
}

static void check_plan(const trial *t, int i) {
    int device[BLOCKS], n_offloaded = 0, last = 0;
    bool streamed[BLOCKS];
    cr_assert(plan.first == 3 && plan.end == 3 + t->n);
    for (int b = 0; b < t->n; b++) {
        const sn_place *p = &plan.places[b];
        cr_assert(p->device >= 0 && p->device < plan.n_devices, "wish %d", i);
        device[b] = plan.devices[p->device].ordinal;
        streamed[b] = p->residence != SN_ON_DEVICE;
        n_offloaded += streamed[b];
        cr_assert(!streamed[b] || p->residence == t->wish.offload, "wish %d", i);
        cr_assert_eq(p->preload, t->preload[b]);
        cr_assert(!p->preload || !streamed[b]);
        if (streamed[b]) continue;
        cr_assert(device[b] >= last, "wish %d: %s", i, places());
        last = device[b];
    }
    for (int p = 0; p < plan.n_devices; p++) {
        int d = plan.devices[p].ordinal;
        cr_assert_eq(plan.device_bytes[p], needed(t, device, streamed, d), "wish %d", i);
        cr_assert_leq(plan.device_bytes[p], t->devices[d].budget, "wish %d", i);
    }
    cr_assert_eq(n_offloaded, fewest(t), "wish %d: %s", i, places());
}

/* How many blocks fit, each number tried anew. */
static int fitting(const trial *t) {
    bool none[BLOCKS] = {false};
    trial part = *t;
    part.wish.devices = part.devices, part.wish.costs = part.costs;
    for (part.n = t->n; part.n > 0; part.n--)
        if (possible(&part, none)) break;
    return part.n;
}

Test(plan, every_random_wish_gets_a_right_plan_or_has_none) {
    static trial t;
    int given = 0, offloaded = 0;
    for (int i = 0; i < WISHES; i++) {
        make_trial(&t);
        sn_status status = sn_plan_auto(&t.wish, &plan, &err);
        if (status == SN_OK) {
            check_plan(&t, i);
            given++;
            offloaded += plan.host_bytes || plan.disk_bytes;
        } else {
            cr_assert_eq(status, SN_REFUSED);
            cr_assert_eq(fewest(&t), -1, "wish %d was refused: %s", i, err.text);
            cr_assert(!strstr(err.text, " 0 bytes more"), "%s", err.text);
        }
        cr_assert_eq(sn_plan_fitting(&t.wish), fitting(&t), "wish %d", i);
    }
    cr_assert(given > WISHES / 4 && given < WISHES * 3 / 4 && offloaded > WISHES / 20, "%d plans, %d offloaded", given,
              offloaded);
    cr_log_info("%d of %d wishes had a plan, %d with offload", given, WISHES, offloaded);
}

#include "blocks/plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static sn_err err;
static sn_plan plan;

#define CPU     {SN_DEVICE_CPU, 0}
#define CUDA(n) {SN_DEVICE_CUDA, n}
#define XPU(n)  {SN_DEVICE_XPU, n}

/* The published example of Accelerate: three modules, two devices. */
static const sn_block_cost published[] = {{.weights = 64}, {.weights = 72}, {.weights = 100}};
static sn_plan_device two_devices[] = {{CUDA(0), 200, 0}, {CUDA(1), 200, 0}};

static sn_plan_query published_query(void) {
    return (sn_plan_query){.first = 0, .end = 3, .costs = published, .devices = two_devices, .n_devices = 2};
}

static sn_block_cost even[SN_PLAN_BLOCKS_MAX]; /* blocks 10:10+n of `weights` and `cache` each */
static sn_plan_query even_query(int n, size_t weights, size_t cache, const sn_plan_device *devices, int n_devices) {
    for (int b = 0; b < n; b++) even[b] = (sn_block_cost){.weights = weights, .cache = cache};
    return (sn_plan_query){.first = 10, .end = 10 + n, .costs = even, .devices = devices, .n_devices = n_devices};
}

/* For example "0 0 1d 1h 1p": the plan's device of each block; d: on disk, h: in host memory, p: preloaded. */
static const char *plan_placements(void) {
    static char text[SN_PLAN_BLOCKS_MAX * 8];
    size_t at = 0;
    text[0] = 0;
    for (int b = 0; b < plan.end - plan.first; b++) {
        const sn_block_placement *p = &plan.placements[b];
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d%s%s", b ? " " : "", p->device,
                               (const char *[]){"", "h", "d"}[p->residence], p->preload ? "p" : "");
    }
    return text;
}

static void expect_auto_plan(const sn_plan_query *query, const char *wanted) {
    cr_assert_eq(sn_plan_auto(query, &plan, &err), SN_OK, "%s", err.text);
    cr_assert_str_eq(plan_placements(), wanted);
}
static void expect_auto_refused(const sn_plan_query *query, const char *error_part) {
    cr_assert_eq(sn_plan_auto(query, &plan, &err), SN_REFUSED);
    cr_assert(strstr(err.text, error_part), "%s", err.text);
}
static void expect_map_plan(const sn_plan_query *query, const char *map, const char *wanted) {
    cr_assert_eq(sn_plan_explicit(query, map, &plan, &err), SN_OK, "%s: %s", map, err.text);
    cr_assert_str_eq(plan_placements(), wanted);
}
static void expect_map_refused(const sn_plan_query *query, const char *map, const char *error_part) {
    cr_assert_eq(sn_plan_explicit(query, map, &plan, &err), SN_REFUSED, "%s", map);
    cr_assert(strstr(err.text, error_part), "%s: %s", map, err.text);
}

/* -- the published examples */

Test(plan, published_example_puts_the_first_on_one_device_and_the_rest_on_the_other) {
    sn_plan_query query = published_query();
    expect_auto_plan(&query, "0 1 1");
    cr_assert(plan.device_bytes[0] == 64 && plan.device_bytes[1] == 172);
    cr_assert(sn_device_id_equal(plan.devices[1], (sn_device_id)CUDA(1)));
    cr_assert(plan.host_bytes == 0 && plan.disk_bytes == 0);
}

Test(plan, published_example_with_a_shared_weight_keeps_all_together) {
    const sn_block_cost shared[] = {{.weights = 16, .n_ties = 1, .ties = {{7, 80}}},
                                    {.weights = 72},
                                    {.weights = 20, .n_ties = 1, .ties = {{7, 80}}}};
    sn_plan_query query = published_query();
    query.costs = shared;
    expect_auto_plan(&query, "0 0 0");
    cr_assert_eq(plan.device_bytes[0], 16 + 72 + 20 + 80);
    cr_assert_eq(plan.n_devices, 1);
}

/* -- budgets */

Test(plan, an_exact_budget_is_enough_and_one_byte_less_is_not) {
    sn_plan_device one[] = {{CPU, 0, 30}};
    sn_plan_query query = even_query(4, 100, 7, one, 1);
    one->budget = 4 * 107 + 30;
    expect_auto_plan(&query, "0 0 0 0");
    cr_assert_eq(plan.device_bytes[0], one->budget);
    one->budget--;
    expect_auto_refused(&query, "blocks 10:14 do not fit: cpu would need 1 bytes more");
    cr_assert(strstr(err.text, "--offload"));
}

Test(plan, scratch_is_counted_on_each_device_that_computes_and_on_no_other) {
    sn_plan_device devices[] = {{CUDA(0), 300, 50}, {XPU(0), 40, 50}, {CPU, 250, 50}};
    sn_plan_query query =
        even_query(4, 80, 20, devices, 3); /* two blocks on cuda:0, not even the scratch on xpu:0, two on the cpu */
    expect_auto_plan(&query, "0 0 1 1");
    cr_assert_eq(plan.n_devices, 2);
    cr_assert(sn_device_id_equal(plan.devices[1], (sn_device_id)CPU));
    cr_assert(plan.device_bytes[0] == 250 && plan.device_bytes[1] == 250);
    devices[2].budget--;
    expect_auto_refused(&query, "cpu would need 1 bytes more");
}

Test(plan, memory_is_kept_free_where_that_takes_no_further_device) {
    sn_plan_device devices[] = {{CUDA(0), 300, 0}, {CUDA(1), 300, 0}};
    sn_plan_query query = even_query(4, 100, 0, devices, 2);
    expect_auto_plan(&query, "0 0 1 1");
    query = even_query(3, 100, 0, devices, 2);
    query.keep_free = 100;
    expect_auto_plan(&query, "0 0 0"); /* a second device would be needed */
    cr_assert_eq(sn_plan_n_fitting(&query), 3);
    query = even_query(6, 100, 0, devices, 2);
    cr_assert_eq(sn_plan_n_fitting(&query), 6);
    query.keep_free = 100;
    cr_assert_eq(sn_plan_n_fitting(&query), 4);
    query.keep_free = SIZE_MAX; /* cannot be kept: then it does not count */
    cr_assert_eq(sn_plan_n_fitting(&query), 6);
    devices[0].budget = 400;
    query = even_query(5, 100, 0, devices, 2);
    expect_auto_plan(&query, "0 0 0 1 1");
    query.keep_free = 150;
    expect_auto_plan(&query, "0 0 0 1 1");
    devices[1].budget = 500;
    query.keep_free = 200;
    expect_auto_plan(&query, "0 0 1 1 1");
}

Test(plan, the_first_device_reserves_the_largest_block_unless_needed) {
    sn_plan_device devices[] = {{CUDA(0), 300, 0}, {CUDA(1), 200, 0}};
    sn_plan_query query = even_query(4, 100, 0, devices, 2);
    expect_auto_plan(&query, "0 0 1 1");
    query = even_query(5, 100, 0, devices, 2);
    expect_auto_plan(&query, "0 0 0 1 1");
    query = even_query(6, 100, 0, devices, 2);
    expect_auto_refused(&query, "cuda:1 would need 100 bytes more");
    devices[0].budget = 400;
    query = even_query(4, 100, 0, devices, 2);
    expect_auto_plan(&query, "0 0 0 0");
}

Test(plan, sizes_that_overflow_fit_nowhere) {
    sn_plan_device one[] = {{CPU, SIZE_MAX, 0}};
    sn_plan_query query = even_query(3, SIZE_MAX / 2, 10, one, 1);
    cr_assert_eq(sn_plan_auto(&query, &plan, &err), SN_REFUSED);
    expect_map_refused(&query, "10:13=cpu", "too little memory");
    cr_assert_eq(sn_plan_n_fitting(&query), 1);
    query.offload = SN_IN_HOST; /* two slots overflow as well */
    cr_assert_eq(sn_plan_auto(&query, &plan, &err), SN_REFUSED);
}

/* -- tied weights */

Test(plan, tied_weights_are_counted_once_per_device) {
    sn_plan_device devices[] = {{CUDA(0), 150, 0}, {CUDA(1), 150, 0}};
    sn_plan_query query = even_query(4, 30, 0, devices, 2);
    for (int b = 0; b < 4; b++) {
        even[b].n_ties = 2; /* named twice by one block: counted once */
        even[b].ties[0].group = even[b].ties[1].group = 5;
        even[b].ties[0].bytes = even[b].ties[1].bytes = 60;
    }
    expect_auto_plan(&query, "0 0 1 1"); /* 120 each; a third device would need memory for the largest block */
    cr_assert(plan.device_bytes[0] == 120 && plan.device_bytes[1] == 120);
    expect_map_plan(&query, "10:11=cuda:0,11:14=cuda:1", "0 1 1 1");
    cr_assert(plan.device_bytes[0] == 90 && plan.device_bytes[1] == 150);
    devices[1].budget = 149;
    expect_map_refused(&query, "10:11=cuda:0,11:14=cuda:1", "cuda:1 would need 1 bytes more");
}

Test(plan, a_cut_avoids_splitting_a_tie_group_where_the_blocks_fit_either_way) {
    sn_plan_device devices[] = {{CUDA(0), 300, 0}, {CUDA(1), 400, 0}};
    sn_plan_query query = even_query(5, 50, 0, devices, 2);
    even[2].n_ties = even[3].n_ties = 1; /* blocks 12 and 13 share 150: all need 400, the first device keeps 50 free */
    even[2].ties[0].group = even[3].ties[0].group = 99;
    even[2].ties[0].bytes = even[3].ties[0].bytes = 150;
    expect_auto_plan(&query, "0 0 1 1 1"); /* with three on the first device the 150 would be stored twice */
    cr_assert(plan.device_bytes[0] == 100 && plan.device_bytes[1] == 300);
    devices[1].budget = 250; /* now they fit only if the group is cut */
    expect_auto_plan(&query, "0 0 0 1 1");
    cr_assert(plan.device_bytes[0] == 300 && plan.device_bytes[1] == 250);
    devices[1].budget = 249;
    expect_auto_refused(&query, "cuda:1 would need 1 bytes more");
}

Test(plan, tied_weights_of_streamed_blocks_stay_on_the_device_once) {
    sn_plan_device one[] = {{XPU(0), 2 * 50 + 40, 0}};
    sn_plan_query query = even_query(3, 50, 0, one, 1);
    for (int b = 0; b < 3; b++) even[b].n_ties = 1, even[b].ties[0].group = 1, even[b].ties[0].bytes = 40;
    query.offload = SN_IN_HOST;
    expect_auto_plan(&query, "0h 0h 0h");
    cr_assert_eq(plan.device_bytes[0], 140);
    one->budget--;
    expect_auto_refused(&query, "xpu:0 would need 1 bytes more");
}

/* -- offload */

Test(plan, blocks_that_do_not_fit_are_streamed_through_two_slots) {
    sn_plan_device one[] = {{CUDA(0), 0, 10}};
    sn_plan_query query = even_query(6, 100, 5, one, 1);
    one->budget = 10 + 6 * 5 + 4 * 100;
    query.offload = SN_IN_HOST;
    expect_auto_plan(&query, "0 0 0h 0h 0h 0h");
    cr_assert_eq(plan.device_bytes[0], one->budget);
    cr_assert_eq(plan.host_bytes, 400);
    one->budget--;
    query.offload = SN_ON_DISK;
    expect_auto_plan(&query, "0 0d 0d 0d 0d 0d");
    cr_assert(plan.disk_bytes == 500 && plan.host_bytes == 0);
    one->budget = 10 + 6 * 5 + 200;
    expect_auto_plan(&query, "0d 0d 0d 0d 0d 0d");
    one->budget--;
    expect_auto_refused(&query,
                        "cuda:0 would need 1 bytes more, with all blocks streamed to it that are not preloaded");
}

Test(plan, other_devices_hold_residents_and_the_first_with_space_streams) {
    sn_plan_device devices[] = {{CUDA(0), 300, 0}, {CUDA(1), 200, 0}};
    sn_plan_query query = even_query(8, 100, 0, devices, 2);
    query.offload = SN_IN_HOST;
    expect_auto_plan(&query, "0 1 1 0h 0h 0h 0h 0h");
    devices[0].budget = 199; /* memory for one block, not for two slots */
    devices[1].budget = 300;
    expect_auto_plan(&query, "0 1 1h 1h 1h 1h 1h 1h");
}

Test(plan, a_block_too_large_for_two_slots_stays_and_smaller_ones_are_streamed) {
    sn_plan_device one[] = {{CUDA(0), 1250, 0}};
    sn_plan_query query = even_query(5, 100, 0, one, 1);
    even[4].weights = 1000;
    query.offload = SN_IN_HOST;
    expect_auto_plan(&query, "0h 0h 0h 0h 0");
    cr_assert_eq(plan.device_bytes[0], 1200);
}

Test(plan, all_blocks_except_preloaded_ones_can_be_offloaded) {
    sn_plan_device one[] = {{CPU, 10000, 0}};
    sn_plan_query query = even_query(4, 100, 0, one, 1);
    query.offload = SN_ON_DISK;
    expect_auto_plan(&query, "0 0 0 0");
    query.offload_all = true;
    expect_auto_plan(&query, "0d 0d 0d 0d");
    cr_assert_eq(plan.device_bytes[0], 200);
    query.preload = "11:12,13:14";
    expect_auto_plan(&query, "0d 0p 0d 0p");
    cr_assert(plan.device_bytes[0] == 400 && plan.disk_bytes == 200);
    query.preload = "all";
    expect_auto_plan(&query, "0p 0p 0p 0p");
    query.offload = SN_ON_DEVICE;
    expect_auto_refused(&query, "but not where to");
}

/* -- preload */

Test(plan, preloaded_blocks_are_the_ones_that_stay) {
    sn_plan_device one[] = {{CUDA(0), 400, 0}};
    sn_plan_query query = even_query(6, 100, 0, one, 1);
    query.offload = SN_IN_HOST;
    query.preload = "14:16";
    expect_auto_plan(&query, "0h 0h 0h 0h 0p 0p");
    query.preload = "13:16";
    expect_auto_refused(&query, "cuda:0 would need 100 bytes more");
    query.preload = "all";
    expect_auto_refused(&query, "cuda:0 would need 200 bytes more");
    one->budget = 600;
    expect_auto_plan(&query, "0p 0p 0p 0p 0p 0p");
}

Test(plan, invalid_preload_ranges_are_refused) {
    sn_plan_device one[] = {{CPU, 10000, 0}};
    sn_plan_query query = even_query(6, 100, 0, one, 1);
    static const char *const wrong[] = {"",          "12",          "12:12",  "13:12",
                                        "9:11",      "15:17",       "10:12,", "10:12,,14:15",
                                        "ALL,10:11", "10:12;13:14", "-1:11",  "99999999999:11"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        query.preload = wrong[i];
        expect_auto_refused(&query, "preload: ");
        expect_map_refused(&query, "10:16=cpu", "preload: ");
    }
    expect_auto_refused(&query, "is no range of blocks");
    query.preload = "9:11";
    expect_auto_refused(&query, "the blocks 9:11 are not all of this span, which is 10:16");
    query.preload = "10:12,11:13,15:16"; /* named twice: as if named once */
    expect_auto_plan(&query, "0p 0p 0p 0 0 0p");
    char long_one[300];
    memset(long_one, '0', sizeof long_one);
    memcpy(long_one + 290, "10:12", sizeof "10:12");
    query.preload = long_one;
    expect_auto_refused(&query, "preload: ");
}

/* -- explicit maps */

static sn_plan_device mixed_devices[] = {{CPU, 10000, 1}, {CUDA(0), 500, 20}, {XPU(0), 330, 30}};

Test(plan, explicit_maps_are_honoured_exactly) {
    sn_plan_query query = even_query(12, 100, 0, mixed_devices, 3);
    expect_map_plan(&query, "10:14=cuda:0,14:17=xpu:0,17:20=cpu,20:22=cpu", "0 0 0 0 1 1 1 2 2 2 2 2");
    cr_assert(plan.device_bytes[0] == 420 && plan.device_bytes[1] == 330 && plan.device_bytes[2] == 501);
    cr_assert(sn_device_id_equal(plan.devices[0], (sn_device_id)CUDA(0)));
    cr_assert(sn_device_id_equal(plan.devices[1], (sn_device_id)XPU(0)));
    cr_assert(sn_device_id_equal(plan.devices[2], (sn_device_id)CPU));
    expect_map_plan(&query, "20:22=CPU:0,10:12=gpu,12:20=cpu", "0 0 1 1 1 1 1 1 1 1 1 1");
    cr_assert(sn_device_id_equal(plan.devices[0], (sn_device_id)CUDA(0)));
}

Test(plan, host_and_disk_compute_on_the_first_device_that_the_map_names) {
    sn_plan_query query = even_query(8, 100, 0, mixed_devices, 3);
    expect_map_plan(&query, "16:18=disk,10:11=xpu:0,11:14=cpu,14:16=Host", "0 1 1 1 0h 0h 0d 0d");
    cr_assert_eq(plan.device_bytes[0], 30 + 100 + 200);
    cr_assert(plan.host_bytes == 200 && plan.disk_bytes == 200);
    expect_map_plan(&query, "10:18=disk", "0d 0d 0d 0d 0d 0d 0d 0d");
    cr_assert(sn_device_id_equal(plan.devices[0], (sn_device_id)CPU));
    query.preload = "10:11,17:18"; /* it stays on the device, wherever it was mapped: no slot, its whole weight */
    expect_map_plan(&query, "10:11=cuda:0,11:18=disk", "0p 0d 0d 0d 0d 0d 0d 0dp");
    cr_assert_eq(plan.device_bytes[0], 20 + 2 * 100 + 200);
}

Test(plan, maps_that_omit_or_repeat_blocks_are_refused) {
    sn_plan_query query = even_query(6, 10, 0, mixed_devices, 3);
    expect_map_refused(&query, "10:12=cpu,13:16=cpu", "device map: blocks 12:13 are not covered");
    expect_map_refused(&query, "10:12=cpu", "blocks 12:16 are not covered");
    expect_map_refused(&query, "12:16=cpu", "blocks 10:12 are not covered");
    expect_map_refused(&query, "10:13=cpu,12:16=cuda:0", "block 12 is covered twice");
    expect_map_refused(&query, "10:16=cpu,10:16=cpu", "block 10 is covered twice");
    expect_map_refused(&query, "10:17=cpu", "the blocks 10:17 are not all of this span, which is 10:16");
    expect_map_refused(&query, "9:16=cpu", "the blocks 9:16 are not all of this span");
    expect_map_refused(&query, "16:10=cpu", "is no range of blocks");
    expect_map_refused(&query, "10:10=cpu,10:16=cpu", "is no range of blocks");
    expect_map_refused(&query, "", "maps nothing");
    expect_map_refused(&query, "10:16", "maps nothing: write FIRST:END=DEVICE");
    expect_map_refused(&query, "10:16=cpu,", "maps nothing");
    expect_map_refused(&query, "=cpu", "is no range of blocks");
    expect_map_refused(&query, "10:16 =cpu", "is no range of blocks");
}

Test(plan, maps_to_unknown_devices_list_the_known_ones) {
    sn_plan_query query = even_query(6, 10, 0, mixed_devices, 3);
    expect_map_refused(&query, "10:16=cuda:1", "there is no device \"cuda:1\" here: there is cpu, cuda:0, xpu:0");
    expect_map_refused(&query, "10:16=tpu:0", "\"tpu:0\" is no device");
    expect_map_refused(&query, "10:16=", "\"\" is no device");
    expect_map_refused(&query, "10:16=cpu=cpu", "\"cpu=cpu\" is no device");
    char map[400];
    memset(map, 'x', sizeof map);
    memcpy(map, "10:16=", 6);
    map[sizeof map - 1] = 0;
    expect_map_refused(&query, map, "is no device");
}

Test(plan, a_map_that_needs_too_much_names_device_and_bytes) {
    sn_plan_query query = even_query(12, 100, 0, mixed_devices, 3);
    expect_map_refused(&query, "10:15=cuda:0,15:22=cpu",
                       "too little memory: cuda:0 would need 20 bytes more than it may use");
    expect_map_refused(&query, "10:15=cuda:0,15:19=xpu:0,19:22=cpu",
                       "cuda:0 would need 20 bytes more, xpu:0 would need 100 bytes more");
    expect_map_plan(&query, "10:14=cuda:0,14:17=xpu:0,17:22=cpu", "0 0 0 0 1 1 1 2 2 2 2 2");
    expect_map_refused(&query, "10:12=xpu:0,12:15=host,15:22=cpu", "xpu:0 would need 100 bytes more"); /* two slots */
}

/* -- experts that a map puts elsewhere */

/* Blocks 10:10+n: with all experts 100 bytes, without any 30, with the two slots of a row 50; the experts alone 80. */
static sn_plan_query mixture_query(int n, const sn_plan_device *devices, int n_devices) {
    sn_plan_query query = even_query(n, 100, 0, devices, n_devices);
    for (int b = 0; b < n; b++) {
        even[b].without_experts = 30;
        even[b].experts = 80; /* more than 100 - 30: the costs may be those of different devices */
        even[b].n_experts = 8;
        even[b].slot = 10;
        even[b].n_experts_used = 2;
    }
    return query;
}

Test(plan, a_map_of_experts_that_needs_too_much_names_the_device_and_the_bytes_that_it_lacks) {
    sn_plan_device devices[] = {{CPU, 209, 0}, {CUDA(0), 1000, 0}};
    sn_plan_query query = mixture_query(3, devices, 1);
    query.offload = SN_IN_HOST;    /* which streams no block, though two slots of 100 bytes would fit */
    query.preload = "experts:0:2"; /* four slots */
    expect_map_refused(&query, "*.experts=host",
                       "cpu would need 1 bytes more; give fewer blocks, a smaller KV cache, or");
    devices[0].budget = 210;
    query.offload_all = true;
    expect_map_plan(&query, "*.experts=host", "0 0 0");
    query = mixture_query(1, devices, 2);
    devices[0].budget = 79; /* for the experts; the block itself would go to the other device */
    expect_map_refused(&query, "*.experts=cpu", "cpu would need 1 bytes more");
}

Test(plan, experts_on_another_device_are_counted_as_what_they_take_alone) {
    sn_plan_device devices[] = {{CPU, 79, 0}, {CUDA(0), 30, 0}};
    sn_plan_query query = mixture_query(1, devices, 2);
    expect_map_refused(&query, "*=cuda:0,*.experts=cpu", "cpu would need 1 bytes more");
    devices[0].budget++;
    expect_map_plan(&query, "*=cuda:0,*.experts=cpu", "0");
}

/* -- invalid queries, --blocks auto, the table */

Test(plan, senseless_queries_are_refused) {
    sn_plan_device twice[] = {{CUDA(0), 10, 0}, {CPU, 10, 0}, {CUDA(0), 10, 0}};
    sn_plan_query query = even_query(2, 1, 0, twice, 3);
    expect_auto_refused(&query, "cuda:0 is given twice");
    expect_map_refused(&query, "10:12=cpu", "given twice");
    cr_assert_eq(sn_plan_n_fitting(&query), 0);
    query.n_devices = 0;
    expect_auto_refused(&query, "on 0 devices");
    query.n_devices = 17;
    expect_auto_refused(&query, "on 17 devices");
    query = even_query(2, 1, 0, mixed_devices, 1);
    query.end = query.first;
    expect_auto_refused(&query, "1 to 256 blocks");
    query.end = query.first + 257;
    expect_auto_refused(&query, "1 to 256 blocks");
    query.first = -1;
    expect_auto_refused(&query, "1 to 256 blocks");
    query = even_query(2, 1, 0, mixed_devices, 1);
    even[1].n_ties = SN_TIES_MAX + 1;
    expect_auto_refused(&query, "block 11 shares 9 weights");
}

Test(plan, as_many_blocks_are_planned_as_fit) {
    sn_plan_device devices[] = {{CUDA(0), 250, 10}, {CPU, 330, 10}};
    sn_plan_query query = even_query(20, 90, 10, devices, 2);
    cr_assert_eq(sn_plan_n_fitting(&query), 5);
    devices[0].budget = 210, devices[1].budget = 109;
    cr_assert_eq(sn_plan_n_fitting(&query), 2);
    devices[0].budget = 109;
    cr_assert_eq(sn_plan_n_fitting(&query), 0);
    devices[1].budget = SIZE_MAX;
    cr_assert_eq(sn_plan_n_fitting(&query), 20);
    query.preload = "nonsense"; /* ignored */
    cr_assert_eq(sn_plan_n_fitting(&query), 20);
}

Test(plan, the_largest_span_over_the_most_devices_is_planned) {
    sn_plan_device devices[SN_PLAN_DEVICES_MAX];
    for (int d = 0; d < SN_PLAN_DEVICES_MAX; d++) devices[d] = (sn_plan_device){CUDA(d), 16 * 100, 0};
    sn_plan_query query = even_query(SN_PLAN_BLOCKS_MAX, 100, 0, devices, SN_PLAN_DEVICES_MAX);
    for (int b = 0; b < SN_PLAN_BLOCKS_MAX; b++) {
        even[b].n_ties = SN_TIES_MAX;
        for (int t = 0; t < SN_TIES_MAX; t++) even[b].ties[t].group = (uint64_t)(b * SN_TIES_MAX + t);
    }
    cr_assert_eq(sn_plan_auto(&query, &plan, &err), SN_OK);
    cr_assert(plan.n_devices == SN_PLAN_DEVICES_MAX && plan.placements[255].device == 15);
    cr_assert_eq(sn_plan_n_fitting(&query), 256);
}

Test(plan, the_table_shows_runs_and_devices) {
    sn_plan_query query = even_query(8, 1 << 20, 0, mixed_devices, 3);
    sn_buf out;
    mixed_devices[0].budget = mixed_devices[1].budget = 64 << 20;
    query.preload = "10:11";
    expect_map_plan(&query, "10:13=cuda:0,13:15=cpu,15:17=host,17:18=disk", "0p 0 0 1 1 0h 0h 0d");
    sn_buf_init(&out, 10000);
    cr_assert_eq(sn_plan_print(&plan, &query, &out, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    cr_assert_str_eq((char *)out.data, "blocks     computed on       weights  stored\n"
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
    /* A buffer that is too small for the table: an error, never success with half a table. */
    for (size_t cap = 0; cap < out.len - 1; cap += 13) {
        sn_buf small;
        sn_buf_init(&small, cap);
        cr_assert_eq(sn_plan_print(&plan, &query, &small, &err), SN_REFUSED);
        sn_buf_fini(&small);
    }
    sn_buf_fini(&out);
}

/* -- host memory */

/* Two experts of 40 bytes in each block; without experts it has 10, and a slot takes 40. */
static void set_mixtures(int n) {
    for (int b = 0; b < n; b++)
        even[b] = (sn_block_cost){.weights = 90,
                                  .without_experts = 10,
                                  .experts = 80,
                                  .resting = 80,
                                  .slot = 40,
                                  .n_experts = 2,
                                  .n_experts_used = 1};
}

Test(plan, what_rests_in_host_memory_has_a_limit) {
    static const sn_plan_device cuda[] = {{CUDA(0), 200, 0}};
    sn_plan_query query = even_query(4, 60, 0, cuda, 1);
    query.offload = SN_IN_HOST;
    query.host_memory = 180;
    expect_auto_plan(&query, "0 0h 0h 0h");
    query.host_memory = 179;
    expect_auto_refused(&query,
                        "host memory has room for 179 B, and what is to rest or to be computed there takes 240 B");
    cr_assert(strstr(err.text, "--offload disk"), "%s", err.text);
    expect_map_refused(&query, "10:11=cuda:0,11:14=host", "host memory has room for 179 B");
    query.offload = SN_ON_DISK;
    expect_auto_plan(&query, "0 0d 0d 0d");
}

Test(plan, experts_that_rest_in_host_memory_have_a_limit) {
    static const sn_plan_device cuda[] = {{CUDA(0), 210, 0}};
    sn_plan_query query = even_query(4, 0, 0, cuda, 1);
    set_mixtures(4);
    query.host_memory = 320;
    expect_map_plan(&query, "*.experts=host", "0 0 0 0");
    cr_assert_eq(plan.host_bytes, 320);
    query.host_memory = 319;
    expect_map_refused(&query, "*.experts=host", "host memory has room for 319 B");
    expect_map_refused(&query, "10:14=cuda:0,*.experts=host", "host memory has room for 319 B");
    expect_map_plan(&query, "*.experts=disk", "0 0 0 0");
}

Test(plan, what_rests_in_host_memory_and_what_the_cpu_computes_share_it) {
    static const sn_plan_device cpu[] = {{CPU, 200, 0}};
    sn_plan_query query = even_query(4, 60, 0, cpu, 1);
    query.offload = SN_IN_HOST;
    query.host_memory = 359;
    expect_auto_refused(&query, "host memory has room for 359 B");
    query.host_memory = 360; /* 60 and two slots of 60 beside three blocks that rest */
    expect_auto_plan(&query, "0 0h 0h 0h");
}

Test(plan, host_memory_is_recommended_where_it_has_room) {
    static const sn_plan_device cuda[] = {{CUDA(0), 200, 0}};
    sn_plan_query query = even_query(4, 60, 0, cuda, 1);
    query.host_memory = 240;
    expect_auto_refused(&query, "a smaller KV cache, --offload host or disk, or more memory");
    query.host_memory = 239;
    expect_auto_refused(&query, "a smaller KV cache, --offload disk, or more memory");
}

Test(plan, a_cpu_that_is_too_small_is_not_relieved_by_host_memory) {
    static const sn_plan_device cpu[] = {{CPU, 200, 0}};
    sn_plan_query query = even_query(4, 60, 0, cpu, 1);
    expect_auto_refused(&query, "a smaller KV cache, --offload disk, or more memory");
}

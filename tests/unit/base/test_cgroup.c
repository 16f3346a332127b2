#include "base/cgroup.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *root;
static sn_cgroup_limits limits;

static void begin(void) { root = temp_folder(); }
static void end(void) {
    remove_tree(root);
    free(root);
}
TestSuite(cgroup, .init = begin, .fini = end);

/* A file below the root; its folders are made. */
static void put(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0755);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

static void expect_limits(size_t memory, size_t memory_free, int cpus) {
    sn_cgroup_read(root, &limits);
    cr_expect_eq(limits.memory, memory, "%zu", limits.memory);
    cr_expect_eq(limits.memory_free, memory_free, "%zu", limits.memory_free);
    cr_expect_eq(limits.cpus, cpus, "%d", limits.cpus);
}

Test(cgroup, a_machine_without_groups_has_no_limits) { expect_limits(SIZE_MAX, SIZE_MAX, 0); }

Test(cgroup, the_least_limit_on_the_way_to_the_root_counts) {
    put("proc/self/cgroup", "0::/system.slice/swarm-node.service\n");
    put("sys/fs/cgroup/cgroup.procs", "1\n"); /* the root of v2 has no limits */
    put("sys/fs/cgroup/system.slice/memory.max", "1000000\n");
    put("sys/fs/cgroup/system.slice/memory.current", "950000\n");
    put("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/system.slice/swarm-node.service/memory.max", "600000\n");
    put("sys/fs/cgroup/system.slice/swarm-node.service/memory.current", "100000\n");
    put("sys/fs/cgroup/system.slice/swarm-node.service/cpu.max", "150000 100000\n");
    expect_limits(600000, 50000, 2); /* the slice around it is nearly full */
    put("sys/fs/cgroup/system.slice/cpu.max", "10000 100000\n");
    put("sys/fs/cgroup/system.slice/memory.max", "500000\n");
    expect_limits(500000, 0, 1);
}

Test(cgroup, a_limit_that_slows_down_counts_and_caches_are_free) {
    put("proc/self/cgroup", "0::/user\n");
    put("sys/fs/cgroup/user/memory.max", "max\n");
    put("sys/fs/cgroup/user/memory.high", "800000\n");
    put("sys/fs/cgroup/user/memory.current", "700000\n");
    put("sys/fs/cgroup/user/memory.stat", "anon 100000\ninactive_file 400000\nactive_file 200000\n");
    expect_limits(800000, 700000, 0);
}

Test(cgroup, a_container_that_does_not_see_its_path_has_the_limits_of_its_mount) {
    put("proc/self/cgroup", "0::/docker/0123\n");
    put("sys/fs/cgroup/memory.max", "300000\n");
    put("sys/fs/cgroup/cpu.max", "200000 100000\n");
    expect_limits(300000, 300000, 2);
    put("proc/self/cgroup", "0::/../elsewhere\n");
    expect_limits(300000, 300000, 2);
}

Test(cgroup, version_1_is_read_by_controller) {
    put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/jobs/7\n2:cpu,cpuacct:/jobs\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "900000\n");
    put("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "2000000\n");
    put("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "1950000\n");
    put("sys/fs/cgroup/memory/jobs/7/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\ntotal_active_file 0\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    expect_limits(900000, 100000, 0);
    put("sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "50000\n"); /* by the other name of the mount */
    put("sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
    expect_limits(900000, 100000, 1);
}

Test(cgroup, what_is_no_number_limits_nothing) {
    put("proc/self/cgroup", "no colon\n1:memory\n0::/a\n");
    put("sys/fs/cgroup/a/memory.max", "-5\n");
    put("sys/fs/cgroup/a/cpu.max", "0 0\n");
    expect_limits(SIZE_MAX, SIZE_MAX, 0);
}

Test(cgroup, this_process_has_a_core_and_memory) {
    size_t total, available;
    sn_memory_read(&total, &available);
    cr_assert(sn_cores() >= 1 && total > 0 && available > 0 && available <= total);
}

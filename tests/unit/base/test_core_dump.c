/* Programs that hold keys leave no core dump, but where their owner looks for a fault. */
#include "base/core_dump.h"
#include "base/program_environment.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static char *said;
static char *read_variable(const char *name) { return strcmp(name, "SWARM_DUMPABLE") ? NULL : said; }

static void forbid(char *variable) {
    said = variable;
    sn_environment_use(read_variable);
    sn_core_dump_forbid();
}

Test(core_dump, is_left_only_by_a_program_whose_owner_wants_one) {
    static char yes[] = "1", other[] = "0";
    struct rlimit limit, before;
    cr_assert_eq(getrlimit(RLIMIT_CORE, &before), 0);
    cr_assert_eq(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    forbid(yes);
    cr_expect_eq(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 1);
    cr_assert_eq(getrlimit(RLIMIT_CORE, &limit), 0);
    cr_expect_eq(limit.rlim_max, before.rlim_max);
    forbid(other);
    cr_expect_eq(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
    cr_assert_eq(getrlimit(RLIMIT_CORE, &limit), 0);
    cr_expect_eq(limit.rlim_max, 0);
    cr_assert_eq(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    forbid(NULL);
    cr_expect_eq(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
}

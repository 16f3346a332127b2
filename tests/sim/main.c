/* The program `sim`: simulates seeds. It prints each seed that breaks a rule, which --seed N --trace shows in detail.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void print_stats(const sim_stats *f, uint64_t seeds) {
    const struct {
        const char *name;
        uint64_t n;
    } counts[] = {{"generations correct", f->generations},
                  {"tokens", f->tokens},
                  {"with an adapter", f->adapted},
                  {"sessions from files", f->loads},
                  {"trainings", f->trained},
                  {"poisoned sessions", f->poisoned},
                  {"errors", f->errors},
                  {"failovers", f->failovers},
                  {"crashes", f->crashes},
                  {"drains", f->drains},
                  {"stalls", f->stalls},
                  {"slow nodes", f->slow},
                  {"partitions", f->partitions},
                  {"cuts", f->cuts},
                  {"nodes gone for good", f->retired},
                  {"messages changed", f->garbled},
                  {"wrong replies", f->wrong_replies},
                  {"nodes banned", f->bans},
                  {"rebalanced", f->rebalances},
                  {"refused by quotas", f->quota_refusals},
                  {"excused", f->excused},
                  {"rounds of experts", f->rounds},
                  {"failed rounds", f->rounds_failed},
                  {"holders dropped", f->holders_dropped},
                  {"cancelled", f->cancelled},
                  {"chunks behind others", f->behind},
                  {"windows behind others", f->ahead},
                  {"events", f->events}};
    printf("%llu seeds, %.1f h of virtual time", (unsigned long long)seeds, (double)f->virtual_us / 3.6e9);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        printf("%s %llu %s", i ? "," : ":", (unsigned long long)counts[i].n, counts[i].name);
    printf("\n");
}

/* What a job has done: in memory that it shares with its parent, because a seed that fails ends its process. */
typedef struct progress {
    uint64_t next, failed; /* next: number of the present seed */
    sim_stats sum;
} progress;

static sim_options options;

static void run_seeds(uint64_t from, uint64_t n, uint64_t jobs, progress *p) {
    for (; p->next < n; p->next += jobs) {
        sim_stats f = sim_run(from + p->next, options);
        sim_stats_add(&p->sum, &f);
    }
    sim_train_free();
    sim_model_free();
}

/* Simulates seeds from + p->next, and every further jobs-th one below from + n. Continues after a seed that fails. */
static void run_job(uint64_t from, uint64_t n, uint64_t jobs, progress *p) {
    while (p->next < n) {
        int status;
        pid_t child = fork();
        if (child < 0) _exit(1);
        if (!child) {
            run_seeds(from, n, jobs, p);
            _exit(0);
        }
        if (waitpid(child, &status, 0) == child && !status) return;
        fprintf(stderr, "failed: seed %llu\n", (unsigned long long)(from + p->next));
        p->failed++;
        p->next += jobs;
    }
}

static int run_many(uint64_t from, uint64_t n, uint64_t jobs) {
    size_t bytes = jobs * sizeof(progress);
    progress *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), all = {0};
    if (p == MAP_FAILED) return 1;
    for (uint64_t job = 0; job < jobs; job++) {
        p[job].next = job;
        pid_t child = fork();
        if (child < 0) return 1;
        if (child) continue;
        run_job(from, n, jobs, &p[job]);
        _exit(0);
    }
    while (wait(NULL) > 0) {}
    for (uint64_t job = 0; job < jobs; job++) {
        sim_stats_add(&all.sum, &p[job].sum);
        all.failed += p[job].failed;
    }
    print_stats(&all.sum, n - all.failed);
    if (all.failed)
        fprintf(stderr, "%llu of %llu seeds failed\n", (unsigned long long)all.failed, (unsigned long long)n);
    munmap(p, bytes);
    return all.failed ? 1 : 0;
}

static sim_theme theme_of(const char *name) {
    static const char *const themes[] = {"drawn",   "replicas", "prefixes",  "sparse",
                                         "garbled", "training", "recurrent", "experts"};
    for (int i = 0; i < (int)(sizeof themes / sizeof *themes); i++)
        if (!strcmp(name, themes[i])) return (sim_theme)i;
    fprintf(stderr, "there is no theme '%s'\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    uint64_t seeds = 1, from = 1, jobs = 1;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--trace"))
            options.traced = true;
        else if (!strcmp(argv[i], "--seeds") && more)
            seeds = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--from") && more)
            from = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--theme") && more)
            options.theme = theme_of(argv[++i]);
        else if (!strcmp(argv[i], "--seed") && more)
            from = strtoull(argv[++i], NULL, 10), seeds = 1;
        else if (!strcmp(argv[i], "--jobs") && more)
            jobs = strtoull(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: sim [--seeds N] [--from N] [--jobs N] [--theme NAME] | --seed N [--trace]\n");
            return 2;
        }
    }
    sn_log_setup(options.traced ? SN_LOG_DEBUG : SN_LOG_OFF, false);
    if (seeds != 1) return run_many(from, seeds, jobs ? jobs : 1);
    sim_stats f = sim_run(from, options);
    printf("trace %016llx\n", (unsigned long long)f.trace);
    print_stats(&f, 1);
    sim_train_free();
    sim_model_free();
    return 0;
}

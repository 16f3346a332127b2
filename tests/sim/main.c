/* sim: lives through seeds. Prints the first failing one, which --seed N --trace shows again. */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 100 };

static void add(sim_figures *sum, const sim_figures *f) {
    sum->events += f->events;
    sum->tokens += f->tokens;
    sum->generations += f->generations;
    sum->errors += f->errors;
    sum->failovers += f->failovers;
    sum->crashes += f->crashes;
    sum->joins += f->joins;
    sum->drains += f->drains;
    sum->stalls += f->stalls;
    sum->partitions += f->partitions;
    sum->cuts += f->cuts;
    sum->lies += f->lies;
    sum->caught += f->caught;
    sum->moves += f->moves;
    sum->virtual_us += f->virtual_us;
}

static void print(const sim_figures *f, uint64_t seeds) {
    printf("%llu seeds: %llu generations right, %llu tokens, %llu errors told, %llu failovers; %llu crashes, %llu drains, "
           "%llu stalls, %llu partitions, %llu cuts, %llu lies, %llu caught by audits, %llu moves; %.1f h of virtual time, %llu events\n",
           (unsigned long long)seeds, (unsigned long long)f->generations, (unsigned long long)f->tokens,
           (unsigned long long)f->errors, (unsigned long long)f->failovers, (unsigned long long)f->crashes,
           (unsigned long long)f->drains, (unsigned long long)f->stalls, (unsigned long long)f->partitions,
           (unsigned long long)f->cuts, (unsigned long long)f->lies, (unsigned long long)f->caught, (unsigned long long)f->moves, (double)f->virtual_us / 3.6e9,
           (unsigned long long)f->events);
}

/* Every jobs-th seed from `from` + `job` on, in a process of its own; what came of it goes into the pipe. */
static int run_job(uint64_t from, uint64_t n, uint64_t job, uint64_t jobs, int out) {
    sim_figures sum = {0};
    for (uint64_t i = job; i < n; i += jobs) {
        sim_figures f = sim_run(from + i, (sim_options){0});
        add(&sum, &f);
    }
    sim_model_free();
    return write(out, &sum, sizeof sum) == sizeof sum ? 0 : 1;
}

static int run_many(uint64_t from, uint64_t n, uint64_t jobs) {
    int ends[2], status, bad = 0;
    sim_figures sum = {0}, one;
    if (pipe(ends)) return 1;
    fflush(stdout);
    for (uint64_t job = 0; job < jobs; job++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (!child) _exit(run_job(from, n, job, jobs, ends[1]));
    }
    close(ends[1]);
    while (wait(&status) > 0) bad |= status;
    while (read(ends[0], &one, sizeof one) == sizeof one) add(&sum, &one);
    close(ends[0]);
    if (!bad) print(&sum, n);
    return bad ? 1 : 0;
}

int main(int argc, char **argv) {
    uint64_t seeds = 1, from = 1, jobs = 1;
    bool trace = false;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--trace")) trace = true;
        else if (!strcmp(argv[i], "--seeds") && more) seeds = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--from") && more) from = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed") && more) from = strtoull(argv[++i], NULL, 10), seeds = 1;
        else if (!strcmp(argv[i], "--jobs") && more) jobs = strtoull(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: sim [--seeds N] [--from N] [--jobs N] | --seed N [--trace]\n");
            return 2;
        }
    }
    sn_log_setup(trace ? SN_LOG_DEBUG : SN_LOG_OFF, false);
    if (jobs > 1 && seeds > 1) return run_many(from, seeds, jobs);
    sim_figures sum = {0};
    for (uint64_t i = 0; i < seeds; i++) {
        sim_figures f = sim_run(from + i, (sim_options){.traced = trace});
        add(&sum, &f);
        if (seeds == 1) printf("trace %016llx\n", (unsigned long long)f.trace);
        if ((i + 1) % (10 * CHUNK) == 0 && i + 1 < seeds) {
            print(&sum, i + 1);
            fflush(stdout);
        }
    }
    print(&sum, seeds);
    sim_model_free();
    return 0;
}

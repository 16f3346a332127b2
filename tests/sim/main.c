/* The program `sim`: simulates seeds. It prints the first failing seed, which --seed N --trace shows in detail. */
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

static void add_stats(sim_stats *sum, const sim_stats *f) {
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
    sum->wrong_replies += f->wrong_replies;
    sum->bans += f->bans;
    sum->rebalances += f->rebalances;
    sum->virtual_us += f->virtual_us;
}

static void print_stats(const sim_stats *f, uint64_t seeds) {
    printf("%llu seeds: %llu generations correct, %llu tokens, %llu errors, %llu failovers; %llu crashes, %llu drains, "
           "%llu stalls, %llu partitions, %llu cuts, %llu wrong replies, %llu nodes banned, %llu rebalanced; %.1f h of "
           "virtual "
           "time, %llu events\n",
           (unsigned long long)seeds, (unsigned long long)f->generations, (unsigned long long)f->tokens,
           (unsigned long long)f->errors, (unsigned long long)f->failovers, (unsigned long long)f->crashes,
           (unsigned long long)f->drains, (unsigned long long)f->stalls, (unsigned long long)f->partitions,
           (unsigned long long)f->cuts, (unsigned long long)f->wrong_replies, (unsigned long long)f->bans,
           (unsigned long long)f->rebalances, (double)f->virtual_us / 3.6e9, (unsigned long long)f->events);
}

/* Simulates seeds from + job, from + job + jobs, ... in a process of its own, and writes the sum of the statistics
 * to the pipe. */
static int run_job(uint64_t from, uint64_t n, uint64_t job, uint64_t jobs, int out) {
    sim_stats sum = {0};
    for (uint64_t i = job; i < n; i += jobs) {
        sim_stats f = sim_run(from + i, (sim_options){0});
        add_stats(&sum, &f);
    }
    sim_model_free();
    return write(out, &sum, sizeof sum) == sizeof sum ? 0 : 1;
}

static int run_many(uint64_t from, uint64_t n, uint64_t jobs) {
    int ends[2], status, bad = 0;
    sim_stats sum = {0}, one;
    if (pipe(ends)) return 1;
    fflush(stdout);
    for (uint64_t job = 0; job < jobs; job++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (!child) _exit(run_job(from, n, job, jobs, ends[1]));
    }
    close(ends[1]);
    while (wait(&status) > 0) bad |= status;
    while (read(ends[0], &one, sizeof one) == sizeof one) add_stats(&sum, &one);
    close(ends[0]);
    if (!bad) print_stats(&sum, n);
    return bad ? 1 : 0;
}

int main(int argc, char **argv) {
    uint64_t seeds = 1, from = 1, jobs = 1;
    bool trace = false;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--trace"))
            trace = true;
        else if (!strcmp(argv[i], "--seeds") && more)
            seeds = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--from") && more)
            from = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed") && more)
            from = strtoull(argv[++i], NULL, 10), seeds = 1;
        else if (!strcmp(argv[i], "--jobs") && more)
            jobs = strtoull(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: sim [--seeds N] [--from N] [--jobs N] | --seed N [--trace]\n");
            return 2;
        }
    }
    sn_log_setup(trace ? SN_LOG_DEBUG : SN_LOG_OFF, false);
    if (jobs > 1 && seeds > 1) return run_many(from, seeds, jobs);
    sim_stats sum = {0};
    for (uint64_t i = 0; i < seeds; i++) {
        sim_stats f = sim_run(from + i, (sim_options){.traced = trace});
        add_stats(&sum, &f);
        if (seeds == 1) printf("trace %016llx\n", (unsigned long long)f.trace);
        if ((i + 1) % (10 * CHUNK) == 0 && i + 1 < seeds) {
            print_stats(&sum, i + 1);
            fflush(stdout);
        }
    }
    print_stats(&sum, seeds);
    sim_model_free();
    return 0;
}

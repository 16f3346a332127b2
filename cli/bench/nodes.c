/* The node processes of a benchmark.
 *
 * Each node is a child process of swarm-node, started with fork and exec. Its stdout is a pipe, from which the line
 * "ready:" with its address is read; its stderr goes to a memfd, whose last line explains a node that did not start.
 * The first node starts alone, and the others join it. A node gets SIGTERM at the end and SIGKILL after END_MS; the
 * kernel kills it when this process dies (PR_SET_PDEATHSIG). */
#include "cli/bench/bench.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_MS = 600000, END_MS = 10000, DISCOVERED_MS = 30000, ARGS_MAX = 64, LINE_MAX_BYTES = 2048 };

typedef struct process {
    pid_t pid;    /* 0: none */
    int out, log; /* read end of its stdout; memfd of its stderr */
    int first, end;
    char address[SN_ADDRESS_MAX + 1];
} process;

struct sn_bench_nodes {
    const sn_bench_plan *plan;
    sn_bench_case config;
    char program[4096];
    process all[SN_BENCH_NODES_MAX];
    size_t n;
};

/* -- one process -- */

/* swarm-node is in the folder of this program. */
static sn_status find_program(sn_bench_nodes *nodes, sn_err *err) {
    ssize_t len = readlink("/proc/self/exe", nodes->program, sizeof nodes->program - 16);
    nodes->program[len > 0 ? len : 0] = 0;
    char *slash = strrchr(nodes->program, '/');
    if (slash) memcpy(slash + 1, "swarm-node", sizeof "swarm-node");
    if (slash && !access(nodes->program, X_OK)) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "there is no swarm-node in the folder of this program: build it, or measure a running swarm "
                   "(--join) or local blocks (--local all)");
}

/* KV memory for all sessions of the largest case, and a quarter more; as if all blocks had the keys and values of those
 * that have most. */
static size_t cache_bytes(const sn_bench_plan *p, int n_blocks) {
    size_t width = 0;
    for (int b = 0; b < p->hp->n_blocks; b++) {
        const size_t own = sn_kv_key_width(p->hp, b) + sn_kv_value_width(p->hp, b);
        width = own > width ? own : width;
    }
    size_t tokens =
        (size_t)(p->sessions_max + 1) * (size_t)(p->context_max + p->extra_tokens_max + 2 * SN_KV_PAGE_TOKENS);
    return tokens * (size_t)n_blocks * width * sizeof(float) * 5 / 4 + (32u << 20);
}

typedef struct arguments {
    char formatted[8][32]; /* storage of arguments that are made here */
    const char *list[ARGS_MAX + 1];
    size_t n, n_formatted;
} arguments;

static void add_argument(arguments *a, const char *text) {
    if (a->n < ARGS_MAX) a->list[a->n++] = text;
}

static SN_PRINTF(2, 3) void add_formatted_argument(arguments *a, const char *format, ...) {
    va_list values;
    char *text = a->formatted[a->n_formatted++];
    va_start(values, format);
    vsnprintf(text, sizeof a->formatted[0], format, values);
    va_end(values);
    add_argument(a, text);
}

static void fill_arguments(const sn_bench_nodes *nodes, size_t i, arguments *a) {
    const process *p = &nodes->all[i];
    add_argument(a, nodes->program);
    add_argument(a, "--model");
    add_argument(a, sn_program_settings.common.model);
    add_argument(a, "--blocks");
    add_formatted_argument(a, "%d:%d", p->first, p->end);
    add_argument(a, "--name");
    add_formatted_argument(a, "bench%zu", i);
    add_argument(a, "--listen");
    add_argument(a, "127.0.0.1:0");
    add_argument(a, "--threads");
    add_formatted_argument(a, "%d", nodes->config.threads);
    add_argument(a, "--kv-memory");
    add_formatted_argument(a, "%zu", cache_bytes(nodes->plan, p->end - p->first));
    add_argument(a, "--max-sessions");
    add_formatted_argument(a, "%d", nodes->plan->sessions_max * 2 + 16);
    add_argument(a, "--client-sessions");
    add_argument(a, "0"); /* one client, this program, opens all of them */
    if (nodes->config.link) {
        add_argument(a, "--emulate-link");
        add_argument(a, nodes->config.link);
    }
    add_argument(a, "--kv-dtype");
    add_argument(a, sn_word_name(sn_kv_dtype_words, sn_program_settings.common.kv_dtype));
    if (sn_program_settings.common.isa) {
        add_argument(a, "--isa");
        add_argument(a, sn_program_settings.common.isa);
    }
    for (size_t k = 0; k < nodes->n; k++) { /* any node that is ready */
        if (k == i || !nodes->all[k].pid || !*nodes->all[k].address) continue;
        add_argument(a, "--join");
        add_argument(a, nodes->all[k].address);
        break;
    }
    for (size_t k = 0; k < nodes->plan->node_options.n; k++) add_argument(a, nodes->plan->node_options.items[k]);
}

/* In the child: only calls that are async-signal-safe, because the parent has threads. */
static void exec_node(const arguments *a, const int pipe_ends[2], int log, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* an interrupt from the terminal goes to the parent only, which then ends the nodes */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(pipe_ends[1], STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(a->list[0], (char *const *)(uintptr_t)a->list);
    _exit(127);
}

static sn_status launch_node(sn_bench_nodes *nodes, size_t i, sn_err *err) {
    process *p = &nodes->all[i];
    int ends[2] = {-1, -1};
    arguments *a = NULL;
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    fill_arguments(nodes, i, a);
    p->log = memfd_create("swarm-node", MFD_CLOEXEC);
    if (p->log < 0 || pipe2(ends, O_CLOEXEC)) {
        status = sn_fail(err, SN_STOP, "a node cannot be started: %s", strerror(errno));
        free(a);
        return status;
    }
    pid_t parent = getpid();
    p->pid = fork();
    if (!p->pid) exec_node(a, ends, p->log, parent);
    close(ends[1]);
    p->out = ends[0];
    free(a);
    if (p->pid > 0) return SN_OK;
    p->pid = 0;
    return sn_fail(err, SN_STOP, "a node cannot be started: %s", strerror(errno));
}

/* The last line of its log. */
static void read_last_log_line(const process *p, char out[256]) {
    char tail[1024];
    off_t size = lseek(p->log, 0, SEEK_END), from = size > (off_t)sizeof tail ? size - (off_t)sizeof tail : 0;
    ssize_t got = pread(p->log, tail, sizeof tail - 1, from);
    tail[got > 0 ? got : 0] = 0;
    for (char *end = tail + strlen(tail); end > tail && end[-1] == '\n';) *--end = 0;
    char *line = strrchr(tail, '\n');
    snprintf(out, 256, "%.255s", line ? line + 1 : tail);
}

/* Waits for the line "ready: address=..." and reads the address. */
static sn_status wait_ready(process *p, sn_err *err) {
    char line[LINE_MAX_BYTES] = "", last_line[256];
    size_t len = 0;
    int64_t until = sn_now_us() + (int64_t)READY_MS * 1000;
    while (!strchr(line, '\n')) {
        struct pollfd ready = {p->out, POLLIN, 0};
        if (sn_interrupted) return sn_fail(err, SN_RETRY, "interrupted");
        if (sn_now_us() > until) return sn_fail(err, SN_RETRY, "a node was not ready within %d s", READY_MS / 1000);
        if (poll(&ready, 1, 200) <= 0) continue;
        ssize_t got = read(p->out, line + len, sizeof line - 1 - len);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            read_last_log_line(p, last_line);
            return sn_fail(err, SN_REFUSED, "a node with blocks %d:%d did not start: %s", p->first, p->end, last_line);
        }
        len += (size_t)got;
        line[len] = 0;
    }
    const char *at = strstr(line, "address=");
    if (at) sscanf(at, "address=%255s", p->address);
    return at ? SN_OK : sn_fail(err, SN_RETRY, "a node printed no address, but: %.200s", line);
}

static bool process_ended(process *p, int wait_ms) {
    int64_t until = sn_now_us() + (int64_t)wait_ms * 1000;
    while (p->pid) {
        if (waitpid(p->pid, NULL, WNOHANG) == p->pid)
            p->pid = 0;
        else if (sn_now_us() > until)
            return false;
        else
            sn_sleep_us(2000);
    }
    return true;
}

static void end_process(process *p) {
    if (!p->pid) return;
    if (!process_ended(p, END_MS)) {
        kill(p->pid, SIGKILL);
        (void)process_ended(p, END_MS);
    }
    close(p->out);
    close(p->log);
}

/* -- all nodes -- */

sn_status sn_bench_nodes_start(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes **out, sn_err *err) {
    sn_bench_nodes *nodes = NULL;
    sn_status status = sn_calloc(&nodes, 1, sizeof *nodes, err);
    if (status) return status;
    nodes->plan = plan;
    nodes->config = *c;
    status = find_program(nodes, err);
    for (int i = 0; i < c->nodes && !status; i++) {
        process *p = &nodes->all[nodes->n++];
        p->first = i * plan->hp->n_blocks / c->nodes;
        p->end = (i + 1) * plan->hp->n_blocks / c->nodes;
        status = launch_node(nodes, nodes->n - 1, err);
        if (!status && !i) status = wait_ready(p, err); /* the other nodes join it */
    }
    for (size_t i = 1; i < nodes->n && !status; i++) status = wait_ready(&nodes->all[i], err);
    if (status) sn_bench_nodes_stop(&nodes);
    *out = nodes;
    return status;
}

/* Waits until the other nodes know this one. */
static sn_status wait_discovered(const sn_bench_nodes *nodes, size_t which, sn_err *err) {
    const char *join[SN_BENCH_NODES_MAX];
    size_t n = 0;
    bool known = false;
    sn_link *link = NULL;
    for (size_t i = 0; i < nodes->n; i++)
        if (i != which) join[n++] = nodes->all[i].address;
    sn_hash model = sn_model_id(nodes->plan->model);
    int64_t until = sn_now_us() + (int64_t)DISCOVERED_MS * 1000;
    sn_status status = sn_link_open(&(sn_link_options){.join = join, .n_join = n}, &link, err);
    while (!status && !known && sn_now_us() < until) {
        status = sn_link_discover(link, &model, DISCOVERED_MS, err);
        const sn_directory *directory = status ? NULL : sn_link_directory(link);
        for (size_t i = 0; directory && i < sn_directory_count(directory); i++)
            known = known || !strcmp(sn_directory_at(directory, i)->address, nodes->all[which].address);
        if (!known) sn_sleep_us(20000);
    }
    sn_link_close(&link);
    if (status || known) return status;
    return sn_fail(err, SN_RETRY, "a node that was started again was not known to the others within %d s",
                   DISCOVERED_MS / 1000);
}

sn_status sn_bench_nodes_duplicate(sn_bench_nodes *nodes, size_t i, sn_err *err) {
    if (nodes->n == SN_BENCH_NODES_MAX) return sn_fail(err, SN_REFUSED, "at most %d nodes", SN_BENCH_NODES_MAX);
    process *p = &nodes->all[nodes->n];
    p->first = nodes->all[i].first;
    p->end = nodes->all[i].end;
    sn_status status = launch_node(nodes, nodes->n++, err);
    if (!status) status = wait_ready(p, err);
    return status ? status : wait_discovered(nodes, nodes->n - 1, err);
}

bool sn_bench_nodes_signal(sn_bench_nodes *nodes, const char *name, int signal_number, size_t *which) {
    static const char prefix[] = "bench";
    if (strncmp(name, prefix, strlen(prefix))) return false;
    *which = strtoul(name + strlen(prefix), NULL, 10);
    if (*which >= nodes->n || !nodes->all[*which].pid) return false;
    return !kill(nodes->all[*which].pid, signal_number);
}

sn_status sn_bench_nodes_restart(sn_bench_nodes *nodes, size_t which, sn_err *err) {
    end_process(&nodes->all[which]);
    sn_status status = launch_node(nodes, which, err);
    if (!status) status = wait_ready(&nodes->all[which], err);
    return status ? status : wait_discovered(nodes, which, err);
}

size_t sn_bench_nodes_addresses(const sn_bench_nodes *nodes, const char **out, size_t capacity) {
    for (size_t i = 0; i < nodes->n && i < capacity; i++) out[i] = nodes->all[i].address;
    return nodes->n < capacity ? nodes->n : capacity;
}

void sn_bench_nodes_stop(sn_bench_nodes **nodes) {
    if (!*nodes) return;
    for (size_t i = 0; i < (*nodes)->n; i++)
        if ((*nodes)->all[i].pid) kill((*nodes)->all[i].pid, SIGTERM);
    for (size_t i = 0; i < (*nodes)->n; i++) end_process(&(*nodes)->all[i]);
    free(*nodes);
    *nodes = NULL;
}

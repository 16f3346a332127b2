/* swarm-node: the daemon. Options in, one node, signals, a line when it is ready. */
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/text.h"
#include "node/node.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_NETWORK = 1, EXIT_USAGE = 2, EXIT_RESOURCES = 3 };

static struct {
    const char *model, *listen, *public_address, *identity, *name, *device, *isa, *log_level;
    sn_block_range blocks;
    sn_strings join;
    size_t kv_memory;
    int64_t threads, sessions_max, session_timeout_s, room_timeout_s;
    bool json_log;
} given = {.listen = "tcp://127.0.0.1:31330",
           .device = "cpu",
           .log_level = "info",
           .kv_memory = 512u << 20,
           .sessions_max = 64,
           .session_timeout_s = 600,
           .room_timeout_s = 20};

static const sn_option serving[] = {
    {"model", "PATH", "a GGUF file, or a folder as Hugging Face lays it out", SN_OPTION_STRING, &given.model, 0, 0,
     true},
    {"blocks", "A:B", "the blocks to serve, end exclusive, as in 10:20; or all", SN_OPTION_BLOCKS, &given.blocks, 0, 0,
     true},
    {"device", "NAME", "what to compute on: cpu", SN_OPTION_STRING, &given.device, 0, 0, false},
    {"threads", "N", "worker threads; 0: as many as cores", SN_OPTION_INT, &given.threads, 0, 1024, false},
    {"kv-memory", "SIZE", "memory for the past of all sessions", SN_OPTION_SIZE, &given.kv_memory, 0, 0, false},
    {"max-sessions", "N", "sessions served at once", SN_OPTION_INT, &given.sessions_max, 1, 100000, false},
    {"session-timeout", "SECONDS", "a session whose client is silent for so long is closed", SN_OPTION_INT,
     &given.session_timeout_s, 1, 1000000, false},
    {"room-timeout", "SECONDS", "how long a step may wait for room in the cache", SN_OPTION_INT, &given.room_timeout_s,
     0, 100000, false},
    {"isa", "NAME", "instruction set of the CPU kernels: c, avx2 or avx512; by itself the best there is",
     SN_OPTION_STRING, &given.isa, 0, 0, false},
};

static const sn_option network[] = {
    {"listen", "ADDRESS", "where to listen, TCP and (for introductions) UDP; port 0 picks one", SN_OPTION_STRING,
     &given.listen, 0, 0, false},
    {"public", "ADDRESS", "the address to announce, when others reach this node by another one", SN_OPTION_STRING,
     &given.public_address, 0, 0, false},
    {"join", "ADDRESS", "any node of the swarm, tcp://HOST:PORT, with #KEY to pin its key",
     SN_OPTION_STRINGS, &given.join, 0, 0, false},
    {"identity", "FILE", "keys made by `swarm keygen`; by itself fresh ones each time", SN_OPTION_STRING,
     &given.identity, 0, 0, false},
    {"name", "TEXT", "what people call this node", SN_OPTION_STRING, &given.name, 0, 0, false},
};

static const sn_option logging[] = {
    {"log-level", "LEVEL", "debug, info, warn, error or off", SN_OPTION_STRING, &given.log_level, 0, 0, false},
    {"json-log", NULL, "log lines as JSON objects", SN_OPTION_FLAG, &given.json_log, 0, 0, false},
};

static const sn_option_group groups[] = {
    {"Serving:", serving, sizeof serving / sizeof *serving},
    {"Network:", network, sizeof network / sizeof *network},
    {"Log (on stderr):", logging, sizeof logging / sizeof *logging},
};

static const sn_command command = {
    .program = "swarm-node",
    .synopsis = "--model PATH --blocks A:B [options]",
    .about = "Serves a span of a language model's blocks to the swarm. Prints one line on stdout when it is ready; "
             "SIGTERM or "
             "SIGINT makes it refuse new work, finish the steps in hand and leave within 5 seconds.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof *groups,
    .epilogue =
        "Exit codes: 0 stopped by a signal, 1 the network failed, 2 an option or file is wrong, 3 out of memory or "
        "device lost.",
};

static _Atomic(sn_node *) running; /* NULL while the span is being loaded */

static void *wait_for_signal(void *unused) {
    (void)unused;
    sigset_t set;
    int which;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    while (sigwait(&set, &which)) {}
    sn_log(SN_LOG_INFO, "leaving", "signal=%s", which == SIGTERM ? "TERM" : "INT");
    sn_node *node = atomic_load(&running);
    if (!node) _exit(EXIT_OK); /* nothing is served yet: nothing to end */
    sn_node_stop(node);
    return NULL;
}

static void show_progress(void *ctx, int done, int of) {
    (void)ctx;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\rloading blocks: %d of %d%s", done, of, done == of ? "\n" : "");
}

static void print_ready(const sn_node *node) {
    char id[2 * SN_KEY_SIZE + 1], key[2 * SN_KEY_SIZE + 1], weights[32], cache[32];
    const sn_hparams *hp = sn_node_hparams(node);
    printf("ready: address=%s node=%s key=%s model=\"%s\" blocks=%d:%d/%d weights=%s cache=%s (%zu tokens)\n",
           sn_node_address(node), sn_hex(sn_node_id(node), SN_KEY_SIZE, id),
           sn_hex(sn_node_curve_key(node), SN_KEY_SIZE, key), hp->name, given.blocks.first, given.blocks.end,
           hp->n_blocks, sn_format_size(sn_node_weight_bytes(node), weights), sn_format_size(given.kv_memory, cache),
           sn_node_kv_tokens(node));
    fflush(stdout);
}

/* --blocks all needs the number of blocks, which only the model knows. */
static sn_status resolve_blocks(sn_err *err) {
    if (!given.blocks.all) return SN_OK;
    sn_model *model = NULL;
    sn_status status = sn_model_open(given.model, &model, err);
    if (status) return status;
    given.blocks.end = sn_model_hparams(model)->n_blocks;
    sn_model_close(&model);
    return SN_OK;
}

static sn_status run(sn_err *err) {
    sn_log_level level;
    sn_status status = sn_log_level_parse(given.log_level, &level, err);
    if (!status) status = resolve_blocks(err);
    if (status) return status;
    sn_log_setup(level, given.json_log);
    const sn_node_config config = {
        .model_path = given.model,
        .first = given.blocks.first,
        .end = given.blocks.end,
        .listen = given.listen,
        .public_address = given.public_address,
        .join = given.join.items,
        .n_join = given.join.n,
        .identity_path = given.identity,
        .name = given.name,
        .device = given.device,
        .device_options = {(int)given.threads, given.isa},
        .kv_memory = given.kv_memory,
        .sessions_max = (size_t)given.sessions_max,
        .session_timeout_s = (int)given.session_timeout_s,
        .room_timeout_s = (int)given.room_timeout_s,
    };
    pthread_t signals;
    if (pthread_create(&signals, NULL, wait_for_signal, NULL)) return sn_fail(err, SN_STOP, "no thread is to be had");
    sn_node *node = NULL;
    status = sn_node_new(&config, NULL, show_progress, NULL, &node, err);
    if (!status) {
        print_ready(node);
        atomic_store(&running, node);
        status = sn_node_run(node, err);
    }
    pthread_cancel(signals); /* it may still wait for a signal: sigwait is where it can be ended */
    pthread_join(signals, NULL);
    sn_node_free(&node);
    return status;
}

int main(int argc, char **argv) {
    sn_err err;
    sn_options options;
    sigset_t set; /* blocked in every thread: one of them waits for these */
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);

    sn_status status = sn_options_parse(&command, argc, argv, &options, &err);
    if (!status && options.help)
        sn_options_help(&command, stdout);
    else if (!status && options.version)
        printf("swarm-node %s\n", SN_VERSION);
    else if (!status)
        status = run(&err);
    if (status) fprintf(stderr, "swarm-node: %s\n", err.text);
    sn_options_fini(&command, &options);
    return status == SN_OK        ? EXIT_OK
           : status == SN_REFUSED ? EXIT_USAGE
           : status == SN_STOP    ? EXIT_RESOURCES
                                  : EXIT_NETWORK;
}

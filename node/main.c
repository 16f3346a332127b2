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
    const char *model, *blocks, *listen, *public_address, *identity, *swarm_key, *link, *name, *isa, *metrics, *log_level;
    const char *device, *device_map, *offload, *offload_dir, *preload;
    const char *prefix_memory, *share_prefixes, *kv_dtype, *idle_to, *idle_dir, *idle_memory, *tune_memory, *adapters;
    sn_strings join, device_memory;
    size_t kv_memory, client_kv;
    int64_t client_sessions, client_steps;
    sn_strings priority;
    int64_t threads, sessions_max, session_timeout_s, room_timeout_s, idle_after_s, drain_timeout_s, device_timeout_s;
    const char *dht;
    int64_t dht_port, rebalance_every_s, rebalance_gain;
    bool json_log, plan, list_devices, offload_all;
} given = {.listen = "tcp://127.0.0.1:31330",
           .device = "auto",
           .device_timeout_s = 60,
           .log_level = "info",
           .share_prefixes = "client",
           .kv_dtype = "f32",
           .kv_memory = 512u << 20,
           .sessions_max = 64,
           .rebalance_every_s = 300,
           .rebalance_gain = 20,
           .session_timeout_s = 600,
           .room_timeout_s = 20,
           .idle_after_s = 60,
           .drain_timeout_s = 30};

static const sn_option serving[] = {
    SN_OPT_STRING("model", "PATH", &given.model, "a GGUF file, or a folder as Hugging Face lays it out"),
    SN_OPT_STRING("blocks", "A:B", &given.blocks,
                  "the blocks to serve, end exclusive, as in 10:20; all; auto (A:auto): from A on as many as fit; or "
                  "auto:N: the N that the swarm lacks most"),
    SN_OPT_INT("rebalance-every", "SECONDS", &given.rebalance_every_s, 0, 1000000,
               "with auto:N, how often to think of moving to other blocks, about; 0: never"),
    SN_OPT_INT("rebalance-gain", "PERCENT", &given.rebalance_gain, 1, 10000,
               "with auto:N, move only if the swarm's slowest block becomes so much faster"),
    SN_OPT_SIZE("kv-memory", "SIZE", &given.kv_memory, "memory for the past of all sessions"),
    SN_OPT_STRING("kv-dtype", "f32|f16|q8", &given.kv_dtype,
                  "what keys and values are kept as; its results are other ones, and only clients that ask for it use them"),
    SN_OPT_INT("max-sessions", "N", &given.sessions_max, 1, 100000, "sessions served at once"),
    SN_OPT_INT("client-sessions", "N", &given.client_sessions, 0, 100000, "sessions that one client may have; 0: any number"),
    SN_OPT_SIZE("client-kv", "SIZE", &given.client_kv, "keys and values that one client's sessions may hold; without it, any"),
    SN_OPT_INT("client-steps", "N", &given.client_steps, 0, 1000000, "steps a second that one client may make; 0: any number"),
    SN_OPT_STRINGS("priority", "KEY=N", &given.priority,
                   "the client with this CURVE key goes before others, or with N below 0 behind them; repeatable"),
    SN_OPT_INT("session-timeout", "SECONDS", &given.session_timeout_s, 1, 1000000,
               "a session whose client is silent for so long is closed"),
    SN_OPT_INT("room-timeout", "SECONDS", &given.room_timeout_s, 0, 100000,
               "how long a step may wait for room in the cache"),
    SN_OPT_STRING("idle-to", "host|disk", &given.idle_to,
                  "where the cache of sessions rests that have no step for a while; by itself it stays where it is"),
    SN_OPT_INT("idle-after", "SECONDS", &given.idle_after_s, 0, 1000000,
               "how long a session has no step until it rests there; 0: only when others need the room"),
    SN_OPT_STRING("idle-memory", "SIZE", &given.idle_memory, "the most that rests there; by itself as much as --kv-memory"),
    SN_OPT_STRING("idle-dir", "FOLDER", &given.idle_dir, "where it rests on disk, in a file without a name"),
    SN_OPT_STRING("prefix-memory", "SIZE", &given.prefix_memory,
                  "host memory for what sessions with the same beginning share; 0: they share nothing; by itself an "
                  "eighth of --kv-memory"),
    SN_OPT_STRING("tune-memory", "SIZE", &given.tune_memory,
                  "for training through these blocks: what clients trained, half of it at most, and in the rest their batches; 0: none (256MiB)"),
    SN_OPT_STRING("adapters", "FOLDER", &given.adapters,
                  "each folder in it is an adapter that everybody's sessions may use, LoRA as PEFT lays it out"),
    SN_OPT_STRING("share-prefixes", "client|all", &given.share_prefixes,
                  "who shares beginnings: the sessions of one client, or everybody's"),
    SN_OPT_INT("drain-timeout", "SECONDS", &given.drain_timeout_s, 0, 100000,
               "how long a node that is told to leave serves on, for its sessions to be moved; 0: not at all"),
};

static const sn_option devices[] = {
    SN_OPT_STRING("device", "NAMES", &given.device,
                  "what to compute on: auto (accelerators first, the CPU last), or names as in cuda:0,xpu:0,cpu"),
    SN_OPT_STRING("device-map", "MAP", &given.device_map,
                  "exactly which block goes where, as in 10:14=cuda:0,14:18=cpu,18:20=disk"),
    SN_OPT_STRINGS("device-memory", "DEVICE=SIZE", &given.device_memory,
                   "the most that may be used of a device's memory, as in cuda:0=20GiB"),
    SN_OPT_STRING("offload", "host|disk", &given.offload,
                  "where blocks rest that do not fit on the devices; they are streamed in for each pass"),
    SN_OPT_FLAG("offload-all", &given.offload_all, "blocks rest there even if they fit, all that are not preloaded"),
    SN_OPT_STRING("offload-dir", "FOLDER", &given.offload_dir, "where blocks on disk lie"),
    SN_OPT_STRING("preload", "RANGES", &given.preload,
                  "blocks that are on their device before the first step, and stay, as in 10:12,15:16; or all"),
    SN_OPT_FLAG("plan", &given.plan, "print which block would go where, and leave"),
    SN_OPT_FLAG("list-devices", &given.list_devices, "print what devices there are, and leave"),
    SN_OPT_INT("device-timeout", "SECONDS", &given.device_timeout_s, 1, 100000,
               "a device that does not answer for so long is given up"),
    SN_OPT_INT("threads", "N", &given.threads, 0, 1024, "worker threads of the CPU; 0: as many as cores"),
    SN_OPT_STRING("isa", "NAME", &given.isa,
                  "instruction set of the CPU kernels: c, avx2, avx512 or amx; by itself the best there is"),
};

static const sn_option network[] = {
    SN_OPT_STRING("listen", "ADDRESS", &given.listen,
                  "where to listen, TCP and (for introductions) UDP; port 0 picks one"),
    SN_OPT_STRING("public", "ADDRESS", &given.public_address,
                  "the address to announce, when others reach this node by another one"),
    SN_OPT_STRINGS("join", "ADDRESS", &given.join, "any node of the swarm, tcp://HOST:PORT, with #KEY to pin its key"),
    SN_OPT_STRING("dht", "HOST:PORT|on", &given.dht,
                  "find and be found through a table of first contacts (OpenDHT): any node of it; on: this is the first"),
    SN_OPT_INT("dht-port", "PORT", &given.dht_port, 0, 65535, "UDP port of our own node of it; 0: any"),
    SN_OPT_STRING("identity", "FILE", &given.identity, "keys made by `swarm keygen`; by itself fresh ones each time"),
    SN_OPT_STRING("swarm-key", "FILE", &given.swarm_key,
                  "the key of a private swarm, made by `swarm keygen --swarm`: nobody else is heard"),
    SN_OPT_STRING("link", "RATE,RTT[,JITTER]", &given.link,
                  "emulate this connection to everybody, as in 100mbit,100ms, for measurements"),
    SN_OPT_STRING("name", "TEXT", &given.name, "what people call this node"),
};

static const sn_option logging[] = {
    SN_OPT_STRING("metrics", "[HOST:]PORT", &given.metrics,
                  "answer Prometheus at http://HOST:PORT/metrics; of this machine only, unless HOST is given"),
    SN_OPT_STRING("log-level", "LEVEL", &given.log_level, "debug, info, warn, error or off"),
    SN_OPT_FLAG("json-log", &given.json_log, "log lines as JSON objects"),
};

static const sn_option_group groups[] = {
    {"Serving:", serving, sizeof serving / sizeof *serving},
    {"Devices:", devices, sizeof devices / sizeof *devices},
    {"Network:", network, sizeof network / sizeof *network},
    {"Log (on stderr) and metrics:", logging, sizeof logging / sizeof *logging},
};

static const sn_command command = {
    .program = "swarm-node",
    .synopsis = "--model PATH --blocks A:B [options]",
    .about = "Serves a span of a language model's blocks to the swarm. Prints one line on stdout when it is ready; "
             "SIGTERM or SIGINT makes it take no new sessions, hand those it has to other nodes and leave, within "
             "--drain-timeout; a second one, at once.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof *groups,
    .epilogue = "Exit codes: 0 stopped by a signal, 1 the network failed, 2 an option or file is wrong, 3 out of memory "
                "or device lost.",
};

static _Atomic(sn_node *) running; /* NULL while the span is being loaded */

static sn_node_early early;

/* Nothing is served yet; but others may have been told that it will be. A load under way is not waited for. */
static _Noreturn void leave_early(void) {
    atomic_store(&early.stop, true);
    for (int i = 0; i < 100 && atomic_load(&early.up) && !atomic_load(&early.left); i++) usleep(10000);
    _exit(EXIT_OK);
}

static void *wait_for_signal(void *unused) {
    (void)unused;
    sigset_t set;
    int which;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    for (;;) {
        while (sigwait(&set, &which)) {}
        sn_log(SN_LOG_INFO, "leaving", "signal=%s", which == SIGTERM ? "TERM" : "INT");
        sn_node *node = atomic_load(&running);
        if (!node) leave_early();
        sn_node_stop(node);
    }
    return NULL;
}

static void show_progress(void *ctx, int done, int of) {
    (void)ctx;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\rloading blocks: %d of %d%s", done, of, done == of ? "\n" : "");
}

static void show_plan(const char *table) { fputs(table, stderr); }

static void print_ready(const sn_node *node) {
    char id[2 * SN_KEY_SIZE + 1], key[2 * SN_KEY_SIZE + 1], weights[32], cache[32];
    const sn_hparams *hp = sn_span_hparams(sn_node_span(node));
    const sn_span *span = sn_node_span(node);
    printf("ready: address=%s node=%s key=%s model=\"%s\" blocks=%d:%d/%d weights=%s cache=%s (%zu tokens)",
           sn_node_address(node), sn_hex(sn_node_id(node), SN_KEY_SIZE, id),
           sn_hex(sn_node_curve_key(node), SN_KEY_SIZE, key), hp->name, sn_span_first(span), sn_span_end(span),
           hp->n_blocks, sn_format_size(sn_node_weight_bytes(node), weights), sn_format_size(given.kv_memory, cache),
           sn_node_kv_tokens(node));
    if (sn_node_metrics_port(node)) printf(" metrics=%d", sn_node_metrics_port(node));
    putchar('\n');
    fflush(stdout);
}

static sn_status list_devices(sn_err *err) {
    sn_device_info there[SN_DEVICES_MAX];
    size_t n = 0;
    char name[32], memory[32], free_memory[32];
    sn_status status = sn_devices_list(there, &n, err);
    for (size_t i = 0; i < n && !status; i++)
        printf("%-8s %s, %s of %s free, %s\n", sn_device_id_name(there[i].id, name), there[i].name,
               sn_format_size(there[i].memory_free, free_memory), sn_format_size(there[i].memory, memory), there[i].can);
    return status;
}

/* The blocks as given: [first, end), from first on as many as fit (equal), or so many as the node chooses itself. */
typedef struct blocks {
    int first, end, choose;
} blocks;

/* "auto:4", "auto", "10:auto". */
static sn_status parse_auto(const char *text, int n_blocks, blocks *out, sn_err *err) {
    const char *colon = strchr(text, ':');
    int64_t number = 0;
    char digits[16];
    if (!strncmp(text, "auto:", strlen("auto:"))) {
        sn_status status = sn_parse_int(text + strlen("auto:"), 1, n_blocks, &number, err);
        if (!status && (given.device_map || given.preload))
            status = sn_fail(err, SN_REFUSED, "--device-map and --preload name blocks, and auto:N chooses them later: "
                                              "give --blocks A:B");
        *out = (blocks){0, (int)number, (int)number};
        return status;
    }
    if (colon) {
        snprintf(digits, sizeof digits, "%.*s", (int)(colon - text), text);
        sn_status status = sn_parse_int(digits, 0, n_blocks - 1, &number, err);
        if (status) return status;
    }
    *out = (blocks){(int)number, (int)number, 0};
    return SN_OK;
}

/* "10:20", "all", and those above. */
static sn_status parse_blocks(const sn_model *model, blocks *out, sn_err *err) {
    const char *text = given.blocks, *colon = strchr(text, ':');
    int n_blocks = sn_model_hparams(model)->n_blocks;
    *out = (blocks){0, n_blocks, 0};
    if (!strcmp(text, "all")) return SN_OK;
    bool automatic = !strcmp(text, "auto") || !strncmp(text, "auto:", strlen("auto:")) || (colon && !strcmp(colon, ":auto"));
    return automatic ? parse_auto(text, n_blocks, out, err) : sn_parse_blocks(text, &out->first, &out->end, err);
}

static sn_status read_blocks(blocks *out, sn_err *err) {
    sn_model *model = NULL;
    if (!given.model || !given.blocks)
        return sn_fail(err, SN_REFUSED, "--model and --blocks are needed: see --help");
    sn_status status = sn_model_open(given.model, &model, err);
    if (!status && parse_blocks(model, out, err)) status = sn_err_context(err, "--blocks");
    sn_model_close(&model);
    return status;
}

static sn_placing_wish placing_wish(void) {
    return (sn_placing_wish){
        .device = given.device,
        .device_map = given.device_map,
        .device_memory = given.device_memory.items,
        .n_device_memory = given.device_memory.n,
        .offload = given.offload,
        .offload_dir = given.offload_dir,
        .offload_all = given.offload_all,
        .preload = given.preload,
        .options = {.threads = (int)given.threads, .isa = given.isa, .timeout_ms = (int)given.device_timeout_s * 1000},
        .kv_memory = given.kv_memory,
    };
}

static sn_status print_plan(int first, int end, sn_err *err) {
    sn_model *model = NULL;
    sn_placing placing = {0};
    sn_placing_wish wish = placing_wish();
    sn_status status = sn_model_open(given.model, &model, err);
    if (!status) status = sn_placing_make(&wish, model, first, &end, &placing, err);
    if (!status) fputs((const char *)placing.table.data, stdout);
    sn_placing_close(&placing);
    sn_model_close(&model);
    return status;
}

static sn_status read_sharing(sn_node_config *config, sn_err *err) {
    config->prefix_memory = given.kv_memory / 8;
    config->share_all = !strcmp(given.share_prefixes, "all");
    if (!config->share_all && strcmp(given.share_prefixes, "client"))
        return sn_fail(err, SN_REFUSED, "--share-prefixes %.40s is unknown: use client or all", given.share_prefixes);
    sn_status status = given.prefix_memory ? sn_parse_size(given.prefix_memory, &config->prefix_memory, err) : SN_OK;
    if (status) return sn_err_context(err, "--prefix-memory");
    config->tune_memory = (size_t)256 << 20;
    config->adapters = given.adapters;
    if (given.tune_memory) status = sn_parse_size(given.tune_memory, &config->tune_memory, err);
    return status ? sn_err_context(err, "--tune-memory") : SN_OK;
}

static sn_status read_idle(sn_node_config *config, sn_err *err) {
    config->idle_to = given.idle_to;
    config->idle_dir = given.idle_dir;
    config->idle_after_s = (int)given.idle_after_s;
    config->idle_memory = given.kv_memory;
    sn_status status = given.idle_memory ? sn_parse_size(given.idle_memory, &config->idle_memory, err) : SN_OK;
    return status ? sn_err_context(err, "--idle-memory") : SN_OK;
}

static sn_priority priorities[SN_PRIORITIES_MAX];

static sn_status read_quota(sn_node_config *config, sn_err *err) {
    config->quota = (sn_quota_limits){(size_t)given.client_sessions, given.client_kv, given.client_steps, priorities,
                                      given.priority.n};
    if (given.priority.n > SN_PRIORITIES_MAX)
        return sn_fail(err, SN_REFUSED, "--priority: at most %d clients can have one", SN_PRIORITIES_MAX);
    for (size_t i = 0; i < given.priority.n; i++)
        if (sn_priority_parse(given.priority.items[i], &priorities[i], err)) return sn_err_context(err, "--priority");
    return SN_OK;
}

static sn_status serve(const blocks *b, sn_err *err) {
    sn_shape link = {0};
    sn_status status = given.link ? sn_shape_parse(given.link, &link, err) : SN_OK;
    if (status) return sn_err_context(err, "--link");
    sn_node_config config = {
        .model_path = given.model,
        .first = b->first,
        .end = b->end,
        .auto_blocks = b->choose,
        .rebalance_every_s = (int)given.rebalance_every_s,
        .rebalance_gain = (int)given.rebalance_gain,
        .listen = given.listen,
        .public_address = given.public_address,
        .join = given.join.items,
        .n_join = given.join.n,
        .dht = given.dht,
        .dht_port = (int)given.dht_port,
        .identity_path = given.identity,
        .swarm_key_path = given.swarm_key,
        .link = link,
        .name = given.name,
        .placing = placing_wish(),
        .sessions_max = (size_t)given.sessions_max,
        .session_timeout_s = (int)given.session_timeout_s,
        .room_timeout_s = (int)given.room_timeout_s,
        .metrics = given.metrics,
        .drain_timeout_s = (int)given.drain_timeout_s,
        .early = &early,
        .planned = show_plan,
    };
    status = sn_kv_dtype_parse(given.kv_dtype, &config.kv_dtype, err);
    if (status) return sn_err_context(err, "--kv-dtype");
    status = read_sharing(&config, err);
    if (!status) status = read_idle(&config, err);
    if (!status) status = read_quota(&config, err);
    if (status) return status;
    pthread_t signals;
    if (pthread_create(&signals, NULL, wait_for_signal, NULL)) return sn_fail(err, SN_STOP, "no thread is to be had");
    sn_node *node = NULL;
    status = sn_node_new(&config, NULL, show_progress, NULL, &node, err);
    if (atomic_load(&early.stop)) leave_early();
    if (!status) {
        print_ready(node);
        atomic_store(&running, node);
        status = sn_node_run(node, err);
        if (!status && sn_node_loading(node)) _exit(EXIT_OK); /* it is on its way to other blocks: not waited for */
    }
    pthread_cancel(signals); /* it may still wait for a signal: sigwait is where it can be ended */
    pthread_join(signals, NULL);
    sn_node_free(&node);
    return status;
}

static sn_status run(sn_err *err) {
    sn_log_level level;
    blocks b = {0};
    sn_status status = sn_log_level_parse(given.log_level, &level, err);
    if (status) return status;
    sn_log_setup(level, given.json_log);
    if (given.list_devices) return list_devices(err);
    status = read_blocks(&b, err);
    if (status) return status;
    return given.plan ? print_plan(b.first, b.end, err) : serve(&b, err);
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

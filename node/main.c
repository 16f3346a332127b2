/* The program `swarm-node`: one node, from its options to its exit code.
 *
 * The main thread parses the options, builds the node's configuration and runs the node (node/node.h). SIGINT and
 * SIGTERM are blocked in all threads and received by one thread with sigwait: the first signal drains the node, the
 * second one stops it at once. While the span is still being loaded, a signal ends the process, after the peers that
 * know the node have been told. --plan and --list-devices print a table and exit. One line "ready: ..." on stdout says
 * that the node serves. */
#include "base/cgroup.h"
#include "base/core_dump.h"
#include "base/program_environment.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/terminal.h"
#include "base/parse.h"
#include "base/version.h"
#include "sharing/hub/environment.h"
#include "node/node.h"
#include "sharing/hub/trusted_manifest.h"
#include "net/dht.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_NETWORK = 1, EXIT_USAGE = 2, EXIT_RESOURCES = 3 };

/* -- the values of some options -- */

enum {
    SHARE_DEFAULT = 16 << 20,
    SHARE_MAX = 1 << 30, /* which the own network gets without a rate */
    RELAY_MIN = 64 << 10,
    RELAY_DEFAULT = 4 << 20,
};

/* --share-weights: on, off, or a rate. *near: within the node's own network; 0: the same rate, as the owner gave it. */
static sn_status parse_share_rate(const char *text, size_t *rate, size_t *near, sn_err *err) {
    bool on = !strcmp(text, "on"), off = !strcmp(text, "off");
    *rate = on ? SHARE_DEFAULT : 0;
    *near = on ? SHARE_MAX : 0;
    if (on || off) return SN_OK;
    if (sn_parse_size(text, rate, err) || !*rate || *rate > SHARE_MAX)
        return sn_fail(err, SN_REFUSED, "--share-weights is on, off, or a rate in bytes a second, as in 2MiB");
    return SN_OK;
}

/* --relay: on, off, or a rate. 0: off. */
static sn_status parse_relay_rate(const char *text, int64_t *rate, sn_err *err) {
    size_t bytes = 0;
    *rate = !strcmp(text, "on") ? RELAY_DEFAULT : 0;
    if (*rate || !strcmp(text, "off")) return SN_OK;
    sn_status status = sn_parse_size(text, &bytes, err);
    if (!status && (bytes < RELAY_MIN || bytes > SIZE_MAX / 1024))
        status = sn_fail(err, SN_REFUSED, "give at least 64KiB a second, or off");
    *rate = (int64_t)bytes;
    return status ? sn_err_context(err, "--relay") : SN_OK;
}

/* [first, end); from `first` on as many as fit (end == first); n_auto: as many blocks as this, and the node selects
 * which. */
typedef struct blocks_option {
    int first, end, n_auto;
} blocks_option;

static const char selected[] = "auto:";

static sn_status parse_auto(const char *text, int n_blocks, bool are_named, blocks_option *out, sn_err *err) {
    const char *colon = strchr(text, ':');
    int64_t number = 0;
    char digits[16];
    if (!strncmp(text, selected, strlen(selected))) {
        sn_status status = sn_parse_int(text + strlen(selected), 1, n_blocks, &number, err);
        if (!status && are_named)
            status = sn_fail(err, SN_REFUSED,
                             "--device-map and --preload name blocks, which auto:N selects later: give --blocks A:B");
        *out = (blocks_option){0, (int)number, (int)number};
        return status;
    }
    if (colon) {
        snprintf(digits, sizeof digits, "%.*s", (int)(colon - text), text);
        sn_status status = sn_parse_int(digits, 0, n_blocks - 1, &number, err);
        if (status) return status;
    }
    *out = (blocks_option){(int)number, (int)number, 0};
    return SN_OK;
}

/* "10:20", "all", "auto:4", "auto", "10:auto" of a model with n_blocks. are_named: other options name blocks, too, so
 * that the node cannot select them. SN_REFUSED: it is none of these, or beyond the model. */
static sn_status parse_blocks_option(const char *text, int n_blocks, bool are_named, blocks_option *out, sn_err *err) {
    const char *colon = strchr(text, ':');
    *out = (blocks_option){0, n_blocks, 0};
    if (!strcmp(text, "all")) return SN_OK;
    if (!strcmp(text, "auto") || !strncmp(text, selected, strlen(selected)) || (colon && !strcmp(colon, ":auto")))
        return parse_auto(text, n_blocks, are_named, out, err);
    sn_status status = sn_parse_blocks(text, &out->first, &out->end, err);
    if (!status && out->end > n_blocks)
        status = sn_fail(err, SN_REFUSED, "'%s' is beyond the model's blocks, which are 0:%d", text, n_blocks);
    return status;
}

/* -- options -- */

static struct {
    const char *model, *model_id, *manifest, *share_weights, *cache, *blocks, *experts, *adapters, *name;
    const char *listen, *public_address, *relay, *dht, *identity, *swarm_key, *link, *metrics;
    const char *device, *device_map, *offload_dir, *preload, *isa, *swap_dir;
    sn_strings join, device_memory, priority, metrics_hosts;
    size_t cache_max, expert_memory, kv_memory, client_kv, prefix_cache_memory, swap_memory, tune_memory;
    int kv_dtype, prefix_cache_shared, swap_to, offload, log_level;
    int64_t threads, sessions_max, client_sessions, client_steps, dht_port, rebalance_gain;
    int64_t session_timeout_s, kv_timeout_s, swap_after_s, drain_timeout_s, rebalance_every_s, device_timeout_ms;
    bool json_log, plan, list_devices, offload_all;
} args = {.share_weights = "on",
          .relay = "on",
          .device = "auto",
          .kv_memory = (size_t)512 << 20,
          .prefix_cache_memory = SN_SIZE_UNSET,
          .swap_memory = SN_SIZE_UNSET,
          .tune_memory = (size_t)256 << 20,
          .log_level = SN_LOG_INFO,
          .sessions_max = 64,
          .client_sessions = SN_INT_UNSET,
          .session_timeout_s = 600,
          .kv_timeout_s = 20,
          .swap_to = SN_IN_HOST,
          .drain_timeout_s = 30,
          .rebalance_every_s = 300,
          .rebalance_gain = 20,
          .device_timeout_ms = 60000,
          .kv_dtype = SN_KV_DTYPE_DEFAULT};

static const sn_word prefix_cache_words[] = {{"own", false}, {"all", true}, {NULL, 0}};
static const sn_word residence_words[] = {{"off", SN_ON_DEVICE}, {"host", SN_IN_HOST}, {"disk", SN_ON_DISK}, {NULL, 0}};

static const sn_option serving[] = {
    SN_OPT_STRING("model", "PATH", &args.model,
                  "a GGUF file, or a folder with config.json, safetensors files and tokenizer.json; or, to fetch what "
                  "is needed of it, ORG/NAME[:FILE][@REVISION] of a hub or the URL of a GGUF file; with --join and "
                  "without --model: a model of the swarm, fetched from its nodes"),
    SN_OPT_STRING("model-id", "DIGITS", &args.model_id,
                  "with --join and without --model: serve the model of the swarm whose id begins with these digits"),
    SN_OPT_STRING(
        "share-weights", "on|off|RATE", &args.share_weights,
        "give the model's files to nodes and clients that ask for them, after the steps of all sessions: at 16 MiB a "
        "second, and as fast as it can within its own network (on); at another RATE in bytes a second to all, as in "
        "2MiB; or not at all"),
    SN_OPT_STRING("cache", "FOLDER", &args.cache,
                  "folder of fetched models (default: SWARM_CACHE, or swarm-node in the user's folder for caches)"),
    SN_OPT_SIZE(
        "cache-max", "SIZE", &args.cache_max,
        "bytes that fetched models may take there: those that no program uses are removed, first those that were "
        "not used for longest; 0: any"),
    SN_OPT_STRING("manifest", "FILE|URL[#KEY]", &args.manifest,
                  "compare what a hub gives with this manifest, made by 'swarm hash', and share it with others; #KEY: "
                  "the identity that must have signed it"),
    SN_OPT_STRING("blocks", "A:B", &args.blocks,
                  "blocks to serve, end exclusive, as in 10:20; or all; auto (also A:auto): as many as fit, from block "
                  "0 or A on; auto:N: the N blocks that the swarm needs most"),
    SN_OPT_STRING(
        "experts", "A:B", &args.experts,
        "of each mixture among the blocks, hold experts A up to B only: with nodes that hold the others, which "
        "it asks within each step, it serves blocks that fit no one of them; needs --blocks A:B"),
    SN_OPT_DURATION_S("rebalance-every", &args.rebalance_every_s, 0, 1000000,
                      "with auto:N, interval at which the node considers other blocks; 0: never"),
    SN_OPT_INT("rebalance-gain", "PERCENT", &args.rebalance_gain, 1, 10000,
               "with auto:N, the node takes other blocks if the throughput of the swarm's slowest block rises by this"),
    SN_OPT_STRING("adapters", "FOLDER", &args.adapters,
                  "publish the adapters in this folder, a folder with LoRA in the format of PEFT for each"),
    SN_OPT_SIZE("tune-memory", "SIZE", &args.tune_memory,
                "memory for training through these blocks: half of it for clients' adapters, the rest for their "
                "batches; 0: no training"),
    SN_OPT_DURATION_S("drain-timeout", &args.drain_timeout_s, 0, 100000,
                      "limit for migrating the sessions to other nodes when the node is told to stop; 0: no migration"),
};

static const sn_option sessions[] = {
    SN_OPT_INT("max-sessions", "N", &args.sessions_max, 1, 100000, "limit of sessions"),
    SN_OPT_DURATION_S("session-timeout", &args.session_timeout_s, 1, 1000000,
                      "a session without a message of its client for this time is closed"),
    SN_OPT_INT("client-sessions", "N", &args.client_sessions, 0, 100000,
               "limit of sessions of one client; 0: no limit (default: a quarter of --max-sessions)"),
    SN_OPT_SIZE("client-kv", "SIZE", &args.client_kv, "limit of KV cache of one client's sessions; 0: no limit"),
    SN_OPT_INT("client-steps", "N", &args.client_steps, 0, 1000000,
               "limit of steps per second of one client; 0: no limit"),
    SN_OPT_STRINGS("priority", "KEY=N", &args.priority,
                   "priority of the client with this CURVE key: above 0 before other clients, below 0 after them"),
};

static const sn_option kv_cache[] = {
    SN_OPT_SIZE("kv-memory", "SIZE", &args.kv_memory, "memory for the KV cache of all sessions"),
    SN_OPT_ENUM("kv-dtype", &args.kv_dtype, sn_kv_dtype_words,
                "element type of the KV cache. f32 takes twice the memory of f16, q8 about half of it; each type gives "
                "other results, and only clients that ask for it use the node"),
    SN_OPT_DURATION_S("kv-timeout", &args.kv_timeout_s, 0, 100000, "limit for a step that waits for KV pages"),
    SN_OPT_ENUM("prefix-cache", &args.prefix_cache_shared, prefix_cache_words,
                "sessions that share KV pages of equal prefixes: those of one client (own), or of all clients (all)"),
    SN_OPT_SIZE("prefix-cache-memory", "SIZE", &args.prefix_cache_memory,
                "host memory for the prefix cache; 0: no prefix cache (default: an eighth of --kv-memory)"),
    SN_OPT_ENUM("swap-to", &args.swap_to, residence_words, "where the KV cache of idle sessions is swapped out to"),
    SN_OPT_DURATION_S("swap-after", &args.swap_after_s, 0, 1000000,
                      "a session without a step for this time is swapped out in any case; 0: only when another session "
                      "needs the KV pages"),
    SN_OPT_SIZE(
        "swap-memory", "SIZE", &args.swap_memory,
        "limit of host memory or disk for swapped sessions (default: four times --kv-memory, and of host memory "
        "at most a quarter of what the blocks and the KV cache leave)"),
    SN_OPT_STRING("swap-dir", "FOLDER", &args.swap_dir, "folder for --swap-to disk; the file in it has no name"),
};

static const sn_option devices[] = {
    SN_OPT_STRING("device", "NAMES", &args.device,
                  "devices to compute on: auto (accelerators first, then the CPU), or names as in cuda:0,xpu:0,cpu"),
    SN_OPT_STRING("device-map", "MAP", &args.device_map,
                  "the place of each block, as in 10:14=cuda:0,14:18=cpu,18:20=disk; and where the experts of a "
                  "mixture rest until they are chosen, as in *.experts=disk, or are computed, as in *.experts=cpu"),
    SN_OPT_STRINGS("device-memory", "DEVICE=SIZE", &args.device_memory,
                   "limit of memory used on a device, as in cuda:0=20GiB"),
    SN_OPT_ENUM("offload", &args.offload, residence_words,
                "where blocks are offloaded to that do not fit on the devices; each forward pass loads them"),
    SN_OPT_FLAG("offload-all", &args.offload_all, "offload all blocks that are not preloaded, even if they fit"),
    SN_OPT_STRING("offload-dir", "FOLDER", &args.offload_dir, "folder for --offload disk"),
    SN_OPT_STRING("preload", "RANGES", &args.preload,
                  "blocks that stay on their device and are loaded before the first step, as in 10:12,15:16; or all; "
                  "experts:0:8: these experts of each block"),
    SN_OPT_SIZE(
        "expert-memory", "SIZE", &args.expert_memory,
        "memory on each device for experts that rest elsewhere (default: what the rest leaves of the device's)"),
    SN_OPT_FLAG("plan", &args.plan, "print the place of each block, and exit"),
    SN_OPT_FLAG("list-devices", &args.list_devices, "print the devices of this machine, and exit"),
    SN_OPT_DURATION_MS("device-timeout", &args.device_timeout_ms, 1000, 100000000,
                       "a device that does not answer for this time has failed"),
    SN_OPT_INT("threads", "N", &args.threads, 0, 1024, "worker threads of the CPU; 0: one for each core"),
    SN_OPT_WORD("isa", &args.isa, sn_isa_words,
                "instruction set of the CPU kernels, for tests (default: the fastest that runs here)"),
};

static const sn_option network[] = {
    SN_OPT_ADDRESS(
        "listen", "HOST:PORT", &args.listen, SN_HOST_PORT_LISTEN,
        "address to listen at, with TCP and (for introductions) UDP; port 0: a free port (default: port 31330 of "
        "127.0.0.1, or of all addresses with a --join of another machine); the host * stands for all addresses"),
    SN_OPT_ADDRESS("public", "HOST:PORT", &args.public_address, SN_HOST_PORT_DIAL,
                   "address to announce, when others reach this node by another one; a name is looked up at the start "
                   "(default: the node finds out how others reach it)"),
    SN_OPT_STRING("relay", "on|off|SIZE", &args.relay,
                  "pass on the connections of nodes behind routers, if others reach this node: at most this many bytes "
                  "a second, as in 2MiB (on: 4MiB); it cannot read what it passes on"),
    SN_OPT_ADDRESSES("join", "HOST:PORT", &args.join, SN_HOST_PORT_PINNED,
                     "address of a node of the swarm; HOST:PORT#KEY also checks its CURVE key; lan: the nodes of the "
                     "local network that were started with it"),
    SN_OPT_STRING("dht", "HOST:PORT|on", &args.dht,
                  SN_DHT_HELP("find nodes, and be found, through OpenDHT: a node's address; on: start a new DHT")),
    SN_OPT_INT("dht-port", "PORT", &args.dht_port, 0, 65535, SN_DHT_HELP("UDP port in the DHT; 0: a free port")),
    SN_OPT_STRING("identity", "FILE", &args.identity, "keys made by 'swarm keygen' (default: new keys for each run)"),
    SN_OPT_STRING("swarm-key", "FILE", &args.swarm_key,
                  "the key of a private swarm, made by 'swarm keygen --swarm-key'; messages from outside are refused"),
    SN_OPT_STRING("emulate-link", "RATE,RTT[,JITTER]", &args.link,
                  "emulate a connection like this to all peers, as in 100mbit,100ms, for measurements"),
    SN_OPT_STRING("name", "TEXT", &args.name, "name of this node in tables and logs"),
};

static const sn_option logging[] = {
    SN_OPT_STRING("metrics", "[HOST:]PORT", &args.metrics,
                  "serve Prometheus metrics at http://HOST:PORT/metrics, and a map of the swarm at /swarm; without "
                  "HOST, to this machine only"),
    SN_OPT_STRINGS(
        "metrics-host", "NAME", &args.metrics_hosts,
        "answer --metrics to this name, too: without it, to IP addresses and localhost only, since a web page "
        "can make its own name point here"),
    SN_OPT_ENUM("log-level", &args.log_level, sn_log_level_words, "least level of log lines"),
    SN_OPT_FLAG("json-log", &args.json_log, "log lines are JSON objects"),
};

static const sn_option_group serving_group = SN_OPTION_GROUP("Serving:", serving);
static const sn_option_group sessions_group = SN_OPTION_GROUP("Sessions:", sessions);
static const sn_option_group kv_cache_group = SN_OPTION_GROUP("KV cache:", kv_cache);
static const sn_option_group devices_group = SN_OPTION_GROUP("Devices:", devices);
static const sn_option_group network_group = SN_OPTION_GROUP("Network:", network);
static const sn_option_group logging_group = SN_OPTION_GROUP("Log (on stderr) and metrics:", logging);
static const sn_option_group *const groups[] = {&serving_group, &sessions_group, &kv_cache_group,
                                                &devices_group, &network_group,  &logging_group};

static const sn_exit_code exit_codes[] = {{EXIT_OK, "stopped by a signal"},
                                          {EXIT_NETWORK, "the network failed"},
                                          {EXIT_USAGE, "an option or a file is wrong"},
                                          {EXIT_RESOURCES, "out of memory, or a device failed"},
                                          {0, NULL}};

static const sn_command command = {
    .program = "swarm-node",
    .summary = "serve blocks of a language model to a swarm",
    .synopsis = "--model PATH --blocks A:B [options] | --join HOST:PORT [options]",
    .about =
        "Serves a span of a language model's transformer blocks to the swarm. Prints one line on stdout when it is "
        "ready. SIGTERM or SIGINT drains the node: it opens no new sessions, migrates its sessions to other nodes "
        "within --drain-timeout, and exits. A second signal stops it at once.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof *groups,
    .exit_codes = exit_codes,
};
static const sn_command *const commands[] = {&command};
static const sn_program program = {.name = "swarm-node", .commands = commands, .n_commands = 1};

/* -- signals -- */

static _Atomic(sn_node *) running_node; /* NULL while the span is being loaded */

static sn_node_startup startup;

/* The node serves nothing yet, but peers may have received its announcement: waits until the node has told them, and
 * not for the load of the span. */
static _Noreturn void exit_during_startup(void) {
    atomic_store(&startup.stop, true);
    for (int i = 0; i < 100 && atomic_load(&startup.up) && !atomic_load(&startup.left); i++) usleep(10000);
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
        sn_log(SN_LOG_INFO, "draining", "signal=%s", which == SIGTERM ? "TERM" : "INT");
        sn_node *node = atomic_load(&running_node);
        if (!node) exit_during_startup();
        sn_node_stop(node);
    }
    return NULL;
}

/* -- output -- */

static void show_progress(void *ctx, int done, int of) {
    (void)ctx;
    if (isatty(STDERR_FILENO)) sn_terminal_control(stderr, "\r");
    if (isatty(STDERR_FILENO)) fprintf(stderr, "loading blocks: %d of %d%s", done, of, done == of ? "\n" : "");
}

static void show_plan(const char *table) { fputs(table, stderr); }

/* A word of a shell's command line. */
static void print_word(const char *name, const char *word) {
    bool plain =
        *word && word[strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+:@%,")] == 0;
    printf(" --%s %s", name, plain ? word : "'");
    for (; !plain && *word; word++) printf(*word == '\'' ? "'\\''" : "%c", *word);
    if (!plain) putchar('\'');
}

/* A line to copy, to use this node, or its relay. Others cannot dial an address such as 0.0.0.0, which stands for all
 * interfaces. */
static void print_invitation(const sn_node *node) {
    char address[SN_ADDRESS_MAX + 1];
    snprintf(address, sizeof address, "%.*s", (int)strcspn(sn_node_announced(node), "/"), sn_node_announced(node));
    const char *port = strrchr(address, ':');
    bool everywhere = !strncmp(address, "0.0.0.0:", 8) || !strncmp(address, "[::]:", 5) || *address == '*';
    char here[32];
    snprintf(here, sizeof here, "127.0.0.1%s", port ? port : "");
    printf("use it%s: swarm generate", everywhere ? " on this machine" : "");
    print_word("model", args.model);
    print_word("join", everywhere ? here : address);
    if (args.swarm_key) print_word("swarm-key", args.swarm_key);
    puts(" --prompt 'Once upon a time'");
    if (everywhere)
        sn_log(SN_LOG_WARN, "announced address not reachable", "address=%s text=%s", address,
               "other machines cannot use this node: give --public HOST:PORT, the address at which they reach it");
}

static void print_ready(const sn_node *node) {
    char id[2 * SN_KEY_SIZE + 1], key[2 * SN_KEY_SIZE + 1], weights[32], cache[32];
    const sn_hparams *hp = sn_span_hparams(sn_node_span(node));
    const sn_span *span = sn_node_span(node);
    printf("ready: address=%s node=%s curve_key=%s model=\"%s\" blocks=%d:%d/%d weights=%s kv_cache=%s (%zu tokens)",
           sn_node_address(node), sn_hex(sn_node_id(node), SN_KEY_SIZE, id),
           sn_hex(sn_node_curve_key(node), SN_KEY_SIZE, key), hp->name, sn_span_first(span), sn_span_end(span),
           hp->n_blocks, sn_format_size(sn_node_weight_bytes(node), weights), sn_format_size(args.kv_memory, cache),
           sn_node_kv_tokens(node));
    if (sn_node_metrics_port(node)) printf(" metrics=%d", sn_node_metrics_port(node));
    if (args.join.n) printf(" joined=%zu/%zu", sn_node_joined(node), args.join.n);
    putchar('\n');
    print_invitation(node);
    fflush(stdout);
}

static sn_status devices_print(sn_err *err) {
    sn_device_info found[SN_DEVICES_MAX];
    size_t n = 0;
    char name[32], memory[32], free_memory[32];
    sn_status status = sn_devices_list(found, &n, err);
    for (size_t i = 0; i < n && !status; i++)
        printf("%-8s %s, %s of %s free, %s\n", sn_device_id_name(found[i].id, name), found[i].name,
               sn_format_size(found[i].memory_free, free_memory), sn_format_size(found[i].memory, memory),
               found[i].features);
    return status;
}

/* -- blocks -- */

static sn_hub_settings hub;
static sn_swarm_access swarm;
static sn_trusted_manifest trusted_manifest;
static char model_name[SN_URL_SIZE];

static void notice(void *context, const char *sentence) {
    static atomic_bool told;
    (void)context;
    if (!atomic_exchange(&told, true)) sn_log(SN_LOG_WARN, "weights fetched unverified", "text=%s", sentence);
}

/* Where models come from. Without a folder for caches, only paths are left, and nothing is shared. */
static sn_status sources_read(sn_err *err) {
    bool fetches = !args.model || sn_model_name_is_remote(args.model) || sn_swarm_name_is(args.model);
    sn_status status = sn_hub_settings_read(args.cache, &hub, err);
    hub.progress = sn_hub_show_progress;
    hub.notice = notice;
    hub.cache_max = args.cache_max;
    swarm = (sn_swarm_access){.join = args.join.items,
                              .n_join = args.join.n,
                              .swarm_key_path = args.swarm_key,
                              .cache = hub.cache,
                              .cache_max = args.cache_max,
                              .progress = sn_hub_show_progress};
    if (!fetches && !args.manifest) return SN_OK;
    if (status || !args.manifest) return status;
    hub.manifest = &trusted_manifest;
    return sn_trusted_manifest_read(args.manifest, &hub.http, &trusted_manifest, err)
               ? sn_err_context(err, "--manifest")
               : SN_OK;
}

/* Without --model: the model of the swarm that needs this node most, and as many of its blocks as fit. */
static sn_status model_choose(sn_err *err) {
    char sentence[SN_SWARM_SENTENCE_SIZE];
    size_t memory, available;
    sn_memory_read(&memory, &available);
    memory = memory / 10 * 8;
    const sn_swarm_query query = {args.model_id, memory > args.kv_memory ? memory - args.kv_memory : 1};
    sn_status status = sn_swarm_choose(&swarm, &query, model_name, sentence, err);
    if (status) return status;
    args.model = model_name;
    printf("chose %s\n", sentence);
    fflush(stdout);
    return SN_OK;
}

/* A model by name stays the version that it is now, however often it is opened. */
static sn_status model_pin(sn_err *err) {
    sn_status status = sources_read(err);
    if (!status && !args.model) return model_choose(err);
    if (!status) status = args.model_id ? sn_fail(err, SN_REFUSED, "give it, or --model-id, and not both") : SN_OK;
    if (!status) status = sn_hub_pin(args.model, &hub, model_name, err);
    if (!status) args.model = model_name;
    return status ? sn_err_context(err, "--model") : SN_OK;
}

static sn_status model_open(sn_model **out, sn_err *err) {
    char path[SN_PATH_SIZE];
    return sn_swarm_open_model(args.model, &swarm, &hub, path, out, err);
}

static sn_device_placement_options device_placement_options(void);
static sn_expert_range experts; /* the value of --experts; {0, 0}: all */

/* --blocks that were not given: as many as fit, of those that the swarm needs most. */
static sn_status blocks_fit(sn_model *model, sn_err *err) {
    static char text[32];
    sn_device_placement placement = {0};
    sn_device_placement_options options = device_placement_options();
    int end = 0;
    sn_status status = sn_device_placement_make(&options, model, 0, &end, &placement, err);
    sn_device_placement_close(&placement);
    snprintf(text, sizeof text, "auto:%d", end < SN_SPAN_BLOCKS_MAX ? end : SN_SPAN_BLOCKS_MAX);
    args.blocks = text;
    return status;
}

static sn_status experts_read(const blocks_option *b, sn_err *err) {
    if (!args.experts) return SN_OK;
    if (b->n_auto || b->first == b->end)
        return sn_fail(err, SN_REFUSED, "--experts is for blocks that are given: add --blocks A:B");
    if (!sn_parse_blocks(args.experts, &experts.first, &experts.end, err)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "--experts: '%s' is no range: write A:B, first and end, as in 0:86", args.experts);
}

/* A node selects among windows of equal size, wherever they begin: not of a model that cannot be cut everywhere. */
static sn_status check_selectable(const sn_hparams *hp, const blocks_option *b, sn_err *err) {
    if (!b->n_auto || b->n_auto >= hp->n_blocks || !sn_has_no_cuts(hp)) return SN_OK;
    return sn_fail(
        err, SN_REFUSED,
        "blocks of this model attend to what blocks before them choose, so a node does not select its blocks: "
        "give --blocks A:B, or A:auto");
}

static sn_status blocks_read(blocks_option *out, sn_err *err) {
    sn_model *model = NULL;
    if (!args.model && !args.join.n)
        return sn_fail(err, SN_REFUSED, "--model and --blocks are missing, or --join alone: see --help");
    if (args.model && !args.blocks) return sn_fail(err, SN_REFUSED, "--blocks is missing: see --help");
    sn_status status = model_pin(err);
    if (!status) status = model_open(&model, err);
    if (!status && !args.blocks) status = blocks_fit(model, err);
    if (!status &&
        parse_blocks_option(args.blocks, sn_model_hparams(model)->n_blocks, args.device_map || args.preload, out, err))
        status = sn_err_context(err, "--blocks");
    if (!status) status = check_selectable(sn_model_hparams(model), out, err);
    if (!status) status = experts_read(out, err);
    sn_model_close(&model);
    return status;
}

/* -- configuration -- */

static sn_device_placement_options device_placement_options(void) {
    return (sn_device_placement_options){
        .device = args.device,
        .device_map = args.device_map,
        .device_memory = args.device_memory.items,
        .n_device_memory = args.device_memory.n,
        .offload = (sn_residence)args.offload,
        .offload_dir = args.offload_dir,
        .offload_all = args.offload_all,
        .preload = args.preload,
        .experts = experts,
        .expert_memory = args.expert_memory,
        .device_options = {.threads = (int)args.threads, .isa = args.isa, .timeout_ms = (int)args.device_timeout_ms},
        .kv_memory = args.kv_memory,
        .host_reserved = args.swap_to == SN_IN_HOST && args.swap_memory != SN_SIZE_UNSET ? args.swap_memory : 0,
        .tune_memory = args.tune_memory,
    };
}

static sn_status print_plan(int first, int end, sn_err *err) {
    sn_model *model = NULL;
    sn_device_placement placement = {0};
    sn_device_placement_options options = device_placement_options();
    sn_status status = model_open(&model, err);
    if (!status) status = sn_device_placement_make(&options, model, first, &end, &placement, err);
    if (!status) fputs((const char *)placement.table.data, stdout);
    sn_device_placement_close(&placement);
    sn_model_close(&model);
    return status;
}

static sn_priority priorities[SN_PRIORITIES_MAX];

static sn_status config_read_quota(sn_node_config *config, sn_err *err) {
    bool unset = args.client_sessions == SN_INT_UNSET;
    int64_t client_sessions = unset ? (args.sessions_max + 3) / 4 : args.client_sessions;
    config->quota =
        (sn_quota_limits){(size_t)client_sessions, args.client_kv, args.client_steps, priorities, args.priority.n};
    if (args.priority.n > SN_PRIORITIES_MAX)
        return sn_fail(err, SN_REFUSED, "--priority: the limit is %d clients", SN_PRIORITIES_MAX);
    for (size_t i = 0; i < args.priority.n; i++)
        if (sn_priority_parse(args.priority.items[i], &priorities[i], err)) return sn_err_context(err, "--priority");
    return SN_OK;
}

/* Who joins a node of another machine is to be reached from there. */
static const char *default_listen(void) {
    for (size_t i = 0; i < args.join.n; i++) {
        const char *join = args.join.items[i];
        if (strncmp(join, "[::1]", 5) && strncmp(join, "127.", 4) && strncmp(join, "localhost:", 10)) return "*:31330";
    }
    return "127.0.0.1:31330";
}

static sn_status node_serve(const blocks_option *b, sn_err *err) {
    sn_emulated_link link = {0};
    sn_status status = args.link ? sn_emulated_link_parse(args.link, &link, err) : SN_OK;
    if (status) return sn_err_context(err, "--emulate-link");
    sn_node_config config = {
        .model_path = args.model,
        .hub = &hub,
        .swarm = *hub.cache ? &swarm : NULL,
        .first = b->first,
        .end = b->end,
        .auto_blocks = b->n_auto,
        .rebalance_every_s = (int)args.rebalance_every_s,
        .rebalance_gain = (int)args.rebalance_gain,
        .listen = args.listen ? args.listen : default_listen(),
        .public_address = args.public_address,
        .join = args.join.items,
        .n_join = args.join.n,
        .dht = args.dht,
        .dht_port = (int)args.dht_port,
        .identity_path = args.identity,
        .swarm_key_path = args.swarm_key,
        .link = link,
        .name = args.name,
        .device_placement = device_placement_options(),
        .sessions_max = (size_t)args.sessions_max,
        .session_timeout_s = (int)args.session_timeout_s,
        .kv_timeout_s = (int)args.kv_timeout_s,
        .metrics = args.metrics,
        .metrics_hosts = args.metrics_hosts.items,
        .n_metrics_hosts = args.metrics_hosts.n,
        .drain_timeout_s = (int)args.drain_timeout_s,
        .kv_dtype = (sn_kv_dtype)args.kv_dtype,
        .prefix_cache_shared = args.prefix_cache_shared,
        .prefix_cache_memory =
            args.prefix_cache_memory == SN_SIZE_UNSET ? args.kv_memory / 8 : args.prefix_cache_memory,
        .swap_to = (sn_residence)args.swap_to,
        .swap_dir = args.swap_dir,
        .swap_after_s = (int)args.swap_after_s,
        .swap_memory = args.swap_memory,
        .tune_memory = args.tune_memory,
        .adapters = args.adapters,
        .startup = &startup,
        .on_plan = show_plan,
    };
    status = parse_share_rate(args.share_weights, &config.share_bytes_per_s, &config.share_near_bytes_per_s, err);
    if (!status) status = parse_relay_rate(args.relay, &config.relay_bytes_per_s, err);
    if (!status) status = config_read_quota(&config, err);
    if (status) return status;
    pthread_t signals;
    if (pthread_create(&signals, NULL, wait_for_signal, NULL)) return sn_fail(err, SN_STOP, "no thread can be started");
    sn_node *node = NULL;
    status = sn_node_new(&config, NULL, show_progress, NULL, &node, err);
    if (atomic_load(&startup.stop)) exit_during_startup();
    if (!status) {
        print_ready(node);
        atomic_store(&running_node, node);
        status = sn_node_run(node, err);
        if (!status && sn_node_loading(node)) _exit(EXIT_OK); /* a rebalance loads other blocks: not waited for */
    }
    pthread_cancel(signals); /* sigwait is a cancellation point */
    pthread_join(signals, NULL);
    sn_node_free(&node);
    return status;
}

static sn_status program_run(sn_err *err) {
    blocks_option b = {0};
    sn_log_setup((sn_log_level)args.log_level, args.json_log);
    if (args.list_devices) {
        sn_log_setup(SN_LOG_DEBUG, args.json_log); /* why a backend is missing */
        return devices_print(err);
    }
    sn_status status = blocks_read(&b, err);
    if (status) return status;
    return args.plan ? print_plan(b.first, b.end, err) : node_serve(&b, err);
}

static void print_help(const sn_options *options) {
    if (options->version)
        sn_version_print("swarm-node", options->version_json, stdout);
    else if (options->help == SN_HELP_MAN)
        sn_options_man(&command, "swarm", stdout);
    else if (options->help == SN_HELP_COMPLETION)
        sn_program_completion(&program, stdout);
    else
        sn_options_help(&command, stdout);
}

int main(int argc, char **argv) {
    sn_err err;
    sn_options options;
    sigset_t set; /* blocked in every thread; the thread of wait_for_signal receives them */
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    sn_terminal_guard();
    sn_environment_use(getenv);
    sn_core_dump_forbid();

    sn_status status = sn_options_parse(&command, argc, argv, &options, &err);
    if (!status && (options.help || options.version))
        print_help(&options);
    else if (!status)
        status = program_run(&err);
    if (!status && fflush(stdout)) status = sn_fail(&err, SN_STOP, "standard output cannot be written");
    if (status) fprintf(stderr, "swarm-node: %s\n", err.text);
    sn_options_fini(&command, &options);
    return status == SN_OK        ? EXIT_OK
           : status == SN_REFUSED ? EXIT_USAGE
           : status == SN_STOP    ? EXIT_RESOURCES
                                  : EXIT_NETWORK;
}

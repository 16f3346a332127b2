/* swarm serve: an OpenAI-compatible server over a swarm, or over a node of its own. The main thread starts everything,
 * waits for a signal, and ends everything in order. Signals are blocked in all threads, and this one takes them. */
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/program.h"
#include "cli/command.h"
#include "cli/local_node.h"
#include "cli/options.h"
#include "cli/serve_name.h"
#include "cli/serve_room.h"
#include "gateway/http/server.h"
#include "net/identity.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOK_MS = 500, LOCAL_OPTIONS_MAX = 32, KV_SHARE = 4 };

static struct {
    const char *listen, *api_key_file, *tls_cert, *tls_key, *served_model_name, *swap_to, *swap_memory, *swap_dir;
    sn_strings cors, host, proxy;
    sn_block_range local;
    int64_t max_sessions, queue, ctx, session_idle_ms, drain_timeout_ms;
    bool anyone;
} given = {.listen = "127.0.0.1:8080",
           .max_sessions = 16,
           .queue = 64,
           .session_idle_ms = 86400000,
           .drain_timeout_ms = 30000};

static const sn_option serve_options[] = {
    SN_OPT_ADDRESS("listen", "HOST:PORT", &given.listen, SN_HOST_PORT_LISTEN,
                   "address to listen at, with HTTP; port 0: a free port"),
    SN_OPT_STRING("api-key-file", "FILE", &given.api_key_file,
                  "keys, one in each line, of which a client must show one as 'Authorization: Bearer KEY'"),
    SN_OPT_FLAG("allow-anyone", &given.anyone, "serve clients without a key at an address that other machines reach"),
    SN_OPT_STRING("tls-cert", "FILE", &given.tls_cert, "serve HTTPS with this certificate (PEM)"),
    SN_OPT_STRING("tls-key", "FILE", &given.tls_key, "the key of --tls-cert (PEM)"),
    SN_OPT_STRINGS("host", "NAME", &given.host,
                   "a name by which clients call this server; IP addresses and localhost are always accepted"),
    SN_OPT_STRINGS("proxy", "ADDRESS", &given.proxy,
                   "address of a reverse proxy, whose header X-Forwarded-For says who the client is"),
    SN_OPT_STRINGS("cors", "ORIGIN", &given.cors,
                   "web pages of this origin may use the server, as in https://example.org"),
    SN_OPT_STRING("served-model-name", "NAME", &given.served_model_name,
                  "what requests call the model (default: the name of its file)"),
    SN_OPT_STRING("template", "FILE", &sn_program_settings.api.chat_template,
                  "a file with a chat template, instead of the model's"),
    SN_OPT_INT("max-sessions", "N", &given.max_sessions, 1, 1024, "answers that are generated at once"),
    SN_OPT_INT("queue", "N", &given.queue, 0, 65536, "answers that may wait for a session; more are refused"),
    SN_OPT_INT(
        "ctx", "N", &sn_program_settings.sampling.ctx, 0, 1 << 30,
        "limit of a prompt and its answer together, in tokens; 0: what the nodes have memory for when the server "
        "starts, and the model's limit at most"),
    SN_OPT_DURATION_MS(
        "session-idle", &given.session_idle_ms, 0, 86400000,
        "a session is kept this long after an answer, for a request that continues it, unless another one "
        "needs its place"),
    SN_OPT_STRING(
        "swap-to", "off|host|disk", &given.swap_to,
        "with --local all: where the KV cache of idle sessions goes when others need its place (default: host)"),
    SN_OPT_STRING("swap-memory", "SIZE", &given.swap_memory, "with --local all: limit of host memory or disk for it"),
    SN_OPT_STRING("swap-dir", "FOLDER", &given.swap_dir, "with --local all: folder for --swap-to disk"),
    SN_OPT_DURATION_MS("drain-timeout", &given.drain_timeout_ms, 0, 86400000,
                       "limit for finishing answers when the server is told to stop"),
};
static const sn_option_group serve_group = SN_OPTION_GROUP("Server:", serve_options);

/* What is open; closed in the opposite order. */
typedef struct serving {
    const sn_options *options;
    sn_local_node node;
    swarm_cancel *stop; /* of the connection, whose status may take seconds */
    swarm_connection *connection;
    swarm_model *model;
    swarm_options *session;
    sn_serve_room room;
    sn_server_queue *queue;
    sn_server *server;
    sn_server_options server_options;
    sn_host_port listen;
    char name[SN_SERVE_NAME_SIZE];
    sn_strings hosts; /* of --host, and the one of --listen */
} serving;

/* -- checks -- */

static bool is_loopback(const char *host) {
    return !strcmp(host, "localhost") || !strcmp(host, "::1") || !strncmp(host, "127.", 4);
}

static sn_status check_settings(serving *s, sn_err *err) {
    const sn_settings *o = &sn_program_settings;
    const sn_block_range *local = &o->common.local;
    if (!sn_settings_has_swarm(o) && !local->given)
        return sn_fail(err, SN_REFUSED,
                       "no node is given to compute the model: give --join HOST:PORT of a node, or --local all to "
                       "start a node of its own");
    if (local->given && (!local->all || sn_settings_has_swarm(o)))
        return sn_fail(err, SN_REFUSED, "a server computes all blocks itself (--local all) or none (--join)");
    if (o->audit.hold)
        return sn_fail(err, SN_REFUSED,
                       "--audit-hold is for a terminal: with --audit a request without \"stream\" gets text that was "
                       "checked");
    if (!local->given && (given.swap_to || given.swap_memory || given.swap_dir))
        return sn_fail(
            err, SN_REFUSED,
            "--swap-to, --swap-memory and --swap-dir are of the node of --local all: give them to swarm-node");
    if (!given.tls_cert != !given.tls_key)
        return sn_fail(err, SN_REFUSED, "--tls-cert and --tls-key belong together: give both, or neither");
    sn_status status = sn_parse_host_port(given.listen, SN_HOST_PORT_LISTEN, &s->listen, err);
    if (status) return status;
    if (!is_loopback(s->listen.host) && !given.api_key_file && !given.anyone)
        return sn_fail(
            err, SN_REFUSED,
            "other machines may reach %s: give --api-key-file FILE, or --allow-anyone to serve clients without a key",
            given.listen);
    for (size_t i = 0; i < given.cors.n && !status; i++)
        if (sn_access_check_origin(given.cors.items[i], err)) status = sn_err_context(err, "--cors");
    for (size_t i = 0; i < given.proxy.n && !status; i++)
        if (sn_access_check_proxy(given.proxy.items[i], err)) status = sn_err_context(err, "--proxy");
    return status;
}

/* -- opening -- */

/* A quarter of the memory that other programs leave: the pages are taken when they are used. */
static void default_kv_memory(char out[32]) {
    size_t total, available;
    sn_memory_read(&total, &available);
    snprintf(out, 32, "%zu", available / KV_SHARE);
}

static bool is_any(const char *word, const char *const *words) {
    while (*words && strcmp(word, *words)) words++;
    return *words != NULL;
}

/* The node has the options of the command line that concern computing. */
static sn_status start_node(serving *s, sn_err *err) {
    static const char *const passed[] = {"device",  "threads",     "isa",      "kv-dtype",  "kv-memory",
                                         "swap-to", "swap-memory", "swap-dir", "swarm-key", NULL};
    char memory[32], names[10][40], sessions[24];
    size_t n = 0, k = 0;
    const char *argv[LOCAL_OPTIONS_MAX + 1] = {"--model",
                                               sn_program_settings.common.model,
                                               "--blocks",
                                               "all",
                                               "--name",
                                               "local",
                                               "--client-sessions",
                                               "0",
                                               "--log-level",
                                               "warn",
                                               "--max-sessions",
                                               sessions};
    snprintf(sessions, sizeof sessions, "%lld", (long long)given.max_sessions * 2 + 16);
    while (argv[n]) n++;
    if (sn_program_settings.common.kv_memory == SN_SIZE_UNSET) {
        default_kv_memory(memory);
        argv[n++] = "--kv-memory";
        argv[n++] = memory;
    }
    for (size_t i = 0; i < s->options->n_given && k < 10; i++) {
        const sn_written_option *o = &s->options->given[i];
        if (!is_any(o->option->name, passed)) continue;
        snprintf(names[k], sizeof names[k], "--%s", o->option->name);
        argv[n++] = names[k++];
        argv[n++] = o->text;
    }
    return sn_local_node_start(argv, &s->node, err);
}

/* Nodes keep pages of conversations by the key of their client: a server that is started again gets the one that it
 * had, from a file in the cache, as its setting --identity; without a cache, or while another server holds the file, a
 * new one, as every client. The file stays locked as long as the process lives. SN_STOP only. */
static sn_status choose_identity(sn_err *err) {
    static char path[SN_PATH_SIZE];
    sn_common_settings *o = &sn_program_settings.common;
    sn_identity identity;
    sn_err why;
    if (o->identity || !o->cache) return SN_OK;
    sn_status status = sn_path_join(path, o->cache, "server-identity", err);
    if (status) return status;
    if (mkdir(o->cache, 0700)) {} /* it is there already, or nothing can be kept there */
    if (access(path, F_OK)) {
        if ((status = sn_identity_new(&identity, err))) return status;
        if (sn_identity_save(&identity, path, &why)) sn_log(SN_LOG_INFO, "identity not kept", "text=%s", why.text);
        explicit_bzero(&identity, sizeof identity);
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return SN_OK;
    if (!flock(fd, LOCK_EX | LOCK_NB))
        o->identity = path; /* fd stays open */
    else
        close(fd);
    return SN_OK;
}

static sn_status connect_swarm(serving *s, sn_err *err) {
    swarm_error *error = NULL;
    if (choose_identity(err)) return err->status;
    swarm_options *options = sn_cli_options("connection", NULL, err);
    if (!options) return err->status;
    sn_status status = SN_OK;
    if (s->node.pid) status = sn_cli_status(swarm_options_set(options, "join", s->node.address, &error), &error, err);
    if (!status) status = sn_cli_status(swarm_connect(options, s->stop, &s->connection, &error), &error, err);
    swarm_options_free(options);
    return status;
}

/* Options of each session: those of the command line but for what a session would compute itself, and for `others`. */
static sn_status session_options(const char *others, swarm_options **out, sn_err *err) {
    swarm_error *error = NULL;
    char skipped[128];
    snprintf(skipped, sizeof skipped, "local kv-memory device threads isa request-id %s", others);
    *out = sn_cli_options("session", skipped, err);
    if (!*out) return err->status;
    return sn_cli_status(swarm_options_set(*out, "threads", "1", &error), &error, err);
}

/* The first session of a model reads all of its weights, for their hashes, and loads the LM head. It is opened, and
 * closed, before a client waits for that; whether nodes serve the model now makes no difference. */
static sn_status warm_up(const serving *s, sn_err *err) {
    swarm_error *error = NULL;
    swarm_session *session = NULL;
    swarm_options *options = NULL;
    sn_status status = session_options("timeout max-retries", &options, err);
    if (!status) status = sn_cli_status(swarm_options_set(options, "timeout", "1s", &error), &error, err);
    if (!status) status = sn_cli_status(swarm_options_set(options, "max-retries", "0", &error), &error, err);
    if (!status && swarm_session_open(s->model, s->connection, options, NULL, s->stop, &session, &error))
        sn_log(SN_LOG_INFO, "no session yet", "text=%s", swarm_error_text(error));
    if (!status) swarm_error_free(error);
    swarm_session_close(session);
    swarm_options_free(options);
    return status;
}

static const char *model_name(char out[SN_SERVE_NAME_SIZE]) {
    return given.served_model_name ? given.served_model_name : sn_serve_name(sn_program_settings.common.model, out);
}

/* What the nodes have memory for. */
static sn_status find_room(serving *s, sn_err *err) {
    swarm_error *error = NULL;
    char *text = NULL;
    json_t *description = NULL, *state = NULL;
    sn_status status = sn_cli_describe_model(s->model, &description, err);
    if (!status && swarm_connection_status(s->connection, &text, NULL, &error)) swarm_error_free(error);
    if (!status && text) status = sn_cli_json(text, &state, err);
    if (!status) s->room = sn_serve_room_of(state, description);
    json_decref(description);
    json_decref(state);
    return status;
}

/* Without --ctx what one timeline has room for, if the nodes say it. */
static int32_t session_context(const serving *s) {
    const size_t most = (size_t)swarm_model_context(s->model), asked = (size_t)sn_program_settings.sampling.ctx;
    const size_t wanted = asked ? asked : s->room.longest ? s->room.longest : most;
    return (int32_t)sn_min_size(wanted, most);
}

static sn_status set_context(const serving *s, sn_err *err) {
    char text[24];
    swarm_error *error = NULL;
    snprintf(text, sizeof text, "%d", (int)session_context(s));
    sn_log(SN_LOG_INFO, "context", "tokens=%s of_model=%d of_all_sessions=%zu", text,
           (int)swarm_model_context(s->model), s->room.all);
    return sn_cli_status(swarm_options_set(s->session, "ctx", text, &error), &error, err);
}

static sn_status list_hosts(serving *s, sn_err *err) {
    sn_status status = sn_calloc(&s->hosts.items, given.host.n + 1, sizeof *s->hosts.items, err);
    if (status) return status;
    for (size_t i = 0; i < given.host.n; i++) s->hosts.items[s->hosts.n++] = given.host.items[i];
    s->hosts.items[s->hosts.n++] = s->listen.host;
    return SN_OK;
}

static sn_status open_server(serving *s, sn_err *err) {
    const sn_server_queue_options queue = {.model = s->model,
                                           .connection = s->connection,
                                           .session = s->session,
                                           .sessions_max = (size_t)given.max_sessions,
                                           .queue_max = (size_t)given.queue,
                                           .idle_ms = given.session_idle_ms,
                                           .tokens_max = s->room.all};
    s->server_options = (sn_server_options){.model = s->model,
                                            .connection = s->connection,
                                            .access = {.hosts = s->hosts.items,
                                                       .n_hosts = s->hosts.n,
                                                       .origins = given.cors.items,
                                                       .n_origins = given.cors.n,
                                                       .proxies = given.proxy.items,
                                                       .n_proxies = given.proxy.n},
                                            .model_name = model_name(s->name),
                                            .context = session_context(s),
                                            .choices_max = (size_t)(given.max_sessions + given.queue),
                                            .host = s->listen.host,
                                            .port = s->listen.port,
                                            .tls_cert = given.tls_cert,
                                            .tls_key = given.tls_key};
    sn_status status = SN_OK;
    if (given.api_key_file && sn_access_read_keys(&s->server_options.access, given.api_key_file, err))
        status = sn_err_context(err, "--api-key-file");
    if (!status) status = sn_server_queue_new(&queue, &s->queue, err);
    s->server_options.queue = s->queue;
    return status ? status : sn_server_new(&s->server_options, &s->server, err);
}

static sn_status open_all(serving *s, sn_err *err) {
    sn_status status = check_settings(s, err);
    if (!status && sn_program_settings.common.local.given) status = start_node(s, err);
    if (!status) status = sn_cli_open_model(&s->model, err);
    if (!status) status = connect_swarm(s, err);
    if (!status) status = session_options("", &s->session, err);
    if (!status) status = warm_up(s, err);
    if (!status) status = find_room(s, err);
    if (!status) status = set_context(s, err);
    if (!status) status = list_hosts(s, err);
    return status ? status : open_server(s, err);
}

static void close_all(serving *s) {
    swarm_cancel_set(s->stop);
    sn_server_free(&s->server);
    sn_server_queue_free(&s->queue);
    swarm_options_free(s->session);
    swarm_disconnect(s->connection);
    swarm_cancel_free(s->stop);
    swarm_model_close(s->model);
    sn_local_node_stop(&s->node);
    sn_access_fini(&s->server_options.access);
    free(s->hosts.items);
}

/* -- serving -- */

static sn_status print_ready(const serving *s, sn_err *err) {
    const bool v6 = strchr(s->listen.host, ':'),
               all = !strcmp(s->listen.host, "*") || !strcmp(s->listen.host, "0.0.0.0");
    const char *host = all ? "127.0.0.1" : s->listen.host;
    char address[300];
    snprintf(address, sizeof address, "%s%s%s:%d", v6 ? "[" : "", host, v6 ? "]" : "", sn_server_port(s->server));
    printf("ready: address=%s url=http%s://%s model=\"%s\"\n", address, given.tls_cert ? "s" : "", address,
           s->server_options.model_name);
    if (fflush(stdout)) return sn_fail(err, SN_STOP, "cannot write to standard output");
    return SN_OK;
}

static sn_status serve(serving *s, const sigset_t *signals, sn_err *err) {
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000};
    int number;
    while ((number = sigtimedwait(signals, NULL, &look)) <= 0)
        if (sn_local_node_has_ended(&s->node)) return sn_fail(err, SN_RETRY, "the node of --local all has ended");
    sn_log(SN_LOG_INFO, "draining", "signal=%d limit_ms=%lld", number, (long long)given.drain_timeout_ms);
    if (!sn_server_drain(s->server, sn_now_us() + given.drain_timeout_ms * 1000))
        sn_log(SN_LOG_WARN, "answers cancelled", "limit_ms=%lld", (long long)given.drain_timeout_ms);
    return SN_OK;
}

static sn_status serve_main(const sn_options *options, int *code, sn_err *err) {
    serving s = {.options = options, .stop = swarm_cancel_new()};
    sigset_t signals;
    (void)code;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (!s.stop) return sn_fail(err, SN_STOP, "out of memory for a server");
    sn_status status = open_all(&s, err);
    if (!status) status = print_ready(&s, err);
    if (!status) status = serve(&s, &signals, err);
    close_all(&s);
    return status;
}

static const sn_option_group *const groups[] = {&sn_group_chosen_model, &serve_group,    &sn_group_draft,
                                                &sn_group_connection,   &sn_group_chain, &sn_group_audit,
                                                &sn_group_device,       &sn_group_log};

const sn_cli_command sn_cmd_serve = {
    .command = {.program = "swarm serve",
                .summary = "serve the OpenAI API, and pages for a browser, over a swarm",
                .synopsis = "[--model PATH] (--join HOST:PORT... | --local all) [options]",
                .about =
                    "Serves programs that speak the OpenAI API, and a browser: chat at /, a map of the swarm at "
                    "/swarm. Prints one line 'ready: address=HOST:PORT url=URL model=NAME' on standard output. "
                    "With --local all it starts a node of its own, which ends with it.\n\n"
                    "SIGTERM or SIGINT ends the server: requests in progress are finished within --drain-timeout, new "
                    "ones are refused. docs/SERVER.md lists the routes.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = serve_main,
};

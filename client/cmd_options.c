/* Options that several commands take, and how a command begins and ends. */
#include "client/cmd.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

sn_client_options sn_given = {.device = NULL, .timeout_s = 30, .max_retries = 3, .steps_ahead = SN_STEPS_AHEAD_MAX, .route = "latency", .route_seed = -1, .replan_s = 20};
sn_sampling_options sn_given_sampling = {.top_p = 1, .repeat_penalty = 1, .max_tokens = 256, .seed = -1};

static const sn_option model_options[] = {
    SN_OPT_REQUIRED("model", "PATH", &sn_given.model,
                    "a GGUF file, or a folder with config.json, safetensors and tokenizer.json"),
};

static const sn_option chain_options[] = {
    SN_OPT_STRINGS(
        "join", "ADDRESS", &sn_given.join,
        "tcp://HOST:PORT of a node of the swarm; any one finds all others. #KEY behind it pins its CURVE key"),
    SN_OPT_STRING("dht", "HOST:PORT", &sn_given.dht,
                  "find nodes of this model through a table of first contacts (OpenDHT): any node of it"),
    SN_OPT_BLOCKS("local", "A:B|all", &sn_given.local, "blocks that this program holds itself; all needs no node"),
    SN_OPT_STRINGS("only", "NODE", &sn_given.only, "use only nodes with this name, or whose id begins with these 4 or more digits"),
    SN_OPT_STRINGS("deny", "NODE", &sn_given.deny, "never use nodes with this name, or whose id begins with these 4 or more digits"),
    SN_OPT_STRING("route", "latency|throughput", &sn_given.route,
                  "latency: the way on which a token takes least; throughput: one drawn so that much work spreads over "
                  "the nodes as they are fast"),
    SN_OPT_INT("route-seed", "S", &sn_given.route_seed, -1, 1LL << 53,
               "decides what is drawn, and among equal nodes; without it, another one for each run"),
    SN_OPT_INT("replan", "SECONDS", &sn_given.replan_s, 0, 86400,
               "how often a better way is looked for while tokens come one by one; 0: never"),
    SN_OPT_STRING("request-id", "WORD", &sn_given.request_id,
                  "what the nodes' logs call this work; without it, one drawn at random, which --json shows"),
    SN_OPT_FLAG("push", &sn_given.push, "nodes hand hidden states on to each other instead of back to this program"),
    SN_OPT_FLAG("kv-replica", &sn_given.kv_replica,
                "keep a copy of each node's keys and values at another one, so that a sudden death costs no replay"),
    SN_OPT_INT("timeout", "SECONDS", &sn_given.timeout_s, 1, 86400, "how long a node may take for one step; another one is then looked for, for 3 seconds at most"),
    SN_OPT_INT("max-retries", "N", &sn_given.max_retries, 0, 1000,
               "failed nodes in a row that are replaced before giving up"),
    SN_OPT_INT("steps-ahead", "N", &sn_given.steps_ahead, 0, SN_STEPS_AHEAD_MAX,
               "pieces of a long prompt that may wait at a node while it is at work on another; 0: one by one"),
    SN_OPT_STRING("identity", "FILE", &sn_given.identity,
                  "keys made by 'swarm keygen'; without it, fresh ones for each run"),
    SN_OPT_STRING("swarm-key", "FILE", &sn_given.swarm_key,
                  "the key of a private swarm, made by 'swarm keygen --swarm'"),
    SN_OPT_STRING("link", "RATE,RTT[,JITTER]", &sn_given.link,
                  "emulate this connection, as in 100mbit,100ms, for measurements; give it to the nodes too"),
    SN_OPT_STRING("kv-dtype", "f32|f16|q8", &sn_given.kv_dtype,
                  "use nodes that keep keys and values as this, and keep those of local blocks so; without it f32"),
    SN_OPT_STRING("wire", "f32|bf16|f16|q8", &sn_given.wire,
                  "as what hidden states travel; without it f32, which is exact. The others are for slow links and lossy: the text "
                  "is another one, and depends on where the model is cut over nodes"),
    SN_OPT_SIZE("kv-memory", "SIZE", &sn_given.kv_memory,
                "memory for keys and values of local blocks; without it, what the longest timeline needs"),
};

static const sn_option device_options[] = {
    SN_OPT_STRING("device", "NAME", &sn_given.device, "what computes here: cpu"),
    SN_OPT_INT("threads", "N", &sn_given.threads, 0, 1024, "workers of the CPU; 0, the default: one for each core"),
    SN_OPT_STRING("isa", "NAME", &sn_given.isa,
                  "kernels of the CPU: c, avx2, avx512 or amx, for tests; without it, the fastest that run here"),
};

static const sn_option log_options[] = {
    SN_OPT_STRING("log-level", "LEVEL", &sn_given.log_level, "debug, info, warn (the default), error or off"),
    SN_OPT_FLAG("json-log", &sn_given.json_log, "log lines as JSON objects"),
};

static const sn_option sampling_options[] = {
    SN_OPT_INT("max-tokens", "N", &sn_given_sampling.max_tokens, 0, 1 << 30,
               "longest answer; 0: until the context is full"),
    SN_OPT_FLOAT("temperature", "T", &sn_given_sampling.temperature, 0, 1000,
                 "0, the default, takes the best token always; 1 is chance by the model's probabilities"),
    SN_OPT_INT("top-k", "K", &sn_given_sampling.top_k, 0, 1 << 30, "choose among the K best only; 0, the default: all"),
    SN_OPT_FLOAT("top-p", "P", &sn_given_sampling.top_p, 1e-9, 1,
                 "choose among the fewest tokens that together have this probability"),
    SN_OPT_FLOAT("min-p", "P", &sn_given_sampling.min_p, 0, 1,
                 "leave out tokens with less than P times the probability of the best; 0, the default: none"),
    SN_OPT_FLOAT("repeat-penalty", "R", &sn_given_sampling.repeat_penalty, 1e-9, 100,
                 "above 1 makes the last 64 tokens less likely"),
    SN_OPT_INT("seed", "S", &sn_given_sampling.seed, -1, 1LL << 53,
               "the same seed gives the same text on every machine; without it, another one for each run"),
    SN_OPT_STRINGS("stop", "TEXT", &sn_given_sampling.stop, "end before this text"),
    SN_OPT_FLAG("ignore-end", &sn_given_sampling.ignore_end, "go on behind the model's end token, for measurements"),
    SN_OPT_INT("ctx", "N", &sn_given_sampling.ctx, 0, 1 << 30,
               "longest timeline in tokens, prompt and answers together; 0, the default: what is needed"),
};

static const sn_option adapter_options[] = {
    SN_OPT_STRING("adapter", "FOLDER", &sn_given.adapter,
                  "what swarm tune has trained, or LoRA or prompt tuning from PEFT, goes with the model; or name:NAME, one that "
                  "nodes publish (name:NAME@HASH says which of that name)"),
};

#define COUNT(table) (sizeof(table) / sizeof *(table))
const sn_option_group sn_group_model = {"Model:", model_options, COUNT(model_options)};
const sn_option_group sn_group_chain = {"Swarm:", chain_options, COUNT(chain_options)};
const sn_option_group sn_group_device = {"Device:", device_options, COUNT(device_options)};
const sn_option_group sn_group_adapter = {"Fine-tuned:", adapter_options, COUNT(adapter_options)};
const sn_option_group sn_group_log = {"Log (on stderr):", log_options, COUNT(log_options)};
const sn_option_group sn_group_sampling = {"Choosing tokens:", sampling_options, COUNT(sampling_options)};

sn_sampling sn_sampling_given(void) {
    const sn_sampling_options *o = &sn_given_sampling;
    sn_sampling sampling = {.temperature = o->temperature,
                            .top_k = (int)o->top_k,
                            .top_p = o->top_p,
                            .min_p = o->min_p,
                            .repeat_penalty = o->repeat_penalty,
                            .seed = (uint64_t)o->seed};
    if (o->seed < 0) { /* 53 bits, so that the seed survives JSON readers that hold numbers as doubles */
        sn_random(&sampling.seed, sizeof sampling.seed);
        sampling.seed >>= 11;
    }
    return sampling;
}

sn_status sn_route_given(bool *throughput, uint64_t *seed, sn_err *err) {
    *throughput = !strcmp(sn_given.route, "throughput");
    if (!*throughput && strcmp(sn_given.route, "latency"))
        return sn_fail(err, SN_REFUSED, "--route %s: it is latency or throughput", sn_given.route);
    *seed = (uint64_t)sn_given.route_seed;
    if (sn_given.route_seed < 0) sn_random(seed, sizeof *seed);
    return SN_OK;
}

static sn_status set_log(sn_err *err) {
    sn_log_level level = SN_LOG_WARN;
    sn_status status = sn_given.log_level ? sn_log_level_parse(sn_given.log_level, &level, err) : SN_OK;
    sn_log_setup(level, sn_given.json_log);
    return status ? sn_err_context(err, "--log-level") : SN_OK;
}

static int fail(const sn_command *command, sn_status status, const sn_err *err) {
    static const int codes[] = {[SN_OK] = SN_EXIT_OK,
                                [SN_RETRY] = SN_EXIT_NETWORK,
                                [SN_REBUILD] = SN_EXIT_NETWORK,
                                [SN_REFUSED] = SN_EXIT_USAGE,
                                [SN_STOP] = SN_EXIT_RESOURCES};
    if (sn_interrupted) return SN_EXIT_INTERRUPTED; /* what failed did so because it was broken off */
    size_t len = strlen(err->text);
    bool ended = len && strchr(".?!", err->text[len - 1]);
    fprintf(stderr, "%s: %s%s\n", command->program, err->text, ended ? "" : ".");
    return codes[status];
}

int sn_cmd_run(const sn_command *command, int argc, char **argv, sn_cmd_body body) {
    sn_err err = {0};
    sn_options options;
    int code = SN_EXIT_OK;
    sn_status status = sn_options_parse(command, argc, argv, &options, &err);
    if (!status && options.help) {
        sn_options_help(command, stdout);
    } else if (!status && options.version) {
        printf("swarm %s\n", SN_VERSION);
    } else {
        if (!status) status = set_log(&err);
        if (!status) status = body(&options, &code, &err);
    }
    if (!status) status = sn_flush_stdout(&err);
    if (status) code = fail(command, status, &err);
    sn_options_fini(command, &options);
    return code;
}

/* The tables of options, and the values before an option is given. */
#include "client/api/settings.h"

#include "base/hash.h"
#include "base/wire.h"
#include "blocks/adapter.h"
#include "client/chain/chain.h"
#include "client/generate/draft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const sn_word sn_route_words[] = {{"latency", SN_ROUTE_LATENCY}, {"throughput", SN_ROUTE_THROUGHPUT}, {NULL, 0}};
static const sn_word parts_words[] = {{"all", SN_PARTS_ALL}, {"tokenizer", SN_PARTS_TOKENIZER}, {NULL, 0}};
static const sn_word draft_words[] = {
    {"auto", SN_DRAFT_AUTO}, {"off", SN_DRAFT_OFF}, {"ngram", SN_DRAFT_NGRAM}, {"mtp", SN_DRAFT_MTP}, {NULL, 0}};

#define DEFAULTS                                                                                                       \
    {                                                                                                                  \
        .common = {.route = SN_ROUTE_LATENCY,                                                                          \
                   .route_seed = SN_INT_UNSET,                                                                         \
                   .reroute_every_ms = 20000,                                                                          \
                   .timeout_ms = 30000,                                                                                \
                   .max_retries = 16,                                                                                  \
                   .prefill_depth = SN_PREFILL_DEPTH_MAX,                                                              \
                   .replay_memory = 64 << 20,                                                                          \
                   .kv_dtype = SN_KV_DTYPE_DEFAULT,                                                                    \
                   .wire_dtype = SN_F32,                                                                               \
                   .kv_memory = SN_SIZE_UNSET,                                                                         \
                   .device = "cpu"},                                                                                   \
        .sampling = {.temperature = NAN,                                                                               \
                     .top_p = NAN,                                                                                     \
                     .min_p = NAN,                                                                                     \
                     .repeat_penalty = NAN,                                                                            \
                     .top_k = SN_INT_UNSET,                                                                            \
                     .max_tokens = 256,                                                                                \
                     .seed = SN_INT_UNSET},                                                                            \
        .draft = {.tokens = SN_DRAFT_TOKENS},                                                                          \
        .audit = {.seed = SN_INT_UNSET},                                                                               \
        .training = SN_TRAINING_DEFAULTS,                                                                              \
        .api = {.timeline = 8192, .logprobs = -1},                                                                     \
    }
sn_settings sn_program_settings = DEFAULTS;
static const sn_settings defaults = DEFAULTS;

#define MODEL_HELP                                                                                                     \
    "a GGUF file, or a folder with config.json, safetensors files and tokenizer.json; the program "                    \
    "swarm also takes ORG/NAME[:FILE][@REVISION] of a hub or the URL of a GGUF file, and fetches what it "             \
    "needs"

#define FETCH_OPTIONS                                                                                                  \
    SN_OPT_STRING("manifest", "FILE|URL[#KEY]", &sn_program_settings.common.manifest,                                  \
                  "compare what a hub gives with this manifest, made by 'swarm hash'; #KEY: the identity that must "   \
                  "have signed it"),                                                                                   \
        SN_OPT_SIZE("cache-max", "SIZE", &sn_program_settings.common.cache_max,                                        \
                    "bytes that fetched models may take in the folder of --cache: those that no program uses are "     \
                    "removed, first those that were not used for longest; 0: any")

static const sn_option model_options[] = {
    SN_OPT_REQUIRED("model", "PATH", &sn_program_settings.common.model, MODEL_HELP),
    FETCH_OPTIONS,
};

static const sn_option chosen_model_options[] = {
    SN_OPT_STRING("model", "PATH", &sn_program_settings.common.model,
                  MODEL_HELP "; with --join and without --model: a model of the swarm, of which the client's part is "
                             "fetched from nodes"),
    SN_OPT_STRING("model-id", "DIGITS", &sn_program_settings.common.model_id,
                  "without --model: the model of the swarm whose id begins with these digits"),
    FETCH_OPTIONS,
};

static const sn_option connection_options[] = {
    SN_OPT_ADDRESSES("join", "HOST:PORT", &sn_program_settings.common.join, SN_HOST_PORT_PINNED,
                     "address of a node of the swarm, through which all other nodes are found; HOST:PORT#KEY also "
                     "checks the node's CURVE key; lan: nodes of the local network"),
    SN_OPT_ADDRESS("dht", "HOST:PORT", &sn_program_settings.common.dht, SN_HOST_PORT_DIAL,
                   SN_DHT_HELP("address of a DHT node (OpenDHT), through which nodes of this model are found")),
    SN_OPT_DURATION_MS("timeout", &sn_program_settings.common.timeout_ms, 1000, 86400000,
                       "limit for connecting, and for each step of a token or of up to 512 tokens of a prompt: through "
                       "all nodes, with "
                       "every retry and replay. A node that does not answer is replaced after three quarters of it"),
    SN_OPT_STRING("identity", "FILE", &sn_program_settings.common.identity,
                  "keys made by 'swarm keygen' (default: new keys for each run)"),
    SN_OPT_STRING("swarm-key", "FILE", &sn_program_settings.common.swarm_key,
                  "the key of a private swarm, made by 'swarm keygen --swarm-key'"),
    SN_OPT_STRING("emulate-link", "RATE,RTT[,JITTER]", &sn_program_settings.common.emulated_link,
                  "emulate a connection like this, as in 100mbit,100ms, for measurements; the nodes need the same "
                  "option"),
    SN_OPT_STRING("cache", "FOLDER", &sn_program_settings.common.cache,
                  "folder of fetched models, and of what is remembered from run to run, such as slow nodes (default: "
                  "SWARM_CACHE, or "
                  "swarm-node in XDG_CACHE_HOME or ~/.cache)"),
};

static const sn_option chain_options[] = {
    SN_OPT_BLOCKS("local", "A:B|all", &sn_program_settings.common.local,
                  "blocks that this process computes itself; with all, no node is needed"),
    SN_OPT_STRINGS("only", "NODE", &sn_program_settings.common.only,
                   "use only nodes with this name, or whose id begins with these digits (4 or more)"),
    SN_OPT_STRINGS("deny", "NODE", &sn_program_settings.common.deny,
                   "never use nodes with this name, or whose id begins with these digits (4 or more)"),
    SN_OPT_ENUM("route", &sn_program_settings.common.route, sn_route_words,
                "latency: the route on which a token takes the least time; throughput: a route sampled in proportion "
                "to the nodes' throughput, which spreads the load of many sessions"),
    SN_OPT_INT("route-seed", "S", &sn_program_settings.common.route_seed, 0, 1LL << 53,
               "seed for sampling the route and for choosing among equal nodes (default: random)"),
    SN_OPT_DURATION_MS("reroute-every", &sn_program_settings.common.reroute_every_ms, 0, 86400000,
                       "interval at which a faster route is looked for during decoding; 0: never"),
    SN_OPT_STRING("request-id", "ID", &sn_program_settings.common.request_id,
                  "identifies this request in the logs of the nodes (default: random, --json shows it)"),
    SN_OPT_FLAG("push", &sn_program_settings.common.push,
                "nodes send hidden states directly to the next node, not back to this process"),
    SN_OPT_FLAG("kv-replica", &sn_program_settings.common.kv_replica,
                "keep a KV replica of each session at another node, so that the failure of a node needs no replay of "
                "the tokens"),
    SN_OPT_INT("max-retries", "N", &sn_program_settings.common.max_retries, 0, 1000,
               "nodes in a row that may fail although they are there, by a wrong answer or none, before the command "
               "fails; those that are gone do not count: --timeout bounds the whole"),
    SN_OPT_INT("prefill-depth", "N", &sn_program_settings.common.prefill_depth, 0, SN_PREFILL_DEPTH_MAX,
               "chunks of a long prompt that may wait at a node while it computes another; 0: one chunk at a time"),
    SN_OPT_SIZE("replay-memory", "SIZE", &sn_program_settings.common.replay_memory,
                "memory of a session for the hidden states that each node but the first got, so that when one fails "
                "the blocks before it are not computed again; 0: no limit"),
    SN_OPT_ENUM("kv-dtype", &sn_program_settings.common.kv_dtype, sn_kv_dtype_words,
                "element type of the KV cache: nodes with this type are used, and local blocks use it. f32 takes twice "
                "the memory of "
                "f16, q8 about half of it; each type gives other results"),
    SN_OPT_ENUM("wire-dtype", &sn_program_settings.common.wire_dtype, sn_wire_dtype_words,
                "element type of hidden states on the network. f32 is exact. The others are lossy, for slow links: "
                "the text differs, and depends on where the blocks are cut into nodes"),
    SN_OPT_SIZE("kv-memory", "SIZE", &sn_program_settings.common.kv_memory,
                "memory for the KV cache of local blocks (default: enough for the longest timeline)"),
};

static const sn_option device_options[] = {
    SN_OPT_STRING(
        "device", "NAME", &sn_program_settings.common.device,
        "device that computes what this process does, the LM head and local blocks: cpu, cuda:N, xpu:N, or gpu "
        "for the first accelerator"),
    SN_OPT_INT("threads", "N", &sn_program_settings.common.threads, 0, 1024, "worker threads; 0: one for each core"),
    SN_OPT_WORD("isa", &sn_program_settings.common.isa, sn_isa_words,
                "instruction set of the CPU kernels, for tests (default: the fastest that runs here)"),
};

static const sn_option sampling_options[] = {
    SN_OPT_INT("max-tokens", "N", &sn_program_settings.sampling.max_tokens, 0, 1 << 30,
               "limit of generated tokens; 0: until the context is full"),
    SN_OPT_FLOAT(
        "temperature", "T", &sn_program_settings.sampling.temperature, 0, 10,
        "0: always the most likely token; 1: sampled with the model's probabilities (default: 0, and 0.8 where "
        "--top-k, --top-p or --min-p asks for sampling; of a chat this and the next four: what the model recommends, "
        "else 0.7 and top-p 0.95)"),
    SN_OPT_INT("top-k", "K", &sn_program_settings.sampling.top_k, 0, 1 << 30,
               "sample among the K most likely tokens; 0: all"),
    SN_OPT_RATIO("top-p", "P", &sn_program_settings.sampling.top_p, 1e-9,
                 "sample among the fewest tokens that together have this probability"),
    SN_OPT_RATIO("min-p", "P", &sn_program_settings.sampling.min_p, 0,
                 "leave out tokens with less than P times the probability of the most likely one"),
    SN_OPT_FLOAT("repeat-penalty", "R", &sn_program_settings.sampling.repeat_penalty, 1e-9, 100,
                 "above 1: makes the last 64 tokens less likely"),
    SN_OPT_INT("seed", "S", &sn_program_settings.sampling.seed, 0, 1LL << 53,
               "seed of the sampling: the same seed gives the same text on every machine (default: random)"),
    SN_OPT_STRINGS("stop", "TEXT", &sn_program_settings.sampling.stop, "end the output before this text"),
    SN_OPT_FLAG("ignore-eos", &sn_program_settings.sampling.ignore_eos,
                "continue after the model's end-of-text token, for measurements"),
    SN_OPT_INT("ctx", "N", &sn_program_settings.sampling.ctx, 0, 1 << 30,
               "limit of the timeline in tokens, prompt and output together; 0: as many as are needed"),
};

static const sn_option adapter_options[] = {
    SN_OPT_STRING("adapter", "FOLDER", &sn_program_settings.common.adapter,
                  "an adapter made by 'swarm tune', or LoRA or prompt tuning in the format of PEFT; or name:NAME or "
                  "name:NAME@HASH, an adapter that nodes publish"),
};

static const sn_option draft_options[] = {
    SN_OPT_ENUM(
        "draft", &sn_program_settings.draft.method, draft_words,
        "draft several tokens, and check them in one forward pass; the text stays the same. mtp: by the block of "
        "the model's files that predicts further tokens, computed here, and by ngram, whichever is right more "
        "often; ngram: what followed the same tokens earlier in the text; auto: mtp over nodes where the files "
        "have the block, else off"),
    SN_OPT_STRING("draft-model", "PATH", &sn_program_settings.draft.model,
                  "draft with a smaller model of the same vocabulary, computed in this process"),
    SN_OPT_INT("draft-tokens", "N", &sn_program_settings.draft.tokens, 1, SN_DRAFT_TOKENS_MAX,
               "limit of draft tokens in one forward pass; fewer are drafted while they are not accepted"),
};

static const sn_option session_options[] = {
    SN_OPT_STRING("save", "FILE", &sn_program_settings.session.save,
                  "at the end, write the session to this file: its text, and the KV cache of all blocks"),
    SN_OPT_STRING("load", "FILE", &sn_program_settings.session.load,
                  "continue the session of this file, over the nodes that the swarm has now"),
    SN_OPT_STRING("session-key", "FILE", &sn_program_settings.session.key,
                  "the session's file is encrypted with the content of this file, 16 or more random bytes (default: "
                  "the file of --identity)"),
};

static const sn_option audit_options[] = {
    SN_OPT_RATIO("audit", "SHARE", &sn_program_settings.audit.share, 0,
                 "check a node after this share of its steps, chosen at random: its results since the last check are "
                 "recomputed elsewhere and compared. What is not checked yet at the end of the text is checked then. "
                 "0: no audit"),
    SN_OPT_INT("audit-seed", "S", &sn_program_settings.audit.seed, 0, 1LL << 53,
               "seed for choosing the steps; nodes must not know it (default: random)"),
    SN_OPT_FLAG("audit-local", &sn_program_settings.audit.local,
                "recompute in this process, from the model's file, not at other nodes"),
    SN_OPT_FLAG("audit-hold", &sn_program_settings.audit.hold,
                "print the text at its end, when it was checked, at a terminal too; pipes and files always get it so"),
    SN_OPT_STRING("evidence", "FOLDER", &sn_program_settings.audit.evidence,
                  "folder for the signed statements of a node whose results are wrong (default: swarm/evidence in "
                  "XDG_STATE_HOME or ~/.local/state)"),
};

static const sn_option api_options[] = {
    SN_OPT_BLOCKS("blocks", "A:B", &sn_program_settings.api.blocks,
                  "blocks that hidden states go through (default: all)"),
    SN_OPT_INT("timeline", "N", &sn_program_settings.api.timeline, 1, 1 << 30,
               "expected tokens of the session, beside those of load: without ctx the context is so long, and never "
               "longer than the model's"),
    SN_OPT_INT("logprobs", "N", &sn_program_settings.api.logprobs, -1, 1000,
               "with each token its log-probability, and those of the N most likely tokens; -1: none"),
    SN_OPT_FLAG("answer", &sn_program_settings.api.answer,
                "the text is a turn of a conversation, not a continuation of the prompt's text"),
    SN_OPT_STRING("prefix-scope", "TEXT", &sn_program_settings.api.prefix_scope,
                  "tokens of an earlier session, of which nodes still have keys and values, are found again only by "
                  "generations with the same text"),
    SN_OPT_ENUM("parts", &sn_program_settings.api.parts, parts_words,
                "tokenizer: only the tokenizer is read, and nothing can be computed"),
    SN_OPT_STRING("template", "FILE", &sn_program_settings.api.chat_template,
                  "a file with a chat template, instead of the model's"),
    SN_OPT_FLAG("hashes", &sn_program_settings.api.hashes,
                "the description has the SHA-256 of each block's weights, for which the whole file is read"),
    SN_OPT_FLAG("tensors", &sn_program_settings.api.tensors, "the description lists every tensor"),
    SN_OPT_STRING("hub", "URL", &sn_program_settings.api.hub,
                  "the hub that ORG/NAME is looked up at (default: https://huggingface.co)"),
    SN_OPT_STRING("hub-token", "TEXT", &sn_program_settings.api.hub_token,
                  "the hub's token of access; it goes to no other host"),
    SN_OPT_STRING("hub-cache", "FOLDER", &sn_program_settings.api.hub_cache,
                  "where Hugging Face's tools keep whole files (default: it is not used)"),
};

const sn_option_group sn_group_model = SN_OPTION_GROUP("Model:", model_options);
const sn_option_group sn_group_chosen_model = SN_OPTION_GROUP("Model:", chosen_model_options);
const sn_option_group sn_group_connection = SN_OPTION_GROUP("Swarm:", connection_options);
const sn_option_group sn_group_chain = SN_OPTION_GROUP("Route:", chain_options);
const sn_option_group sn_group_device = SN_OPTION_GROUP("Device:", device_options);
const sn_option_group sn_group_adapter = SN_OPTION_GROUP("Adapter:", adapter_options);
const sn_option_group sn_group_sampling = SN_OPTION_GROUP("Sampling:", sampling_options);
const sn_option_group sn_group_draft = SN_OPTION_GROUP("Draft tokens:", draft_options);
const sn_option_group sn_group_bench_draft = SN_OPTION_GROUP(
    "Draft tokens (measured against none, on a text that repeats itself and on one that does not):", draft_options);
const sn_option_group sn_group_session = SN_OPTION_GROUP("Session in a file:", session_options);
const sn_option_group sn_group_audit = SN_OPTION_GROUP("Audit:", audit_options);

static const sn_option_group api_group = SN_OPTION_GROUP("C API:", api_options);

/* -- training -- */

static const sn_option data_options[] = {
    SN_OPT_STRING("data", "FILE", &sn_program_settings.training.data,
                  "training data: a .txt file, or a .jsonl file with {\"text\"}, {\"prompt\", \"completion\"}, "
                  "{\"messages\"} or {\"text\", \"label\"} on each line"),
    SN_OPT_STRING("eval-data", "FILE", &sn_program_settings.training.eval_data,
                  "evaluation data in the same format: the loss over it is shown before and after training"),
    SN_OPT_INT("seq", "N", &sn_program_settings.training.seq, 2, 1 << 20,
               "limit of tokens in a sequence; longer examples are cut"),
};
static const sn_option method_options[] = {
    SN_OPT_ENUM("method", &sn_program_settings.training.method, sn_method_words,
                "what is trained: virtual tokens before the text (prompt), also before each block (deep-prompt), "
                "low-rank adapters of the blocks' matrices (lora), or a classifier after the last block (head)"),
    SN_OPT_INT("virtual-tokens", "N", &sn_program_settings.training.virtual_tokens, 1, SN_PROMPT_TOKENS_MAX,
               "virtual tokens of prompt and deep-prompt"),
    SN_OPT_INT("rank", "N", &sn_program_settings.training.rank, 1, SN_LORA_RANK_MAX, "rank of LoRA"),
    SN_OPT_FLOAT("alpha", "A", &sn_program_settings.training.alpha, 1e-6, 1e6,
                 "the result of LoRA is scaled by A / rank (default: twice the rank)"),
    SN_OPT_STRING("targets", "LIST", &sn_program_settings.training.targets,
                  "matrices that get LoRA adapters: q, k, v, o, gate, up, down, or all"),
};
static const sn_option training_options[] = {
    SN_OPT_INT("steps", "N", &sn_program_settings.training.steps, 1, 1 << 30, "training steps (default: one epoch)"),
    SN_OPT_INT("epochs", "N", &sn_program_settings.training.epochs, 1, 1 << 20,
               "passes over the data, instead of --steps"),
    SN_OPT_INT("batch", "N", &sn_program_settings.training.batch, 1, 1024, "sequences in a micro-batch"),
    SN_OPT_INT("accumulate", "N", &sn_program_settings.training.accumulate, 1, 1024, "micro-batches in a step"),
    SN_OPT_FLOAT("lr", "R", &sn_program_settings.training.lr, 0, 100,
                 "learning rate (default: 0.03 for prompt and deep-prompt, 0.001 for lora, 0.01 for head)"),
    SN_OPT_ENUM("schedule", &sn_program_settings.training.schedule, sn_schedule_words, "schedule of the learning rate"),
    SN_OPT_INT("warmup-steps", "N", &sn_program_settings.training.warmup_steps, 0, 1 << 30,
               "steps in which the learning rate grows from 0 to its full value"),
    SN_OPT_FLOAT("clip", "N", &sn_program_settings.training.clip, 0, 1e9,
                 "limit of the norm of a step's gradients; 0: no limit"),
    SN_OPT_FLOAT("weight-decay", "W", &sn_program_settings.training.weight_decay, 0, 10, "weight decay of AdamW"),
    SN_OPT_INT("seed", "S", &sn_program_settings.training.seed, 0, 1LL << 53,
               "seed of the initial parameters and of the order of the data"),
    SN_OPT_STRING("resume", "FOLDER", &sn_program_settings.training.resume,
                  "continue from the newest checkpoint in this folder of an earlier training"),
};
const sn_option_group sn_group_data = SN_OPTION_GROUP("Data:", data_options);
const sn_option_group sn_group_method = SN_OPTION_GROUP("Adapter:", method_options);
const sn_option_group sn_group_training = SN_OPTION_GROUP("Training:", training_options);

/* -- settings by key -- */

static const sn_option_group *const groups[] = {
    &sn_group_model, &sn_group_connection, &sn_group_chain, &sn_group_device, &sn_group_sampling,
    &sn_group_draft, &sn_group_session,    &sn_group_audit, &api_group,       NULL};

static const sn_option_group *const training_groups[] = {
    &sn_group_data,       &sn_group_method, &sn_group_training, &sn_group_chain,
    &sn_group_connection, &sn_group_device, &api_group,         NULL};

/* A kind of options: its keys, and the groups in which they are looked for, since a word may mean different settings of
 * different kinds. */
static const struct {
    const char *name, *keys;
    const sn_option_group *const *groups; /* ends with NULL */
} kinds[] = {
    {"connection", "join dht model timeout identity swarm-key emulate-link cache", groups},
    {"model",
     "device threads isa kv-dtype parts template hashes tensors cache cache-max manifest hub hub-token hub-cache",
     groups},
    {"session",
     "local only deny route route-seed reroute-every request-id push kv-replica timeout max-retries prefill-depth "
     "replay-memory kv-dtype wire-dtype kv-memory device threads isa ctx timeline load session-key draft draft-model "
     "draft-tokens "
     "audit audit-seed audit-local audit-hold evidence blocks",
     groups},
    {"generation",
     "max-tokens temperature top-k top-p min-p repeat-penalty seed stop ignore-eos audit-hold logprobs answer "
     "prefix-scope",
     groups},
    {"blocks", "blocks only deny timeout max-retries device threads isa method rank alpha targets virtual-tokens seed",
     training_groups},
    {"training",
     "data eval-data seq method virtual-tokens rank alpha targets steps epochs batch accumulate lr schedule "
     "warmup-steps clip weight-decay seed resume only deny timeout max-retries device threads isa",
     training_groups},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

const char *sn_settings_keys(const char *of) {
    for (size_t i = 0; i < N_KINDS; i++)
        if (!strcmp(kinds[i].name, of)) return kinds[i].keys;
    return NULL;
}

static bool list_has(const char *keys, const char *key) {
    size_t len = strlen(key);
    for (const char *at = keys; len && (at = strstr(at, key)); at += len)
        if ((at == keys || at[-1] == ' ') && (!at[len] || at[len] == ' ')) return !strchr(key, ' ');
    return false;
}

const sn_option *sn_settings_find(const char *of, const char *key) {
    for (size_t k = 0; k < N_KINDS; k++) {
        if ((of && strcmp(kinds[k].name, of)) || !list_has(kinds[k].keys, key)) continue;
        for (const sn_option_group *const *g = kinds[k].groups; *g; g++)
            for (size_t i = 0; i < (*g)->n; i++)
                if (!strcmp((*g)->options[i].name, key)) return &(*g)->options[i];
    }
    return NULL;
}

sn_option sn_settings_option(sn_settings *settings, const sn_option *option) {
    sn_option own = *option;
    own.target = (char *)settings + ((char *)option->target - (char *)&sn_program_settings);
    return own;
}

sn_status sn_settings_set(sn_settings *settings, const char *of, const char *key, const char *text, sn_err *err) {
    const sn_option *option = sn_settings_find(of, key);
    if (!option) return sn_fail(err, SN_REFUSED, "'%.60s' is no option of a %s", key, of);
    const sn_option own = sn_settings_option(settings, option);
    return sn_option_set(&own, text, err) ? sn_err_context(err, "%s", key) : SN_OK;
}

void sn_settings_init(sn_settings *settings) { *settings = defaults; }

void sn_settings_fini(sn_settings *settings) {
    sn_strings *lists[] = {&settings->common.join, &settings->common.only, &settings->common.deny,
                           &settings->sampling.stop};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        free(lists[i]->items);
        *lists[i] = (sn_strings){0};
    }
}

int64_t sn_random_seed(void) {
    uint64_t seed;
    sn_random(&seed, sizeof seed);
    return (int64_t)(seed >> 11);
}

static void fill(double *value, double recommended, double otherwise) {
    if (isnan(*value)) *value = isnan(recommended) ? otherwise : recommended;
}

/* Who gives --top-k alone wants to sample; 0.8 is llama.cpp's temperature. */
void sn_sampling_settings_fill(sn_sampling_settings *s, const sn_sampling_hint *answer) {
    static const sn_sampling_hint none = {NAN, NAN, NAN, NAN, NAN};
    const sn_sampling_hint *hint = answer ? answer : &none;
    if (s->top_k == SN_INT_UNSET) s->top_k = isnan(hint->top_k) ? 0 : (int64_t)hint->top_k;
    fill(&s->min_p, hint->min_p, 0);
    fill(&s->top_p, hint->top_p, answer ? 0.95 : 1);
    fill(&s->repeat_penalty, hint->repeat_penalty, 1);
    const double asked = s->top_k || s->top_p < 1 || s->min_p > 0 ? 0.8 : 0;
    fill(&s->temperature, hint->temperature, answer ? 0.7 : asked);
}

sn_sampling sn_settings_sampling(const sn_settings *settings, const sn_sampling_hint *hint) {
    sn_sampling_settings o = settings->sampling;
    sn_sampling_settings_fill(&o, settings->api.answer ? hint : NULL);
    return (sn_sampling){.temperature = o.temperature,
                         .top_k = (int)o.top_k,
                         .top_p = o.top_p,
                         .min_p = o.min_p,
                         .repeat_penalty = o.repeat_penalty,
                         .seed = (uint64_t)(o.seed == SN_INT_UNSET ? sn_random_seed() : o.seed)};
}

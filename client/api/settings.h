/* Settings: everything that a user may say about a session over a swarm, from addresses to sampling, with the tables of
 * options (base/options.h) that give each value its word, its range and its help text.
 *
 * The tables are shared by the command line of `swarm` and by the keys of swarm_options_set. Their targets point into
 * sn_program_settings, the one instance of the program, which the command line's parser fills. Every other instance
 * (sn_settings_init, of the handles of include/swarm.h) is filled by sn_settings_set, which takes from a target only
 * its place in the struct; the library neither reads nor writes sn_program_settings.
 *
 * An instance belongs to one thread until it is filled, and does not change afterwards. It borrows the texts that it is
 * given. */
#ifndef SN_CLIENT_API_SETTINGS_H
#define SN_CLIENT_API_SETTINGS_H

#include "base/options.h"
#include "client/generate/sampler.h"
#include "client/tune/training.h"
#include "model/sampling_hint.h"
#include "net/dht.h"

typedef enum sn_route_choice { SN_ROUTE_LATENCY, SN_ROUTE_THROUGHPUT } sn_route_choice;
extern const sn_word sn_route_words[];

typedef struct sn_common_settings {
    const char *model, *model_id, *manifest, *adapter;
    size_t cache_max;
    sn_strings join;
    const char *dht, *identity, *swarm_key, *emulated_link;
    sn_strings only, deny;
    sn_block_range local;
    int route;          /* sn_route_choice */
    int64_t route_seed; /* SN_INT_UNSET: random */
    int64_t reroute_every_ms, timeout_ms, max_retries, prefill_depth;
    size_t replay_memory;
    const char *request_id;   /* NULL: random */
    int kv_dtype, wire_dtype; /* sn_kv_dtype, sn_dtype */
    size_t kv_memory;         /* of local blocks; SN_SIZE_UNSET: what the longest timeline needs */
    bool push, kv_replica;
    const char *device, *isa; /* isa NULL: the best */
    int64_t threads;
    const char *cache; /* folder of what is remembered from run to run; NULL: nothing is */
} sn_common_settings;

typedef struct sn_sampling_settings {
    double temperature, top_p, min_p, repeat_penalty; /* NAN: as sn_sampling_settings_fill says; so is top_k */
    int64_t top_k, seed, max_tokens, ctx; /* SN_INT_UNSET: a random seed; max_tokens 0: to the end of the context */
    sn_strings stop;
    bool ignore_eos;
} sn_sampling_settings;

/* With a model, the method is SN_DRAFT_AUTO or SN_DRAFT_OFF. */
typedef enum sn_draft_method { SN_DRAFT_AUTO, SN_DRAFT_OFF, SN_DRAFT_NGRAM, SN_DRAFT_MTP } sn_draft_method;
typedef struct sn_draft_settings {
    int method;        /* sn_draft_method */
    const char *model; /* path of a draft model, or NULL */
    int64_t tokens;
} sn_draft_settings;

/* A session in a file. */
typedef struct sn_session_settings {
    const char *save, *load, *key;
} sn_session_settings;

typedef struct sn_audit_settings {
    double share; /* 0: no audit */
    int64_t seed; /* SN_INT_UNSET: random */
    bool local, hold;
    const char *evidence; /* folder; NULL: no evidence is saved */
} sn_audit_settings;

/* What only the C API has. */
typedef struct sn_api_settings {
    sn_block_range blocks;     /* of a session of hidden states */
    int64_t timeline;          /* expected tokens of a session, beside those of a saved one */
    int64_t logprobs;          /* tokens that a token's event lists; -1: not even its own probability is computed */
    bool answer;               /* the text is a turn of a conversation */
    const char *prefix_scope;  /* only prefixes of generations with this text are found again; NULL: none */
    int parts;                 /* sn_model_parts */
    const char *chat_template; /* file with a chat template, instead of the model's */
    bool hashes, tensors;      /* in the description of a model */
    const char *hub, *hub_token, *hub_cache; /* where models are fetched by name; NULL: Hugging Face's, none, none */
} sn_api_settings;
typedef enum sn_model_parts { SN_PARTS_ALL, SN_PARTS_TOKENIZER } sn_model_parts;

typedef struct sn_settings {
    sn_common_settings common;
    sn_sampling_settings sampling;
    sn_draft_settings draft;
    sn_session_settings session;
    sn_audit_settings audit;
    sn_training_settings training;
    sn_api_settings api;
} sn_settings;

/* The settings into which the tables' targets point: the defaults, until the program parses a command line. */
extern sn_settings sn_program_settings;

extern const sn_option_group sn_group_model;        /* --model */
extern const sn_option_group sn_group_chosen_model; /* the same, of commands that use a model of the swarm without it */
extern const sn_option_group sn_group_adapter;      /* --adapter */
extern const sn_option_group sn_group_connection;   /* --join, --dht, --identity, ... */
extern const sn_option_group sn_group_chain;        /* --local, --only, --push, ... */
extern const sn_option_group sn_group_device;       /* --threads, --device, --isa */
extern const sn_option_group sn_group_sampling;     /* --max-tokens, --temperature, ... */
extern const sn_option_group sn_group_draft;        /* --draft, --draft-model, --draft-tokens */
extern const sn_option_group sn_group_bench_draft;
extern const sn_option_group sn_group_session; /* --save, --load, --session-key */
extern const sn_option_group sn_group_audit;   /* --audit, ... */

/* Of a training (settings_training.c). */
extern const sn_option_group sn_group_data;     /* --data, --eval-data, --seq */
extern const sn_option_group sn_group_method;   /* --method, --rank, ... */
extern const sn_option_group sn_group_training; /* --steps, --lr, --resume, ... */

/* -- settings by key, for the C API */

void sn_settings_init(sn_settings *settings); /* the defaults */
void sn_settings_fini(sn_settings *settings); /* accepts a zeroed struct */
/* Sets one value; of: a kind of options, as swarm_options_describe has, which the key must belong to. `text` must live
 * as long as the settings. SN_REFUSED with a sentence that names the key. */
sn_status sn_settings_set(sn_settings *settings, const char *of, const char *key, const char *text,
                          sn_err *err) SN_MUST_USE;
/* The option of a key; NULL: these settings have none of this name. of NULL: any. */
const sn_option *sn_settings_find(const char *of, const char *key);
/* The keys of a kind of settings, separated by spaces; NULL: there is no such kind. */
const char *sn_settings_keys(const char *of);
/* Copies of an option whose target lies in these settings. */
sn_option sn_settings_option(sn_settings *settings, const sn_option *option);

/* Whether the settings name a swarm: join or dht. */
static inline bool sn_settings_has_swarm(const sn_settings *s) { return s->common.join.n || s->common.dht; }

/* Fills in what was not said. answer: what the model's makers recommend, for an answer of a conversation, which is
 * sampled so, else with temperature 0.7 and top-p 0.95. NULL: a text is continued, with the most likely tokens, or with
 * temperature 0.8 where another setting asks for sampling. */
void sn_sampling_settings_fill(sn_sampling_settings *settings, const sn_sampling_hint *answer);
/* The sampling that the settings describe, filled in as above by whether they are of an answer; with a random seed when
 * none is given. */
sn_sampling sn_settings_sampling(const sn_settings *settings, const sn_sampling_hint *hint);

/* A random number for --seed and others like it: 53 bits, which JSON readers that hold numbers as doubles keep. */
int64_t sn_random_seed(void);

#endif

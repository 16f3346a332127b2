/* Options that several commands of `swarm` share: their values, and the groups that declare them (base/options.h).
 *
 * The program runs one command on one thread, so the values are global variables. They hold the defaults until
 * sn_cmd_run has parsed the command line, and do not change afterwards. */
#ifndef SN_CLI_OPTIONS_H
#define SN_CLI_OPTIONS_H

#include "base/options.h"
#include "client/generate/sampler.h"

typedef enum sn_cli_route { SN_CLI_ROUTE_LATENCY, SN_CLI_ROUTE_THROUGHPUT } sn_cli_route;
extern const sn_word sn_cli_route_words[];

typedef struct sn_cli_common_options {
    const char *model, *adapter;
    sn_strings join;
    const char *dht, *identity, *swarm_key, *emulated_link;
    sn_strings only, deny;
    sn_block_range local;
    int route;          /* sn_cli_route */
    int64_t route_seed; /* SN_INT_UNSET: random */
    int64_t reroute_every_ms, timeout_ms, max_retries, prefill_depth;
    const char *request_id;   /* NULL: random */
    int kv_dtype, wire_dtype; /* sn_kv_dtype, sn_dtype */
    size_t kv_memory;         /* of local blocks; SN_SIZE_UNSET: what the longest timeline needs */
    bool push, kv_replica;
    const char *device, *isa; /* isa NULL: the best */
    int64_t threads;
    int log_level; /* sn_log_level */
    bool json, json_log;
} sn_cli_common_options;
extern sn_cli_common_options sn_cli_options;

extern const sn_option_group sn_group_model;   /* --model */
extern const sn_option_group sn_group_adapter; /* --adapter */
extern const sn_option_group sn_group_chain;   /* --join, --local, --timeout, ... */
extern const sn_option_group sn_group_device;  /* --threads, --device, --isa */
extern const sn_option_group sn_group_log;     /* --log-level, --json-log */

/* Sampling, of generate and chat. */
typedef struct sn_sampling_options {
    double temperature, top_p, min_p, repeat_penalty; /* temperature NAN: 0, or 0.8 where others ask for sampling */
    int64_t top_k, seed, max_tokens, ctx; /* seed SN_INT_UNSET: random; max_tokens 0: to the end of the context */
    sn_strings stop;
    bool ignore_eos;
} sn_sampling_options;
extern sn_sampling_options sn_cli_sampling;
extern const sn_option_group sn_group_sampling;
/* The sampling that the options describe, with a random seed when none is given. */
sn_sampling sn_cli_make_sampling(void);

/* Draft tokens, of generate, chat and bench (options_draft.c). At most one of method and model is set. */
typedef enum sn_cli_draft_method { SN_CLI_DRAFT_OFF, SN_CLI_DRAFT_NGRAM } sn_cli_draft_method;
typedef struct sn_draft_options {
    int method;        /* sn_cli_draft_method */
    const char *model; /* path of a draft model, or NULL */
    int64_t tokens;
} sn_draft_options;
extern sn_draft_options sn_cli_draft;
extern const sn_option_group sn_group_draft, sn_group_bench_draft;

/* A session in a file, of generate and chat (options_session.c). */
typedef struct sn_session_options {
    const char *save, *load, *key;
} sn_session_options;
extern sn_session_options sn_cli_session;
extern const sn_option_group sn_group_session;

/* The audit, of generate and chat (options_audit.c). */
extern const sn_option_group sn_group_audit;
bool sn_cli_wants_audit(void);
bool sn_cli_holds_text(void); /* text is printed when it was checked: --audit-hold, or --audit into a pipe or file */

/* Whether the options name a swarm: --join or --dht. */
static inline bool sn_cli_has_swarm(void) { return sn_cli_options.join.n || sn_cli_options.dht; }

/* A random number for --seed and others like it: 53 bits, which JSON readers that hold numbers as doubles keep. */
int64_t sn_cli_random_seed(void);

#endif

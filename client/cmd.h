/* What the commands of the `swarm` program share: options, opening a model with its chain, exit codes, interrupts,
 * progress. Private to client/. The program runs one command, on one thread, so options are plain globals that the
 * tables point to. */
#ifndef SN_CLIENT_CMD_H
#define SN_CLIENT_CMD_H

#include "base/options.h"
#include "client/audit.h"
#include "client/saved.h"
#include "client/chain.h"
#include "client/generate.h"
#include "client/head.h"
#include "client/link.h"
#include "client/tune/trained.h"
#include "model/tokenizer.h"

#include <jansson.h>
#include <signal.h>

/* -- exit codes ------------------------------------------------------------------------------------------------------
 */

enum { SN_EXIT_OK = 0, SN_EXIT_NETWORK = 1, SN_EXIT_USAGE = 2, SN_EXIT_RESOURCES = 3, SN_EXIT_INTERRUPTED = 130 };
#define SN_EXIT_CODES                                                                                                  \
    "Exit codes: 0 done; 1 the swarm or the network failed, trying again may help; 2 wrong usage or bad input; 3 out " \
    "of "                                                                                                              \
    "memory, or a device failed; 130 interrupted."

/* A command: argv[0] is its name. Prints its own errors; returns the exit code. */
int sn_cmd_generate(int argc, char **argv);
int sn_cmd_chat(int argc, char **argv);
int sn_cmd_forward(int argc, char **argv);
int sn_cmd_eval(int argc, char **argv);
int sn_cmd_bench(int argc, char **argv);
int sn_cmd_tune(int argc, char **argv);
int sn_cmd_tokenize(int argc, char **argv);
int sn_cmd_inspect(int argc, char **argv);
int sn_cmd_route(int argc, char **argv);
int sn_cmd_status(int argc, char **argv);
int sn_cmd_keygen(int argc, char **argv);
int sn_cmd_verify(int argc, char **argv);

/* What a command does once its options are read. *code is what it exits with after SN_OK, SN_EXIT_OK unless it says
 * else. */
typedef sn_status (*sn_cmd_body)(const sn_options *options, int *code, sn_err *err);

/* A command from beginning to end: reads the options, shows help, version or what is wrong with them, sets up the log,
 * runs the body, prints its error on stderr, and gives the exit code. */
int sn_cmd_run(const sn_command *command, int argc, char **argv, sn_cmd_body body);

/* -- options ---------------------------------------------------------------------------------------------------------
 */

typedef struct sn_client_options {
    const char *model, *identity, *swarm_key, *link, *device, *isa, *log_level, *route, *request_id, *adapter;
    sn_strings join, only, deny;
    const char *dht;
    sn_block_range local;
    int64_t timeout_s, max_retries, steps_ahead, threads, route_seed, replan_s;
    const char *kv_dtype, *wire; /* NULL: f32 */
    size_t kv_memory;
    bool push, kv_replica, json, json_log;
} sn_client_options;
extern sn_client_options sn_given;

extern const sn_option_group sn_group_model;  /* --model */
extern const sn_option_group sn_group_chain;  /* --join, --local, --timeout, ... */
extern const sn_option_group sn_group_device; /* --threads, --device, --isa */
extern const sn_option_group sn_group_log;    /* --log-level, --json-log */
extern const sn_option_group sn_group_adapter; /* --adapter */
extern const sn_option_group sn_group_audit;  /* --audit, ... */

/* What --route and --route-seed say. */
sn_status sn_route_given(bool *throughput, uint64_t *seed, sn_err *err) SN_MUST_USE;

/* Sampling, shared by generate and chat. */
typedef struct sn_sampling_options {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k, seed, max_tokens, ctx;
    sn_strings stop;
    bool ignore_end;
} sn_sampling_options;
extern sn_sampling_options sn_given_sampling;
extern const sn_option_group sn_group_sampling;
/* A seed of chance when none is given and one is needed. */
sn_sampling sn_sampling_given(void);

/* Guessing ahead (cmd_draft.c), of generate, chat and bench. */
typedef struct sn_draft_options {
    const char *how, *model; /* "ngram"; a model's path; one of them, or none */
    int64_t tokens;
} sn_draft_options;
extern sn_draft_options sn_given_draft;
extern const sn_option_group sn_group_draft;
sn_status sn_draft_given(bool *any, sn_err *err) SN_MUST_USE; /* checks them */

/* -- a model and its chain -------------------------------------------------------------------------------------------
 */

typedef struct sn_setup {
    sn_model *model;
    const sn_hparams *hp;
    sn_tokenizer *tokenizer; /* NULL when the model has none and none was needed */
    sn_device *device;
    sn_head *head;
    sn_link *link; /* NULL when no node is joined */
    sn_audit *audit; /* NULL when none was asked for */
    sn_chain *chain;
    sn_draft draft; /* without a source when none was asked for */
    sn_draft_model *draft_model;
    sn_trained trained; /* what --adapter names; zeroed: nothing */
    bool plan_only; /* the chain opens no sessions */
    char evidence[1024]; /* folder */
} sn_setup;

/* Opens model, device and head, and the tokenizer (which may be missing unless needed). */
sn_status sn_setup_open(sn_setup *setup, bool needs_tokenizer, sn_err *err) SN_MUST_USE;
/* Loads the folder that --adapter names. SN_REFUSED when it says that it was trained for other weights: of the same shapes, it would
 * fit and be nonsense. One that does not say is taken, with a word on stderr. *out is to be freed in any case. */
sn_status sn_setup_adapter(const sn_model *model, sn_trained *out, sn_err *err) SN_MUST_USE;
/* Opens the link to the swarm that the options name; none when they name nobody. */
sn_status sn_setup_link(sn_setup *setup, sn_err *err) SN_MUST_USE;
/* Opens the chain as the options say, for timelines of at most max_tokens. */
sn_status sn_setup_chain(sn_setup *setup, int max_tokens, bool every_block, sn_err *err) SN_MUST_USE;
/* What is to guess ahead, as the options say, in a text chosen so and of at most max_context tokens. */
sn_status sn_setup_draft(sn_setup *setup, const sn_sampling *sampling, int max_context, sn_err *err) SN_MUST_USE;
sn_draft *sn_setup_drafts(sn_setup *setup); /* NULL: nothing */
void sn_setup_close(sn_setup *setup);
/* The audit that was asked for, of a chain with these options, into setup->audit. */
sn_status sn_setup_audit(sn_setup *setup, const sn_chain_options *chain, sn_err *err) SN_MUST_USE;
bool sn_audit_is_given(void);
json_t *sn_audit_json(const sn_audit *audit);
void sn_audit_print(const sn_audit *audit); /* on stderr */
/* -- a session in a file (cmd_saved.c) */

typedef struct sn_session_options {
    const char *save, *load, *key;
} sn_session_options;
extern sn_session_options sn_given_session;
extern const sn_option_group sn_group_session;
/* Checks the options; *out: what --load reads, or NULL. */
sn_status sn_session_open(const sn_setup *setup, sn_saved **out, sn_err *err) SN_MUST_USE;
/* What --save asks for. */
sn_status sn_session_save(const sn_setup *setup, const sn_generator *generator, const json_t *more, sn_err *err) SN_MUST_USE;

/* A text on stdout was wrong: says so on stderr, and prints again what stands of it. */
sn_status sn_void_print(const char *kept, size_t len, sn_err *err) SN_MUST_USE;
/* SN_REFUSED: what --adapter names chooses labels, and this command writes text. */
sn_status sn_setup_writes(const sn_setup *setup, sn_err *err) SN_MUST_USE;
/* swarm eval of a classifier (eval_labels.c): how often it is right over the file's texts. */
sn_status sn_eval_labels(sn_setup *setup, const char *path, sn_err *err) SN_MUST_USE;
/* Timeline length asked for by --ctx, or `usual`, and never more than the model's context. */
sn_status sn_setup_context(const sn_setup *setup, int64_t asked, int64_t usual, int *out, sn_err *err) SN_MUST_USE;

/* -- input and output ------------------------------------------------------------------------------------------------
 */

/* A file, or standard input when the path is "-". */
sn_status sn_read_input(const char *path, size_t limit, sn_buf *out, sn_err *err) SN_MUST_USE;
/* A JSON array of token ids. Free with sn_ids_fini. */
sn_status sn_read_ids(const char *path, sn_ids *out, sn_err *err) SN_MUST_USE;
json_t *sn_json_ids(const int32_t *ids,
                    size_t n); /* NULL when memory is out, which the json_*_set_new functions take */
json_t *sn_json_text(const sn_buf *text);
/* What strangers call themselves goes to a terminal and into JSON: plain characters only. */
void sn_make_plain(char *text);
/* Prints one object and a newline on stdout, and frees it. */
sn_status sn_print_json(json_t *object, sn_err *err) SN_MUST_USE;
/* Pushes out what stdout holds; SN_REFUSED when nobody takes it (a closed pipe, a full disk). */
sn_status sn_flush_stdout(sn_err *err) SN_MUST_USE;

/* After this, SIGINT sets sn_interrupted; a second one while it is set ends the process at once. */
extern volatile sig_atomic_t sn_interrupted;
void sn_catch_interrupts(void);

/* -- progress --------------------------------------------------------------------------------------------------------
 */

/* Shows on stderr that something goes on, once it has taken a second: on a terminal a line that is rewritten and in the
 * end erased, else a line every ten seconds. A thread of its own shows it, so that a call that blocks shows too. */
typedef struct sn_progress_shown sn_progress_shown;
sn_progress_shown *sn_progress_begin(const char *what); /* NULL (which the others take) when it cannot be shown */
void sn_progress_set(sn_progress_shown *shown, size_t done, size_t of);
void sn_progress_end(sn_progress_shown **shown);

#endif

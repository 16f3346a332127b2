/* What `swarm bench` is made of: cases, the nodes that it starts, one case measured, reports. Private to client/.
 *
 * A case is one line of the table. Decode at a context of C begins when the chain holds C tokens; the prompt is read at
 * the same place, and forgotten again. Every session and every repeat has other tokens, so no cache of prefixes helps. */
#ifndef SN_CLIENT_BENCH_H
#define SN_CLIENT_BENCH_H

#include "client/chain.h"
#include "client/cmd.h"
#include "net/shaped.h"

enum { SN_BENCH_LIST_MAX = 16, SN_BENCH_NODES_MAX = 32, SN_BENCH_SESSIONS_MAX = 256 };
enum { SN_BENCH_VIRTUAL_TOKENS = 16 }; /* of the prompts that are trained */

typedef enum sn_bench_kind {
    SN_BENCH_SPEED,   /* prompt, first token, decode */
    SN_BENCH_FORWARD, /* hidden states through the chain and nothing else */
    SN_BENCH_BESIDE,  /* decode while another client's prompts come in */
    SN_BENCH_KILL,    /* a node ends in the middle of a text */
    SN_BENCH_DRAFT,   /* a text guessed ahead, or not */
    SN_BENCH_TRAIN,   /* steps of training: forward, loss, backward, optimizer */
} sn_bench_kind;

typedef struct sn_bench_case {
    sn_bench_kind kind;
    int nodes;        /* that we start, with equal cuts; 0: a swarm that runs, or local blocks */
    int threads;      /* of each node, and of the client's head */
    const char *link; /* NULL or "none": as it is */
    int sessions;     /* at once, a thread each; of FORWARD: sequences; of TRAIN: sequences of a step */
    int context;
    int beside;       /* of BESIDE: tokens of such a prompt */
    const char *kill; /* of KILL: "replay", "replica" or "handover" */
    const char *draft; /* of DRAFT: "off", "ngram" or "model" */
    bool repeats;      /* of DRAFT: a text that repeats itself */
    const char *train; /* of TRAIN: the method, as `swarm tune` names it */
} sn_bench_case;

/* What holds for all cases of a run. */
typedef struct sn_bench_plan {
    const sn_model *model;
    const sn_hparams *hp;
    int prompt_tokens, new_tokens, repeat, warmup;
    int sessions_max, context_max; /* of all cases */
    int more_max;                  /* tokens behind the context, at most: a prompt's, or new ones */
    bool push, local;
    sn_kv_dtype kv_dtype;
    sn_dtype wire;
    sn_strings join, node_options;
    int timeout_ms, steps_ahead; /* as of sn_chain_options */
} sn_bench_plan;

typedef struct sn_bench_spread {
    double median, low, high; /* over the repeats */
} sn_bench_spread;
/* Sorts the values. All 0 when there are none. */
sn_bench_spread sn_bench_spread_of(double *values, size_t n);
/* The value below which the fraction `p` of the sorted values lies (the nearest one above), 0 when there are none. */
double sn_bench_percentile(const double *sorted, size_t n, double p);

/* One hop, per decode step (of FORWARD: per step). */
typedef struct sn_bench_hop {
    char node[80];
    int first, end;
    double network_ms, queue_ms, compute_ms;
} sn_bench_hop;

typedef struct sn_bench_row {
    sn_bench_case of;
    sn_bench_spread prefill_tok_s, decode_tok_s, ttft_ms; /* tokens/s: of all sessions together */
    sn_bench_spread forward_tok_s;                        /* of FORWARD */
    sn_bench_spread train_tok_s;                          /* of TRAIN: there and back, virtual tokens not counted */
    sn_bench_spread recovery_ms;                          /* of KILL: the longest wait for a token behind the kill */
    bool same_text;                                       /* of KILL and DRAFT: as without it */
    size_t draft_tokens, draft_passes, guessed, guessed_right; /* of DRAFT, of all repeats: chosen behind the first, passes for them */
    sn_hash text;                                         /* of DRAFT: all that was written */
    double *gaps; /* sorted milliseconds between tokens, of all sessions and repeats; the row's */
    size_t n_gaps;
    sn_bench_hop hops[SN_HOPS_MAX];
    size_t n_hops;
} sn_bench_row;

/* -- bench_nodes.c: processes on this machine, each ended by its id, at the latest when this one ends */

typedef struct sn_bench_nodes sn_bench_nodes;

/* Starts c->nodes nodes with equal cuts, and waits until all are ready. */
sn_status sn_bench_nodes_start(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes **out,
                               sn_err *err) SN_MUST_USE;
/* One more with the blocks of node `i`, under the name "benchK" of its number K. */
sn_status sn_bench_nodes_double(sn_bench_nodes *nodes, size_t i, sn_err *err) SN_MUST_USE;
/* Sends the node of this name ("benchK", what follows is ignored) SIGKILL or SIGTERM; *which: its number. False: there is
 * none. */
bool sn_bench_nodes_signal(sn_bench_nodes *nodes, const char *name, int signal_number, size_t *which);
/* Waits until it has ended (10 s at most, then it is killed), and starts it anew with the same blocks. */
sn_status sn_bench_nodes_again(sn_bench_nodes *nodes, size_t which, sn_err *err) SN_MUST_USE;
/* Addresses of all, to join. Valid until the next start. */
size_t sn_bench_nodes_addresses(const sn_bench_nodes *nodes, const char **out, size_t room);
void sn_bench_nodes_end(sn_bench_nodes **nodes); /* NULL-safe */

/* -- bench_head.c: embeddings and the choice of tokens for sessions on many threads, whose rows go through the head
 * together when they come together */

typedef struct sn_bench_head sn_bench_head;

sn_status sn_bench_head_new(const sn_model *model, int threads, int sessions, sn_bench_head **out,
                            sn_err *err) SN_MUST_USE;
void sn_bench_head_free(sn_bench_head **head);
sn_device *sn_bench_head_device(sn_bench_head *head); /* for local blocks; only while nobody calls the two below */
sn_head *sn_bench_head_own(sn_bench_head *head);      /* the same */
sn_status sn_bench_head_embed(sn_bench_head *head, const int32_t *ids, int n, float *rows, sn_err *err) SN_MUST_USE;
/* A session's row is under way, and it will ask for the best token after it: others who have one already wait a moment for it. Either it
 * asks, or it says that it will not: what it waited for failed. */
void sn_bench_head_expect(sn_bench_head *head);
void sn_bench_head_give_up(sn_bench_head *head);
/* The best token after `row` (n_embd). Expected before. */
sn_status sn_bench_head_best(sn_bench_head *head, const float *row, int32_t *out, sn_err *err) SN_MUST_USE;

/* -- bench_draft.c: a text written by a generator, with guesses or without */

typedef struct sn_bench_draft sn_bench_draft;

sn_status sn_bench_draft_new(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_head *head, sn_bench_draft **out,
                             sn_err *err) SN_MUST_USE;
void sn_bench_draft_free(sn_bench_draft **draft);
/* Writes the text of this repeat (negative: to warm up) over the chain, and adds to the row. */
sn_status sn_bench_draft_write(sn_bench_draft *draft, sn_chain *chain, int repeat, double *tok_s, sn_bench_row *row,
                               sn_err *err) SN_MUST_USE;
void sn_bench_draft_compare(sn_bench_row *rows, size_t n); /* whose texts are the ones without guesses */

/* -- bench_run.c */

uint64_t sn_bench_chance(uint64_t *state); /* splitmix64 */

/* nodes: NULL when none were started. shown may be NULL. *row is freed with sn_bench_row_fini, also after a failure. */
sn_status sn_bench_run(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                       sn_progress_shown *shown, sn_err *err) SN_MUST_USE;
void sn_bench_row_fini(sn_bench_row *row);
/* A link to the nodes that were started (NULL: to those that the plan joins), over the case's connection. */
sn_status sn_bench_link(const sn_bench_plan *plan, const sn_bench_case *c, const sn_bench_nodes *nodes, sn_link **out,
                        sn_err *err) SN_MUST_USE;

/* -- bench_train.c: the same for a case of TRAIN */

sn_status sn_bench_train(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                         sn_progress_shown *shown, sn_err *err) SN_MUST_USE;

/* -- bench_report.c, bench_html.c */

/* CPU, what of its instructions matters, cores, memory, kernel, governor where it can be read, version, date. */
json_t *sn_bench_machine(void);
/* {"command", "machine", "model", "rows": [{"what", "nodes", ..., "prefill_tok_s", "decode_tok_s", "ttft_ms", "itl_ms":
 * {"p50", "p95", "p99"}, "hops"}]}: medians, the range of the repeats beside them as *_range. */
json_t *sn_bench_json(const sn_bench_plan *plan, const char *command, const sn_bench_row *rows, size_t n);
const char *sn_bench_what(const sn_bench_case *c); /* "speed", "forward", "beside", "train", or how a node was lost */
/* What was measured with: lengths of prompts, or of sequences that were trained. */
void sn_bench_texts(const sn_bench_plan *plan, const sn_bench_row *rows, size_t n, char out[80]);
void sn_bench_print(FILE *out, const sn_bench_plan *plan, const sn_bench_row *rows, size_t n);
sn_status sn_bench_csv(const char *path, const sn_bench_plan *plan, const sn_bench_row *rows, size_t n, sn_err *err) SN_MUST_USE;
/* One file with the tables and, where there are curves, plots; it needs nothing from elsewhere. */
sn_status sn_bench_html(const char *path, const sn_bench_plan *plan, const char *command, const sn_bench_row *rows,
                        size_t n, sn_err *err) SN_MUST_USE;

#endif

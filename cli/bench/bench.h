/* The parts of `swarm bench`: cases, the nodes that it starts, the measurement of a case, reports.
 *
 * A case (sn_bench_case) is one row of the table (sn_bench_row). With a context of C tokens, prefill and decode both
 * begin at position C: the chain is filled with C tokens once, the prompt is prefilled there, and the chain is rewound.
 * Every session and every repeat has other tokens, so that the prefix cache of a node never applies. The main thread
 * runs the cases; run.c starts a thread for each session. */
#ifndef SN_CLI_BENCH_BENCH_H
#define SN_CLI_BENCH_BENCH_H

#include "cli/io.h"
#include "cli/progress.h"
#include "cli/setup.h"
#include "net/transport/emulated_link.h"

enum { SN_BENCH_NODES_MAX = 32, SN_BENCH_SESSIONS_MAX = 256 };
enum { SN_BENCH_VIRTUAL_TOKENS = 16 }; /* of prompts that are trained */

typedef enum sn_bench_kind {
    SN_BENCH_SPEED,      /* prefill, time to first token, decode */
    SN_BENCH_ANSWERS,    /* a prompt and its text, each session by itself, as clients of a server do */
    SN_BENCH_FORWARD,    /* forward passes of the chain, without LM head and sampling */
    SN_BENCH_CONCURRENT, /* decode during the prefills of another client */
    SN_BENCH_KILL,       /* a node is lost during decoding */
    SN_BENCH_DRAFT,      /* decode with draft tokens, or without */
    SN_BENCH_TRAIN,      /* training steps: forward, loss, backward, optimizer */
} sn_bench_kind;

typedef struct sn_bench_case {
    sn_bench_kind kind;
    int nodes;        /* to start, with equal parts of the blocks; 0: a running swarm, or local blocks */
    int threads;      /* of each node, and of this process on a CPU */
    const char *link; /* emulated link; NULL or "none": no emulation */
    int sessions;     /* concurrent, a thread each; of FORWARD: sequences; of TRAIN: sequences of a step */
    int context;
    int concurrent_prefill; /* of CONCURRENT: tokens of each prompt */
    const char *kill;       /* of KILL: "replay", "replica" or "migration" */
    const char *draft;      /* of DRAFT: "off", "ngram", "mtp" or "model" */
    bool repetitive;        /* of DRAFT: the text repeats itself */
    const char *train;      /* of TRAIN: the method, one of sn_method_words */
} sn_bench_case;

/* What all cases of a run share. */
typedef struct sn_bench_plan {
    const sn_model *model;
    const sn_hparams *hp;
    int prompt_tokens, new_tokens, repeat, warmup;
    int sessions_max, context_max; /* over all cases */
    int extra_tokens_max;          /* most tokens after the context: a prompt, new tokens, or both */
    bool push, local;
    sn_device_id device; /* of the LM head, and of local blocks */
    sn_kv_dtype kv_dtype;
    sn_dtype wire_dtype;
    sn_strings join, node_options;
    int timeout_ms, prefill_depth; /* as in sn_chain_limits */
} sn_bench_plan;

typedef struct sn_bench_spread {
    double median, low, high; /* over the repeats */
} sn_bench_spread;
/* Sorts the values. All 0 when there are none. */
sn_bench_spread sn_bench_spread_of(double *values, size_t n);
/* The percentile p (0 to 1) of the sorted values by nearest rank; 0 when there are none. */
double sn_bench_percentile(const double *sorted, size_t n, double p);

/* Times of one hop per decode step (of FORWARD: per step). */
typedef struct sn_bench_hop {
    char node[80];
    int first, end;
    double network_ms, queue_ms, compute_ms;
} sn_bench_hop;

typedef struct sn_bench_row {
    sn_bench_case config;
    sn_bench_spread prefill_tok_s, decode_tok_s, ttft_ms; /* tokens/s of all sessions together */
    sn_bench_spread answer_tok_s;                         /* of ANSWERS: from the first prompt to the last token */
    sn_bench_spread forward_tok_s;                        /* of FORWARD */
    sn_bench_spread train_tok_s;                          /* of TRAIN: forward and backward, without virtual tokens */
    sn_bench_spread recovery_ms;                          /* of KILL: longest time between tokens after the kill */
    bool same_text;                                       /* of KILL and DRAFT: the text is that of a run without */
    /* of DRAFT, sums over the repeats: tokens after the first, forward passes for them, draft tokens, accepted ones */
    size_t decode_tokens, decode_steps, n_drafted, n_accepted;
    sn_hash text;   /* of DRAFT: hash of all token ids */
    double *itl_ms; /* inter-token latencies of all sessions and repeats, sorted; owned by the row */
    size_t n_itl;
    sn_bench_hop hops[SN_HOPS_MAX];
    size_t n_hops;
} sn_bench_row;

/* -- nodes.c: node processes on this machine. They end when this process ends -- */

typedef struct sn_bench_nodes sn_bench_nodes;

/* Starts c->nodes nodes with equal parts of the blocks, and waits until all are ready. */
sn_status sn_bench_nodes_start(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes **out,
                               sn_err *err) SN_MUST_USE;
/* Starts another node with the blocks of node `i`. Node number K has the name "benchK". */
sn_status sn_bench_nodes_duplicate(sn_bench_nodes *nodes, size_t i, sn_err *err) SN_MUST_USE;
/* Sends SIGKILL or SIGTERM to the node of this name ("benchK", the rest is ignored); *which: its number. False when
 * there is no such node. */
bool sn_bench_nodes_signal(sn_bench_nodes *nodes, const char *name, int signal_number, size_t *which);
/* Waits until the node has ended (after 10 s it is killed), and starts it again with the same blocks. */
sn_status sn_bench_nodes_restart(sn_bench_nodes *nodes, size_t which, sn_err *err) SN_MUST_USE;
/* Addresses of all nodes. Valid until the next start. */
size_t sn_bench_nodes_addresses(const sn_bench_nodes *nodes, const char **out, size_t capacity);
void sn_bench_nodes_stop(sn_bench_nodes **nodes); /* accepts NULL */

/* -- draft.c: decoding by a generator, with draft tokens or without -- */

typedef struct sn_bench_draft sn_bench_draft;

/* device: of the draft model. */
sn_status sn_bench_draft_new(const sn_bench_plan *plan, const sn_bench_case *c, sn_device *device, sn_lm_head *head,
                             sn_bench_draft **out, sn_err *err) SN_MUST_USE;
void sn_bench_draft_free(sn_bench_draft **draft);
/* Generates the text of this repeat (negative: warm-up) over the chain, and adds to the row. */
sn_status sn_bench_draft_generate(sn_bench_draft *draft, sn_chain *chain, int repeat, double *tok_s, sn_bench_row *row,
                                  sn_err *err) SN_MUST_USE;
void sn_bench_draft_compare(sn_bench_row *rows, size_t n); /* sets same_text of all DRAFT rows */

/* -- run.c: the measurement of a case -- */

/* nodes: NULL when none were started. bar may be NULL. Free *row with sn_bench_row_fini, also after a failure. */
sn_status sn_bench_run(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                       sn_progress_bar *bar, sn_err *err) SN_MUST_USE;
void sn_bench_row_fini(sn_bench_row *row);
/* Opens the device of this process. */
sn_status sn_bench_device(const sn_bench_plan *plan, const sn_bench_case *c, sn_device **out, sn_err *err) SN_MUST_USE;
/* A link to the nodes that were started (NULL: to those of the plan), emulated as the case says. */
sn_status sn_bench_link(const sn_bench_plan *plan, const sn_bench_case *c, const sn_bench_nodes *nodes, sn_link **out,
                        sn_err *err) SN_MUST_USE;

/* -- train.c: the measurement of a case of TRAIN -- */

sn_status sn_bench_train(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                         sn_progress_bar *bar, sn_err *err) SN_MUST_USE;

/* -- machine.c, report.c, html.c -- */

/* CPU, relevant instruction sets, cores, memory, kernel, governor where it can be read, version, date. */
json_t *sn_bench_machine(void);
/* {"command", "machine", "device", "model", "rows": [{"test", "nodes", ..., "prefill_tok_s", "decode_tok_s", "ttft_ms",
 * "itl_ms":
 * {"p50", "p95", "p99"}, "hops"}]}: medians, each with the range of the repeats as *_range. */
json_t *sn_bench_json(const sn_bench_plan *plan, const char *command, const sn_bench_row *rows, size_t n);
/* "speed", "answers", "forward", "concurrent", "draft", "train", or of KILL how the node is lost. */
const char *sn_bench_test_name(const sn_bench_case *c);
/* The lengths of prompts and outputs, or of training sequences, as text. */
void sn_bench_workload(const sn_bench_plan *plan, const sn_bench_row *rows, size_t n, char out[80]);
void sn_bench_print(FILE *out, const sn_bench_plan *plan, const sn_bench_row *rows, size_t n);
sn_status sn_bench_csv(const char *path, const sn_bench_plan *plan, const sn_bench_row *rows, size_t n,
                       sn_err *err) SN_MUST_USE;
/* One self-contained file with the tables and plots. */
sn_status sn_bench_html(const char *path, const sn_bench_plan *plan, const char *command, const sn_bench_row *rows,
                        size_t n, sn_err *err) SN_MUST_USE;

#endif

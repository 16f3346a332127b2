/* swarm bench --server: the speed of a server that speaks the OpenAI API.
 *
 * A case is a number of clients that send one request each at once and read its stream. Every client and repeat has a
 * prompt of its own, of common words in an order that depends on both and the seed only: all servers get the same
 * prompts, and no two have a prefix in common. One thread runs all clients (libcurl's multi interface). Tokens are
 * counted as the server's usage says, or else by chunks. */
#ifndef SN_CLI_BENCH_SERVER_H
#define SN_CLI_BENCH_SERVER_H

#include "cli/bench/bench.h"

typedef struct sn_server_plan {
    const char *url, *api_key_file; /* api_key_file: NULL: no key is sent */
    bool chat;                      /* /v1/chat/completions, else /v1/completions */
    sn_ints clients;
    int prompt_words, new_tokens, repeat, warmup, seed;
    int timeout_ms; /* of silence: without a token a request ends */
} sn_server_plan;

typedef struct sn_server_row {
    int clients;
    sn_bench_spread tok_s; /* of all clients together, over the repeats */
    double *first_ms,
        *between_ms;        /* of requests that succeeded: to the first token; between tokens, its mean. Sorted */
    size_t n_first, errors; /* requests that succeeded, and others; of both lists the length is n_first */
    int64_t prompt_tokens, answer_tokens; /* of requests that succeeded; prompt_tokens -1: the server did not say */
    sn_err error;                         /* the first one */
} sn_server_row;

typedef struct sn_server_result {
    char base[512], model[128]; /* http://HOST:PORT/v1; as /v1/models names it */
    sn_server_row rows[SN_INTS_MAX];
    size_t n;
} sn_server_result;

/* SN_RETRY: the server does not answer, or every request of a case failed; *out holds the cases until then. Free it
 * with sn_server_result_fini in any case. */
sn_status sn_server_measure(const sn_server_plan *plan, sn_server_result *out, sn_err *err) SN_MUST_USE;
void sn_server_result_fini(sn_server_result *result);

/* -- server_report.c -- */

/* {"command", "machine", "server": {"url", "model"}, "rows": [...]}; NULL: memory is out. */
json_t *sn_server_json(const sn_server_plan *plan, const char *command, const sn_server_result *result);
void sn_server_print(FILE *out, const sn_server_plan *plan, const sn_server_result *result);
sn_status sn_server_csv(const char *path, const sn_server_plan *plan, const sn_server_result *result,
                        sn_err *err) SN_MUST_USE;
sn_status sn_server_html(const char *path, const sn_server_plan *plan, const char *command,
                         const sn_server_result *result, sn_err *err) SN_MUST_USE;

#endif

/* The measurement of one case.
 *
 * sn_bench_run opens the sessions of a case: each has a chain over a link of its own, as a separate client would. A
 * measurement is a list of phases (do_fill, do_prompt, do_decode, ...); run_phase runs a phase in all sessions, each on
 * a thread of its own, and takes the wall time from the first start to the last end. run_repeats repeats the
 * measurement of the case's kind, first the warm-up repeats (index below 0), whose results are dropped. Times of the
 * hops are differences of sn_chain_hops around the decode phase of the first session. */
#include "cli/bench/bench.h"

#include "base/clock.h"
#include "base/random.h"
#include "client/generate/logprob.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 2048 }; /* rows of one sn_chain_step */
enum { REPLICA_WAIT_US = 60000000, REPLICA_POLL_MS = 500 };

typedef struct bench bench;

/* A session: a chain of its own over a link of its own, used by one thread at a time. */
typedef struct session {
    bench *b;
    sn_link *link;
    sn_chain *chain;
    float *in, *out; /* (CHUNK, n_embd) */
    float *logits;   /* (n_vocab) */
    int32_t *ids;    /* CHUNK */
    uint64_t seed, rng_state;
    bool begun_again; /* of KILL none: the node that was killed is known to be gone */
    pthread_t thread;
    /* of the last phase */
    int64_t began_us, ended_us, first_token_us;
    int prefilled;  /* tokens of whole prompts, prefilled in first_token_us */
    double *itl_ms; /* (new_tokens) inter-token latencies */
    int32_t *text;  /* (new_tokens) tokens that were decoded */
    sn_status status;
    sn_err err;
} session;

struct bench {
    const sn_bench_plan *plan;
    const sn_bench_case *config;
    sn_bench_nodes *nodes;
    sn_device *device; /* of the LM head, and of local blocks */
    sn_lm_head *head;
    session *sessions; /* n; of CONCURRENT one more, which prefills */
    int n;
    atomic_bool prefill_stop; /* of CONCURRENT: start no further prompt */
    int32_t first_id;         /* first token of the decode phase, another one in every repeat */
    int kill_at;              /* of KILL: the node is killed before this token; -1: it is not */
    size_t victim;
    sn_bench_draft *draft; /* of DRAFT */
    double *results[4];    /* per repeat: prefill tok/s, decode tok/s, ttft ms, and that of another kind */
};

/* -- figures -- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

sn_bench_spread sn_bench_spread_of(double *values, size_t n) {
    if (!n) return (sn_bench_spread){0};
    qsort(values, n, sizeof *values, compare_doubles);
    double median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    return (sn_bench_spread){median, values[0], values[n - 1]};
}

double sn_bench_percentile(const double *sorted, size_t n, double p) {
    if (!n) return 0;
    size_t rank = (size_t)ceil(p * (double)n);
    return sorted[rank ? rank - 1 : 0];
}

/* -- sessions -- */

static void make_ids(session *s, int n) {
    for (int i = 0; i < n; i++) s->ids[i] = (int32_t)sn_rng_below(&s->rng_state, (uint64_t)s->b->plan->hp->n_vocab);
}

sn_status sn_bench_link(const sn_bench_plan *p, const sn_bench_case *c, const sn_bench_nodes *nodes, sn_link **out,
                        sn_err *err) {
    sn_emulated_link emulated = {0};
    const char *join[SN_BENCH_NODES_MAX];
    size_t n_join = 0;
    if (nodes)
        n_join = sn_bench_nodes_addresses(nodes, join, SN_BENCH_NODES_MAX);
    else
        for (; n_join < p->join.n && n_join < SN_BENCH_NODES_MAX; n_join++) join[n_join] = p->join.items[n_join];
    sn_status status = c->link ? sn_emulated_link_parse(c->link, &emulated, err) : SN_OK;
    return status ? status
                  : sn_link_open(&(sn_link_options){.join = join, .n_join = n_join, .shape = emulated}, out, err);
}

sn_status sn_bench_device(const sn_bench_plan *p, const sn_bench_case *c, sn_device **out, sn_err *err) {
    const sn_device_options options = {.threads = c->threads, .isa = sn_program_settings.common.isa};
    return sn_device_open(p->device, &options, out, err);
}

/* For sn_chain_routing.avoid: nodes that an earlier repeat has ended, and that are still announced. The measurement
 * does not include finding out that they are gone. */
static bool node_was_ended(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const session *s = ctx;
    const char *live[SN_BENCH_NODES_MAX], *address = NULL;
    size_t n = sn_bench_nodes_addresses(s->b->nodes, live, SN_BENCH_NODES_MAX);
    const sn_directory *d = sn_link_directory(s->link);
    for (size_t i = 0; i < sn_directory_count(d); i++)
        if (!memcmp(sn_directory_at(d, i)->node, node, SN_KEY_SIZE)) address = sn_directory_at(d, i)->address;
    for (size_t i = 0; i < n && address; i++)
        if (!strcmp(address, live[i])) return s->begun_again && i == s->b->victim;
    return address != NULL;
}

static bool is_kill(const bench *b, const char *how) {
    return b->config->kind == SN_BENCH_KILL && !strcmp(b->config->kill, how);
}

static sn_status open_chain(session *s, sn_err *err) {
    const bench *b = s->b;
    const sn_bench_plan *p = b->plan;
    sn_chain_options options = sn_chain_options_default();
    options.link = s->link;
    options.max_tokens = b->config->context + p->extra_tokens_max;
    options.limits.timeout_ms = p->timeout_ms;
    options.limits.prefill_depth = p->prefill_depth;
    options.kv.dtype = p->kv_dtype;
    if (is_kill(b, "none")) options.limits.max_retries = 0;
    options.kv.replica = is_kill(b, "replica");
    options.routing.push = p->push;
    options.routing.avoid = b->config->kind == SN_BENCH_KILL ? node_was_ended : NULL;
    options.routing.avoid_ctx = s;
    options.wire.dtype = p->wire_dtype;
    if (p->local) {
        sn_device *device = b->device;
        sn_kv_shape shape = sn_kv_shape_of(p->hp, 0, p->hp->n_blocks, p->kv_dtype);
        size_t pages = (size_t)options.max_tokens / SN_KV_PAGE_TOKENS + 2;
        options.local = (sn_chain_local){
            .device = device, .end = p->hp->n_blocks, .kv_memory = pages * device->ops->kv_page_bytes(device, &shape)};
    }
    return sn_chain_open(p->model, &options, &s->chain, err);
}

static sn_status open_session(bench *b, session *s, uint64_t seed, sn_err *err) {
    const sn_bench_plan *p = b->plan;
    size_t n_embd = (size_t)p->hp->n_embd;
    s->b = b;
    s->seed = s->rng_state = seed;
    sn_status status = sn_calloc(&s->in, CHUNK * n_embd, sizeof *s->in, err);
    if (!status) status = sn_calloc(&s->out, CHUNK * n_embd, sizeof *s->out, err);
    if (!status) status = sn_calloc(&s->logits, (size_t)p->hp->n_vocab, sizeof *s->logits, err);
    if (!status) status = sn_calloc(&s->ids, CHUNK, sizeof *s->ids, err);
    if (!status) status = sn_calloc(&s->itl_ms, (size_t)p->new_tokens, sizeof *s->itl_ms, err);
    if (!status) status = sn_calloc(&s->text, (size_t)p->new_tokens, sizeof *s->text, err);
    if (!status && !p->local) status = sn_bench_link(p, b->config, b->nodes, &s->link, err);
    return status ? status : open_chain(s, err);
}

static void close_session(session *s) {
    sn_chain_close(&s->chain);
    sn_link_close(&s->link);
    free(s->in);
    free(s->out);
    free(s->logits);
    free(s->ids);
    free(s->itl_ms);
    free(s->text);
}

/* A step whose last row goes to most_likely, unless it fails. */
static sn_status step_for_head(session *s, int position, int n) {
    sn_lm_head_expect(s->b->head);
    sn_status status = sn_chain_step(s->chain, position, n, s->in, s->out, &s->err);
    sn_lm_head_unexpect(s->b->head);
    return status;
}

/* The most likely token after `row` (n_embd). */
static sn_status most_likely(session *s, const float *row, int32_t *id) {
    sn_status status = sn_lm_head_logits(s->b->head, row, 1, s->logits, &s->err);
    return status ? status : sn_logits_argmax(s->logits, (size_t)s->b->plan->hp->n_vocab, id, &s->err);
}

/* Runs n new tokens at `position`. last: set to the row of the last token, with which the caller calls
 * most_likely; NULL: the caller needs no token. */
static sn_status run_rows(session *s, int position, int n, bool embed, float **last) {
    size_t n_embd = (size_t)s->b->plan->hp->n_embd;
    sn_status status = SN_OK;
    for (int done = 0, chunk; done < n && !status; done += chunk) {
        chunk = n - done < CHUNK ? n - done : CHUNK;
        if (sn_interrupted) return sn_fail(&s->err, SN_RETRY, "interrupted");
        if (embed) make_ids(s, chunk);
        if (embed) status = sn_lm_head_embed(s->b->head, s->ids, chunk, s->in, &s->err);
        if (status) break;
        status = last && done + chunk == n ? step_for_head(s, position + done, chunk)
                                           : sn_chain_step(s->chain, position + done, chunk, s->in, s->out, &s->err);
        if (last) *last = s->out + (size_t)(chunk - 1) * n_embd;
    }
    return status;
}

/* -- phases, run by all sessions concurrently -- */

static sn_status do_fill(session *s) { return run_rows(s, 0, s->b->config->context, true, NULL); }

static sn_status do_prompt(session *s) {
    float *last;
    sn_status status = run_rows(s, s->b->config->context, s->b->plan->prompt_tokens, true, &last);
    int64_t fed = sn_now_us();
    if (!status) status = most_likely(s, last, &s->text[0]);
    s->first_token_us = sn_now_us() - s->began_us;
    s->ended_us = fed;
    return status;
}

/* FORWARD: the rows are embedded before the forward passes that are measured. */
static sn_status do_prepare(session *s) {
    make_ids(s, CHUNK);
    return sn_lm_head_embed(s->b->head, s->ids, CHUNK, s->in, &s->err);
}

static sn_status do_forward(session *s) {
    return run_rows(s, s->b->config->context, s->b->plan->prompt_tokens, false, NULL);
}

static void signal_victim(session *s) {
    sn_hop_report hops[SN_HOPS_MAX];
    size_t n = sn_chain_hops(s->chain, hops, SN_HOPS_MAX);
    int how = is_kill(s->b, "migration") ? SIGTERM : SIGKILL;
    if (!n || !sn_bench_nodes_signal(s->b->nodes, hops[n / 2].node, how, &s->b->victim)) s->b->victim = SIZE_MAX;
}

/* Each session begins with another token. */
static int32_t first_id(const session *s) {
    return (int32_t)((s->b->first_id + 7919 * (s - s->b->sessions)) % s->b->plan->hp->n_vocab);
}

/* The token after the one at `position`. */
static sn_status decode_at(session *s, int position, int32_t *id) {
    sn_status status = sn_lm_head_embed(s->b->head, id, 1, s->in, &s->err);
    if (!status) status = step_for_head(s, position, 1);
    return status ? status : most_likely(s, s->out, id);
}

/* Token i of the text, from the one before it. */
static sn_status decode_token(session *s, int i, int32_t *id) {
    sn_status status = decode_at(s, s->b->config->context + i, id);
    s->text[i] = *id;
    return status;
}

/* A prompt and its text, without waiting for other sessions in between. */
static sn_status do_answer(session *s) {
    const sn_bench_plan *p = s->b->plan;
    sn_status status = do_prompt(s);
    for (int i = 1; i < p->new_tokens && !status; i++) {
        int64_t before = sn_now_us();
        if (sn_interrupted) return sn_fail(&s->err, SN_RETRY, "interrupted");
        s->text[i] = s->text[i - 1];
        status = decode_at(s, s->b->config->context + p->prompt_tokens + i - 1, &s->text[i]);
        s->itl_ms[i] = (double)(sn_now_us() - before) / 1000;
    }
    s->ended_us = sn_now_us();
    return status;
}

/* What a client without recovery does: everything before token i once more, over another route. */
static sn_status begin_again(session *s, int i, int32_t *id) {
    s->begun_again = true;
    sn_chain_close(&s->chain);
    sn_status status = open_chain(s, &s->err);
    s->rng_state = s->seed;
    if (!status && s->b->config->context) status = do_fill(s);
    *id = first_id(s);
    for (int k = 0; k <= i && !status; k++) status = decode_token(s, k, id);
    return status;
}

static sn_status do_decode(session *s) {
    const sn_bench_plan *p = s->b->plan;
    sn_status status = SN_OK;
    int32_t id = first_id(s);
    s->begun_again = false;
    for (int i = 0; i < p->new_tokens && !status; i++) {
        int64_t before = sn_now_us();
        if (sn_interrupted) return sn_fail(&s->err, SN_RETRY, "interrupted");
        if (i == s->b->kill_at) signal_victim(s);
        status = decode_token(s, i, &id);
        if (status && is_kill(s->b, "none") && s->b->kill_at >= 0 && i >= s->b->kill_at && !s->begun_again)
            status = begin_again(s, i, &id);
        s->itl_ms[i] = (double)(sn_now_us() - before) / 1000;
    }
    return status;
}

typedef struct start {
    session *s;
    sn_status (*work)(session *);
} start;

static void *session_thread(void *arg) {
    start *st = arg;
    session *s = st->s;
    s->began_us = sn_now_us();
    s->ended_us = 0;
    s->status = st->work(s);
    if (!s->ended_us) s->ended_us = sn_now_us();
    return NULL;
}

/* Runs a phase in all sessions, each on a thread. *wall_s: from the first start to the last end. */
static sn_status run_phase(bench *b, sn_status (*work)(session *), double *wall_s, sn_err *err) {
    start starts[SN_BENCH_SESSIONS_MAX];
    sn_status status = SN_OK;
    int started = 0;
    for (; started < b->n && !status; started++) {
        starts[started] = (start){&b->sessions[started], work};
        if (pthread_create(&b->sessions[started].thread, NULL, session_thread, &starts[started])) {
            status = sn_fail(err, SN_STOP, "no thread can be started for session %d", started);
            break;
        }
    }
    int64_t first = INT64_MAX, last = 0;
    for (int i = 0; i < started; i++) {
        session *s = &b->sessions[i];
        pthread_join(s->thread, NULL);
        if (s->began_us < first) first = s->began_us;
        if (s->ended_us > last) last = s->ended_us;
        if (!s->status || status) continue;
        status = s->status;
        *err = s->err;
    }
    *wall_s = (double)(last - first) / 1e6;
    return status;
}

/* -- times of the hops -- */

typedef struct hop_sums {
    sn_hop_report hops[SN_HOPS_MAX];
    size_t n;
} hop_sums;

static void read_hop_sums(const bench *b, hop_sums *out) {
    out->n = sn_chain_hops(b->sessions[0].chain, out->hops, SN_HOPS_MAX);
}

/* Adds the times of the first session's steps since `before`. */
static void add_hops(const bench *b, const hop_sums *before, hop_sums *total) {
    hop_sums now;
    read_hop_sums(b, &now);
    if (now.n != before->n || now.n > SN_HOPS_MAX) return; /* the route has changed */
    for (size_t i = 0; i < now.n; i++) {
        sn_hop_report *t = &total->hops[i], *h = &now.hops[i];
        const sn_hop_report *was = &before->hops[i];
        if (strcmp(h->node, was->node)) return;
        memcpy(t->node, h->node, sizeof t->node);
        t->first_block = h->first_block;
        t->end_block = h->end_block;
        t->steps += h->steps - was->steps;
        t->network_us += h->network_us - was->network_us;
        t->queue_us += h->queue_us - was->queue_us;
        t->compute_us += h->compute_us - was->compute_us;
    }
    total->n = now.n;
}

static void store_hops(const hop_sums *total, sn_bench_row *row) {
    row->n_hops = total->n;
    for (size_t i = 0; i < total->n; i++) {
        const sn_hop_report *h = &total->hops[i];
        double per = h->steps ? 1e-3 / (double)h->steps : 0;
        sn_bench_hop *out = &row->hops[i];
        memcpy(out->node, h->node, sizeof out->node);
        out->first = h->first_block;
        out->end = h->end_block;
        out->network_ms = (double)h->network_us * per;
        out->queue_ms = (double)h->queue_us * per;
        out->compute_ms = (double)h->compute_us * per;
    }
}

/* -- a repeat of each kind -- */

/* From token `first` of the texts on. */
static void store_itl(const bench *b, int first, sn_bench_row *row) {
    const size_t n = (size_t)(b->plan->new_tokens - first);
    for (int i = 0; i < b->n; i++) {
        memcpy(row->itl_ms + row->n_itl, b->sessions[i].itl_ms + first, n * sizeof *row->itl_ms);
        row->n_itl += n;
    }
}

static double median_ttft_ms(const bench *b) {
    double ttft[SN_BENCH_SESSIONS_MAX];
    for (int i = 0; i < b->n; i++) ttft[i] = (double)b->sessions[i].first_token_us / 1000;
    return sn_bench_spread_of(ttft, (size_t)b->n).median;
}

static sn_status measure_speed(bench *b, int at, hop_sums *total, sn_bench_row *row, sn_err *err) {
    double prompt_s, decode_s, ttft_ms;
    hop_sums before;
    sn_status status = run_phase(b, do_prompt, &prompt_s, err);
    if (status) return status;
    ttft_ms = median_ttft_ms(b);
    read_hop_sums(b, &before);
    status = run_phase(b, do_decode, &decode_s, err);
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->results[0][at] = (double)b->n * b->plan->prompt_tokens / prompt_s;
    b->results[1][at] = (double)b->n * b->plan->new_tokens / decode_s;
    b->results[2][at] = ttft_ms;
    store_itl(b, 0, row);
    return SN_OK;
}

static sn_status measure_answers(bench *b, int at, hop_sums *total, sn_bench_row *row, sn_err *err) {
    double wall_s;
    hop_sums before;
    read_hop_sums(b, &before);
    sn_status status = run_phase(b, do_answer, &wall_s, err);
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->results[2][at] = median_ttft_ms(b);
    b->results[3][at] = (double)b->n * b->plan->new_tokens / wall_s;
    store_itl(b, 1, row);
    return SN_OK;
}

static sn_status measure_forward(bench *b, int at, hop_sums *total, sn_err *err) {
    double wall_s;
    hop_sums before;
    sn_status status = run_phase(b, do_prepare, &wall_s, err);
    if (status) return status;
    read_hop_sums(b, &before);
    status = run_phase(b, do_forward, &wall_s, err);
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->results[3][at] = (double)b->n * b->plan->prompt_tokens / wall_s;
    return SN_OK;
}

/* Prefills one prompt after another while the other sessions decode. */
static sn_status do_concurrent_prefill(session *s) {
    float *last;
    int32_t id;
    sn_status status = SN_OK;
    s->first_token_us = s->prefilled = 0;
    while (!status && !atomic_load(&s->b->prefill_stop)) {
        status = run_rows(s, 0, s->b->config->concurrent_prefill, true, &last);
        if (!status) status = most_likely(s, last, &id);
        if (atomic_load(&s->b->prefill_stop) && s->prefilled)
            break; /* this prompt ended after the others had stopped */
        s->prefilled += s->b->config->concurrent_prefill;
        s->first_token_us = sn_now_us() - s->began_us;
    }
    return status;
}

static sn_status measure_concurrent(bench *b, int at, hop_sums *total, sn_bench_row *row, sn_err *err) {
    double wall_s;
    hop_sums before;
    session *other = &b->sessions[b->n];
    start st = {other, do_concurrent_prefill};
    atomic_store(&b->prefill_stop, false);
    read_hop_sums(b, &before);
    if (pthread_create(&other->thread, NULL, session_thread, &st))
        return sn_fail(err, SN_STOP, "no thread can be started");
    sn_status status = run_phase(b, do_decode, &wall_s, err);
    atomic_store(&b->prefill_stop, true);
    pthread_join(other->thread, NULL);
    if (!status && other->status) {
        status = other->status;
        *err = other->err;
    }
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->results[0][at] = other->first_token_us ? other->prefilled * 1e6 / (double)other->first_token_us : 0;
    b->results[1][at] = (double)b->n * b->plan->new_tokens / wall_s;
    store_itl(b, 0, row);
    return SN_OK;
}

/* Waits until the KV replica of the victim is complete: before, its loss would cause a replay. */
static sn_status wait_replica(session *s) {
    for (int64_t until = sn_now_us() + REPLICA_WAIT_US; sn_now_us() < until && !sn_interrupted;)
        if (!sn_chain_await_replica(s->chain, sn_chain_hops(s->chain, NULL, 0) / 2, REPLICA_POLL_MS, &s->err))
            return SN_OK;
    return sn_fail(&s->err, SN_RETRY, "no other node had the whole KV replica within %d seconds",
                   REPLICA_WAIT_US / 1000000);
}

/* The reference is the text of a run without a kill. The recovery time is the longest inter-token latency after the
 * kill. */
static sn_status measure_kill(bench *b, int at, int32_t *reference, sn_bench_row *row, sn_err *err) {
    session *s = &b->sessions[0];
    double wall_s, longest = 0;
    size_t bytes = (size_t)b->plan->new_tokens * sizeof *reference;
    b->kill_at = -1;
    sn_status status = run_phase(b, do_decode, &wall_s, err);
    if (status) return status;
    memcpy(reference, s->text, bytes);
    if (at < 0) return SN_OK;
    b->kill_at = b->plan->new_tokens / 2;
    if (is_kill(b, "replica")) status = run_phase(b, wait_replica, &wall_s, err);
    if (status) return status;
    status = run_phase(b, do_decode, &wall_s, err);
    if (status) return status;
    if (b->victim == SIZE_MAX) return sn_fail(err, SN_RETRY, "the node to kill was not found on the route");
    for (int i = b->kill_at; i < b->plan->new_tokens; i++)
        if (s->itl_ms[i] > longest) longest = s->itl_ms[i];
    b->results[3][at] = longest;
    row->same_text = row->same_text && !memcmp(reference, s->text, bytes);
    store_itl(b, 0, row);
    status = sn_bench_nodes_restart(b->nodes, b->victim, err);
    sn_hash model = sn_model_id(b->plan->model);
    /* The next kill may take the last node that this client knows: it learns of the new one before. */
    return status ? status : sn_link_discover(s->link, &model, b->plan->timeout_ms, err);
}

static sn_status measure_draft(bench *b, int at, hop_sums *total, sn_bench_row *row, sn_err *err) {
    double tok_s = 0;
    hop_sums before;
    read_hop_sums(b, &before);
    sn_status status = sn_bench_draft_generate(b->draft, b->sessions[0].chain, at, &tok_s, row, err);
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->results[1][at] = tok_s;
    return SN_OK;
}

static sn_status run_repeats(bench *b, sn_bench_row *row, sn_progress_bar *bar, sn_err *err) {
    const sn_bench_plan *p = b->plan;
    hop_sums total = {0};
    int32_t *reference = NULL;
    double wall_s;
    sn_status status = sn_calloc(&reference, (size_t)p->new_tokens, sizeof *reference, err);
    if (!status && b->config->context && !b->draft) status = run_phase(b, do_fill, &wall_s, err);
    row->same_text = true;
    for (int i = -p->warmup; i < p->repeat && !status; i++) {
        sn_progress_bar_set(bar, (size_t)(i + p->warmup), (size_t)(p->repeat + p->warmup));
        b->first_id = (int32_t)((i + p->warmup + 100) * 37 % p->hp->n_vocab);
        switch (b->config->kind) {
        case SN_BENCH_SPEED:
            status = measure_speed(b, i, &total, row, err);
            break;
        case SN_BENCH_ANSWERS:
            status = measure_answers(b, i, &total, row, err);
            break;
        case SN_BENCH_FORWARD:
            status = measure_forward(b, i, &total, err);
            break;
        case SN_BENCH_CONCURRENT:
            status = measure_concurrent(b, i, &total, row, err);
            break;
        case SN_BENCH_KILL:
            status = measure_kill(b, i, reference, row, err);
            break;
        case SN_BENCH_DRAFT:
            status = measure_draft(b, i, &total, row, err);
            break;
        case SN_BENCH_TRAIN:
            break; /* train.c measures it */
        }
    }
    store_hops(&total, row);
    free(reference);
    return status;
}

static void store_results(bench *b, sn_bench_row *row) {
    size_t n = (size_t)b->plan->repeat;
    qsort(row->itl_ms, row->n_itl, sizeof *row->itl_ms, compare_doubles);
    row->prefill_tok_s = sn_bench_spread_of(b->results[0], n);
    row->decode_tok_s = sn_bench_spread_of(b->results[1], n);
    row->ttft_ms = sn_bench_spread_of(b->results[2], n);
    sn_bench_spread last = sn_bench_spread_of(b->results[3], n);
    if (b->config->kind == SN_BENCH_KILL)
        row->recovery_ms = last;
    else if (b->config->kind == SN_BENCH_ANSWERS)
        row->answer_tok_s = last;
    else
        row->forward_tok_s = last;
}

sn_status sn_bench_run(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                       sn_progress_bar *bar, sn_err *err) {
    bench b = {.plan = plan, .config = c, .nodes = nodes, .n = c->sessions, .kill_at = -1};
    *row = (sn_bench_row){.config = *c};
    int n_all = b.n + (c->kind == SN_BENCH_CONCURRENT);
    sn_status status = sn_bench_device(plan, c, &b.device, err);
    if (!status) status = sn_lm_head_load(plan->model, b.device, &b.head, err);
    if (!status) status = sn_calloc(&b.sessions, (size_t)n_all, sizeof *b.sessions, err);
    for (int i = 0; i < 4 && !status; i++) status = sn_calloc(&b.results[i], (size_t)plan->repeat, sizeof(double), err);
    if (!status)
        status =
            sn_calloc(&row->itl_ms, (size_t)plan->repeat * (size_t)b.n * (size_t)plan->new_tokens, sizeof(double), err);
    for (int i = 0; i < n_all && !status; i++)
        status = open_session(&b, &b.sessions[i], 0x5eed + (uint64_t)i * 1000003, err);
    if (!status && c->kind == SN_BENCH_DRAFT)
        status = sn_bench_draft_new(plan, &row->config, b.device, b.head, &b.draft, err);
    if (!status) status = run_repeats(&b, row, bar, err);
    if (!status) store_results(&b, row);
    for (int i = 0; i < n_all && b.sessions; i++) close_session(&b.sessions[i]);
    for (int i = 0; i < 4; i++) free(b.results[i]);
    free(b.sessions);
    sn_bench_draft_free(&b.draft);
    sn_lm_head_free(&b.head);
    sn_device_close(&b.device);
    return status;
}

void sn_bench_row_fini(sn_bench_row *row) {
    free(row->itl_ms);
    *row = (sn_bench_row){0};
}

/* One case measured: sessions on threads of their own through what they have to do, the clock around them. */
#include "client/bench.h"

#include "base/clock.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 2048 }; /* rows handed to a chain at once */
enum { COPY_US = 60000000, COPY_AGAIN_MS = 500 };

typedef struct bench bench;

/* A session: a chain of its own over a link of its own, used by one thread at a time. */
typedef struct session {
    bench *b;
    sn_link *link;
    sn_chain *chain;
    float *in, *out; /* (PIECE, n_embd) */
    int32_t *ids;    /* PIECE */
    uint64_t chance;
    pthread_t thread;
    /* of the phase that ran last */
    int64_t began_us, ended_us, first_token_us;
    int read; /* tokens of whole prompts, which took first_token_us */
    double *gaps; /* new_tokens milliseconds */
    int32_t *text; /* new_tokens: the tokens that were chosen */
    sn_status status;
    sn_err err;
} session;

struct bench {
    const sn_bench_plan *plan;
    const sn_bench_case *of;
    sn_bench_nodes *nodes;
    sn_bench_head *head;
    session *sessions; /* n, and of BESIDE one more */
    int n;
    atomic_bool enough; /* BESIDE: no further prompt */
    int32_t first_id; /* that decoding begins with, another one in every repeat */
    int kill_at; /* of KILL: the token before which the node ends; -1: none does */
    size_t victim;
    sn_bench_draft *draft; /* of DRAFT */
    double *figures[4]; /* per repeat: prompt tok/s, decode tok/s, ttft ms, and what only FORWARD and KILL give */
};

/* -- figures -- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

sn_bench_spread sn_bench_spread_of(double *values, size_t n) {
    if (!n) return (sn_bench_spread){0};
    qsort(values, n, sizeof *values, compare);
    double median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    return (sn_bench_spread){median, values[0], values[n - 1]};
}

double sn_bench_percentile(const double *sorted, size_t n, double p) {
    if (!n) return 0;
    size_t rank = (size_t)ceil(p * (double)n);
    return sorted[rank ? rank - 1 : 0];
}

/* -- sessions -- */

uint64_t sn_bench_chance(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void make_ids(session *s, int n) {
    for (int i = 0; i < n; i++) s->ids[i] = (int32_t)(sn_bench_chance(&s->chance) % (uint64_t)s->b->plan->hp->n_vocab);
}

sn_status sn_bench_link(const sn_bench_plan *p, const sn_bench_case *c, const sn_bench_nodes *nodes, sn_link **out,
                        sn_err *err) {
    sn_shape shape = {0};
    const char *join[SN_BENCH_NODES_MAX];
    size_t n_join = 0;
    if (nodes) n_join = sn_bench_nodes_addresses(nodes, join, SN_BENCH_NODES_MAX);
    else
        for (; n_join < p->join.n && n_join < SN_BENCH_NODES_MAX; n_join++) join[n_join] = p->join.items[n_join];
    sn_status status = c->link ? sn_shape_parse(c->link, &shape, err) : SN_OK;
    return status ? status : sn_link_open(join, n_join, NULL, NULL, &shape, out, err);
}

/* Nodes that were ended for an earlier repeat, and are still announced: finding that out is not what is measured. */
static bool ended_before(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const session *s = ctx;
    const char *live[SN_BENCH_NODES_MAX], *address = NULL;
    size_t n = sn_bench_nodes_addresses(s->b->nodes, live, SN_BENCH_NODES_MAX);
    const sn_directory *d = sn_link_directory(s->link);
    for (size_t i = 0; i < sn_directory_count(d); i++)
        if (!memcmp(sn_directory_at(d, i)->node, node, SN_KEY_SIZE)) address = sn_directory_at(d, i)->address;
    for (size_t i = 0; i < n && address; i++)
        if (!strcmp(address, live[i])) return false;
    return address != NULL;
}

static sn_status open_session(bench *b, session *s, uint64_t seed, sn_err *err) {
    const sn_bench_plan *p = b->plan;
    size_t n_embd = (size_t)p->hp->n_embd;
    s->b = b;
    s->chance = seed;
    sn_status status = sn_calloc(&s->in, PIECE * n_embd, sizeof *s->in, err);
    if (!status) status = sn_calloc(&s->out, PIECE * n_embd, sizeof *s->out, err);
    if (!status) status = sn_calloc(&s->ids, PIECE, sizeof *s->ids, err);
    if (!status) status = sn_calloc(&s->gaps, (size_t)p->new_tokens, sizeof *s->gaps, err);
    if (!status) status = sn_calloc(&s->text, (size_t)p->new_tokens, sizeof *s->text, err);
    if (!status && !p->local) status = sn_bench_link(p, b->of, b->nodes, &s->link, err);
    sn_chain_options options = {.link = s->link,
                                .max_tokens = b->of->context + p->more_max,
                                .timeout_ms = p->timeout_ms,
                                .push = p->push,
                                .replica = b->of->kind == SN_BENCH_KILL && !strcmp(b->of->kill, "replica"),
                                .steps_ahead = p->steps_ahead,
                                .avoid = b->of->kind == SN_BENCH_KILL ? ended_before : NULL,
                                .avoid_ctx = s,
                                .wire = p->wire,
                                .kv_dtype = p->kv_dtype};
    if (p->local) {
        options.device = sn_bench_head_device(b->head);
        options.local_end = p->hp->n_blocks;
        sn_kv_shape shape = {p->hp->n_blocks, p->hp->n_kv_heads, p->hp->head_dim, SN_KV_PAGE_TOKENS, p->kv_dtype};
        options.kv_memory = ((size_t)options.max_tokens / SN_KV_PAGE_TOKENS + 2) *
                            options.device->ops->kv_page_bytes(options.device, &shape);
    }
    return status ? status : sn_chain_open(p->model, &options, &s->chain, err);
}

static void close_session(session *s) {
    sn_chain_close(&s->chain);
    sn_link_close(&s->link);
    free(s->in);
    free(s->out);
    free(s->ids);
    free(s->gaps);
    free(s->text);
}

/* A step for whose outcome the head will be asked, unless it fails. */
static sn_status expected_step(session *s, int position, int n) {
    sn_bench_head_expect(s->b->head);
    sn_status status = sn_chain_step(s->chain, position, n, s->in, s->out, &s->err);
    if (status) sn_bench_head_give_up(s->b->head);
    return status;
}

/* n new tokens at `position`. last: gets the row of the last one, of which the head is to be asked then; NULL: it will not be. */
static sn_status feed(session *s, int position, int n, bool embed, float **last) {
    size_t n_embd = (size_t)s->b->plan->hp->n_embd;
    sn_status status = SN_OK;
    for (int done = 0, piece; done < n && !status; done += piece) {
        piece = n - done < PIECE ? n - done : PIECE;
        if (sn_interrupted) return sn_fail(&s->err, SN_RETRY, "interrupted");
        if (embed) make_ids(s, piece);
        if (embed) status = sn_bench_head_embed(s->b->head, s->ids, piece, s->in, &s->err);
        if (status) break;
        status = last && done + piece == n ? expected_step(s, position + done, piece)
                                           : sn_chain_step(s->chain, position + done, piece, s->in, s->out, &s->err);
        if (last) *last = s->out + (size_t)(piece - 1) * n_embd;
    }
    return status;
}

/* -- phases: what all sessions do at once -- */

static sn_status do_fill(session *s) { return feed(s, 0, s->b->of->context, true, NULL); }

static sn_status do_prompt(session *s) {
    float *last;
    int32_t id;
    sn_status status = feed(s, s->b->of->context, s->b->plan->prompt_tokens, true, &last);
    int64_t fed = sn_now_us();
    if (!status) status = sn_bench_head_best(s->b->head, last, &id, &s->err);
    s->first_token_us = sn_now_us() - s->began_us;
    s->ended_us = fed;
    return status;
}

/* What FORWARD measures: the chain alone, the rows made beforehand. */
static sn_status do_prepare(session *s) {
    make_ids(s, PIECE);
    return sn_bench_head_embed(s->b->head, s->ids, PIECE, s->in, &s->err);
}

static sn_status do_forward(session *s) { return feed(s, s->b->of->context, s->b->plan->prompt_tokens, false, NULL); }

static void end_victim(session *s) {
    sn_hop_report hops[SN_HOPS_MAX];
    size_t n = sn_chain_hops(s->chain, hops, SN_HOPS_MAX);
    int how = strcmp(s->b->of->kill, "handover") ? SIGKILL : SIGTERM;
    if (!n || !sn_bench_nodes_signal(s->b->nodes, hops[n / 2].node, how, &s->b->victim)) s->b->victim = SIZE_MAX;
}

static sn_status do_decode(session *s) {
    const sn_bench_plan *p = s->b->plan;
    sn_status status = SN_OK;
    int32_t id = (int32_t)((s->b->first_id + 7919 * (s - s->b->sessions)) % p->hp->n_vocab); /* others in every session */
    for (int i = 0; i < p->new_tokens && !status; i++) {
        int64_t before = sn_now_us();
        if (sn_interrupted) return sn_fail(&s->err, SN_RETRY, "interrupted");
        if (i == s->b->kill_at) end_victim(s);
        status = sn_bench_head_embed(s->b->head, &id, 1, s->in, &s->err);
        if (!status) status = expected_step(s, s->b->of->context + i, 1);
        if (!status) status = sn_bench_head_best(s->b->head, s->out, &id, &s->err);
        s->text[i] = id;
        s->gaps[i] = (double)(sn_now_us() - before) / 1000;
    }
    return status;
}

typedef struct start {
    session *s;
    sn_status (*work)(session *);
} start;

static void *run_one(void *arg) {
    start *st = arg;
    session *s = st->s;
    s->began_us = sn_now_us();
    s->ended_us = 0;
    s->status = st->work(s);
    if (!s->ended_us) s->ended_us = sn_now_us();
    return NULL;
}

/* All sessions at once, each in a thread; *wall_s: from the first beginning to the last end. */
static sn_status phase(bench *b, sn_status (*work)(session *), double *wall_s, sn_err *err) {
    start starts[SN_BENCH_SESSIONS_MAX];
    sn_status status = SN_OK;
    int started = 0;
    for (; started < b->n && !status; started++) {
        starts[started] = (start){&b->sessions[started], work};
        if (pthread_create(&b->sessions[started].thread, NULL, run_one, &starts[started])) {
            status = sn_fail(err, SN_STOP, "no thread is to be had for session %d", started);
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

/* -- what the hops cost -- */

typedef struct sums {
    sn_hop_report hops[SN_HOPS_MAX];
    size_t n;
} sums;

static void read_sums(const bench *b, sums *out) { out->n = sn_chain_hops(b->sessions[0].chain, out->hops, SN_HOPS_MAX); }

/* Adds what the first session's steps have cost since `before`. */
static void add_hops(const bench *b, const sums *before, sums *total) {
    sums now;
    read_sums(b, &now);
    if (now.n != before->n || now.n > SN_HOPS_MAX) return; /* another way by now */
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

static void take_hops(const sums *total, sn_bench_row *row) {
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

static void keep_gaps(const bench *b, sn_bench_row *row) {
    for (int i = 0; i < b->n; i++) {
        memcpy(row->gaps + row->n_gaps, b->sessions[i].gaps, (size_t)b->plan->new_tokens * sizeof *row->gaps);
        row->n_gaps += (size_t)b->plan->new_tokens;
    }
}

static sn_status speed_once(bench *b, int at, sums *total, sn_bench_row *row, sn_err *err) {
    double prompt_s, decode_s, ttft[SN_BENCH_SESSIONS_MAX];
    sums before;
    sn_status status = phase(b, do_prompt, &prompt_s, err);
    if (status) return status;
    for (int i = 0; i < b->n; i++) ttft[i] = (double)b->sessions[i].first_token_us / 1000;
    read_sums(b, &before);
    status = phase(b, do_decode, &decode_s, err);
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->figures[0][at] = (double)b->n * b->plan->prompt_tokens / prompt_s;
    b->figures[1][at] = (double)b->n * b->plan->new_tokens / decode_s;
    b->figures[2][at] = sn_bench_spread_of(ttft, (size_t)b->n).median;
    keep_gaps(b, row);
    return SN_OK;
}

static sn_status forward_once(bench *b, int at, sums *total, sn_err *err) {
    double wall_s;
    sums before;
    sn_status status = phase(b, do_prepare, &wall_s, err);
    if (status) return status;
    read_sums(b, &before);
    status = phase(b, do_forward, &wall_s, err);
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->figures[3][at] = (double)b->n * b->plan->prompt_tokens / wall_s;
    return SN_OK;
}

/* Prompts one after the other, for as long as the others write. */
static sn_status do_intrude(session *s) {
    float *last;
    int32_t id;
    sn_status status = SN_OK;
    s->first_token_us = s->read = 0;
    while (!status && !atomic_load(&s->b->enough)) {
        status = feed(s, 0, s->b->of->beside, true, &last);
        if (!status) status = sn_bench_head_best(s->b->head, last, &id, &s->err);
        if (atomic_load(&s->b->enough) && s->read) break; /* its end was read while nobody wrote */
        s->read += s->b->of->beside;
        s->first_token_us = sn_now_us() - s->began_us;
    }
    return status;
}

static sn_status beside_once(bench *b, int at, sums *total, sn_bench_row *row, sn_err *err) {
    double wall_s;
    sums before;
    session *other = &b->sessions[b->n];
    start st = {other, do_intrude};
    atomic_store(&b->enough, false);
    read_sums(b, &before);
    if (pthread_create(&other->thread, NULL, run_one, &st)) return sn_fail(err, SN_STOP, "no thread is to be had");
    sn_status status = phase(b, do_decode, &wall_s, err);
    atomic_store(&b->enough, true);
    pthread_join(other->thread, NULL);
    if (!status && other->status) {
        status = other->status;
        *err = other->err;
    }
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->figures[0][at] = other->first_token_us ? other->read * 1e6 / (double)other->first_token_us : 0;
    b->figures[1][at] = (double)b->n * b->plan->new_tokens / wall_s;
    keep_gaps(b, row);
    return SN_OK;
}

/* Until there is a copy of what the victim holds: else its loss would be measured as a replay's. */
static sn_status await_copy(session *s) {
    for (int64_t until = sn_now_us() + COPY_US; sn_now_us() < until && !sn_interrupted;)
        if (!sn_chain_await_copy(s->chain, sn_chain_hops(s->chain, NULL, 0) / 2, COPY_AGAIN_MS, &s->err)) return SN_OK;
    return sn_fail(&s->err, SN_RETRY, "no other node has got a copy of the past within %d seconds", COPY_US / 1000000);
}

/* The text without a kill is the reference; with one, the longest wait behind it is what the loss cost. */
static sn_status kill_once(bench *b, int at, int32_t *reference, sn_bench_row *row, sn_err *err) {
    session *s = &b->sessions[0];
    double wall_s, longest = 0;
    size_t bytes = (size_t)b->plan->new_tokens * sizeof *reference;
    b->kill_at = -1;
    sn_status status = phase(b, do_decode, &wall_s, err);
    if (status) return status;
    memcpy(reference, s->text, bytes);
    if (at < 0) return SN_OK;
    b->kill_at = b->plan->new_tokens / 2;
    if (!strcmp(b->of->kill, "replica")) status = phase(b, await_copy, &wall_s, err);
    if (status) return status;
    status = phase(b, do_decode, &wall_s, err);
    if (status) return status;
    if (b->victim == SIZE_MAX) return sn_fail(err, SN_RETRY, "the node to be ended was not found on the way");
    for (int i = b->kill_at; i < b->plan->new_tokens; i++)
        if (s->gaps[i] > longest) longest = s->gaps[i];
    b->figures[3][at] = longest;
    row->same_text = row->same_text && !memcmp(reference, s->text, bytes);
    keep_gaps(b, row);
    return sn_bench_nodes_again(b->nodes, b->victim, err);
}

static sn_status draft_once(bench *b, int at, sums *total, sn_bench_row *row, sn_err *err) {
    double tok_s = 0;
    sums before;
    read_sums(b, &before);
    sn_status status = sn_bench_draft_write(b->draft, b->sessions[0].chain, at, &tok_s, row, err);
    if (status || at < 0) return status;
    add_hops(b, &before, total);
    b->figures[1][at] = tok_s;
    return SN_OK;
}

static sn_status repeat_all(bench *b, sn_bench_row *row, sn_progress_shown *shown, sn_err *err) {
    const sn_bench_plan *p = b->plan;
    sums total = {0};
    int32_t *reference = NULL;
    double wall_s;
    sn_status status = sn_calloc(&reference, (size_t)p->new_tokens, sizeof *reference, err);
    if (!status && b->of->context && !b->draft) status = phase(b, do_fill, &wall_s, err);
    row->same_text = true;
    for (int i = -p->warmup; i < p->repeat && !status; i++) {
        sn_progress_set(shown, (size_t)(i + p->warmup), (size_t)(p->repeat + p->warmup));
        b->first_id = (int32_t)((i + p->warmup + 100) * 37 % p->hp->n_vocab);
        switch (b->of->kind) {
        case SN_BENCH_SPEED: status = speed_once(b, i, &total, row, err); break;
        case SN_BENCH_FORWARD: status = forward_once(b, i, &total, err); break;
        case SN_BENCH_BESIDE: status = beside_once(b, i, &total, row, err); break;
        case SN_BENCH_KILL: status = kill_once(b, i, reference, row, err); break;
        case SN_BENCH_DRAFT: status = draft_once(b, i, &total, row, err); break;
        case SN_BENCH_TRAIN: break; /* bench_train.c */
        }
    }
    take_hops(&total, row);
    free(reference);
    return status;
}

static void take_figures(bench *b, sn_bench_row *row) {
    size_t n = (size_t)b->plan->repeat;
    qsort(row->gaps, row->n_gaps, sizeof *row->gaps, compare);
    row->prefill_tok_s = sn_bench_spread_of(b->figures[0], n);
    row->decode_tok_s = sn_bench_spread_of(b->figures[1], n);
    row->ttft_ms = sn_bench_spread_of(b->figures[2], n);
    sn_bench_spread last = sn_bench_spread_of(b->figures[3], n);
    if (b->of->kind == SN_BENCH_KILL) row->recovery_ms = last;
    else row->forward_tok_s = last;
}

sn_status sn_bench_run(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                       sn_progress_shown *shown, sn_err *err) {
    bench b = {.plan = plan, .of = c, .nodes = nodes, .n = c->sessions, .kill_at = -1};
    *row = (sn_bench_row){.of = *c};
    int n_all = b.n + (c->kind == SN_BENCH_BESIDE);
    sn_status status = sn_bench_head_new(plan->model, c->threads, n_all, &b.head, err);
    if (!status) status = sn_calloc(&b.sessions, (size_t)n_all, sizeof *b.sessions, err);
    for (int i = 0; i < 4 && !status; i++) status = sn_calloc(&b.figures[i], (size_t)plan->repeat, sizeof(double), err);
    if (!status)
        status = sn_calloc(&row->gaps, (size_t)plan->repeat * (size_t)b.n * (size_t)plan->new_tokens, sizeof(double), err);
    for (int i = 0; i < n_all && !status; i++)
        status = open_session(&b, &b.sessions[i], 0x5eed + (uint64_t)i * 1000003, err);
    if (!status && c->kind == SN_BENCH_DRAFT) status = sn_bench_draft_new(plan, &row->of, b.head, &b.draft, err);
    if (!status) status = repeat_all(&b, row, shown, err);
    if (!status) take_figures(&b, row);
    for (int i = 0; i < n_all && b.sessions; i++) close_session(&b.sessions[i]);
    for (int i = 0; i < 4; i++) free(b.figures[i]);
    free(b.sessions);
    sn_bench_draft_free(&b.draft);
    sn_bench_head_free(&b.head);
    return status;
}

void sn_bench_row_fini(sn_bench_row *row) {
    free(row->gaps);
    *row = (sn_bench_row){0};
}

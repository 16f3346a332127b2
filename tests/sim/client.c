/* A simulated client: a real chain and a real generator in a coroutine.
 *
 * How it works: client_main waits, then tries up to TRIES times to do what its plan says: write the turns of a chat
 * (chat), train (training.c), or poison a prefix cache (poison). Every hidden state that the chain observes
 * (compare_hidden) and every token (continue_text) is compared bit by bit with the text that the undisturbed model
 * writes (model.h). Drafts come from that text, too, with a wrong token at every so many-th position
 * (oracle_draft); states after the first wrong draft token are not compared. Between turns a session may be saved and
 * continued from the file over another route (move_to_file_and_back). Prompts may travel in chunks of a few rows, and a
 * turn may be cancelled and run again. Each call has a limit in virtual time, which sim_client_check enforces. An error
 * is allowed while faults are injected, unless its status says that the client should not have met it. */
#include "base/clock.h"
#include "base/mem.h"
#include "client/audit/audit.h"
#include "client/chain/chain_private.h" /* private: chunks of a few rows */
#include "client/generate/session_file.h"
#include "net/timeline.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"
#include "tests/support/require.h"

#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

enum {
    POISONED_TOKENS = 20,
    POISONED_UP_TO = 72,
    SEEDS = 3,
    TRIES = 4,
    DRAFT_TOKENS = 6,
    CANCEL_US = 2 * SECOND_US,
    PAUSE_US = 2 * SECOND_US,
    AUDIT_CALLS = 12
};

struct sim_client {
    swarm *swarm;
    int number, host;
    sim_client_plan plan;
    sim_actor actor;
    sim_rng random;
    sim_task *task;
    const sim_text *text;
    sn_link *link;
    sn_chain *chain;
    sn_audit *audit;
    sn_generator *generator;
    sn_draft draft;
    int wrong_from;   /* position of the first wrong draft token in flight; INT_MAX: none */
    sn_cancel cancel; /* of the link, where the plan says so */
    uint64_t run;     /* of the generator: odd during one */
    int passed;       /* the position up to which rows have left the last block */
    int64_t limit_us; /* deadline of the present call; 0: no call */
    char report[512];
};

static void append_report(sim_client *c, const char *format, ...) SN_PRINTF(2, 3);
static void append_report(sim_client *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t n = strlen(c->report);
    vsnprintf(c->report + n, sizeof c->report - n, format, args);
    va_end(args);
}

/* The longest time that a call may take: its timeout, which connecting, retries and replays share, and a fifth more. An
 * audit's checks after the call are calls of their own: to open an auditor and to bring it to the present position, the
 * check, and an arbiter in case of a difference, for every range of blocks. */
static int64_t limit_of(const sim_client *c) {
    int64_t calls = 1 + (c->plan.audit ? AUDIT_CALLS * SIM_BLOCKS : 0);
    return calls * c->plan.timeout_ms * 1000 * 6 / 5;
}

static void begin_calls(sim_client *c, int n) { c->limit_us = sim_now(c->swarm->time) + n * limit_of(c); }
static void end_calls(sim_client *c) { c->limit_us = 0; }

/* Rows have left the last block. Each chunk of a long prompt has the limits of a call; and before the one behind this
 * chunk begins, replies to others may be waited for, which were in flight when one failed. */
static void note_passed(sim_client *c, int position) {
    c->passed = position;
    int64_t limit_us = sim_now(c->swarm->time) + 2 * limit_of(c);
    if (c->limit_us && c->limit_us < limit_us) c->limit_us = limit_us;
}

static void compare_hidden(void *ctx, int block, int position, int n, const float *hidden) {
    sim_client *c = ctx;
    if (block < 0 || block > SIM_BLOCKS || position + n > SIM_CONTEXT)
        sim_fail(c->swarm, "client %d sees block %d, positions %d:%d", c->number, block, position, position + n);
    for (int i = 0; i < n && position + i < c->wrong_from; i++)
        if (memcmp(hidden + (size_t)i * SIM_EMBD, c->text->hidden[position + i][block], SIM_EMBD * sizeof *hidden))
            sim_fail(c->swarm, "client %d: other bits enter block %d at position %d", c->number, block, position + i);
    if (!block && position > c->passed) c->swarm->stats.behind++;
    if (block == SIM_BLOCKS) note_passed(c, position + n);
}

static sn_status oracle_draft(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t most,
                              int32_t *out, size_t *n_out, sn_err *err) {
    sim_client *c = ctx;
    (void)ids, (void)rng_state, (void)err;
    int n_vocab = sn_model_hparams(sim_model_get()->model)->n_vocab;
    if (sn_chain_length(c->chain) >= (int)n) /* the last token is not computed yet */
        sim_fail(c->swarm, "client %d has %zu tokens and a chain of %d: wrong drafts are left in it", c->number, n,
                 sn_chain_length(c->chain));
    if (sn_chain_length(c->chain) == (int)n - 1) c->wrong_from = INT_MAX; /* else drafts are under way */
    for (*n_out = 0; *n_out < most && n + *n_out < SIM_CONTEXT; ++*n_out) {
        size_t at = n + *n_out;
        bool wrong = at % (size_t)c->plan.drafts == 0;
        out[*n_out] = wrong ? (c->text->ids[at] + 1) % n_vocab : c->text->ids[at];
        if (wrong && (int)at < c->wrong_from) c->wrong_from = (int)at;
    }
    return SN_OK;
}

static sn_status new_audit(sim_client *c, sn_err *err) {
    const sn_audit_options options = {.model = sim_model_get()->model,
                                      .link = c->link,
                                      .device = sim_model_get()->device,
                                      .local = c->plan.audit_here,
                                      .share = sim_rng_bernoulli(&c->random, 0.5) ? 1 : 0.2,
                                      .seed = sim_rng_next(&c->random),
                                      .max_tokens = SIM_CONTEXT,
                                      .timeout_ms = c->plan.timeout_ms};
    return sn_audit_new(&options, &c->audit, err);
}

static sn_status open_link(sim_client *c, sn_err *err) {
    swarm *s = c->swarm;
    sn_seed seeds[SEEDS] = {0};
    size_t n = 0;
    for (int i = 0; i < SEEDS; i++) {
        const sim_node *node = &s->nodes[i ? sim_rng_below(&c->random, (uint64_t)s->n_nodes) : 0];
        snprintf(seeds[n].address, sizeof seeds[n].address, "%s", node->address);
        memcpy(seeds[n++].curve_key, node->identity->curve_key, SN_KEY_SIZE);
    }
    sn_transport *transport = sim_transport_new(s->net, c->host, NULL, NULL);
    sn_status status = sn_link_open_transport(&transport, seeds, n, &c->link, err);
    if (!status && c->plan.cancels) sn_link_set_cancel(c->link, &c->cancel);
    return status;
}

static sn_status open_chain(sim_client *c, sn_err *err) {
    sn_status status = c->plan.audit ? new_audit(c, err) : SN_OK;
    if (status) return status;
    sn_chain_options options = sn_chain_options_default();
    options.link = c->link;
    options.max_tokens = SIM_CONTEXT;
    options.limits.timeout_ms = c->plan.timeout_ms;
    options.limits.max_retries = c->plan.max_retries;
    options.kv.replica = c->plan.replica;
    options.routing =
        (sn_chain_routing){.push = c->plan.push, .throughput = c->plan.throughput, .seed = c->swarm->seed};
    options.verification =
        (sn_chain_verification){.receipts = c->plan.receipts, .verifier = sn_audit_verifier(c->audit)};
    if (c->plan.adapter) {
        const sim_adapter *a = sim_model_adapter(c->plan.adapter);
        options.adapter = (sn_chain_adapter){.hash = a->hash, .image = a->image.data, .bytes = a->image.len};
    }
    if (!c->swarm->bits_flipped) options.prefixes = c->swarm->prefixes;
    begin_calls(c, 1);
    status = sn_chain_open(sim_model_get()->model, &options, &c->chain, err);
    end_calls(c);
    c->passed = 0;
    if (!status && c->plan.chunk_rows) c->chain->chunk_rows_max = c->plan.chunk_rows;
    if (!status && !c->swarm->bits_flipped) sn_chain_observe(c->chain, compare_hidden, c);
    return status;
}

static sn_status open_generator(sim_client *c, sn_err *err) {
    sn_model *model = sim_model_get()->model;
    sn_sampling greedy = SN_SAMPLING_DEFAULT;
    sn_generator_parts parts = {sn_model_hparams(model),          sim_model_get()->head, c->chain, NULL, SIM_CONTEXT,
                                c->plan.drafts ? &c->draft : NULL};
    c->draft = sn_draft_make(oracle_draft, c, DRAFT_TOKENS);
    return sn_generator_new(&parts, &greedy, &c->generator, err);
}

static void close_chain(sim_client *c) {
    sn_generator_free(&c->generator);
    if (c->chain) c->swarm->stats.failovers += sn_chain_failovers(c->chain);
    if (c->audit) c->swarm->stats.bans += sn_audit_get_report(c->audit).nodes_banned;
    sn_chain_close(&c->chain);
    sn_audit_free(&c->audit);
}

/* Writes one turn, which continues the text after `from` tokens. All tokens that are delivered, by a whole turn or
 * before a failure, are those of the text. */
static sn_status continue_text(sim_client *c, int from, sn_err *err) {
    sn_generation out = {0};
    sn_generate_options options = {.max_tokens = c->plan.tokens};
    begin_calls(c, c->plan.tokens + 1);
    c->run++;
    c->wrong_from = INT_MAX;
    sn_status status = sn_generator_run(c->generator, c->text->ids, (size_t)from, &options, &out, err);
    c->run++;
    end_calls(c);
    /* If a node flips bits, the audit vouches only for a text that is complete and was checked completely. */
    bool vouched = !c->swarm->bits_flipped || (!status && !sn_audit_get_report(c->audit).unchecked);
    for (size_t i = 0; vouched && i < out.ids.n && from + (int)i < SIM_CONTEXT; i++)
        if (out.ids.ids[i] != c->text->ids[from + (int)i])
            sim_fail(c->swarm, "client %d got a wrong token at position %zu", c->number, (size_t)from + i);
    if (!status && out.ids.n != (size_t)c->plan.tokens)
        sim_fail(c->swarm, "client %d got %zu tokens, not %d", c->number, out.ids.n, c->plan.tokens);
    if (!status && sn_chain_length(c->chain) != (int)sn_generator_length(c->generator))
        sim_fail(c->swarm, "client %d: the chain holds %d tokens, the generator %zu", c->number,
                 sn_chain_length(c->chain), sn_generator_length(c->generator));
    c->swarm->stats.tokens += out.ids.n;
    c->swarm->stats.ahead += out.timings.n_ahead;
    c->swarm->stats.generations += !status;
    c->swarm->stats.adapted += !status && c->plan.adapter;
    sn_generation_fini(&out);
    return status;
}

static void cancel_run(void *owner, void *what, uint64_t which, bool ending) {
    sim_client *c = what;
    (void)owner;
    if (!ending && c->run == which) atomic_store(&c->cancel.set, 1);
}

/* The same; it may be cancelled on the way, and then goes on. */
static sn_status continue_text_at_last(sim_client *c, int from, sn_err *err) {
    if (c->plan.cancels)
        sim_schedule(c->swarm->time, sim_now(c->swarm->time) + (int64_t)sim_rng_below(&c->random, CANCEL_US),
                     cancel_run, c, c->run + 1);
    sn_status status = continue_text(c, from, err);
    const bool cancelled = atomic_exchange(&c->cancel.set, 0);
    if (!cancelled || status != SN_STOP) return status;
    c->swarm->stats.cancelled++;
    return continue_text(c, from, err);
}

/* Saves the session, closes it, and continues from the file in a new chain. */
static sn_status move_to_file_and_back(sim_client *c, sn_err *err) {
    static uint8_t secret[32] = "every simulated client's secret";
    const sn_file_key key = {secret, sizeof secret};
    sn_session_file *file = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/sim-session-%d-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid(),
             c->number);
    sn_model *model = sim_model_get()->model;
    begin_calls(c, 2 * SIM_CONTEXT);
    sn_status status = sn_session_file_write(path, &key, model, c->chain, c->generator, NULL, err);
    if (!status) status = sn_session_file_open(path, &key, model, &file, err);
    unlink(path);
    if (!status) close_chain(c);
    if (!status) status = open_chain(c, err);
    if (!status) status = open_generator(c, err);
    begin_calls(c, 2 * SIM_CONTEXT);
    if (!status) status = sn_session_file_restore(file, sim_model_get()->head, c->chain, c->generator, err);
    end_calls(c);
    c->swarm->stats.loads += !status;
    sn_session_file_close(&file);
    return status;
}

static sn_status chat(sim_client *c, sn_err *err) {
    sn_status status = open_chain(c, err);
    if (!status) status = open_generator(c, err);
    int last = SIM_CONTEXT - c->plan.tokens;
    for (int turn = 0; turn < c->plan.turns && !status; turn++) {
        const sim_text *next = c->text;
        if (turn && sim_rng_bernoulli(&c->random, 0.5))
            next = sim_model_text(c->plan.text ^ turn % 2, c->plan.adapter); /* a conversation that branches */
        int from = next->n_prompt;
        if (turn && sim_rng_bernoulli(&c->random, 0.5)) from = (int)sim_rng_between(&c->random, from, last);
        if (turn && sim_rng_bernoulli(&c->random, 0.5)) sn_sleep_us((int64_t)sim_rng_below(&c->random, 5 * SECOND_US));
        if (turn && c->plan.saves && sim_rng_bernoulli(&c->random, 0.5)) status = move_to_file_and_back(c, err);
        c->text = next; /* not before: rows of recurrent states are computed again when they come from a file */
        if (!status) status = continue_text_at_last(c, from, err);
    }
    return status;
}

/* Puts keys and values of zeros into its session, under the hashes of the text, and computes the rest of the text on
 * top of them: pages that no other session may ever get. */
static sn_status poison(sim_client *c, sn_err *err) {
    static const float zeros[SIM_BLOCKS * 2 * POISONED_TOKENS * SIM_EMBD]; /* wide enough for keys of any heads */
    sn_hash timeline[POISONED_TOKENS + 1];
    float inputs[POISONED_UP_TO][SIM_EMBD], out[(POISONED_UP_TO - POISONED_TOKENS) * SIM_EMBD];
    size_t n_hops;
    sn_status status = open_chain(c, err);
    if (status) return status;
    sn_chain_observe(c->chain, NULL, NULL);
    const sn_hop *first = sn_chain_route_hops(c->chain, &n_hops);
    sn_hasher *hasher = sn_hasher_new();
    timeline[0] = first->remote.timeline[0];
    for (int i = 0; i < POISONED_UP_TO; i++) memcpy(inputs[i], c->text->hidden[i][0], sizeof inputs[i]);
    for (int i = 0; i < POISONED_TOKENS; i++)
        timeline[i + 1] = sn_timeline_next(hasher, &timeline[i], inputs[i], SIM_EMBD);
    sn_hasher_free(hasher);
    begin_calls(c, SIM_CONTEXT);
    status = sn_chain_put_kv(c->chain, 0, POISONED_TOKENS, zeros, timeline, err);
    if (!status) status = sn_chain_resume(c->chain, POISONED_TOKENS, timeline, inputs[0], err);
    if (!status)
        status = sn_chain_step(c->chain, POISONED_TOKENS, POISONED_UP_TO - POISONED_TOKENS, inputs[POISONED_TOKENS],
                               out, err);
    c->swarm->stats.poisoned += !status;
    return status;
}

static sn_status train(sim_client *c, sn_err *err) {
    begin_calls(c, SIM_CONTEXT); /* only failures in a row are limited */
    sn_status status = sim_train(c->swarm, c->link, c->plan.adapter, c->plan.timeout_ms, c->plan.max_retries, err);
    c->swarm->stats.trained += !status;
    return status;
}

static sn_status try_once(sim_client *c, sn_err *err) {
    static sn_status (*const work[])(sim_client *, sn_err *) = {chat, train, poison};
    sn_status status = open_link(c, err);
    if (!status) status = work[c->plan.kind](c, err);
    end_calls(c);
    close_chain(c);
    sn_link_close(&c->link);
    return status;
}

/* Errors that no client meets, whatever fails around it; but a byte that changes on the way can say anything. */
static bool is_allowed(const sim_client *c, sn_status status) {
    bool is_chat = c->plan.kind == SIM_CHATS; /* nodes that do not train refuse */
    return c->swarm->garbles || (status != SN_STOP && (status != SN_REFUSED || !is_chat));
}

static void client_main(void *ctx) {
    sim_client *c = ctx;
    sn_err err = {0};
    sn_sleep_us(c->plan.begin_us);
    for (int i = 0; i < TRIES; i++) {
        sn_status status = try_once(c, &err);
        sim_trace_event(c->swarm->time, "client", (uint64_t)c->number, (uint64_t)status);
        if (!status) {
            append_report(c, "done");
            return;
        }
        c->swarm->stats.errors++;
        append_report(c, "%s; ", err.text);
        if (c->plan.must_succeed && !sim_honest_nodes_suffice(c->swarm)) {
            c->swarm->stats.excused++;
            return;
        }
        if (c->plan.must_succeed) sim_fail(c->swarm, "client %d after the faults: %s", c->number, err.text);
        if (!is_allowed(c, status)) sim_fail(c->swarm, "client %d: %s", c->number, err.text);
        sn_sleep_us(PAUSE_US);
    }
}

sim_client *sim_client_new(swarm *s, int number, const sim_client_plan *plan) {
    sim_client *c = sim_alloc(sizeof *c);
    c->swarm = s;
    c->number = number;
    c->plan = *plan;
    c->text = sim_model_text(plan->text, plan->kind == SIM_CHATS ? plan->adapter : 0);
    c->random = sim_rng_fork(&s->random);
    snprintf(c->actor.name, sizeof c->actor.name, "client%d", number);
    c->actor.offset_us = sim_rng_between(&c->random, 0, 1000 * (int64_t)SECOND_US);
    c->actor.drift_ppm = sim_rng_between(&c->random, -2000, 2000);
    c->actor.unix_offset_ms = sim_rng_between(&c->random, -3000, 3000);
    c->actor.random = sim_rng_fork(&c->random);
    c->host = sim_host_new(s->net, &c->actor, sim_identity(1000 + number)->curve_key);
    c->task = sim_task_new(s->time, &c->actor, client_main, c);
    return c;
}

void sim_client_free(sim_client **client) {
    if (!*client) return;
    sim_task_free(&(*client)->task);
    free(*client);
    *client = NULL;
}

bool sim_client_ended(const sim_client *client) { return sim_task_ended(client->task); }
const char *sim_client_report(const sim_client *client) { return client->report; }

void sim_client_check(const sim_client *c) {
    if (c->limit_us && sim_now(c->swarm->time) > c->limit_us)
        sim_fail(c->swarm, "client %d has not ended in its time: its timeout is %d ms, of %d retries", c->number,
                 c->plan.timeout_ms, c->plan.max_retries);
}

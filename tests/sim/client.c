/* A simulated client: a real chain and a real generator in a coroutine.
 *
 * How it works: client_main waits, then tries up to TRIES times to write the turns of a chat. Every hidden state
 * that the chain observes (compare_hidden) and every token (continue_text) is compared bit by bit with the text that
 * the undisturbed model writes (model.h). Drafts come from that text, too, with a wrong token at every
 * WRONG_EVERY-th position (oracle_draft); states after the first wrong draft token are not compared. Each call has a
 * limit in virtual time, which sim_client_check enforces. An error is allowed while faults are injected, unless its
 * status says that the client should not have met it. */
#include "base/clock.h"
#include "base/mem.h"
#include "client/audit/audit.h"
#include "client/generate/generator.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"
#include "tests/support/require.h"

#include <limits.h>
#include <stdarg.h>
#include <string.h>

enum { SEEDS = 3, TRIES = 4, WRONG_EVERY = 5, DRAFT_TOKENS = 6, PAUSE_US = 2 * SECOND_US };

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
    int wrong_from;   /* position of the first wrong draft token in flight; INT_MAX: none */
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

/* The longest time that a call may take: each failed node costs the timeout of a step, finding the culprit, waiting
 * for another candidate, opening a session there, and replaying all steps; and this for every hop. */
static int64_t limit_of(const sim_client *c) {
    int64_t one_ms =
        c->plan.timeout_ms + 2 * SIM_BLOCKS * 1000 + 3000 + SIM_BLOCKS * 5000 + SIM_BLOCKS * c->plan.timeout_ms;
    return (c->plan.max_retries + 2) * one_ms * SIM_BLOCKS * 1000;
}

static void begin_call(sim_client *c) { c->limit_us = sim_now(c->swarm->time) + limit_of(c); }

static void compare_hidden(void *ctx, int block, int position, int n, const float *hidden) {
    sim_client *c = ctx;
    if (block < 0 || block > SIM_BLOCKS || position + n > SIM_CONTEXT)
        sim_fail(c->swarm, "client %d sees block %d, positions %d:%d", c->number, block, position, position + n);
    for (int i = 0; i < n && position + i < c->wrong_from; i++)
        if (memcmp(hidden + (size_t)i * SIM_EMBD, c->text->hidden[position + i][block], SIM_EMBD * sizeof *hidden))
            sim_fail(c->swarm, "client %d: other bits enter block %d at position %d", c->number, block, position + i);
}

static sn_status oracle_draft(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t most,
                              int32_t *out, size_t *n_out, sn_err *err) {
    sim_client *c = ctx;
    (void)ids, (void)rng_state, (void)err;
    int n_vocab = sn_model_hparams(sim_model_get()->model)->n_vocab;
    c->wrong_from = INT_MAX;
    for (*n_out = 0; *n_out < most && n + *n_out < SIM_CONTEXT; ++*n_out) {
        size_t at = n + *n_out;
        bool wrong = at % WRONG_EVERY == 0;
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

static sn_status open_all(sim_client *c, sn_err *err) {
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
    if (status) return status;
    if (c->plan.audit) status = new_audit(c, err);
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
    begin_call(c);
    status = sn_chain_open(sim_model_get()->model, &options, &c->chain, err);
    if (!status && !c->swarm->bits_flipped) sn_chain_observe(c->chain, compare_hidden, c);
    return status;
}

static void close_all(sim_client *c) {
    if (c->chain) c->swarm->stats.failovers += sn_chain_failovers(c->chain);
    if (c->audit) c->swarm->stats.bans += sn_audit_get_report(c->audit).nodes_banned;
    sn_chain_close(&c->chain);
    sn_audit_free(&c->audit);
    sn_link_close(&c->link);
}

/* Writes one turn, which continues the text after `from` tokens. All tokens that are delivered, by a whole turn or
 * before a failure, are those of the text. */
static sn_status continue_text(sim_client *c, sn_generator *generator, int from, sn_err *err) {
    sn_generation out = {0};
    sn_generate_options options = {.max_tokens = c->plan.tokens};
    begin_call(c);
    c->wrong_from = INT_MAX;
    c->limit_us += limit_of(c) * c->plan.tokens; /* limit_of is for one step */
    sn_status status = sn_generator_run(generator, c->text->ids, (size_t)from, &options, &out, err);
    /* If a node flips bits, the audit vouches only for a text that is complete and was checked completely. */
    bool vouched = !c->swarm->bits_flipped || (!status && !sn_audit_get_report(c->audit).unchecked);
    for (size_t i = 0; vouched && i < out.ids.n && from + (int)i < SIM_CONTEXT; i++)
        if (out.ids.ids[i] != c->text->ids[from + (int)i])
            sim_fail(c->swarm, "client %d got a wrong token at position %zu", c->number, (size_t)from + i);
    if (!status && out.ids.n != (size_t)c->plan.tokens)
        sim_fail(c->swarm, "client %d got %zu tokens, not %d", c->number, out.ids.n, c->plan.tokens);
    c->swarm->stats.tokens += out.ids.n;
    c->swarm->stats.generations += !status;
    sn_generation_fini(&out);
    return status;
}

static sn_status try_once(sim_client *c, sn_err *err) {
    sn_generator *generator = NULL;
    sn_draft draft = sn_draft_make(oracle_draft, c, DRAFT_TOKENS);
    sn_sampling greedy = SN_SAMPLING_DEFAULT;
    sn_status status = open_all(c, err);
    if (!status) {
        sn_model *model = sim_model_get()->model;
        sn_generator_parts parts = {sn_model_hparams(model),       sim_model_get()->head, c->chain, NULL, SIM_CONTEXT,
                                    c->plan.drafts ? &draft : NULL};
        status = sn_generator_new(&parts, &greedy, &generator, err);
    }
    int last = SIM_CONTEXT - c->plan.tokens;
    for (int turn = 0; turn < c->plan.turns && !status; turn++) {
        if (turn && sim_rng_bernoulli(&c->random, 0.5))
            c->text = sim_model_text(c->plan.text ^ turn % 2); /* a conversation that branches */
        int from = c->text->n_prompt;
        if (turn && sim_rng_bernoulli(&c->random, 0.5)) from = (int)sim_rng_between(&c->random, from, last);
        if (turn && sim_rng_bernoulli(&c->random, 0.5)) sn_sleep_us((int64_t)sim_rng_below(&c->random, 5 * SECOND_US));
        status = continue_text(c, generator, from, err);
    }
    sn_generator_free(&generator);
    c->limit_us = 0;
    close_all(c);
    return status;
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
        if (c->plan.must_succeed) sim_fail(c->swarm, "client %d after the faults: %s", c->number, err.text);
        if (status == SN_STOP || status == SN_REFUSED) sim_fail(c->swarm, "client %d: %s", c->number, err.text);
        sn_sleep_us(PAUSE_US);
    }
}

sim_client *sim_client_new(swarm *s, int number, const sim_client_plan *plan) {
    sim_client *c = sim_alloc(sizeof *c);
    c->swarm = s;
    c->number = number;
    c->plan = *plan;
    c->text = sim_model_text(plan->text);
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
        sim_fail(c->swarm, "client %d has not ended in its time", c->number);
}

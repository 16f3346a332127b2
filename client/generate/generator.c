/* The generation loop.
 *
 * timeline[0, length) are the tokens that the chain has computed; timeline[length] may be the next one, sampled but not
 * yet computed (chosen). One round of call_generate is: call_feed runs the tokens that are new to the chain through it,
 * and computes the logits of the last one. call_choose_accepted samples a token from them.
 *
 * With a draft a round is call_run_ahead: windows of tokens go through the chain, the first one of a sampled token with
 * draft tokens behind it, and while it is under way further ones of draft tokens only (call_guess). Of each that has
 * passed (call_take) the logits of all its tokens are computed; call_choose_accepted samples a token from the first
 * ones and compares it with the draft token at its place. While they are equal, the next logits are valid, too, and it
 * samples from these. Behind the last accepted token the chain is rewound, and what is under way is given up.
 *
 * Text: each token's bytes go through stop_strings.h, which holds back incomplete characters and possible beginnings of
 * stop strings, to on_text.
 *
 * After a failed audit check (call_retract) the chain ends at the last position whose results are right. Ids and text
 * are cut there, the sampler gets the RNG state that it had before the first wrong token (kept for every token), and
 * the loop continues: the text is then the one that right nodes would have given. */
#include "client/generate/generator.h"

#include "base/clock.h"
#include "base/mem.h"
#include "client/chain/hop.h"
#include "client/generate/ahead.h"
#include "client/generate/stop_strings.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_ROWS = 2048, /* an interrupt is noticed between two steps of so many rows */
    LOCAL_ROWS = 512,
    TEXT_CAP = 1 << 28
};

struct sn_generator {
    sn_generator_parts parts;
    sn_sampler *sampler;
    int32_t *timeline; /* (max_context + 1): tokens that the chain has computed, then the one just sampled */
    size_t length;     /* of those that it has computed */
    bool chosen;       /* timeline[length] was sampled */
    float *hidden;     /* (CHUNK_ROWS, n_embd): input of the chain */
    float *output;     /* (CHUNK_ROWS, n_embd): its output */
    float *logits;     /* (n_rows, n_vocab) */
    size_t n_rows;     /* tokens that can be sampled after one step: the draft tokens, and one */
    size_t n_drafted;  /* draft tokens in timeline from `length` on, which the chain has computed, too */
    size_t output_at;  /* position of the first row of output */
    size_t told;       /* up to this position who drafts was told what the chain has computed */
    size_t drafted_to; /* where the draft tokens end that timeline has from `length` on, computed or not */
    sn_ahead ahead;    /* of windows of them */
};

/* One call of sn_generator_run. */
typedef struct generator_call {
    sn_generator *g;
    const sn_generate_options *options;
    sn_generation *out;
    sn_stop_strings stop_strings;
    sn_buf token;              /* bytes of one token */
    size_t n_prompt, capacity; /* tokens of the prompt; capacity of out->ids */
    sn_rng_state *rng_states;  /* (capacity): before each id was sampled */
    int64_t began_us;
    bool done;         /* the last token was sampled */
    bool expects;      /* the LM head knows that rows are coming */
    bool mute;         /* on_text is not called: text that it already got is made again */
    bool stands_alone; /* a space at the beginning of the first text is the tokenizer's, not the text's ... */
    bool has_begun;    /* ... and the first text has come */
    sn_err *err;
} generator_call;

const char *sn_finish_name(sn_finish finish) {
    static const char *const names[] = {"stop", "stop_text", "length", "interrupted"};
    return names[finish];
}

/* Tells who drafts what the chain has computed of the tokens up to `end`, of the n_ids that are certain. Those from
 * `end` on may be others than when something was drafted behind them. */
static sn_status generator_tell(sn_generator *g, size_t end, size_t n_ids, sn_err *err) {
    const size_t from = g->told > g->output_at && g->told <= end ? g->told : g->output_at;
    const float *rows = g->output + (from - g->output_at) * (size_t)g->parts.hp->n_embd;
    if (!g->parts.draft) return SN_OK;
    sn_draft_forget(g->parts.draft, end);
    g->told = end;
    return end > from ? sn_draft_note_rows(g->parts.draft, g->timeline, n_ids, from, end - from, rows, err) : SN_OK;
}

/* The tokens from position n on are about to change. */
static void generator_forget(sn_generator *g, size_t n) {
    if (g->parts.draft) sn_draft_forget(g->parts.draft, n);
    if (g->told > n) g->told = n;
}

/* The chain needs rows of its timeline again. */
static sn_status generator_rows(void *ctx, int position, int n, float *out, sn_err *err) {
    const sn_generator *g = ctx;
    return sn_lm_head_embed(g->parts.head, g->timeline + position, n, out, err);
}

sn_status sn_generator_new(const sn_generator_parts *parts, const sn_sampling *sampling, sn_generator **out,
                           sn_err *err) {
    sn_generator *g = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&g, 1, sizeof *g, err);
    if (status) return status;
    g->parts = *parts;
    size_t n_embd = (size_t)parts->hp->n_embd, n_vocab = (size_t)parts->hp->n_vocab;
    status = sn_sampler_new(sampling, parts->hp->n_vocab, &g->sampler, err);
    if (!status) status = sn_calloc(&g->timeline, (size_t)parts->max_context + 1, sizeof *g->timeline, err);
    if (!status) status = sn_calloc(&g->hidden, n_embd * CHUNK_ROWS, sizeof *g->hidden, err);
    if (!status) status = sn_calloc(&g->output, n_embd * CHUNK_ROWS, sizeof *g->output, err);
    g->n_rows = parts->draft ? parts->draft->n_max + 1 : 1;
    if (!status) status = sn_calloc(&g->logits, g->n_rows * n_vocab, sizeof *g->logits, err);
    if (!status) sn_chain_set_source(parts->chain, &(sn_row_source){generator_rows, g});
    if (status) sn_generator_free(&g);
    *out = g;
    return status;
}

void sn_generator_free(sn_generator **generator) {
    sn_generator *g = *generator;
    if (!g) return;
    sn_sampler_free(&g->sampler);
    free(g->timeline);
    free(g->hidden);
    free(g->output);
    free(g->logits);
    free(g);
    *generator = NULL;
}

sn_status sn_generator_set_sampling(sn_generator *g, const sn_sampling *sampling, bool keep_rng, sn_err *err) {
    sn_sampler *sampler = NULL;
    sn_rng_state rng_state = sn_sampler_rng_state(g->sampler);
    sn_status status = sn_sampler_new(sampling, g->parts.hp->n_vocab, &sampler, err);
    if (status) return status;
    if (keep_rng) sn_sampler_set_rng_state(sampler, &rng_state);
    sn_sampler_free(&g->sampler);
    g->sampler = sampler;
    return SN_OK;
}

const int32_t *sn_generator_ids(const sn_generator *generator, size_t *n) {
    *n = generator->length + generator->chosen;
    return generator->timeline;
}

sn_rng_state sn_generator_rng_state(const sn_generator *generator) { return sn_sampler_rng_state(generator->sampler); }

sn_status sn_generator_resume(sn_generator *g, const int32_t *ids, size_t n, size_t seen, const sn_rng_state *rng_state,
                              sn_err *err) {
    if (n > (size_t)g->parts.max_context || n - seen > 1)
        return sn_fail(err, SN_REFUSED, "a timeline of %zu tokens does not fit into a context of %d", n,
                       g->parts.max_context);
    generator_forget(g, 0);
    memcpy(g->timeline, ids, n * sizeof *ids);
    g->length = seen;
    g->chosen = n > seen;
    sn_sampler_set_rng_state(g->sampler, rng_state);
    return SN_OK;
}

size_t sn_generator_length(const sn_generator *generator) { return generator->length; }

void sn_generation_fini(sn_generation *generation) {
    sn_token_ids_fini(&generation->ids);
    sn_buf_fini(&generation->text);
    *generation = (sn_generation){0};
}

/* After a call that may have failed: the generator and its chain have the same timeline. */
static void generator_agree(sn_generator *g) {
    size_t computed = (size_t)sn_chain_length(g->parts.chain);
    if (computed < g->length) {
        g->length = computed;
        g->chosen = false;
    }
    sn_chain_rewind(g->parts.chain, (int)g->length);
}

/* -- in steps -- */

static sn_status generator_check_ids(const sn_generator *g, const int32_t *ids, size_t n, sn_err *err) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= g->parts.hp->n_vocab)
            return sn_fail(err, SN_REFUSED, "token %d at index %zu is not in this model's vocabulary of %d", ids[i], i,
                           g->parts.hp->n_vocab);
    return SN_OK;
}

/* Runs timeline[length, end) through the chain. logits (end - from, n_vocab): of the tokens from `from` on; may be
 * NULL. The output of the last token is the last row of g->output. */
static sn_status generator_feed(sn_generator *g, size_t end, size_t from, float *logits, sn_err *err) {
    size_t n_embd = (size_t)g->parts.hp->n_embd, n_vocab = (size_t)g->parts.hp->n_vocab;
    sn_status status = SN_OK;
    if (g->length < end) status = sn_chain_expect(g->parts.chain, (int)g->length, (int)end, err);
    for (size_t n; g->length < end && !status; g->length += status ? 0 : n) {
        n = sn_min_size(CHUNK_ROWS, end - g->length);
        status = sn_lm_head_embed(g->parts.head, g->timeline + g->length, (int)n, g->hidden, err);
        if (!status) status = sn_chain_step(g->parts.chain, (int)g->length, (int)n, g->hidden, g->output, err);
        g->output_at = g->length;
        if (!status) status = generator_tell(g, g->length + n, end, err);
        size_t skip = from > g->length ? sn_min_size(from - g->length, n) : 0;
        if (!status && logits && skip < n)
            status = sn_lm_head_logits(g->parts.head, g->output + skip * n_embd, (int)(n - skip),
                                       logits + (g->length + skip - from) * n_vocab, err);
        if (!status) memmove(g->output, g->output + (n - 1) * n_embd, n_embd * sizeof *g->output);
    }
    return status;
}

sn_status sn_generator_append(sn_generator *g, const int32_t *ids, size_t n, float *logits, sn_err *err) {
    size_t length = g->length, from = length + g->chosen, end = from + n, most = (size_t)g->parts.max_context;
    bool chosen = g->chosen;
    if (from > most || n > most - from) /* from > most: the last token was sampled when the context was full */
        return sn_fail(err, SN_REFUSED, "%zu more tokens do not fit: the timeline has %zu, and the context holds %d", n,
                       from, g->parts.max_context);
    sn_status status = generator_check_ids(g, ids, n, err);
    if (status || !n) return status;
    generator_forget(g, from);
    memcpy(g->timeline + from, ids, n * sizeof *ids);
    status = generator_feed(g, end, from, logits, err);
    if (status) g->length = length;
    g->chosen = status && chosen;
    generator_agree(g);
    return status;
}

sn_status sn_generator_next_logits(sn_generator *g, float **logits, sn_err *err) {
    size_t end = g->length + g->chosen;
    if (!end) return sn_fail(err, SN_REFUSED, "the timeline is empty: append a token first");
    if (!g->chosen) g->length--; /* its output is not kept: the last token is computed again */
    g->chosen = true;
    sn_status status = generator_feed(g, end, end, NULL, err);
    if (status) return status;
    g->chosen = false;
    *logits = g->logits;
    return sn_lm_head_logits(g->parts.head, g->output, 1, g->logits, err);
}

void sn_generator_rewind(sn_generator *g, size_t n) {
    if (n <= g->length) {
        g->length = n;
        g->chosen = false;
    }
    generator_agree(g);
}

/* -- a call -- */

static bool call_is_interrupted(const generator_call *r) { return sn_is_cancelled(r->options->cancel); }

static sn_status call_tell(generator_call *r, size_t end, size_t n_ids) {
    int64_t before = sn_now_us();
    sn_status status = generator_tell(r->g, end, n_ids, r->err);
    r->out->timings.draft_us += sn_now_us() - before;
    return status;
}

typedef struct prefill_watch {
    const sn_generate_options *options;
    size_t before, total; /* tokens: computed before this step, and in all */
} prefill_watch;

static void tell_prefill(void *watch, int rows) {
    const prefill_watch *w = watch;
    w->options->on_prefill(w->options->ctx, w->before + (size_t)rows, w->total);
}

/* Local blocks compute one step in batches of so many rows anyway; between two of them progress can be told. */
static size_t step_rows_max(const sn_chain *chain) {
    size_t n, i = 0;
    const sn_hop *hops = sn_chain_route_hops(chain, &n);
    while (i < n && hops[i].is_local) i++;
    return i == n ? LOCAL_ROWS : CHUNK_ROWS;
}

/* Runs timeline[length, end) through the chain, and computes the logits of the token at `end`. */
static sn_status call_feed(generator_call *r, size_t end) {
    sn_generator *g = r->g;
    size_t n_embd = (size_t)g->parts.hp->n_embd, n = 0;
    sn_chain *chain = g->parts.chain;
    bool watched = r->options->on_prefill && !r->out->ids.n;
    prefill_watch watch = {r->options, 0, end - g->length};
    size_t first = g->length, most = step_rows_max(chain);
    sn_status status = SN_OK;
    g->n_drafted = 0;
    if (watched) tell_prefill(&watch, 0);
    if (watched) sn_chain_watch(chain, tell_prefill, &watch);
    while (!status && g->length < end) {
        n = sn_min_size(most, end - g->length);
        int64_t before = sn_now_us();
        status = sn_lm_head_embed(g->parts.head, g->timeline + g->length, (int)n, g->hidden, r->err);
        r->out->timings.client_us += sn_now_us() - before;
        const bool last = g->length + n == end;
        if (last) sn_lm_head_expect(g->parts.head);
        if (!status) status = sn_chain_step(g->parts.chain, (int)g->length, (int)n, g->hidden, g->output, r->err);
        if (last) sn_lm_head_unexpect(g->parts.head);
        g->output_at = g->length;
        if (!status) status = call_tell(r, sn_min_size(g->length + n, end), end);
        if (status) break;
        g->length += n;
        g->chosen = false;
        watch.before = g->length - first;
        if (watched) tell_prefill(&watch, 0);
        if (call_is_interrupted(r)) break;
    }
    sn_chain_watch(chain, NULL, NULL);
    if (status) return status;
    int64_t before = sn_now_us();
    status = sn_lm_head_logits(g->parts.head, g->output + (n - 1) * n_embd, 1, g->logits, r->err);
    r->out->timings.client_us += sn_now_us() - before;
    return status;
}

/* Makes the prompt the timeline. What both have in common is kept, except the prompt's last token, whose step gives the
 * first logits. */
static sn_status call_begin(generator_call *r, const int32_t *prompt, size_t n_prompt) {
    sn_generator *g = r->g;
    if (!n_prompt) return sn_fail(r->err, SN_REFUSED, "the prompt is empty: give at least one token");
    if (n_prompt > (size_t)g->parts.max_context)
        return sn_fail(r->err, SN_REFUSED,
                       "the prompt has %zu tokens, and the context holds %d: shorten it, or raise --ctx", n_prompt,
                       g->parts.max_context);
    sn_status status = generator_check_ids(g, prompt, n_prompt, r->err);
    if (status) return status;
    size_t known = sn_min_size(g->length, (size_t)sn_chain_length(g->parts.chain)), same = 0;
    while (same < known && same + 1 < n_prompt && g->timeline[same] == prompt[same]) same++;
    sn_chain_rewind(g->parts.chain, (int)same); /* before the tokens behind it change */
    generator_forget(g, same);
    memcpy(g->timeline, prompt, n_prompt * sizeof *prompt);
    g->length = same;
    g->chosen = false;
    status = sn_chain_expect(g->parts.chain, (int)same, (int)n_prompt, r->err);
    if (!status) status = sn_chain_attach_prefix(g->parts.chain, prompt, n_prompt, r->options->prefix_scope, r->err);
    g->length = (size_t)sn_chain_length(g->parts.chain);
    r->out->timings.prompt_tokens = n_prompt;
    r->out->timings.reused_tokens = g->length;
    return status;
}

static sn_status call_keep_id(generator_call *r, int32_t id, const sn_rng_state *rng_state) {
    sn_token_ids *ids = &r->out->ids;
    if (ids->n == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 64;
        int32_t *grown = realloc(ids->ids, capacity * sizeof *grown);
        if (!grown) return sn_fail(r->err, SN_STOP, "out of memory for %zu tokens", capacity);
        ids->ids = grown;
        sn_rng_state *rng_states = realloc(r->rng_states, capacity * sizeof *rng_states);
        if (!rng_states) return sn_fail(r->err, SN_STOP, "out of memory for %zu tokens", capacity);
        r->rng_states = rng_states;
        r->capacity = capacity;
    }
    r->rng_states[ids->n] = *rng_state;
    ids->ids[ids->n++] = id;
    return SN_OK;
}

/* Gives on_text the text that was added since text[from]. */
static sn_status call_emit(generator_call *r, size_t from) {
    size_t n = r->out->text.len - from;
    if (!n || !r->options->on_text || r->options->when_checked || r->mute) return SN_OK;
    return r->options->on_text(r->options->ctx, (const char *)r->out->text.data + from, n, r->err);
}

static sn_status call_take_text(generator_call *r, int32_t id) {
    /* Models round their vocabulary up: ids beyond the tokenizer's have no text. */
    if (!r->g->parts.tokenizer || id >= sn_tokenizer_n_vocab(r->g->parts.tokenizer)) return SN_OK;
    size_t from = r->out->text.len;
    r->token.len = 0;
    sn_status status = sn_tokenizer_decode(r->g->parts.tokenizer, id, false, &r->token, r->err);
    if (status || !r->token.len) return status;
    size_t skip = r->stands_alone && !r->has_begun && r->token.data[0] == ' ';
    r->has_begun = true;
    if (r->token.len > skip)
        status =
            sn_stop_strings_push(&r->stop_strings, r->token.data + skip, r->token.len - skip, &r->out->text, r->err);
    return status ? status : call_emit(r, from);
}

/* Samples the next token from its logits; sets *done and out->finish when it is the last one. */
static sn_status call_choose(generator_call *r, float *logits, bool *done) {
    sn_generator *g = r->g;
    int32_t id;
    int64_t before = sn_now_us();
    sn_rng_state rng_state = sn_sampler_rng_state(g->sampler);
    if (r->options->change_logits) r->options->change_logits(r->options->ctx, g->timeline, g->length, logits);
    sn_status status = sn_sampler_sample(g->sampler, logits, g->timeline, g->length, &id, r->err);
    r->out->timings.client_us += sn_now_us() - before;
    if (!status) status = call_keep_id(r, id, &rng_state);
    if (!status && r->options->on_token) status = r->options->on_token(r->options->ctx, id, logits, r->err);
    if (status) return status;
    if (r->out->ids.n == 1) r->out->timings.first_token_us = sn_now_us() - r->began_us;
    g->timeline[g->length] = id;
    g->chosen = true;
    *done = true;
    if (g->parts.tokenizer && sn_tokenizer_is_eog(g->parts.tokenizer, id) && !r->options->ignore_eos) {
        r->out->finish = SN_FINISH_STOP;
        return SN_OK;
    }
    status = call_take_text(r, id);
    if (status) return status;
    if (r->stop_strings.stopped)
        r->out->finish = SN_FINISH_STOP_TEXT;
    else if (call_is_interrupted(r))
        r->out->finish = SN_FINISH_INTERRUPTED;
    else if ((r->options->max_tokens && r->out->ids.n >= (size_t)r->options->max_tokens) ||
             g->length == (size_t)g->parts.max_context)
        r->out->finish = SN_FINISH_LENGTH;
    else
        *done = false;
    return SN_OK;
}

/* Samples the next token, and further ones as long as each is equal to the draft token: then the chain has computed
 * what follows it. What the chain has computed beyond that is dropped. */
static sn_status call_choose_accepted(generator_call *r, bool *done) {
    sn_generator *g = r->g;
    size_t n_accepted = 0, first = g->length;
    sn_status status;
    for (;;) {
        float *logits = g->logits + n_accepted * (size_t)g->parts.hp->n_vocab;
        int32_t expected = g->timeline[g->length];
        status = call_choose(r, logits, done);
        if (status || n_accepted == g->n_drafted || g->timeline[g->length] != expected) break;
        n_accepted++;
        if (*done) break;
        g->length++;
        g->chosen = false;
    }
    r->out->timings.n_accepted += n_accepted;
    if (!status && !*done && g->parts.draft) sn_draft_note_accepted(g->parts.draft, first, g->n_drafted, n_accepted);
    if (!status) status = call_tell(r, g->length, g->length + g->chosen);
    sn_chain_rewind(g->parts.chain, (int)g->length);
    return status;
}

/* -- windows of draft tokens -- */

/* Drafts tokens up to timeline[end] behind those that are there. */
static sn_status call_draft(generator_call *r, size_t from, size_t end) {
    sn_generator *g = r->g;
    const sn_rng_state rng_state = sn_sampler_rng_state_after(g->sampler, from - g->length - 1);
    size_t n = 0;
    const int64_t began_us = sn_now_us();
    sn_status status =
        sn_draft_propose(g->parts.draft, g->timeline, from, &rng_state, end - from, g->timeline + from, &n, r->err);
    const int64_t us = sn_now_us() - began_us;
    sn_ahead_note_drafts(&g->ahead, n, us);
    r->out->timings.draft_us += us;
    r->out->timings.n_drafted += n;
    g->drafted_to = from + n;
    return status;
}

static void call_expect(generator_call *r, bool expects) {
    if (expects && !r->expects) sn_lm_head_expect(r->g->parts.head);
    if (!expects && r->expects) sn_lm_head_unexpect(r->g->parts.head);
    r->expects = expects;
}

/* Where several windows may be under way, they need not be as long as drafts are accepted. */
static size_t call_window_length(const generator_call *r) {
    const sn_generator *g = r->g;
    sn_draft *draft = g->parts.draft;
    const size_t fitting = sn_ahead_length(&g->ahead, draft->n_max);
    draft->least = fitting && sn_ahead_pays(&g->ahead, 1, fitting, fitting) ? fitting : 0;
    return draft->least ? draft->least : draft->length;
}

/* The next window: of the sampled token and draft tokens, or of draft tokens only, if that pays. At most as many tokens
 * are computed as can still be sampled, less one, because the last one is sampled and never computed. */
static sn_status call_guess(void *ctx, sn_guess *guess, sn_err *err) {
    generator_call *r = ctx;
    sn_generator *g = r->g;
    const size_t position = (size_t)guess->position, sure = guess->n_windows ? 0 : 1, length = call_window_length(r),
                 wanted = (size_t)r->options->max_tokens;
    size_t most = (size_t)g->parts.max_context;
    (void)err; /* it is the call's */
    if (wanted) most = sn_min_size(most, r->n_prompt + wanted - 1);
    most = sn_min_size(most, position + sn_min_size((size_t)guess->n, length + sure));
    guess->n = 0;
    if (most < position + sure || call_is_interrupted(r)) return SN_OK;
    if (!sure && !sn_ahead_pays(&g->ahead, guess->n_windows, (size_t)guess->n_ahead - 1, most - position)) return SN_OK;
    sn_status status = SN_OK;
    if (g->drafted_to < position + sure) g->drafted_to = position + sure;
    if (g->drafted_to < most) status = call_draft(r, g->drafted_to, most);
    most = sn_min_size(most, g->drafted_to);
    if (status || most == position) return status;
    guess->n = (int)(most - position);
    call_expect(r, true);
    const int64_t before = sn_now_us();
    status = sn_lm_head_embed(g->parts.head, g->timeline + position, guess->n, guess->rows, r->err);
    r->out->timings.client_us += sn_now_us() - before;
    return status;
}

/* A window has passed. */
static sn_status call_take(void *ctx, sn_window *window, sn_err *err) {
    generator_call *r = ctx;
    sn_generator *g = r->g;
    const size_t n = (size_t)window->n, end = (size_t)window->position + n;
    const bool guessed = end < g->drafted_to;
    const int32_t expected = g->timeline[end];
    const size_t before = r->out->timings.n_accepted;
    const int64_t began_us = sn_now_us();
    bool done = false;
    (void)err; /* it is the call's */
    call_expect(r, false);
    memcpy(g->output, window->out, n * (size_t)g->parts.hp->n_embd * sizeof *g->output);
    g->output_at = (size_t)window->position;
    sn_status status = sn_lm_head_logits(g->parts.head, g->output, window->n, g->logits, r->err);
    const int64_t head_us = sn_now_us() - began_us;
    r->out->timings.client_us += head_us;
    r->out->timings.decode_steps++;
    r->out->timings.n_ahead += window->guessed;
    g->length = (size_t)window->position + 1;
    g->chosen = false;
    g->n_drafted = n - 1;
    if (!status) status = call_choose_accepted(r, &done);
    if (status) g->drafted_to = 0;
    const bool right = !status && !done && g->length == end && (!guessed || g->timeline[end] == expected);
    if (!right || !guessed) g->drafted_to = g->length + g->chosen;
    if (right && guessed) r->out->timings.n_accepted++;
    const size_t n_right = r->out->timings.n_accepted - before;
    if (!status && !done) sn_ahead_note_judged(&g->ahead, g->n_drafted + guessed, n_right);
    r->out->timings.n_judged += n_right + (!done && n_right < g->n_drafted + guessed);
    sn_ahead_note_window(&g->ahead, window, head_us);
    if (!window->guessed) r->out->timings.n_laps++;
    if (!window->guessed) r->out->timings.laps_us += window->lap_us + head_us;
    window->end = (int)g->length;
    window->next = done ? SN_GUESSES_DONE : right ? SN_GUESSES_RIGHT : SN_GUESSES_WRONG;
    r->done = done;
    return status;
}

/* Windows pass until the text ends, or other work is due. */
static sn_status call_run_ahead(generator_call *r) {
    sn_generator *g = r->g;
    const sn_guesses guesses = {call_guess, call_take, r, (int)g->n_rows};
    g->drafted_to = g->length + 1;
    sn_status status = sn_chain_step_ahead(g->parts.chain, (int)g->length, &guesses, r->err);
    call_expect(r, false);
    return status;
}

/* After a failed audit check: retracts the tokens that were sampled from wrong results. The token at the chain's end is
 * right, because it was sampled from the results before it. */
static sn_status call_retract(generator_call *r, size_t n_prompt) {
    sn_generator *g = r->g;
    sn_generation *out = r->out;
    size_t emitted = out->text.len, end = (size_t)sn_chain_length(g->parts.chain), kept = 0;
    g->length = end;
    generator_forget(g, end);
    if (end >= n_prompt) kept = sn_min_size(end + 1 - n_prompt, out->ids.n);
    out->timings.retracted += out->ids.n - kept;
    if (kept < out->ids.n) sn_sampler_set_rng_state(g->sampler, &r->rng_states[kept]);
    out->ids.n = kept;
    out->text.len = 0;
    r->has_begun = false;
    sn_stop_strings_fini(&r->stop_strings);
    sn_status status = sn_stop_strings_init(&r->stop_strings, r->options->stops, r->options->n_stops, r->err);
    r->mute = true;
    for (size_t i = 0; i < kept && !status; i++) status = call_take_text(r, out->ids.ids[i]);
    r->mute = false;
    if (status || emitted == out->text.len || !r->options->on_text || r->options->when_checked) return status;
    if (!r->options->on_retract)
        return sn_fail(r->err, SN_RETRY, "a node gave wrong results: the text after its first %zu bytes is wrong",
                       out->text.len);
    return r->options->on_retract(r->options->ctx, (const char *)out->text.data, out->text.len, r->err);
}

/* With some tokenizers the first text of all begins with a space that does not belong to it. That concerns the text of
 * an answer, and text after a prompt whose tokens have no text. */
static sn_status call_check_lead_space(generator_call *r, const int32_t *prompt, size_t n_prompt) {
    const sn_tokenizer *tokenizer = r->g->parts.tokenizer;
    sn_status status = SN_OK;
    if (!tokenizer || !sn_tokenizer_strips_space(tokenizer)) return SN_OK;
    r->token.len = 0;
    for (size_t i = 0; i < n_prompt && !r->options->is_answer && !r->token.len && !status; i++)
        if (prompt[i] < sn_tokenizer_n_vocab(tokenizer))
            status = sn_tokenizer_decode(tokenizer, prompt[i], false, &r->token, r->err);
    r->stands_alone = !r->token.len;
    return status;
}

/* A cancelled step ends a generation as an interrupt does; text that is not to be seen unchecked stays unseen. */
static bool call_was_cancelled(generator_call *r, sn_status status) {
    if (status != SN_STOP || !call_is_interrupted(r) || r->options->when_checked) return false;
    r->out->finish = SN_FINISH_INTERRUPTED;
    return true;
}

static sn_status call_generate(generator_call *r, size_t n_prompt) {
    sn_generate_timings *t = &r->out->timings;
    sn_chain *chain = r->g->parts.chain;
    sn_status status = SN_OK;
    r->n_prompt = n_prompt;
    for (bool done = false; !status && !done;) {
        const size_t before = r->out->ids.n;
        const bool ahead = r->g->parts.draft && before && n_prompt + before == r->g->length + 1;
        r->done = false;
        status = ahead ? call_run_ahead(r) : call_feed(r, n_prompt + before);
        done = r->done;
        if (call_was_cancelled(r, status)) return SN_OK;
        if (status && before && r->err->reason == SN_REASON_TOO_LONG) { /* as where the context is full */
            r->out->finish = SN_FINISH_LENGTH;
            done = true;
            status = SN_OK;
        }
        if (!t->prefill_us)
            t->prefill_us = sn_now_us() - r->began_us;
        else if (!status && !ahead && !done)
            t->decode_steps++;
        if (!status && !done && (!r->out->ids.n || ahead) && call_is_interrupted(r)) {
            r->out->finish = SN_FINISH_INTERRUPTED;
            return SN_OK;
        }
        if (!status && !ahead && !done) status = call_choose_accepted(r, &done);
        if (before) t->decode_tokens += r->out->ids.n - before;
        if (!status && done) status = sn_chain_audit(chain, r->err);
        if (!status && done && r->options->when_checked && sn_chain_audit_is_incomplete(chain))
            status = sn_fail(r->err, SN_RETRY, "the text is not shown: the nodes that were to check it failed");
        if (call_was_cancelled(r, status)) return SN_OK;
        if (status == SN_REBUILD && sn_chain_audit_failed(chain)) {
            status = call_retract(r, n_prompt);
            done = false;
        }
        if (r->out->ids.n > 1) t->decode_us = sn_now_us() - r->began_us - t->first_token_us;
    }
    return status;
}

sn_status sn_generator_run(sn_generator *generator, const int32_t *prompt, size_t n_prompt,
                           const sn_generate_options *options, sn_generation *out, sn_err *err) {
    *out = (sn_generation){0};
    generator_call r = {.g = generator, .options = options, .out = out, .began_us = sn_now_us(), .err = err};
    sn_buf_init(&out->text, TEXT_CAP);
    sn_buf_init(&r.token, 1 << 20);
    sn_status status = sn_stop_strings_init(&r.stop_strings, options->stops, options->n_stops, err);
    if (!status) status = call_begin(&r, prompt, n_prompt);
    if (!status) status = call_check_lead_space(&r, prompt, n_prompt);
    if (!status) status = call_generate(&r, n_prompt);
    /* Text that was held back is output after a failure, too: the model has generated it. */
    size_t from = out->text.len;
    sn_status ended = sn_stop_strings_flush(&r.stop_strings, &out->text, status ? NULL : err);
    if (!ended && !status) status = call_emit(&r, from);
    if (!status) status = ended;
    if (!status && options->when_checked && options->on_text && out->text.len)
        status = options->on_text(options->ctx, (const char *)out->text.data, out->text.len, err);
    sn_stop_strings_fini(&r.stop_strings);
    sn_buf_fini(&r.token);
    free(r.rng_states);
    generator_agree(generator);
    sn_chain_note_prefix(generator->parts.chain, generator->timeline, options->prefix_scope);
    return status;
}

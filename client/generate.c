#include "client/generate.h"

#include "base/clock.h"
#include "client/holdback.h"

#include <stdlib.h>
#include <string.h>

/* Longest piece of a prompt handed to the chain at once: an interrupt is noticed between two of them. */
enum { PIECE = 2048, TEXT_CAP = 1 << 28 };

struct sn_generator {
    sn_generator_parts parts;
    sn_sampler *sampler;
    int32_t *timeline; /* (max_context + 1): tokens that the chain has seen, then the one just chosen */
    size_t length;     /* of those that it has seen */
    bool chosen;       /* timeline[length] has been chosen */
    float *hidden;     /* (PIECE, n_embd): into the chain */
    float *output;     /* (PIECE, n_embd): out of it */
    float *logits;     /* (n_rows, n_vocab) */
    size_t n_rows;     /* tokens that can be chosen from one pass: those guessed, and one */
    size_t guessed;    /* tokens that stand behind timeline[length) as the draft guesses them, and that the chain has seen */
};

/* One call of sn_generator_run. */
typedef struct run {
    sn_generator *g;
    const sn_generate_options *options;
    sn_generation *out;
    sn_holdback holdback;
    sn_buf token; /* bytes of one token */
    size_t room;  /* of out->ids */
    sn_chance *chances; /* before each of them */
    int64_t began_us;
    bool quiet; /* what has been told is being gone through again */
    bool stands_alone; /* a space that the first text brings along is not part of it ... */
    bool has_begun;    /* ... and that text has come */
    sn_err *err;
} run;

const char *sn_finish_name(sn_finish finish) {
    static const char *const names[] = {"stop", "stop_text", "length", "interrupted"};
    return names[finish];
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
    if (!status) status = sn_calloc(&g->hidden, n_embd * PIECE, sizeof *g->hidden, err);
    if (!status) status = sn_calloc(&g->output, n_embd * PIECE, sizeof *g->output, err);
    g->n_rows = parts->draft ? parts->draft->most + 1 : 1;
    if (!status) status = sn_calloc(&g->logits, g->n_rows * n_vocab, sizeof *g->logits, err);
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

const int32_t *sn_generator_ids(const sn_generator *generator, size_t *n) {
    *n = generator->length + generator->chosen;
    return generator->timeline;
}

sn_chance sn_generator_chance(const sn_generator *generator) { return sn_sampler_chance(generator->sampler); }

sn_status sn_generator_go_on(sn_generator *g, const int32_t *ids, size_t n, size_t seen, const sn_chance *chance, sn_err *err) {
    if (n > (size_t)g->parts.max_context || n - seen > 1)
        return sn_fail(err, SN_REFUSED, "a timeline of %zu tokens does not fit into a context of %d", n, g->parts.max_context);
    memcpy(g->timeline, ids, n * sizeof *ids);
    g->length = seen;
    g->chosen = n > seen;
    sn_sampler_return(g->sampler, chance);
    return SN_OK;
}

size_t sn_generator_length(const sn_generator *generator) { return generator->length; }

void sn_generation_fini(sn_generation *generation) {
    sn_ids_fini(&generation->ids);
    sn_buf_fini(&generation->text);
    *generation = (sn_generation){0};
}

static bool interrupted(const run *r) { return r->options->interrupt && *r->options->interrupt; }

/* Writes behind timeline[0, end) what the draft expects there, when just one token is to be fed: as many as can still be chosen, less
 * one, for the last is chosen and never fed. */
static sn_status guess(run *r, size_t end) {
    sn_generator *g = r->g;
    size_t room = (size_t)g->parts.max_context - end, wanted = (size_t)r->options->max_tokens;
    g->guessed = 0;
    if (!g->parts.draft || !r->out->ids.n || end != g->length + 1) return SN_OK;
    if (wanted) room = sn_min_size(room, wanted - r->out->ids.n - 1);
    sn_chance chance = sn_sampler_chance(g->sampler);
    int64_t before = sn_now_us();
    sn_status status = sn_draft_guess(g->parts.draft, g->timeline, end, &chance, room, g->timeline + end, &g->guessed, r->err);
    r->out->timings.draft_us += sn_now_us() - before;
    r->out->timings.guessed += g->guessed;
    return status;
}

/* Feeds timeline[length, end) to the chain, and guesses behind it; the logits then belong to the token behind it, and behind each
 * guess. */
static sn_status feed(run *r, size_t end) {
    sn_generator *g = r->g;
    size_t n_embd = (size_t)g->parts.hp->n_embd, n = 0;
    sn_status status = guess(r, end);
    for (size_t all = end + g->guessed; !status && g->length < all;) {
        n = sn_min_size(PIECE, all - g->length);
        int64_t before = sn_now_us();
        status = sn_head_embed(g->parts.head, g->timeline + g->length, (int)n, g->hidden, r->err);
        r->out->timings.client_us += sn_now_us() - before;
        if (!status) status = sn_chain_step(g->parts.chain, (int)g->length, (int)n, g->hidden, g->output, r->err);
        if (status) break;
        g->length += n;
        g->chosen = false;
        if (interrupted(r)) break;
    }
    if (status) return status;
    g->length -= g->guessed;
    int64_t before = sn_now_us();
    size_t from = n - 1 - g->guessed;
    status = sn_head_logits(g->parts.head, g->output + from * n_embd, (int)g->guessed + 1, g->logits, r->err);
    r->out->timings.client_us += sn_now_us() - before;
    return status;
}

/* Takes over the prompt: the chain keeps what it has in common with the timeline, less one token to have logits from.
 */
static sn_status begin(run *r, const int32_t *prompt, size_t n_prompt) {
    sn_generator *g = r->g;
    if (!n_prompt) return sn_fail(r->err, SN_REFUSED, "the prompt is empty: give at least one token to go on from");
    if (n_prompt > (size_t)g->parts.max_context)
        return sn_fail(r->err, SN_REFUSED,
                       "the prompt has %zu tokens, and the context holds %d: shorten it, or raise --ctx", n_prompt,
                       g->parts.max_context);
    for (size_t i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= g->parts.hp->n_vocab)
            return sn_fail(r->err, SN_REFUSED, "token %d at place %zu is not in this model's vocabulary of %d",
                           prompt[i], i, g->parts.hp->n_vocab);
    size_t known = sn_min_size(g->length, (size_t)sn_chain_length(g->parts.chain)), same = 0;
    while (same < known && same + 1 < n_prompt && g->timeline[same] == prompt[same]) same++;
    memcpy(g->timeline, prompt, n_prompt * sizeof *prompt);
    g->length = same;
    g->chosen = false;
    r->out->timings.prompt_tokens = n_prompt;
    r->out->timings.reused_tokens = same;
    return SN_OK;
}

static sn_status keep_id(run *r, int32_t id, const sn_chance *chance) {
    sn_ids *ids = &r->out->ids;
    if (ids->n == r->room) {
        size_t room = r->room ? 2 * r->room : 64;
        int32_t *grown = realloc(ids->ids, room * sizeof *grown);
        if (!grown) return sn_fail(r->err, SN_STOP, "out of memory for %zu tokens", room);
        ids->ids = grown;
        sn_chance *chances = realloc(r->chances, room * sizeof *chances);
        if (!chances) return sn_fail(r->err, SN_STOP, "out of memory for %zu tokens", room);
        r->chances = chances;
        r->room = room;
    }
    r->chances[ids->n] = *chance;
    ids->ids[ids->n++] = id;
    return SN_OK;
}

/* Hands on the text that has become sure since text[from]. */
static sn_status tell(run *r, size_t from) {
    size_t n = r->out->text.len - from;
    if (!n || !r->options->on_text || r->quiet) return SN_OK;
    return r->options->on_text(r->options->ctx, (const char *)r->out->text.data + from, n, r->err);
}

static sn_status take_text(run *r, int32_t id) {
    /* Models round their vocabulary up: what lies beyond the tokenizer's has no text. */
    if (!r->g->parts.tokenizer || id >= sn_tokenizer_n_vocab(r->g->parts.tokenizer)) return SN_OK;
    size_t from = r->out->text.len;
    r->token.len = 0;
    sn_status status = sn_tokenizer_decode(r->g->parts.tokenizer, id, false, &r->token, r->err);
    if (status || !r->token.len) return status;
    size_t skip = r->stands_alone && !r->has_begun && r->token.data[0] == ' ';
    r->has_begun = true;
    if (r->token.len > skip)
        status = sn_holdback_push(&r->holdback, r->token.data + skip, r->token.len - skip, &r->out->text, r->err);
    return status ? status : tell(r, from);
}

/* Chooses the next token from its logits; *done and out->finish when it was the last. */
static sn_status choose(run *r, const float *logits, bool *done) {
    sn_generator *g = r->g;
    int32_t id;
    int64_t before = sn_now_us();
    sn_chance chance = sn_sampler_chance(g->sampler);
    sn_status status = sn_sampler_pick(g->sampler, logits, g->timeline, g->length, &id, r->err);
    r->out->timings.client_us += sn_now_us() - before;
    if (!status) status = keep_id(r, id, &chance);
    if (status) return status;
    if (r->out->ids.n == 1) r->out->timings.first_token_us = sn_now_us() - r->began_us;
    g->timeline[g->length] = id;
    g->chosen = true;
    *done = true;
    if (g->parts.tokenizer && sn_tokenizer_is_end(g->parts.tokenizer, id) && !r->options->ignore_end) {
        r->out->finish = SN_FINISH_STOP;
        return SN_OK;
    }
    status = take_text(r, id);
    if (status) return status;
    if (r->holdback.stopped)
        r->out->finish = SN_FINISH_STOP_TEXT;
    else if (interrupted(r))
        r->out->finish = SN_FINISH_INTERRUPTED;
    else if (r->options->max_tokens && r->out->ids.n >= (size_t)r->options->max_tokens)
        r->out->finish = SN_FINISH_LENGTH;
    else if (g->length == (size_t)g->parts.max_context)
        r->out->finish = SN_FINISH_LENGTH;
    else
        *done = false;
    return SN_OK;
}

/* Chooses the next token, and the ones behind it for as long as they are those that were guessed: then the chain has seen what they
 * follow. What it has seen beyond that is forgotten. */
static sn_status choose_all(run *r, bool *done) {
    sn_generator *g = r->g;
    size_t right = 0;
    sn_status status;
    for (;;) {
        const float *logits = g->logits + right * (size_t)g->parts.hp->n_vocab;
        int32_t expected = g->timeline[g->length];
        status = choose(r, logits, done);
        if (status || right == g->guessed || g->timeline[g->length] != expected) break;
        right++;
        if (*done) break;
        g->length++;
        g->chosen = false;
    }
    r->out->timings.guessed_right += right;
    if (!status && !*done && g->parts.draft) sn_draft_learn(g->parts.draft, g->guessed, right);
    sn_chain_rewind(g->parts.chain, (int)g->length);
    return status;
}

/* A node has lied: the chain ends where its results are still good, and what was chosen from wrong ones is taken back. The
 * token at that end is good, since it was chosen from what stands before it. */
static sn_status take_back(run *r, size_t n_prompt) {
    sn_generator *g = r->g;
    sn_generation *out = r->out;
    size_t told = out->text.len, end = (size_t)sn_chain_length(g->parts.chain), kept = 0;
    g->length = end;
    if (end >= n_prompt) kept = sn_min_size(end + 1 - n_prompt, out->ids.n);
    out->timings.taken_back += out->ids.n - kept;
    if (kept < out->ids.n) sn_sampler_return(g->sampler, &r->chances[kept]);
    out->ids.n = kept;
    out->text.len = 0;
    r->has_begun = false;
    sn_holdback_fini(&r->holdback);
    sn_status status = sn_holdback_init(&r->holdback, r->options->stops, r->options->n_stops, r->err);
    r->quiet = true;
    for (size_t i = 0; i < kept && !status; i++) status = take_text(r, out->ids.ids[i]);
    r->quiet = false;
    if (status || told == out->text.len || !r->options->on_text) return status;
    if (!r->options->on_void)
        return sn_fail(r->err, SN_RETRY, "a node lied: the text behind its first %zu bytes is wrong", out->text.len);
    return r->options->on_void(r->options->ctx, (const char *)out->text.data, out->text.len, r->err);
}

/* With some tokenizers, the first text of all brings a space along that was never there: that of an answer does, and that behind
 * tokens without text. */
static sn_status look_before(run *r, const int32_t *prompt, size_t n_prompt) {
    const sn_tokenizer *tokenizer = r->g->parts.tokenizer;
    sn_status status = SN_OK;
    if (!tokenizer || !sn_tokenizer_drops_lead(tokenizer)) return SN_OK;
    r->token.len = 0;
    for (size_t i = 0; i < n_prompt && !r->options->is_answer && !r->token.len && !status; i++)
        if (prompt[i] < sn_tokenizer_n_vocab(tokenizer)) status = sn_tokenizer_decode(tokenizer, prompt[i], false, &r->token, r->err);
    r->stands_alone = !r->token.len;
    return status;
}

static sn_status generate(run *r, size_t n_prompt) {
    sn_generate_timings *t = &r->out->timings;
    sn_chain *chain = r->g->parts.chain;
    sn_status status = SN_OK;
    for (bool done = false; !status && !done;) {
        size_t before = r->out->ids.n;
        status = feed(r, n_prompt + before);
        if (!t->prefill_us)
            t->prefill_us = sn_now_us() - r->began_us;
        else if (!status)
            t->decode_steps++;
        if (!status && !r->out->ids.n && interrupted(r)) {
            r->out->finish = SN_FINISH_INTERRUPTED;
            return SN_OK;
        }
        if (!status) status = choose_all(r, &done);
        if (before) t->decode_tokens += r->out->ids.n - before;
        if (!status && done) status = sn_chain_audit(chain, r->err);
        if (status == SN_REBUILD && sn_chain_misled(chain)) {
            status = take_back(r, n_prompt);
            done = false;
        }
        if (r->out->ids.n > 1) t->decode_us = sn_now_us() - r->began_us - t->first_token_us;
    }
    return status;
}

sn_status sn_generator_run(sn_generator *generator, const int32_t *prompt, size_t n_prompt,
                           const sn_generate_options *options, sn_generation *out, sn_err *err) {
    *out = (sn_generation){0};
    run r = {.g = generator, .options = options, .out = out, .began_us = sn_now_us(), .err = err};
    sn_buf_init(&out->text, TEXT_CAP);
    sn_buf_init(&r.token, 1 << 20);
    sn_status status = sn_holdback_init(&r.holdback, options->stops, options->n_stops, err);
    if (!status) status = begin(&r, prompt, n_prompt);
    if (!status) status = look_before(&r, prompt, n_prompt);
    if (!status) status = generate(&r, n_prompt);
    /* What was held back goes out after a failure too: it is text that the model has given. */
    size_t from = out->text.len;
    sn_status ended = sn_holdback_end(&r.holdback, &out->text, status ? NULL : err);
    if (!ended && !status) status = tell(&r, from);
    if (!status) status = ended;
    sn_holdback_fini(&r.holdback);
    sn_buf_fini(&r.token);
    free(r.chances);
    return status;
}

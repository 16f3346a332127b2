/* Text generated with draft tokens equals text generated without them, id by id, byte by byte and chunk by chunk,
 * and the RNG state ends where it would have ended: whatever drafts the tokens, correctly or wrongly, over local
 * blocks and over nodes, and when nodes fail. */
#include "tests/support/chain_fixture.h"
#include "tests/support/generator_fixture.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 9, TOKENS = 100, CONTEXT = 160, CHUNKS_MAX = 512 };
static const int32_t prompt[PROMPT] = {5, 17, 3, 80, 41, 4, 66, 9, 30};

static const sn_sampling samplings[] = {
    {.top_p = 1, .repeat_penalty = 1},
    {.top_p = 1, .repeat_penalty = 1.2},
    {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 7},
    {.temperature = 0.8, .top_k = 12, .top_p = 1, .repeat_penalty = 1.1, .seed = 8},
    {.temperature = 0.7, .top_p = 0.6, .repeat_penalty = 1, .seed = 9},
    {.temperature = 1.5, .top_k = 40, .top_p = 0.9, .min_p = 0.05, .repeat_penalty = 1.3, .seed = 10},
};
enum { SAMPLINGS = sizeof samplings / sizeof *samplings };

/* -- emitted text and drafts */

typedef struct emitted_text {
    char text[8192];
    size_t len, n, chunks[CHUNKS_MAX];
} emitted_text;

static sn_status on_text(void *ctx, const char *text, size_t len, sn_err *err) {
    emitted_text *t = ctx;
    (void)err;
    memcpy(t->text + t->len, text, len);
    t->len += len;
    t->chunks[t->n++] = len;
    return SN_OK;
}

/* Drafts the known continuation, with a wrong token at every `wrong_every`-th position (0: none). */
typedef struct oracle {
    const int32_t *ids;
    size_t n, wrong_every;
} oracle;

static sn_status oracle_draft(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t most,
                              int32_t *out, size_t *n_out, sn_err *err) {
    const oracle *o = ctx;
    (void)ids, (void)rng_state, (void)err;
    for (*n_out = 0; *n_out < most && n + *n_out < o->n; ++*n_out) {
        size_t at = n + *n_out;
        bool wrong = o->wrong_every && at % o->wrong_every == 0;
        out[*n_out] = wrong ? (o->ids[at] + 1) % 96 : o->ids[at];
    }
    return SN_OK;
}

/* A text, and the state of its generator at the end. */
typedef struct generated {
    sn_generation out;
    emitted_text emitted_text;
    sn_rng_state rng_state;
    size_t length, n_ids;
    int32_t ids[CONTEXT + 1]; /* prompt and text */
    int chain_length;
    uint64_t failovers;
} generated;

static void generate_over(generator_fixture *d, sn_chain *chain, const sn_sampling *sampling,
                          sn_generate_options options, sn_draft *draft, generated *out) {
    sn_generator_parts parts = {sn_model_hparams(d->model), d->head, chain, d->tokenizer, d->context, draft};
    sn_generator *generator = NULL;
    sn_err why;
    *out = (generated){0};
    options.on_text = on_text;
    options.ctx = &out->emitted_text;
    REQUIRE(sn_generator_new(&parts, sampling, &generator, &err));
    sn_status status = sn_generator_run(generator, prompt, PROMPT, &options, &out->out, &why);
    cr_assert_eq(status, SN_OK, "%s", why.text);
    const int32_t *ids = sn_generator_ids(generator, &out->n_ids);
    memcpy(out->ids, ids, out->n_ids * sizeof *ids);
    out->rng_state = sn_generator_rng_state(generator);
    out->length = sn_generator_length(generator);
    out->chain_length = sn_chain_length(chain);
    out->failovers = sn_chain_failovers(chain);
    sn_generator_free(&generator);
}

static void generate_locally(generator_fixture *d, const sn_sampling *sampling, sn_generate_options options,
                             sn_draft *draft, generated *out) {
    sn_chain *chain = generator_fixture_local_chain(d);
    generate_over(d, chain, sampling, options, draft, out);
    sn_chain_close(&chain);
}

static void expect_same(const generated *a, const generated *b, const char *what) {
    cr_expect_eq(a->out.ids.n, b->out.ids.n, "%s: %zu and %zu tokens", what, a->out.ids.n, b->out.ids.n);
    cr_expect(a->n_ids == b->n_ids && !memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids), "%s: the tokens differ",
              what);
    cr_expect(a->out.text.len == b->out.text.len && !memcmp(a->out.text.data, b->out.text.data, a->out.text.len),
              "%s: the text differs", what);
    cr_expect(a->emitted_text.len == b->emitted_text.len &&
                  !memcmp(a->emitted_text.text, b->emitted_text.text, a->emitted_text.len),
              "%s: the emitted text differs", what);
    cr_expect(a->emitted_text.n == b->emitted_text.n &&
                  !memcmp(a->emitted_text.chunks, b->emitted_text.chunks, a->emitted_text.n * sizeof(size_t)),
              "%s: the chunks differ", what);
    cr_expect_eq(a->out.finish, b->out.finish, "%s: the finish reason differs", what);
    cr_expect(!memcmp(&a->rng_state, &b->rng_state, sizeof a->rng_state), "%s: the RNG state differs", what);
    cr_expect(a->length == b->length && a->chain_length == b->chain_length, "%s: the chain holds %d tokens, not %d",
              what, b->chain_length, a->chain_length);
}

/* Compares the text without drafts with the text under each kind of draft. */
static void expect_same_text(generator_fixture *d, const sn_sampling *sampling, sn_generate_options options) {
    static const size_t wrong_every[] = {0, 1, 2, 5, 17};
    generated plain, other;
    char what[64];
    generate_locally(d, sampling, options, NULL, &plain);
    int32_t future[2 * CONTEXT] = {0}; /* also beyond the end: drafts must not extend the text */
    for (size_t i = 0; i < 2 * CONTEXT; i++) future[i] = i < plain.n_ids ? plain.ids[i] : (int32_t)(i % 96);
    for (size_t k = 0; k < sizeof wrong_every / sizeof *wrong_every; k++)
        for (int most = 1; most <= 63; most = most * 4 + 3) { /* 1, 7, 31 */
            oracle o = {future, 2 * CONTEXT, wrong_every[k]};
            sn_draft draft = sn_draft_make(oracle_draft, &o, most);
            generate_locally(d, sampling, options, &draft, &other);
            snprintf(what, sizeof what, "1 of %zu wrong, %d at once", wrong_every[k], most);
            expect_same(&plain, &other, what);
            if (wrong_every[k] == 1) cr_expect_eq(other.out.timings.n_accepted, 0);
            if (!wrong_every[k] && other.out.ids.n > 8)
                cr_expect_lt(other.out.timings.decode_steps, other.out.ids.n - 1, "%s", what);
            sn_generation_fini(&other.out);
        }
    sn_draft draft = sn_draft_make(NULL, NULL, 16);
    REQUIRE(sn_draft_add_copies(&draft, &err));
    generate_locally(d, sampling, options, &draft, &other);
    expect_same(&plain, &other, "copies");
    sn_draft_fini(&draft);
    sn_generation_fini(&other.out);
    sn_generation_fini(&plain.out);
}

TestSuite(draft, .timeout = 120);

Test(draft, same_text_for_every_sampling) {
    generator_fixture d = generator_fixture_begin(4096, CONTEXT);
    for (int i = 0; i < SAMPLINGS; i++) {
        expect_same_text(&d, &samplings[i], (sn_generate_options){.max_tokens = TOKENS, .ignore_eos = true});
        expect_same_text(&d, &samplings[i], (sn_generate_options){.max_tokens = TOKENS});
    }
    generator_fixture_end(&d);
}

Test(draft, same_end_of_text) {
    generator_fixture d = generator_fixture_begin(4096, CONTEXT);
    generated plain;
    const sn_sampling *sampling = &samplings[2];
    int ended = 0;
    for (uint64_t seed = 1; seed < 5; seed++) { /* an end token */
        sn_sampling s = *sampling;
        s.seed = seed;
        generate_locally(&d, &s, (sn_generate_options){.max_tokens = TOKENS}, NULL, &plain);
        ended += plain.out.finish == SN_FINISH_STOP;
        sn_generation_fini(&plain.out);
        expect_same_text(&d, &s, (sn_generate_options){.max_tokens = TOKENS});
    }
    cr_expect_gt(ended, 0);
    generate_locally(&d, sampling, (sn_generate_options){.max_tokens = TOKENS, .ignore_eos = true}, NULL, &plain);
    for (size_t at = 10; at < 60; at += 13) { /* a stop string that begins there */
        char stop[4] = {0};
        memcpy(stop, plain.emitted_text.text + at, 3);
        const char *stops[] = {stop, "not in the text"};
        expect_same_text(&d, sampling,
                         (sn_generate_options){.max_tokens = TOKENS, .ignore_eos = true, .stops = stops, .n_stops = 2});
    }
    sn_generation_fini(&plain.out);
    for (int most = 1; most < 12; most++)
        expect_same_text(&d, sampling, (sn_generate_options){.max_tokens = most, .ignore_eos = true});
    for (d.context = PROMPT + 1; d.context < PROMPT + 30; d.context += 7) /* the end of the context */
        expect_same_text(&d, sampling, (sn_generate_options){.ignore_eos = true});
    generator_fixture_end(&d);
}

/* The next turn continues from what the chain holds of the previous one. */
Test(draft, leaves_the_chain_ready_for_the_next_turn) {
    generator_fixture d = generator_fixture_begin(4096, CONTEXT);
    generated plain;
    generate_locally(&d, &samplings[0], (sn_generate_options){.max_tokens = TOKENS, .ignore_eos = true}, NULL, &plain);
    sn_generation turns[2][2];
    for (int drafted = 0; drafted < 2; drafted++) {
        sn_chain *chain = generator_fixture_local_chain(&d);
        sn_generator *generator = NULL;
        oracle o = {plain.ids, plain.n_ids, 6};
        sn_draft draft = sn_draft_make(oracle_draft, &o, 16);
        sn_generator_parts parts = {sn_model_hparams(d.model), d.head, chain, d.tokenizer, CONTEXT,
                                    drafted ? &draft : NULL};
        sn_generate_options options = {.max_tokens = 40, .ignore_eos = true};
        int32_t more[PROMPT + 44];
        REQUIRE(sn_generator_new(&parts, &samplings[0], &generator, &err));
        REQUIRE(sn_generator_run(generator, prompt, PROMPT, &options, &turns[drafted][0], &err));
        memcpy(more, plain.ids, sizeof more);
        more[PROMPT + 30] ^= 1; /* the new prompt differs from here on */
        REQUIRE(sn_generator_run(generator, more, PROMPT + 44, &options, &turns[drafted][1], &err));
        sn_generator_free(&generator);
        sn_chain_close(&chain);
    }
    for (int turn = 0; turn < 2; turn++) {
        cr_expect_arr_eq(turns[0][turn].ids.ids, turns[1][turn].ids.ids, 40 * sizeof(int32_t));
        cr_expect_eq(turns[0][turn].timings.reused_tokens, turns[1][turn].timings.reused_tokens);
        for (int k = 0; k < 2; k++) sn_generation_fini(&turns[k][turn]);
    }
    sn_generation_fini(&plain.out);
    generator_fixture_end(&d);
}

/* -- draft models */

static sn_draft_model *open_draft_model(const generator_fixture *d, const char *path, const sn_sampling *sampling) {
    sn_draft_model *m = NULL;
    sn_draft_model_options model_options = {path,    d->device, sn_model_hparams(d->model), NULL, *sampling,
                                            CONTEXT, SN_KV_F32};
    REQUIRE(sn_draft_model_open(&model_options, &m, &err));
    return m;
}

Test(draft, same_text_with_a_draft_model) {
    generator_fixture d = generator_fixture_begin(4096, CONTEXT);
    char *other =
        tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .seed = 2, .n_blocks = 1, .n_embd = 32, .n_ctx = 64});
    for (int i = 0; i < SAMPLINGS; i++)
        for (int same = 0; same < 2; same++) {
            generated plain, drafted;
            sn_generate_options options = {.max_tokens = TOKENS, .ignore_eos = true};
            sn_draft_model *m = open_draft_model(&d, same ? d.w->path : other, &samplings[i]);
            sn_draft draft = sn_draft_make(sn_draft_model_propose, m, 16);
            generate_locally(&d, &samplings[i], options, NULL, &plain);
            generate_locally(&d, &samplings[i], options, &draft, &drafted);
            expect_same(&plain, &drafted, same ? "the same model drafts" : "another model drafts");
            if (same)
                cr_expect_eq(drafted.out.timings.n_accepted, drafted.out.timings.n_drafted, "the RNG state differs");
            cr_expect_gt(drafted.out.timings.n_drafted, 0);
            sn_draft_model_close(&m);
            sn_generation_fini(&plain.out);
            sn_generation_fini(&drafted.out);
        }
    tiny_model_remove(&other);
    generator_fixture_end(&d);
}

Test(draft, refuses_a_draft_model_with_other_tokens) {
    generator_fixture d = generator_fixture_begin(4096, CONTEXT);
    sn_draft_model *m = NULL;
    sn_err why;
    char *other = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_vocab = 100});
    sn_draft_model_options model_options = {other,   d.device, sn_model_hparams(d.model), NULL, samplings[0],
                                            CONTEXT, SN_KV_F32};
    cr_expect_eq(sn_draft_model_open(&model_options, &m, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "has 100 tokens and the model 96"), "%s", why.text);
    model_options.tokenizer = d.tokenizer;
    cr_expect_eq(sn_draft_model_open(&model_options, &m, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "the draft model's tokenizer, to compare"), "%s", why.text);
    cr_expect_null(m);
    tiny_model_remove(&other);
    generator_fixture_end(&d);
}

/* -- over nodes */

static void expect_same_over_nodes(sn_chain_options options, int lost_at_step, uint64_t failovers) {
    generator_fixture d = generator_fixture_begin(4096, CONTEXT);
    generated plain, drafted;
    sn_generate_options how = {.max_tokens = TOKENS, .ignore_eos = true};
    for (int i = 1; i < 3; i++) {
        static const int cuts[][2] = {{0, 1}, {1, 3}, {3, 4}};
        testbed *w = testbed_new(&(cluster_options){.kv_memory = 4096});
        for (int k = 0; k < 3; k++) cluster_add(w->cluster, cuts[k][0], cuts[k][1]);
        generate_locally(&d, &samplings[i], how, NULL, &plain);
        oracle o = {plain.ids, plain.n_ids, 7};
        sn_draft draft = sn_draft_make(oracle_draft, &o, 16);
        sn_chain *chain = NULL;
        options.link = cluster_link(w->cluster);
        options.local.device = d.device;
        chain_default_limits(&options);
        options.max_tokens = CONTEXT;
        REQUIRE(sn_chain_open(d.model, &options, &chain, &err));
        if (lost_at_step) { /* another node joins, and the node in the middle is lost */
            cluster_add(w->cluster, 1, 3);
            for (int k = 0; k < 3 && options.kv.replica; k += 2) cluster_add(w->cluster, cuts[k][0], cuts[k][1]);
            cluster_cut_off_at_step(w->cluster, 1, lost_at_step);
        }
        generate_over(&d, chain, &samplings[i], how, &draft, &drafted);
        expect_same(&plain, &drafted, options.routing.push ? "pushed" : "by the client");
        cr_expect_eq(drafted.failovers, failovers, "%d failovers, not %d", (int)drafted.failovers, (int)failovers);
        cr_expect_gt(drafted.out.timings.n_accepted, 0, "no draft was used"); /* how many depends on measured times */
        sn_chain_close(&chain);
        sn_link_close(&options.link);
        testbed_free(&w);
        sn_generation_fini(&plain.out);
        sn_generation_fini(&drafted.out);
    }
    generator_fixture_end(&d);
}

Test(draft, same_text_over_nodes) { expect_same_over_nodes((sn_chain_options){0}, 0, 0); }
Test(draft, same_text_over_pushing_nodes) { expect_same_over_nodes((sn_chain_options){.routing.push = true}, 0, 0); }
Test(draft, same_text_when_a_pushing_node_is_lost) {
    expect_same_over_nodes((sn_chain_options){.routing.push = true}, 9, 1);
}
Test(draft, same_text_when_a_node_is_lost) { expect_same_over_nodes((sn_chain_options){0}, 9, 1); }

Test(draft, same_text_with_local_and_remote_blocks) {
    expect_same_over_nodes((sn_chain_options){.local.first = 1, .local.end = 3, .local.kv_memory = 1 << 20}, 0, 0);
}
Test(draft, same_text_when_a_replica_is_promoted) {
    for (int push = 0; push < 2; push++)
        expect_same_over_nodes((sn_chain_options){.kv.replica = true, .routing.push = push}, 9, 1);
}

/* -- the number of draft tokens */

Test(draft, draft_length_follows_acceptance) {
    oracle o = {(const int32_t[64]){0}, 64, 0};
    sn_draft d = sn_draft_make(oracle_draft, &o, 20);
    int32_t out[64];
    size_t n, far = 0;
    for (int i = 0; i < 6; i++) {
        REQUIRE(sn_draft_propose(&d, out, 1, NULL, 64, out, &n, &err));
        cr_expect(n >= far && n <= 20);
        far = n;
        sn_draft_note_accepted(&d, 1, n, n);
    }
    cr_expect_eq(far, 20);
    REQUIRE(sn_draft_propose(&d, out, 1, NULL, 3, out, &n, &err)); /* no capacity for more */
    cr_expect_eq(n, 3);
    sn_draft_note_accepted(&d, 1, 3, 3);
    REQUIRE(sn_draft_propose(&d, out, 1, NULL, 64, out, &n, &err));
    cr_expect_eq(n, 20);
    for (int i = 0; i < 6; i++) sn_draft_note_accepted(&d, 1, d.records[SN_DRAFT_OF_SOURCE].length, 0);
    cr_expect_eq(d.records[SN_DRAFT_OF_SOURCE].length, 1);
    REQUIRE(sn_draft_propose(&d, out, 1, NULL, 0, out, &n, &err));
    cr_expect_eq(n, 0);
}

Test(draft, what_is_never_accepted_is_proposed_ever_less_often_until_it_is) {
    oracle o = {(const int32_t[64]){0}, 64, 0};
    sn_draft d = sn_draft_make(oracle_draft, &o, 20);
    int32_t out[64];
    size_t n;
    int proposed = 0;
    for (int step = 0; step < 330; step++) {
        REQUIRE(sn_draft_propose(&d, out, 1, NULL, 64, out, &n, &err));
        proposed += n > 0;
        sn_draft_note_accepted(&d, 1, n, 0);
    }
    cr_expect(proposed >= 20 && proposed <= 30, "%d proposals in 330 steps", proposed);
    for (n = 0; !n;) REQUIRE(sn_draft_propose(&d, out, 1, NULL, 64, out, &n, &err));
    sn_draft_note_accepted(&d, 1, n, n);
    REQUIRE(sn_draft_propose(&d, out, 1, NULL, 64, out, &n, &err));
    cr_expect_gt(n, 0, "it rests although it was accepted");
}

/* Copies and a source that is always wrong, then one that is always right. */
Test(draft, of_copies_and_a_source_the_one_proposes_that_is_accepted_more) {
    for (int right = 0; right < 2; right++) {
        int32_t text[200], future[200], out[64];
        size_t n, by_source = 0, at = 40;
        for (int i = 0; i < 200; i++) text[i] = future[i] = 1 + i % 20;
        if (!right)
            for (int i = 0; i < 200; i++) future[i] = 50;
        oracle o = {future, 200, 0};
        sn_draft d = sn_draft_make(oracle_draft, &o, 2);
        REQUIRE(sn_draft_add_copies(&d, &err));
        for (int step = 0; step < 40; step++, at++) {
            REQUIRE(sn_draft_propose(&d, text, at, NULL, 64, out, &n, &err));
            const bool source = d.kinds[at] == SN_DRAFT_OF_SOURCE;
            if (n) by_source += source;
            /* copies: as if what followed had been another text */
            sn_draft_note_accepted(&d, at, n, right && source ? n : !right && !source ? n : 0);
        }
        cr_expect(right ? by_source > 20 : by_source < 3, "%zu of 40 by a source that is %s", by_source,
                  right ? "right" : "wrong");
        sn_draft_fini(&d);
    }
}

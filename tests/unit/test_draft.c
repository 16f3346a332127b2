/* A text that is guessed ahead is the text that is not, id by id, byte by byte, in the same pieces, and chance stands where it would
 * have stood: whatever guesses, rightly or wrongly, over local blocks and over nodes, whoever is lost on the way. */
#include "tests/support/desk.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 9, TOKENS = 100, CONTEXT = 160, PIECES_MAX = 512 };
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

/* -- what is told, and what guesses -- */

typedef struct told {
    char text[8192];
    size_t len, n, pieces[PIECES_MAX];
} told;

static sn_status on_text(void *ctx, const char *text, size_t len, sn_err *err) {
    told *t = ctx;
    (void)err;
    memcpy(t->text + t->len, text, len);
    t->len += len;
    t->pieces[t->n++] = len;
    return SN_OK;
}

/* Guesses what is known to come; every `wrong_every`-th token wrongly (0: none). */
typedef struct oracle {
    const int32_t *ids;
    size_t n, wrong_every;
} oracle;

static sn_status foretell(void *ctx, const int32_t *ids, size_t n, const sn_chance *chance, size_t most, int32_t *out, size_t *n_out,
                          sn_err *err) {
    const oracle *o = ctx;
    (void)ids, (void)chance, (void)err;
    for (*n_out = 0; *n_out < most && n + *n_out < o->n; ++*n_out) {
        size_t at = n + *n_out;
        bool wrong = o->wrong_every && at % o->wrong_every == 0;
        out[*n_out] = wrong ? (o->ids[at] + 1) % 96 : o->ids[at];
    }
    return SN_OK;
}

/* A text, and how its writer stood at the end. */
typedef struct written {
    sn_generation out;
    told told;
    sn_chance chance;
    size_t length, n_ids;
    int32_t ids[CONTEXT + 1]; /* prompt and text */
    int chain_length;
    uint64_t failovers;
} written;

static void write_over(desk *d, sn_chain *chain, const sn_sampling *sampling, sn_generate_options options, sn_draft *draft, written *out) {
    sn_generator_parts parts = {sn_model_hparams(d->model), d->head, chain, d->tokenizer, d->context, draft};
    sn_generator *generator = NULL;
    sn_err why;
    *out = (written){0};
    options.on_text = on_text;
    options.ctx = &out->told;
    NEED(sn_generator_new(&parts, sampling, &generator, &err));
    sn_status status = sn_generator_run(generator, prompt, PROMPT, &options, &out->out, &why);
    cr_assert_eq(status, SN_OK, "%s", why.text);
    const int32_t *ids = sn_generator_ids(generator, &out->n_ids);
    memcpy(out->ids, ids, out->n_ids * sizeof *ids);
    out->chance = sn_generator_chance(generator);
    out->length = sn_generator_length(generator);
    out->chain_length = sn_chain_length(chain);
    out->failovers = sn_chain_failovers(chain);
    sn_generator_free(&generator);
}

static void write_here(desk *d, const sn_sampling *sampling, sn_generate_options options, sn_draft *draft, written *out) {
    sn_chain *chain = desk_chain(d);
    write_over(d, chain, sampling, options, draft, out);
    sn_chain_close(&chain);
}

static void expect_same(const written *a, const written *b, const char *what) {
    cr_expect_eq(a->out.ids.n, b->out.ids.n, "%s: %zu and %zu tokens", what, a->out.ids.n, b->out.ids.n);
    cr_expect(a->n_ids == b->n_ids && !memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids), "%s: other tokens", what);
    cr_expect(a->out.text.len == b->out.text.len && !memcmp(a->out.text.data, b->out.text.data, a->out.text.len), "%s: another text", what);
    cr_expect(a->told.len == b->told.len && !memcmp(a->told.text, b->told.text, a->told.len), "%s: another text was told", what);
    cr_expect(a->told.n == b->told.n && !memcmp(a->told.pieces, b->told.pieces, a->told.n * sizeof(size_t)), "%s: in other pieces", what);
    cr_expect_eq(a->out.finish, b->out.finish, "%s: another end", what);
    cr_expect(!memcmp(&a->chance, &b->chance, sizeof a->chance), "%s: chance stands elsewhere", what);
    cr_expect(a->length == b->length && a->chain_length == b->chain_length, "%s: the chain has seen %d tokens, not %d", what,
              b->chain_length, a->chain_length);
}

/* The text without guesses, and under each way of guessing. */
static void expect_same_text(desk *d, const sn_sampling *sampling, sn_generate_options options) {
    static const size_t wrong_every[] = {0, 1, 2, 5, 17};
    written plain, other;
    char what[64];
    write_here(d, sampling, options, NULL, &plain);
    int32_t future[2 * CONTEXT] = {0}; /* beyond the end, too: guesses must not carry the text on */
    for (size_t i = 0; i < 2 * CONTEXT; i++) future[i] = i < plain.n_ids ? plain.ids[i] : (int32_t)(i % 96);
    for (size_t k = 0; k < sizeof wrong_every / sizeof *wrong_every; k++)
        for (int most = 1; most <= 63; most = most * 4 + 3) { /* 1, 7, 31 */
            oracle o = {future, 2 * CONTEXT, wrong_every[k]};
            sn_draft draft = sn_draft_of(foretell, &o, most);
            write_here(d, sampling, options, &draft, &other);
            snprintf(what, sizeof what, "1 of %zu wrong, %d at once", wrong_every[k], most);
            expect_same(&plain, &other, what);
            if (wrong_every[k] == 1) cr_expect_eq(other.out.timings.guessed_right, 0);
            if (!wrong_every[k] && other.out.ids.n > 8) cr_expect_lt(other.out.timings.decode_steps, other.out.ids.n - 1, "%s", what);
            sn_generation_fini(&other.out);
        }
    sn_draft draft = sn_draft_of(sn_draft_look_up, NULL, 16);
    write_here(d, sampling, options, &draft, &other);
    expect_same(&plain, &other, "look-up");
    sn_generation_fini(&other.out);
    sn_generation_fini(&plain.out);
}

TestSuite(draft, .timeout = 120);

Test(draft, changes_no_text_however_it_is_chosen) {
    desk d = desk_begin(4096, CONTEXT);
    for (int i = 0; i < SAMPLINGS; i++) {
        expect_same_text(&d, &samplings[i], (sn_generate_options){.max_tokens = TOKENS, .ignore_end = true});
        expect_same_text(&d, &samplings[i], (sn_generate_options){.max_tokens = TOKENS});
    }
    desk_end(&d);
}

Test(draft, ends_a_text_where_it_would_end_without) {
    desk d = desk_begin(4096, CONTEXT);
    written plain;
    const sn_sampling *sampling = &samplings[2];
    int ended = 0;
    for (uint64_t seed = 1; seed < 5; seed++) { /* an end token */
        sn_sampling s = *sampling;
        s.seed = seed;
        write_here(&d, &s, (sn_generate_options){.max_tokens = TOKENS}, NULL, &plain);
        ended += plain.out.finish == SN_FINISH_STOP;
        sn_generation_fini(&plain.out);
        expect_same_text(&d, &s, (sn_generate_options){.max_tokens = TOKENS});
    }
    cr_expect_gt(ended, 0);
    write_here(&d, sampling, (sn_generate_options){.max_tokens = TOKENS, .ignore_end = true}, NULL, &plain);
    for (size_t at = 10; at < 60; at += 13) { /* a stop text that begins there */
        char stop[4] = {0};
        memcpy(stop, plain.told.text + at, 3);
        const char *stops[] = {stop, "never in it"};
        expect_same_text(&d, sampling, (sn_generate_options){.max_tokens = TOKENS, .ignore_end = true, .stops = stops, .n_stops = 2});
    }
    sn_generation_fini(&plain.out);
    for (int most = 1; most < 12; most++) expect_same_text(&d, sampling, (sn_generate_options){.max_tokens = most, .ignore_end = true});
    for (d.context = PROMPT + 1; d.context < PROMPT + 30; d.context += 7) /* the context's end */
        expect_same_text(&d, sampling, (sn_generate_options){.ignore_end = true});
    desk_end(&d);
}

/* The next turn goes on from what the chain has seen of the last one. */
Test(draft, leaves_the_chain_as_the_next_turn_needs_it) {
    desk d = desk_begin(4096, CONTEXT);
    written plain;
    write_here(&d, &samplings[0], (sn_generate_options){.max_tokens = TOKENS, .ignore_end = true}, NULL, &plain);
    sn_generation turns[2][2];
    for (int guessed = 0; guessed < 2; guessed++) {
        sn_chain *chain = desk_chain(&d);
        sn_generator *generator = NULL;
        oracle o = {plain.ids, plain.n_ids, 6};
        sn_draft draft = sn_draft_of(foretell, &o, 16);
        sn_generator_parts parts = {sn_model_hparams(d.model), d.head, chain, d.tokenizer, CONTEXT, guessed ? &draft : NULL};
        sn_generate_options options = {.max_tokens = 40, .ignore_end = true};
        int32_t more[PROMPT + 44];
        NEED(sn_generator_new(&parts, &samplings[0], &generator, &err));
        NEED(sn_generator_run(generator, prompt, PROMPT, &options, &turns[guessed][0], &err));
        memcpy(more, plain.ids, sizeof more);
        more[PROMPT + 30] ^= 1; /* parts from it */
        NEED(sn_generator_run(generator, more, PROMPT + 44, &options, &turns[guessed][1], &err));
        sn_generator_free(&generator);
        sn_chain_close(&chain);
    }
    for (int turn = 0; turn < 2; turn++) {
        cr_expect_arr_eq(turns[0][turn].ids.ids, turns[1][turn].ids.ids, 40 * sizeof(int32_t));
        cr_expect_eq(turns[0][turn].timings.reused_tokens, turns[1][turn].timings.reused_tokens);
        for (int k = 0; k < 2; k++) sn_generation_fini(&turns[k][turn]);
    }
    sn_generation_fini(&plain.out);
    desk_end(&d);
}

/* -- a model that guesses -- */

static sn_draft_model *open_model(const desk *d, const char *path, const sn_sampling *sampling) {
    sn_draft_model *m = NULL;
    sn_draft_wish wish = {path, d->device, sn_model_hparams(d->model), NULL, *sampling, CONTEXT};
    NEED(sn_draft_model_open(&wish, &m, &err));
    return m;
}

Test(draft, a_model_that_guesses_changes_no_text) {
    desk d = desk_begin(4096, CONTEXT);
    char *other = tiny_make(&(tiny_options){.dtype = SN_F32, .seed = 2, .n_blocks = 1, .n_embd = 32, .n_ctx = 64});
    for (int i = 0; i < SAMPLINGS; i++)
        for (int same = 0; same < 2; same++) {
            written plain, guessed;
            sn_generate_options options = {.max_tokens = TOKENS, .ignore_end = true};
            sn_draft_model *m = open_model(&d, same ? d.w->path : other, &samplings[i]);
            sn_draft draft = sn_draft_of(sn_draft_ask, m, 16);
            write_here(&d, &samplings[i], options, NULL, &plain);
            write_here(&d, &samplings[i], options, &draft, &guessed);
            expect_same(&plain, &guessed, same ? "its own draft" : "another one");
            if (same) cr_expect_eq(guessed.out.timings.guessed_right, guessed.out.timings.guessed, "chance is another one");
            cr_expect_gt(guessed.out.timings.guessed, 0);
            sn_draft_model_close(&m);
            sn_generation_fini(&plain.out);
            sn_generation_fini(&guessed.out);
        }
    tiny_remove(&other);
    desk_end(&d);
}

Test(draft, a_model_with_other_tokens_is_refused) {
    desk d = desk_begin(4096, CONTEXT);
    sn_draft_model *m = NULL;
    sn_err why;
    char *other = tiny_make(&(tiny_options){.dtype = SN_F32, .n_vocab = 100});
    sn_draft_wish wish = {other, d.device, sn_model_hparams(d.model), NULL, samplings[0], CONTEXT};
    cr_expect_eq(sn_draft_model_open(&wish, &m, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "has 100 tokens and the model 96"), "%s", why.text);
    wish.tokenizer = d.tokenizer;
    cr_expect_eq(sn_draft_model_open(&wish, &m, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "whether a draft has the model's tokens"), "%s", why.text);
    cr_expect_null(m);
    tiny_remove(&other);
    desk_end(&d);
}

/* -- over nodes -- */

static void expect_same_over_nodes(sn_chain_options options, int lost_at_step, uint64_t failovers) {
    desk d = desk_begin(4096, CONTEXT);
    written plain, guessed;
    sn_generate_options how = {.max_tokens = TOKENS, .ignore_end = true};
    for (int i = 1; i < 3; i++) {
        static const int cuts[][2] = {{0, 1}, {1, 3}, {3, 4}};
        world *w = world_new(&(cluster_options){.kv_memory = 4096});
        for (int k = 0; k < 3; k++) cluster_add(w->cluster, cuts[k][0], cuts[k][1]);
        write_here(&d, &samplings[i], how, NULL, &plain);
        oracle o = {plain.ids, plain.n_ids, 7};
        sn_draft draft = sn_draft_of(foretell, &o, 16);
        sn_chain *chain = NULL;
        options.link = cluster_link(w->cluster);
        options.device = d.device;
        options.max_tokens = CONTEXT;
        NEED(sn_chain_open(d.model, &options, &chain, &err));
        if (lost_at_step) { /* somebody else comes, and the node in the middle goes */
            cluster_add(w->cluster, 1, 3);
            for (int k = 0; k < 3 && options.replica; k += 2) cluster_add(w->cluster, cuts[k][0], cuts[k][1]);
            cluster_cut_off_at_step(w->cluster, 1, lost_at_step);
        }
        write_over(&d, chain, &samplings[i], how, &draft, &guessed);
        expect_same(&plain, &guessed, options.push ? "pushed" : "by the client");
        cr_expect_eq(guessed.failovers, failovers, "%d nodes replaced, not %d", (int)guessed.failovers, (int)failovers);
        cr_expect_lt(guessed.out.timings.decode_steps, TOKENS / 2);
        sn_chain_close(&chain);
        sn_link_close(&options.link);
        world_free(&w);
        sn_generation_fini(&plain.out);
        sn_generation_fini(&guessed.out);
    }
    desk_end(&d);
}

Test(draft, changes_no_text_over_nodes) { expect_same_over_nodes((sn_chain_options){.timeout_ms = 10000}, 0, 0); }
Test(draft, changes_no_text_over_nodes_that_push) {
    expect_same_over_nodes((sn_chain_options){.timeout_ms = 10000, .push = true}, 0, 0);
}
Test(draft, changes_no_text_when_a_pushing_node_is_lost) {
    expect_same_over_nodes((sn_chain_options){.timeout_ms = 10000, .push = true}, 9, 1);
}
Test(draft, changes_no_text_when_a_node_is_lost) { expect_same_over_nodes((sn_chain_options){.timeout_ms = 10000}, 9, 1); }

Test(draft, changes_no_text_with_blocks_here_and_there) {
    expect_same_over_nodes((sn_chain_options){.timeout_ms = 10000, .local_first = 1, .local_end = 3, .kv_memory = 1 << 20}, 0, 0);
}
Test(draft, changes_no_text_when_a_copy_takes_over) {
    for (int push = 0; push < 2; push++)
        expect_same_over_nodes((sn_chain_options){.timeout_ms = 10000, .replica = true, .push = push}, 9, 1);
}

/* -- the look-up, and how far ahead -- */

Test(draft, looks_up_what_followed_the_latest_of_the_longest_like_stretches) {
    int32_t out[8];
    size_t n;
    sn_err why;
    const int32_t text[] = {1, 2, 3, 50, 9, 1, 2, 3, 51, 8, 7, 2, 3, 52, 1, 2, 3};
    NEED(sn_draft_look_up(NULL, text, 17, NULL, 3, out, &n, &err));
    cr_assert_eq(n, 3);
    cr_expect_arr_eq(out, ((int32_t[]){51, 8, 7}), sizeof(int32_t[3]));
    const int32_t loop[] = {4, 5, 6, 4, 5, 6, 4, 5};
    NEED(sn_draft_look_up(NULL, loop, 8, NULL, 8, out, &n, &err)); /* beyond its own end */
    cr_assert_eq(n, 8);
    cr_expect_arr_eq(out, ((int32_t[]){6, 4, 5, 6, 4, 5, 6, 4}), sizeof(int32_t[8]));
    for (size_t len = 1; len <= 5; len++) {
        cr_expect_eq(sn_draft_look_up(NULL, text, len, NULL, 8, out, &n, &why), SN_OK);
        cr_expect_eq(n, 0, "nothing is like the first %zu", len);
    }
}

Test(draft, guesses_further_while_it_is_right_and_less_far_while_it_is_not) {
    oracle o = {(const int32_t[64]){0}, 64, 0};
    sn_draft d = sn_draft_of(foretell, &o, 20);
    int32_t out[64];
    size_t n, far = 0;
    for (int i = 0; i < 6; i++) {
        NEED(sn_draft_guess(&d, out, 1, NULL, 64, out, &n, &err));
        cr_expect(n >= far && n <= 20);
        far = n;
        sn_draft_learn(&d, n, n);
    }
    cr_expect_eq(far, 20);
    NEED(sn_draft_guess(&d, out, 1, NULL, 3, out, &n, &err)); /* no room for more */
    cr_expect_eq(n, 3);
    sn_draft_learn(&d, 3, 3);
    NEED(sn_draft_guess(&d, out, 1, NULL, 64, out, &n, &err));
    cr_expect_eq(n, 20);
    for (int i = 0; i < 6; i++) sn_draft_learn(&d, d.length, 0);
    NEED(sn_draft_guess(&d, out, 1, NULL, 64, out, &n, &err));
    cr_expect_eq(n, 1);
    NEED(sn_draft_guess(&d, out, 1, NULL, 0, out, &n, &err));
    cr_expect_eq(n, 0);
}

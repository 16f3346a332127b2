/* Windows of guessed rows: several under way, the same bits, and right rows after wrong guesses and lost nodes. */
#include "client/chain/chain_private.h" /* private: the numbers of steps */
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 3, AHEAD = 3 };

/* Guesses the testbed's inputs, but wrong ones behind each wrong_every-th position. */
typedef struct guesser {
    chain_fixture r;
    int wrong_every, end; /* wrong_every 0: never; end: of the last window */
    int wrong_from;       /* of the rows under way */
    int most_windows, n_guessed, n_wrong;
    int right_to; /* the end of what was right */
    bool bits_differ;
    bool runs_again;     /* a sure row did not begin where the nodes are */
    bool knows_given_up; /* a hash behind it is taken for known, while a window is under way there */
    int fail_at;         /* position at which `take` fails; 0: never */
} guesser;

static sn_status guess(void *ctx, sn_guess *guess, sn_err *err) {
    guesser *g = ctx;
    const size_t row = (size_t)g->r.w->n_embd;
    (void)err;
    const int n = guess->n;
    guess->n = 0;
    if (!guess->n_windows) g->wrong_from = 1 << 30;
    for (size_t i = 0; i < 2 && !guess->n_windows; i++)
        g->runs_again |= sn_hops_known_from(&g->r.chain->hops[i], 1, guess->position) != guess->position;
    for (int at = g->right_to + 1; guess->n_windows && g->r.chain->hops[1].pushed && at <= g->end; at++)
        g->knows_given_up |= sn_hops_know_hash(&g->r.chain->hops[1], 1, at);
    if (guess->n_windows > AHEAD || guess->position >= g->end) return SN_OK;
    if ((int)guess->n_windows + 1 > g->most_windows) g->most_windows = (int)guess->n_windows + 1;
    const int length = 1 + g->n_guessed++ % n; /* short ones behind long ones, too */
    guess->n = g->end - guess->position < length ? g->end - guess->position : length;
    for (int i = 0; i < guess->n; i++) {
        const int at = guess->position + i;
        const bool sure = !i && !guess->n_windows;
        if (g->wrong_every && !sure && at % g->wrong_every == 0 && at < g->wrong_from) g->wrong_from = at;
        memcpy(guess->rows + (size_t)i * row, g->r.w->inputs + (size_t)at * row, row * sizeof(float));
        if (at >= g->wrong_from) guess->rows[(size_t)i * row] += 1;
    }
    return SN_OK;
}

static sn_status take(void *ctx, sn_window *window, sn_err *err) {
    guesser *g = ctx;
    const size_t row = (size_t)g->r.w->n_embd;
    if (g->fail_at && window->position >= g->fail_at) return sn_fail(err, SN_RETRY, "the caller fails");
    if (window->end > g->wrong_from) window->end = g->wrong_from;
    const int right = window->end - window->position;
    g->right_to = window->end;
    if (right < 1 ||
        memcmp(window->out, g->r.w->hidden + (size_t)window->position * row, (size_t)right * row * sizeof(float)))
        g->bits_differ = true;
    if (window->end == g->wrong_from) {
        window->next = SN_GUESSES_WRONG;
        g->n_wrong++;
    }
    if (window->end == g->end) window->next = SN_GUESSES_DONE;
    return SN_OK;
}

static sn_status run(guesser *g, int end) {
    const sn_guesses guesses = {guess, take, g, ROWS};
    sn_status status = SN_OK;
    g->end = end;
    while (!status && sn_chain_length(g->r.chain) < end)
        status = sn_chain_step_ahead(g->r.chain, sn_chain_length(g->r.chain), &guesses, &g->r.err);
    return status;
}

static guesser guesser_begin(sn_chain_options options, int wrong_every) {
    guesser g = {.wrong_every = wrong_every, .wrong_from = 1 << 30};
    chain_fixture_open(&g.r, testbed_of_halves(1), options);
    chain_fixture_steps(&g.r, 0, 10, 10);
    g.right_to = 10;
    return g;
}

static void guesser_end(guesser *g) {
    chain_fixture_close(&g->r);
    testbed_free(&g->r.w);
}

static void expect_same(sn_chain_options options) {
    static const int wrong_every[] = {0, 1, 2, 5, 7, 11};
    int most_windows = 0; /* of all: how many are under way is a question of speed */
    for (size_t i = 0; i < sizeof wrong_every / sizeof *wrong_every; i++) {
        guesser g = guesser_begin(options, wrong_every[i]);
        cr_expect_eq(run(&g, 90), SN_OK, "%s", g.r.err.text);
        cr_expect(!g.bits_differ && !g.knows_given_up && !g.runs_again && sn_chain_length(g.r.chain) == 90);
        if (g.most_windows > most_windows) most_windows = g.most_windows;
        cr_expect_eq(sn_chain_failovers(g.r.chain), 0);
        cr_expect(!wrong_every[i] == !g.n_wrong);
        chain_fixture_steps(&g.r, 60, 96, 5);
        guesser_end(&g);
    }
    cr_expect_gt(most_windows, 1);
}

Test(windows, same_bits_by_the_client) { expect_same((sn_chain_options){0}); }
Test(windows, same_bits_over_pushing_nodes) { expect_same((sn_chain_options){.routing.push = true}); }
Test(windows, same_bits_with_receipts) {
    for (int push = 0; push < 2; push++)
        expect_same((sn_chain_options){.routing.push = push, .verification.receipts = true});
}

static void expect_survival(bool push, int at_step) {
    guesser g = guesser_begin((sn_chain_options){.routing.push = push}, 7);
    sn_hop_report hops[2];
    cr_assert_eq(sn_chain_hops(g.r.chain, hops, 2), 2);
    cluster_cut_off_at_step(g.r.w->cluster, hops[1].node[strlen("node")] - '0', at_step);
    cr_expect_eq(run(&g, 90), SN_OK, "%s", g.r.err.text);
    cr_expect(!g.bits_differ && sn_chain_length(g.r.chain) == 90);
    cr_expect_eq(sn_chain_failovers(g.r.chain), 1);
    chain_fixture_steps(&g.r, 60, 96, 5);
    guesser_end(&g);
}
Test(windows, a_node_is_lost_with_windows_under_way) {
    for (int at_step = 5; at_step < 9; at_step++) expect_survival(false, at_step);
}
Test(windows, a_pushing_node_is_lost_with_windows_under_way) {
    for (int at_step = 5; at_step < 9; at_step++) expect_survival(true, at_step);
}

Test(windows, what_the_caller_fails_with_ends_them_and_nothing_else) {
    for (int push = 0; push < 2; push++) {
        guesser g = guesser_begin((sn_chain_options){.routing.push = push}, 0);
        g.fail_at = 40;
        cr_expect_eq(run(&g, 90), SN_RETRY);
        cr_expect_str_eq(g.r.err.text, "the caller fails");
        g.fail_at = 0;
        cr_expect_eq(run(&g, 90), SN_OK, "%s", g.r.err.text);
        cr_expect(!g.bits_differ);
        cr_expect_eq(sn_chain_failovers(g.r.chain), 0);
        guesser_end(&g);
    }
}

Test(windows, the_context_is_not_passed) {
    guesser g = guesser_begin((sn_chain_options){.max_tokens = 50}, 0);
    cr_expect_eq(run(&g, 50), SN_OK, "%s", g.r.err.text);
    const sn_guesses guesses = {guess, take, &g, ROWS};
    cr_expect_eq(sn_chain_step_ahead(g.r.chain, 50, &guesses, &g.r.err), SN_REFUSED);
    cr_expect_eq(sn_chain_step_ahead(g.r.chain, -1, &guesses, &g.r.err), SN_REFUSED);
    guesser_end(&g);
}

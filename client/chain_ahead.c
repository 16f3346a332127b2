/* Long inputs flow down the chain in pieces: while one node is at work on a piece, the node before it is at work on the next,
 * and another one is on its way. The order of the pieces is kept everywhere, so every node sees the steps that it would see
 * if they came one after the other.
 *
 * A failure ends the flow: what is under way at other nodes is taken in, and what has not come through the whole chain is
 * left to the caller, who goes on from there (chain.c): nodes that are ahead of it are rewound by that. */
#include "client/audit.h"
#include "client/chain_private.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES_MAX = 24, PIECE_LEAST = 64, PIECE_MOST = 128, PIECES_PER_HOP = 4 };

typedef struct piece {
    int position, n;
    size_t at;      /* the hop that it goes into next, or whose group it is under way in */
    bool under_way;
    float *rows;    /* (n, n_embd): into hop `at` */
    sn_flight flight;
} piece;

typedef struct flow {
    sn_chain *chain;
    const float *hidden;
    float *out;
    int position, n, rows; /* of all; rows: of a piece */
    int given, done;       /* of the n rows: made pieces of, and through */
    size_t broken;         /* the hop at which it failed */
    piece pieces[PIECES_MAX];
    size_t n_pieces, pieces_max; /* oldest first; those behind n_pieces lend their rows' memory */
    float *memory;
} flow;

int sn_chain_piece_rows(const sn_chain *chain, int n) {
    size_t remote = 0;
    int most = PIECE_MOST;
    for (size_t i = 0; i < chain->n_hops; i++) {
        const sn_hop_at *hop = &chain->hops[i];
        remote += !hop->local;
        if (hop->local) continue;
        if (!hop->steps_ahead_max) return 0;
        if (hop->step_tokens_max < most) most = hop->step_tokens_max;
    }
    if (!remote || chain->options.every_block || chain->options.steps_ahead < 0) return 0;
    int rows = n / (int)(PIECES_PER_HOP * chain->n_hops);
    if (rows < PIECE_LEAST) rows = PIECE_LEAST;
    if (rows > most) rows = most;
    return n >= 2 * rows ? rows : 0;
}

/* -- onwards -- */

static void observe(const sn_chain *chain, int block, const piece *p) {
    if (chain->observer) chain->observer(chain->observer_ctx, block, p->position, p->n, p->rows);
}

/* Whether piece k may go into its group now: behind those before it, and within what the nodes let wait. */
static bool may_go(const flow *f, size_t k) {
    const piece *p = &f->pieces[k];
    const sn_chain *chain = f->chain;
    const sn_hop_at *hop = &chain->hops[p->at];
    if (p->under_way || (k && f->pieces[k - 1].at == p->at && !f->pieces[k - 1].under_way)) return false;
    if (hop->local) return true;
    int waiting = 0, rows = p->n;
    bool first = true;
    for (size_t i = 0; i < k; i++) {
        if (f->pieces[i].at != p->at) continue;
        if (!first) rows += f->pieces[i].n; /* the oldest is in work */
        waiting += !first;
        first = false;
    }
    if (first) return true;
    int limit = chain->options.steps_ahead ? chain->options.steps_ahead : SN_STEPS_AHEAD_MAX;
    for (size_t i = p->at, j = sn_chain_group_end(chain->hops, chain->n_hops, i); i < j; i++) {
        if (chain->hops[i].steps_ahead_max < limit) limit = chain->hops[i].steps_ahead_max;
        if (rows > chain->hops[i].step_tokens_max) return false;
    }
    return waiting < limit;
}

/* The oldest piece has come through: its memory goes to the end of the queue. */
static void finish(flow *f) {
    piece through = f->pieces[0];
    size_t n_embd = (size_t)f->chain->hp.n_embd;
    observe(f->chain, f->chain->options.end, &through);
    memcpy(f->out + (size_t)f->done * n_embd, through.rows, (size_t)through.n * n_embd * sizeof *f->out);
    f->done += through.n;
    memmove(f->pieces, f->pieces + 1, (f->pieces_max - 1) * sizeof *f->pieces);
    f->pieces[f->pieces_max - 1] = through;
    f->n_pieces--;
}

static sn_status go_local(flow *f, piece *p, sn_err *err) {
    sn_chain *chain = f->chain;
    int n_embd = chain->hp.n_embd;
    sn_status status = sn_hop_step_local(&chain->hops[p->at], p->position, p->n, n_embd, p->rows, chain->rows[0], err);
    if (!status) memcpy(p->rows, chain->rows[0], (size_t)p->n * (size_t)n_embd * sizeof *p->rows);
    p->at++;
    return status;
}

static sn_status go_to_nodes(flow *f, size_t k, sn_err *err) {
    sn_chain *chain = f->chain;
    piece *p = &f->pieces[k];
    sn_hop_at *hops = &chain->hops[p->at];
    size_t n_hops = sn_chain_group_end(chain->hops, chain->n_hops, p->at) - p->at, ahead = 0;
    for (size_t i = 0; i < k; i++) ahead += f->pieces[i].at == p->at;
    sn_status status = sn_hop_record(hops, p->position, p->n, chain->hp.n_embd, p->rows, chain->hasher, err);
    if (!status)
        status = sn_hops_send(hops, n_hops, chain->options.link, ahead, p->position, p->n, chain->hp.n_embd, p->rows,
                              chain->options.timeout_ms, &p->flight, err);
    p->under_way = !status;
    return status;
}

static void make_piece(flow *f) {
    size_t n_embd = (size_t)f->chain->hp.n_embd;
    if (f->given == f->n || f->n_pieces == f->pieces_max) return;
    piece *p = &f->pieces[f->n_pieces++];
    int left = f->n - f->given;
    *p = (piece){.position = f->position + f->given, .n = left < f->rows ? left : f->rows, .rows = p->rows};
    memcpy(p->rows, f->hidden + (size_t)f->given * n_embd, (size_t)p->n * n_embd * sizeof *p->rows);
    f->given += p->n;
}

/* Sends on whatever may go, and makes new pieces: one waits to be sent. */
static sn_status advance(flow *f, sn_err *err) {
    sn_chain *chain = f->chain;
    sn_status status = SN_OK;
    if (!f->n_pieces) make_piece(f);
    for (size_t k = 0; k < f->n_pieces && !status; k++) {
        piece *p = &f->pieces[k];
        while (!status && p->at < chain->n_hops && may_go(f, k)) {
            observe(chain, chain->hops[p->at].first, p);
            f->broken = p->at;
            status = chain->hops[p->at].local ? go_local(f, p, err) : go_to_nodes(f, k, err);
        }
        if (!status && k + 1 == f->n_pieces && (p->at || p->under_way)) make_piece(f);
    }
    while (!status && f->n_pieces && f->pieces[0].at == chain->n_hops) finish(f);
    return status;
}

/* -- answers -- */

typedef struct outlook {
    sn_wait waits[PIECES_MAX];
    sn_peer peers[PIECES_MAX][SN_HOPS_MAX];
    size_t which[PIECES_MAX], n;
} outlook;

static void look_out(const flow *f, outlook *o) {
    const sn_chain *chain = f->chain;
    o->n = 0;
    for (size_t k = 0; k < f->n_pieces; k++) {
        const piece *p = &f->pieces[k];
        if (!p->under_way) continue;
        size_t j = sn_chain_group_end(chain->hops, chain->n_hops, p->at);
        o->waits[o->n] = sn_hops_wait(&chain->hops[p->at], j - p->at, &p->flight, o->peers[o->n]);
        o->which[o->n++] = k;
    }
}

/* What else is done about a step that is done. */
static sn_status note(sn_chain *chain, const piece *p, size_t end, sn_err *err) {
    const sn_hop_at *hops = &chain->hops[p->at];
    int n_embd = chain->hp.n_embd;
    const float *in = hops[0].inputs + (size_t)p->position * (size_t)n_embd;
    sn_status status = SN_OK;
    if (chain->options.audit)
        status = sn_audit_note(chain->options.audit, hops, end - p->at, p->position, p->n, n_embd, in, p->rows, err);
    if (!status) sn_chain_note_step(chain, chain->hops, p->at, end, p->n);
    return status;
}

/* The next answer, from whichever node. */
static sn_status take_answer(flow *f, outlook *o, sn_err *err) {
    sn_chain *chain = f->chain;
    sn_msg *result = NULL;
    size_t at, failed;
    look_out(f, o);
    sn_status status = sn_link_wait_any(chain->options.link, o->waits, o->n, &at, &result, err);
    piece *p = &f->pieces[o->which[at]];
    f->broken = p->at;
    for (const piece *before = f->pieces; before < p && !status; before++)
        if (before->at == p->at) status = sn_fail(err, SN_RETRY, "steps were answered in another order");
    size_t j = sn_chain_group_end(chain->hops, chain->n_hops, p->at);
    if (!status)
        status = sn_hops_take(&chain->hops[p->at], j - p->at, &p->flight, result, chain->hp.n_embd, p->rows, &failed, err);
    sn_msg_free(&result);
    if (!status) status = note(chain, p, j, err);
    if (status) return status;
    p->under_way = false;
    p->at = j;
    return SN_OK;
}

/* After a failure what other nodes are at work on is taken in, so that they stand where we think. */
static void settle(flow *f, outlook *o) {
    for (size_t left = 1; left;) {
        sn_err err;
        left = 0;
        for (size_t k = 0; k < f->n_pieces; k++) {
            if (f->pieces[k].at == f->broken) f->pieces[k].under_way = false; /* given up */
            left += f->pieces[k].under_way;
        }
        while (left && !take_answer(f, o, &err)) left--;
    }
}

sn_status sn_chain_step_ahead(sn_chain *chain, int position, int n, int rows, const float *hidden, float *out, int *done,
                              sn_err *err) {
    flow f = {.chain = chain, .hidden = hidden, .out = out, .position = position, .n = n, .rows = rows};
    size_t row_floats = (size_t)rows * (size_t)chain->hp.n_embd, wanted = 2 * chain->n_hops + SN_STEPS_AHEAD_MAX;
    outlook *o = NULL;
    *done = 0;
    f.pieces_max = wanted < PIECES_MAX ? wanted : PIECES_MAX;
    sn_status status = sn_calloc(&f.memory, f.pieces_max, row_floats * sizeof(float), err);
    if (!status) status = sn_calloc(&o, 1, sizeof *o, err);
    for (size_t i = 0; i < f.pieces_max && !status; i++) f.pieces[i].rows = f.memory + i * row_floats;
    while (!status && f.done < n) {
        status = advance(&f, err);
        if (!status && f.n_pieces) status = take_answer(&f, o, err);
    }
    if (status && status != SN_STOP) settle(&f, o);
    *done = f.done;
    free(o);
    free(f.memory);
    return status;
}

/* Row i of the block is the pair of the model's hidden state at position i and the token at i + 1. Rows of pairs whose
 * hidden states the chain gave stay in the block's KV cache; what is drafted on from them, and rows of tokens that are
 * only optimistic, are taken back after each proposal.
 *
 * Hidden states wait in `waiting` until the token behind them is known and something is to be drafted, or many have
 * come: then their pairs run through the block at once. A pair of a token that was replaced since stays as it is, where
 * the hidden state is not told again: that changes drafts a little, and never the text. */
#include "client/generate/draft.h"

#include "base/mem.h"
#include "blocks/next_block.h"

#include <stdlib.h>
#include <string.h>

enum { WAITING = 256 };

struct sn_draft_mtp {
    sn_lm_head *head;
    size_t n_embd;
    int n_vocab;
    size_t capacity; /* positions of the longest timeline */
    sn_next_block *block;
    sn_sampler *sampler;
    size_t first, paired, told; /* positions: the pairs [first, paired) are in the cache, the hidden states of
                                   [paired, told) wait */
    bool has_last;              /* `last` is what came out of the newest pair */
    int32_t *ids;               /* (capacity + SN_DRAFT_TOKENS_MAX): the text with what is drafted */
    float *waiting;             /* (WAITING, n_embd), after the model's last norm */
    float *embeddings;          /* (WAITING, n_embd) */
    float *out;                 /* (WAITING, n_embd) */
    float *last, *row;          /* (n_embd) each; row: of what is drafted */
    float *logits;              /* (n_vocab) */
};

static sn_status mtp_alloc(sn_draft_mtp *m, sn_err *err) {
    SN_TRY(sn_calloc(&m->ids, m->capacity + SN_DRAFT_TOKENS_MAX, sizeof *m->ids, err));
    SN_TRY(sn_calloc(&m->waiting, WAITING * m->n_embd, sizeof *m->waiting, err));
    SN_TRY(sn_calloc(&m->embeddings, WAITING * m->n_embd, sizeof *m->embeddings, err));
    SN_TRY(sn_calloc(&m->out, WAITING * m->n_embd, sizeof *m->out, err));
    SN_TRY(sn_calloc(&m->last, m->n_embd, sizeof *m->last, err));
    SN_TRY(sn_calloc(&m->row, m->n_embd, sizeof *m->row, err));
    return sn_calloc(&m->logits, (size_t)m->n_vocab, sizeof *m->logits, err);
}

sn_status sn_draft_mtp_open(const sn_draft_mtp_options *o, sn_draft_mtp **out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(o->model);
    sn_draft_mtp *m = NULL;
    *out = NULL;
    SN_TRY(sn_calloc(&m, 1, sizeof *m, err));
    *m = (sn_draft_mtp){
        .head = o->head, .n_embd = (size_t)hp->n_embd, .n_vocab = hp->n_vocab, .capacity = (size_t)o->max_context};
    const int rows = o->max_context + SN_DRAFT_TOKENS_MAX;
    sn_status status = sn_next_block_load(o->model, o->device, o->kv_dtype, rows, &m->block, err);
    if (!status) status = sn_sampler_new(&o->sampling, m->n_vocab, &m->sampler, err);
    if (!status) status = mtp_alloc(m, err);
    if (status) sn_draft_mtp_close(&m);
    *out = m;
    return status;
}

void sn_draft_mtp_close(sn_draft_mtp **mtp) {
    sn_draft_mtp *m = *mtp;
    if (!m) return;
    sn_next_block_free(&m->block);
    sn_sampler_free(&m->sampler);
    float *arrays[] = {m->waiting, m->embeddings, m->out, m->last, m->row, m->logits};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    free(m->ids);
    free(m);
    *mtp = NULL;
}

sn_status sn_draft_mtp_set_sampling(sn_draft_mtp *mtp, const sn_sampling *sampling, sn_err *err) {
    sn_sampler *sampler = NULL;
    SN_TRY(sn_sampler_new(sampling, mtp->n_vocab, &sampler, err));
    sn_sampler_free(&mtp->sampler);
    mtp->sampler = sampler;
    return SN_OK;
}

/* -- the chain's rows -- */

/* Nothing is known from this position on. */
static void mtp_cut(sn_draft_mtp *m, size_t position) {
    if (position < m->first) m->first = m->paired = position;
    if (position < m->paired) m->paired = position;
    if (position < m->told) m->told = position;
    const size_t rows = m->paired - m->first;
    if ((size_t)sn_next_block_length(m->block) == rows) return;
    sn_next_block_rewind(m->block, (int)rows);
    m->has_last = false;
}

/* Runs the pairs of positions up to `end`, of which the hidden states wait, through the block. */
static sn_status mtp_pair(sn_draft_mtp *m, const int32_t *ids, size_t end, sn_err *err) {
    const size_t n = end - m->paired, n_embd = m->n_embd;
    if (!n) return SN_OK;
    SN_TRY(sn_lm_head_embed(m->head, ids + m->paired + 1, (int)n, m->embeddings, err));
    SN_TRY(sn_next_block_forward(m->block, (int)n, m->embeddings, m->waiting, m->out, err));
    memcpy(m->last, m->out + (n - 1) * n_embd, n_embd * sizeof *m->last);
    memmove(m->waiting, m->waiting + n * n_embd, (m->told - end) * n_embd * sizeof *m->waiting);
    m->paired = end;
    m->has_last = true;
    return SN_OK;
}

static sn_status mtp_rows(void *ctx, const int32_t *ids, size_t n_ids, size_t position, size_t n, const float *rows,
                          sn_err *err) {
    sn_draft_mtp *m = ctx;
    if (position > m->told) { /* rows between were never told */
        mtp_cut(m, 0);
        m->first = m->paired = m->told = position;
    }
    mtp_cut(m, position);
    for (size_t some; n; position += some, rows += some * m->n_embd, n -= some) {
        if (m->told - m->paired == WAITING) SN_TRY(mtp_pair(m, ids, sn_min_size(m->told, n_ids - 1), err));
        const size_t waiting = m->told - m->paired;
        some = sn_min_size(n, WAITING - waiting);
        SN_TRY(sn_lm_head_norm(m->head, rows, (int)some, m->waiting + waiting * m->n_embd, err));
        m->told += some;
    }
    return SN_OK;
}

/* -- proposing -- */

/* m->row after one more row: of the token, and of m->row. */
static sn_status mtp_go_on(sn_draft_mtp *m, int32_t token, sn_err *err) {
    SN_TRY(sn_lm_head_embed(m->head, &token, 1, m->embeddings, err));
    return sn_next_block_forward(m->block, 1, m->embeddings, m->row, m->row, err);
}

/* m->row of the last pair of the text: after the pairs with the chain's rows those with the block's own. */
static sn_status mtp_read(sn_draft_mtp *m, const int32_t *ids, size_t n, sn_err *err) {
    sn_status status = mtp_pair(m, ids, sn_min_size(m->told, n - 1), err);
    memcpy(m->row, m->last, m->n_embd * sizeof *m->row);
    for (size_t i = m->paired; i + 1 < n && !status && m->has_last; i++) status = mtp_go_on(m, ids[i + 1], err);
    return status;
}

static sn_status mtp_draft(sn_draft_mtp *m, size_t n, size_t n_max, int32_t *out, size_t *n_out, sn_err *err) {
    for (; *n_out < n_max; ++*n_out) {
        if (*n_out) SN_TRY(mtp_go_on(m, out[*n_out - 1], err));
        SN_TRY(sn_lm_head_logits_of_normed(m->head, m->row, 1, m->logits, err));
        SN_TRY(sn_sampler_sample(m->sampler, m->logits, m->ids, n + *n_out, &out[*n_out], err));
        m->ids[n + *n_out] = out[*n_out];
    }
    return SN_OK;
}

static sn_status mtp_propose(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t n_max,
                             int32_t *out, size_t *n_out, sn_err *err) {
    sn_draft_mtp *m = ctx;
    *n_out = 0;
    if (n > m->capacity || m->told == m->first || n < m->first + 2) return SN_OK;
    if (m->told > n - 1) mtp_cut(m, n - 1);
    memcpy(m->ids, ids, n * sizeof *ids);
    sn_sampler_set_rng_state(m->sampler, rng_state);
    sn_status status = mtp_read(m, ids, n, err);
    if (!status && m->has_last) status = mtp_draft(m, n, n_max, out, n_out, err);
    sn_next_block_rewind(m->block, (int)(m->paired - m->first));
    return status ? sn_err_context(err, "the model's own drafts") : SN_OK;
}

sn_draft sn_draft_of_mtp(sn_draft_mtp *mtp, int n_max) {
    sn_draft draft = sn_draft_make(mtp_propose, mtp, n_max);
    draft.rows = mtp_rows;
    return draft;
}

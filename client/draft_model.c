#include "client/draft.h"

#include "base/mem.h"
#include "client/chain.h"
#include "client/head.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 512 };

struct sn_draft_model {
    sn_model *model;
    const sn_hparams *hp;
    sn_head *head;
    sn_chain *chain;
    sn_sampler *sampler;
    int n_vocab;   /* tokens that both models have */
    size_t room;   /* longest timeline here */
    int32_t *ids;  /* (room + 1): its timeline ... */
    size_t length; /* ... of which its chain has seen so many */
    float *rows;   /* (PIECE, n_embd): into the chain, and out of it */
    float *logits; /* (n_vocab of its own) */
};

/* -- the same tokens? ---------------------------------------------------------------------------------------------- */

/* The bytes of a token; none for ids that only pad a vocabulary, or lie behind it. */
static sn_status token_bytes(const sn_tokenizer *t, int32_t id, sn_buf *out, sn_err *err) {
    out->len = 0;
    return id < sn_tokenizer_n_vocab(t) ? sn_tokenizer_decode(t, id, true, out, err) : SN_OK;
}

static bool is_end(const sn_tokenizer *t, int32_t id) { return id < sn_tokenizer_n_vocab(t) && sn_tokenizer_is_end(t, id); }

static sn_status compare_tokens(const sn_tokenizer *a, const sn_tokenizer *b, const char *path, sn_err *err) {
    int na = sn_tokenizer_n_vocab(a), nb = sn_tokenizer_n_vocab(b);
    sn_buf own, other;
    sn_buf_init(&own, 1 << 20);
    sn_buf_init(&other, 1 << 20);
    sn_status status = SN_OK;
    for (int32_t id = 0; id < (na > nb ? na : nb) && !status; id++) {
        status = token_bytes(a, id, &own, err);
        if (!status) status = token_bytes(b, id, &other, err);
        bool same = own.len == other.len && (!own.len || !memcmp(own.data, other.data, own.len)) && is_end(a, id) == is_end(b, id);
        if (!status && !same)
            status = sn_fail(err, SN_REFUSED,
                             "%s has another vocabulary, from token %d on: a draft must be a model of the same tokens", path, id);
    }
    sn_buf_fini(&own);
    sn_buf_fini(&other);
    return status;
}

static sn_status check_vocabulary(const sn_draft_wish *wish, const sn_hparams *hp, sn_err *err) {
    sn_tokenizer *tokenizer = NULL;
    if (!wish->tokenizer) {
        if (hp->n_vocab == wish->hp->n_vocab) return SN_OK;
        return sn_fail(err, SN_REFUSED, "%s has %d tokens and the model %d: a draft must be a model of the same tokens", wish->path,
                       hp->n_vocab, wish->hp->n_vocab);
    }
    sn_status status = sn_tokenizer_open(wish->path, &tokenizer, err);
    if (status) return sn_err_context(err, "whether a draft has the model's tokens shows its tokenizer");
    status = compare_tokens(wish->tokenizer, tokenizer, wish->path, err);
    sn_tokenizer_close(&tokenizer);
    return status;
}

/* -- life ---------------------------------------------------------------------------------------------------------- */

static sn_status load(sn_draft_model *m, const sn_draft_wish *wish, sn_err *err) {
    const sn_hparams *hp = m->hp;
    m->n_vocab = hp->n_vocab < wish->hp->n_vocab ? hp->n_vocab : wish->hp->n_vocab;
    m->room = (size_t)(hp->n_ctx < wish->max_context ? hp->n_ctx : wish->max_context);
    sn_chain_options options = {.device = wish->device, .local_end = hp->n_blocks, .max_tokens = (int)m->room};
    sn_status status = sn_head_load(m->model, wish->device, &m->head, err);
    if (!status) status = sn_chain_open(m->model, &options, &m->chain, err);
    if (!status) status = sn_sampler_new(&wish->sampling, hp->n_vocab, &m->sampler, err);
    if (!status) status = sn_calloc(&m->ids, m->room + 1, sizeof *m->ids, err);
    if (!status) status = sn_calloc(&m->rows, PIECE * (size_t)hp->n_embd, sizeof *m->rows, err);
    if (!status) status = sn_calloc(&m->logits, (size_t)hp->n_vocab, sizeof *m->logits, err);
    return status;
}

sn_status sn_draft_model_open(const sn_draft_wish *wish, sn_draft_model **out, sn_err *err) {
    sn_draft_model *m = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    status = sn_model_open(wish->path, &m->model, err);
    if (!status) m->hp = sn_model_hparams(m->model);
    if (!status) status = check_vocabulary(wish, m->hp, err);
    if (!status) status = load(m, wish, err);
    if (status) sn_draft_model_close(&m);
    *out = m;
    return status ? sn_err_context(err, "the draft") : SN_OK;
}

void sn_draft_model_close(sn_draft_model **model) {
    sn_draft_model *m = *model;
    if (!m) return;
    sn_chain_close(&m->chain);
    sn_head_free(&m->head);
    sn_sampler_free(&m->sampler);
    sn_model_close(&m->model);
    free(m->ids);
    free(m->rows);
    free(m->logits);
    free(m);
    *model = NULL;
}

/* -- guessing ------------------------------------------------------------------------------------------------------ */

/* Feeds ids[length, n) to its chain; the logits then belong to the token behind. */
static sn_status feed(sn_draft_model *m, size_t n, sn_err *err) {
    size_t rows = 0;
    sn_status status = SN_OK;
    for (; m->length < n && !status; m->length += status ? 0 : rows) {
        rows = sn_min_size(PIECE, n - m->length);
        status = sn_head_embed(m->head, m->ids + m->length, (int)rows, m->rows, err);
        if (!status) status = sn_chain_step(m->chain, (int)m->length, (int)rows, m->rows, m->rows, err);
    }
    return status ? status : sn_head_logits(m->head, m->rows + (rows - 1) * (size_t)m->hp->n_embd, 1, m->logits, err);
}

sn_status sn_draft_ask(void *model, const int32_t *ids, size_t n, const sn_chance *chance, size_t most, int32_t *out, size_t *n_out,
                       sn_err *err) {
    sn_draft_model *m = model;
    size_t same = 0;
    *n_out = 0;
    if (n > m->room) return SN_OK;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= m->n_vocab) return SN_OK;
    while (same < m->length && same + 1 < n && m->ids[same] == ids[same]) same++;
    m->length = same;
    memcpy(m->ids, ids, n * sizeof *ids);
    sn_sampler_return(m->sampler, chance);
    sn_status status = SN_OK;
    for (size_t at = n; *n_out < most && at <= m->room; at++) {
        status = feed(m, at, err);
        if (!status) status = sn_sampler_pick(m->sampler, m->logits, m->ids, at, &out[*n_out], err);
        if (status || out[*n_out] >= m->n_vocab) break;
        m->ids[at] = out[(*n_out)++];
    }
    return status ? sn_err_context(err, "the draft") : SN_OK;
}

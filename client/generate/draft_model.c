#include "client/generate/draft.h"

#include "base/mem.h"
#include "client/chain/chain.h"
#include "client/generate/lm_head.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_ROWS = 512 };

struct sn_draft_model {
    sn_model *model;
    const sn_hparams *hp;
    sn_lm_head *head;
    sn_chain *chain;
    sn_sampler *sampler;
    int n_vocab;     /* token ids below this exist in both models */
    size_t capacity; /* longest timeline of the draft model */
    int32_t *ids;    /* (capacity + 1): its timeline ... */
    size_t length;   /* ... of which the chain has computed so many tokens */
    float *rows;     /* (CHUNK_ROWS, n_embd): input and output of the chain */
    float *logits;   /* (the draft model's n_vocab) */
};

/* -- vocabularies ---------------------------------------------------------------------------------------------------
 */

/* The bytes of a token; none for ids that only pad a vocabulary or are beyond it. */
static sn_status token_bytes(const sn_tokenizer *t, int32_t id, sn_buf *out, sn_err *err) {
    out->len = 0;
    return id < sn_tokenizer_n_vocab(t) ? sn_tokenizer_decode(t, id, true, out, err) : SN_OK;
}

static bool token_is_end(const sn_tokenizer *t, int32_t id) {
    return id < sn_tokenizer_n_vocab(t) && sn_tokenizer_is_eog(t, id);
}

static sn_status compare_tokens(const sn_tokenizer *a, const sn_tokenizer *b, const char *path, sn_err *err) {
    int na = sn_tokenizer_n_vocab(a), nb = sn_tokenizer_n_vocab(b);
    sn_buf own, other;
    sn_buf_init(&own, 1 << 20);
    sn_buf_init(&other, 1 << 20);
    sn_status status = SN_OK;
    for (int32_t id = 0; id < (na > nb ? na : nb) && !status; id++) {
        status = token_bytes(a, id, &own, err);
        if (!status) status = token_bytes(b, id, &other, err);
        bool same = own.len == other.len && (!own.len || !memcmp(own.data, other.data, own.len)) &&
                    token_is_end(a, id) == token_is_end(b, id);
        if (!status && !same)
            status = sn_fail(err, SN_REFUSED,
                             "%s has another vocabulary, from token %d on: a draft model needs the model's tokens",
                             path, id);
    }
    sn_buf_fini(&own);
    sn_buf_fini(&other);
    return status;
}

static sn_status check_vocabulary(const sn_draft_model_options *options, const sn_hparams *hp, sn_err *err) {
    sn_tokenizer *tokenizer = NULL;
    if (!options->tokenizer) {
        if (hp->n_vocab == options->hp->n_vocab) return SN_OK;
        return sn_fail(err, SN_REFUSED, "%s has %d tokens and the model %d: a draft model needs the model's tokens",
                       options->path, hp->n_vocab, options->hp->n_vocab);
    }
    sn_status status = sn_tokenizer_open(options->path, &tokenizer, err);
    if (status) return sn_err_context(err, "the draft model's tokenizer, to compare the tokens");
    status = compare_tokens(options->tokenizer, tokenizer, options->path, err);
    sn_tokenizer_close(&tokenizer);
    return status;
}

/* -- opening and closing
 * ---------------------------------------------------------------------------------------------------------- */

static sn_status draft_model_load(sn_draft_model *m, const sn_draft_model_options *options, sn_err *err) {
    const sn_hparams *hp = m->hp;
    m->n_vocab = hp->n_vocab < options->hp->n_vocab ? hp->n_vocab : options->hp->n_vocab;
    m->capacity = (size_t)(hp->n_ctx < options->max_context ? hp->n_ctx : options->max_context);
    sn_chain_options chain_options = sn_chain_options_default();
    chain_options.max_tokens = (int)m->capacity;
    chain_options.kv.dtype = options->kv_dtype;
    chain_options.local = (sn_chain_local){.device = options->device, .end = hp->n_blocks};
    sn_status status = sn_lm_head_load(m->model, options->device, &m->head, err);
    if (!status) status = sn_chain_open(m->model, &chain_options, &m->chain, err);
    if (!status) status = sn_sampler_new(&options->sampling, hp->n_vocab, &m->sampler, err);
    if (!status) status = sn_calloc(&m->ids, m->capacity + 1, sizeof *m->ids, err);
    if (!status) status = sn_calloc(&m->rows, CHUNK_ROWS * (size_t)hp->n_embd, sizeof *m->rows, err);
    if (!status) status = sn_calloc(&m->logits, (size_t)hp->n_vocab, sizeof *m->logits, err);
    return status;
}

sn_status sn_draft_model_open(const sn_draft_model_options *options, sn_draft_model **out, sn_err *err) {
    sn_draft_model *m = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    status = sn_model_open(options->path, &m->model, err);
    if (!status) m->hp = sn_model_hparams(m->model);
    if (!status) status = check_vocabulary(options, m->hp, err);
    if (!status) status = draft_model_load(m, options, err);
    if (status) sn_draft_model_close(&m);
    *out = m;
    return status ? sn_err_context(err, "the draft model") : SN_OK;
}

void sn_draft_model_close(sn_draft_model **model) {
    sn_draft_model *m = *model;
    if (!m) return;
    sn_chain_close(&m->chain);
    sn_lm_head_free(&m->head);
    sn_sampler_free(&m->sampler);
    sn_model_close(&m->model);
    free(m->ids);
    free(m->rows);
    free(m->logits);
    free(m);
    *model = NULL;
}

sn_status sn_draft_model_set_sampling(sn_draft_model *model, const sn_sampling *sampling, sn_err *err) {
    sn_sampler *sampler = NULL;
    sn_status status = sn_sampler_new(sampling, model->hp->n_vocab, &sampler, err);
    if (status) return status;
    sn_sampler_free(&model->sampler);
    model->sampler = sampler;
    return SN_OK;
}

/* -- proposing ----------------------------------------------------------------------------------------------------- */

/* Runs ids[length, n) through the chain; the logits are then those of the token at n. */
static sn_status draft_model_feed(sn_draft_model *m, size_t n, sn_err *err) {
    size_t rows = 0;
    sn_status status = SN_OK;
    for (; m->length < n && !status; m->length += status ? 0 : rows) {
        rows = sn_min_size(CHUNK_ROWS, n - m->length);
        status = sn_lm_head_embed(m->head, m->ids + m->length, (int)rows, m->rows, err);
        if (!status) status = sn_chain_step(m->chain, (int)m->length, (int)rows, m->rows, m->rows, err);
    }
    return status ? status
                  : sn_lm_head_logits(m->head, m->rows + (rows - 1) * (size_t)m->hp->n_embd, 1, m->logits, err);
}

sn_status sn_draft_model_propose(void *model, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t n_max,
                                 int32_t *out, size_t *n_out, sn_err *err) {
    sn_draft_model *m = model;
    size_t same = 0;
    *n_out = 0;
    if (n > m->capacity) return SN_OK;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= m->n_vocab) return SN_OK;
    while (same < m->length && same + 1 < n && m->ids[same] == ids[same]) same++;
    m->length = same;
    memcpy(m->ids, ids, n * sizeof *ids);
    sn_sampler_set_rng_state(m->sampler, rng_state);
    sn_status status = SN_OK;
    for (size_t at = n; *n_out < n_max && at <= m->capacity; at++) {
        status = draft_model_feed(m, at, err);
        if (!status) status = sn_sampler_sample(m->sampler, m->logits, m->ids, at, &out[*n_out], err);
        if (status || out[*n_out] >= m->n_vocab) break;
        m->ids[at] = out[(*n_out)++];
    }
    return status ? sn_err_context(err, "the draft model") : SN_OK;
}

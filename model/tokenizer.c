#include "model/bpe.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

#include <stdlib.h>
#include <string.h>

void sn_ids_fini(sn_ids *ids) {
    free(ids->ids);
    *ids = (sn_ids){0};
}

/* ---- building ---- */

sn_status sn_tokenizer_new(sn_tokenizer **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->bos = -1;
    status = sn_pretokenizer_new(&(*out)->pretokenizer, err);
    if (status) sn_tokenizer_close(out);
    return status;
}

void sn_tokenizer_close(sn_tokenizer **tokenizer) {
    if (!*tokenizer) return;
    sn_vocab_fini(&(*tokenizer)->vocab);
    sn_pretokenizer_free(&(*tokenizer)->pretokenizer);
    for (int pass = 0; pass < SN_TOKENIZER_PASSES; pass++) sn_added_fini(&(*tokenizer)->added[pass]);
    sn_chat_fini(&(*tokenizer)->chat);
    free(*tokenizer);
    *tokenizer = NULL;
}

sn_status sn_tokenizer_put_added(sn_tokenizer *tokenizer, int pass, const sn_added_token *token, sn_err *err) {
    sn_status status = sn_vocab_set(&tokenizer->vocab, token->id, token->text, token->len,
                                    token->special ? SN_TOKEN_SPECIAL : SN_TOKEN_ADDED, err);
    return status ? status : sn_added_put(&tokenizer->added[pass], token, err);
}

void sn_tokenizer_put_end(sn_tokenizer *tokenizer, int64_t id) {
    if (id < 0 || (size_t)id >= tokenizer->vocab.n || sn_tokenizer_is_end(tokenizer, (int32_t)id)) return;
    if (tokenizer->n_end_ids < SN_END_IDS_MAX) tokenizer->end_ids[tokenizer->n_end_ids++] = (int32_t)id;
}

sn_status sn_tokenizer_finish(sn_tokenizer *tokenizer, sn_err *err) {
    /* Ends of text or turn that files leave out of their lists now and then. */
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>",
                                       "<|eot_id|>",    "<|eom_id|>",      "</s>"};
    for (int pass = 0; pass < SN_TOKENIZER_PASSES; pass++) {
        sn_added *added = &tokenizer->added[pass];
        sn_status status = sn_added_finish(added, err);
        if (status) return status;
        for (size_t i = 0; i < added->n; i++)
            for (size_t e = 0; added->tokens[i].special && e < sizeof ends / sizeof *ends; e++)
                if (added->tokens[i].len == strlen(ends[e]) && !memcmp(added->tokens[i].text, ends[e], strlen(ends[e])))
                    sn_tokenizer_put_end(tokenizer, added->tokens[i].id);
    }
    return SN_OK;
}

/* ---- encoding ---- */

typedef struct encoding {
    const sn_tokenizer *tokenizer;
    sn_cutter *cutter;
    sn_bpe bpe;
    bool parse_special;
} encoding;

static sn_status encode_piece(void *ctx, const char *piece, size_t len, sn_err *err) {
    encoding *e = ctx;
    return sn_bpe_piece(&e->bpe, &e->tokenizer->vocab, e->tokenizer->whole_words, (const uint8_t *)piece, len, err);
}

/* What lies between added tokens goes on to the next pass, behind the last pass it is cut and merged. */
static sn_status encode_pass(encoding *e, int pass, const char *text, size_t len, sn_err *err) {
    if (pass == SN_TOKENIZER_PASSES) return sn_cutter_run(e->cutter, text, len, encode_piece, e, err);
    sn_status status = SN_OK;
    size_t done = 0, from = 0, at;
    const sn_added_token *token;
    while (!status && from <= len && (token = sn_added_find(&e->tokenizer->added[pass], text, len, from, &at))) {
        size_t end = from = at + token->len;
        if (token->special && !e->parse_special) continue; /* stays text */
        if (token->eats_left) at -= sn_utf8_trailing_space(text + done, at - done);
        if (token->eats_right) end += sn_utf8_leading_space(text + end, len - end);
        if (at > done) status = encode_pass(e, pass + 1, text + done, at - done, err);
        if (!status) status = sn_bpe_id(&e->bpe, token->id, err);
        done = end;
        from = end;
    }
    return status || done == len ? status : encode_pass(e, pass + 1, text + done, len - done, err);
}

/* A begin-of-sequence token in front, unless the text has written it out itself, as chat templates do. */
static sn_status put_bos_first(const sn_tokenizer *tokenizer, sn_bpe *bpe, sn_err *err) {
    if (!tokenizer->add_bos || tokenizer->bos < 0) return SN_OK;
    if (bpe->out.n && bpe->out.ids[0] == tokenizer->bos) return SN_OK;
    sn_status status = sn_bpe_id(bpe, tokenizer->bos, err);
    if (status) return status;
    memmove(bpe->out.ids + 1, bpe->out.ids, (bpe->out.n - 1) * sizeof *bpe->out.ids);
    bpe->out.ids[0] = tokenizer->bos;
    return SN_OK;
}

sn_status sn_tokenizer_encode(const sn_tokenizer *tokenizer, const char *text, size_t len, bool add_bos,
                              bool parse_special, sn_ids *out, sn_err *err) {
    *out = (sn_ids){0};
    if (len > SN_TEXT_MAX)
        return sn_fail(err, SN_REFUSED, "the text has %zu bytes; at most %d are taken at once", len, SN_TEXT_MAX);
    if (!sn_utf8_valid(text, len))
        return sn_fail(err, SN_REFUSED, "the text is not valid UTF-8: convert it first (with iconv, for example)");
    encoding e = {.tokenizer = tokenizer, .parse_special = parse_special};
    sn_status status = sn_cutter_new(tokenizer->pretokenizer, &e.cutter, err);
    if (!status && len) status = encode_pass(&e, 0, text, len, err);
    if (!status && add_bos) status = put_bos_first(tokenizer, &e.bpe, err);
    if (!status) {
        *out = e.bpe.out;
        e.bpe.out = (sn_ids){0};
    }
    sn_cutter_free(&e.cutter);
    sn_bpe_fini(&e.bpe);
    return status;
}

/* ---- the rest ---- */

sn_status sn_tokenizer_decode(const sn_tokenizer *tokenizer, int32_t id, bool with_special, sn_buf *out, sn_err *err) {
    if (id < 0 || (size_t)id >= tokenizer->vocab.n)
        return sn_fail(err, SN_REFUSED, "%d is no token: the vocabulary has the ids 0 to %zu", id,
                       tokenizer->vocab.n - 1);
    if (!with_special && sn_vocab_kind(&tokenizer->vocab, id) == SN_TOKEN_SPECIAL) return SN_OK;
    size_t len;
    const uint8_t *bytes = sn_vocab_bytes(&tokenizer->vocab, id, &len);
    return len ? sn_buf_append(out, bytes, len, err) : SN_OK;
}

int sn_tokenizer_n_vocab(const sn_tokenizer *tokenizer) { return (int)tokenizer->vocab.n; }

bool sn_tokenizer_is_end(const sn_tokenizer *tokenizer, int32_t id) {
    for (size_t i = 0; i < tokenizer->n_end_ids; i++)
        if (tokenizer->end_ids[i] == id) return true;
    return false;
}

sn_status sn_tokenizer_chat(const sn_tokenizer *tokenizer, const sn_chat_turn *turns, size_t n_turns, bool first,
                            bool open_answer, sn_buf *out, sn_err *err) {
    return sn_chat_render(&tokenizer->chat, turns, n_turns, first, open_answer, out, err);
}

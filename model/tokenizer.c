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

/* The tokens of the second pass are looked for as the text looks that it sees, and stand for that text. */
static sn_status mark_added(sn_tokenizer *tokenizer, sn_added *added, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; tokenizer->marks_early && !status && i < added->n; i++) {
        sn_added_token *token = &added->tokens[i];
        char *text;
        size_t n = 0;
        status = sn_calloc(&text, SN_SPACE_LEN * (token->len + 1), 1, err);
        if (status) break;
        if (tokenizer->lead == SN_LEAD_ALWAYS) memcpy(text, SN_SPACE, n = SN_SPACE_LEN);
        for (size_t k = 0; k < token->len; k++) {
            size_t len = token->text[k] == ' ' ? SN_SPACE_LEN : 1;
            memcpy(text + n, len > 1 ? SN_SPACE : token->text + k, len);
            n += len;
        }
        free(token->text);
        token->text = text;
        token->len = n;
        status = sn_vocab_change(&tokenizer->vocab, token->id, text, n, err);
        added->begins[(uint8_t)text[0]] = true;
    }
    return status;
}

sn_status sn_tokenizer_finish(sn_tokenizer *tokenizer, sn_err *err) {
    /* Ends of text or turn that files leave out of their lists now and then. */
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>",    "<|eot_id|>",
                                       "<|eom_id|>",    "</s>",            "<end_of_turn>", "<|end|>"};
    /* The last of them ends a turn in Phi-3; elsewhere it may end one of several parts of an answer. */
    size_t n_ends = sizeof ends / sizeof *ends - !tokenizer->vocab.of_characters;
    for (int pass = 0; pass < SN_TOKENIZER_PASSES; pass++) {
        sn_added *added = &tokenizer->added[pass];
        for (size_t i = 0; i < added->n; i++)
            for (size_t e = 0; added->tokens[i].special && e < n_ends; e++)
                if (added->tokens[i].len == strlen(ends[e]) && !memcmp(added->tokens[i].text, ends[e], strlen(ends[e])))
                    sn_tokenizer_put_end(tokenizer, added->tokens[i].id);
        sn_status status = pass == 1 ? mark_added(tokenizer, added, err) : SN_OK;
        if (!status) status = sn_added_finish(added, err);
        if (status) return status;
    }
    return SN_OK;
}

/* ---- encoding ---- */

typedef struct encoding {
    const sn_tokenizer *tokenizer;
    sn_cutter *cutter;
    sn_bpe bpe;
    sn_buf marked[SN_TOKENIZER_PASSES]; /* a part with its spaces as U+2581: before the second pass, and behind it */
    bool parse_special;
    bool goes_on; /* the text follows another one: it gets no space before it */
    sn_err *err;
} encoding;

/* A part of the text: what lies between added tokens. */
typedef struct part {
    const char *text;
    size_t len;
    bool first; /* the text begins with it */
} part;

/* Writes the part with its spaces as U+2581 and perhaps one before them. */
static sn_status mark_spaces(encoding *e, part *p, sn_buf *out, bool lead) {
    sn_status status = SN_OK;
    const char *end = p->text + p->len;
    out->len = 0;
    if (lead && !(p->first && e->goes_on)) status = sn_buf_append(out, SN_SPACE, SN_SPACE_LEN, e->err);
    for (const char *at = p->text; !status && at < end;) {
        const char *space = memchr(at, ' ', (size_t)(end - at)), *stop = space ? space : end;
        if (stop > at) status = sn_buf_append(out, at, (size_t)(stop - at), e->err);
        if (!status && space) status = sn_buf_append(out, SN_SPACE, SN_SPACE_LEN, e->err);
        at = space ? space + 1 : end;
    }
    *p = (part){(const char *)out->data, out->len, p->first};
    return status;
}

static bool begins_with_space(const part *p) {
    return *p->text == ' ' || (p->len >= SN_SPACE_LEN && !memcmp(p->text, SN_SPACE, SN_SPACE_LEN));
}

static sn_status encode_piece(void *ctx, const char *piece, size_t len, sn_err *err) {
    encoding *e = ctx;
    const sn_tokenizer *t = e->tokenizer;
    const char *end = piece + len;
    /* Several short ones are faster than a long one; where characters are left out, what is around them touches. */
    bool cuts = t->vocab.words_stay_apart && !t->whole_words && (t->vocab.falls_back || t->vocab.unknown >= 0);
    sn_status status = SN_OK;
    for (const char *stop; !status && piece < end; piece = stop) {
        const char *at = piece;
        while (cuts && end - at >= SN_SPACE_LEN && !memcmp(at, SN_SPACE, SN_SPACE_LEN)) at += SN_SPACE_LEN;
        stop = cuts ? memmem(at, (size_t)(end - at), SN_SPACE, SN_SPACE_LEN) : NULL;
        if (!stop) stop = end;
        status = sn_bpe_piece(&e->bpe, &t->vocab, t->whole_words, (const uint8_t *)piece, (size_t)(stop - piece), err);
    }
    return status;
}

/* Behind the last pass: the part is cut and merged. */
static sn_status encode_rest(encoding *e, part p) {
    const sn_tokenizer *t = e->tokenizer;
    sn_status status = SN_OK;
    if (t->vocab.of_characters && !t->marks_early) {
        bool lead = t->lead == SN_LEAD_UNLESS || (t->lead == SN_LEAD_FIRST_ONLY && p.first);
        status = mark_spaces(e, &p, &e->marked[1], lead && !begins_with_space(&p));
    } else if (t->lead >= SN_LEAD_UNLESS && (t->lead == SN_LEAD_UNLESS || p.first) && !begins_with_space(&p)) {
        status = mark_spaces(e, &p, &e->marked[1], true);
    }
    return status ? status : sn_cutter_run(e->cutter, p.text, p.len, encode_piece, e, e->err);
}

/* What lies between added tokens goes on to the next pass. */
static sn_status encode_pass(encoding *e, int pass, part p) {
    const sn_tokenizer *t = e->tokenizer;
    sn_status status = SN_OK;
    if (pass == SN_TOKENIZER_PASSES) return encode_rest(e, p);
    if (pass == 1 && t->marks_early) status = mark_spaces(e, &p, &e->marked[0], t->lead == SN_LEAD_ALWAYS);
    size_t done = 0, from = 0, at;
    const sn_added_token *token;
    while (!status && from <= p.len && (token = sn_added_find(&t->added[pass], p.text, p.len, from, &at))) {
        size_t end = from = at + token->len;
        if (token->special && !e->parse_special) continue; /* stays text */
        if (token->eats_left) at -= sn_utf8_trailing_space(p.text + done, at - done);
        if (token->eats_right) end += sn_utf8_leading_space(p.text + end, p.len - end);
        if (at > done) status = encode_pass(e, pass + 1, (part){p.text + done, at - done, p.first && !done});
        if (!status) status = sn_bpe_id(&e->bpe, token->id, e->err);
        done = end;
        from = end;
    }
    if (status || done == p.len) return status;
    return encode_pass(e, pass + 1, (part){p.text + done, p.len - done, p.first && !done});
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

static sn_status encode(const sn_tokenizer *tokenizer, const char *text, size_t len, bool add_bos, bool goes_on,
                        bool parse_special, sn_ids *out, sn_err *err) {
    *out = (sn_ids){0};
    if (len > SN_TEXT_MAX)
        return sn_fail(err, SN_REFUSED, "the text has %zu bytes; at most %d are taken at once", len, SN_TEXT_MAX);
    if (!sn_utf8_valid(text, len))
        return sn_fail(err, SN_REFUSED, "the text is not valid UTF-8: convert it first (with iconv, for example)");
    encoding e = {.tokenizer = tokenizer, .parse_special = parse_special, .goes_on = goes_on, .err = err};
    for (int i = 0; i < SN_TOKENIZER_PASSES; i++) sn_buf_init(&e.marked[i], SN_SPACE_LEN * ((size_t)SN_TEXT_MAX + 1));
    sn_status status = sn_cutter_new(tokenizer->pretokenizer, &e.cutter, err);
    if (!status && len) status = encode_pass(&e, 0, (part){text, len, true});
    if (!status && add_bos) status = put_bos_first(tokenizer, &e.bpe, err);
    if (!status) {
        *out = e.bpe.out;
        e.bpe.out = (sn_ids){0};
    }
    for (int i = 0; i < SN_TOKENIZER_PASSES; i++) sn_buf_fini(&e.marked[i]);
    sn_cutter_free(&e.cutter);
    sn_bpe_fini(&e.bpe);
    return status;
}

sn_status sn_tokenizer_encode(const sn_tokenizer *tokenizer, const char *text, size_t len, bool add_bos,
                              bool parse_special, sn_ids *out, sn_err *err) {
    return encode(tokenizer, text, len, add_bos, false, parse_special, out, err);
}

sn_status sn_tokenizer_encode_more(const sn_tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
                                   sn_ids *out, sn_err *err) {
    return encode(tokenizer, text, len, false, true, parse_special, out, err);
}

/* ---- the rest ---- */

sn_status sn_tokenizer_decode(const sn_tokenizer *tokenizer, int32_t id, bool with_special, sn_buf *out, sn_err *err) {
    if (id < 0 || (size_t)id >= tokenizer->vocab.n)
        return sn_fail(err, SN_REFUSED, "%d is no token: the vocabulary has the ids 0 to %zu", id,
                       tokenizer->vocab.n - 1);
    if (!with_special && sn_vocab_kind(&tokenizer->vocab, id) == SN_TOKEN_SPECIAL) return SN_OK;
    size_t len;
    const uint8_t *bytes = sn_vocab_bytes(&tokenizer->vocab, id, &len), *space;
    sn_status status = SN_OK;
    while (!status && len && tokenizer->vocab.of_characters && (space = memmem(bytes, len, SN_SPACE, SN_SPACE_LEN))) {
        if (space > bytes) status = sn_buf_append(out, bytes, (size_t)(space - bytes), err);
        if (!status) status = sn_buf_append(out, " ", 1, err);
        len -= (size_t)(space + SN_SPACE_LEN - bytes);
        bytes = space + SN_SPACE_LEN;
    }
    return status || !len ? status : sn_buf_append(out, bytes, len, err);
}

bool sn_tokenizer_drops_lead(const sn_tokenizer *tokenizer) { return tokenizer->drops_lead; }

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

/* Encoding a text takes four stages:
 *
 *   1. encode_pass, twice: finds added tokens ("<|im_end|>") in the text; the parts between them go on.
 *      Before the second pass a part is brought to the normal forms of Unicode that the file asks for (normalise_part).
 *      With a tokenizer.model its rules (spm_text.h) are in the place of these, and of 2.
 *   2. escape_spaces, only SentencePiece: spaces become U+2581, perhaps with one before the part. Depending on the file
 *      this happens before the second pass or after it.
 *   3. encode_part: the pre-tokenizer splits a part into pieces.
 *   4. encode_piece: BPE merges the bytes or characters of a piece into tokens. (Of SentencePiece's other model the
 *      part is cut as a whole instead of 3 and 4: unigram.h.)
 *
 * All stages append to one list of ids, e->bpe.out, so their order is the order of the text. Decoding is a lookup of
 * each id's bytes. */
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/tokenizer_private.h"
#include "text/tokenizer/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    for (int pass = 0; pass < SN_TOKENIZER_PASSES; pass++) sn_added_tokens_fini(&(*tokenizer)->added[pass]);
    if ((*tokenizer)->rules) sn_spm_text_fini((*tokenizer)->rules);
    if ((*tokenizer)->unigram) sn_unigram_fini((*tokenizer)->unigram);
    free((*tokenizer)->rules);
    free((*tokenizer)->unigram);
    free((*tokenizer)->chat_template);
    free((*tokenizer)->tool_template);
    free(*tokenizer);
    *tokenizer = NULL;
}

sn_status sn_tokenizer_add_token(sn_tokenizer *tokenizer, int pass, const sn_added_token *token, sn_err *err) {
    sn_status status = sn_vocab_set(&tokenizer->vocab, token->id, token->text, token->len,
                                    token->special ? SN_TOKEN_SPECIAL : SN_TOKEN_ADDED, err);
    return status ? status : sn_added_tokens_add(&tokenizer->added[pass], token, err);
}

void sn_tokenizer_add_eog(sn_tokenizer *tokenizer, int64_t id) {
    if (id < 0 || (size_t)id >= tokenizer->vocab.n || sn_tokenizer_is_eog(tokenizer, (int32_t)id)) return;
    if (tokenizer->n_eog_ids < SN_EOG_IDS_MAX) tokenizer->eog_ids[tokenizer->n_eog_ids++] = (int32_t)id;
}

/* The second pass sees texts in the tokenizer's normal forms: its tokens are brought to them. */
static sn_status normalise_added_tokens(sn_tokenizer *tokenizer, sn_added_tokens *added, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; i < added->n * tokenizer->n_forms && !status; i++) {
        sn_added_token *token = &added->tokens[i / tokenizer->n_forms];
        sn_buf text;
        sn_buf_init(&text, SN_TOKEN_BYTES_MAX);
        status = sn_normal_form_append(tokenizer->forms[i % tokenizer->n_forms], token->text, token->len, NULL, &text,
                                       NULL, err);
        if (!status && text.len) {
            free(token->text);
            token->text = (char *)text.data;
            token->len = text.len;
            added->first_bytes[text.data[0]] = true;
        }
        if (status) sn_buf_fini(&text);
    }
    return status;
}

/* The second pass may see a text whose spaces are U+2581 already: its tokens are rewritten in the same way. */
static sn_status escape_added_tokens(sn_tokenizer *tokenizer, sn_added_tokens *added, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; tokenizer->escapes_early && !status && i < added->n; i++) {
        sn_added_token *token = &added->tokens[i];
        char *text;
        size_t n = 0;
        status = sn_calloc(&text, SN_SPACE_LEN * (token->len + 1), 1, err);
        if (status) break;
        if (tokenizer->prepend == SN_PREPEND_ALWAYS) memcpy(text, SN_SPACE, n = SN_SPACE_LEN);
        for (size_t k = 0; k < token->len; k++) {
            size_t len = token->text[k] == ' ' ? SN_SPACE_LEN : 1;
            memcpy(text + n, len > 1 ? SN_SPACE : token->text + k, len);
            n += len;
        }
        free(token->text);
        token->text = text;
        token->len = n;
        status = sn_vocab_replace_text(&tokenizer->vocab, token->id, text, n, err);
        added->first_bytes[(uint8_t)text[0]] = true;
    }
    return status;
}

static sn_status keep_template(const char *text, size_t len, char **out, size_t *out_len, sn_err *err) {
    /* One byte more than a template may have shows that it is too long. */
    *out_len = sn_min_size(len, (size_t)SN_CHAT_TEMPLATE_MAX + 1);
    if (!len) return SN_OK;
    sn_status status = sn_calloc(out, *out_len, 1, err);
    if (!status) memcpy(*out, text, *out_len);
    return status;
}

sn_status sn_tokenizer_set_chat_source(sn_tokenizer *tokenizer, const sn_chat_source *source, sn_err *err) {
    snprintf(tokenizer->bos_text, sizeof tokenizer->bos_text, "%s", source->bos);
    snprintf(tokenizer->eos_text, sizeof tokenizer->eos_text, "%s", source->eos);
    sn_status status =
        keep_template(source->text, source->len, &tokenizer->chat_template, &tokenizer->chat_template_len, err);
    if (status) return status;
    return keep_template(source->tool_text, source->tool_len, &tokenizer->tool_template, &tokenizer->tool_template_len,
                         err);
}

sn_chat_source sn_tokenizer_chat_source(const sn_tokenizer *tokenizer) {
    return (sn_chat_source){tokenizer->chat_template,     tokenizer->chat_template_len, tokenizer->tool_template,
                            tokenizer->tool_template_len, tokenizer->bos_text,          tokenizer->eos_text};
}

/* The unigram model finds its user-defined pieces itself, in texts of users, too. */
static sn_status check_symbols(const sn_tokenizer *tokenizer, sn_err *err) {
    for (size_t i = 0; tokenizer->unigram && tokenizer->rules && i < tokenizer->rules->symbols.n; i++)
        if (sn_tokenizer_is_eog(tokenizer, tokenizer->rules->symbols.tokens[i].id))
            return sn_fail(
                err, SN_REFUSED,
                "piece %d of tokenizer.model ends an answer and is user-defined, so that any text could: name "
                "it in tokenizer_config.json's added_tokens_decoder",
                tokenizer->rules->symbols.tokens[i].id);
    return SN_OK;
}

sn_status sn_tokenizer_finish(sn_tokenizer *tokenizer, sn_err *err) {
    /* Tokens that end a text or a turn, which some files do not list as such. */
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>",
                                       "</s>",          "<end_of_turn>",   "<|end|>"};
    /* The last one ends a turn in Phi-3 (SentencePiece); in other models it may end a part of a turn. */
    size_t n_ends = sizeof ends / sizeof *ends - !tokenizer->vocab.sentencepiece;
    for (int pass = 0; pass < SN_TOKENIZER_PASSES; pass++) {
        sn_added_tokens *added = &tokenizer->added[pass];
        for (size_t i = 0; i < added->n; i++)
            for (size_t e = 0; added->tokens[i].special && e < n_ends; e++)
                if (added->tokens[i].len == strlen(ends[e]) && !memcmp(added->tokens[i].text, ends[e], strlen(ends[e])))
                    sn_tokenizer_add_eog(tokenizer, added->tokens[i].id);
        sn_status status = pass == 1 ? normalise_added_tokens(tokenizer, added, err) : SN_OK;
        if (!status && pass == 1) status = escape_added_tokens(tokenizer, added, err);
        if (!status) status = sn_added_tokens_finish(added, err);
        if (status) return status;
    }
    return check_symbols(tokenizer, err);
}

/* ---- encoding ---- */

typedef struct encoding {
    const sn_tokenizer *tokenizer;
    sn_splitter *splitter;
    sn_bpe bpe;
    sn_buf escaped[SN_TOKENIZER_PASSES]; /* a part with its spaces as U+2581: made before and after the second pass */
    sn_buf escaped_plain;                /* the marks of escaped[0], where there are marks */
    sn_buf normal[2], normal_plain[2];   /* a part in a normal form, and its marks; of two forms in turns */
    bool parse_special;
    bool continues; /* the text continues another one: no space is put before it */
    sn_err *err;
} encoding;

/* A part of the text between added tokens. */
typedef struct part {
    const char *text;
    size_t len;
    bool first;           /* the part is at the beginning of the text */
    const uint8_t *plain; /* (len), of which bit 0 counts: the byte is of no special token; NULL: all may be. Not kept
                           * up behind the last pass */
} part;

/* Replaces the part by a copy in `out` with U+2581 for spaces; `prepend`: with one more at the beginning. */
static sn_status escape_spaces(encoding *e, part *p, sn_buf *out, bool prepend) {
    sn_status status = SN_OK;
    const char *end = p->text + p->len;
    out->len = 0;
    if (prepend && !(p->first && e->continues)) status = sn_buf_append(out, SN_SPACE, SN_SPACE_LEN, e->err);
    for (const char *at = p->text; !status && at < end;) {
        const char *space = memchr(at, ' ', (size_t)(end - at)), *stop = space ? space : end;
        if (stop > at) status = sn_buf_append(out, at, (size_t)(stop - at), e->err);
        if (!status && space) status = sn_buf_append(out, SN_SPACE, SN_SPACE_LEN, e->err);
        at = space ? space + 1 : end;
    }
    *p = (part){(const char *)out->data, out->len, p->first, NULL};
    return status;
}

/* escape_spaces before the second pass, which looks for special tokens: keeps p->plain up. */
static sn_status escape_marked_spaces(encoding *e, part *p, bool prepend) {
    static const uint8_t plain_space[SN_SPACE_LEN] = {1, 1, 1}, free_space[SN_SPACE_LEN];
    const part before = *p;
    sn_status status = escape_spaces(e, p, &e->escaped[0], prepend);
    if (status || !before.plain) return status;
    e->escaped_plain.len = 0;
    if (prepend && !(before.first && e->continues))
        status = sn_buf_append(&e->escaped_plain, free_space, SN_SPACE_LEN, e->err);
    for (size_t i = 0; !status && i < before.len; i++) {
        bool space = before.text[i] == ' ';
        const uint8_t *marks = before.plain[i] & 1 ? plain_space : free_space;
        status = sn_buf_append(&e->escaped_plain, marks, space ? SN_SPACE_LEN : 1, e->err);
    }
    p->plain = e->escaped_plain.data;
    return status;
}

/* Replaces the part by a copy in the tokenizer's normal forms, or by its rules of SentencePiece. */
static sn_status normalise_part(encoding *e, part *p) {
    sn_status status = SN_OK;
    if (e->tokenizer->rules) {
        const bool continues = p->first ? e->continues : e->tokenizer->rules->leads_once;
        const sn_spm_source source = {p->text, p->len, p->plain, continues};
        e->normal[0].len = e->normal_plain[0].len = 0;
        status = sn_spm_text_append(e->tokenizer->rules, &source, &e->normal[0], &e->normal_plain[0], e->err);
        *p = (part){(const char *)e->normal[0].data, e->normal[0].len, p->first,
                    p->plain ? e->normal_plain[0].data : NULL};
    }
    for (size_t i = 0; i < e->tokenizer->n_forms && !status; i++) {
        sn_buf *text = &e->normal[i % 2], *plain = &e->normal_plain[i % 2];
        text->len = plain->len = 0;
        status = sn_normal_form_append(e->tokenizer->forms[i], p->text, p->len, p->plain, text, plain, e->err);
        *p = (part){(const char *)text->data, text->len, p->first, p->plain ? plain->data : NULL};
    }
    return status;
}

static bool begins_with_space(const part *p) {
    return *p->text == ' ' || (p->len >= SN_SPACE_LEN && !memcmp(p->text, SN_SPACE, SN_SPACE_LEN));
}

static sn_status encode_piece(void *ctx, const char *piece, size_t len, sn_err *err) {
    encoding *e = ctx;
    const sn_tokenizer *t = e->tokenizer;
    const char *end = piece + len;
    if (t->unigram) return sn_unigram_encode(t->unigram, &t->vocab, &e->bpe, piece, len, err);
    /* Where no token has a space inside, the piece is cut before each space, because several short pieces are faster
     * than a long one. Not where characters may be left out: their neighbours then touch and may merge. */
    bool cuts = t->vocab.no_inner_spaces && !t->ignore_merges && (t->vocab.byte_fallback || t->vocab.unk_id >= 0);
    sn_status status = SN_OK;
    for (const char *stop; !status && piece < end; piece = stop) {
        const char *at = piece;
        while (cuts && end - at >= SN_SPACE_LEN && !memcmp(at, SN_SPACE, SN_SPACE_LEN)) at += SN_SPACE_LEN;
        stop = cuts ? memmem(at, (size_t)(end - at), SN_SPACE, SN_SPACE_LEN) : NULL;
        if (!stop) stop = end;
        status = sn_bpe_encode_piece(&e->bpe, &t->vocab, t->ignore_merges, (const uint8_t *)piece,
                                     (size_t)(stop - piece), err);
    }
    return status;
}

/* After the last pass: splits the part into pieces and merges these. */
static sn_status encode_part(encoding *e, part p) {
    const sn_tokenizer *t = e->tokenizer;
    sn_status status = SN_OK;
    if (t->unigram && t->rules) return encode_piece(e, p.text, p.len, e->err);
    if (t->vocab.sentencepiece && !t->escapes_early && !t->rules) {
        bool prepend = t->prepend == SN_PREPEND_UNLESS_SPACE || (t->prepend == SN_PREPEND_FIRST && p.first);
        status = escape_spaces(e, &p, &e->escaped[1], prepend && !begins_with_space(&p));
    } else if (t->prepend >= SN_PREPEND_UNLESS_SPACE && (t->prepend == SN_PREPEND_UNLESS_SPACE || p.first) &&
               !begins_with_space(&p)) {
        status = escape_spaces(e, &p, &e->escaped[1], true);
    }
    return status ? status : sn_splitter_run(e->splitter, p.text, p.len, encode_piece, e, e->err);
}

/* Whether the token, which stands at `at`, is to stay text. */
static bool stays_text(const encoding *e, const part *p, const sn_added_token *token, size_t at) {
    bool controls = token->special || sn_tokenizer_is_eog(e->tokenizer, token->id);
    if (controls && !e->parse_special) return true; /* one that ends a text may not be called special (Phi-3's </s>) */
    for (size_t i = at; p->plain && controls && i < at + token->len; i++)
        if (p->plain[i] & 1) return true;
    return false;
}

static part part_of(const part *p, size_t from, size_t to) {
    return (part){p->text + from, to - from, p->first && !from, p->plain ? p->plain + from : NULL};
}

/* Finds the added tokens of the pass in a part; the parts between them go to the next pass. */
static sn_status encode_pass(encoding *e, int pass, part p) {
    const sn_tokenizer *t = e->tokenizer;
    sn_status status = SN_OK;
    if (pass == SN_TOKENIZER_PASSES) return encode_part(e, p);
    if (pass == 1) status = normalise_part(e, &p);
    if (!status && pass == 1 && t->escapes_early) status = escape_marked_spaces(e, &p, t->prepend == SN_PREPEND_ALWAYS);
    size_t done = 0, from = 0, at;
    const sn_added_token *token;
    while (!status && from <= p.len && (token = sn_added_tokens_find(&t->added[pass], p.text, p.len, from, &at))) {
        size_t end = at + token->len;
        from = at + (p.plain ? 1 : token->len);
        if (stays_text(e, &p, token, at)) continue;
        if (token->lstrip) at -= sn_utf8_trailing_space(p.text + done, at - done);
        if (token->rstrip) end += sn_utf8_leading_space(p.text + end, p.len - end);
        if (at > done) status = encode_pass(e, pass + 1, part_of(&p, done, at));
        if (!status) status = sn_bpe_append(&e->bpe, token->id, e->err);
        done = end;
        from = end;
    }
    if (status || done == p.len) return status;
    return encode_pass(e, pass + 1, part_of(&p, done, p.len));
}

/* Puts a begin-of-sequence token first, unless the text begins with one, as texts from chat templates do. */
static sn_status prepend_bos(const sn_tokenizer *tokenizer, sn_bpe *bpe, sn_err *err) {
    if (!tokenizer->add_bos || tokenizer->bos < 0) return SN_OK;
    if (bpe->out.n && bpe->out.ids[0] == tokenizer->bos) return SN_OK;
    sn_status status = sn_bpe_append(bpe, tokenizer->bos, err);
    if (status) return status;
    memmove(bpe->out.ids + 1, bpe->out.ids, (bpe->out.n - 1) * sizeof *bpe->out.ids);
    bpe->out.ids[0] = tokenizer->bos;
    return SN_OK;
}

typedef struct encode_how {
    bool add_bos, continues, parse_special;
    const uint8_t *plain;
} encode_how;

/* A normal form may lengthen a text: U+FDFA has 3 bytes, and in the forms KC and KD 33. */
enum { GROWTH_MAX = 11 };

static sn_status encode_text(const sn_tokenizer *tokenizer, const char *text, size_t len, encode_how how,
                             sn_token_ids *out, sn_err *err) {
    *out = (sn_token_ids){0};
    if (len > SN_TEXT_MAX)
        return sn_fail(err, SN_REFUSED, "the text has %zu bytes; at most %d are taken at once", len, SN_TEXT_MAX);
    if (!sn_utf8_valid(text, len))
        return sn_fail(err, SN_REFUSED, "the text is not valid UTF-8: convert it first (with iconv, for example)");
    encoding e = {.tokenizer = tokenizer, .parse_special = how.parse_special, .continues = how.continues, .err = err};
    sn_buf_init(&e.escaped_plain, SN_SPACE_LEN * ((size_t)SN_TEXT_MAX + 1));
    for (int i = 0; i < SN_TOKENIZER_PASSES; i++) sn_buf_init(&e.escaped[i], SN_SPACE_LEN * ((size_t)SN_TEXT_MAX + 1));
    for (int i = 0; i < 2; i++) sn_buf_init(&e.normal[i], GROWTH_MAX * ((size_t)SN_TEXT_MAX + 1));
    for (int i = 0; i < 2; i++) sn_buf_init(&e.normal_plain[i], GROWTH_MAX * ((size_t)SN_TEXT_MAX + 1));
    sn_status status = sn_splitter_new(tokenizer->pretokenizer, &e.splitter, err);
    if (!status && len) status = encode_pass(&e, 0, (part){text, len, true, how.plain});
    if (!status && how.add_bos) status = prepend_bos(tokenizer, &e.bpe, err);
    if (!status) {
        *out = e.bpe.out;
        e.bpe.out = (sn_token_ids){0};
    }
    for (int i = 0; i < SN_TOKENIZER_PASSES; i++) sn_buf_fini(&e.escaped[i]);
    sn_buf_fini(&e.escaped_plain);
    for (int i = 0; i < 2; i++) sn_buf_fini(&e.normal[i]);
    for (int i = 0; i < 2; i++) sn_buf_fini(&e.normal_plain[i]);
    sn_splitter_free(&e.splitter);
    sn_bpe_fini(&e.bpe);
    return status;
}

sn_status sn_tokenizer_encode(const sn_tokenizer *tokenizer, const char *text, size_t len, bool add_bos,
                              bool parse_special, sn_token_ids *out, sn_err *err) {
    return encode_text(tokenizer, text, len, (encode_how){add_bos, false, parse_special, NULL}, out, err);
}

sn_status sn_tokenizer_encode_continuation(const sn_tokenizer *tokenizer, const char *text, size_t len,
                                           bool parse_special, sn_token_ids *out, sn_err *err) {
    return encode_text(tokenizer, text, len, (encode_how){false, true, parse_special, NULL}, out, err);
}

sn_status sn_tokenizer_encode_marked(const sn_tokenizer *tokenizer, const char *text, size_t len, const uint8_t *plain,
                                     bool add_bos, sn_token_ids *out, sn_err *err) {
    return encode_text(tokenizer, text, len, (encode_how){add_bos, false, true, plain}, out, err);
}

/* ---- decoding and properties ---- */

sn_status sn_tokenizer_decode(const sn_tokenizer *tokenizer, int32_t id, bool with_special, sn_buf *out, sn_err *err) {
    if (id < 0 || (size_t)id >= tokenizer->vocab.n)
        return sn_fail(err, SN_REFUSED, "%d is no token: the vocabulary has the ids 0 to %zu", id,
                       tokenizer->vocab.n - 1);
    if (!with_special && sn_vocab_kind(&tokenizer->vocab, id) == SN_TOKEN_SPECIAL) return SN_OK;
    size_t len;
    const uint8_t *bytes = sn_vocab_bytes(&tokenizer->vocab, id, &len), *space;
    sn_status status = SN_OK;
    while (!status && len && tokenizer->vocab.sentencepiece && (space = memmem(bytes, len, SN_SPACE, SN_SPACE_LEN))) {
        if (space > bytes) status = sn_buf_append(out, bytes, (size_t)(space - bytes), err);
        if (!status) status = sn_buf_append(out, " ", 1, err);
        len -= (size_t)(space + SN_SPACE_LEN - bytes);
        bytes = space + SN_SPACE_LEN;
    }
    return status || !len ? status : sn_buf_append(out, bytes, len, err);
}

bool sn_tokenizer_strips_space(const sn_tokenizer *tokenizer) { return tokenizer->strips_space; }

int sn_tokenizer_n_vocab(const sn_tokenizer *tokenizer) { return (int)tokenizer->vocab.n; }

bool sn_tokenizer_is_eog(const sn_tokenizer *tokenizer, int32_t id) {
    for (size_t i = 0; i < tokenizer->n_eog_ids; i++)
        if (tokenizer->eog_ids[i] == id) return true;
    return false;
}

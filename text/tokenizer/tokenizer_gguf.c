/* Builds a tokenizer from the keys tokenizer.ggml.* of a GGUF file, in this order: the kind of tokenizer and its
 * pre-tokenizer (read_kind), tokens with their types (read_tokens), merges or scores, then the ids that end generation
 * and the chat template (read_eog_and_chat). What the file leaves open is decided as llama.cpp does it. */
#include "text/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

/* SentencePiece: no pattern splits the text; spaces become U+2581. */
static sn_status read_sentencepiece(const sn_gguf *gguf, sn_tokenizer *t, sn_err *err) {
    bool leads = true, folds = false;
    const sn_gguf_value *map = sn_gguf_find(gguf, "tokenizer.ggml.precompiled_charsmap");
    sn_status status = sn_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", false, &leads, err);
    if (!status) status = sn_gguf_bool(gguf, "tokenizer.ggml.remove_extra_whitespaces", false, &folds, err);
    if (status) return status;
    if (folds || (map && map->n))
        return sn_fail(err, SN_REFUSED, "the tokenizer %s, which is not supported",
                       folds ? "folds spaces (tokenizer.ggml.remove_extra_whitespaces)"
                             : "changes characters (tokenizer.ggml.precompiled_charsmap)");
    /* A space before each part, as llama.cpp does it: the file does not say whether only the first part gets one. */
    t->prepend = leads ? SN_PREPEND_ALWAYS : SN_PREPEND_NEVER;
    t->escapes_early = true;
    t->strips_space = leads;
    t->add_bos = true;
    return SN_OK;
}

/* Gemma 4: SentencePiece's tokens with a list of merges, within lines. */
static sn_status read_gemma4(sn_tokenizer *t, sn_err *err) {
    static const char lines[] = "[^\\n]+|\\n+";
    t->escapes_early = true;
    t->add_bos = true;
    return sn_pretokenizer_add(t->pretokenizer, lines, sizeof lines - 1, false, SN_SPLIT_ISOLATED, false, err);
}

static sn_status read_kind(const sn_gguf *gguf, sn_tokenizer *t, bool *sentencepiece, bool *scored, sn_err *err) {
    sn_gguf_str model, pre = {0};
    bool space_in_front = false;
    sn_status status = sn_gguf_string(gguf, "tokenizer.ggml.model", true, &model, err);
    if (!status) status = sn_gguf_string(gguf, "tokenizer.ggml.pre", false, &pre, err);
    if (!status) status = sn_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", false, &space_in_front, err);
    if (status) return status;
    bool gemma4 = sn_gguf_str_equals(model, "gemma4");
    *scored = sn_gguf_str_equals(model, "llama");
    *sentencepiece = gemma4 || sn_gguf_str_equals(model, "llama");
    if (gemma4) return read_gemma4(t, err);
    if (*sentencepiece) return read_sentencepiece(gguf, t, err);
    if (!sn_gguf_str_equals(model, "gpt2"))
        return sn_fail(err, SN_REFUSED,
                       "the tokenizer is of the kind '%.*s'; byte-level BPE ('gpt2') and SentencePiece's BPE ('llama', "
                       "'gemma4') are supported",
                       (int)sn_min_size(model.len, 60), model.data);
    if (space_in_front)
        return sn_fail(err, SN_REFUSED, "the tokenizer puts a space before the text, which is not supported");
    if (!pre.len || sn_gguf_str_equals(pre, "default"))
        return sn_fail(
            err, SN_REFUSED,
            "the file does not say how its tokenizer splits text (tokenizer.ggml.pre): convert the model again "
            "with a current converter");
    char name[64] = "";
    memcpy(name, pre.data, sn_min_size(pre.len, sizeof name - 1));
    return sn_pretokenizer_add_named(t->pretokenizer, name, &t->ignore_merges, &t->add_bos, err);
}

/* Adds an added token. With SentencePiece it is found in the unescaped text: U+2581 of the vocabulary becomes a space.
 */
static sn_status read_added(sn_tokenizer *t, const sn_added_token *token, sn_err *err) {
    sn_buf text;
    sn_added_token plain = *token;
    sn_status status = sn_vocab_set(&t->vocab, token->id, token->text, token->len,
                                    token->special ? SN_TOKEN_SPECIAL : SN_TOKEN_ADDED, err);
    sn_buf_init(&text, SN_TOKEN_BYTES_MAX);
    for (size_t at = 0, step; !status && at < token->len; at += step) {
        bool space = t->vocab.sentencepiece && token->len - at >= SN_SPACE_LEN &&
                     !memcmp(token->text + at, SN_SPACE, SN_SPACE_LEN);
        step = space ? SN_SPACE_LEN : 1;
        status = sn_buf_append(&text, space ? " " : token->text + at, 1, err);
    }
    plain.text = (char *)text.data;
    plain.len = text.len;
    if (!status) status = sn_added_tokens_add(&t->added[0], &plain, err);
    sn_buf_fini(&text);
    return status;
}

/* In Phi-3's own tokenizer all special tokens but three take the white space after them along. GGUF files do not say
 * so.
 */
static bool is_phi3(const sn_gguf *gguf) {
    sn_err none;
    sn_gguf_str name = {0};
    return !sn_gguf_string(gguf, "general.architecture", false, &name, &none) && sn_gguf_str_equals(name, "phi3");
}

static bool token_strips_right(sn_gguf_str text) {
    return !sn_gguf_str_equals(text, "<unk>") && !sn_gguf_str_equals(text, "<s>") &&
           !sn_gguf_str_equals(text, "<|endoftext|>");
}

static sn_status read_token(sn_tokenizer *t, int32_t id, sn_gguf_str text, int32_t type, bool phi3, sn_err *err) {
    sn_added_token added = {.text = (char *)text.data,
                            .len = text.len,
                            .id = id,
                            .special = type != TYPE_USER_DEFINED,
                            .rstrip = phi3 && t->vocab.sentencepiece && token_strips_right(text)};
    if (type == TYPE_BYTE && t->vocab.sentencepiece)
        return sn_vocab_set(&t->vocab, id, text.data, text.len, SN_TOKEN_BYTE, err);
    switch (type) {
    case TYPE_NORMAL:
        return sn_vocab_set(&t->vocab, id, text.data, text.len, SN_TOKEN_NORMAL, err);
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
    case TYPE_USER_DEFINED:
        return read_added(t, &added, err);
    case TYPE_UNUSED:
        return SN_OK; /* a row of the embedding without a token */
    default:
        return sn_fail(err, SN_REFUSED, "token %d is of type %d, which %s does not have", id, type,
                       t->vocab.sentencepiece ? "SentencePiece's BPE" : "byte-level BPE");
    }
}

static sn_status read_scores(const sn_gguf *gguf, sn_tokenizer *t, sn_err *err) {
    const sn_gguf_value *value = NULL;
    float *scores = NULL;
    sn_status status = sn_gguf_array(gguf, "tokenizer.ggml.scores", SN_GGUF_F32, true, &value, err);
    if (!status && value->n != t->vocab.n)
        status = sn_fail(err, SN_REFUSED, "the file has %zu tokens and %zu scores", t->vocab.n, value->n);
    if (!status) status = sn_vocab_index(&t->vocab, 0, err);
    if (!status) status = sn_calloc(&scores, value->n, sizeof *scores, err);
    for (size_t i = 0; !status && i < value->n; i++) scores[i] = sn_gguf_f32_at(value, i);
    if (!status) status = sn_vocab_scores(&t->vocab, scores, err);
    free(scores);
    return status;
}

static sn_status read_merges(const sn_gguf *gguf, sn_tokenizer *t, sn_err *err) {
    const sn_gguf_value *merges = NULL;
    sn_status status = sn_gguf_array(gguf, "tokenizer.ggml.merges", SN_GGUF_STRING, true, &merges, err);
    if (!status) status = sn_vocab_index(&t->vocab, merges->n, err);
    for (size_t i = 0; !status && i < merges->n; i++) {
        sn_gguf_str line = sn_gguf_string_at(merges, i);
        status = sn_vocab_merge_line(&t->vocab, i, line.data, line.len, err);
    }
    return status;
}

static sn_status read_tokens(const sn_gguf *gguf, sn_tokenizer *t, bool sentencepiece, bool scored, sn_err *err) {
    const sn_gguf_value *tokens = NULL, *types = NULL;
    sn_status status = sn_gguf_array(gguf, "tokenizer.ggml.tokens", SN_GGUF_STRING, true, &tokens, err);
    if (!status) status = sn_gguf_array(gguf, "tokenizer.ggml.token_type", SN_GGUF_I32, true, &types, err);
    if (status) return status;
    if (types->n != tokens->n)
        return sn_fail(err, SN_REFUSED, "the file has %zu tokens and %zu token types", tokens->n, types->n);
    status = sn_vocab_init(&t->vocab, tokens->n, sentencepiece, err);
    t->vocab.byte_fallback = sentencepiece;
    bool phi3 = is_phi3(gguf);
    for (size_t i = 0; !status && i < tokens->n; i++)
        status = read_token(t, (int32_t)i, sn_gguf_string_at(tokens, i), sn_gguf_i32_at(types, i), phi3, err);
    if (status) return status;
    return scored ? read_scores(gguf, t, err) : read_merges(gguf, t, err);
}

static sn_status read_id(const sn_gguf *gguf, const char *key, const sn_tokenizer *t, int32_t *id, sn_err *err) {
    uint32_t value = UINT32_MAX;
    *id = -1;
    sn_status status = sn_gguf_u32(gguf, key, false, &value, err);
    if (status || value == UINT32_MAX) return status;
    if (value >= t->vocab.n)
        return sn_fail(err, SN_REFUSED, "%s is %u, outside the vocabulary of %zu tokens", key, value, t->vocab.n);
    *id = (int32_t)value;
    return SN_OK;
}

static void copy_text(const sn_tokenizer *t, int32_t id, char out[SN_CHAT_TOKEN_MAX]) {
    size_t len;
    const uint8_t *bytes = sn_vocab_bytes(&t->vocab, id, &len);
    if (len && len < SN_CHAT_TOKEN_MAX) memcpy(out, bytes, len);
}

static sn_status read_eog_and_chat(const sn_gguf *gguf, sn_tokenizer *t, sn_err *err) {
    int32_t eos = -1, eot = -1, eom = -1;
    sn_gguf_str text = {0}, tool_text = {0};
    sn_status status = read_id(gguf, "tokenizer.ggml.bos_token_id", t, &t->bos, err);
    if (!status) status = read_id(gguf, "tokenizer.ggml.eos_token_id", t, &eos, err);
    if (!status) status = read_id(gguf, "tokenizer.ggml.eot_token_id", t, &eot, err);
    if (!status) status = read_id(gguf, "tokenizer.ggml.eom_token_id", t, &eom, err);
    if (!status) status = sn_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", false, &t->add_bos, err);
    if (!status) status = sn_gguf_string(gguf, "tokenizer.chat_template", false, &text, err);
    if (!status) status = sn_gguf_string(gguf, "tokenizer.chat_template.tool_use", false, &tool_text, err);
    if (status) return status;
    sn_tokenizer_add_eog(t, eos);
    sn_tokenizer_add_eog(t, eot);
    sn_tokenizer_add_eog(t, eom);
    char bos_text[SN_CHAT_TOKEN_MAX] = "", eos_text[SN_CHAT_TOKEN_MAX] = "";
    copy_text(t, t->bos, bos_text);
    copy_text(t, eos, eos_text);
    return sn_tokenizer_set_chat_source(
        t, &(sn_chat_source){text.data, text.len, tool_text.data, tool_text.len, bos_text, eos_text}, err);
}

sn_status sn_tokenizer_from_gguf(const sn_gguf *gguf, sn_tokenizer **out, sn_err *err) {
    sn_status status = sn_tokenizer_new(out, err);
    if (status) return status;
    bool sentencepiece = false, scored = false;
    status = read_kind(gguf, *out, &sentencepiece, &scored, err);
    if (!status) status = read_tokens(gguf, *out, sentencepiece, scored, err);
    if (!status) status = read_eog_and_chat(gguf, *out, err);
    if (!status) status = sn_tokenizer_finish(*out, err);
    if (status) sn_tokenizer_close(out);
    return status;
}

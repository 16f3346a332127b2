/* tokenizer.model, SentencePiece's own file (its schema: sentencepiece_model.proto): pieces with scores and types, the
 * settings of its training that count for a text, and its normalizer. BPE and unigram. A piece of type CONTROL is a
 * special token; a user-defined one is found in every text, as SentencePiece does it.
 *
 * tokenizer_config.json and added_tokens.json add tokens, as to transformers: each part of a text between special
 * tokens is normalised for itself, and gets its space in front. */
#include "text/tokenizer/protobuf.h"
#include "text/tokenizer/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fields of ModelProto, of SentencePiece, TrainerSpec and NormalizerSpec. */
enum { PIECES = 1, TRAINER = 2, NORMALIZER = 3, DENORMALIZER = 5 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum { MODEL_TYPE = 3, SPACE_AS_SUFFIX = 24, BYTE_FALLBACK = 35, BOS_PIECE = 46, EOS_PIECE = 47 };
enum { CHARSMAP = 2, DUMMY_PREFIX = 3, FOLDS_SPACES = 4, ESCAPES_SPACES = 5 };
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

typedef struct text {
    const uint8_t *bytes;
    size_t len;
} text;

typedef struct piece {
    text text;
    float score;
    uint64_t type;
} piece;

typedef struct spm_file {
    piece *pieces;  /* heap, (n_pieces) */
    double *scores; /* heap, (n_pieces) */
    bool *symbols;  /* heap, (n_pieces): the piece is user-defined */
    size_t n_pieces;
    uint64_t model_type;
    bool byte_fallback, space_as_suffix, leads, folds, escapes;
    text map, back_map, bos, eos;
} spm_file;

static sn_protobuf message(text bytes) { return (sn_protobuf){bytes.bytes, bytes.bytes + bytes.len, false}; }

static sn_status fail_damaged(sn_err *err) {
    return sn_fail(err, SN_REFUSED, "tokenizer.model is not a file of SentencePiece, or damaged: fetch it again");
}

/* ---- the file's messages ---- */

static sn_status read_piece(piece *out, text bytes, sn_err *err) {
    sn_protobuf m = message(bytes);
    sn_protobuf_field f;
    *out = (piece){.type = TYPE_NORMAL};
    while (sn_protobuf_next(&m, &f)) {
        if (f.number == PIECE_TEXT && f.type == SN_PROTOBUF_BYTES) out->text = (text){f.bytes, f.len};
        if (f.number == PIECE_SCORE && f.type == SN_PROTOBUF_FLOAT) out->score = f.real;
        if (f.number == PIECE_TYPE && f.type == SN_PROTOBUF_INT) out->type = f.integer;
    }
    return m.damaged ? fail_damaged(err) : SN_OK;
}

static sn_status read_trainer(spm_file *file, text bytes, sn_err *err) {
    sn_protobuf m = message(bytes);
    sn_protobuf_field f;
    while (sn_protobuf_next(&m, &f)) {
        if (f.type == SN_PROTOBUF_INT && f.number == MODEL_TYPE) file->model_type = f.integer;
        if (f.type == SN_PROTOBUF_INT && f.number == BYTE_FALLBACK) file->byte_fallback = f.integer != 0;
        if (f.type == SN_PROTOBUF_INT && f.number == SPACE_AS_SUFFIX) file->space_as_suffix = f.integer != 0;
        if (f.type == SN_PROTOBUF_BYTES && f.number == BOS_PIECE) file->bos = (text){f.bytes, f.len};
        if (f.type == SN_PROTOBUF_BYTES && f.number == EOS_PIECE) file->eos = (text){f.bytes, f.len};
    }
    return m.damaged ? fail_damaged(err) : SN_OK;
}

static sn_status read_normalizer(spm_file *file, text bytes, sn_err *err) {
    sn_protobuf m = message(bytes);
    sn_protobuf_field f;
    while (sn_protobuf_next(&m, &f)) {
        if (f.type == SN_PROTOBUF_BYTES && f.number == CHARSMAP) file->map = (text){f.bytes, f.len};
        if (f.type == SN_PROTOBUF_INT && f.number == DUMMY_PREFIX) file->leads = f.integer != 0;
        if (f.type == SN_PROTOBUF_INT && f.number == FOLDS_SPACES) file->folds = f.integer != 0;
        if (f.type == SN_PROTOBUF_INT && f.number == ESCAPES_SPACES) file->escapes = f.integer != 0;
    }
    return m.damaged ? fail_damaged(err) : SN_OK;
}

/* The map of characters that decoding would apply. */
static sn_status read_denormalizer(spm_file *file, text bytes, sn_err *err) {
    spm_file other = {0};
    sn_status status = read_normalizer(&other, bytes, err);
    file->back_map = other.map;
    return status;
}

static sn_status count_pieces(spm_file *file, text bytes, sn_err *err) {
    sn_protobuf m = message(bytes);
    sn_protobuf_field f;
    while (sn_protobuf_next(&m, &f)) file->n_pieces += f.number == PIECES && f.type == SN_PROTOBUF_BYTES;
    if (m.damaged || !file->n_pieces) return fail_damaged(err);
    if (file->n_pieces > SN_VOCAB_MAX)
        return sn_fail(err, SN_REFUSED, "tokenizer.model has %zu pieces; at most %d are taken", file->n_pieces,
                       SN_VOCAB_MAX);
    sn_status status = sn_calloc(&file->pieces, file->n_pieces, sizeof *file->pieces, err);
    if (!status) status = sn_calloc(&file->scores, file->n_pieces, sizeof *file->scores, err);
    return status ? status : sn_calloc(&file->symbols, file->n_pieces, sizeof *file->symbols, err);
}

static sn_status read_file(spm_file *file, text bytes, sn_err *err) {
    static const char bos[] = "<s>", eos[] = "</s>";
    sn_protobuf m = message(bytes);
    sn_protobuf_field f;
    size_t n = 0;
    *file = (spm_file){.model_type = MODEL_UNIGRAM,
                       .leads = true,
                       .folds = true,
                       .escapes = true,
                       .bos = {(const uint8_t *)bos, sizeof bos - 1},
                       .eos = {(const uint8_t *)eos, sizeof eos - 1}};
    sn_status status = count_pieces(file, bytes, err);
    while (!status && sn_protobuf_next(&m, &f)) {
        const text value = {f.bytes, f.len};
        if (f.type != SN_PROTOBUF_BYTES) continue;
        if (f.number == PIECES) status = read_piece(&file->pieces[n++], value, err);
        if (f.number == TRAINER) status = read_trainer(file, value, err);
        if (f.number == NORMALIZER) status = read_normalizer(file, value, err);
        if (f.number == DENORMALIZER) status = read_denormalizer(file, value, err);
    }
    return status;
}

static sn_status check_file(const spm_file *file, const json_t *config, sn_err *err) {
    const char *what = file->space_as_suffix                          ? "puts spaces behind words"
                       : !file->escapes                               ? "keeps spaces as they are"
                       : file->back_map.len                           ? "changes characters when it decodes"
                       : sn_json_bool(config, "add_eos_token", false) ? "ends every text (add_eos_token)"
                                                                      : NULL;
    if (what) return sn_fail(err, SN_REFUSED, "the tokenizer of tokenizer.model %s, which is not supported", what);
    if (file->model_type != MODEL_UNIGRAM && file->model_type != MODEL_BPE)
        return sn_fail(err, SN_REFUSED,
                       "tokenizer.model is of model type %llu; SentencePiece's unigram and BPE (1, 2) "
                       "are supported",
                       (unsigned long long)file->model_type);
    return SN_OK;
}

/* ---- added tokens ---- */

static json_t *entry_of(const json_t *added, size_t id) {
    char key[24];
    snprintf(key, sizeof key, "%zu", id);
    return json_object_get(added, key);
}

/* One object of both files, ids to entries as in added_tokens_decoder. What added_tokens.json has alone is special: it
 * does not say, and text of users is to become no more than text. */
static sn_status join_added(const json_t *config, const json_t *older, json_t **out, sn_err *err) {
    const char *token;
    json_t *id;
    const json_t *decoder = json_object_get(config, "added_tokens_decoder");
    *out = json_is_object(decoder) ? json_copy((json_t *)(uintptr_t)decoder) : json_object();
    json_object_foreach((json_t *)(uintptr_t)older, token, id) {
        char key[24];
        snprintf(key, sizeof key, "%lld", (long long)json_integer_value(id));
        if (!json_is_integer(id)) return sn_fail(err, SN_REFUSED, "added_tokens.json gives '%.60s' no id", token);
        if (!json_object_get(*out, key) &&
            json_object_set_new(*out, key, json_pack("{s:s,s:b}", "content", token, "special", 1)))
            return sn_fail(err, SN_STOP, "out of memory for added tokens");
    }
    return *out ? SN_OK : sn_fail(err, SN_STOP, "out of memory for added tokens");
}

/* Checks the ids; *n: how many ids the vocabulary has with them. */
static sn_status count_ids(const json_t *added, size_t n_pieces, size_t *n, sn_err *err) {
    const char *key;
    json_t *value;
    *n = n_pieces;
    json_object_foreach((json_t *)(uintptr_t)added, key, value) {
        char *end;
        const unsigned long long id = strtoull(key, &end, 10);
        if (*end || *key < '0' || *key > '9' || id >= SN_VOCAB_MAX ||
            !json_is_string(json_object_get(value, "content")))
            return sn_fail(err, SN_REFUSED,
                           "a token is added with the id '%.60s': ids from 0 to %d are taken, with their content", key,
                           SN_VOCAB_MAX - 1);
        if (id >= *n) *n = (size_t)id + 1;
    }
    return SN_OK;
}

static sn_status add_entry(sn_tokenizer *t, const json_t *entry, size_t id, bool control, sn_err *err) {
    const json_t *content = json_object_get(entry, "content");
    if (sn_json_bool(entry, "single_word", false))
        return sn_fail(err, SN_REFUSED, "the added token '%.60s' is a single_word, which is not supported",
                       json_string_value(content));
    const sn_added_token token = {.text = (char *)(uintptr_t)json_string_value(content),
                                  .len = json_string_length(content),
                                  .id = (int32_t)id,
                                  .special = control || sn_json_bool(entry, "special", false),
                                  .lstrip = sn_json_bool(entry, "lstrip", false),
                                  .rstrip = sn_json_bool(entry, "rstrip", false)};
    return sn_tokenizer_add_token(t, 0, &token, err);
}

/* ---- pieces ---- */

static sn_status add_symbol(sn_tokenizer *t, const sn_added_token *token, bool merges, sn_err *err) {
    sn_status status = sn_added_tokens_add(&t->rules->symbols, token, err);
    if (!status && merges) return sn_tokenizer_add_token(t, 1, token, err);
    return status ? status : sn_vocab_set(&t->vocab, token->id, token->text, token->len, SN_TOKEN_ADDED, err);
}

static sn_status add_piece(sn_tokenizer *t, spm_file *file, size_t id, const json_t *entry, sn_err *err) {
    const piece *p = &file->pieces[id];
    const json_t *content = json_object_get(entry, "content");
    const bool control = p->type == TYPE_CONTROL || p->type == TYPE_UNKNOWN;
    const sn_added_token token = {
        .text = (char *)(uintptr_t)p->text.bytes, .len = p->text.len, .id = (int32_t)id, .special = control};
    if (p->type == TYPE_UNKNOWN && t->vocab.unk_id >= 0)
        return sn_fail(err, SN_REFUSED, "pieces %d and %zu of tokenizer.model are both unknown", t->vocab.unk_id, id);
    if (p->type == TYPE_UNKNOWN) t->vocab.unk_id = (int32_t)id;
    if (content &&
        (json_string_length(content) != p->text.len || memcmp(json_string_value(content), p->text.bytes, p->text.len)))
        return sn_fail(err, SN_REFUSED, "tokenizer_config.json calls token %zu '%.60s', and tokenizer.model '%.*s'", id,
                       json_string_value(content), (int)sn_min_size(p->text.len, 60), (const char *)p->text.bytes);
    file->scores[id] = p->type == TYPE_NORMAL ? (double)p->score : 0;
    if (content && p->type != TYPE_BYTE) return add_entry(t, entry, id, control, err);
    file->symbols[id] = p->type == TYPE_USER_DEFINED;
    switch (p->type) {
    case TYPE_NORMAL:
        return sn_vocab_set(&t->vocab, (int64_t)id, token.text, token.len, SN_TOKEN_NORMAL, err);
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
        return sn_tokenizer_add_token(t, 0, &token, err);
    case TYPE_USER_DEFINED:
        return add_symbol(t, &token, file->model_type == MODEL_BPE, err);
    case TYPE_BYTE:
        return sn_vocab_set(&t->vocab, (int64_t)id, token.text, token.len, SN_TOKEN_BYTE, err);
    default:
        return sn_fail(err, SN_REFUSED, "piece %zu of tokenizer.model is of type %llu, which is not supported", id,
                       (unsigned long long)p->type);
    }
}

static sn_status add_pieces(sn_tokenizer *t, spm_file *file, const json_t *added, sn_err *err) {
    size_t n;
    sn_status status = count_ids(added, file->n_pieces, &n, err);
    if (!status) status = sn_vocab_init(&t->vocab, n, true, err);
    t->vocab.byte_fallback = file->byte_fallback;
    t->vocab.fuse_unk = true;
    for (size_t id = 0; !status && id < file->n_pieces; id++) status = add_piece(t, file, id, entry_of(added, id), err);
    for (size_t id = file->n_pieces; !status && id < n; id++)
        if (entry_of(added, id)) status = add_entry(t, entry_of(added, id), id, false, err);
    if (!status && t->vocab.unk_id < 0)
        status = sn_fail(err, SN_REFUSED, "tokenizer.model has no unknown piece: it is damaged");
    return status ? status : sn_vocab_index(&t->vocab, 0, err);
}

/* What decides how a text is cut: scores of merges, or the unigram model. */
static sn_status add_scores(sn_tokenizer *t, const spm_file *file, sn_err *err) {
    float *scores = NULL;
    sn_status status;
    if (file->model_type == MODEL_UNIGRAM) {
        status = sn_calloc(&t->unigram, 1, sizeof *t->unigram, err);
        return status ? status
                      : sn_unigram_init(t->unigram, &t->vocab, file->scores, file->symbols, file->n_pieces, err);
    }
    status = sn_calloc(&scores, t->vocab.n, sizeof *scores, err);
    for (size_t id = 0; !status && id < file->n_pieces; id++) scores[id] = (float)file->scores[id];
    if (!status) status = sn_vocab_scores(&t->vocab, scores, err);
    free(scores);
    return status;
}

static bool is_control(const spm_file *file, text name) {
    for (size_t i = 0; i < file->n_pieces; i++)
        if (file->pieces[i].type == TYPE_CONTROL && file->pieces[i].text.len == name.len &&
            !memcmp(file->pieces[i].text.bytes, name.bytes, name.len))
            return true;
    return false;
}

static void keep_name(const spm_file *file, text name, char out[SN_CHAT_TOKEN_MAX]) {
    if (name.len && name.len < SN_CHAT_TOKEN_MAX && is_control(file, name)) memcpy(out, name.bytes, name.len);
}

sn_status sn_tokenizer_spm(sn_tokenizer *t, const sn_buf *bytes, const json_t *config, const json_t *older,
                           sn_err *err) {
    spm_file file;
    json_t *added = NULL;
    sn_status status = read_file(&file, (text){bytes->data, bytes->len}, err);
    if (!status) status = check_file(&file, config, err);
    if (!status) status = join_added(config, older, &added, err);
    if (!status) status = sn_calloc(&t->rules, 1, sizeof *t->rules, err);
    if (!status) {
        t->rules->leads = t->strips_space = file.leads;
        t->rules->folds = file.folds;
        t->rules->leads_once = !sn_json_bool(config, "legacy", true);
        t->add_bos = sn_json_bool(config, "add_bos_token", is_control(&file, file.bos));
        keep_name(&file, file.bos, t->bos_text);
        keep_name(&file, file.eos, t->eos_text);
        status = sn_spm_text_set_map(t->rules, file.map.bytes, file.map.len, err);
    }
    if (!status) status = add_pieces(t, &file, added, err);
    if (!status) status = add_scores(t, &file, err);
    if (!status) status = sn_added_tokens_finish(&t->rules->symbols, err);
    json_decref(added);
    free(file.pieces);
    free(file.scores);
    free(file.symbols);
    return status;
}

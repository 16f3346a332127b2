/* Steps are compiled once (sn_pretokenizer_add) with PCRE2's JIT where there is one. split_text runs one step over one
 * piece: it walks over matches and the text between them, joins neighbouring spans as the step's sn_split says
 * (walk_take holds one span back until it is clear whether the next span joins it), and hands each finished piece to
 * the next step. After the last step the piece goes to the caller's function. So no list of pieces is ever stored. */
#include "text/tokenizer/pretokenizer.h"

#include "base/clock.h"
#include "text/tokenizer/pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* PCRE2 gives a match up after a number of steps of backtracking at one byte of the text where it tries to begin. The
 * patterns of real models need about one step per byte, so LIGHT_STEPS are enough unless a run of one kind of
 * characters is long. Where they are not, step_find tries byte by byte, with limits that double, and all such tries of
 * a splitter together have HEAVY_STEPS: a pattern that explodes is refused instead of taking that time for every byte.
 *
 * A step of backtracking may look at all that follows, which counts for nothing: "(?=a)a+[bc]" does so at every byte of
 * a text of a's. So a text has a time, too, that of its thread on a processor: many times what the patterns of real
 * models need. It is looked at between calls of PCRE2, each of which begins at some bytes only (WINDOW_WORK). */
enum { LIGHT_STEPS = 1 << 10, HEAVY_STEPS = 1 << 30, JIT_STACK_MAX = 8 << 20, HEAP_KIB = 64 << 10 };
enum { TEXT_US = 2000000, BYTE_US = 4, SLOW_US = 1000, CLOCK_EACH = 4, LOOK_EACH = 1 << 10, WINDOW_WORK = 1 << 22 };

typedef struct split_step {
    pcre2_code *code; /* NULL: the step finds `literal` */
    char *literal;
    size_t literal_len;
    sn_split split;
    bool invert;
} split_step;

struct sn_pretokenizer {
    split_step steps[SN_PRETOKENIZER_STEPS_MAX];
    size_t n;
};

struct sn_splitter {
    const sn_pretokenizer *pretokenizer;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data *match;
    uint32_t heavy_steps; /* that are left */
    uint32_t calls;       /* of PCRE2 */
    int64_t last_us;      /* when the clock was looked at */
    int64_t until_us;     /* of the thread's time on a processor, which its texts may take */
    bool late;            /* they have */
};

/* ---- building ---- */

sn_status sn_pretokenizer_new(sn_pretokenizer **out, sn_err *err) { return sn_calloc(out, 1, sizeof **out, err); }

void sn_pretokenizer_free(sn_pretokenizer **pretokenizer) {
    if (!*pretokenizer) return;
    for (size_t i = 0; i < (*pretokenizer)->n; i++) {
        pcre2_code_free((*pretokenizer)->steps[i].code);
        free((*pretokenizer)->steps[i].literal);
    }
    free(*pretokenizer);
    *pretokenizer = NULL;
}

static sn_status compile_translated(const sn_buf *pattern, uint32_t options, pcre2_code **out, sn_err *err) {
    int code = 0;
    PCRE2_SIZE at = 0;
    uint32_t matches_empty = 0;
    *out = pcre2_compile(pattern->data, pattern->len, options | PCRE2_USE_OFFSET_LIMIT, &code, &at, NULL);
    if (!*out) {
        char message[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return sn_fail(err, SN_REFUSED, "the pattern of the pre-tokenizer is wrong at byte %zu: %s", (size_t)at,
                       message);
    }
    pcre2_pattern_info(*out, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty) {
        pcre2_code_free(*out);
        *out = NULL;
        return sn_fail(err, SN_REFUSED,
                       "the pattern of the pre-tokenizer can match the empty string, which is not supported");
    }
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* optional: without JIT matching is slower */
    return SN_OK;
}

static sn_status compile_pattern(const char *pattern, size_t len, pcre2_code **out, sn_err *err) {
    sn_buf translated;
    sn_buf_init(&translated, 16 * (size_t)SN_PATTERN_MAX);
    sn_status status = sn_pattern_translate(pattern, len, &translated, err);
    if (!status) status = compile_translated(&translated, PCRE2_UTF | PCRE2_UCP, out, err);
    sn_buf_fini(&translated);
    return status;
}

static sn_status check_room(const sn_pretokenizer *pretokenizer, sn_err *err) {
    if (pretokenizer->n < SN_PRETOKENIZER_STEPS_MAX) return SN_OK;
    return sn_fail(err, SN_REFUSED, "the pre-tokenizer has more than %d steps", SN_PRETOKENIZER_STEPS_MAX);
}

sn_status sn_pretokenizer_add_bytes(sn_pretokenizer *pretokenizer, const char *pattern, sn_split split, bool invert,
                                    sn_err *err) {
    split_step *s = &pretokenizer->steps[pretokenizer->n];
    const sn_buf text = {.data = (uint8_t *)(uintptr_t)pattern, .len = strlen(pattern)};
    sn_status status = check_room(pretokenizer, err);
    if (status) return status;
    *s = (split_step){.split = split, .invert = invert};
    status = compile_translated(&text, 0, &s->code, err);
    if (!status) pretokenizer->n++;
    return status;
}

sn_status sn_pretokenizer_add(sn_pretokenizer *pretokenizer, const char *pattern, size_t len, bool literal,
                              sn_split split, bool invert, sn_err *err) {
    sn_status status = check_room(pretokenizer, err);
    if (status) return status;
    if (len == 0 || len > SN_PATTERN_MAX)
        return sn_fail(err, SN_REFUSED, "a pattern of the pre-tokenizer is %zu bytes long; 1 to %d are taken", len,
                       SN_PATTERN_MAX);
    split_step *s = &pretokenizer->steps[pretokenizer->n];
    *s = (split_step){.split = split, .invert = invert};
    if (literal) {
        s->literal_len = len;
        status = sn_calloc(&s->literal, len, 1, err);
        if (!status) memcpy(s->literal, pattern, len);
    } else {
        status = compile_pattern(pattern, len, &s->code, err);
    }
    if (!status) pretokenizer->n++;
    return status;
}

/* ---- named pre-tokenizers ---- */

/* The patterns as the models' makers published them. */
#define GPT2         "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define DIGIT        "\\p{N}"
#define FALCON_SIGNS "[\\p{P}\\$\\+<=>\\^~\\|`]+"
#define BLOOM        " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
#define CL100K(digits)                                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                               \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED(suffix, digits)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" suffix                 \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" suffix "|" digits     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HAN        "[\\p{Han}]+"
#define NOT_HAN(c) "(?:(?!\\p{Han})" c ")"
#define UPPER      NOT_HAN("[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]")
#define LOWER      NOT_HAN("[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]")
#define KIMI                                                                                                           \
    HAN "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER            \
        "*" SHORT_FORMS "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN35                                                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                                      \
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK3                                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "              \
    "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK3_CJK "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
#define BAILING                                                                                                        \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "                                                    \
    "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define SEED                                                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| "                                           \
    "?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Of DeepSeek-LLM and V2: letters with case, as ranges. */
#define CASED_LETTERS                                                                                                  \
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"                       \
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"                  \
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"                      \
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"                      \
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"                        \
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"                \
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"                         \
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"                  \
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"                      \
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"                                \
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"                             \
    "\U0001e900-\U0001e943"
#define DEEPSEEK_WORDS "\\s?[" CASED_LETTERS "]+"
#define DEEPSEEK_SIGNS "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
#define DEEPSEEK_CJK   "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
#define SHORT_FORMS    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

enum { PASSES_MAX = 6 };
static const struct {
    const char *name;
    const char *patterns[PASSES_MAX];
    bool ignore_merges, add_bos;
} known[] = {
    {"gpt-2", {GPT2}, false, false},
    {"phi-2", {GPT2}, false, false},
    {"olmo", {GPT2}, false, false},
    {"mpt", {GPT2}, false, false},
    {"smollm", {DIGIT, GPT2}, false, false},
    {"starcoder", {DIGIT, GPT2}, false, false},
    {"refact", {DIGIT, GPT2}, false, false},
    {"command-r", {DIGIT, GPT2}, false, false},
    {"codeshell", {DIGIT, GPT2}, false, false},
    {"exaone", {DIGIT, GPT2}, false, false},
    {"exaone4", {GPT2}, false, false},
    {"llama-bpe", {CL100K("\\p{N}{1,3}")}, true, true},
    {"llama3", {CL100K("\\p{N}{1,3}")}, true, true},
    {"llama-v3", {CL100K("\\p{N}{1,3}")}, true, true},
    {"falcon3", {CL100K("\\p{N}{1,3}")}, true, true},
    {"lfm2", {CL100K("\\p{N}{1,3}")}, true, true},
    {"pixtral", {CL100K("\\p{N}{1,3}")}, true, true},
    {"dbrx", {CL100K("\\p{N}{1,3}")}, false, false},
    {"smaug-bpe", {CL100K("\\p{N}{1,3}")}, false, false},
    {"falcon", {FALCON_SIGNS, GPT2, "[0-9][0-9][0-9]"}, false, false},
    {"bloom", {BLOOM}, false, false},
    {"deepseek-coder", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, DIGIT}, false, false},
    {"deepseek-llm", {"[\\r\\n]", DEEPSEEK_WORDS, DEEPSEEK_SIGNS, "\\s+$", DEEPSEEK_CJK, DIGIT}, false, false},
    {"deepseek-v3", {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3}, false, false},
    {"hunyuan-dense", {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3}, false, false},
    {"hy_v4", {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3}, false, false},
    {"joyai-llm", {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3}, false, false},
    {"kimi-k2", {KIMI}, true, false},
    {"qwen35", {QWEN35}, false, false},
    {"qwen2", {CL100K("\\p{N}")}, false, false},
    {"deepseek-r1-qwen", {CL100K("\\p{N}")}, false, false},
    {"hunyuan", {CL100K("\\p{N}")}, false, false},
    {"seed-coder", {SEED}, false, false},
    {"bailingmoe", {BAILING}, false, false},
    {"bailingmoe2", {BAILING}, false, false},
    {"stablelm2", {CL100K("\\p{N}")}, false, false},
    {"tekken", {CASED("", "\\p{N}")}, true, true},
    {"gpt-4o", {CASED(SHORT_FORMS, "\\p{N}{1,3}")}, false, false},
    {"llama4", {CASED(SHORT_FORMS, "\\p{N}{1,3}")}, false, false},
    {"minimax-m2", {CASED(SHORT_FORMS, "\\p{N}{1,3}")}, false, false},
    {"chatglm-bpe", {CL100K("\\p{N}{1,3}")}, false, false},
    {"glm4", {CL100K("\\p{N}{1,3}")}, true, false},
    {"glm5", {CL100K("\\p{N}{1,3}")}, true, false},
};

sn_status sn_pretokenizer_add_named(sn_pretokenizer *pretokenizer, const char *name, bool *ignore_merges, bool *add_bos,
                                    sn_err *err) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name)) continue;
        *ignore_merges = known[i].ignore_merges;
        *add_bos = known[i].add_bos;
        sn_status status = SN_OK;
        for (size_t k = 0; !status && k < PASSES_MAX && known[i].patterns[k]; k++)
            status = sn_pretokenizer_add(pretokenizer, known[i].patterns[k], strlen(known[i].patterns[k]), false,
                                         SN_SPLIT_ISOLATED, false, err);
        return status;
    }
    return sn_fail(err, SN_REFUSED,
                   "the file's pre-tokenizer '%s' is not known, and another one would give wrong tokens: use the "
                   "model's folder with its tokenizer.json",
                   name);
}

sn_status sn_pretokenizer_add_gpt2(sn_pretokenizer *pretokenizer, sn_err *err) {
    return sn_pretokenizer_add(pretokenizer, GPT2, strlen(GPT2), false, SN_SPLIT_ISOLATED, false, err);
}

/* ---- splitting ---- */

static int64_t thread_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

sn_status sn_splitter_new(const sn_pretokenizer *pretokenizer, sn_splitter **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    sn_splitter *c = *out;
    c->pretokenizer = pretokenizer;
    c->heavy_steps = HEAVY_STEPS;
    c->until_us = thread_us() + TEXT_US;
    c->context = pcre2_match_context_create(NULL);
    c->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, NULL);
    c->match = pcre2_match_data_create(1, NULL);
    if (!c->context || !c->match) {
        sn_splitter_free(out);
        return sn_fail(err, SN_STOP, "out of memory for the pre-tokenizer");
    }
    if (c->stack) pcre2_jit_stack_assign(c->context, NULL, c->stack);
    pcre2_set_heap_limit(c->context, HEAP_KIB); /* of matching where there is no JIT */
    return SN_OK;
}

void sn_splitter_free(sn_splitter **splitter) {
    if (!*splitter) return;
    pcre2_match_data_free((*splitter)->match);
    pcre2_jit_stack_free((*splitter)->stack);
    pcre2_match_context_free((*splitter)->context);
    free(*splitter);
    *splitter = NULL;
}

typedef struct span {
    size_t start, end;
    bool match;
} span;

/* One step over one piece. */
typedef struct walk {
    sn_splitter *splitter;
    size_t step;
    const char *text;
    span held; /* the span that is held back; empty: none */
    bool match_before;
    sn_piece_fn fn;
    void *ctx;
    sn_err *err;
} walk;

static sn_status split_text(sn_splitter *c, size_t at, const char *text, size_t len, sn_piece_fn fn, void *ctx,
                            sn_err *err);

/* Hands the span that is held back to the next step. */
static sn_status walk_flush(walk *w) {
    span s = w->held;
    w->held = (span){0};
    if (s.start == s.end) return SN_OK;
    return split_text(w->splitter, w->step + 1, w->text + s.start, s.end - s.start, w->fn, w->ctx, w->err);
}

/* Whether a span belongs to the same piece as the span that is held back. */
static bool walk_joins(const walk *w, sn_split split, const span *s) {
    if (w->held.start == w->held.end) return false;
    switch (split) {
    case SN_SPLIT_MERGED_WITH_PREVIOUS:
        return s->match && !w->match_before;
    case SN_SPLIT_MERGED_WITH_NEXT:
        return !s->match && w->match_before;
    case SN_SPLIT_CONTIGUOUS:
        return s->match == w->match_before;
    default:
        return false;
    }
}

/* Takes the next span, which ends where the following one begins. */
static sn_status walk_take(walk *w, const split_step *step, size_t start, size_t end, bool match) {
    span s = {start, end, match != step->invert};
    if (start == end || (s.match && step->split == SN_SPLIT_REMOVED)) return SN_OK;
    sn_status status = SN_OK;
    if (walk_joins(w, step->split, &s)) {
        w->held.end = end;
    } else {
        status = walk_flush(w);
        w->held = s;
    }
    w->match_before = s.match;
    return status;
}

/* A match that begins from `from` to `last`. */
static int match_from(sn_splitter *c, const split_step *step, const char *text, size_t len, size_t from, size_t last,
                      uint32_t steps) {
    pcre2_set_offset_limit(c->context, last);
    pcre2_set_match_limit(c->context, steps);
    const int rc = pcre2_match(step->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, c->match, c->context);
    if (++c->calls % CLOCK_EACH && steps <= LIGHT_STEPS) return rc;
    const int64_t now_us = sn_now_us();
    const bool slow = now_us - c->last_us > SLOW_US || !(c->calls % LOOK_EACH);
    c->last_us = now_us;
    c->late = slow && thread_us() > c->until_us;
    return c->late ? PCRE2_ERROR_INTERNAL : rc;
}

/* The same from `from` to before `end`, where some byte may need more than LIGHT_STEPS. */
static int match_heavily(sn_splitter *c, const split_step *step, const char *text, size_t len, size_t from,
                         size_t end) {
    int rc = PCRE2_ERROR_NOMATCH;
    uint32_t limit = LIGHT_STEPS;
    for (; rc == PCRE2_ERROR_NOMATCH && from < end; from++) {
        if (((uint8_t)text[from] & 0xc0) == 0x80) continue; /* within a character */
        while ((rc = match_from(c, step, text, len, from, from, limit)) == PCRE2_ERROR_MATCHLIMIT) {
            if (limit > c->heavy_steps / 2) return rc;
            c->heavy_steps -= limit *= 2;
        }
        if (limit > LIGHT_STEPS) limit /= 2; /* the next byte may need as many */
    }
    return rc;
}

/* The first match that begins at `from` or behind it, window by window. */
static int match_after(sn_splitter *c, const split_step *step, const char *text, size_t len, size_t from) {
    const size_t width = 1 + WINDOW_WORK / len;
    int rc = PCRE2_ERROR_NOMATCH;
    for (size_t end; rc == PCRE2_ERROR_NOMATCH && from < len; from = end) {
        end = from + sn_min_size(width, len - from);
        while (end < len && ((uint8_t)text[end] & 0xc0) == 0x80) end++; /* behind a whole character */
        rc = match_from(c, step, text, len, from, end - 1, LIGHT_STEPS);
        if (rc == PCRE2_ERROR_MATCHLIMIT) rc = match_heavily(c, step, text, len, from, end);
    }
    return rc;
}

/* The first match at or after `from`; none: *start = *end = len. */
static sn_status step_find(sn_splitter *c, const split_step *step, const char *text, size_t len, size_t from,
                           size_t *start, size_t *end, sn_err *err) {
    *start = *end = len;
    if (!step->code) {
        const char *hit = memmem(text + from, len - from, step->literal, step->literal_len);
        if (hit) {
            *start = (size_t)(hit - text);
            *end = *start + step->literal_len;
        }
        return SN_OK;
    }
    const int rc = match_after(c, step, text, len, from);
    if (rc == PCRE2_ERROR_NOMATCH) return SN_OK;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(c->match);
    if (rc >= 0 && at[0] < at[1] && at[0] >= from) {
        *start = at[0];
        *end = at[1];
        return SN_OK;
    }
    char message[128] = "it matches the empty string";
    if (c->late)
        snprintf(message, sizeof message, "it takes too long");
    else if (rc < 0)
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
    return sn_fail(err, SN_REFUSED, "the pre-tokenizer's pattern cannot cut this text: %s", message);
}

/* Runs the steps from `at` on over a piece. The recursion is as deep as there are steps. */
static sn_status split_text(sn_splitter *c, size_t at, const char *text, size_t len, sn_piece_fn fn, void *ctx,
                            sn_err *err) {
    if (at == c->pretokenizer->n) return len ? fn(ctx, text, len, err) : SN_OK;
    const split_step *step = &c->pretokenizer->steps[at];
    walk w = {.splitter = c, .step = at, .text = text, .fn = fn, .ctx = ctx, .err = err};
    sn_status status = SN_OK;
    for (size_t done = 0, start, end; !status && done < len; done = end) {
        status = step_find(c, step, text, len, done, &start, &end, err);
        if (!status) status = walk_take(&w, step, done, start, false);
        if (!status) status = walk_take(&w, step, start, end, true);
    }
    return status ? status : walk_flush(&w);
}

sn_status sn_splitter_run(sn_splitter *splitter, const char *text, size_t len, sn_piece_fn fn, void *ctx, sn_err *err) {
    splitter->until_us += BYTE_US * (int64_t)len;
    splitter->last_us = sn_now_us();
    return split_text(splitter, 0, text, len, fn, ctx, err);
}

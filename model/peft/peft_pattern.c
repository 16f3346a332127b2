#include "model/peft/peft_pattern.h"

#include "base/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MATCH_LIMIT: steps of PCRE2 for one match; a usual pattern takes hundreds. ITEMS_MAX: items of patterns that are
 * tried in all matches together: an adapter has a pattern for each of its modules at most, and 500 of them on 500
 * modules take a tenth of it. HEAP_KIB: of one match, which may recurse. */
enum { PATTERNS_MAX = 4096, LENGTH_MAX = 1000, MATCH_LIMIT = 100000, ITEMS_MAX = 1 << 27, HEAP_KIB = 16 << 10 };

struct sn_peft_pattern {
    const char *what;
    size_t n;
    pcre2_code **codes;
    double *values;
    uint32_t items; /* that were tried */
    pcre2_match_context *context;
    pcre2_match_data *match;
};

/* PCRE2 calls this before each item of a pattern (PCRE2_AUTO_CALLOUT). */
static int count_item(pcre2_callout_block *block, void *context) {
    sn_peft_pattern *p = context;
    (void)block;
    return p->items++ < ITEMS_MAX ? 0 : PCRE2_ERROR_MATCHLIMIT;
}

static sn_status pattern_add(sn_peft_pattern *p, const char *key, const json_t *value, sn_err *err) {
    char whole[LENGTH_MAX + 16];
    int code;
    PCRE2_SIZE at;
    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        return sn_fail(err, SN_REFUSED, "\"%s\" of \"%.80s\" must be a number", p->what, key);
    if (strlen(key) > LENGTH_MAX)
        return sn_fail(err, SN_REFUSED, "a pattern of \"%s\" is longer than %d", p->what, LENGTH_MAX);
    snprintf(whole, sizeof whole, "^(.*\\.)?(%s)$", key);
    p->codes[p->n] =
        pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_AUTO_CALLOUT, &code, &at, NULL);
    if (!p->codes[p->n])
        return sn_fail(err, SN_REFUSED, "\"%.80s\" in \"%s\" is not a regular expression", key, p->what);
    p->values[p->n++] = json_number_value(value);
    return SN_OK;
}

sn_status sn_peft_pattern_new(const json_t *object, const char *what, sn_peft_pattern **out, sn_err *err) {
    sn_peft_pattern *p = NULL;
    const char *key;
    json_t *value;
    size_t n = json_object_size(object);
    *out = NULL;
    if (object && !json_is_null(object) && !json_is_object(object))
        return sn_fail(err, SN_REFUSED, "\"%s\" must be an object", what);
    if (n > PATTERNS_MAX) return sn_fail(err, SN_REFUSED, "\"%s\" has more than %d patterns", what, PATTERNS_MAX);
    sn_status status = sn_calloc(&p, 1, sizeof *p, err);
    if (status) return status;
    p->what = what;
    status = sn_calloc(&p->codes, n, sizeof(pcre2_code *), err);
    if (!status) status = sn_calloc(&p->values, n, sizeof *p->values, err);
    p->context = pcre2_match_context_create(NULL);
    p->match = pcre2_match_data_create(1, NULL);
    if (!status && (!p->context || !p->match)) status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) pcre2_set_match_limit(p->context, MATCH_LIMIT);
    if (!status) pcre2_set_heap_limit(p->context, HEAP_KIB);
    if (!status) pcre2_set_callout(p->context, count_item, p);
    json_object_foreach((json_t *)(uintptr_t)object, key, value) if (!status) status = pattern_add(p, key, value, err);
    if (status) sn_peft_pattern_free(&p);
    *out = p;
    return status;
}

void sn_peft_pattern_free(sn_peft_pattern **pattern) {
    sn_peft_pattern *p = *pattern;
    if (!p) return;
    for (size_t i = 0; i < p->n; i++) pcre2_code_free(p->codes[i]);
    pcre2_match_context_free(p->context);
    pcre2_match_data_free(p->match);
    free(p->codes);
    free(p->values);
    free(p);
    *pattern = NULL;
}

sn_status sn_peft_pattern_find(const sn_peft_pattern *p, const char *module, double *value, sn_err *err) {
    for (size_t i = 0; i < p->n; i++) {
        int found = pcre2_match(p->codes[i], (PCRE2_SPTR)module, strlen(module), 0, 0, p->match, p->context);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            return sn_fail(err, SN_REFUSED, "pattern %zu of \"%s\" takes too long to match: simplify it", i, p->what);
        if (found < 0) continue;
        *value = p->values[i];
        return SN_OK;
    }
    return SN_OK;
}

/* Values of options: text to target, target to text. One case for each kind of option in both directions, so that a
 * default is shown as it would be written. */
#include "base/options_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -- text to target -- */

sn_status sn_strings_add(sn_strings *list, const char *text, sn_err *err) {
    if (list->n == SN_STRINGS_MAX)
        return sn_fail(err, SN_REFUSED, "it is given more than %d times", (int)SN_STRINGS_MAX);
    const char **grown = realloc(list->items, (list->n + 1) * sizeof *grown);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory for the options");
    grown[list->n++] = text;
    list->items = grown;
    return SN_OK;
}

/* "f32, f16 or q8" */
static char *list_words(const sn_word *words, char *out, size_t capacity) {
    size_t len = 0;
    *out = 0;
    for (const sn_word *w = words; w->name && len < capacity; w++)
        len += (size_t)snprintf(out + len, capacity - len, "%s%s",
                                w == words  ? ""
                                : w[1].name ? ", "
                                            : " or ",
                                w->name);
    return out;
}

static sn_status find_word(const sn_word *words, const char *text, int *value, sn_err *err) {
    char list[200];
    if (sn_word_value(words, text, value)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "'%.60s' must be %s", text, list_words(words, list, sizeof list));
}

#define TCP "tcp://"

static sn_status set_string(const sn_option *option, const char *text, sn_err *err) {
    int value;
    sn_host_port address;
    if (option->kind == SN_OPTION_ADDRESS && !strncmp(text, TCP, strlen(TCP)))
        text += strlen(TCP); /* as it is pasted */
    sn_status status = option->words ? find_word(option->words, text, &value, err) : SN_OK;
    if (!status && option->kind == SN_OPTION_ADDRESS) status = sn_parse_host_port(text, option->form, &address, err);
    if (status) return status;
    if (option->repeatable) return sn_strings_add(option->target, text, err);
    *(const char **)option->target = text;
    return SN_OK;
}

static sn_status set_duration(const sn_option *option, const char *text, sn_err *err) {
    int64_t ms, unit = option->unit_ms, low = (int64_t)option->low, high = (int64_t)option->high;
    char from[32], to[32];
    sn_status status = sn_parse_duration(text, &ms, err);
    if (status) return status;
    if (ms % unit) return sn_fail(err, SN_REFUSED, "'%.60s' must be a whole number of seconds", text);
    if (ms / unit < low || ms / unit > high)
        return sn_fail(err, SN_REFUSED, "'%.60s' must be a duration from %s to %s", text,
                       sn_format_duration(low * unit, from), sn_format_duration(high * unit, to));
    *(int64_t *)option->target = ms / unit;
    return SN_OK;
}

static sn_status set_ints(const sn_option *option, const char *text, sn_err *err) {
    sn_ints list = {.n = 0};
    char item[32];
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        snprintf(item, sizeof item, "%.*s", (int)sn_min_size(len, sizeof item - 1), at);
        if (list.n == SN_INTS_MAX) return sn_fail(err, SN_REFUSED, "a list has at most %d numbers", (int)SN_INTS_MAX);
        sn_status status = sn_parse_int(item, (int64_t)option->low, (int64_t)option->high, &list.items[list.n++], err);
        if (status) return status;
        at += len;
        if (!*at) break;
    }
    *(sn_ints *)option->target = list;
    return SN_OK;
}

static sn_status set_flag(bool *target, const char *text, sn_err *err) {
    *target = !strcmp(text, "true");
    if (*target || !strcmp(text, "false")) return SN_OK;
    return sn_fail(err, SN_REFUSED, "'%.60s' must be true or false", text);
}

static sn_status set_ratio(const sn_option *option, const char *text, sn_err *err) {
    if (sn_parse_float(text, option->low, 1, option->target, err))
        return sn_fail(err, SN_REFUSED, "'%.60s' must be a ratio %s 1", text,
                       option->low > 0 ? "above 0, up to" : "from 0 to");
    return SN_OK;
}

static sn_status set_blocks(sn_block_range *target, const char *text, sn_err *err) {
    sn_block_range range = {.given = true, .all = !strcmp(text, "all")};
    if (!range.all && sn_parse_blocks(text, &range.first, &range.end, err))
        return sn_fail(err, SN_REFUSED, "'%.60s' is no range of blocks: write A:B (first and end, as in 10:20) or all",
                       text);
    *target = range;
    return SN_OK;
}

sn_status sn_option_set(const sn_option *option, const char *text, sn_err *err) {
    switch (option->kind) {
    case SN_OPTION_STRING:
    case SN_OPTION_ADDRESS:
        return set_string(option, text, err);
    case SN_OPTION_ENUM:
        return find_word(option->words, text, option->target, err);
    case SN_OPTION_SIZE:
        return sn_parse_size(text, option->target, err);
    case SN_OPTION_DURATION:
        return set_duration(option, text, err);
    case SN_OPTION_INT:
        return sn_parse_int(text, (int64_t)option->low, (int64_t)option->high, option->target, err);
    case SN_OPTION_INTS:
        return set_ints(option, text, err);
    case SN_OPTION_FLOAT:
        return sn_parse_float(text, option->low, option->high, option->target, err);
    case SN_OPTION_RATIO:
        return set_ratio(option, text, err);
    case SN_OPTION_FLAG:
        return set_flag(option->target, text, err);
    case SN_OPTION_BLOCKS:
        return set_blocks(option->target, text, err);
    }
    return sn_fail(err, SN_REFUSED, "the option --%s has no kind", option->name);
}

/* -- target to text -- */

char *sn_option_value_name(const sn_option *option, char *out, size_t capacity) {
    size_t len = 0;
    snprintf(out, capacity, "%s", option->metavar ? option->metavar : "");
    for (const sn_word *w = option->words; !option->metavar && w && w->name && len < capacity; w++)
        len += (size_t)snprintf(out + len, capacity - len, "%s%s", len ? "|" : "", w->name);
    return out;
}

/* "512MiB": in the largest unit of which it is a whole number. */
static void format_bytes(size_t bytes, char *out, size_t capacity) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; bytes && bytes % 1024 == 0 && unit < 4; unit++) bytes /= 1024;
    snprintf(out, capacity, "%zu%s", bytes, units[unit]);
}

static void format_ints(const sn_ints *list, char *out, size_t capacity) {
    size_t len = 0;
    for (size_t i = 0; i < list->n && len < capacity; i++)
        len += (size_t)snprintf(out + len, capacity - len, "%s%lld", i ? "," : "", (long long)list->items[i]);
}

char *sn_option_format(const sn_option *option, char *out, size_t capacity) {
    char duration[32];
    *out = 0;
    switch (option->kind) {
    case SN_OPTION_STRING:
    case SN_OPTION_ADDRESS:
        if (!option->repeatable && *(const char **)option->target)
            snprintf(out, capacity, "%s", *(const char **)option->target);
        break;
    case SN_OPTION_ENUM:
        snprintf(out, capacity, "%s", sn_word_name(option->words, *(int *)option->target));
        break;
    case SN_OPTION_SIZE:
        if (*(size_t *)option->target != SN_SIZE_UNSET) format_bytes(*(size_t *)option->target, out, capacity);
        break;
    case SN_OPTION_DURATION:
        if (*(int64_t *)option->target != SN_INT_UNSET)
            snprintf(out, capacity, "%s", sn_format_duration(*(int64_t *)option->target * option->unit_ms, duration));
        break;
    case SN_OPTION_INT:
        if (*(int64_t *)option->target != SN_INT_UNSET)
            snprintf(out, capacity, "%lld", (long long)*(int64_t *)option->target);
        break;
    case SN_OPTION_INTS:
        format_ints(option->target, out, capacity);
        break;
    case SN_OPTION_FLOAT:
    case SN_OPTION_RATIO:
        if (!isnan(*(double *)option->target)) snprintf(out, capacity, "%g", *(double *)option->target);
        break;
    case SN_OPTION_FLAG:
    case SN_OPTION_BLOCKS:
        break;
    }
    return out;
}

const char *sn_option_value(const sn_option *option, size_t i, char *out, size_t capacity) {
    const sn_block_range *blocks = option->target;
    const sn_strings *list = option->target;
    if (option->repeatable) return i < list->n ? list->items[i] : NULL;
    if (i) return NULL;
    switch (option->kind) {
    case SN_OPTION_STRING:
    case SN_OPTION_ADDRESS:
        return *(const char **)option->target;
    case SN_OPTION_FLAG:
        return *(bool *)option->target ? "true" : NULL;
    case SN_OPTION_BLOCKS:
        if (!blocks->given || blocks->all) return blocks->given ? "all" : NULL;
        snprintf(out, capacity, "%d:%d", blocks->first, blocks->end);
        return out;
    case SN_OPTION_FLOAT:
    case SN_OPTION_RATIO:
        if (isnan(*(double *)option->target)) return NULL;
        snprintf(out, capacity, "%.15g", *(double *)option->target);
        if (strtod(out, NULL) != *(double *)option->target) /* it needs all of its digits */
            snprintf(out, capacity, "%.17g", *(double *)option->target);
        return out;
    default:
        return *sn_option_format(option, out, capacity) ? out : NULL;
    }
}

char *sn_option_describe(const sn_option *option, char *out, size_t capacity) {
    char preset[128];
    bool shown = *sn_option_format(option, preset, sizeof preset);
    snprintf(out, capacity, "%s%s%s%s%s%s", option->help, option->repeatable ? "; may be repeated" : "",
             shown ? " (default " : "", preset, shown ? ")" : "", option->required ? " (required)" : "");
    return out;
}

char *sn_exit_codes_format(const sn_exit_code *codes, char *out, size_t capacity) {
    size_t len = 0;
    *out = 0;
    for (const sn_exit_code *c = codes; c && c->meaning && len < capacity; c++)
        len += (size_t)snprintf(out + len, capacity - len, "%s%d %s%s", c == codes ? "Exit codes: " : "", c->code,
                                c->meaning, c[1].meaning ? "; " : ".");
    return out;
}

/* JSON numbers within limits, digit by digit: the limits and the number are decimal digits, compared from the left. */
#include "gateway/grammar/grammar_private.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS_MAX = 64 };

/* A limit without its sign. */
typedef struct limit {
    char whole[DIGITS_MAX], fraction[DIGITS_MAX]; /* without zeros before and after; whole "0" */
    bool negative, given, out;                    /* out: exclusive */
} limit;

static int add_digit(sn_grammar *g, char lo, char hi, int next) {
    return sn_add_bytes(g, (uint8_t)lo, (uint8_t)hi, next);
}

/* Any number of digits from lo to hi. */
static int add_digits(sn_grammar *g, char lo, char hi, int next) {
    int rule = sn_add_rule(g);
    sn_set_rule(g, rule, add_digit(g, lo, hi, SN_END));
    return sn_add_repeat(g, rule, -1, 0, -1, next);
}
static int add_n_digits(sn_grammar *g, int least, int most, int next) {
    int rule = sn_add_rule(g);
    sn_set_rule(g, rule, add_digit(g, '0', '9', SN_END));
    return sn_add_repeat(g, rule, -1, least, most, next);
}

/* Digits i... of a number of as many digits as both limits have; NULL: not at a limit. */
static int add_between(sn_grammar *g, const char *lo, const char *hi, int i, int n, int next) {
    if (i == n) return next;
    if (!lo && !hi) return add_n_digits(g, n - i, n - i, next);
    char first = lo ? lo[i] : '0', last = hi ? hi[i] : '9';
    if (first == last) return add_digit(g, first, first, add_between(g, lo, hi, i + 1, n, next));
    int at = -1;
    if (lo) at = add_digit(g, first, first, add_between(g, lo, NULL, i + 1, n, next));
    if (hi) {
        int top = add_digit(g, last, last, add_between(g, NULL, hi, i + 1, n, next));
        at = at < 0 ? top : sn_add_split(g, at, top);
    }
    char from = (char)(lo ? first + 1 : first), to = (char)(hi ? last - 1 : last);
    if (from > to) return at;
    int middle = add_digit(g, from, to, add_between(g, NULL, NULL, i + 1, n, next));
    return at < 0 ? middle : sn_add_split(g, at, middle);
}

/* By value, of whole numbers without zeros before them. */
static int compare_whole(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    return n_a != n_b ? (n_a < n_b ? -1 : 1) : strcmp(a, b);
}

/* Whole numbers from lo to hi (NULL: no limit), without zeros before. */
static int add_whole(sn_grammar *g, const char *lo, const char *hi, int next) {
    int n_lo = (int)strlen(lo), n_hi = hi ? (int)strlen(hi) : 0;
    char least[DIGITS_MAX] = "1";
    if (hi && compare_whole(lo, hi) > 0) return sn_add_fail(g);
    if (hi && n_lo == n_hi) return add_between(g, lo, hi, 0, n_lo, next);
    int at = add_between(g, lo, NULL, 0, n_lo, next);
    if (!strcmp(lo, "0")) at = add_digit(g, '0', '9', next); /* all of one digit */
    if (hi) {
        memset(least + 1, '0', (size_t)n_hi - 1);
        least[n_hi] = 0;
        at = sn_add_split(g, at, add_between(g, least, hi, 0, n_hi, next));
    }
    if (hi && n_hi - n_lo < 2) return at;
    return sn_add_split(g, at, add_digit(g, '1', '9', add_n_digits(g, n_lo, hi ? n_hi - 2 : -1, next)));
}

/* A fraction's digits i..., after digits equal to those of the limits that are given. must: another digit is needed. */
static int add_fraction_digits(sn_grammar *g, const limit *lo, const limit *hi, int i, bool must, int next) {
    int n_lo = lo ? (int)strlen(lo->fraction) : 0, n_hi = hi ? (int)strlen(hi->fraction) : 0;
    bool lo_ends = lo && i >= n_lo, hi_ends = hi && i >= n_hi;
    if (!lo && !hi) return add_n_digits(g, must, -1, next);
    if (lo_ends && !hi) {
        if (lo->out) return add_digits(g, '0', '0', add_digit(g, '1', '9', add_digits(g, '0', '9', next)));
        return add_n_digits(g, must, -1, next);
    }
    if (hi_ends) { /* nothing but zeros may follow */
        if (hi->out || (lo && (!lo_ends || lo->out))) return sn_add_fail(g);
        int zeros = add_digits(g, '0', '0', next);
        return must ? add_digit(g, '0', '0', zeros) : zeros;
    }
    char first = lo && !lo_ends ? lo->fraction[i] : '0', last = hi ? hi->fraction[i] : '9';
    int at = sn_add_fail(g);
    for (char d = first; d <= last; d++) {
        const limit *still_lo = lo && d == first ? lo : NULL, *still_hi = hi && d == last ? hi : NULL;
        at = sn_add_split(g, add_digit(g, d, d, add_fraction_digits(g, still_lo, still_hi, i + 1, false, next)), at);
    }
    bool may_end = !must && (!lo || (lo_ends && !lo->out));
    return may_end ? sn_add_split(g, next, at) : at;
}

/* The fraction of a number whose whole part equals those of the limits that are given. */
static int add_fraction(sn_grammar *g, const limit *lo, const limit *hi, int next) {
    bool lo_allows = !lo || (!*lo->fraction && !lo->out), hi_allows = !hi || *hi->fraction || !hi->out;
    int at = add_digit(g, '.', '.', add_fraction_digits(g, lo, hi, 0, true, next));
    return lo_allows && hi_allows ? sn_add_split(g, next, at) : at;
}

/* whole + 1, or whole - 1 if it is above 0. */
static bool add_one(char *whole, int sign) {
    size_t n = strlen(whole), i = n;
    char from = sign > 0 ? '9' : '0', to = sign > 0 ? '0' : '9';
    if (sign < 0 && !strcmp(whole, "0")) return false;
    while (i > 0 && whole[i - 1] == from) whole[--i] = to;
    if (i > 0) {
        whole[i - 1] = (char)(whole[i - 1] + sign);
    } else {
        memmove(whole + 1, whole, n + 1);
        whole[0] = '1';
    }
    if (whole[0] == '0' && whole[1]) memmove(whole, whole + 1, strlen(whole));
    return true;
}

/* Numbers from lo to hi without a sign. */
static int add_positive(sn_grammar *g, const limit *lo, const limit *hi, bool integer, int next) {
    limit none = {.whole = "0"}, a = lo ? *lo : none;
    if (integer) {
        if (*a.fraction || a.out) add_one(a.whole, 1);
        if (!hi) return add_whole(g, a.whole, NULL, next);
        limit b = *hi;
        if (!*b.fraction && b.out && !add_one(b.whole, -1)) return sn_add_fail(g);
        return add_whole(g, a.whole, b.whole, next);
    }
    if (hi && compare_whole(a.whole, hi->whole) > 0) return sn_add_fail(g);
    int any = add_fraction(g, NULL, NULL, next);
    if (hi && !strcmp(a.whole, hi->whole))
        return sn_add_literal(g, a.whole, strlen(a.whole), add_fraction(g, &a, hi, next));
    int at = sn_add_literal(g, a.whole, strlen(a.whole), add_fraction(g, &a, NULL, next));
    char from[DIGITS_MAX], to[DIGITS_MAX];
    snprintf(from, sizeof from, "%s", a.whole);
    add_one(from, 1);
    if (!hi) return sn_add_split(g, at, add_whole(g, from, NULL, any));
    snprintf(to, sizeof to, "%s", hi->whole);
    if (add_one(to, -1)) at = sn_add_split(g, at, add_whole(g, from, to, any));
    return sn_add_split(g, at, sn_add_literal(g, hi->whole, strlen(hi->whole), add_fraction(g, NULL, hi, next)));
}

/* Splits "-12.50" into its parts. */
static bool read_limit(const char *text, bool out, limit *l) {
    *l = (limit){.given = true, .out = out, .negative = *text == '-'};
    text += l->negative;
    size_t whole = strspn(text, "0123456789");
    const char *fraction = text[whole] == '.' ? text + whole + 1 : "";
    size_t n = strspn(fraction, "0123456789");
    while (whole > 1 && *text == '0') text++, whole--;
    while (n && fraction[n - 1] == '0') n--;
    if (!whole || whole > DIGITS_MAX - 3 || n >= DIGITS_MAX || fraction[strspn(fraction, "0123456789")]) return false;
    memcpy(l->whole, text, whole);
    memcpy(l->fraction, fraction, n);
    if (!strcmp(l->whole, "0") && !*l->fraction) l->negative = false;
    return true;
}

/* Any number; exponents only where nothing limits it. */
static int add_any_number(sn_grammar *g, bool integer, int next) {
    int at = next;
    if (!integer) {
        int digits = add_n_digits(g, 1, -1, next);
        int sign =
            sn_add_split(g, digits, sn_add_split(g, add_digit(g, '+', '+', digits), add_digit(g, '-', '-', digits)));
        at = sn_add_split(g, next, sn_add_split(g, add_digit(g, 'e', 'e', sign), add_digit(g, 'E', 'E', sign)));
        at = sn_add_split(g, at, add_digit(g, '.', '.', add_n_digits(g, 1, -1, at)));
    }
    at = sn_add_split(g, add_digit(g, '0', '0', at), add_digit(g, '1', '9', add_digits(g, '0', '9', at)));
    return sn_add_split(g, at, add_digit(g, '-', '-', at));
}

int sn_add_number(sn_grammar *g, const sn_number_range *range, int next) {
    limit lo = {0}, hi = {0}, zero_out = {.whole = "0", .given = true, .out = true};
    if (!range->low && !range->high) return add_any_number(g, range->integer, next);
    if ((range->low && !read_limit(range->low, range->low_is_out, &lo)) ||
        (range->high && !read_limit(range->high, range->high_is_out, &hi)))
        return sn_grammar_fail(g, SN_REFUSED, "a limit of a number has too many digits: shorten it");
    int at = sn_add_fail(g);
    if (!hi.given || !hi.negative) /* zero and above */
        at = sn_add_split(
            g, at, add_positive(g, lo.given && !lo.negative ? &lo : NULL, hi.given ? &hi : NULL, range->integer, next));
    if (!lo.given || lo.negative) { /* below zero: limits change places */
        const limit *least = hi.given && hi.negative ? &hi : &zero_out;
        at = sn_add_split(g, at,
                          add_digit(g, '-', '-', add_positive(g, least, lo.given ? &lo : NULL, range->integer, next)));
    }
    return at;
}

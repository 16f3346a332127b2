/* JSON numbers within limits, digit by digit: the limits and the number are decimal digits, compared from the left.
 *
 * A program that reads a number with a fraction makes a double of it, and two texts of at most 15 digits that count are
 * different doubles, in the same order. So a limit that is a double is rounded to 15 digits, and whether it is itself
 * within is changed where rounding passed it: then the same texts are within. */
#include "gateway/grammar/grammar_private.h"

#include "base/wide_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = SN_LIMIT_DIGITS, WHOLE_MAX = 18, COUNTING_MAX = 15, EXPONENT_MAX = 2 };

/* -- limits -- */

/* Splits "-12.50" into its parts. */
static bool read_limit(const char *text, sn_limit *l) {
    l->negative = *text == '-';
    text += l->negative;
    size_t whole = strspn(text, "0123456789");
    const char *fraction = text[whole] == '.' ? text + whole + 1 : "";
    size_t n = strlen(fraction);
    while (whole > 1 && *text == '0') text++, whole--;
    while (n && fraction[n - 1] == '0') n--;
    if (whole > DIGITS_MAX - 3 || n >= DIGITS_MAX) return false;
    memcpy(l->whole, text, whole);
    memcpy(l->fraction, fraction, n);
    if (!strcmp(l->whole, "0") && !*l->fraction) l->negative = false;
    return true;
}

/* Whether a whole number has no more digits that count than texts tell apart. */
static bool is_short(const char *whole) {
    size_t n = strlen(whole);
    while (n && whole[n - 1] == '0') n--;
    return n <= COUNTING_MAX;
}

bool sn_limit_init(sn_limit *l, const json_t *number, bool lower, bool out) {
    char text[800];
    *l = (sn_limit){.given = true, .out = out};
    if (sn_wide_digits(number)) return read_limit(sn_wide_digits(number), l);
    if (json_is_integer(number)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(number));
        return read_limit(text, l);
    }
    const double value = json_real_value(number);
    snprintf(text, sizeof text, "%.*e", COUNTING_MAX - 1, value);
    const int exponent = atoi(strchr(text, 'e') + 1), decimals = COUNTING_MAX - 1 - exponent;
    snprintf(text, sizeof text, "%.*f", decimals > 0 ? decimals : 0, value);
    const double rounded = strtod(text, NULL);
    if (rounded != value) l->out = lower ? rounded < value : rounded > value;
    return read_limit(text, l) && (decimals >= 0 || is_short(l->whole));
}

/* By value, of whole numbers without zeros before them. */
static int compare_whole(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    return n_a != n_b ? (n_a < n_b ? -1 : 1) : strcmp(a, b);
}

static int compare_limits(const sn_limit *a, const sn_limit *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    int order = compare_whole(a->whole, b->whole);
    if (!order) order = strcmp(a->fraction, b->fraction); /* neither ends with a zero */
    return a->negative ? -order : order;
}

void sn_number_range_join(sn_number_range *range, const sn_number_range *other) {
    range->integer |= other->integer;
    for (int is_high = 0; is_high < 2; is_high++) {
        sn_limit *mine = is_high ? &range->high : &range->low;
        const sn_limit *theirs = is_high ? &other->high : &other->low;
        if (!theirs->given) continue;
        int order = mine->given ? compare_limits(theirs, mine) * (is_high ? -1 : 1) : 1;
        if (order > 0)
            *mine = *theirs;
        else if (!order)
            mine->out |= theirs->out;
    }
}

bool sn_number_range_is_empty(const sn_number_range *r) {
    if (!r->low.given || !r->high.given) return false;
    int order = compare_limits(&r->low, &r->high);
    return order > 0 || (!order && (r->low.out || r->high.out));
}

/* -- texts -- */

/* What follows the digits before the point, and what follows those behind it. */
typedef struct tails {
    int next;
    int free[COUNTING_MAX + 1];  /* with this many digits left, all of which may be missing */
    int zeros[COUNTING_MAX + 1]; /* the same, zeros alone */
    bool integer;
} tails;

static int add_digit(sn_grammar *g, char lo, char hi, int next) {
    return sn_add_bytes(g, (uint8_t)lo, (uint8_t)hi, next);
}

/* From none to this many digits. */
static int add_digits(sn_grammar *g, int most, int next) {
    int at = next;
    while (most-- > 0) at = sn_add_split(g, next, add_digit(g, '0', '9', at));
    return at;
}

static tails make_tails(sn_grammar *g, bool integer, int next) {
    tails t = {.next = next, .integer = integer, .free = {next}, .zeros = {next}};
    for (int i = 1; i <= COUNTING_MAX && !integer; i++) {
        t.free[i] = sn_add_split(g, next, add_digit(g, '0', '9', t.free[i - 1]));
        t.zeros[i] = sn_add_split(g, next, add_digit(g, '0', '0', t.zeros[i - 1]));
    }
    return t;
}

/* Behind a whole number of n digits. */
static int add_tail(sn_grammar *g, const tails *t, int n) {
    if (t->integer || n >= COUNTING_MAX) return t->next;
    return sn_add_split(g, t->next, add_digit(g, '.', '.', add_digit(g, '0', '9', t->free[COUNTING_MAX - n - 1])));
}

/* Digits i... of a number of n digits, as many as the limits have that are given; NULL: not at a limit. */
static int add_between(sn_grammar *g, const char *lo, const char *hi, int i, int n, int next) {
    if (i == n) return next;
    if (!lo && !hi) return add_digit(g, '0', '9', add_between(g, lo, hi, i + 1, n, next));
    char first = lo ? lo[i] : '0', last = hi ? hi[i] : '9';
    if (first == last) return add_digit(g, first, first, add_between(g, lo, hi, i + 1, n, next));
    int at = sn_add_fail(g);
    if (lo) at = sn_add_split(g, add_digit(g, first, first, add_between(g, lo, NULL, i + 1, n, next)), at);
    if (hi) at = sn_add_split(g, add_digit(g, last, last, add_between(g, NULL, hi, i + 1, n, next)), at);
    char from = (char)(lo ? first + 1 : first), to = (char)(hi ? last - 1 : last);
    if (from > to) return at;
    return sn_add_split(g, add_digit(g, from, to, add_between(g, NULL, NULL, i + 1, n, next)), at);
}

/* The digits behind the first n, until there are least to most. */
static int add_lengths(sn_grammar *g, const tails *t, int n, int least, int most) {
    int more = n < most ? add_digit(g, '0', '9', add_lengths(g, t, n + 1, least, most)) : -1;
    if (n < least) return more;
    int tail = add_tail(g, t, n);
    return more < 0 ? tail : sn_add_split(g, tail, more);
}

/* Whole numbers from lo to hi (NULL: no limit), without zeros before. */
static int add_whole(sn_grammar *g, const char *lo, const char *hi, const tails *t) {
    int n_lo = (int)strlen(lo), n_hi = hi ? (int)strlen(hi) : n_lo > WHOLE_MAX ? n_lo : WHOLE_MAX;
    char least[DIGITS_MAX] = "1";
    if (hi && compare_whole(lo, hi) > 0) return sn_add_fail(g);
    int at = add_between(g, lo, hi && n_lo == n_hi ? hi : NULL, 0, n_lo, add_tail(g, t, n_lo));
    if (n_lo < n_hi - (hi != NULL))
        at = sn_add_split(g, at, add_digit(g, '1', '9', add_lengths(g, t, 1, n_lo + 1, n_hi - (hi != NULL))));
    if (!hi || n_lo == n_hi) return at;
    memset(least + 1, '0', (size_t)n_hi - 1);
    return sn_add_split(g, at, add_between(g, least, hi, 0, n_hi, add_tail(g, t, n_hi)));
}

/* Digits behind the point, after some that equal those of the limits that are given. */
typedef struct fraction {
    const sn_limit *lo, *hi;
    int i, left;   /* left: digits that may follow, of those that count */
    bool counting; /* a digit above 0 was there */
    bool must;     /* another digit is needed */
} fraction;

/* Digits that are not all zeros. */
static int add_some(sn_grammar *g, const tails *t, int left) {
    if (left <= 0) return sn_add_fail(g);
    return sn_add_split(g, add_digit(g, '1', '9', t->free[left - 1]), add_digit(g, '0', '0', add_some(g, t, left - 1)));
}

static int add_fraction_digits(sn_grammar *g, const tails *t, fraction f) {
    const int n_lo = f.lo ? (int)strlen(f.lo->fraction) : 0, n_hi = f.hi ? (int)strlen(f.hi->fraction) : 0;
    const bool lo_ends = f.lo && f.i >= n_lo, hi_ends = f.hi && f.i >= n_hi;
    const bool may_end = !f.must && (!f.lo || (lo_ends && !f.lo->out)) && !(hi_ends && f.hi->out);
    if (!f.left) return may_end ? t->next : sn_add_fail(g);
    if (!f.hi && (!f.lo || lo_ends)) {
        if (f.lo && f.lo->out) return add_some(g, t, f.left);
        return f.must ? add_digit(g, '0', '9', t->free[f.left - 1]) : t->free[f.left];
    }
    if (hi_ends) { /* nothing but zeros may follow */
        if (f.hi->out || (f.lo && (!lo_ends || f.lo->out))) return sn_add_fail(g);
        return f.must ? add_digit(g, '0', '0', t->zeros[f.left - 1]) : t->zeros[f.left];
    }
    char first = f.lo && !lo_ends ? f.lo->fraction[f.i] : '0', last = f.hi ? f.hi->fraction[f.i] : '9';
    int at = may_end ? t->next : sn_add_fail(g);
    for (char d = first; d <= last; d++) {
        const bool counts = f.counting || d > '0';
        const fraction rest = {.lo = f.lo && d == first ? f.lo : NULL,
                               .hi = f.hi && d == last ? f.hi : NULL,
                               .i = f.i + 1,
                               .left = f.left - counts,
                               .counting = counts};
        at = sn_add_split(g, add_digit(g, d, d, add_fraction_digits(g, t, rest)), at);
    }
    return at;
}

/* A number whose whole part is `whole`, with a fraction within the limits that are given. */
static int add_fraction(sn_grammar *g, const tails *t, const char *whole, const sn_limit *lo, const sn_limit *hi) {
    const bool lo_allows = !lo || (!*lo->fraction && !lo->out), hi_allows = !hi || *hi->fraction || !hi->out;
    const bool counting = strcmp(whole, "0") != 0;
    const int n = (int)strlen(whole), left = !counting ? COUNTING_MAX : n < COUNTING_MAX ? COUNTING_MAX - n : 0;
    const fraction f = {.lo = lo, .hi = hi, .left = left, .counting = counting, .must = true};
    int at = left ? add_digit(g, '.', '.', add_fraction_digits(g, t, f)) : sn_add_fail(g);
    if (lo_allows && hi_allows) at = sn_add_split(g, t->next, at);
    return sn_add_literal(g, whole, strlen(whole), at);
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
static int add_positive(sn_grammar *g, const sn_limit *lo, const sn_limit *hi, const tails *t) {
    const sn_limit none = {.whole = "0"};
    sn_limit a = lo ? *lo : none, b = hi ? *hi : none;
    if (t->integer) {
        if (*a.fraction || a.out) add_one(a.whole, 1);
        if (hi && !*b.fraction && b.out && !add_one(b.whole, -1)) return sn_add_fail(g);
        return add_whole(g, a.whole, hi ? b.whole : NULL, t);
    }
    if (hi && compare_whole(a.whole, hi->whole) > 0) return sn_add_fail(g);
    if (hi && !strcmp(a.whole, hi->whole)) return add_fraction(g, t, a.whole, &a, hi);
    int at = add_fraction(g, t, a.whole, &a, NULL);
    char from[DIGITS_MAX];
    memcpy(from, a.whole, sizeof from);
    add_one(from, 1);
    if (!hi) return sn_add_split(g, at, add_whole(g, from, NULL, t));
    if (add_one(b.whole, -1)) at = sn_add_split(g, at, add_whole(g, from, b.whole, t));
    return sn_add_split(g, at, add_fraction(g, t, hi->whole, NULL, hi));
}

/* Any number but those with an exponent behind a digit more than 18 before the point. */
static int add_any_number(sn_grammar *g, bool integer, int next) {
    int at = next;
    if (!integer) {
        int digits = add_digit(g, '0', '9', add_digits(g, EXPONENT_MAX - 1, next));
        int sign =
            sn_add_split(g, digits, sn_add_split(g, add_digit(g, '+', '+', digits), add_digit(g, '-', '-', digits)));
        at = sn_add_split(g, next, sn_add_split(g, add_digit(g, 'e', 'e', sign), add_digit(g, 'E', 'E', sign)));
        int behind = add_digit(g, '0', '9', add_digits(g, COUNTING_MAX - 1, at));
        at = sn_add_split(g, at, add_digit(g, '.', '.', behind));
    }
    at = sn_add_split(g, add_digit(g, '0', '0', at), add_digit(g, '1', '9', add_digits(g, WHOLE_MAX - 1, at)));
    return sn_add_split(g, at, add_digit(g, '-', '-', at));
}

int sn_add_number(sn_grammar *g, const sn_number_range *range, int next) {
    const sn_limit *lo = range->low.given ? &range->low : NULL, *hi = range->high.given ? &range->high : NULL;
    const sn_limit zero_out = {.whole = "0", .given = true, .out = true};
    if (!lo && !hi) return add_any_number(g, range->integer, next);
    const tails t = make_tails(g, range->integer, next);
    int at = sn_add_fail(g);
    if (!hi || !hi->negative) /* zero and above */
        at = sn_add_split(g, at, add_positive(g, lo && !lo->negative ? lo : NULL, hi, &t));
    if (!lo || lo->negative) { /* below zero: limits change places */
        const sn_limit *least = hi && hi->negative ? hi : &zero_out;
        at = sn_add_split(g, at, add_digit(g, '-', '-', add_positive(g, least, lo, &t)));
    }
    return at;
}

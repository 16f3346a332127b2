/* Filters over what can be iterated: map, select, join, sort, ... Those that Jinja2 writes as generators give a
 * generator, which is true, has no length, and is empty after one run. */
#include "text/jinja/render_private.h"

#include <string.h>

static sn_jlist *items_of(sn_jcall *c) { return sn_jiterate(c->r->run, c->name, c->self); }

/* Texts compare without case unless told otherwise. */
static sn_jvalue folded(sn_jcall *c, sn_jvalue v, bool case_sensitive) {
    return v.kind == SN_J_STRING && !case_sensitive ? sn_jstr(sn_jmap_case(c->r->run, v.string, 'l')) : v;
}

/* A generator that runs `make` when its items are asked for: an error in what is never read is none, as in Python. */
static sn_jvalue generator_of(sn_jcall *c, sn_jlist *(*make)(void *call)) {
    sn_jcall *kept = sn_jalloc(c->r->run, 1, sizeof *kept);
    sn_jlist *list = sn_jlist_new(c->r->run, 0);
    *kept = *c;
    list->make = make;
    list->call = kept;
    return sn_jgenerator_value(list);
}

static sn_jvalue filter_list(sn_jcall *c) { return sn_jlist_value(sn_jlist_copy(c->r->run, items_of(c))); }

static sn_jvalue filter_first(sn_jcall *c) {
    const sn_jlist *list = items_of(c);
    return list->n ? list->at[0] : sn_jundefined(NULL);
}

static sn_jvalue filter_last(sn_jcall *c) {
    if (c->self.kind == SN_J_GENERATOR) sn_jcall_fail(c, "a generator has no last item: use |list|last");
    const sn_jlist *list = items_of(c);
    return list->n ? list->at[list->n - 1] : sn_jundefined(NULL);
}

static sn_jvalue filter_reverse(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    if (c->self.kind == SN_J_STRING)
        return sn_jslice(c->r, c->self, (sn_jvalue[3]){sn_jnone(), sn_jnone(), sn_jint(-1)});
    const sn_jlist *from = items_of(c);
    sn_jlist *list = sn_jlist_new(run, from->n);
    for (size_t i = from->n; i-- > 0;) sn_jlist_add(run, list, from->at[i]);
    return sn_jgenerator_value(list);
}

static sn_jlist *pairs_of(void *call) {
    sn_jcall *c = call;
    sn_jrun *run = c->r->run;
    sn_jlist *list = sn_jlist_new(run, 0);
    if (c->self.kind != SN_J_DICT && c->self.kind != SN_J_UNDEFINED)
        sn_jcall_fail(c, "a %s is no dictionary", sn_jtype_name(c->self));
    for (size_t i = 0; c->self.kind == SN_J_DICT && i < c->self.dict->n; i++) {
        sn_jlist *pair = sn_jlist_new(run, 2);
        sn_jlist_add(run, pair, c->self.dict->at[i].key);
        sn_jlist_add(run, pair, c->self.dict->at[i].value);
        sn_jlist_add(run, list, sn_jtuple_value(pair));
    }
    return list;
}

static sn_jvalue filter_items(sn_jcall *c) { return generator_of(c, pairs_of); }

static sn_jvalue filter_join(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    const sn_jlist *list = items_of(c);
    const sn_jstring *separator = sn_jto_string(run, c->has[0] ? c->arg[0] : sn_jundefined(NULL));
    sn_jtext out = sn_jtext_new(run);
    for (size_t i = 0; i < list->n; i++) {
        if (i) sn_jtext_string(&out, separator);
        sn_jwrite(&out,
                  c->has[1] && c->arg[1].kind != SN_J_NONE ? sn_jpath(c->r, list->at[i], c->arg[1]) : list->at[i]);
    }
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue filter_sum(sn_jcall *c) {
    const sn_jlist *list = items_of(c);
    bool path = c->has[0] && c->arg[0].kind != SN_J_NONE;
    sn_jvalue sum = c->has[1] ? c->arg[1] : sn_jint(0);
    for (size_t i = 0; i < list->n; i++)
        sum = sn_joperate(c->r, SN_JS_ADD, sum, path ? sn_jpath(c->r, list->at[i], c->arg[0]) : list->at[i]);
    return sum;
}

static sn_jvalue extreme(sn_jcall *c, int wanted) {
    const sn_jlist *list = items_of(c);
    bool path = c->has[1] && c->arg[1].kind != SN_J_NONE, cased = sn_jarg_flag(c, 0, false);
    sn_jvalue best = sn_jundefined(NULL), best_key = best;
    for (size_t i = 0; i < list->n; i++) {
        sn_jvalue key = folded(c, path ? sn_jpath(c->r, list->at[i], c->arg[1]) : list->at[i], cased);
        if (i && sn_jcompare(c->r->run, key, best_key) * wanted <= 0) continue;
        best = list->at[i];
        best_key = key;
    }
    return best;
}

static sn_jvalue filter_max(sn_jcall *c) { return extreme(c, 1); }
static sn_jvalue filter_min(sn_jcall *c) { return extreme(c, -1); }

/* ---- order ---- */

typedef struct sorted_item {
    sn_jvalue key, value;
} sorted_item;

/* Merge sort: stable, and its steps are counted. */
static void sort_items(sn_jcall *c, sorted_item *at, sorted_item *scratch, size_t n, bool reverse) {
    if (n < 2) return;
    size_t half = n / 2, a = 0, b = half, k = 0;
    sn_jenter(c->r->run);
    sort_items(c, at, scratch, half, reverse);
    sort_items(c, at + half, scratch, n - half, reverse);
    sn_jcharge(c->r->run, n >> 2);
    while (a < half || b < n) {
        int order = a == half ? 1 : b == n ? -1 : sn_jcompare(c->r->run, at[a].key, at[b].key);
        if (a < half && b < n && reverse) order = -order;
        scratch[k++] = order > 0 ? at[b++] : at[a++];
    }
    memcpy(at, scratch, n * sizeof *at);
    sn_jleave(c->r->run);
}

static sn_jlist *sorted_by(sn_jcall *c, const sn_jlist *values, const sn_jlist *keys, bool reverse) {
    sn_jrun *run = c->r->run;
    sorted_item *at = sn_jalloc(run, values->n, sizeof *at), *scratch = sn_jalloc(run, values->n, sizeof *at);
    for (size_t i = 0; i < values->n; i++) at[i] = (sorted_item){keys->at[i], values->at[i]};
    sort_items(c, at, scratch, values->n, reverse);
    sn_jlist *list = sn_jlist_new(run, values->n);
    for (size_t i = 0; i < values->n; i++) sn_jlist_add(run, list, at[i].value);
    return list;
}

/* The key of an item: the value, or the values of the attributes "a,b.c". */
static sn_jvalue sort_key(sn_jcall *c, sn_jvalue item, sn_jvalue paths, bool cased) {
    sn_jrun *run = c->r->run;
    if (paths.kind == SN_J_NONE || paths.kind == SN_J_UNDEFINED) return folded(c, item, cased);
    if (paths.kind != SN_J_STRING) return folded(c, sn_jpath(c->r, item, paths), cased);
    sn_jlist *keys = sn_jlist_new(run, 1);
    const sn_jstring *text = paths.string;
    for (size_t from = 0, to; from <= text->len; from = to + 1) {
        for (to = from; to < text->len && text->text[to] != ',';) to++;
        sn_jvalue part = sn_jstr(sn_jstring_part(run, text, from, to));
        sn_jlist_add(run, keys, folded(c, sn_jpath(c->r, item, part), cased));
    }
    return sn_jlist_value(keys);
}

static sn_jvalue filter_sort(sn_jcall *c) {
    const sn_jlist *list = items_of(c);
    sn_jlist *keys = sn_jlist_new(c->r->run, list->n);
    for (size_t i = 0; i < list->n; i++)
        sn_jlist_add(c->r->run, keys,
                     sort_key(c, list->at[i], c->has[2] ? c->arg[2] : sn_jnone(), sn_jarg_flag(c, 1, false)));
    return sn_jlist_value(sorted_by(c, list, keys, sn_jarg_flag(c, 0, false)));
}

static sn_jvalue filter_dictsort(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    const sn_jstring *by = sn_jarg_string(c, 1, "key");
    bool cased = sn_jarg_flag(c, 0, false), by_value = sn_jstring_is(by, "value");
    if (c->self.kind != SN_J_DICT) sn_jcall_fail(c, "a %s is no dictionary", sn_jtype_name(c->self));
    if (!by_value && !sn_jstring_is(by, "key")) sn_jcall_fail(c, "'by' is \"key\" or \"value\"");
    sn_jlist *pairs = sn_jlist_new(run, c->self.dict->n), *keys = sn_jlist_new(run, c->self.dict->n);
    for (size_t i = 0; i < c->self.dict->n; i++) {
        const sn_jentry *entry = &c->self.dict->at[i];
        sn_jlist *pair = sn_jlist_new(run, 2);
        sn_jlist_add(run, pair, entry->key);
        sn_jlist_add(run, pair, entry->value);
        sn_jlist_add(run, pairs, sn_jtuple_value(pair));
        sn_jlist_add(run, keys, folded(c, by_value ? entry->value : entry->key, cased));
    }
    return sn_jlist_value(sorted_by(c, pairs, keys, sn_jarg_flag(c, 2, false)));
}

static sn_jlist *unique_items(void *call) {
    sn_jcall *c = call;
    sn_jrun *run = c->r->run;
    const sn_jlist *list = items_of(c);
    bool path = c->has[1] && c->arg[1].kind != SN_J_NONE;
    sn_jlist *out = sn_jlist_new(run, 0);
    sn_jdict *seen = sn_jdict_new(run);
    for (size_t i = 0; i < list->n; i++) {
        sn_jvalue key =
            folded(c, path ? sn_jpath(c->r, list->at[i], c->arg[1]) : list->at[i], sn_jarg_flag(c, 0, false));
        if (sn_jis_hashable(run, key) && sn_jdict_find(run, seen, key)) continue;
        sn_jdict_set(run, seen, key, sn_jnone());
        sn_jlist_add(run, out, list->at[i]);
    }
    return out;
}

static sn_jvalue filter_unique(sn_jcall *c) { return generator_of(c, unique_items); }

/* Pairs (key, items with this key), in the order of the keys. */
static sn_jvalue filter_groupby(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    const sn_jlist *list = items_of(c);
    bool cased = sn_jarg_flag(c, 2, false);
    sn_jlist *keys = sn_jlist_new(run, 0), *groups = sn_jlist_new(run, 0), *names = sn_jlist_new(run, 0);
    for (size_t i = 0; i < list->n; i++) {
        sn_jvalue name = sn_jpath(c->r, list->at[i], c->arg[0]);
        if (name.kind == SN_J_UNDEFINED && c->has[1]) name = c->arg[1];
        sn_jlist_add(run, names, name);
        sn_jlist_add(run, keys, folded(c, name, cased));
    }
    sn_jlist *numbers = sn_jlist_new(run, list->n);
    for (size_t i = 0; i < list->n; i++) sn_jlist_add(run, numbers, sn_jint((int64_t)i));
    const sn_jlist *order = sorted_by(c, numbers, keys, false);
    for (size_t i = 0; i < order->n; i++) {
        size_t at = (size_t)order->at[i].integer, before = i ? (size_t)order->at[i - 1].integer : 0;
        if (!i || !sn_jequal(run, keys->at[at], keys->at[before])) {
            sn_jlist *group = sn_jlist_new(run, 2);
            sn_jlist_add(run, group, names->at[at]);
            sn_jlist_add(run, group, sn_jlist_value(sn_jlist_new(run, 0)));
            sn_jlist_add(run, groups, sn_jtuple_value(group));
        }
        sn_jlist_add(run, groups->at[groups->n - 1].list->at[1].list, list->at[at]);
    }
    return sn_jlist_value(groups);
}

/* ---- parts ---- */

static sn_jlist *batch_items(void *call) {
    sn_jcall *c = call;
    sn_jrun *run = c->r->run;
    const sn_jlist *list = items_of(c);
    int64_t size = sn_jarg_int(c, 0, 1);
    sn_jlist *out = sn_jlist_new(run, 0), *row = sn_jlist_new(run, 0);
    for (size_t i = 0; i < list->n; i++) {
        if ((int64_t)row->n == size) {
            sn_jlist_add(run, out, sn_jlist_value(row));
            row = sn_jlist_new(run, 0);
        }
        sn_jlist_add(run, row, list->at[i]);
    }
    while (row->n && c->has[1] && c->arg[1].kind != SN_J_NONE && (int64_t)row->n < size)
        sn_jlist_add(run, row, c->arg[1]);
    if (row->n) sn_jlist_add(run, out, sn_jlist_value(row));
    return out;
}

static sn_jvalue filter_batch(sn_jcall *c) { return generator_of(c, batch_items); }

static sn_jlist *slice_items(void *call) {
    sn_jcall *c = call;
    sn_jrun *run = c->r->run;
    const sn_jlist *list = items_of(c);
    int64_t n = sn_jarg_int(c, 0, 1), length = (int64_t)list->n, at = 0;
    sn_jlist *out = sn_jlist_new(run, 0);
    if (n < 1) sn_jcall_fail(c, "the number of slices is below 1");
    for (int64_t i = 0; i < n; i++) {
        sn_jlist *part = sn_jlist_new(run, 0);
        int64_t size = length / n + (i < length % n);
        for (int64_t k = 0; k < size; k++) sn_jlist_add(run, part, list->at[at++]);
        if (c->has[1] && c->arg[1].kind != SN_J_NONE && length % n && i >= length % n)
            sn_jlist_add(run, part, c->arg[1]);
        sn_jlist_add(run, out, sn_jlist_value(part));
    }
    return out;
}

static sn_jvalue filter_slice(sn_jcall *c) { return generator_of(c, slice_items); }

/* ---- map and select ---- */

/* Jinja2 asks whether the value is true before it runs over it: None has no items here. */
static sn_jlist *items_if_true(sn_jcall *c) { return sn_jtruth(c->self) ? items_of(c) : sn_jlist_new(c->r->run, 0); }

/* The arguments behind the first `skip`. */
static const sn_jlist *arguments_from(sn_jcall *c, size_t skip) {
    sn_jlist *rest = sn_jlist_new(c->r->run, 0);
    for (size_t i = skip; i < c->given->n; i++) sn_jlist_add(c->r->run, rest, c->given->at[i]);
    return rest;
}

static const sn_jstring *name_argument(sn_jcall *c, size_t i, const char *what) {
    if (i >= c->given->n || c->given->at[i].kind != SN_J_STRING) sn_jcall_fail(c, "it needs the name of a %s", what);
    return c->given->at[i].string;
}

static sn_jlist *map_items(void *call) {
    sn_jcall *c = call;
    sn_jrun *run = c->r->run;
    const sn_jlist *list = items_if_true(c);
    const sn_jvalue *path = sn_jdict_find_word(run, c->named, "attribute");
    const sn_jvalue *otherwise = sn_jdict_find_word(run, c->named, "default");
    bool by_path = !c->given->n && path;
    const sn_jlist *rest = arguments_from(c, 1);
    const sn_jstring *name = by_path ? NULL : name_argument(c, 0, "filter");
    sn_jlist *out = sn_jlist_new(run, list->n);
    for (size_t i = 0; i < list->n; i++) {
        sn_jvalue v =
            by_path ? sn_jpath(c->r, list->at[i], *path) : sn_japply_filter(c->r, name, list->at[i], rest, c->named);
        sn_jlist_add(run, out, by_path && otherwise && v.kind == SN_J_UNDEFINED ? *otherwise : v);
    }
    return out;
}

static sn_jvalue filter_map(sn_jcall *c) { return generator_of(c, map_items); }

/* The items that pass a test, or those whose attribute does. */
static sn_jlist *choose(sn_jcall *c, bool wanted, bool by_path) {
    sn_jrun *run = c->r->run;
    const sn_jlist *list = items_if_true(c), *rest = arguments_from(c, by_path ? 2 : 1);
    const sn_jstring *test = c->given->n > (by_path ? 1 : 0) ? name_argument(c, by_path ? 1 : 0, "test") : NULL;
    if (by_path && !c->given->n) sn_jcall_fail(c, "it needs the name of an attribute");
    sn_jlist *out = sn_jlist_new(run, 0);
    for (size_t i = 0; i < list->n; i++) {
        sn_jvalue v = by_path ? sn_jpath(c->r, list->at[i], c->given->at[0]) : list->at[i];
        bool passes = test ? sn_japply_test(c->r, test, v, rest, c->named) : sn_jtruth(v);
        if (passes == wanted) sn_jlist_add(run, out, list->at[i]);
    }
    return out;
}

static sn_jlist *select_items(void *call) { return choose(call, true, false); }
static sn_jlist *reject_items(void *call) { return choose(call, false, false); }
static sn_jlist *selectattr_items(void *call) { return choose(call, true, true); }
static sn_jlist *rejectattr_items(void *call) { return choose(call, false, true); }
static sn_jvalue filter_select(sn_jcall *c) { return generator_of(c, select_items); }
static sn_jvalue filter_reject(sn_jcall *c) { return generator_of(c, reject_items); }
static sn_jvalue filter_selectattr(sn_jcall *c) { return generator_of(c, selectattr_items); }
static sn_jvalue filter_rejectattr(sn_jcall *c) { return generator_of(c, rejectattr_items); }

const sn_jbuiltin sn_jlist_filters[] = {
    {"list", "", filter_list},
    {"first", "", filter_first},
    {"last", "", filter_last},
    {"reverse", "", filter_reverse},
    {"items", "", filter_items},
    {"join", "/ d attribute", filter_join},
    {"sum", "/ attribute start", filter_sum},
    {"max", "/ case_sensitive attribute", filter_max},
    {"min", "/ case_sensitive attribute", filter_min},
    {"sort", "/ reverse case_sensitive attribute", filter_sort},
    {"dictsort", "/ case_sensitive by reverse", filter_dictsort},
    {"unique", "/ case_sensitive attribute", filter_unique},
    {"groupby", "attribute / default case_sensitive", filter_groupby},
    {"batch", "linecount / fill_with", filter_batch},
    {"slice", "slices / fill_with", filter_slice},
    {"map", "*", filter_map},
    {"select", "*", filter_select},
    {"reject", "*", filter_reject},
    {"selectattr", "*", filter_selectattr},
    {"rejectattr", "*", filter_rejectattr},
    {NULL, NULL, NULL},
};

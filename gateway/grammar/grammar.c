/* A grammar's program, and running it: sets of places become numbered states with tables of their successors.
 *
 * What is counted is unrolled, so each count has states of its own. Most texts meet few of them, one for each byte; it
 * is masks that look at all tokens. A node of a repeat that is far from its end names one that stands for it (alike),
 * and so do stacks and states made of such nodes: one mask serves all counts but the last ones. */
#include "gateway/grammar/grammar_private.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART = 16, PARTS = 256 / PART }; /* of a state's table, which is filled in parts */
enum { UNKNOWN = -2, NO_STACK = -1, SEEN_SIZE = 4 * SN_GRAMMAR_PLACES_MAX, STACKS_MAX = 1 << 20 };
/* Steps of building, some hundredths of a second; and places that are looked at from state to state, those that need no
 * byte among them, some seconds. */
enum { WORK_MAX = 1 << 19, FOLLOWED_MAX = 1 << 27 };

/* A stack of returns, as a list that shares its tails: the node that follows the innermost call, and the rest. */
typedef struct stack_entry {
    int32_t node, below, depth, alike; /* alike: the stack of the nodes that stand for its own, or UNKNOWN */
} stack_entry;

typedef struct place {
    int32_t node, stack;
} place;

typedef struct state {
    place *places; /* heap, (n), sorted: nodes of the kind SN_NODE_BYTES */
    size_t n;
    bool may_end;
    int32_t alike;        /* or UNKNOWN */
    int32_t *next[PARTS]; /* (PART) by byte: a state, SN_GRAMMAR_DEAD, or UNKNOWN; NULL: all are unknown */
} state;

/* Indices of things that have a hash, in a table of a power of two; -1: empty. */
typedef struct index_table {
    int32_t *slots;
    size_t size;
} index_table;

struct sn_grammar {
    sn_grammar_node *nodes;
    int32_t *rules; /* where each begins */
    size_t n_nodes, nodes_capacity, n_rules, rules_capacity;
    int begin;
    size_t work;
    sn_err failed;
    /* -- running -- */
    stack_entry *stacks;
    size_t n_stacks, stacks_capacity;
    state **states;
    size_t n_states, state_bytes, n_followed;
    index_table stack_index, state_index;
    /* scratch of one set of places */
    place *found;
    size_t n_found;
    bool found_end;
    place *waiting; /* (SEEN_SIZE): places that are still to be followed */
    uint64_t *seen; /* (SEEN_SIZE): place + 1; 0: empty */
    size_t n_seen;
};

/* -- building -- */

int sn_grammar_fail(sn_grammar *g, sn_status status, const char *format, ...) {
    if (g->failed.status) return SN_END;
    va_list args;
    va_start(args, format);
    vsnprintf(g->failed.text, sizeof g->failed.text, format, args);
    va_end(args);
    g->failed.status = status;
    return SN_END;
}

sn_status sn_grammar_error(const sn_grammar *g, sn_err *err) {
    return g->failed.status ? sn_fail(err, g->failed.status, "%s", g->failed.text) : SN_OK;
}

/* Room for one more element; false, and the grammar has failed, when there is none. */
static bool has_room(sn_grammar *g, void *array, size_t n, size_t *capacity, size_t size) {
    if (!sn_grow(array, capacity, n + 1, size, NULL)) return true;
    sn_grammar_fail(g, SN_STOP, "out of memory for a grammar");
    return false;
}

static int fail_as_complex(sn_grammar *g) {
    return sn_grammar_fail(g, SN_REFUSED, "the schema is too complex: make it smaller");
}

bool sn_grammar_work(sn_grammar *g, size_t steps) {
    g->work += steps < WORK_MAX ? steps : WORK_MAX;
    if (g->work >= WORK_MAX && !g->failed.status) (void)fail_as_complex(g);
    return !g->failed.status;
}

static int add_node(sn_grammar *g, sn_grammar_node node) {
    if (g->failed.status) return SN_END;
    if (g->n_nodes >= SN_GRAMMAR_NODES_MAX) return fail_as_complex(g);
    if (!has_room(g, &g->nodes, g->n_nodes, &g->nodes_capacity, sizeof *g->nodes)) return SN_END;
    node.alike = (int32_t)g->n_nodes;
    g->nodes[g->n_nodes] = node;
    return (int)g->n_nodes++;
}

int sn_add_bytes(sn_grammar *g, uint8_t lo, uint8_t hi, int next) {
    return add_node(g, (sn_grammar_node){SN_NODE_BYTES, lo, hi, next, 0, 0});
}
int sn_add_split(sn_grammar *g, int a, int b) { return add_node(g, (sn_grammar_node){SN_NODE_SPLIT, 0, 0, a, b, 0}); }
int sn_add_call(sn_grammar *g, int rule, int next) {
    return add_node(g, (sn_grammar_node){SN_NODE_CALL, 0, 0, next, rule, 0});
}
int sn_add_fail(sn_grammar *g) { return add_node(g, (sn_grammar_node){.kind = SN_NODE_FAIL}); }

int sn_add_literal(sn_grammar *g, const char *text, size_t len, int next) {
    for (size_t i = len; i-- > 0;) next = sn_add_bytes(g, (uint8_t)text[i], (uint8_t)text[i], next);
    return next;
}

int sn_add_rule(sn_grammar *g) {
    if (g->failed.status || !has_room(g, &g->rules, g->n_rules, &g->rules_capacity, sizeof *g->rules)) return 0;
    g->rules[g->n_rules] = SN_END;
    return (int)g->n_rules++;
}
void sn_set_rule(sn_grammar *g, int rule, int begin) {
    if (!g->failed.status) g->rules[rule] = begin;
}
void sn_set_begin(sn_grammar *g, int begin) { g->begin = begin; }

/* A node before `n` more elements: those with more than there are bytes to look at are alike. */
static int add_counted(sn_grammar *g, int node, int n, int *alike) {
    if (n == SN_GRAMMAR_LOOK) *alike = node;
    if (n > SN_GRAMMAR_LOOK && !g->failed.status) g->nodes[node].alike = *alike;
    return node;
}

int sn_add_repeat(sn_grammar *g, int rule, int least, int most, int next) {
    int at = next, alike = 0;
    if (most < 0) { /* a loop: either an element and the loop again, or on */
        at = sn_add_split(g, SN_END, next);
        const int element = sn_add_call(g, rule, at);
        if (g->failed.status) return SN_END;
        g->nodes[at].next = element;
    }
    for (int i = 1; i <= most - least; i++)
        at = add_counted(g, sn_add_split(g, sn_add_call(g, rule, at), next), i, &alike);
    for (int i = 1; i <= least; i++) at = add_counted(g, sn_add_call(g, rule, at), i, &alike);
    return at;
}

sn_status sn_grammar_new(sn_grammar **out, sn_err *err) {
    sn_grammar *g = NULL;
    sn_status status = sn_calloc(&g, 1, sizeof *g, err);
    if (status) return status;
    add_node(g, (sn_grammar_node){.kind = SN_NODE_RETURN});
    status = sn_calloc(&g->found, SN_GRAMMAR_PLACES_MAX, sizeof *g->found, err);
    if (!status) status = sn_calloc(&g->waiting, SEEN_SIZE, sizeof *g->waiting, err);
    if (!status) status = sn_calloc(&g->seen, SEEN_SIZE, sizeof *g->seen, err);
    if (!status) status = sn_calloc(&g->states, SN_GRAMMAR_STATES_MAX, sizeof(state *), err);
    if (!status) status = sn_grammar_error(g, err);
    *out = g;
    if (status) sn_grammar_free(out);
    return status;
}

void sn_grammar_free(sn_grammar **grammar) {
    sn_grammar *g = *grammar;
    if (!g) return;
    for (size_t i = 0; g->states && i < g->n_states; i++) {
        for (int k = 0; k < PARTS; k++) free(g->states[i]->next[k]);
        free(g->states[i]->places);
        free(g->states[i]);
    }
    free(g->states);
    free(g->nodes);
    free(g->rules);
    free(g->stacks);
    free(g->stack_index.slots);
    free(g->state_index.slots);
    free(g->found);
    free(g->waiting);
    free(g->seen);
    free(g);
    *grammar = NULL;
}

/* -- running -- */

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}
static uint64_t stack_hash(const stack_entry *s) { return mix(mix(1, (uint32_t)s->node), (uint32_t)s->below); }
static uint64_t places_hash(const place *p, size_t n, bool may_end) {
    uint64_t h = may_end;
    for (size_t i = 0; i < n; i++) h = mix(mix(h, (uint32_t)p[i].node), (uint32_t)p[i].stack);
    return h;
}
static uint64_t hash_of(const sn_grammar *g, const index_table *t, int32_t i) {
    if (t == &g->stack_index) return stack_hash(&g->stacks[i]);
    return places_hash(g->states[i]->places, g->states[i]->n, g->states[i]->may_end);
}

/* Makes room in a table for one more than `n` entries. */
static bool table_has_room(sn_grammar *g, index_table *t, size_t n) {
    if (2 * (n + 1) <= t->size) return true;
    index_table old = *t, grown = {.size = old.size ? 2 * old.size : 256};
    grown.slots = malloc(grown.size * sizeof *grown.slots);
    if (!grown.slots) return false;
    memset(grown.slots, 0xFF, grown.size * sizeof *grown.slots);
    for (size_t i = 0; i < old.size; i++) {
        if (old.slots[i] < 0) continue;
        size_t at = hash_of(g, t, old.slots[i]) & (grown.size - 1);
        while (grown.slots[at] >= 0) at = (at + 1) & (grown.size - 1);
        grown.slots[at] = old.slots[i];
    }
    free(old.slots);
    *t = grown;
    return true;
}

/* The stack `below` with a return to `node` on top. NO_STACK with *ok false: memory is out, or there are too many. */
static int32_t push(sn_grammar *g, int32_t node, int32_t below, bool *ok) {
    stack_entry e = {node, below, below == NO_STACK ? 1 : g->stacks[below].depth + 1, UNKNOWN};
    *ok = g->n_stacks < STACKS_MAX && table_has_room(g, &g->stack_index, g->n_stacks);
    if (!*ok) return NO_STACK;
    size_t at = stack_hash(&e) & (g->stack_index.size - 1);
    for (int32_t i; (i = g->stack_index.slots[at]) >= 0; at = (at + 1) & (g->stack_index.size - 1))
        if (g->stacks[i].node == node && g->stacks[i].below == below) return i;
    *ok = has_room(g, &g->stacks, g->n_stacks, &g->stacks_capacity, sizeof *g->stacks);
    if (!*ok) return NO_STACK;
    g->stacks[g->n_stacks] = e;
    return g->stack_index.slots[at] = (int32_t)g->n_stacks++;
}

/* Whether a place is new to the set that is collected; the set is full when *ok becomes false. */
static bool is_new(sn_grammar *g, place p, bool *ok) {
    uint64_t key = ((uint64_t)(uint32_t)p.node << 32 | (uint32_t)(p.stack + 1)) + 1;
    size_t at = mix(7, key) & (SEEN_SIZE - 1);
    for (; g->seen[at]; at = (at + 1) & (SEEN_SIZE - 1))
        if (g->seen[at] == key) return false;
    *ok = ++g->n_seen <= SEEN_SIZE / 2;
    g->seen[at] = key;
    return *ok;
}

/* Follows a place that needs no byte: *p becomes the next one, false: the path ends here. A split leaves its other
 * branch in g->waiting. *ok false: too many places, or memory is out. */
static bool follow(sn_grammar *g, place *p, size_t *n_waiting, bool *ok) {
    const sn_grammar_node *node = &g->nodes[p->node];
    if (!is_new(g, *p, ok)) return false;
    switch (node->kind) {
    case SN_NODE_FAIL:
        return false;
    case SN_NODE_BYTES:
        *ok = g->n_found < SN_GRAMMAR_PLACES_MAX;
        if (*ok) g->found[g->n_found++] = *p;
        return false;
    case SN_NODE_SPLIT: /* fewer wait than were new, so the array is long enough */
        g->waiting[(*n_waiting)++] = (place){node->other, p->stack};
        p->node = node->next;
        return true;
    case SN_NODE_CALL:
        if (p->stack != NO_STACK && g->stacks[p->stack].depth >= SN_GRAMMAR_DEPTH_MAX) return false;
        if (g->nodes[node->next].kind != SN_NODE_RETURN) /* else the caller's return is the right one */
            p->stack = push(g, node->next, p->stack, ok);
        p->node = g->rules[node->other];
        return *ok;
    case SN_NODE_RETURN:
        break;
    }
    if (p->stack == NO_STACK) {
        g->found_end = true;
        return false;
    }
    *p = (place){g->stacks[p->stack].node, g->stacks[p->stack].below};
    return true;
}

/* Adds a place and all that are reached from it without a byte. */
static bool collect(sn_grammar *g, place p) {
    size_t n_waiting = 0;
    g->waiting[n_waiting++] = p;
    while (n_waiting) {
        bool ok = true;
        p = g->waiting[--n_waiting];
        while (follow(g, &p, &n_waiting, &ok)) {}
        if (!ok) return false;
    }
    return true;
}

static void begin_set(sn_grammar *g) {
    g->n_found = g->n_seen = 0;
    g->found_end = false;
    memset(g->seen, 0, SEEN_SIZE * sizeof *g->seen);
}

static int compare_places(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

static sn_status fail_as_too_many(sn_err *err) {
    return sn_fail(err, SN_REFUSED, "the schema leads to too many states: make it smaller");
}

/* The state of the set that was collected; a new one if there is none yet. */
static sn_status state_of_set(sn_grammar *g, int32_t *out, sn_err *err) {
    if (!g->n_found && !g->found_end) {
        *out = SN_GRAMMAR_DEAD;
        return SN_OK;
    }
    qsort(g->found, g->n_found, sizeof *g->found, compare_places);
    if (!table_has_room(g, &g->state_index, g->n_states)) return sn_fail(err, SN_STOP, "out of memory for a grammar");
    size_t at = places_hash(g->found, g->n_found, g->found_end) & (g->state_index.size - 1);
    for (; g->state_index.slots[at] >= 0; at = (at + 1) & (g->state_index.size - 1)) {
        const state *s = g->states[g->state_index.slots[at]];
        if (s->n == g->n_found && s->may_end == g->found_end &&
            (!s->n || !memcmp(s->places, g->found, s->n * sizeof *s->places))) {
            *out = g->state_index.slots[at];
            return SN_OK;
        }
    }
    size_t bytes = sizeof(state) + g->n_found * sizeof *g->found;
    if (g->n_states == SN_GRAMMAR_STATES_MAX || g->state_bytes + bytes > SN_GRAMMAR_BYTES_MAX)
        return fail_as_too_many(err);
    state *s = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (!status) status = sn_calloc(&s->places, g->n_found, sizeof *s->places, err);
    if (status) {
        free(s);
        return status;
    }
    s->n = g->n_found;
    s->may_end = g->found_end;
    if (s->n) memcpy(s->places, g->found, s->n * sizeof *s->places);
    s->alike = UNKNOWN;
    g->state_bytes += bytes;
    g->states[g->n_states] = s;
    g->state_index.slots[at] = (int32_t)g->n_states;
    *out = (int32_t)g->n_states++;
    return SN_OK;
}

static sn_status too_complex(sn_grammar *g, sn_err *err) {
    sn_status status = sn_grammar_error(g, err); /* memory was out */
    return status ? status
                  : sn_fail(err, SN_REFUSED, "the schema allows too many ways to read one text: make it smaller");
}

/* The state before the first byte, which is number 0. */
static sn_status make_first_state(sn_grammar *g, sn_err *err) {
    int32_t first;
    begin_set(g);
    if (!collect(g, (place){g->begin, NO_STACK})) return too_complex(g, err);
    sn_status status = state_of_set(g, &first, err);
    if (!status && first == SN_GRAMMAR_DEAD) return sn_fail(err, SN_REFUSED, "the schema accepts no JSON at all");
    return status;
}

/* Where the state keeps its successor by a byte; NULL: memory is out. */
static int32_t *successor(sn_grammar *g, int from, uint8_t byte) {
    int32_t **part = &g->states[from]->next[byte / PART];
    if (!*part) {
        *part = malloc(PART * sizeof **part);
        for (int i = 0; *part && i < PART; i++) (*part)[i] = UNKNOWN;
        g->state_bytes += PART * sizeof **part;
    }
    return *part ? &(*part)[byte % PART] : NULL;
}

static sn_status make_next(sn_grammar *g, int from, uint8_t byte, int32_t *out, sn_err *err) {
    g->n_followed += g->states[from]->n;
    if (g->n_followed > FOLLOWED_MAX) return fail_as_too_many(err);
    begin_set(g);
    for (size_t i = 0; i < g->states[from]->n; i++) {
        place p = g->states[from]->places[i];
        const sn_grammar_node *node = &g->nodes[p.node];
        if (byte < node->lo || byte > node->hi) continue;
        if (!collect(g, (place){node->next, p.stack})) return too_complex(g, err);
    }
    g->n_followed += g->n_seen;
    return state_of_set(g, out, err);
}

int sn_grammar_begin(const sn_grammar *grammar) {
    (void)grammar;
    return 0;
}

sn_status sn_grammar_advance(sn_grammar *g, int from, const char *bytes, size_t len, int *next, sn_err *err) {
    int32_t at = from;
    for (size_t i = 0; i < len && at != SN_GRAMMAR_DEAD; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        int32_t *known = successor(g, at, byte);
        if (!known) return sn_fail(err, SN_STOP, "out of memory for a grammar");
        sn_status status = *known == UNKNOWN ? make_next(g, at, byte, known, err) : SN_OK;
        if (status) return status;
        at = *known;
    }
    *next = at;
    return SN_OK;
}

static int32_t stack_alike(sn_grammar *g, int32_t stack, bool *ok) {
    if (stack == NO_STACK || !*ok) return NO_STACK;
    if (g->stacks[stack].alike == UNKNOWN) {
        const stack_entry e = g->stacks[stack];
        const int32_t below = stack_alike(g, e.below, ok);
        const int32_t alike = *ok ? push(g, g->nodes[e.node].alike, below, ok) : NO_STACK;
        if (*ok) g->stacks[stack].alike = alike;
        return alike;
    }
    return g->stacks[stack].alike;
}

sn_status sn_grammar_alike(sn_grammar *g, int at, int *alike, sn_err *err) {
    state *s = g->states[at];
    bool ok = true;
    if (s->alike == UNKNOWN) {
        begin_set(g);
        g->found_end = s->may_end;
        for (size_t i = 0; i < s->n && ok; i++) {
            const place p = {s->places[i].node, stack_alike(g, s->places[i].stack, &ok)};
            if (ok && is_new(g, p, &ok)) g->found[g->n_found++] = p;
        }
        if (!ok) return too_complex(g, err);
        sn_status status = state_of_set(g, &s->alike, err);
        if (status) return status;
    }
    *alike = s->alike;
    return SN_OK;
}

size_t sn_grammar_bytes(const sn_grammar *g) {
    return g->state_bytes + g->nodes_capacity * sizeof *g->nodes + g->stacks_capacity * sizeof *g->stacks;
}

bool sn_grammar_may_end(const sn_grammar *g, int at) { return at != SN_GRAMMAR_DEAD && g->states[at]->may_end; }

/* Turns nodes from which no text can be finished into failures, so that no state is a dead end. Which ones can be
 * finished spreads from the end: rules may call themselves, so it takes some passes. */
static sn_status prune(sn_grammar *g, sn_err *err) {
    bool *finishes = NULL, changed = true;
    sn_status status = sn_calloc(&finishes, g->n_nodes, sizeof *finishes, err);
    if (status) return status;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < g->n_nodes; i++) {
            const sn_grammar_node *node = &g->nodes[i];
            bool next = finishes[node->next], one = false;
            switch (node->kind) {
            case SN_NODE_RETURN:
                one = true;
                break;
            case SN_NODE_BYTES:
                one = next;
                break;
            case SN_NODE_SPLIT:
                one = next || finishes[node->other];
                break;
            case SN_NODE_CALL:
                one = next && finishes[g->rules[node->other]];
                break;
            case SN_NODE_FAIL:
                break;
            }
            changed |= one && !finishes[i];
            finishes[i] = one;
        }
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        if (!finishes[i]) g->nodes[i].kind = SN_NODE_FAIL;
    free(finishes);
    return SN_OK;
}

sn_status sn_grammar_finish(sn_grammar *g, sn_err *err) {
    sn_status status = sn_grammar_error(g, err);
    if (!status) status = prune(g, err);
    return status ? status : make_first_state(g, err);
}

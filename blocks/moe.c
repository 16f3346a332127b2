/* The mixture and the shared expert each have a set of buffers (moe_buffers, shared_buffers), because a forward pass
 * uses those of sn_scratch, and a backward pass those of sn_grad_scratch. The steps are written once for both. The
 * shared expert comes first in a forward pass, since the mixture's result overwrites its input. */
#include "blocks/moe.h"

#include "blocks/expert_slots.h"
#include "device/guard.h"

_Static_assert((int)SN_MODEL_EXPERTS_MAX <= (int)SN_EXPERTS_MAX &&
                   (int)SN_MODEL_EXPERTS_USED_MAX <= (int)SN_EXPERTS_USED_MAX,
               "a device supports as many experts as a model may have");

/* Where the intermediate activations of a forward or backward pass lie. */
typedef struct moe_buffers {
    float *logits, *weights; /* (n, n_experts), (n, k) */
    int32_t *ids;            /* (n, k): the chosen experts */
    int32_t *slots;          /* (n, k): where they are in a block with slots; forward passes only */
    float *gate, *up, *act;  /* (n, k, n_ff) */
    float *expert_out;       /* (n, k, sn_expert_width) */
    float limit;             /* of the activation: ff_limit of the block */
} moe_buffers;

static moe_buffers moe_buffers_at(const sn_hparams *hp, int n, float *router_out) {
    float *weights = router_out + (size_t)n * (size_t)hp->n_experts,
          *ids = weights + (size_t)n * (size_t)hp->n_experts_used;
    float *slots = ids + (size_t)n * (size_t)hp->n_experts_used;
    return (moe_buffers){
        .logits = router_out, .weights = weights, .ids = (int32_t *)(void *)ids, .slots = (int32_t *)(void *)slots};
}

static sn_moe_router moe_router_of(const sn_block *b, const sn_hparams *hp) {
    return (sn_moe_router){.n_experts = hp->n_experts,
                           .k = hp->n_experts_used,
                           .scoring = hp->router_scoring,
                           .correction = b->vector[SN_ROLE_ROUTER_CORRECTION],
                           .normalised = hp->router_normalised,
                           .scale = hp->router_scale,
                           .n_groups = hp->n_expert_groups,
                           .n_groups_used = hp->n_expert_groups_used,
                           .factors = b->vector[SN_ROLE_ROUTER_FACTORS],
                           .sum_offset = hp->router_offset};
}

/* weights: those of the outputs. */
static sn_moe_selection moe_selection_of(const sn_hparams *hp, int n, const moe_buffers *m) {
    return (sn_moe_selection){n, hp->n_experts, hp->n_experts_used, m->ids,
                              hp->experts_scale_input ? NULL : m->weights};
}

static const sn_experts *moe_experts(const sn_block *b, sn_role role) {
    return &b->experts[role - SN_ROLE_EXPERTS_GATE];
}

/* logits (n, n_experts) = u Wr^T + br; ids (n, k): the chosen experts of a row; weights (n, k) */
static sn_status moe_route(const sn_block *b, sn_device *d, const sn_hparams *hp, int n, const sn_half_input *input,
                           const moe_buffers *m, sn_err *err) {
    const sn_moe_router router = moe_router_of(b, hp);
    const sn_linear logits = {&b->matrix[SN_ROLE_ROUTER], b->vector[SN_ROLE_ROUTER_BIAS], m->logits, true};
    SN_TRY(sn_half_linear(d, n, input, 1, &logits, err));
    return d->ops->moe_gate(d, n, &router, m->logits, m->ids, m->weights, err);
}

/* expert_out = the outputs of the selected experts for u (n, sn_expert_width), of the pairs that have one */
static sn_status moe_run_selected(const sn_block *b, sn_device *d, const sn_hparams *hp,
                                  const sn_moe_selection *selected, const float *u, const moe_buffers *m, sn_err *err) {
    const sn_device_ops *ops = d->ops;
    int n = selected->n;
    /* of each chosen expert e: gate, up (n, k, n_ff) = u Wgate_e^T + bgate_e, u Wup_e^T + bup_e; without gates gate = u
     * Wup_e^T */
    const bool gated = moe_experts(b, SN_ROLE_EXPERTS_GATE)->n;
    const sn_moe_linear gate_up[] = {
        {moe_experts(b, SN_ROLE_EXPERTS_UP), b->vector[SN_ROLE_EXPERTS_UP_BIAS], gated ? m->up : m->gate},
        {moe_experts(b, SN_ROLE_EXPERTS_GATE), b->vector[SN_ROLE_EXPERTS_GATE_BIAS], m->gate}};
    SN_TRY(ops->moe_linear(d, selected, false, u, gated ? 2 : 1, gate_up, err));
    /* experts_scale_input: gate, up of weight * u, by way of what these matrices give, which have no biases then */
    int pairs = n * selected->k;
    if (hp->experts_scale_input) {
        SN_TRY(ops->scale(d, pairs, hp->n_ff, m->gate, 1, m->weights, m->gate, err));
        SN_TRY(ops->scale(d, pairs, hp->n_ff, m->up, 1, m->weights, m->up, err));
    }
    /* act (n, k, n_ff) = activation(gate) * up;  expert_out (n, k, width) = act Wdown_e^T + bdown_e */
    const sn_gated act = {hp->activation, m->gate, gated ? m->up : NULL, m->act};
    const sn_moe_linear down = {moe_experts(b, SN_ROLE_EXPERTS_DOWN), b->vector[SN_ROLE_EXPERTS_DOWN_BIAS],
                                m->expert_out};
    if (!(m->limit > 0)) return ops->activate_moe_linear(d, selected, &act, &down, err);
    SN_TRY(sn_activate_limited(d, (size_t)pairs * (size_t)hp->n_ff, &act, m->limit, err));
    return ops->moe_linear(d, selected, true, m->act, 1, &down, err);
}

/* -- experts that rest elsewhere */

/* foreseen (host): what the rows would choose in the next block with slots if this one's experts added nothing. The
 * buffers are those that the experts of this block need later. */
static sn_status moe_foresee_next(const sn_block *next, const sn_forward_pass *p, int32_t *foreseen, sn_err *err) {
    const sn_scratch *s = p->scratch;
    const sn_role norm = next->vector[SN_ROLE_ROUTER_NORM] ? SN_ROLE_ROUTER_NORM : SN_ROLE_FFN_NORM;
    const sn_half_input input = sn_half_input_of(next, p, norm, s->x, NULL, s->expert_out);
    size_t pairs = (size_t)p->n_rows * (size_t)p->hp->n_experts_used;
    moe_buffers m = {.logits = s->gate, .weights = s->up, .ids = (int32_t *)(void *)(s->up + pairs)};
    SN_TRY(moe_route(next, p->device, p->hp, p->n_rows, &input, &m, err));
    SN_TRY(p->device->ops->download(p->device, foreseen, m.ids, pairs * sizeof *foreseen, err));
    for (size_t i = 0; i < pairs; i++) foreseen[i] -= next->held.first;
    return SN_OK;
}

/* Whether foreseeing is worth its time: a prompt's rows choose most experts, and all that have room are there anyway.
 */
static bool moe_should_foresee(const sn_block *next, const sn_forward_pass *p) {
    const sn_hparams *hp = p->hp;
    return next && p->n_rows * hp->n_experts_used <= sn_expert_slots_n(next->slots) &&
           sn_expert_slots_n(next->slots) < sn_n_held(next->held) && hp->n_experts <= hp->n_ff * hp->n_experts_used &&
           2 <= hp->n_ff;
}

/* expert_out = the outputs of the experts in ids, host, (n, k), numbered from held.first on: all at once, or wave after
 * wave as they are brought to the block's slots. Pairs below 0 are left out. m->slots is overwritten. */
static sn_status moe_run_held(const sn_block *b, const sn_forward_pass *p, int k, const int32_t *ids, const float *u,
                              const moe_buffers *m, sn_err *err) {
    sn_device *d = p->device;
    int pairs = p->n_rows * k;
    size_t bytes = (size_t)pairs * sizeof *ids;
    sn_moe_selection selected = {.n = p->n_rows, .n_experts = sn_n_held(b->held), .k = k, .ids = m->slots};
    if (!b->slots) {
        SN_TRY(d->ops->upload(d, m->slots, ids, bytes, err));
        return moe_run_selected(b, d, p->hp, &selected, u, m, err);
    }
    sn_expert_carrier *c = sn_expert_slots_carrier(b->slots);
    bool foresees = moe_should_foresee(b->next, p), any = true;
    selected.n_experts = sn_expert_slots_n(b->slots);
    SN_TRY(sn_expert_slots_begin(b->slots, pairs, ids, err));
    if (foresees) SN_TRY(moe_foresee_next(b->next, p, c->foreseen, err));
    if (foresees) SN_TRY(sn_expert_slots_expect(b->next->slots, pairs, c->foreseen, err));
    for (;;) {
        SN_TRY(sn_expert_slots_next(b->slots, pairs, ids, c->slots, &any, err));
        if (!any) return SN_OK;
        SN_TRY(d->ops->upload(d, m->slots, c->slots, bytes, err));
        SN_TRY(moe_run_selected(b, d, p->hp, &selected, u, m, err));
    }
}

/* ids (host) = m->ids, checked. */
static sn_status moe_download_ids(const sn_forward_pass *p, const moe_buffers *m, int32_t *ids, sn_err *err) {
    int pairs = p->n_rows * p->hp->n_experts_used;
    SN_TRY(p->device->ops->download(p->device, ids, m->ids, (size_t)pairs * sizeof *ids, err));
    for (int i = 0; i < pairs; i++)
        if (ids[i] < 0 || ids[i] >= p->hp->n_experts)
            return sn_fail(err, SN_STOP, "the device chose expert %d of %d", (int)ids[i], p->hp->n_experts);
    return SN_OK;
}

/* -- experts that the span does not hold */

/* Copies a row from outside (host) to the device. */
static sn_status moe_bring_row(const sn_forward_pass *p, const float *row, float *to, sn_err *err) {
    const int64_t shape[] = {1, sn_expert_width(p->hp)};
    const sn_tensor x = {
        .name = "rows of experts", .data = row, .dtype = SN_F32, .rank = 2, .shape = {shape[0], shape[1]}};
    return sn_guard(&x, p->device, 2, shape, to, NULL, err);
}

/* Sends the pairs in split->others to the exchange. */
static sn_status moe_begin_others(const sn_forward_pass *p, const float *u, sn_err *err) {
    const sn_expert_split *x = p->split;
    const sn_expert_request request = {.block = p->number,
                                       .n = p->n_rows,
                                       .n_embd = sn_expert_width(p->hp),
                                       .k = p->hp->n_experts_used,
                                       .rows = x->rows ? x->rows : u,
                                       .ids = x->others};
    size_t bytes = (size_t)p->n_rows * (size_t)sn_expert_width(p->hp) * sizeof *u;
    if (!x->exchange)
        return sn_fail(err, SN_RETRY, "block %d chose experts that this span does not hold, and no other is asked",
                       p->number);
    if (x->rows) SN_TRY(p->device->ops->download(p->device, x->rows, u, bytes, err));
    return x->exchange->begin(x->exchange->self, &request, err);
}

/* Writes the outputs that the exchange brings to their places in expert_out. */
static sn_status moe_finish_others(const sn_forward_pass *p, float *expert_out, sn_err *err) {
    const sn_expert_split *x = p->split;
    size_t width = (size_t)sn_expert_width(p->hp), pairs = (size_t)(p->n_rows * p->hp->n_experts_used);
    SN_TRY(x->exchange->finish(x->exchange->self, x->out ? x->out : expert_out, err));
    for (size_t i = 0; i < pairs && x->out; i++)
        if (x->others[i] >= 0) SN_TRY(moe_bring_row(p, x->out + i * width, expert_out + i * width, err));
    return SN_OK;
}

/* expert_out = the outputs of the chosen experts: own ones are computed while others compute theirs. */
static sn_status moe_run_split(const sn_block *b, const sn_forward_pass *p, const float *u, const moe_buffers *m,
                               sn_err *err) {
    const sn_expert_split *x = p->split;
    int k = p->hp->n_experts_used;
    bool any = false;
    SN_TRY(moe_download_ids(p, m, x->own, err));
    for (int i = 0; i < p->n_rows * k; i++) {
        int id = x->own[i];
        bool own = id >= b->held.first && id < b->held.end;
        any |= !own;
        x->own[i] = own ? id - b->held.first : -1;
        x->others[i] = own ? -1 : id;
    }
    if (any) SN_TRY(moe_begin_others(p, u, err));
    sn_status status = moe_run_held(b, p, k, x->own, u, m, err);
    if (any && status) (void)x->exchange->finish(x->exchange->self, NULL, NULL);
    return any && !status ? moe_finish_others(p, m->expert_out, err) : status;
}

/* -- pairs for other spans */

/* order = the pairs that have an expert, those of each expert together in the order of their rows; returns how many. */
static int moe_order_pairs(const sn_expert_request *request, sn_pair_place *order) {
    int next[SN_MODEL_EXPERTS_MAX + 1] = {0}, n = 0; /* next[e]: where the next pair of expert e goes */
    const int32_t *ids = request->ids;
    for (int i = 0; i < request->n * request->k; i++)
        if (ids[i] >= 0) next[ids[i] + 1]++;
    for (int e = 0; e < SN_MODEL_EXPERTS_MAX; e++) next[e + 1] += next[e];
    for (int i = 0; i < request->n * request->k; i++)
        if (ids[i] >= 0) order[next[ids[i]]++] = (sn_pair_place){i, n++};
    return n;
}

/* How many of n ordered pairs are computed at once: a GPU's way through an expert depends on how many pairs it has, so
 * none is cut that has no more of them than a batch. */
static int moe_pairs_at_once(const int32_t *ids, const sn_pair_place *order, int n) {
    if (n <= SN_SPAN_ROWS) return n;
    int whole = SN_SPAN_ROWS;
    while (whole > 0 && ids[order[whole].pair] == ids[order[whole - 1].pair]) whole--;
    return whole ? whole : SN_SPAN_ROWS;
}

static void moe_swap_rows(float *a, float *b, size_t width) {
    for (size_t i = 0; i < width; i++) {
        float x = a[i];
        a[i] = b[i], b[i] = x;
    }
}

/* Moves row i of out (n, width) to order[i].place, for all i. */
static void moe_place_pairs(sn_pair_place *order, int n, size_t width, float *out) {
    for (int i = 0; i < n; i++)
        while (order[i].place != i) {
            const int at = order[i].place;
            moe_swap_rows(out + (size_t)i * width, out + (size_t)at * width, width);
            order[i].place = order[at].place;
            order[at].place = at;
        }
}

/* The pairs are rows of their own, of one expert each: what a row's other experts would take is not wasted on them. */
sn_status sn_moe_run_pairs(const sn_block *block, const sn_forward_pass *pass, const sn_expert_request *request,
                           float *out, sn_err *err) {
    const sn_scratch *s = pass->scratch;
    sn_device *d = pass->device;
    sn_forward_pass p = *pass;
    sn_block alone = *block;
    moe_buffers m = {.slots = (int32_t *)(void *)s->pair_ids,
                     .gate = s->gate,
                     .up = s->up,
                     .act = s->gate,
                     .limit = pass->hp->ff_limit[request->block]};
    int32_t *own = pass->split->own;
    sn_pair_place *order = pass->split->order;
    const size_t width = (size_t)sn_expert_width(pass->hp);
    const int n = moe_order_pairs(request, order);
    m.expert_out = s->pair_rows; /* an expert's input is not needed any more when its output is written */
    alone.next = NULL;           /* other spans foresee nothing */
    for (int at = 0; at < n; at += p.n_rows) {
        p.n_rows = moe_pairs_at_once(request->ids, order + at, n - at);
        for (int i = 0; i < p.n_rows; i++) {
            const int pair = order[at + i].pair;
            SN_TRY(moe_bring_row(pass, request->rows + (size_t)(pair / request->k) * width,
                                 s->pair_rows + (size_t)i * width, err));
            own[i] = request->ids[pair] - block->held.first;
        }
        SN_TRY(moe_run_held(&alone, &p, 1, own, s->pair_rows, &m, err));
        SN_TRY(
            d->ops->download(d, out + (size_t)at * width, s->pair_rows, (size_t)p.n_rows * width * sizeof *out, err));
    }
    moe_place_pairs(order, n, width, out);
    return SN_OK;
}

/* -- the shared expert */

/* Where the activations of the shared expert lie; out is its output before it is weighed, weight what it is multiplied
 * by, the sigmoid of logit. */
typedef struct shared_buffers {
    float *gate, *up, *act; /* (n, n_ff_shared); act may be gate */
    float *logit, *weight;  /* (n); weight may be logit */
    float *out;             /* (n, n_embd) */
    float limit;            /* of the activation: dense_limit of the block */
} shared_buffers;

/* gate and up of the shared expert for u (n, n_embd), and its weight. */
static sn_status shared_inner(const sn_block *b, sn_device *d, const sn_hparams *hp, int n, const sn_half_input *input,
                              const shared_buffers *m, sn_err *err) {
    const bool gated = b->matrix[SN_ROLE_SHARED_GATE].rows;
    const sn_linear gate_up[] = {
        {.weight = &b->matrix[SN_ROLE_SHARED_UP], .y = gated ? m->up : m->gate, .high_precision = true},
        {.weight = &b->matrix[SN_ROLE_SHARED_GATE], .y = m->gate, .high_precision = true}};
    const sn_linear logit = {.weight = &b->matrix[SN_ROLE_SHARED_ROUTER], .y = m->logit, .high_precision = true};
    SN_TRY(sn_half_linear(d, n, input, gated ? 2 : 1, gate_up, err));
    if (!hp->shared_gated) return SN_OK;
    SN_TRY(d->ops->linear(d, n, input->u, 1, &logit, err));
    return d->ops->activate(d, (size_t)n, SN_SIGMOID, m->logit, NULL, m->weight, err);
}

/* act = activation(gate) * up;  out = act Wdown^T */
static sn_status shared_down(const sn_block *b, sn_device *d, const sn_hparams *hp, int n, const shared_buffers *m,
                             sn_err *err) {
    const float *up = b->matrix[SN_ROLE_SHARED_GATE].rows ? m->up : NULL;
    const sn_gated act = {hp->activation, m->gate, up, m->act};
    const sn_linear down = {.weight = &b->matrix[SN_ROLE_SHARED_DOWN], .y = m->out, .high_precision = true};
    if (!(m->limit > 0)) return d->ops->activate_linear(d, n, &act, &down, err);
    SN_TRY(sn_activate_limited(d, (size_t)n * (size_t)hp->n_ff_shared, &act, m->limit, err));
    return d->ops->linear(d, n, m->act, 1, &down, err);
}

/* out (n, n_embd) = weight * (act Wdown^T), of u (n, n_embd) */
static sn_status shared_forward(const sn_block *b, sn_device *d, const sn_hparams *hp, int n,
                                const sn_half_input *input, const shared_buffers *m, sn_err *err) {
    SN_TRY(shared_inner(b, d, hp, n, input, m, err));
    SN_TRY(shared_down(b, d, hp, n, m, err));
    return hp->shared_gated ? d->ops->scale(d, n, hp->n_embd, m->out, 1, m->weight, m->out, err) : SN_OK;
}

/* Buffers of a backward pass that are free while the shared expert needs them. */
static shared_buffers shared_buffers_of(const sn_backward_pass *p) {
    const sn_grad_scratch *s = p->scratch;
    return (shared_buffers){.gate = s->dgate,
                            .up = s->dup,
                            .act = s->act,
                            .logit = s->dexpert_weights,
                            .weight = s->shared_weight,
                            .out = s->shared_out};
}

/* scratch->dh += the gradient of u, from d_added. With y = w o, o = act Wdown^T: dw = d_added . o, do = w d_added. */
static sn_status shared_backward(const sn_block *b, const sn_backward_pass *p, const float *u, const float *d_added,
                                 sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const shared_buffers m = shared_buffers_of(p);
    const float *d_out = d_added;
    float *dh = p->scratch->dh, *dlogit = p->scratch->dlogits;
    int n = p->sequence->n_rows;
    const sn_half_input input = sn_half_input_at(u);
    SN_TRY(shared_inner(b, d, hp, n, &input, &m, err));
    if (hp->shared_gated) {
        SN_TRY(shared_down(b, d, hp, n, &m, err));
        SN_TRY(ops->dot_rows(d, n, hp->n_embd, d_added, m.out, dlogit, err));
        SN_TRY(ops->activate_grad(d, (size_t)n, SN_SIGMOID, m.logit, NULL, dlogit, dlogit, NULL, err));
        SN_TRY(ops->linear_input_grad(d, n, dlogit, &b->matrix[SN_ROLE_SHARED_ROUTER], true, dh, err));
        SN_TRY(ops->scale(d, n, hp->n_embd, d_added, 1, m.weight, m.out, err));
        d_out = m.out;
    }
    SN_TRY(ops->linear_input_grad(d, n, d_out, &b->matrix[SN_ROLE_SHARED_DOWN], false, m.act, err));
    SN_TRY(ops->activate_grad(d, (size_t)n * (size_t)hp->n_ff_shared, hp->activation, m.gate, m.up, m.act, m.gate, m.up,
                              err));
    SN_TRY(ops->linear_input_grad(d, n, m.gate, &b->matrix[SN_ROLE_SHARED_GATE], true, dh, err));
    return ops->linear_input_grad(d, n, m.up, &b->matrix[SN_ROLE_SHARED_UP], true, dh, err);
}

/* -- the mixture */

/* -- experts on another device */

/* out (n, sn_expert_width) = the sum over k of weights * expert_out, where another device computes the experts. */
static sn_status moe_run_apart(const sn_block *b, const sn_forward_pass *p, const float *u, const moe_buffers *m,
                               float *out, sn_err *err) {
    const sn_experts_apart *a = b->apart;
    const sn_hparams *hp = p->hp;
    sn_device *own = p->device, *other = a->device;
    const int64_t shape[] = {p->n_rows, sn_expert_width(hp)};
    const size_t bytes = (size_t)p->n_rows * (size_t)hp->n_experts_used * sizeof(float);
    sn_tensor x = {.name = "hidden states", .dtype = SN_F32, .rank = 2, .shape = {shape[0], shape[1]}};
    moe_buffers there = moe_buffers_at(hp, p->n_rows, a->scratch->router_out);
    there.gate = a->scratch->gate, there.up = a->scratch->up, there.act = a->scratch->gate;
    there.expert_out = a->scratch->expert_out;
    there.limit = m->limit;
    const sn_moe_selection selection = moe_selection_of(hp, p->n_rows, &there);
    SN_TRY(own->ops->download(own, a->ids, m->ids, bytes, err));
    SN_TRY(own->ops->download(own, a->weights, m->weights, bytes, err));
    SN_TRY(other->ops->upload(other, there.ids, a->ids, bytes, err));
    SN_TRY(other->ops->upload(other, there.weights, a->weights, bytes, err));
    x.device = own, x.data = u;
    SN_TRY(sn_guard(&x, other, 2, shape, a->scratch->h, p->moved, err));
    SN_TRY(moe_run_selected(&a->block, other, hp, &selection, a->scratch->h, &there, err));
    SN_TRY(other->ops->moe_combine(other, &selection, sn_expert_width(hp), there.expert_out, a->scratch->x, err));
    x.device = other, x.data = a->scratch->x;
    return sn_guard(&x, own, 2, shape, out, p->moved, err);
}

/* expert_out = the outputs of the chosen experts, from wherever these are. */
static sn_status moe_run_chosen(const sn_block *b, const sn_forward_pass *p, const float *u, const moe_buffers *m,
                                sn_err *err) {
    const sn_moe_selection selection = moe_selection_of(p->hp, p->n_rows, m);
    if (sn_block_is_partial(b, p->hp)) return moe_run_split(b, p, u, m, err);
    if (!b->slots) return moe_run_selected(b, p->device, p->hp, &selection, u, m, err);
    int32_t *ids = sn_expert_slots_carrier(b->slots)->ids;
    SN_TRY(moe_download_ids(p, m, ids, err));
    return moe_run_held(b, p, p->hp->n_experts_used, ids, u, m, err);
}

/* dense_beside, once the shared expert has its output: that is normed; what the experts take is in h, and `router` is
 * what the router takes, which is to be made where the experts' outputs will be. Both are norms of x. */
static sn_status moe_make_inputs(const sn_block *b, const sn_forward_pass *p, sn_half_input *router, sn_err *err) {
    const sn_scratch *s = p->scratch;
    SN_TRY(sn_block_norm(b, p, SN_ROLE_SHARED_POST_NORM, s->shared_out, s->shared_out, err));
    SN_TRY(sn_block_norm(b, p, SN_ROLE_EXPERTS_NORM, s->x, s->h, err));
    *router = sn_half_input_of(b, p, SN_ROLE_ROUTER_NORM, s->x, NULL, s->expert_out);
    return SN_OK;
}

sn_status sn_moe_forward(const sn_block *b, const sn_forward_pass *p, const sn_half_input *input, sn_err *err) {
    const sn_scratch *s = p->scratch;
    const sn_hparams *hp = p->hp;
    const shared_buffers shared = {
        s->gate, s->up, s->gate, s->router_out, s->router_out, s->shared_out, hp->dense_limit[p->number]};
    moe_buffers m = moe_buffers_at(hp, p->n_rows, s->router_out);
    m.gate = s->gate, m.up = s->up, m.act = s->gate, m.expert_out = s->expert_out;
    m.limit = hp->ff_limit[p->number];
    const float *u = input->u;
    sn_half_input made = sn_half_input_at(u);
    if (hp->n_ff_shared) SN_TRY(shared_forward(b, p->device, hp, p->n_rows, input, &shared, err));
    if (hp->dense_beside) SN_TRY(moe_make_inputs(b, p, &made, err));
    SN_TRY(moe_route(b, p->device, hp, p->n_rows, hp->n_ff_shared ? &made : input, &m, err));
    const sn_moe_selection selection = moe_selection_of(hp, p->n_rows, &m);
    /* narrow (n, experts_width) = u Wnarrow^T enters the experts of some families instead of u */
    const sn_linear narrow = {&b->matrix[SN_ROLE_EXPERTS_NARROW], NULL, s->narrow, true},
                    widen = {&b->matrix[SN_ROLE_EXPERTS_WIDEN], NULL, s->h, true};
    float *sum = hp->experts_width ? s->narrow : s->h;
    if (hp->experts_width) SN_TRY(p->device->ops->linear(p->device, p->n_rows, u, 1, &narrow, err));
    if (hp->experts_width) u = s->narrow;
    if (b->apart) {
        SN_TRY(moe_run_apart(b, p, u, &m, sum, err));
    } else {
        SN_TRY(moe_run_chosen(b, p, u, &m, err));
        /* h (n, n_embd) = the sum over k of weights * expert_out, or what is made of that, then shared_out */
        SN_TRY(p->device->ops->moe_combine(p->device, &selection, sn_expert_width(hp), m.expert_out, sum, err));
    }
    if (hp->experts_width) SN_TRY(p->device->ops->linear(p->device, p->n_rows, sum, 1, &widen, err));
    if (hp->dense_beside) SN_TRY(sn_block_norm(b, p, SN_ROLE_EXPERTS_POST_NORM, s->h, s->h, err));
    size_t n_out = (size_t)p->n_rows * (size_t)hp->n_embd;
    return hp->n_ff_shared ? p->device->ops->add(p->device, n_out, s->h, s->shared_out, err) : SN_OK;
}

static moe_buffers moe_buffers_of(const sn_backward_pass *p) {
    const sn_grad_scratch *s = p->scratch;
    return (moe_buffers){.logits = s->logits,
                         .weights = s->expert_weights,
                         .ids = (int32_t *)(void *)s->expert_ids,
                         .gate = s->gate,
                         .up = s->up,
                         .act = s->act,
                         .expert_out = s->expert_out};
}

sn_status sn_moe_recompute(const sn_block *b, const sn_backward_pass *p, const sn_half_input *input, sn_err *err) {
    const moe_buffers m = moe_buffers_of(p);
    const sn_moe_selection selection = moe_selection_of(p->hp, p->sequence->n_rows, &m);
    SN_TRY(moe_route(b, p->device, p->hp, p->sequence->n_rows, input, &m, err));
    return moe_run_selected(b, p->device, p->hp, &selection, input->u, &m, err);
}

sn_status sn_moe_combine(const sn_block *b, const sn_backward_pass *p, const float *u, float *added, sn_err *err) {
    sn_device *d = p->device;
    const moe_buffers m = moe_buffers_of(p);
    const shared_buffers shared = shared_buffers_of(p);
    const sn_half_input input = sn_half_input_at(u);
    int n = p->sequence->n_rows;
    const sn_moe_selection selection = moe_selection_of(p->hp, n, &m);
    SN_TRY(d->ops->moe_combine(d, &selection, p->hp->n_embd, m.expert_out, added, err));
    if (!p->hp->n_ff_shared) return SN_OK;
    SN_TRY(shared_forward(b, d, p->hp, n, &input, &shared, err));
    return d->ops->add(d, (size_t)n * (size_t)p->hp->n_embd, added, shared.out, err);
}

/* Through gate = w g and up = w u, of which m has the products: dg = w dgate, du = w dup, w dw = dgate . gate + dup .
 * up. The latter is what moe_gate_grad makes of dweights, and w never divides. */
static sn_status moe_scaled_input_backward(sn_device *d, const sn_hparams *hp, int n, const moe_buffers *m,
                                           const sn_grad_scratch *s, sn_err *err) {
    const sn_device_ops *ops = d->ops;
    int pairs = n * hp->n_experts_used;
    float *dots = s->dexpert_out; /* (n, k): it is not needed any more */
    SN_TRY(ops->dot_rows(d, pairs, hp->n_ff, s->dgate, m->gate, s->dexpert_weights, err));
    SN_TRY(ops->dot_rows(d, pairs, hp->n_ff, s->dup, m->up, dots, err));
    SN_TRY(ops->add(d, (size_t)pairs, s->dexpert_weights, dots, err));
    SN_TRY(ops->scale(d, pairs, hp->n_ff, s->dgate, 1, m->weights, s->dgate, err));
    return ops->scale(d, pairs, hp->n_ff, s->dup, 1, m->weights, s->dup, err);
}

sn_status sn_moe_backward(const sn_block *b, const sn_backward_pass *p, const float *u, const float *d_added,
                          sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    const moe_buffers m = moe_buffers_of(p);
    int n = p->sequence->n_rows;
    const sn_moe_router router = moe_router_of(b, hp);
    const sn_moe_selection selection = moe_selection_of(hp, n, &m);
    size_t n_act = (size_t)n * (size_t)hp->n_experts_used * (size_t)hp->n_ff;
    /* through the weighted sum: dexpert_out (n, k, n_embd), dexpert_weights (n, k) */
    SN_TRY(ops->moe_combine_grad(d, &selection, hp->n_embd, m.expert_out, d_added, s->dexpert_out, s->dexpert_weights,
                                 err));
    /* through the experts: dup, dgate (n, k, n_ff), then dh (n, n_embd) */
    SN_TRY(ops->moe_linear_grad(d, &selection, true, s->dexpert_out, moe_experts(b, SN_ROLE_EXPERTS_DOWN), false,
                                s->dup, err));
    SN_TRY(ops->activate_grad(d, n_act, hp->activation, s->gate, s->up, s->dup, s->dgate, s->dup, err));
    if (hp->experts_scale_input) SN_TRY(moe_scaled_input_backward(d, hp, n, &m, s, err));
    SN_TRY(
        ops->moe_linear_grad(d, &selection, false, s->dgate, moe_experts(b, SN_ROLE_EXPERTS_GATE), false, s->dh, err));
    SN_TRY(ops->moe_linear_grad(d, &selection, false, s->dup, moe_experts(b, SN_ROLE_EXPERTS_UP), true, s->dh, err));
    /* through the router: dlogits (n, n_experts), added to dh */
    SN_TRY(ops->moe_gate_grad(d, &selection, &router, m.logits, s->dexpert_weights, s->dlogits, err));
    SN_TRY(ops->linear_input_grad(d, n, s->dlogits, &b->matrix[SN_ROLE_ROUTER], true, s->dh, err));
    return hp->n_ff_shared ? shared_backward(b, p, u, d_added, err) : SN_OK;
}

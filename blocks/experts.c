#include "blocks/experts.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        sn_status status_ = (call);                                                                                    \
        if (status_) return status_;                                                                                   \
    } while (0)

_Static_assert((int)SN_MODEL_EXPERTS_MAX <= (int)SN_EXPERTS_MAX && (int)SN_MODEL_EXPERTS_USED_MAX <= (int)SN_EXPERTS_USED_MAX,
               "a device chooses among as many experts as a model may have");

/* What a mixture's forward writes, there or on the way back. */
typedef struct between {
    float *logits, *weights;       /* (n, n_experts), (n, used) */
    int32_t *ids;                  /* (n, used) */
    float *gate, *up, *act, *each; /* (n, used, n_ff), and (n, used, n_embd): what the chosen experts give */
} between;

static between in_chosen(const sn_hparams *hp, int n, float *chosen) {
    float *weights = chosen + (size_t)n * (size_t)hp->n_experts, *ids = weights + (size_t)n * (size_t)hp->n_experts_used;
    return (between){.logits = chosen, .weights = weights, .ids = (int32_t *)(void *)ids};
}

static sn_choice choice_of(const sn_hparams *hp, int n, const between *m) {
    return (sn_choice){n, hp->n_experts, hp->n_experts_used, m->ids, m->weights};
}

static const sn_experts *experts_of(const sn_block *b, sn_role role) { return &b->experts[role - SN_ROLE_EXPERTS_GATE]; }

/* each = what the chosen experts give for u */
static sn_status run(const sn_block *b, sn_device *d, const sn_hparams *hp, int n, const float *u, const between *m,
                     sn_err *err) {
    const sn_device_ops *ops = d->ops;
    const sn_choice choice = choice_of(hp, n, m);
    /* logits = u Wr^T (+ bias); the largest of a row are its experts, their softmax the weights */
    const sn_linear router = {&b->matrix[SN_ROLE_ROUTER], b->vector[SN_ROLE_ROUTER_BIAS], m->logits, true};
    TRY(ops->linear(d, n, u, 1, &router, err));
    TRY(ops->route(d, n, hp->n_experts, hp->n_experts_used, hp->experts_over_all, m->logits, m->ids, m->weights, err));
    /* each expert e of a row: (activation(u We_gate^T) * (u We_up^T)) We_down^T (+ biases of its own) */
    const sn_routed gate_up[] = {{experts_of(b, SN_ROLE_EXPERTS_GATE), b->vector[SN_ROLE_EXPERTS_GATE_BIAS], m->gate},
                                 {experts_of(b, SN_ROLE_EXPERTS_UP), b->vector[SN_ROLE_EXPERTS_UP_BIAS], m->up}};
    const sn_routed down = {experts_of(b, SN_ROLE_EXPERTS_DOWN), b->vector[SN_ROLE_EXPERTS_DOWN_BIAS], m->each};
    size_t n_act = (size_t)n * (size_t)hp->n_experts_used * (size_t)hp->n_ff;
    TRY(ops->linear_routed(d, &choice, false, u, 2, gate_up, err));
    TRY(ops->activate(d, n_act, hp->activation, m->gate, m->up, m->act, err));
    return ops->linear_routed(d, &choice, true, m->act, 1, &down, err);
}

sn_status sn_experts_forward(const sn_block *b, const sn_block_pass *p, const float *u, sn_err *err) {
    const sn_scratch *s = p->scratch;
    between m = in_chosen(p->hp, p->n_rows, s->chosen);
    m.gate = s->gate, m.up = s->up, m.act = s->gate, m.each = s->each;
    TRY(run(b, p->device, p->hp, p->n_rows, u, &m, err));
    /* h = the sum of these by their weights */
    const sn_choice choice = choice_of(p->hp, p->n_rows, &m);
    return p->device->ops->combine(p->device, &choice, p->hp->n_embd, m.each, s->h, err);
}

static between again_in(const sn_grad_pass *p) {
    const sn_grad_scratch *s = p->scratch;
    between m = in_chosen(p->hp, p->sequence->n_rows, s->chosen);
    m.gate = s->gate, m.up = s->up, m.act = s->act, m.each = s->each;
    return m;
}

sn_status sn_experts_again(const sn_block *b, const sn_grad_pass *p, const float *u, sn_err *err) {
    const between m = again_in(p);
    return run(b, p->device, p->hp, p->sequence->n_rows, u, &m, err);
}

sn_status sn_experts_sum(const sn_grad_pass *p, float *added, sn_err *err) {
    const between m = again_in(p);
    const sn_choice choice = choice_of(p->hp, p->sequence->n_rows, &m);
    return p->device->ops->combine(p->device, &choice, p->hp->n_embd, m.each, added, err);
}

sn_status sn_experts_back(const sn_block *b, const sn_grad_pass *p, const float *d_added, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    const between m = again_in(p);
    int n = p->sequence->n_rows;
    const sn_choice choice = choice_of(hp, n, &m);
    size_t n_act = (size_t)n * (size_t)hp->n_experts_used * (size_t)hp->n_ff;
    /* through the sum: to what each expert gave, and to the weights */
    TRY(ops->combine_grad(d, &choice, hp->n_embd, m.each, d_added, s->deach, s->dchosen, err));
    /* through the experts */
    TRY(ops->linear_routed_grad(d, &choice, true, s->deach, experts_of(b, SN_ROLE_EXPERTS_DOWN), false, s->dup, err));
    TRY(ops->activate_grad(d, n_act, hp->activation, s->gate, s->up, s->dup, s->dgate, s->dup, err));
    TRY(ops->linear_routed_grad(d, &choice, false, s->dgate, experts_of(b, SN_ROLE_EXPERTS_GATE), false, s->dh, err));
    TRY(ops->linear_routed_grad(d, &choice, false, s->dup, experts_of(b, SN_ROLE_EXPERTS_UP), true, s->dh, err));
    /* through the router */
    TRY(ops->route_grad(d, &choice, hp->experts_over_all, m.logits, s->dchosen, s->dlogits, err));
    return ops->linear_grad(d, n, s->dlogits, &b->matrix[SN_ROLE_ROUTER], true, s->dh, err);
}

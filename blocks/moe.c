#include "blocks/moe.h"

_Static_assert((int)SN_MODEL_EXPERTS_MAX <= (int)SN_EXPERTS_MAX &&
                   (int)SN_MODEL_EXPERTS_USED_MAX <= (int)SN_EXPERTS_USED_MAX,
               "a device supports as many experts as a model may have");

/* Where the intermediate activations of a forward or backward pass lie. */
typedef struct moe_buffers {
    float *logits, *weights; /* (n, n_experts), (n, k) */
    int32_t *ids;            /* (n, k): the chosen experts */
    float *gate, *up, *act;  /* (n, k, n_ff) */
    float *expert_out;       /* (n, k, n_embd) */
} moe_buffers;

static moe_buffers moe_buffers_at(const sn_hparams *hp, int n, float *router_out) {
    float *weights = router_out + (size_t)n * (size_t)hp->n_experts,
          *ids = weights + (size_t)n * (size_t)hp->n_experts_used;
    return (moe_buffers){.logits = router_out, .weights = weights, .ids = (int32_t *)(void *)ids};
}

static sn_moe_selection moe_selection_of(const sn_hparams *hp, int n, const moe_buffers *m) {
    return (sn_moe_selection){n, hp->n_experts, hp->n_experts_used, m->ids, m->weights};
}

static const sn_experts *moe_experts(const sn_block *b, sn_role role) {
    return &b->experts[role - SN_ROLE_EXPERTS_GATE];
}

/* expert_out = the outputs of the chosen experts for u (n, n_embd) */
static sn_status moe_run_experts(const sn_block *b, sn_device *d, const sn_hparams *hp, int n, const float *u,
                                 const moe_buffers *m, sn_err *err) {
    const sn_device_ops *ops = d->ops;
    const sn_moe_selection selection = moe_selection_of(hp, n, m);
    /* logits (n, n_experts) = u Wr^T + br; ids (n, k): the k largest of a row; weights (n, k): their softmax */
    const sn_linear router = {&b->matrix[SN_ROLE_ROUTER], b->vector[SN_ROLE_ROUTER_BIAS], m->logits, true};
    SN_TRY(ops->linear(d, n, u, 1, &router, err));
    SN_TRY(ops->moe_gate(d, n, hp->n_experts, hp->n_experts_used, hp->experts_over_all, m->logits, m->ids, m->weights,
                         err));
    /* of each chosen expert e: gate, up (n, k, n_ff) = u Wgate_e^T + bgate_e, u Wup_e^T + bup_e */
    const sn_moe_linear gate_up[] = {
        {moe_experts(b, SN_ROLE_EXPERTS_GATE), b->vector[SN_ROLE_EXPERTS_GATE_BIAS], m->gate},
        {moe_experts(b, SN_ROLE_EXPERTS_UP), b->vector[SN_ROLE_EXPERTS_UP_BIAS], m->up}};
    SN_TRY(ops->moe_linear(d, &selection, false, u, 2, gate_up, err));
    /* act (n, k, n_ff) = activation(gate) * up */
    size_t n_act = (size_t)n * (size_t)hp->n_experts_used * (size_t)hp->n_ff;
    SN_TRY(ops->activate(d, n_act, hp->activation, m->gate, m->up, m->act, err));
    /* expert_out (n, k, n_embd) = act Wdown_e^T + bdown_e */
    const sn_moe_linear down = {moe_experts(b, SN_ROLE_EXPERTS_DOWN), b->vector[SN_ROLE_EXPERTS_DOWN_BIAS],
                                m->expert_out};
    return ops->moe_linear(d, &selection, true, m->act, 1, &down, err);
}

sn_status sn_moe_forward(const sn_block *b, const sn_forward_pass *p, const float *u, sn_err *err) {
    const sn_scratch *s = p->scratch;
    moe_buffers m = moe_buffers_at(p->hp, p->n_rows, s->router_out);
    m.gate = s->gate, m.up = s->up, m.act = s->gate, m.expert_out = s->expert_out;
    SN_TRY(moe_run_experts(b, p->device, p->hp, p->n_rows, u, &m, err));
    /* h (n, n_embd) = the sum over k of weights * expert_out */
    const sn_moe_selection selection = moe_selection_of(p->hp, p->n_rows, &m);
    return p->device->ops->moe_combine(p->device, &selection, p->hp->n_embd, m.expert_out, s->h, err);
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

sn_status sn_moe_recompute(const sn_block *b, const sn_backward_pass *p, const float *u, sn_err *err) {
    const moe_buffers m = moe_buffers_of(p);
    return moe_run_experts(b, p->device, p->hp, p->sequence->n_rows, u, &m, err);
}

sn_status sn_moe_combine(const sn_backward_pass *p, float *added, sn_err *err) {
    const moe_buffers m = moe_buffers_of(p);
    const sn_moe_selection selection = moe_selection_of(p->hp, p->sequence->n_rows, &m);
    return p->device->ops->moe_combine(p->device, &selection, p->hp->n_embd, m.expert_out, added, err);
}

sn_status sn_moe_backward(const sn_block *b, const sn_backward_pass *p, const float *d_added, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    const moe_buffers m = moe_buffers_of(p);
    int n = p->sequence->n_rows;
    const sn_moe_selection selection = moe_selection_of(hp, n, &m);
    size_t n_act = (size_t)n * (size_t)hp->n_experts_used * (size_t)hp->n_ff;
    /* through the weighted sum: dexpert_out (n, k, n_embd), dexpert_weights (n, k) */
    SN_TRY(ops->moe_combine_grad(d, &selection, hp->n_embd, m.expert_out, d_added, s->dexpert_out, s->dexpert_weights,
                                 err));
    /* through the experts: dup, dgate (n, k, n_ff), then dh (n, n_embd) */
    SN_TRY(ops->moe_linear_grad(d, &selection, true, s->dexpert_out, moe_experts(b, SN_ROLE_EXPERTS_DOWN), false,
                                s->dup, err));
    SN_TRY(ops->activate_grad(d, n_act, hp->activation, s->gate, s->up, s->dup, s->dgate, s->dup, err));
    SN_TRY(
        ops->moe_linear_grad(d, &selection, false, s->dgate, moe_experts(b, SN_ROLE_EXPERTS_GATE), false, s->dh, err));
    SN_TRY(ops->moe_linear_grad(d, &selection, false, s->dup, moe_experts(b, SN_ROLE_EXPERTS_UP), true, s->dh, err));
    /* through the router: dlogits (n, n_experts), added to dh */
    SN_TRY(ops->moe_gate_grad(d, &selection, hp->experts_over_all, m.logits, s->dexpert_weights, s->dlogits, err));
    return ops->linear_input_grad(d, n, s->dlogits, &b->matrix[SN_ROLE_ROUTER], true, s->dh, err);
}

#include "model/view.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Rows of a vector are its elements. */
static size_t units_of(const sn_model_tensor *t) { return t->rows == 1 ? t->cols : t->rows; }

/* Q, K and V as one: of all heads, or of one key/value head after the other, each with the queries that share it. */
static sn_view view_of_qkv(sn_qkv_layout layout, const sn_hparams *h, int place) {
    size_t groups = layout == SN_QKV_BY_HEAD ? (size_t)h->n_kv_heads : 1;
    size_t kv = (size_t)h->n_kv_heads * (size_t)h->head_dim / groups;
    size_t q = (size_t)h->n_heads * (size_t)h->head_dim / groups, all = q + 2 * kv;
    const size_t first[] = {0, q, q + kv};
    return (sn_view){all * groups, first[place], place ? kv : q, all};
}

sn_view sn_view_of(const sn_naming *naming, const sn_hparams *hparams, sn_role role, size_t own) {
    bool qkv = naming->qkv != SN_QKV_APART;
    switch (role) {
    case SN_ROLE_ATTN_Q:
    case SN_ROLE_ATTN_Q_BIAS:
        if (qkv) return view_of_qkv(naming->qkv, hparams, 0);
        break;
    case SN_ROLE_ATTN_K:
    case SN_ROLE_ATTN_K_BIAS:
        if (qkv) return view_of_qkv(naming->qkv, hparams, 1);
        break;
    case SN_ROLE_ATTN_V:
    case SN_ROLE_ATTN_V_BIAS:
        if (qkv) return view_of_qkv(naming->qkv, hparams, 2);
        break;
    case SN_ROLE_FFN_GATE:
    case SN_ROLE_FFN_UP:
        if (naming->gate_up) return (sn_view){2 * own, role == SN_ROLE_FFN_UP ? own : 0, own, 2 * own};
        break;
    default:
        break;
    }
    return (sn_view){own, 0, own, own};
}

void sn_view_narrow(const sn_view *view, sn_role role, size_t own, sn_model_tensor *t) {
    if (view->whole == own) return;
    size_t unit = t->bytes / units_of(t);
    *(t->rows == 1 ? &t->cols : &t->rows) = own;
    t->data = (const char *)t->data + view->first * unit;
    t->bytes = own * unit;
    t->group_rows = view->group_rows;
    t->group_stride = view->group_stride;
    t->tie |= (uint64_t)(role + 1) << 48; /* another parameter than the rest of the tensor */
}

size_t sn_model_n_runs(const sn_model_tensor *t) { return t->data ? units_of(t) / t->group_rows : 0; }

const void *sn_model_run(const sn_model_tensor *t, size_t i, size_t *bytes) {
    size_t unit = t->bytes / units_of(t);
    *bytes = t->group_rows * unit;
    return (const char *)t->data + i * t->group_stride * unit;
}

sn_status sn_model_contiguous(const sn_model_tensor *t, const void **rows, void **copy, sn_err *err) {
    size_t n = sn_model_n_runs(t), bytes, at = 0;
    *copy = NULL;
    *rows = t->data;
    if (n <= 1) return SN_OK;
    char *made = malloc(t->bytes);
    if (!made) return sn_fail(err, SN_STOP, "out of memory for a matrix of %zu bytes", t->bytes);
    for (size_t i = 0; i < n; i++, at += bytes) {
        const void *run = sn_model_run(t, i, &bytes);
        memcpy(made + at, run, bytes);
    }
    *rows = *copy = made;
    return SN_OK;
}

#include "tests/support/expert_group.h"

#include <stdlib.h>
#include <string.h>

sn_status expert_group_begin(void *self, const sn_expert_request *request, sn_err *err) {
    expert_group *g = self;
    (void)err;
    if (g->asked.ids) abort(); /* one exchange at a time */
    g->asked = *request;
    g->n_begun++;
    return SN_OK;
}

/* What a part of the group holds of the request, with only the rows that need it. Returns the number of pairs. */
static int request_for(const expert_group *g, sn_expert_range held, sn_expert_request *out, float *rows, int32_t *ids) {
    int n = 0, pairs = 0, k = g->asked.k;
    size_t width = (size_t)g->asked.n_embd;
    for (int r = 0; r < g->asked.n; r++) {
        int before = pairs;
        for (int j = 0; j < k; j++) {
            int32_t id = g->asked.ids[r * k + j];
            ids[n * k + j] = id >= held.first && id < held.end ? id : -1;
            pairs += ids[n * k + j] >= 0;
        }
        if (pairs == before) continue;
        memcpy(rows + (size_t)n++ * width, g->asked.rows + (size_t)r * width, width * sizeof *rows);
    }
    *out = g->asked;
    out->n = n;
    out->rows = rows;
    out->ids = ids;
    return pairs;
}

static sn_status ask_part(expert_group *g, int part, float *expert_out, sn_err *err) {
    sn_span *span = g->spans[part];
    const sn_expert_range held = sn_span_experts(span);
    size_t width = (size_t)g->asked.n_embd, pairs = (size_t)(g->asked.n * g->asked.k), at = 0;
    float *rows = malloc((size_t)g->asked.n * width * sizeof *rows), *out = malloc(pairs * width * sizeof *out);
    int32_t *ids = malloc(pairs * sizeof *ids);
    sn_expert_request request;
    int n = request_for(g, held, &request, rows, ids);
    sn_status status = n ? sn_span_run_experts(span, &request, out, err) : SN_OK;
    for (size_t i = 0; i < pairs && n && !status; i++)
        if (g->asked.ids[i] >= held.first && g->asked.ids[i] < held.end)
            memcpy(expert_out + i * width, out + at++ * width, width * sizeof *out);
    free(rows);
    free(out);
    free(ids);
    return status;
}

/* While it waits the asker computes for others. */
static sn_status serve_meanwhile(expert_group *g, sn_err *err) {
    sn_span *span = g->spans[g->asker];
    int32_t *ids = malloc((size_t)(g->asked.n * g->asked.k) * sizeof *ids);
    float *out = malloc((size_t)(g->asked.n * g->asked.n_embd) * sizeof *out);
    sn_expert_request request = g->asked;
    for (int i = 0; i < request.n * request.k; i++) ids[i] = i % request.k ? -1 : sn_span_experts(span).first;
    request.ids = ids;
    sn_status status = sn_span_run_experts(span, &request, out, err);
    free(ids);
    free(out);
    return status;
}

sn_status expert_group_finish(void *self, float *expert_out, sn_err *err) {
    expert_group *g = self;
    sn_status status = SN_OK;
    g->n_ended++;
    if (expert_out) status = serve_meanwhile(g, err);
    for (int part = 0; part < g->n && expert_out && !status; part++)
        if (part != g->asker) status = ask_part(g, part, expert_out, err);
    g->asked = (sn_expert_request){0};
    return status;
}

void expert_group_join(expert_group *g, int n, sn_span *const *spans, int asker) {
    *g = (expert_group){.n = n, .asker = asker, .exchange = {g, expert_group_begin, expert_group_finish}};
    memcpy(g->spans, spans, (size_t)n * sizeof *spans);
    sn_span_set_expert_exchange(spans[asker], &g->exchange);
}

/* A round goes around through two queues, asked and answered, and the exchange between them keeps the request of the
 * forward pass, whose places the outputs go to. A round that comes back with another number than the newest one is of a
 * pass that waits no more.
 *
 * A task of another node is computed in parts, by experts and not by rows: an expert's weights are read once for all
 * rows of a part. */
#include "node/engine/expert_rounds.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/wire.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUED_MAX = 8 }; /* one is in progress; the others came back too late */

struct sn_expert_rounds {
    sn_expert_exchange exchange;
    sn_expert_rounds_host host;
    sn_queue *asked, *answered;
    sn_expert_request request; /* of the round in progress */
    uint64_t number;           /* of the newest round */
    int64_t until_us;          /* of the wait for it */
};

void sn_expert_round_free(sn_expert_round **round) {
    if (!*round) return;
    free((*round)->rows);
    free((*round)->pairs);
    free((*round)->out);
    free(*round);
    *round = NULL;
}

/* -- what other nodes ask for -------------------------------------------------------------------------------------- */

void sn_experts_task_free(sn_experts_task **task) {
    if (!*task) return;
    sn_msg_free(&(*task)->request_msg);
    free((*task)->ids);
    free((*task)->part);
    free((*task)->order);
    free(*task);
    *task = NULL;
}

static size_t task_places(const sn_experts_task *task) { return (size_t)task->n_rows * (size_t)task->k; }

sn_status sn_experts_task_order(sn_experts_task *task, sn_err *err) {
    uint32_t next[SN_MODEL_EXPERTS_MAX + 1] = {0}; /* where the next pair of expert e goes */
    sn_status status = sn_calloc(&task->order, task->n_pairs, sizeof *task->order, err);
    if (!status) status = sn_calloc(&task->part, task_places(task), sizeof *task->part, err);
    if (status) return status;
    for (size_t i = 0; i < task_places(task); i++)
        if (task->ids[i] >= 0) next[task->ids[i] + 1]++;
    for (int e = 0; e < SN_MODEL_EXPERTS_MAX; e++) next[e + 1] += next[e];
    for (size_t i = 0; i < task_places(task); i++)
        if (task->ids[i] >= 0) task->order[next[task->ids[i]]++] = (uint32_t)i;
    return SN_OK;
}

size_t sn_experts_task_next(const sn_experts_task *task, size_t most) {
    const uint32_t *order = task->order + task->pairs_done;
    size_t left = task->n_pairs - task->pairs_done, whole = most;
    if (left <= most) return left;
    while (whole > 0 && task->ids[order[whole]] == task->ids[order[whole - 1]]) whole--;
    return whole ? whole : most;
}

int sn_experts_task_part(sn_experts_task *task, size_t n, size_t n_embd, float *rows, int32_t *ids) {
    const float *all = task->request_msg->tensor.data;
    size_t k = (size_t)task->k;
    int m = 0;
    for (size_t i = 0; i < task_places(task); i++) task->part[i] = -1;
    for (size_t i = task->pairs_done; i < task->pairs_done + n; i++)
        task->part[task->order[i]] = task->ids[task->order[i]];
    for (size_t row = 0; row < (size_t)task->n_rows; row++) {
        bool any = false;
        for (size_t c = 0; c < k; c++) any |= task->part[row * k + c] >= 0;
        if (!any) continue;
        memcpy(rows + (size_t)m * n_embd, all + row * n_embd, n_embd * sizeof *rows);
        memcpy(ids + (size_t)m++ * k, task->part + row * k, k * sizeof *ids);
    }
    sn_wire_clear_tiny(rows, (size_t)m, n_embd); /* which would delay others' tokens */
    task->part_pairs = n;
    return m;
}

void sn_experts_task_place(sn_experts_task *task, const float *part, size_t n_embd, float *out) {
    for (size_t i = 0; i < task_places(task); i++) {
        if (task->ids[i] < 0) continue;
        if (task->part[i] >= 0) {
            memcpy(out, part, n_embd * sizeof *out);
            part += n_embd;
        }
        out += n_embd;
    }
    task->pairs_done += task->part_pairs;
}

/* -- the device thread --------------------------------------------------------------------------------------------- */

static size_t pairs_of_row(const sn_expert_request *r, int row) {
    size_t n = 0;
    for (int j = 0; j < r->k; j++) n += r->ids[(size_t)row * (size_t)r->k + (size_t)j] >= 0;
    return n;
}

/* A round with a copy of the rows that have a pair. */
static sn_status round_new(const sn_expert_request *r, sn_expert_round **out, sn_err *err) {
    sn_expert_round *round = NULL;
    size_t width = (size_t)r->n_embd;
    sn_status status = sn_calloc(&round, 1, sizeof *round, err);
    if (status) return status;
    round->block = r->block;
    round->n_embd = r->n_embd;
    for (int i = 0; i < r->n; i++) {
        size_t pairs = pairs_of_row(r, i);
        round->n_rows += pairs > 0;
        round->n_pairs += pairs;
    }
    status = sn_calloc(&round->rows, round->n_rows * width, sizeof *round->rows, err);
    if (!status) status = sn_calloc(&round->pairs, round->n_pairs, sizeof *round->pairs, err);
    if (!status) status = sn_calloc(&round->out, round->n_pairs * width, sizeof *round->out, err);
    if (status) sn_expert_round_free(&round);
    size_t row = 0, pair = 0;
    for (int i = 0; i < r->n && !status; i++) {
        if (!pairs_of_row(r, i)) continue;
        memcpy(round->rows + row * width, r->rows + (size_t)i * width, width * sizeof *r->rows);
        for (int j = 0; j < r->k; j++) {
            int32_t id = r->ids[(size_t)i * (size_t)r->k + (size_t)j];
            if (id >= 0) round->pairs[pair++] = (sn_expert_pair){.row = row, .expert = (uint64_t)id};
        }
        row++;
    }
    *out = round;
    return status;
}

static sn_status rounds_begin(void *self, const sn_expert_request *request, sn_err *err) {
    sn_expert_rounds *r = self;
    sn_expert_round *round = NULL;
    sn_status status = round_new(request, &round, err);
    if (status) return status;
    r->request = *request;
    round->number = ++r->number;
    round->until_us = sn_now_us() + SN_EXPERT_ROUND_US;
    r->until_us = round->until_us + SN_EXPERT_ROUND_MARGIN_US;
    if (!sn_queue_push(r->asked, round)) {
        sn_expert_round_free(&round);
        return sn_fail(err, SN_RETRY, "this node's network thread is late: use another node");
    }
    r->host.asked(r->host.ctx);
    return SN_OK;
}

/* Waits for the round in progress. */
static sn_status rounds_wait(sn_expert_rounds *r, sn_expert_round **out, sn_err *err) {
    for (bool runs = true;; runs = r->host.serve(r->host.ctx, r->until_us)) {
        sn_expert_round *round;
        while ((round = sn_queue_pop(r->answered, 0))) {
            if (round->number == r->number) break;
            sn_expert_round_free(&round);
        }
        if (round) {
            *out = round;
            return SN_OK;
        }
        if (!runs) return sn_fail(err, SN_RETRY, "this node stops: use another one");
        if (sn_now_us() >= r->until_us)
            return sn_fail(err, SN_RETRY, "no answer came in time for experts of block %d: use another node",
                           r->request.block);
    }
}

static sn_status rounds_finish(void *self, float *expert_out, sn_err *err) {
    sn_expert_rounds *r = self;
    sn_expert_round *round = NULL;
    if (!expert_out) { /* an answer that comes is of no round in progress */
        r->number++;
        return SN_OK;
    }
    sn_status status = rounds_wait(r, &round, err);
    if (status) {
        r->number++;
        return status;
    }
    status = round->status;
    if (status && err) *err = round->err;
    size_t width = (size_t)round->n_embd, n = (size_t)r->request.n * (size_t)r->request.k, pair = 0;
    for (size_t i = 0; i < n && !status; i++)
        if (r->request.ids[i] >= 0)
            memcpy(expert_out + i * width, round->out + pair++ * width, width * sizeof *expert_out);
    sn_expert_round_free(&round);
    return status;
}

const sn_expert_exchange *sn_expert_rounds_exchange(const sn_expert_rounds *rounds) { return &rounds->exchange; }

/* -- the network thread -------------------------------------------------------------------------------------------- */

sn_expert_round *sn_expert_rounds_next(sn_expert_rounds *rounds) { return sn_queue_pop(rounds->asked, 0); }

void sn_expert_rounds_answer(sn_expert_rounds *rounds, sn_expert_round *round) {
    if (!sn_queue_push(rounds->answered, round)) sn_expert_round_free(&round);
}

/* -- life ---------------------------------------------------------------------------------------------------------- */

sn_status sn_expert_rounds_new(const sn_expert_rounds_host *host, sn_expert_rounds **out, sn_err *err) {
    sn_expert_rounds *r = NULL;
    sn_status status = sn_calloc(&r, 1, sizeof *r, err);
    if (status) return status;
    r->host = *host;
    r->exchange = (sn_expert_exchange){r, rounds_begin, rounds_finish};
    status = sn_queue_new(QUEUED_MAX, &r->asked, err);
    if (!status) status = sn_queue_new(QUEUED_MAX, &r->answered, err);
    if (status) sn_expert_rounds_free(&r);
    *out = r;
    return status;
}

static void queue_free_rounds(sn_queue **queue) {
    for (sn_expert_round *round; *queue && (round = sn_queue_pop(*queue, 0));) sn_expert_round_free(&round);
    sn_queue_free(queue);
}

void sn_expert_rounds_free(sn_expert_rounds **rounds) {
    if (!*rounds) return;
    queue_free_rounds(&(*rounds)->asked);
    queue_free_rounds(&(*rounds)->answered);
    free(*rounds);
    *rounds = NULL;
}

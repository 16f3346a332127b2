/* Inside of placement: what placing a block costs a device, given what lies there already. */
#ifndef SN_BLOCKS_PLAN_LEDGER_H
#define SN_BLOCKS_PLAN_LEDGER_H

#include "blocks/plan.h"

enum { SN_TIE_GROUPS_MAX = SN_PLAN_BLOCKS_MAX * SN_TIES_MAX };

/* The wish's tie groups, numbered from 0. Two of one id but unequal size count as two. */
typedef struct sn_tie_table {
    int n;
    size_t bytes[SN_TIE_GROUPS_MAX];
    int n_of[SN_PLAN_BLOCKS_MAX]; /* different ones of each block */
    uint16_t of[SN_PLAN_BLOCKS_MAX][SN_TIES_MAX];
} sn_tie_table;

typedef struct sn_plan_ledger {
    const sn_plan_wish *wish;
    const sn_tie_table *ties;
    bool used[SN_PLAN_DEVICES_MAX]; /* something computes there */
    size_t bytes[SN_PLAN_DEVICES_MAX];
    size_t slot[SN_PLAN_DEVICES_MAX]; /* weights of the largest streamed block */
    uint16_t held[SN_TIE_GROUPS_MAX]; /* a bit for each device */
} sn_plan_ledger;

/* Sums that stay at SIZE_MAX: what does not fit into a size_t fits on no device. */
static inline size_t sn_plan_sum(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

/* SN_REFUSED for a wish that makes no sense: no blocks, too many, no device, one twice. */
sn_status sn_plan_check(const sn_plan_wish *wish, sn_err *err) SN_MUST_USE;
void sn_tie_table_make(const sn_plan_wish *wish, sn_tie_table *out);

void sn_plan_ledger_begin(sn_plan_ledger *ledger, const sn_plan_wish *wish, const sn_tie_table *ties);
/* Bytes that the device would need more; index: of the block in the wish. */
size_t sn_plan_ledger_extra(const sn_plan_ledger *ledger, int index, int device, bool streamed);
size_t sn_plan_ledger_tied(const sn_plan_ledger *ledger, int index, int device); /* of these the tied weights */
void sn_plan_ledger_add(sn_plan_ledger *ledger, int index, int device, bool streamed);
/* The same, if the device's budget has room for it. */
bool sn_plan_ledger_fit(sn_plan_ledger *ledger, int index, int device, bool streamed);

static inline bool sn_place_streamed(const sn_place *place) {
    return place->residence != SN_ON_DEVICE && !place->preload;
}

/* Sets which of the wish's blocks are preloaded. */
sn_status sn_plan_preload(const sn_plan_wish *wish, bool preload[SN_PLAN_BLOCKS_MAX], sn_err *err) SN_MUST_USE;

/* The plan of these places, their devices being indices into the wish's. */
void sn_plan_finish(const sn_plan_wish *wish, const sn_tie_table *ties, const sn_place *places, sn_plan *out);

#endif

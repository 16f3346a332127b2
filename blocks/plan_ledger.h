/* The ledger of a placement: what it costs a device to take a block, given the blocks that it has already. Private
 * to blocks/. */
#ifndef SN_BLOCKS_PLAN_LEDGER_H
#define SN_BLOCKS_PLAN_LEDGER_H

#include "blocks/plan.h"

enum { SN_TIE_GROUPS_MAX = SN_PLAN_BLOCKS_MAX * SN_TIES_MAX };

/* The query's tie groups, numbered from 0. Groups of one id but different sizes count as two. */
typedef struct sn_tie_table {
    int n;
    size_t bytes[SN_TIE_GROUPS_MAX];
    int n_of[SN_PLAN_BLOCKS_MAX]; /* number of different groups of each block; `of` lists them */
    uint16_t of[SN_PLAN_BLOCKS_MAX][SN_TIES_MAX];
} sn_tie_table;

typedef struct sn_plan_ledger {
    const sn_plan_query *query;
    const sn_tie_table *ties;
    bool used[SN_PLAN_DEVICES_MAX]; /* a block computes there */
    size_t bytes[SN_PLAN_DEVICES_MAX];
    size_t slot[SN_PLAN_DEVICES_MAX]; /* bytes of the largest streamed block */
    size_t host, disk;                /* bytes that rest there */
    uint16_t held[SN_TIE_GROUPS_MAX]; /* a bit for each device that holds the group */
    int n_pinned;                     /* experts of each block; sn_plan_ledger_init leaves it */
} sn_plan_ledger;

/* A sum that saturates at SIZE_MAX: bytes that do not fit into a size_t fit on no device. */
static inline size_t sn_plan_add_sizes(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

/* SN_REFUSED for a query without blocks, with too many, without a device, or with one device twice. */
sn_status sn_plan_check_query(const sn_plan_query *query, sn_err *err) SN_MUST_USE;
void sn_tie_table_make(const sn_plan_query *query, sn_tie_table *out);

void sn_plan_ledger_init(sn_plan_ledger *ledger, const sn_plan_query *query, const sn_tie_table *ties);
/* The bytes of tied weights that the device needs in addition when it takes the block; index: of the block in the
 * query. */
size_t sn_plan_ledger_tied_cost(const sn_plan_ledger *ledger, int index, int device);
void sn_plan_ledger_add(sn_plan_ledger *ledger, int index, const sn_block_placement *place);
/* Bytes that host memory lacks for what rests there beside what the device "cpu" takes. */
size_t sn_plan_ledger_host_lacks(const sn_plan_ledger *ledger);
/* Adds the block if the device's budget and host memory allow it; false: they do not. */
bool sn_plan_ledger_try_add(sn_plan_ledger *ledger, int index, const sn_block_placement *place);

static inline bool sn_block_is_streamed(const sn_block_placement *place) {
    return place->residence != SN_ON_DEVICE && !place->preload;
}
/* Whether the block has slots for experts that rest elsewhere. */
static inline bool sn_block_has_slots(const sn_block_cost *cost, const sn_block_placement *place) {
    return cost->n_experts && place->residence == SN_ON_DEVICE && place->experts != SN_ON_DEVICE && !place->preload;
}

/* Whether another device than the block's own computes its experts. */
static inline bool sn_block_is_apart(const sn_block_cost *cost, const sn_block_placement *place) {
    return cost->n_experts && place->apart && place->experts_device != place->device && !sn_block_is_streamed(place);
}

/* SN_REFUSED with what host memory lacks. */
sn_status sn_plan_refuse_host(const sn_plan_ledger *ledger, sn_err *err) SN_MUST_USE;

/* What --preload names. */
typedef struct sn_preload {
    bool blocks[SN_PLAN_BLOCKS_MAX]; /* of the query */
    bool experts[SN_PLAN_EXPERTS_MAX];
    int n_experts; /* how many of them */
} sn_preload;

/* Makes the plan of these placements, whose devices are indices into the query's devices. SN_REFUSED: the slots of
 * experts find too little memory. */
sn_status sn_plan_finish(const sn_plan_query *query, const sn_tie_table *ties, const sn_preload *preload,
                         const sn_block_placement *placements, sn_plan *out, sn_err *err) SN_MUST_USE;

#endif

/* The group of a node that holds a part of the experts of its blocks: the nodes that hold the others.
 *
 * sn_expert_group is read anew from the directory every second, and keeps what was seen of each holder: how fast it
 * answered, and whether it failed: then it is asked again after a while, when it has shown that it lives. It says which
 * holder is to be asked for an expert, and which experts are missing. A holder is a live node of the same model whose
 * announcement has the same hash for the block and names the expert: also one that is joining for want of experts, but
 * none that has read no block yet. Where this node's outputs have the promised bits (all blocks on CPUs), only nodes
 * that compute on CPUs are holders.
 *
 * Logic without I/O or a clock, on the network thread. */
#ifndef SN_NODE_PROTOCOL_EXPERT_GROUP_H
#define SN_NODE_PROTOCOL_EXPERT_GROUP_H

#include "blocks/span.h"
#include "net/directory.h"

enum { SN_EXPERT_HOLDERS_MAX = 64 };

typedef struct sn_expert_holder {
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    int first, end;                         /* experts */
    uint8_t blocks[SN_SPAN_BLOCKS_MAX / 8]; /* bit i: block span.first + i is the same there */
    bool proven;                            /* it has answered this node: else it is neither asked nor counted on */
    bool leaving;                           /* it drains: it is asked, and is not counted on */
    uint64_t peer;                          /* the connection over which it was asked last; 0: none */
    uint64_t sequence;                      /* of its announcement */
    uint64_t failed_sequence;               /* of the one that it had when it failed; 0: it has not */
    int64_t
        failed_until_us;   /* as long as this it is neither asked nor counted on, and until it announces itself anew */
    int64_t busy_until_us; /* it had no room: it is not asked */
    int64_t pair_us;       /* running mean of an answer's time by its pairs; 0: not known */
    bool answers;          /* it has answered, and has not failed since */
    int64_t try_us;        /* when it may be tried, if it does not */
} sn_expert_holder;

typedef struct sn_expert_group {
    sn_expert_holder holders[SN_EXPERT_HOLDERS_MAX];
    sn_expert_holder before[SN_EXPERT_HOLDERS_MAX]; /* while the group is read: the holders until then */
    size_t n;
    bool complete;                    /* this node and the holders that have not failed hold all experts */
    char lacks[SN_TEXT_SIZE_MAX + 1]; /* "experts 86:172 of blocks 0:2"; empty: none */
    uint8_t tried[SN_KEY_SIZE];       /* the holder that was tried last, */
    int tried_pairs;                  /* with how many pairs, */
    int64_t try_us;                   /* and when the next one may be */
} sn_expert_group;

/* Whether the span holds a part of its experts only. */
bool sn_span_info_is_part(const sn_span_info *span);

/* What a group is read for: the node itself, its model, its blocks. */
typedef struct sn_expert_group_query {
    const sn_directory *directory;
    const uint8_t *node;  /* SN_KEY_SIZE bytes */
    const uint8_t *model; /* SN_KEY_SIZE bytes */
    const sn_span_info *span;
    int64_t unix_ms, now_us;
} sn_expert_group_query;

void sn_expert_group_read(sn_expert_group *group, const sn_expert_group_query *query);

/* The holder of an expert of the block that has answered fastest, of those that have not failed. Where one answers,
 * others are only tried: one in ten seconds, with a few pairs (*trial), for half a second. NULL: none. `block`: counted
 * from the first of the span. */
sn_expert_holder *sn_expert_group_choose(sn_expert_group *group, int block, int expert, int64_t now_us, bool *trial);
void sn_expert_group_end_trial(sn_expert_group *group); /* the holder that is tried gets no more pairs */
/* When the first of the holders of an expert that have no room is asked again; INT64_MAX: none has it. */
int64_t sn_expert_group_room_us(const sn_expert_group *group, int block, int expert);
/* The holder with this id; NULL: none. */
sn_expert_holder *sn_expert_group_find(sn_expert_group *group, const uint8_t node[SN_KEY_SIZE]);
/* It has not answered as it should: others are preferred for minutes. */
void sn_expert_holder_failed(sn_expert_holder *holder, int64_t now_us);
/* It has refused for good: it is not counted on for ten minutes, whatever it announces. */
void sn_expert_holder_refused(sn_expert_holder *holder, int64_t now_us);
/* How long an answer with so many pairs may take: longer where the holder was seen to be slow. trial: all of them are
 * of a trial. */
int64_t sn_expert_holder_limit_us(const sn_expert_holder *holder, size_t pairs, bool trial);
/* An answer with so many pairs has taken so long. */
void sn_expert_holder_answered(sn_expert_holder *holder, size_t pairs, int64_t us);

#endif

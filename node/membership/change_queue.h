/* The nodes whose announcements are to be passed on, and in which order, when there are more than the budget of gossip
 * allows. Half of the turns go to the newest change of a node. The other half is fair by who brought the announcements:
 * networks take turns, and within a network its connections, so an address that brings thousands leaves others their
 * share. A full queue drops the oldest of the network, and within it of the connection, that has most. A part of
 * sn_gossip, plain data; used on the network thread. */
#ifndef SN_NODE_MEMBERSHIP_CHANGE_QUEUE_H
#define SN_NODE_MEMBERSHIP_CHANGE_QUEUE_H

#include "net/directory.h"

enum { SN_CHANGE_QUEUE_MAX = 512 };

typedef struct sn_change {
    uint64_t tag;           /* sn_node_tag */
    uint16_t network, peer; /* who brought it, as hashes */
    bool of_node;           /* the node is new, or its state, address or blocks are; goes before others */
} sn_change;

typedef struct sn_change_queue {
    sn_change changes[SN_CHANGE_QUEUE_MAX]; /* oldest first */
    size_t n;
} sn_change_queue;

/* source: who brought the newest announcement of the node. A tag that is queued stays in its place. */
void sn_change_queue_add(sn_change_queue *queue, uint64_t tag, const sn_announcement_source *source, bool of_node);
/* Takes the next one; false: there is none. random: of a generator, it chooses whose turn it is. Of one connection, and
 * where no fairness is asked for, changes of nodes and then newer ones come first: when the budget does not allow all,
 * the oldest are worth least. */
bool sn_change_queue_take(sn_change_queue *queue, uint64_t random, uint64_t *tag);
/* Whether a change of a node waits. */
bool sn_change_queue_has_of_node(const sn_change_queue *queue);

#endif

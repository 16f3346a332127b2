/* Spans of one process that hold the experts of their blocks together, and the exchange by which one of them asks the
 * others. While it waits, that one computes pairs for others, as a node does. */
#ifndef SN_TESTS_EXPERT_GROUP_H
#define SN_TESTS_EXPERT_GROUP_H

#include "blocks/span.h"

enum { EXPERT_GROUP_MAX = 4 };

typedef struct expert_group {
    sn_span *spans[EXPERT_GROUP_MAX]; /* the test's */
    int n, asker;
    sn_expert_request asked;     /* ids NULL: nothing is in progress */
    uint64_t n_begun, n_ended;   /* exchanges */
    sn_expert_exchange exchange; /* of the asker */
} expert_group;

/* spans: (n), at most EXPERT_GROUP_MAX; spans[asker] computes rows from now on. The group stays where it is. */
void expert_group_join(expert_group *group, int n, sn_span *const *spans, int asker);
/* The exchange's functions; self: the group. */
sn_status expert_group_begin(void *self, const sn_expert_request *request, sn_err *err);
sn_status expert_group_finish(void *self, float *expert_out, sn_err *err);

#endif

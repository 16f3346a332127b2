/* Between which blocks a model can be cut: a block that shares the choice of an indexer stays with the one before it.
 */
#include "model/model.h"

#include <stdio.h>

/* "0, 1, 3, ..., 78" */
static void list_cuts(const sn_hparams *hp, char *out, size_t size) {
    size_t used = 0;
    for (int b = 0; b <= hp->n_blocks && used < size; b++)
        if (sn_may_cut(hp, b)) used += (size_t)snprintf(out + used, size - used, "%s%d", used ? ", " : "", b);
}

sn_status sn_check_cuts(const sn_hparams *hp, int first, int end, sn_err *err) {
    char cuts[400];
    if (sn_may_cut(hp, first) && sn_may_cut(hp, end)) return SN_OK;
    list_cuts(hp, cuts, sizeof cuts);
    return sn_fail(err, SN_REFUSED,
                   "blocks %d:%d are no part of this model by themselves: block %d attends to what a block before it "
                   "chooses, so parts begin and end at %s",
                   first, end, sn_may_cut(hp, first) ? end : first, cuts);
}

bool sn_has_no_cuts(const sn_hparams *hp) {
    int b = 0;
    while (b < hp->n_blocks && sn_may_cut(hp, b)) b++;
    return b < hp->n_blocks;
}

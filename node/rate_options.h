/* The values of options that say how many bytes a second a node gives away. Used by main.c. SN_REFUSED with a sentence.
 */
#ifndef SN_NODE_RATE_OPTIONS_H
#define SN_NODE_RATE_OPTIONS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* --share-weights: on, off, or a rate. *near: within the node's own network; 0: the same rate, as the owner gave it. */
sn_status sn_share_rate_parse(const char *text, size_t *rate, size_t *near, sn_err *err) SN_MUST_USE;
/* --relay: on, off, or a rate. 0: off. */
sn_status sn_relay_rate_parse(const char *text, int64_t *rate, sn_err *err) SN_MUST_USE;

#endif

/* A transport inside a process: transports of one hub reach each other by their addresses ("node0:1"), which name
 * nothing outside the hub. The hub is thread-safe and outlives its transports. A filter can lose, duplicate and reorder
 * messages. */
#ifndef SN_TESTS_MEMORY_TRANSPORT_H
#define SN_TESTS_MEMORY_TRANSPORT_H

#include "net/transport/transport.h"

typedef struct sn_hub sn_hub;
sn_status sn_hub_new(sn_hub **out, sn_err *err) SN_MUST_USE;
void sn_hub_free(sn_hub **hub);
/* SN_REORDER: the message is delivered after the next one of the same direction. */
typedef enum sn_hub_action { SN_DELIVER, SN_DROP, SN_DUPLICATE, SN_REORDER } sn_hub_action;
/* `from` and `to` are the listening addresses ("" for a peer that does not listen). Called under the hub's lock. */
typedef sn_hub_action (*sn_hub_filter)(void *ctx, const char *from, const char *to, const sn_msg *msg);
void sn_hub_set_filter(sn_hub *hub, sn_hub_filter filter, void *ctx);
sn_status sn_transport_memory_new(sn_hub *hub, const sn_identity *identity, sn_transport **out,
                                  sn_err *err) SN_MUST_USE;

#endif

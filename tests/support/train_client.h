/* Messages of a client that trains through a node of a testbed. */
#ifndef SN_TESTS_TRAIN_CLIENT_H
#define SN_TESTS_TRAIN_CLIENT_H

#include "tests/support/node_client.h"

enum { TRAIN_SAMPLES = 3, TRAIN_ROWS = 40 };
extern const uint64_t train_lengths[TRAIN_SAMPLES]; /* tokens of the sequences of a batch */

/* An adapter of blocks 1 and 2: a deep prompt and LoRA matrices. */
sn_buf train_image(const testbed *w, float scale);
sn_buf train_image_above(const testbed *w, size_t bytes); /* a deep prompt of more than `bytes` */
sn_msg *adapter_put_message(const testbed *w, const sn_buf *image);
void put_adapter(node_client *t, const testbed *w, const sn_buf *image);
/* The same where the node must unload another adapter first: asks again while it says so. Returns what it then takes.
 */
uint64_t put_adapter_in_place_of_another(node_client *t, const testbed *w, const sn_buf *image);
/* A FORWARD, or a BACKWARD with the testbed's hidden states as gradients. Their fields are the same. image: NULL: no
 * adapter. */
sn_msg *batch_message(const testbed *w, sn_msg_kind kind, int first, int end, const sn_buf *image);
/* Sends the message, and expects that it is refused with a text that has this part. */
void expect_refused(node_client *t, sn_msg **msg, const char *part);

#endif

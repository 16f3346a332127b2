#include "gateway/openai/reply_private.h"

#include <stdlib.h>

void sn_response_state_free(struct sn_response_state **state) {
    free(*state);
    *state = NULL;
}

static json_t *response_whole(sn_reply *r, json_t *swarm) {
    (void)swarm;
    return sn_reply_start(r, "response");
}

const sn_reply_form sn_response_form = {.id_prefix = "resp_", .whole = response_whole};

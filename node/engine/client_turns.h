/* When clients had their turn: for each of the newest clients the number of the newest batch that was of a kind for
 * which it had steps. Plain data of the scheduler; belongs to the device thread. */
#ifndef SN_NODE_ENGINE_CLIENT_TURNS_H
#define SN_NODE_ENGINE_CLIENT_TURNS_H

#include <stdint.h>

enum { SN_CLIENT_TURNS_MAX = 64 }; /* clients that are remembered */

typedef struct sn_client_turns {
    struct {
        uint64_t client, batch; /* batch 0: the entry is free */
    } list[SN_CLIENT_TURNS_MAX];
} sn_client_turns;

uint64_t sn_client_turns_last(const sn_client_turns *turns, uint64_t client); /* that number; 0: it is long ago */
/* This batch is a turn of the client. A full list forgets the client whose turn is longest ago. */
void sn_client_turns_note(sn_client_turns *turns, uint64_t client, uint64_t batch);

#endif

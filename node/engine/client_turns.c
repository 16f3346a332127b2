#include "node/engine/client_turns.h"

uint64_t sn_client_turns_last(const sn_client_turns *turns, uint64_t client) {
    for (int i = 0; i < SN_CLIENT_TURNS_MAX; i++)
        if (turns->list[i].client == client) return turns->list[i].batch;
    return 0;
}

void sn_client_turns_note(sn_client_turns *turns, uint64_t client, uint64_t batch) {
    int at = 0;
    for (int i = 0; i < SN_CLIENT_TURNS_MAX && turns->list[at].client != client; i++)
        if (turns->list[i].client == client || turns->list[i].batch < turns->list[at].batch) at = i;
    turns->list[at].client = client;
    turns->list[at].batch = batch;
}

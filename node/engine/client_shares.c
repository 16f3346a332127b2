#include "node/engine/client_shares.h"

#include <stddef.h>

enum { OWED_MAX = 4 }; /* limits by which an allowance may be negative */

static const sn_client_share *find(const sn_client_shares *shares, uint64_t client) {
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++)
        if (shares->list[i].active_us && shares->list[i].client == client) return &shares->list[i];
    return NULL;
}

bool sn_client_shares_is_active(const sn_client_share *share, int64_t now_us) {
    return share->active_us && now_us - share->active_us <= SN_CLIENT_ACTIVE_US;
}

static int64_t clamp(int64_t us, int64_t least, int64_t most) { return us < least ? least : us > most ? most : us; }

/* What the active client used that used least, and the one that used most; 0 where there is none. */
static int64_t least_used(const sn_client_shares *shares, int64_t now_us) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++)
        if (sn_client_shares_is_active(&shares->list[i], now_us) && shares->list[i].used_us < least)
            least = shares->list[i].used_us;
    return least == INT64_MAX ? 0 : least;
}

static int64_t most_used(const sn_client_shares *shares) {
    int64_t most = 0;
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++)
        if (shares->list[i].used_us > most) most = shares->list[i].used_us;
    return most;
}

sn_client_share *sn_client_shares_of(sn_client_shares *shares, uint64_t client, int64_t now_us) {
    sn_client_share *share = (sn_client_share *)find(shares, client);
    const int64_t least = least_used(shares, now_us);
    if (!share) {
        share = &shares->list[0];
        for (int i = 1; i < SN_CLIENT_SHARES_MAX; i++)
            if (shares->list[i].active_us < share->active_us) share = &shares->list[i];
        *share = (sn_client_share){.client = client, .used_us = least, .allowance_us = shares->limit_us};
    } else if (!sn_client_shares_is_active(share, now_us)) {
        share->allowance_us = shares->limit_us;
        if (share->used_us < least) share->used_us = least;
    }
    if (share->active_us < now_us || !share->active_us) share->active_us = now_us > 0 ? now_us : 1;
    return share;
}

void sn_client_shares_advance(sn_client_shares *shares, int64_t now_us) {
    const int64_t passed = clamp(now_us - shares->now_us, 0, SN_CLIENT_ACTIVE_US);
    int others = -1; /* of each */
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++) others += sn_client_shares_is_active(&shares->list[i], now_us);
    shares->now_us = now_us;
    for (int i = 0; i < SN_CLIENT_SHARES_MAX && others > 0; i++) {
        sn_client_share *share = &shares->list[i];
        share->allowance_us = clamp(share->allowance_us + 2 * passed * others / (2 * others + 5),
                                    -OWED_MAX * shares->limit_us, shares->limit_us);
    }
}

bool sn_client_shares_protects(const sn_client_shares *shares, uint64_t client, uint64_t other) {
    const sn_client_share *own = find(shares, client), *its = find(shares, other);
    return client != other && own && its && own->used_us + SN_SHARE_SLACK_US < its->used_us;
}

/* What the pass delayed the client by. */
static int64_t delay_of(const sn_client_share *share, double cost, int64_t took_us, int64_t base_us, double row_cost) {
    if (share->cost <= 0) return share->waits ? took_us : 0;
    const double others = cost - share->cost, own = share->cost > row_cost ? share->cost - row_cost : 0;
    return took_us > base_us && others > 0 ? (int64_t)((double)(took_us - base_us) * others / (others + own)) : 0;
}

void sn_client_shares_passed(sn_client_shares *shares, int64_t took_us, int64_t base_us, double row_cost) {
    double cost = 0;
    shares->passes++;
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++) cost += shares->list[i].cost;
    const int64_t rows_us = took_us > base_us ? took_us - base_us : 0; /* beyond the first */
    for (int i = 0; i < SN_CLIENT_SHARES_MAX && cost > 0; i++) {
        sn_client_share *share = &shares->list[i];
        if (share->cost > 0 || share->waits) share->pass = shares->passes;
        if (share->cost > 0) share->used_us += (int64_t)(((double)rows_us + row_cost) * share->cost / cost);
        share->allowance_us -= delay_of(share, cost, took_us, base_us, row_cost);
    }
    const int64_t floor_us = most_used(shares) - SN_SHARE_WINDOW_US;
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++) {
        sn_client_share *share = &shares->list[i];
        if (share->used_us < floor_us) share->used_us = floor_us;
        share->allowance_us = clamp(share->allowance_us, -OWED_MAX * shares->limit_us, shares->limit_us);
        share->cost = 0;
        share->waits = false;
    }
}

void sn_client_shares_came_late(sn_client_shares *shares, uint64_t client, int64_t left_us) {
    sn_client_share *share = (sn_client_share *)find(shares, client);
    if (!share || share->pass == shares->passes) return;
    share->pass = shares->passes;
    share->allowance_us = clamp(share->allowance_us - left_us, -OWED_MAX * shares->limit_us, shares->limit_us);
}

int64_t sn_client_shares_allowance(const sn_client_shares *shares, uint64_t client) {
    const sn_client_share *share = find(shares, client);
    return share ? share->allowance_us : shares->limit_us;
}

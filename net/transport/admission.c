#include "net/transport/admission_private.h"

#include <string.h>

enum {
    FAR_MORE = 8,     /* times as many connections as another address has */
    UNNAMED_PART = 8, /* of the places, one part of so many: below that, the address with most makes room */
};

/* The older one of two connections; -1: none. */
static int older(const sn_standing *const *standings, int a, int b) {
    return a < 0 || standings[b]->since_us < standings[a]->since_us ? b : a;
}

static size_t count_of(const sn_standing *const *standings, size_t n, const uint8_t prefix[SN_ADDRESS_PREFIX]) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += standings[i] && !memcmp(standings[i]->prefix, prefix, SN_ADDRESS_PREFIX);
    return count;
}

size_t sn_admission_bucket(const sn_standing *s, int64_t now_us) {
    uint64_t x;
    memcpy(&x, s->prefix, sizeof x);
    return (size_t)((x ^ (uint64_t)now_us * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xd6e8feb86659fd93) >> 52);
}

/* Of the address with most connections, if these are far more than the newcomer's address would have, the one that was
 * used least lately; -1: there is no such address. */
static int of_heaviest(const sn_standing *const *standings, size_t n, size_t of_newcomer, int64_t now_us) {
    uint16_t counts[SN_ADMISSION_BUCKETS] = {0};
    size_t heaviest = 0;
    int found = -1;
    for (size_t i = 0; i < n; i++) {
        size_t at = standings[i] ? sn_admission_bucket(standings[i], now_us) : heaviest;
        counts[at] = (uint16_t)(counts[at] + (standings[i] != NULL));
        if (counts[at] > counts[heaviest]) heaviest = at;
    }
    for (int i = 0; (size_t)i < n; i++)
        if (standings[i] && sn_admission_bucket(standings[i], now_us) == heaviest) found = older(standings, found, i);
    bool heavy = found >= 0 && count_of(standings, n, standings[found]->prefix) >= FAR_MORE * (of_newcomer + 1);
    return heavy ? found : -1;
}

int sn_admission_decide(const sn_standing *const *standings, size_t n, size_t capacity,
                        const uint8_t prefix[SN_ADDRESS_PREFIX], int64_t now_us) {
    static const uint8_t unknown[SN_ADDRESS_PREFIX];
    size_t count = 0, n_unnamed = 0, of_address = 0, unnamed_of_address = 0;
    int unnamed = -1, own_unnamed = -1, idle = -1;
    for (int i = 0; (size_t)i < n; i++) {
        const sn_standing *s = standings[i];
        if (!s) continue;
        bool own = !memcmp(s->prefix, prefix, SN_ADDRESS_PREFIX);
        count++;
        of_address += own;
        if (s->named) {
            idle = older(standings, idle, i);
            continue;
        }
        n_unnamed++;
        unnamed = older(standings, unnamed, i);
        if (!own) continue;
        unnamed_of_address++;
        own_unnamed = older(standings, own_unnamed, i);
    }
    if (unnamed_of_address >= (capacity + 3) / 4) return own_unnamed;
    if (of_address >= (3 * capacity + 3) / 4) return own_unnamed >= 0 ? own_unnamed : SN_ADMIT_NOT;
    if (count < capacity) return SN_ADMIT;
    int heavy = memcmp(prefix, unknown, sizeof unknown) ? of_heaviest(standings, n, of_address, now_us) : -1;
    bool few = n_unnamed < (capacity + UNNAMED_PART - 1) / UNNAMED_PART;
    if (few && heavy >= 0) return heavy;
    bool takes = !few || (unnamed >= 0 && of_address < FAR_MORE * count_of(standings, n, standings[unnamed]->prefix));
    if (unnamed >= 0) unnamed = takes ? unnamed : own_unnamed;
    if (unnamed >= 0) return unnamed;
    if (idle >= 0 && now_us - standings[idle]->since_us >= SN_ADMISSION_IDLE_US) return idle;
    return heavy >= 0 ? heavy : SN_ADMIT_NOT;
}

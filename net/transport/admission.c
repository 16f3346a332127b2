#include "net/transport/admission_private.h"

#include <string.h>

/* The older one of two connections; -1: none. */
static int older(const sn_standing *const *standings, int a, int b) {
    return a < 0 || standings[b]->since_us < standings[a]->since_us ? b : a;
}

int sn_admission_decide(const sn_standing *const *standings, size_t n, size_t capacity,
                        const uint8_t prefix[SN_ADDRESS_PREFIX], int64_t now_us) {
    size_t count = 0, of_address = 0, unnamed_of_address = 0;
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
        unnamed = older(standings, unnamed, i);
        if (!own) continue;
        unnamed_of_address++;
        own_unnamed = older(standings, own_unnamed, i);
    }
    if (unnamed_of_address >= (capacity + 3) / 4) return own_unnamed;
    if (of_address >= (3 * capacity + 3) / 4) return own_unnamed >= 0 ? own_unnamed : SN_ADMIT_NOT;
    if (count < capacity) return SN_ADMIT;
    if (unnamed >= 0) return unnamed;
    if (idle >= 0 && now_us - standings[idle]->since_us >= SN_ADMISSION_IDLE_US) return idle;
    return SN_ADMIT_NOT;
}

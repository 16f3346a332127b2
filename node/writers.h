/* Who is writing: sessions that sent steps of few rows just now, and so will send more. Belongs to the scheduler. */
#ifndef SN_NODE_WRITERS_H
#define SN_NODE_WRITERS_H

#include <stdbool.h>
#include <stdint.h>

enum { SN_WRITERS_MAX = 64, SN_WRITER_BACK_US = 1000000 }; /* who wrote within that time is thought to go on */

typedef struct sn_writers {
    struct {
        const void *session; /* only compared */
        int rows;
        bool here;     /* with a step that has not been through */
        uint64_t pass; /* that it was in last */
        int64_t at_us;
    } list[SN_WRITERS_MAX];
    int n;
} sn_writers;

/* Its step goes into that pass. Beyond the most that are known the oldest is forgotten. */
void sn_writers_note(sn_writers *w, const void *session, int rows, uint64_t pass, int64_t now_us);
void sn_writers_here(sn_writers *w, const void *session); /* it has sent another one */
void sn_writers_forget(sn_writers *w, const void *session); /* it has gone, or does something else now */
int sn_writers_rows(sn_writers *w, int64_t now_us);         /* of their steps, all together */
/* Whether one is away that was in a pass last with one who is here. */
bool sn_writers_company(const sn_writers *w);

#endif

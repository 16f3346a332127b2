/* Who is writing: sessions that sent steps of few rows just now, and so will send more. Belongs to the scheduler. */
#ifndef SN_NODE_WRITERS_H
#define SN_NODE_WRITERS_H

#include <stdint.h>

enum { SN_WRITERS_MAX = 64, SN_WRITER_BACK_US = 1000000 }; /* who wrote within that time is thought to go on */

typedef struct sn_writers {
    struct {
        const void *session; /* only compared */
        int rows;
        int64_t at_us;
    } list[SN_WRITERS_MAX];
    int n;
} sn_writers;

void sn_writers_note(sn_writers *w, const void *session, int rows, int64_t now_us); /* beyond the most: the oldest is forgotten */
void sn_writers_forget(sn_writers *w, const void *session); /* it has gone, or does something else now */
int sn_writers_rows(sn_writers *w, int64_t now_us);         /* of their steps, all together */

#endif

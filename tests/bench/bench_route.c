/* How long planning a route takes: bench_route [nodes [blocks [blocks of each node [measured pairs of each]]]].
 * Prints CPU time, the least of seven runs, for hidden states that pass through the client and for nodes that push. */
#include "client/routing/route.h"

#include "base/mem.h"
#include "tests/support/require.h"

#include <time.h>

static const sn_announcement a_node;

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Node i is measured to i + 1, i + 2, i + 4, ...: one pair each, known at both ends. */
static void link_nodes(sn_candidate *at, int n, int pairs, sn_candidate_link *links, uint64_t *state) {
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        at[i].links = &links[used];
        for (int k = 0; k < pairs && 1 << k < n; k++)
            for (int side = 0; side < 2; side++) {
                int other = (i + (side ? 1 << k : n - (1 << k))) % n;
                links[used++] = (sn_candidate_link){(size_t)other, (int64_t)(1000000 + next_random(state) % 100000000)};
            }
        at[i].n_links = (size_t)(&links[used] - at[i].links);
    }
}

int main(int argc, char **argv) {
    int n = argc > 1 ? require_int(argv[1], 1, 1000000) : 1000, blocks = argc > 2 ? require_int(argv[2], 1, 1000) : 80;
    int span = argc > 3 ? require_int(argv[3], 1, blocks) : 10, pairs = argc > 4 ? require_int(argv[4], 0, 16) : 12;
    uint64_t state = 1;
    sn_candidate *at = NULL;
    sn_candidate_link *links = NULL;
    REQUIRE(sn_calloc(&at, (size_t)n, sizeof *at, &err));
    REQUIRE(sn_calloc(&links, (size_t)n * 32, sizeof *links, &err));
    for (int i = 0; i < n; i++) {
        int first = (int)(next_random(&state) % (uint64_t)(blocks - span + 1));
        at[i] = (sn_candidate){.node = &a_node,
                               .first = first,
                               .end = first + span,
                               .blocks_max = span,
                               .rtt_ns = (int64_t)(1000000 + next_random(&state) % 100000000),
                               .queue_ns = (int64_t)(next_random(&state) % 5000000),
                               .block_ns = (int64_t)(100000 + next_random(&state) % 3000000)};
    }
    link_nodes(at, n, pairs, links, &state);
    for (int push = 0; push < 2; push++) {
        sn_route found;
        double least = 1e9;
        for (int i = 0; i < 7; i++) {
            double began = cpu_ms();
            REQUIRE(sn_route_shortest(at, (size_t)n, push, 0, blocks, &found, &err));
            double took = cpu_ms() - began;
            if (took < least) least = took;
        }
        printf("%d nodes of %d of %d blocks, %s: %.2f ms, a route of %zu legs\n", n, span, blocks,
               push ? "pushing" : "by the client", least, found.n);
    }
    free(at);
    free(links);
    return 0;
}

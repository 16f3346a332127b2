/* The KV memory that a timeline needs, and what nodes say of theirs: no session at a node can have more tokens than its
 * pool holds. So a timeline that fits nowhere is refused before anything is computed, and where a node of the route
 * cannot hold it and another one can, that one takes its place. */
#include "client/chain/chain_private.h"

#include "base/log.h"

enum { DISCOVER_MS = 1000 };

/* 0: not known. */
static size_t hop_tokens_max(const sn_chain *chain, const sn_hop *hop) {
    return hop->is_local ? sn_kv_pool_tokens(chain->pool) : (size_t)hop->remote.tokens_max;
}

static bool hop_is_small(const sn_chain *chain, const sn_hop *hop, int tokens) {
    const size_t most = hop_tokens_max(chain, hop);
    return most && most < (size_t)tokens;
}

/* The first hop from i on that cannot hold so many tokens; n_hops: all can. */
static size_t find_small_hop(const sn_chain *chain, size_t i, int tokens) {
    while (i < chain->n_hops && !hop_is_small(chain, &chain->hops[i], tokens)) i++;
    return i;
}

static sn_status find_longest(sn_chain *chain, const sn_hop *hop, int *longest, sn_err *err) {
    sn_candidates candidates;
    sn_status status = sn_chain_list_candidates(chain, &candidates, err);
    if (status) return status;
    *longest = sn_candidates_tokens_max(&candidates, hop->first, hop->end);
    sn_candidates_fini(&candidates);
    return SN_OK;
}

/* Whether any known node could take the hop's place. One that is not known yet may: the swarm is asked once. */
static sn_status check_hop(sn_chain *chain, const sn_hop *hop, int tokens, sn_err *err) {
    int longest = (int)hop_tokens_max(chain, hop);
    sn_status status = SN_OK;
    sn_err ignored;
    if (!hop->is_local) status = find_longest(chain, hop, &longest, err);
    if (!status && longest < tokens && !hop->is_local &&
        !sn_link_discover(chain->options.link, &chain->model, sn_chain_left_ms(chain, DISCOVER_MS), &ignored))
        status = find_longest(chain, hop, &longest, err);
    if (status || longest >= tokens) return status;
    return sn_fail_because(err, SN_REFUSED, SN_REASON_TOO_LONG,
                           "%d tokens do not fit: for blocks %d:%d %s KV memory for %d at most: shorten the prompt, or "
                           "raise --kv-memory there",
                           tokens, hop->first, hop->end, hop->is_local ? "this program has" : "the nodes have",
                           longest);
}

sn_status sn_chain_make_room(sn_chain *chain, int position, int tokens, sn_err *err) {
    sn_status status = SN_OK;
    chain->expected = tokens;
    for (size_t i = 0; (i = find_small_hop(chain, i, tokens)) < chain->n_hops && !status; i++)
        status = check_hop(chain, &chain->hops[i], tokens, err);
    for (size_t i = 0; !status && (i = find_small_hop(chain, i, tokens)) < chain->n_hops;) {
        while (chain->hops[i].pushed) i--;
        sn_log(SN_LOG_INFO, "moving to a node with more KV memory", "request_id=%s node=%s tokens=%d",
               chain->request_id, chain->hops[i].report.node, tokens);
        const uint64_t failovers = chain->failovers;
        status = sn_chain_replace_group(chain, &i, sn_hops_group_end(chain->hops, chain->n_hops, i), position, err);
        chain->failovers = failovers;
    }
    if (status) chain->expected = 0;
    return status;
}

sn_status sn_chain_expect(sn_chain *chain, int position, int tokens, sn_err *err) {
    const int n_virtual = chain->options.adapter.n_prompt;
    sn_chain_begin_call(chain);
    sn_chain_rewind(chain, position);
    if (chain->unsettled) return SN_OK; /* the next step settles, and finds room */
    return sn_chain_make_room(chain, chain->length, n_virtual + tokens, err);
}

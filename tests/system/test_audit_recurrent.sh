#!/usr/bin/env bash
# Audits of sessions over recurrent blocks: an auditor computes the state of a step again from the rows that entered. Honest
# nodes are not accused and the text is the same; a node that lies once is banned, with evidence, and the text is right.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/qwen3_5
golden_ids qwen3_5 "$scratch/ids"
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 40 --ignore-eos --json)
audit=(--audit 0.3 --audit-seed 4 --evidence "$scratch/evidence")
start_node a "$model" 0:2
wait_ready a
start_node b "$model" 2:4 --join "${address[a]}"
start_node c "$model" all --join "${address[a]}" --isa c
start_node d "$model" all --join "${address[a]}" --threads 2
wait_ready b c d
succeeds "${text[@]}" --local all
ids=$(query "$scratch/run.out" 'd["ids"]')
for mode in "" --push --audit-local "--draft ngram"; do
  # shellcheck disable=SC2086
  succeeds "${text[@]}" --join "${address[a]}" "${audit[@]}" $mode
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the audited text differs ($mode)"
  [ "$(query "$scratch/run.out" 'd["audit"]["nodes_banned"], d["audit"]["unchecked"], d["audit"]["checked"] > 0')" = "(0, 0, True)" ] ||
    fail "the audit's report ($mode) is $(query "$scratch/run.out" 'd["audit"]')"
done
[ ! -e "$scratch/evidence" ] || fail "there is evidence against honest nodes"

# No other node has the last blocks: the client stops where the lie is found, and anyone can check the evidence.
[ -x "$bin/tests/attack_lying_node" ] || skip "attack_lying_node is not built"
for name in b c d; do stop_node $name; done
start lying env SN_LIES_EVERY=20 "$bin/tests/attack_lying_node" --model "$model" --blocks 2:4 --name lying --threads 1 \
  --listen 127.0.0.1:0 --kv-memory 64MiB --device cpu --join "${address[a]}"
wait_ready lying
"${text[@]}" --join "${address[a]}" --audit 1 --audit-seed 4 --audit-local --evidence "$scratch/evidence" --timeout 5 \
  >"$scratch/run.out" 2>"$scratch/run.err" && fail "the lie was not found"
[ -d "$scratch/evidence" ] || fail "there is no evidence: $(cat "$scratch/run.err")"
succeeds "$bin/swarm" verify "$scratch"/evidence/* --model "$model"
grep -q "^Proven: a node signed wrong results" "$scratch/run.out" || fail "the evidence convinces no one: $(cat "$scratch/run.out")"
stop_node a

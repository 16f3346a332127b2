#!/usr/bin/env bash
# Nodes with a part of the experts (--experts), in the real programs: a group that lacks some serves no client and says which; one that
# has all writes the ids that one process writes, whichever of its nodes the client uses, and also when a holder is killed in
# the middle of an answer while another node has its experts.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mixture=$fixtures/golden/deepseek_v3 # 4 blocks, the first without experts; 8 experts, 3 for each token
golden_ids deepseek_v3 "$scratch/ids"
generate=("$bin/swarm" generate --model "$mixture" --ids-file "$scratch/ids" --ignore-eos --json)
succeeds "${generate[@]}" --max-tokens 200 --local all
expected=$(query "$scratch/run.out" 'd["ids"]')
part() { # part NAME A:B [option...]
  start_node "$1" "$mixture" 0:4 --experts "$2" --metrics 0 "${@:3}"
  wait_ready "$1"
}
complete() { [ "$(metric "$1" experts_missing)" = 0 ]; }

refuses 2 'experts' "$bin/swarm-node" --model "$mixture" --blocks 0:4 --experts 3:3
refuses 2 'experts' "$bin/swarm-node" --model "$mixture" --blocks 0:4 --experts 3:9
refuses 2 'add --blocks A:B' "$bin/swarm-node" --model "$mixture" --blocks auto --experts 0:3
refuses 2 'experts' "$bin/swarm-node" --model "$fixtures/golden/llama" --blocks 0:4 --experts 0:3

part a 0:3
join=(--join "${address[a]}")
grep -q 'no node holds experts 3:8 of blocks 1:4' "$scratch/a.err" || fail "a does not say which experts are missing"
refuses 1 '' "${generate[@]}" --max-tokens 1 "${join[@]}" --timeout 2s
succeeds "$bin/swarm" status "${join[@]}"
grep -q 'holds experts 0:3 of 8' "$scratch/run.out" && grep -q 'no node that it knows holds experts 3:8 of blocks 1:4' "$scratch/run.out" ||
  fail "swarm status does not say what a lacks"
part b 3:6 "${join[@]}"
part c 6:8 "${join[@]}"
for node in a b c; do wait_until 60 complete $node; done
for node in a b c; do
  succeeds "${generate[@]}" --max-tokens 200 "${join[@]}" --only $node
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "with $node the group writes another text than one process"
  [ "$(metric $node expert_pairs_computed_total)" -gt 0 ] || [ $node = a ] || fail "$node computed nothing for the others"
done
[ "$(metric a expert_rounds_failed_total)" = 0 ] || fail "rounds have failed"

part d 3:8 "${join[@]}"
wait_until 60 complete d
before=$(metric a expert_rounds_total)
start session "${generate[@]}" --max-tokens 200 "${join[@]}" --only a --emulate-link 1gbit,20ms # seconds, on any machine
wait_metric a expert_rounds_total $((before + 60)) 60
kill_node b
wait_end session 60
[ $rc = 0 ] || fail "the session ended with exit code $rc"
[ "$(query "$scratch/session.out" 'd["ids"]')" = "$expected" ] || fail "after the death of a holder the text is another one"
kill_node d
wait_metric a experts_missing 1 20
refuses 1 '' "${generate[@]}" --max-tokens 1 "${join[@]}" --timeout 2s
stop_node a
stop_node c

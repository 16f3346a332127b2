#!/usr/bin/env bash
# Nodes that fail, hang or drain while text is generated.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
tokens=200

generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens $tokens --ignore-eos --json)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')

# a: 0:2, behind a link that makes each step take some milliseconds of waiting, not of work, so that a text lasts two seconds on any
# machine; b1 and b2: 2:4, one of which is used.
start_nodes() {
  local name
  start_node a "$model" 0:2 --metrics 0 --emulate-link 1gbit,20ms
  wait_ready a
  for name in "$@"; do start_node "$name" "$model" 2:4 --join "${address[a]}" --metrics 0; done
  wait_ready "$@"
  wait_metric a announcements $((1 + $#)) 60
}

other_than() { [ "$1" = b1 ] && echo b2 || echo b1; }

# begin OPTION...: generates in the background until some steps are done, and pauses there, because a is stopped until SIGCONT.
# failing: the node that has the client's session for blocks 2:4. copied: whether to wait until the other one has a copy.
begin() {
  local try name
  for ((try = 0; try < 5; try++)); do
    start client "${generate[@]}" --join "${address[a]}" "$@"
    failing=""
    while [ -z "$failing" ] && kill -0 "${pid[client]}" 2>/dev/null; do
      for name in b1 b2; do
        [ -z "${pid[$name]:-}" ] || [ "$(metric "$name" steps_total)" -lt $((5 + ${steps[$name]:-0})) ] || failing=$name
      done
      [ -z "$failing" ] || [ -z "${copied:-}" ] || [ "$(metric "$(other_than "$failing")" kv_bytes)" -gt 0 ] || failing=
    done
    signal a STOP
    pause 0.1
    [ -n "$failing" ] && kill -0 "${pid[client]}" 2>/dev/null && return
    signal a CONT # generate ended too early
    wait_end client 60
    for name in b1 b2; do
      [ -n "${pid[$name]:-}" ] || continue
      steps[$name]=$(idle_steps "$name")
    done
  done
  fail "no node has a session"
}
declare -A steps # of earlier tries

# same_text SECONDS [TIMINGS]: the client ends in time, with the expected tokens, over the other node, and the expression about its
# timings holds.
same_text() {
  local other position
  other=$(other_than "$failing")
  wait_end client "$1"
  [ $rc = 0 ] || fail "generate ended with $rc"
  position=$(sed -n 's/.*step failed.* position=\([0-9]*\) .*/\1/p' "$scratch/client.err" | tail -1)
  case $(query "$scratch/client.out" "(lambda t, position: (d['ids'] == $expected, '$other' in [h['node'].split('@')[0] for h in t['hops']], ${2:-True}))(d['timings'], ${position:-0})") in
  "(True, True, True)") ;;
  "(False, "*) fail "tokens differ after the failure of $failing" ;;
  "(True, False, "*) fail "the failover to $other did not happen: generate ended before $failing failed" ;;
  *) fail "not so after the failure of $failing: ${2:-}: $(query "$scratch/client.out" 'd["timings"]')" ;;
  esac
}

# end_phase: kills all processes; the next phase has others.
end_phase() { end_all; steps=(); }

for push in "" --push; do
  start_nodes b1 b2
  begin --timeout 120 $push
  kill_node "$failing"
  signal a CONT
  same_text 100 # less than --timeout
  end_phase

  start_nodes b1 b2
  begin --timeout 120 $push
  signal "$failing" TERM # the node migrates its session and leaves: nothing is recomputed
  signal a CONT
  same_text 100 '[t[k] for k in ("failovers", "replicas_promoted", "replayed_tokens")] == [1, 1, 0]'
  wait_end "$failing" 60
  [ $rc = 0 ] || fail "a node that was stopped during generation ended with $rc"
  end_phase

  start_nodes b1 b2
  copied=yes begin --timeout 120 --kv-replica $push
  kill_node "$failing"
  signal a CONT
  # the copy had the prompt at least; how far it was behind then depends on the machine's load
  same_text 100 't["replicas_promoted"] == 1 and t["replayed_tokens"] <= position - t["prefill_tokens"]'
  end_phase

  start_nodes b1 b2
  begin --timeout 20 $push # a quarter of it is left for the failover
  signal "$failing" STOP # hangs
  signal a CONT
  same_text 100
  end_phase
done

# No other node serves the blocks: an error that names them, within --timeout.
for fault in KILL STOP; do
  start_nodes b1
  begin --timeout 5
  signal b1 $fault
  signal a CONT
  before=$(now_ms)
  wait_end client 60
  took=$(($(now_ms) - before))
  [ $took -lt 20000 ] || fail "SIG$fault of the only node was reported after $took ms, with --timeout 5"
  [ $rc = 1 ] || fail "generate ended with $rc instead of 1 when b1 got SIG$fault"
  tail -n 1 "$scratch/client.err" | grep -q '2:4' || fail "the error does not name the blocks 2:4"
  echo "SIG$fault and no other node: reported after $took ms"
  end_phase
done

#!/usr/bin/env bash
# Nodes that fail, hang or drain while text is generated.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
tokens=200

generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens $tokens --ignore-eos --json)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')

# a: 0:2, slowed down so that there is time; b1 and b2: 2:4, one of which is used.
start_redundant_nodes() {
  start_node a "$model" 0:2
  wait_ready a
  start_node b1 "$model" 2:4 --join "${address[a]}"
  start_node b2 "$model" 2:4 --join "${address[a]}"
  wait_ready b1 b2
  sleep 0.3
}

# begin OPTION...: generates in the background until some steps are done, and pauses there, because a is stopped until SIGCONT.
# failing: the node that has the client's session for blocks 2:4.
begin() {
  local try i
  for ((try = 0; try < 5; try++)); do
    slow a
    start client "${generate[@]}" --join "${address[a]}" "$@"
    failing=""
    for ((i = 0; i < 600; i++)); do
      run "$bin/swarm" status --join "${address[a]}" --json
      failing=$(query "$scratch/run.out" '(lambda l: l[0] if len(l) == 1 else "")([n["name"] for n in d["nodes"] if n["name"] != "a" and n.get("steps", 0) and n["sessions"]])' 2>/dev/null)
      [ -n "$failing" ] && break
      kill -0 "${pid[client]}" 2>/dev/null || break
    done
    kill "${pid[slow]}" 2>/dev/null
    wait "${pid[slow]}" 2>/dev/null
    unset "pid[slow]"
    signal a STOP
    sleep 0.1
    [ -n "$failing" ] && kill -0 "${pid[client]}" 2>/dev/null && return
    signal a CONT # generate ended too early
    wait_end client 60
  done
  fail "no node has a session"
}

# same_text SECONDS: the client ends in time, with the expected tokens, over the other node.
same_text() {
  local other=b1
  [ "$failing" = b1 ] && other=b2
  wait_end client "$1"
  [ $rc = 0 ] || fail "generate ended with $rc"
  [ "$(query "$scratch/client.out" 'd["ids"]')" = "$expected" ] || fail "tokens differ after the failure of $failing"
  query "$scratch/client.out" '" ".join(h["node"] for h in d["timings"]["hops"])' | grep -q "$other" ||
    fail "the failover to $other did not happen: generate ended before $failing failed"
}

for push in "" --push; do
  start_redundant_nodes
  begin $push
  kill_node "$failing"
  signal a CONT
  same_text 20 # less than --timeout, which is 30
  end_all

  start_redundant_nodes
  begin $push
  signal "$failing" TERM # the node migrates its session and leaves: nothing is recomputed
  signal a CONT
  same_text 20
  wait_end "$failing" 60
  [ $rc = 0 ] || fail "a node that was stopped during generation ended with $rc"
  [ "$(query "$scratch/client.out" '[d["timings"][k] for k in ("failovers", "replicas_promoted", "replayed_tokens")]')" = "[1, 1, 0]" ] ||
    fail "$failing did not migrate its session: $(query "$scratch/client.out" 'd["timings"]')"
  end_all

  start_redundant_nodes
  begin --kv-replica $push
  kill_node "$failing"
  signal a CONT
  same_text 20
  [ "$(query "$scratch/client.out" '[d["timings"]["replicas_promoted"], d["timings"]["replayed_tokens"] < 3]')" = "[1, True]" ] ||
    fail "the KV replica of $failing was not promoted: $(query "$scratch/client.out" 'd["timings"]')"
  end_all

  start_redundant_nodes
  begin --timeout 10 $push # a quarter of it is left for the failover
  signal "$failing" STOP # hangs
  signal a CONT
  same_text 60
  end_all
done

# No other node serves the blocks: an error that names them, within --timeout.
for fault in KILL STOP; do
  start_node a "$model" 0:2
  wait_ready a
  start_node b1 "$model" 2:4 --join "${address[a]}"
  wait_ready b1
  sleep 0.3
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
  end_all
done

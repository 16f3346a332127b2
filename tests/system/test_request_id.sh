#!/usr/bin/env bash
# A request can be followed by its id through the logs of all nodes, in the order of the route.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 6
start_three "$model" --log-level debug
for push in "" --push; do
  id=order-66.${push#--}x
  succeeds "$bin/swarm" generate --model "$model" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 3 --ignore-eos \
    --request-id "$id" $push --json
  [ "$(query "$scratch/run.out" 'd["timings"]["request_id"]')" = "$id" ] || fail "--json does not contain the request's id"
  for ((i = 0; i < 1200; i++)); do # the client ends before its sessions are closed
    [ "$(cat "$scratch"/{a,b,c}.err | grep -c "session closed request_id=$id ")" = 3 ] && break
    sleep 0.05
  done
  for name in a b c; do grep -h " request_id=$id " "$scratch/$name.err" | sed "s/^/$name /"; done >"$scratch/followed"
  python3 - "$scratch/followed" <<'END' || fail "$id cannot be followed: $(cat "$scratch/followed")"
import re, sys
lines = sorted((l.split(" ", 2)[1], l.split(" ", 2)[0], l) for l in open(sys.argv[1]))
by_time = lambda event: [(node, re.search(r" position=(\d+)", l)) for _, node, l in lines if f" {event} request_id=" in l]
assert sorted(node for node, _ in by_time("session opened")) == ["a", "b", "c"]
assert sorted(node for node, _ in by_time("session closed")) == ["a", "b", "c"]
steps = [(int(p[1]), node) for node, p in by_time("step done")]
assert len(steps) == 9 and sorted(steps) == steps, steps # prompt and two tokens, each over a, b, c
assert [node for _, node in steps] == ["a", "b", "c"] * 3, steps
END
done
# Without an option the id is random; an id that would break a log line is refused.
succeeds "$bin/swarm" generate --model "$model" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 1 --json
id=$(query "$scratch/run.out" 'd["timings"]["request_id"]')
[[ $id =~ ^[0-9a-f]{16}$ ]] && grep -q " request_id=$id " "$scratch/b.err" || fail "there is no random id: $id"
for bad in "" "two words" "$(printf 'x%.0s' {1..41})" 'a=b'; do
  refuses 2 "request-id must have 1 to" "$bin/swarm" generate --model "$model" --join "${address[a]}" --ids-file "$scratch/ids" "--request-id=$bad"
done
stop_three

#!/usr/bin/env bash
# Two volunteers behind two routers that let nothing in, and a client behind a third one: they generate the right text through
# relays, also when the relay dies, and when a volunteer's address changes, in mid-generation.
. "$(dirname "${BASH_SOURCE[0]}")/nat.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
host r1 11
host r2 12
home a 21
home b 22
home c 23

start_at r1 "$model" 0:1 --listen 203.0.113.11:31330
wait_ready r1
start_at r2 "$model" 0:1 --listen 203.0.113.12:31330 --join 203.0.113.11:31330
wait_ready r2
start_at a "$model" 1:3 --join 203.0.113.11:31330 --join 203.0.113.12:31330
start_at b "$model" 3:4 --join 203.0.113.11:31330 --join 203.0.113.12:31330
wait_ready a b
wait_log a 'reached by others.*how=relayed' 60
wait_log b 'reached by others.*how=relayed' 60
grep -q 'reached by others.*how=direct address=203.0.113.12:31330' "$scratch/r2.err" || fail "r2 does not know that it is reached directly"

succeeds "$bin/swarm" generate --model "$model" --local all --ids-file "$scratch/ids" --max-tokens 200 --ignore-eos --json
cp "$scratch/run.out" "$scratch/right"
right=$(query "$scratch/right" 'd["ids"]')
join=(--join 203.0.113.11:31330 --join 203.0.113.12:31330)

succeeds ip netns exec c "$bin/swarm" generate --model "$model" "${join[@]}" --ids-file "$scratch/ids" --max-tokens 200 --ignore-eos --json --timeout 60
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$right" ] || fail "the text through relays is another one"
echo through relays: ok
exit 0

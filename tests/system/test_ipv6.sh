#!/usr/bin/env bash
# IPv6 alone: a node in the open, one behind a router that lets nothing in, and a client behind another one; and machines of a local
# network.
. "$(dirname "${BASH_SOURCE[0]}")/nat.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
host seed 11
host b 12
for name in seed b; do six_only $name; done
six_home c 21
six_home d 22

start_at seed "$model" 0:1 --listen '[2001:db8::11]:31330'
wait_ready seed
start_at b "$model" 1:3 --join '[2001:db8::11]:31330'
start_at c "$model" 3:4 --join '[2001:db8::11]:31330'
wait_ready b c
wait_log b 'reached by others.*how=direct address=\[2001:db8::12\]:31330' 60
wait_log c 'reached by others.*how=relayed address=\[2001:db8::1[12]\]:31330/relay' 60
generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --ignore-eos --max-tokens 24 --json)
succeeds ip netns exec d "${generate[@]}" --join '[2001:db8::11]:31330' --timeout 60
cp "$scratch/run.out" "$scratch/through"
succeeds "${generate[@]}" --local all
[ "$(query "$scratch/through" 'd["ids"]')" = "$(query "$scratch/run.out" 'd["ids"]')" ] || fail "the text through IPv6 is another one"

# Two machines of a local network without IPv4 need no address.
for name in seed b c; do kill_node $name; done
start_at seed "$model" 0:2 --join lan
start_at b "$model" 2:4 --join lan
wait_ready seed b
wait_log seed 'reached by others.*how=direct address=\[2001:db8::11\]:31330' 60
host e 13
six_only e
succeeds ip netns exec e "${generate[@]}" --join lan --timeout 60
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$(query "$scratch/through" 'd["ids"]')" ] || fail "the text of the local network is another one"
exit 0

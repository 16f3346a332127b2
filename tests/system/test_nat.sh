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
for name in a b r1 r2; do "$bin/swarm" keygen --out "$scratch/key-$name" >/dev/null || fail "no key"; done

start_at r1 "$model" 0:1 --listen 203.0.113.11:31330 --identity "$scratch/key-r1" --metrics 203.0.113.11:9100
wait_ready r1
start_at r2 "$model" 0:1 --listen 203.0.113.12:31330 --join 203.0.113.11:31330 --identity "$scratch/key-r2" --metrics 203.0.113.12:9100
wait_ready r2
join=(--join 203.0.113.11:31330 --join 203.0.113.12:31330)
for name in a:1:3 b:3:4; do start_at "${name%%:*}" "$model" "${name#*:}" "${join[@]}" --identity "$scratch/key-${name%%:*}"; done
wait_ready a b
wait_log a 'reached by others.*how=relayed' 60
wait_log b 'reached by others.*how=relayed' 60
wait_log r2 'reached by others.*how=direct address=203.0.113.12:31330' 60

generate=(ip netns exec c timeout -k 2 150 "$bin/swarm" generate --model "$model" "${join[@]}" --ids-file "$scratch/ids" --ignore-eos --json
  --timeout 60 --max-retries 20 --max-tokens)
right() { "$bin/swarm" generate --model "$model" --local all --ids-file "$scratch/ids" --max-tokens "$1" --ignore-eos --json >"$scratch/right" || fail "no reference"; query "$scratch/right" 'd["ids"]'; }
expect_text() { # expect_text N NAME WHAT: the process NAME must end with the right text of N tokens
  wait_end "$2" 150
  [ $rc = 0 ] && [ "$(query "$scratch/$2.out" 'd["ids"]')" = "$(right "$1")" ] || fail "$3: exit code $rc, or another text"
}

start text "${generate[@]}" 64
expect_text 64 text "through relays"
relayed() {
  for host in 11 12; do python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())' http://203.0.113.$host:9100/metrics; done >"$scratch/metrics"
  awk '$1 == "swarm_node_relayed_nodes" { nodes += $2 } $1 == "swarm_node_relayed_bytes_total" { bytes += $2 } END { exit !(nodes == 2 && bytes > 100000) }' "$scratch/metrics"
}
wait_until 30 relayed

# The relay of a volunteer dies in mid-generation: another one takes its place.
of_a=$(sed -n 's/.*reached by others.*address=203.0.113.1\([12]\):31330.relay.*/\1/p' "$scratch/a.err" | tail -1)
relays=$(grep -c 'how=relayed' "$scratch/a.err")
opened=$(grep -c 'session opened' "$scratch/b.err")
start text "${generate[@]}" 160 --emulate-link 100mbit,50ms
wait_log b 'session opened' 60 $((opened + 1))
pause 2
kill -0 "${pid[text]}" 2>/dev/null || fail "the text was complete before the relay could die"
kill_node "r$of_a"
wait_log a 'reached by others.*how=relayed' 60 $((relays + 1))
expect_text 160 text "after the death of a relay"

# A volunteer's machine gets another address in mid-generation.
relays=$(grep -c 'how=relayed' "$scratch/a.err")
opened=$(grep -c 'session opened' "$scratch/b.err")
start text "${generate[@]}" 160 --emulate-link 100mbit,50ms
wait_log b 'session opened' 60 $((opened + 1))
pause 2
kill -0 "${pid[text]}" 2>/dev/null || fail "the text was complete before the address could change"
of_a=$(grep -c 'session opened' "$scratch/a.err")
ip -n a addr del 192.168.1.2/24 dev eth0
ip -n a addr add 192.168.1.77/24 dev eth0 && ip -n a route add default via 192.168.1.1 || fail "the address cannot be changed"
wait_log a 'own address changed.*192.168.1.77' 60
wait_log a 'reached by others.*how=relayed' 60 $((relays + 1))
expect_text 160 text "after a change of address"
[ "$(grep -c 'session opened' "$scratch/a.err")" = "$of_a" ] || fail "the session did not outlast the change of address: $(grep session "$scratch/a.err" | tail -3)"
exit 0

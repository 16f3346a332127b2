#!/usr/bin/env bash
# A router that opens ports: a volunteer behind it is reached through one, by PCP (of IPv4, and through a firewall of IPv6) or
# UPnP-IGD, and the port is closed when the node ends. Older routers, which give ports for a short time or for ever, are asked so.
# Volunteers and a client behind one router, which does not lead its own address back, meet in their local network.
internet=5.5.5 # miniupnpd opens no port where its own address is one of those for documents
. "$(dirname "${BASH_SOURCE[0]}")/nat.sh"
command -v miniupnpd >/dev/null || skip "miniupnpd (packages miniupnpd, miniupnpd-nftables) is not installed"
model=$fixtures/golden/llama
host seed 11
home a 21
start_at seed "$model" 0:2 --listen 5.5.5.11:31330 --relay off
wait_ready seed

ports() { ip netns exec a-router nft list chain inet home prerouting_miniupnpd | grep -c dnat; }

for way in pcp upnp; do
  [ $way = pcp ] && open_ports a enable_natpmp=yes enable_upnp=no || open_ports a enable_natpmp=no enable_upnp=yes
  start_at a "$model" 2:4 --join 5.5.5.11:31330
  wait_ready a
  wait_log a 'reached by others.*how=mapped address=5.5.5.21:31330' 60
  grep -q "by=$way" "$scratch/a.err" || fail "the port was not opened by $way: $(grep router "$scratch/a.err")"
  [ "$(ports)" -ge 1 ] || fail "the router has opened no port by $way"
  stop_node a
  [ "$(ports)" = 0 ] || fail "the port is still open after the node's end ($way)"
  kill_node a-router
done

# asked WHAT [N]: the older router was asked for this N times.
asked() { [ "$(grep -cx "$1" "$scratch/a-router.out")" -ge "${2:-1}" ]; }
old_router() {
  start a-router ip netns exec a-router python3 "$here/../support/old_router.py" 192.168.1.1 5.5.5.21 "$@"
  start_at a "$model" 2:4 --join 5.5.5.11:31330
  wait_ready a
}
old_router natpmp 6 # seconds: it is asked again before they have passed
wait_log a 'router.*address=5.5.5.21:31330 by=nat-pmp' 60
wait_until 60 asked 'tcp 31330 180' 3
wait_until 60 asked 'udp 31330 180' 3
stop_node a
asked 'closed tcp 31330' && asked 'closed udp 31330' || fail "the port is not closed: $(cat "$scratch/a-router.out")"
kill_node a-router

old_router permanent
wait_log a 'router.*address=5.5.5.21:31330 by=upnp' 60
asked 725 && asked 'tcp 31330 0' && asked 'udp 31330 0' || fail "a router without leases was asked otherwise: $(cat "$scratch/a-router.out")"
stop_node a
asked 'closed tcp 31330' && asked 'closed udp 31330' || fail "the port is not closed: $(cat "$scratch/a-router.out")"
kill_node a-router

neighbour b a 3
neighbour c a 4
open_ports a enable_natpmp=yes enable_upnp=no
for name in a:2:3 b:3:4; do start_at "${name%%:*}" "$model" "${name#*:}" --join 5.5.5.11:31330 --join lan; done
wait_ready a b
for name in a b; do wait_log $name 'reached by others.*how=mapped address=5.5.5.21' 150; done
at=$(sed -n 's/.*reached by others.*how=mapped address=\([0-9.:]*\).*/\1/p' "$scratch/a.err" | tail -1)
! ip netns exec c timeout 3 python3 -c 'import socket, sys; socket.create_connection(sys.argv[1].split(":"), 2)' "$at" 2>/dev/null ||
  fail "this router leads $at back: nothing is tested"
golden_ids llama "$scratch/ids" 8
generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 24 --ignore-eos --json)
succeeds ip netns exec c "${generate[@]}" --join 5.5.5.11:31330 --join lan --timeout 60
through=$(query "$scratch/run.out" 'd["ids"]')
succeeds "${generate[@]}" --local all
[ "$through" = "$(query "$scratch/run.out" 'd["ids"]')" ] || fail "the text of nodes behind the same router is another one"
stop_node a
stop_node b

# A firewall of IPv6 opens a port by PCP.
kill_node seed
six_only seed
start_at seed "$model" 0:2 --listen '[2001:db8::11]:31330' --relay off
wait_ready seed
six_home s 41
open_ports s enable_natpmp=yes enable_upnp=no ext_ifname6=eth0
start_at s "$model" 2:4 --join '[2001:db8::11]:31330'
wait_ready s
wait_log s 'reached by others.*how=mapped address=\[2001:db8:41::2\]:31330' 60
grep -q 'by=pcp' "$scratch/s.err" || fail "$(grep router "$scratch/s.err")"
stop_node s
exit 0

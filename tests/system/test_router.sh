#!/usr/bin/env bash
# A router that opens ports: a volunteer behind it is reached through one, by UPnP-IGD or NAT-PMP, and the port is closed when
# the node ends.
internet=5.5.5 # miniupnpd opens no port where its own address is one of those for documents
. "$(dirname "${BASH_SOURCE[0]}")/nat.sh"
command -v miniupnpd >/dev/null || skip "miniupnpd (packages miniupnpd, miniupnpd-nftables) is not installed"
model=$fixtures/golden/llama
host seed 11
home a 21
start_at seed "$model" 0:2 --listen 5.5.5.11:31330 --relay off
wait_ready seed

ports() { ip netns exec a-router nft list chain inet home prerouting_miniupnpd | grep -c dnat; }

for way in nat-pmp upnp; do
  [ $way = nat-pmp ] && open_ports a enable_natpmp=yes enable_upnp=no || open_ports a enable_natpmp=no enable_upnp=yes
  start_at a "$model" 2:4 --join 5.5.5.11:31330
  wait_ready a
  wait_log a 'reached by others.*how=mapped address=5.5.5.21:31330' 60
  [ "$(ports)" -ge 1 ] || fail "the router has opened no port by $way"
  stop_node a
  [ "$(ports)" = 0 ] || fail "the port is still open after the node's end ($way)"
  kill_node a-router
done
exit 0

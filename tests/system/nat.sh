# Functions for tests of nodes behind routers. Sourced, not run, at the top of a test: runs it in network and mount namespaces of
# its own, or skips it. The namespace of the script is the internet, a bridge with addresses $internet.0/24 and 2001:db8::/64.
if [ -z "${SN_OWN_NETWORK:-}" ]; then
  unshare -n -m --propagation private true 2>/dev/null || { echo "network namespaces are not permitted here"; exit 77; }
  SN_OWN_NETWORK=1 exec unshare -n -m --propagation private bash "$0" "$@"
fi
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
command -v ip >/dev/null || skip "ip (package iproute2) is not installed"
command -v nft >/dev/null || skip "nft (package nftables) is not installed"
internet=${internet:-203.0.113}
ip link set lo up
mkdir -p /run/netns && mount -t tmpfs none /run/netns 2>/dev/null && ip link add internet type bridge 2>/dev/null || skip "no bridge can be made here"
ip addr add $internet.1/24 dev internet && ip -6 addr add 2001:db8::1/64 dev internet nodad 2>/dev/null
ip link set internet up

# host NAME NUMBER [BRIDGE]: a machine at $internet.NUMBER.
host() {
  ip netns add "$1" && ip link add "v$1" type veth peer name eth0 netns "$1" && ip link set "v$1" master "${3:-internet}" up &&
    ip -n "$1" addr add "$internet.$2/24" dev eth0 && ip -n "$1" link set lo up && ip -n "$1" link set eth0 up &&
    ip -n "$1" -6 addr add "2001:db8::$2/64" dev eth0 nodad || fail "the machine $1 cannot be made"
}

# home NAME NUMBER: a machine at 192.168.1.2 behind the router NAME-router, whose address outside is $internet.NUMBER. The router
# lets out what comes from inside, and in only the answers to it.
home() {
  host "$1-router" "$2"
  ip -n "$1-router" link add lan type bridge && ip -n "$1-router" addr add 192.168.1.1/24 dev lan && ip -n "$1-router" link set lan up ||
    fail "the home $1 cannot be made"
  neighbour "$1" "$1" 2
  ip netns exec "$1-router" sysctl -q net.ipv4.ip_forward=1 || skip "packets cannot be forwarded here"
  ip netns exec "$1-router" nft -f - <<'END' || skip "nftables cannot be used here"
table inet home {
  chain miniupnpd { }
  chain prerouting_miniupnpd { }
  chain postrouting_miniupnpd { }
  chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
  chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd; oifname "eth0" masquerade; }
  chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept; iifname "lan" accept; jump miniupnpd; }
  chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iifname { "lan", "lo" } accept; }
}
END
}

# neighbour NAME HOME NUMBER: a machine at 192.168.1.NUMBER in that home.
neighbour() {
  ip netns add "$1" && ip -n "$2-router" link add "to_$1" type veth peer name eth0 netns "$1" && ip -n "$2-router" link set "to_$1" master lan up &&
    ip -n "$1" addr add "192.168.1.$3/24" dev eth0 && ip -n "$1" link set lo up && ip -n "$1" link set eth0 up &&
    ip -n "$1" route add default via 192.168.1.1 || fail "the machine $1 cannot be put into the home $2"
}

# six_home NAME NUMBER: a machine at 2001:db8:NUMBER::2, without IPv4, behind the router NAME-router at 2001:db8::NUMBER, which
# translates nothing, lets out what comes from inside, and in only the answers to it.
six_home() {
  host "$1-router" "$2"
  ip netns add "$1" && ip -n "$1-router" link add lan type veth peer name eth0 netns "$1" && ip -n "$1-router" link set lan up &&
    ip -n "$1-router" -6 addr add "2001:db8:$2::1/64" dev lan nodad && ip -n "$1-router" addr add 192.168.1.1/24 dev lan && ip -n "$1" link set lo up && ip -n "$1" link set eth0 up &&
    ip -n "$1" -6 addr add "2001:db8:$2::2/64" dev eth0 nodad && ip -n "$1" -6 route add default via "2001:db8:$2::1" &&
    ip -n "$1-router" -6 route add default via 2001:db8::1 && ip -6 route add "2001:db8:$2::/64" via "2001:db8::$2" || fail "the home $1 cannot be made"
  sysctl -q net.ipv6.conf.all.forwarding=1 && ip netns exec "$1-router" sysctl -q net.ipv6.conf.all.forwarding=1 || skip "packets cannot be forwarded here"
  ip netns exec "$1-router" nft -f - <<'END' || skip "nftables cannot be used here"
table inet home {
  chain miniupnpd { }
  chain prerouting_miniupnpd { }
  chain postrouting_miniupnpd { }
  chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept; iifname "lan" accept; jump miniupnpd; }
}
END
}
# six_only NAME: takes the IPv4 address of the machine away.
six_only() { ip -n "$1" -4 addr flush dev eth0 && ip -n "$1" -6 route add default via 2001:db8::1; }

# open_ports NAME OPTION...: starts the program of the router NAME-router that opens ports.
open_ports() {
  local router=$1-router
  shift
  printf '%s\n' ext_ifname=eth0 listening_ip=lan port=0 "$@" lease_file="$scratch/leases" uuid=00000000-0000-0000-0000-000000000001 \
    upnp_table_name=home upnp_nat_table_name=home upnp_forward_chain=miniupnpd upnp_nat_chain=prerouting_miniupnpd \
    upnp_nat_postrouting_chain=postrouting_miniupnpd 'allow 1024-65535 0.0.0.0/0 1024-65535' >"$scratch/$router.conf"
  start "$router" ip netns exec "$router" miniupnpd -d -P "$scratch/$router.pid" -f "$scratch/$router.conf"
}

# start_at NAME MODEL BLOCKS [option...]: starts a node on that machine.
start_at() {
  local name=$1 model=$2 blocks=$3
  shift 3
  start "$name" ip netns exec "$name" "$bin/swarm-node" --model "$model" --blocks "$blocks" --name "$name" --threads 1 --kv-memory 64MiB "$@"
}

# wait_log NAME PATTERN SECONDS [N]: waits until N lines of the node's log match.
wait_log() {
  local until=$(($(now_ms) + $3 * 1000))
  until [ "$(grep -Ec "$2" "$scratch/$1.err")" -ge "${4:-1}" ]; do
    kill -0 "${pid[$1]}" 2>/dev/null || fail "$1 has ended"
    [ "$(now_ms)" -lt "$until" ] || fail "the log of $1 has no line '$2' after $3 seconds"
    pause 0.05
  done
}

# Functions for programs on machines with slow links between them. Sourced, not run, at the top of a script: runs it in network and
# mount namespaces of its own, or skips it. The links are wan_router's (router.c), and TCP over them is the kernel's.
if [ -z "${SN_OWN_NETWORK:-}" ]; then
  unshare -n -m --propagation private true 2>/dev/null || { echo "network namespaces are not permitted here"; exit 77; }
  SN_OWN_NETWORK=1 exec unshare -n -m --propagation private bash "$0" "$@"
fi
. "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
command -v ip >/dev/null || skip "ip (package iproute2) is not installed"
[ -x "$bin/wan_router" ] || skip "wan_router is not built in $bin"
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun here"

# wan N [CONTROL]: machines wan1 to wanN at 10.99.0.1 to .N, whose TCP has this congestion control (cubic).
wan() {
  local i
  ip link set lo up
  mkdir -p /run/netns && mount -t tmpfs none /run/netns 2>/dev/null || skip "nothing can be mounted here"
  for ((i = 1; i <= $1; i++)); do ip netns add "wan$i" && ip -n "wan$i" link set lo up || skip "no namespaces can be made here"; done
  mkfifo "$scratch/wan"
  exec {wan_commands}<>"$scratch/wan" # both ways: a write waits for no reader
  start router "$bin/wan_router" "$1" "$scratch/wan"
  chrt -f -p 5 "${pid[router]}" 2>/dev/null || : # else it may be late on a busy machine
  wait_until 30 router_answers
  grep -q ready "$scratch/router.out" || skip "$(tail -1 "$scratch/router.err")"
  for ((i = 1; i <= $1; i++)); do
    ip -n "wan$i" addr add "10.99.0.$i/24" dev wan0 && ip -n "wan$i" link set wan0 mtu 1500 txqueuelen 2000 up || fail "wan$i has no address"
    ip netns exec "wan$i" sysctl -qw net.ipv4.tcp_no_metrics_save=1
    ip -n "wan$i" route replace 10.99.0.0/24 dev wan0 src "10.99.0.$i" congctl "${2:-cubic}" || skip "this kernel has no ${2:-cubic}"
  done
}
# link COMMAND...: as router.c has them, such as: link rtt 100
link() { echo "$*" >&"$wan_commands"; }
router_answers() { grep -q ready "$scratch/router.out" || ! kill -0 "${pid[router]}" 2>/dev/null; }
# counted: prints the router's counts since the last time
counted() {
  rm -f "$scratch/counts"
  link count "$scratch/counts"
  wait_until 30 [ -s "$scratch/counts" ]
  cat "$scratch/counts"
}
# at I COMMAND...: runs the command on machine I.
at() { local i=$1; shift; ip netns exec "wan$i" "$@"; }
# start_on I NAME MODEL BLOCKS [option...]: starts a node on machine I.
start_on() {
  local i=$1 name=$2 model=$3 blocks=$4
  shift 4
  start "$name" ip netns exec "wan$i" "$bin/swarm-node" --model "$model" --blocks "$blocks" --name "$name" --threads 1 \
    --listen "10.99.0.$i:7001" --kv-memory 256MiB "$@"
}

#!/usr/bin/env bash
# A node that may listen at any port uses one that is free for TCP and UDP, and reports an error if there is none. In a network
# namespace of its own with few ports.
if [ -z "${SN_OWN_NETWORK:-}" ]; then
  unshare -n true 2>/dev/null || { echo "a network namespace of its own is not permitted here"; exit 77; }
  SN_OWN_NETWORK=1 exec unshare -n bash "$0" "$@"
fi
ip link set lo up || { echo "loopback cannot be set up: install iproute2"; exit 77; }
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
echo "40000 40019" >/proc/sys/net/ipv4/ip_local_port_range || skip "the range of ports cannot be set here"
model=$fixtures/golden/llama

# hold PORT...: another process uses these ports for UDP, or with the option TCP for this.
hold() {
  start holder python3 -uc 'import socket, sys, time
tcp = sys.argv[1] == "TCP"
held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) for _ in sys.argv[1 + tcp:]]
for s, port in zip(held, sys.argv[1 + tcp:]): s.bind(("127.0.0.1", int(port))); tcp and s.listen()
print("ready: address=none", flush=True)
time.sleep(600)' "$@"
  wait_ready holder
}

hold $(seq 40001 4 40019) # half of the ports that the kernel assigns first
for i in {1..10}; do
  start_node a "$model" 0:1
  wait_ready a
  stop_node a
done
kill_node holder

hold $(seq 40000 40019)
refuses 2 "UDP port.*--listen" "$bin/swarm-node" --model "$model" --blocks 0:1 --listen 127.0.0.1:0
refuses 2 "UDP port.*40003.*--listen" "$bin/swarm-node" --model "$model" --blocks 0:1 --listen 127.0.0.1:40003
kill_node holder

# A program that was killed holds its ports until its memory is freed: they are waited for, though not for long.
for kind in TCP ""; do
  hold $kind 40005
  start_node b "$model" 0:1 --listen 127.0.0.1:40005 --log-level info
  wait_until 30 grep -q "port in use" "$scratch/b.err"
  kill_node holder
  wait_ready b
  stop_node b
done
hold TCP 40005
refuses 2 "40005 is in use by another program.*--listen" "$bin/swarm-node" --model "$model" --blocks 0:1 --listen 127.0.0.1:40005
kill_node holder

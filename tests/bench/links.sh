#!/usr/bin/env bash
# What a client waits for over slow links, of which three nodes make a chain: TCP of the kernel through a router with delay and a
# rate (tests/support/wan). Prints a table in Markdown. Needs the rights to make network namespaces, and python3.
#
#     SN_BUILD=build tests/bench/links.sh [-c CONTROL] [-l LOSS] [-q] [RTT...]        RTT in ms: 20 100 200
#
# Rows of 9 and 16 KB: models of width 2,304 and 4,096 that compute little. CONTROL: of TCP, cubic or bbr. LOSS: in percent. -q: short, to
# see that everything runs. cold: until the first token of a new client. turn: until the first token of an answer to 100
# tokens, after a pause. silent: the longest wait for a token when the cable of a node is pulled, for which another is known.
. "$(dirname "${BASH_SOURCE[0]}")/../support/wan/wan.sh"
control=cubic loss=0 prompt=2000 shapes='row-9k row-16k' ways='client push'
while getopts c:l:q option; do
  case $option in
  c) control=$OPTARG ;; l) loss=$OPTARG ;;
  q) prompt=200 shapes=row-9k ways=push ;;
  *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- 20 100 200
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $control, loss $loss %," \
  "$(git -C "$here" describe --always --dirty 2>/dev/null || echo no commit), $(date +%F)"
wan 5 "$control"
link rate 100
printf '\n| round trip, ms | row | way | decode, ms | cold, ms | turn, ms | prompt, tok/s | silent, ms |\n%s\n' '| --- | --- | --- | --- | --- | --- | --- | --- |'

start_chain() {
  link rtt "$2" # from the beginning: TCP remembers the shortest round trip of a connection
  link loss "$loss"
  start_on 2 a "$1" 0:1
  wait_ready a
  start_on 3 b "$1" 1:2 --join 10.99.0.2:7001
  start_on 4 c "$1" 2:3 --join 10.99.0.2:7001
  start_on 5 d "$1" 1:2 --join 10.99.0.2:7001
  wait_ready b c d
  pause 2
}
# Pulls the cable of the node that computes the middle when the client has 20 tokens.
pull_cable() {
  wait_file pulled
  local used=3
  [ "$(grep -c 'session opened' "$scratch/d.err")" -gt "$opened" ] && used=5
  link down $used
}
measure() {
  local model=$1 rtt=$2 way=$3 figures silent opened
  start_chain "$model" "$rtt"
  figures=$(at 1 timeout 280 "$bin/tests/bench_links" "$model" 10.99.0.2:7001 "$way" "$prompt") || fail "$way $rtt"
  opened=$(grep -c 'session opened' "$scratch/d.err")
  rm -f "$scratch/pulled"
  pull_cable & pulling=$!
  silent=$(at 1 timeout 280 "$bin/tests/bench_links" "$model" 10.99.0.2:7001 "$way" 0 "$scratch/pulled") || fail "silent: $way $rtt"
  wait $pulling
  for i in 3 5; do link up $i; done
  end_chain
  read -r cold decode turn rate _ <<<"$figures"
  echo "| $rtt | ${shape#row-} | $way | $decode | $cold | $turn | $rate | ${silent% *} |"
}
end_chain() { for name in a b c d; do kill_node $name; done; }

for shape in $shapes; do
  python3 "$here/../bench/synthetic_model.py" "$scratch/$shape.gguf" --shape "$shape" --type Q8_0 --blocks 3
  for rtt; do for way in $ways; do measure "$scratch/$shape.gguf" "$rtt" "$way"; done; done
done
echo
echo "the router was late by, us (mean, most): $(counted | tail -1)"

#!/usr/bin/env bash
# A seed with a model; three volunteers behind routers, who know its address and have no file, fetch the model from it and from
# each other and cover it twice; a person behind a fourth router, who has no file either, chats; the seed leaves in the middle of an
# answer; everything goes on. One router opens ports, so that the swarm keeps a relay.
internet=5.5.5 # miniupnpd opens no port where its own address is one of those for documents
. "$(dirname "${BASH_SOURCE[0]}")/nat.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "a model with many blocks: SN_TEST_MODEL"
command -v miniupnpd >/dev/null || skip "miniupnpd (packages miniupnpd, miniupnpd-nftables) is not installed"
host seed 11
home a 21
home b 22
home c 23
home d 24
open_ports a enable_natpmp=yes enable_upnp=no

# volunteer NAME [option...]: `swarm-node --join ADDRESS`, on that machine; the other options keep the machines apart.
volunteer() {
  local name=$1
  shift
  start "$name" ip netns exec "$name" "$bin/swarm-node" --join $internet.11:31330 --name "$name" --threads 1 --kv-memory 64MiB \
    --cache "$scratch/cache-$name" "$@"
}
sent() { ip netns exec "$1" sed -n 's/^ *eth0: *\([0-9]* *\)\{8\}\([0-9]*\).*/\2/p' /proc/net/dev; } # bytes that a machine has sent
# covered ADDRESS N: waits until each block is served by N nodes, as the person's machine sees it.
covered() {
  local until=$(($(now_ms) + 60000))
  until ip netns exec d "$bin/swarm" status --join "$1" --json >"$scratch/status" 2>&1 &&
    [ "$(query "$scratch/status" 'min(d["coverage"][0]["nodes_per_block"])')" = "$2" ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "not each block is served by $2 nodes: $(cat "$scratch/status")"
    pause 0.3
  done
}

start_at seed "$SN_TEST_MODEL" all --listen $internet.11:31330
wait_ready seed
volunteer a
wait_ready a
grep -q "^chose model 'Smollm2 " "$scratch/a.out" || fail "a does not say what it chose: $(head -1 "$scratch/a.out")"
wait_log a "reached by others.*how=mapped address=$internet.21:31330" 60
wait_log a 'weights shared' 60
before=$(sent a)
volunteer b --blocks auto:15
wait_ready b # two that start within the same moments may choose the same blocks
volunteer c --blocks auto:15
wait_ready c
for name in b c; do wait_log $name 'reached by others.*how=relayed' 60; done
[ $(($(sent a) - before)) -gt 10000000 ] || fail "b and c fetched nothing from a"
covered $internet.11:31330 3

# A chat, and the same chat of a program with the file.
questions=('Tell me a story about a fox.' 'Tell me another one.' 'And one about a crow.')
chat=("$bin/swarm" chat --temperature 0 --max-tokens 80)
for n in 1 2 3; do
  printf '%s\n' "${questions[@]:0:n}" | timeout 100 "${chat[@]}" --model "$SN_TEST_MODEL" --local all >"$scratch/right.$n" || fail "no reference"
done
mkfifo "$scratch/questions"
exec {ask}<>"$scratch/questions"
start chat ip netns exec d bash -c 'exec "${@:2}" <"$1"' - "$scratch/questions" "${chat[@]}" --join $internet.11:31330 \
  --cache "$scratch/cache-d" --timeout 60 --max-retries 20
# said BYTES: waits until the chat has said so much.
said() {
  local until=$(($(now_ms) + 120000))
  until [ "$(stat -c %s "$scratch/chat.out")" -ge "$1" ]; do
    kill -0 "${pid[chat]}" 2>/dev/null || fail "the chat has ended"
    [ "$(now_ms)" -lt "$until" ] || fail "the chat has said $(stat -c %s "$scratch/chat.out") bytes, and not $1"
    pause 0.02
  done
}
answer() { stat -c %s "$scratch/right.$1"; } # bytes of so many answers
echo "${questions[0]}" >&"$ask"
said "$(answer 1)"
echo "${questions[1]}" >&"$ask"
said $(($(answer 1) + 30))
kill_node seed
[ "$(stat -c %s "$scratch/chat.out")" -lt "$(answer 2)" ] || fail "the answer was complete before the seed could leave"
said "$(answer 2)"
for name in b c; do wait_log $name "reached by others.*how=relayed address=$internet.21" 60; done
echo "${questions[2]}" >&"$ask"
said "$(answer 3)"
echo /exit >&"$ask"
wait_end chat 60
[ $rc = 0 ] && cmp -s "$scratch/right.3" "$scratch/chat.out" || fail "exit code $rc, or other answers: $(cat "$scratch/chat.out")"

# Another person comes by the address of a volunteer.
covered $internet.21:31330 2
succeeds ip netns exec d "$bin/swarm" generate --join $internet.21:31330 --cache "$scratch/cache-e" --prompt 'The capital of France is' --max-tokens 8 --temperature 0 --only b --only c
cp "$scratch/run.out" "$scratch/text"
succeeds "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all --prompt 'The capital of France is' --max-tokens 8 --temperature 0
cmp -s "$scratch/run.out" "$scratch/text" || fail "another text"
exit 0

#!/usr/bin/env bash
# swarm serve with a crowd of clients over a tiny model: every text is right while others leave and look, a node is killed, and SIGTERM
# comes. Short enough for ThreadSanitizer.
. "$(dirname "$0")/lib.sh"
text_model
client() { timeout -k 2 200 python3 "$here/serve_client.py" "$@" || fail "$1"; }
start_node a "$scratch/model" all --client-sessions 0 --device cpu
wait_ready a
start_node b "$scratch/model" all --client-sessions 0 --device cpu --join "${address[a]}"
wait_ready b
start server "$bin/swarm" serve --model "$scratch/model" --served-model-name tiny --join "${address[a]}" --join "${address[b]}" \
  --listen 127.0.0.1:0 --max-sessions 4 --queue 40
wait_ready server
url=http://${address[server]}
client crowd "$url" "$scratch/begun" &
asking=$! pid[asking]=$!
wait_file begun
killed=$(cat "$scratch/begun")
kill_node "$killed"
wait "$asking"; rc=$?; unset "pid[asking]"
[ $rc = 0 ] || fail "a crowd"

[ "$killed" = a ] && left=b || left=a
slow $left
client ending "$url" "${pid[$left]}" "${pid[slow]}" "$scratch/answering" "$scratch/draining" &
asking=$! pid[asking]=$!
wait_file answering
signal server TERM
wait_file draining
signal $left CONT
wait "${pid[slow]}" 2>/dev/null; unset "pid[slow]"
wait "$asking"; rc=$?; unset "pid[asking]"
[ $rc = 0 ] || fail "SIGTERM in the middle of an answer"
wait_end server 60
[ $rc = 0 ] || fail "after SIGTERM the server ended with exit code $rc"
stop_node $left

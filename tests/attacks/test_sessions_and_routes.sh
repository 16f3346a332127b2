#!/usr/bin/env bash
# One stranger opens as many sessions as a node gives it, four take all of them again and again, and another one asks it to push to 40
# addresses. A client generates the same text meanwhile. The stranger gets a quarter of the sessions, which are free seconds after it hung
# up; a crashed client does not hold up the end of the node; and the node dials few of the addresses.
. "$(dirname "${BASH_SOURCE[0]}")/attacked.sh"
attacked 8
sessions() { succeeds "$bin/swarm" status --join "${address[a]}" --json; query "$scratch/run.out" 'd["nodes"][0]["sessions"]'; }
succeeds python3 "$here/../attacks/stranger.py" "${address[a]}" hoard 64
grep -q '^opened 16 .*sessions per client' "$scratch/run.out" || fail "the stranger got: $(cat "$scratch/run.out")"
honest "a stranger that hung up"
for ((i = 0; i < 60; i++)); do n=$(sessions); [ "$n" = 0 ] && break; sleep 0.5; done
[ "$n" = 0 ] || fail "$n sessions of a client that hung up are still open after 30 seconds"

# Four strangers together may have all sessions, and open others as soon as they lose some.
succeeds "$bin/swarm" status --join "${address[a]}" --json
MODEL=$(query "$scratch/run.out" 'd["nodes"][0]["model"]')
MODEL=$MODEL SHAPE=256,64,4 start flood python3 "$here/flood_client.py" "${address[a]}" sessions 3600
for ((i = 0; i < 100; i++)); do n=$(sessions); [ "$n" = 64 ] && break; sleep 0.1; done
[ "$n" = 64 ] || fail "four strangers have $n sessions"
for _ in 1 2 3; do honest "four strangers"; done
kill_node flood # still at it
for ((i = 0; i < 60; i++)); do n=$(sessions); [ "$n" = 0 ] && break; sleep 0.5; done
[ "$n" = 0 ] || fail "$n sessions of four clients that were killed are still open after 30 seconds"

succeeds python3 "$here/../attacks/stranger.py" "${address[a]}" dial 40
dialled=$(sed -n 's/^dialled //p' "$scratch/run.out")
[ "$dialled" -ge 1 ] && [ "$dialled" -le 8 ] || fail "the node dialled $dialled addresses for one client"
honest "the routes"
start crashing python3 "$here/../attacks/stranger.py" "${address[a]}" hold 300
for ((i = 0; i < 100; i++)); do grep -q '^held open_reply' "$scratch/crashing.out" && break; sleep 0.1; done
kill_node crashing
began=$(now_ms)
stop_node a # drains
took=$(($(now_ms) - began))
[ $took -lt 20000 ] || fail "a client that was killed held the node up for $took ms"

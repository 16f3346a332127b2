#!/usr/bin/env bash
# Kimi K2's folder as it is published (139,583 tensors, a terabyte in 61 files, which are holes here): every command opens it, a node of its
# first block reads that block's bytes and serves, makes the manifest of the terabyte beside its work, and ends when it is told to; a client
# says which blocks are missing.
. "$(dirname "$0")/lib.sh"
python3 "$here/../support/published_folder.py" kimi "$scratch/k2" >"$scratch/made" || fail "the folder was not made: $(cat "$scratch/made")"
grep -q '^139583 tensors' "$scratch/made" || fail "another folder was made: $(cat "$scratch/made")"
succeeds "$bin/swarm" inspect --model "$scratch/k2"
grep -q 'blocks *61' "$scratch/run.out" || fail "inspect does not find 61 blocks: $(cat "$scratch/run.out")"

start_node a "$scratch/k2" 0:1 --kv-memory 64MiB
wait_until 120 grep -q 'making the manifest' "$scratch/a.err"
wait_ready a
lines=$(grep -o -E ' (loading|serving) blocks=0:1|making the manifest' "$scratch/a.err" | tr -d '\n')
[ "$lines" = ' loading blocks=0:1 serving blocks=0:1making the manifest' ] || fail "the manifest goes before the work: $lines"
echo '[1, 2, 3]' >"$scratch/ids"
refuses 1 'no node serves blocks 1:61' "$bin/swarm" forward --model "$scratch/k2" --join "${address[a]}" --ids-file "$scratch/ids" --out "$scratch/out"
signal a TERM
wait_end a 60
[ "$rc" = 0 ] || fail "a node that makes a manifest ended with $rc"

#!/usr/bin/env bash
# docs/PROTOCOL.md is enough to write a client: a client in Python, written from the document alone, talks to a real node.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for dtype in f32 f16 q8; do
  start_node a "$fixtures/golden/llama" all --kv-dtype $dtype
  wait_ready a
  run python3 "$here/protocol_client.py" "${address[a]}" "$fixtures/golden/llama/golden.safetensors" "$here/../../docs/PROTOCOL.md"
  [ $rc = 77 ] && skip "$(cat "$scratch/run.out")"
  [ $rc = 0 ] || { cat "$scratch/run.err" >&2; fail "the client written from the document failed with keys and values in $dtype"; }
  cat "$scratch/run.out"
  stop_node a
done

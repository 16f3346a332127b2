#!/usr/bin/env bash
# swarm bench runs, reports, ends its nodes, and refuses invalid combinations. Numbers must be present; their values are not checked.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$scratch/model # a path of its own, by which the test finds the nodes
cp -r "$fixtures/golden/llama" "$model"
bench=("$bin/swarm" bench --model "$model" --prompt-tokens 12 --new-tokens 6 --repeat 2)

nodes_left() { # prints their process ids
  local file
  for file in /proc/[0-9]*/cmdline; do
    tr '\0' ' ' <"$file" | grep -q "swarm-node --model $model " && basename "$(dirname "$file")"
  done 2>/dev/null # some end before they are read
}
wait_no_nodes() {
  local until=$(($(now_ms) + 60000))
  while [ -n "$(nodes_left)" ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "nodes are left: $(nodes_left)"
    sleep 0.02
  done
}

# Nodes that bench starts, every list, every report.
succeeds "${bench[@]}" --nodes 2,1 --context 0,9 --sessions 1,3 --threads 1,2 --batch 2 --concurrent-prefill 20 --kill replay --emulate-link none \
  --emulate-link 1gbit,4ms,1ms --json-file "$scratch/b.json" --csv-file "$scratch/b.csv" --html-file "$scratch/b.html"
[ -z "$(nodes_left)" ] || fail "nodes outlive the benchmark"
[ "$(grep -Ec '^ *[0-9]+  speed ' "$scratch/run.out")" = 6 ] || fail "the table does not have the requested lines"
query "$scratch/b.json" 'all([
  [(r["test"], r["nodes"], r["threads"], r["link"], r["sessions"], r["context"]) for r in d["rows"]] == [
    ("speed", 2, 1, "none", 1, 0), ("speed", 2, 1, "none", 1, 9), ("speed", 2, 1, "none", 3, 0), ("speed", 2, 2, "none", 1, 0),
    ("speed", 1, 1, "none", 1, 0), ("forward", 2, 1, "none", 2, 0), ("concurrent", 2, 1, "none", 3, 0), ("replay", 2, 1, "none", 1, 0),
    ("speed", 2, 1, "1gbit,4ms,1ms", 1, 0), ("forward", 2, 1, "1gbit,4ms,1ms", 2, 0), ("concurrent", 2, 1, "1gbit,4ms,1ms", 3, 0), ("replay", 2, 1, "1gbit,4ms,1ms", 1, 0)],
  all(r["prefill_tok_s"] > 0 and r["decode_tok_s"] > 0 and r["ttft_ms"] > 0 for r in d["rows"] if r["test"] == "speed"),
  all(0 < r["itl_ms"]["p50"] <= r["itl_ms"]["p95"] <= r["itl_ms"]["p99"] for r in d["rows"] if r["test"] != "forward"),
  all(r["decode_tok_s_range"][0] <= r["decode_tok_s"] <= r["decode_tok_s_range"][1] for r in d["rows"] if r["test"] == "speed"),
  all(r["forward_tok_s"] > 0 for r in d["rows"] if r["test"] == "forward"),
  all(r["recovery_ms"] > 0 and r["same_text"] for r in d["rows"] if r["test"] == "replay"),
  [h["blocks"] for h in d["rows"][0]["hops"]] == ["0:2", "2:4"], len(d["rows"][4]["hops"]) == 1,
  all(sum(h["network_ms"] for h in r["hops"]) > 8 for r in d["rows"] if r["link"] != "none" and r["test"] == "speed"),
  d["machine"]["cores"] > 0, d["machine"]["cpu"], d["model"]["n_blocks"] == 4])' | grep -qx True ||
  fail "the report is not the requested one: $(cat "$scratch/b.json")"
[ "$(wc -l <"$scratch/b.csv")" = 13 ] || fail "the CSV has a wrong number of lines"
[ "$(head -1 "$scratch/b.csv" | tr ',' '\n' | wc -l)" = 40 ] || fail "the CSV has a wrong number of columns"
python3 - "$scratch/b.html" <<'END' || fail "the HTML report is not complete"
import sys, xml.etree.ElementTree as tree
text = open(sys.argv[1]).read()
plots = text.split("<svg")[1:]
assert len(plots) == 4 * 2 + 8, len(plots)
for p in plots: tree.fromstring("<svg" + p.split("</svg>")[0] + "</svg>")
assert "src=" not in text and "href=" not in text
END

succeeds "${bench[@]}" --nodes 2 --answers --sessions 1,3 --json
query "$scratch/run.out" '[(r["test"], r["sessions"]) for r in d["rows"]] == [("answers", 1), ("answers", 3)] and all(
  r["answer_tok_s"] > 0 and r["ttft_ms"] > 0 and r["itl_ms"]["p50"] > 0 and "decode_tok_s" not in r for r in d["rows"])' |
  grep -qx True || fail "whole answers are not measured: $(cat "$scratch/run.out")"

succeeds "${bench[@]}" --nodes 2 --kill migration --kill replica --kill none --context 20 --prompt-tokens 5 --new-tokens 40 --repeat 3 --warmup 0 --json
query "$scratch/run.out" '[r["test"] for r in d["rows"]] == ["speed", "migration", "replica", "none"] and all(
  r["same_text"] and r["recovery_ms"] > 0 for r in d["rows"][1:])' | grep -qx True || fail "a lost node changed the text"

# Texts with and without draft tokens, which must be the same.
succeeds "${bench[@]}" --nodes 2 --push --draft ngram --draft-model "$model" --draft-tokens 5 --new-tokens 30 --json
query "$scratch/run.out" 'all([
  [(r["draft"], r["repetitive"]) for r in d["rows"][1:]] == [(w, t) for t in (True, False) for w in ("off", "ngram", "model")],
  all(r["test"] == "draft" and r["same_text"] and r["decode_tok_s"] > 0 and r["decode_tokens"] == 2 * 29 for r in d["rows"][1:]),
  all(r["drafted"] == 0 and r["decode_steps"] == 2 * 29 for r in d["rows"] if r.get("draft") == "off"),
  all(r["accepted"] == r["drafted"] > 30 and r["decode_steps"] < 29 for r in d["rows"] if r.get("draft") == "model")])' |
  grep -qx True || fail "drafts changed a text, or there were none: $(cat "$scratch/run.out")"

# Local blocks, nodes that push, an existing swarm, which must keep running.
succeeds "${bench[@]}" --local all --json
[ "$(query "$scratch/run.out" 'd["rows"][0]["hops"][0]["node"]')" = local ] || fail "--local all does not use local blocks"
succeeds "${bench[@]}" --nodes 3 --push --wire-dtype bf16 --json
query "$scratch/run.out" 'd["rows"][0]["push"] and d["rows"][0]["wire_dtype"] == "BF16" and len(d["rows"][0]["hops"]) == 3' | grep -qx True || fail "--push does not push"
start_node a "$fixtures/golden/llama" all
wait_ready a
succeeds "${bench[@]}" --join "${address[a]}" --json
stop_node a

# Training: forward and backward, with lists of its own.
succeeds "${bench[@]}" --nodes 1,3 --batch 2,3 --train lora --train head --csv-file "$scratch/t.csv" --html-file "$scratch/t.html" --json
query "$scratch/run.out" '[(r["test"], r["method"], r["nodes"], r["sessions"]) for r in d["rows"]] == [("train", m, n, s)
  for m in ("lora", "head") for n, s in ((1, 2), (1, 3), (3, 2))] and all(
  0 < r["train_tok_s_range"][0] <= r["train_tok_s"] <= r["train_tok_s_range"][1] for r in d["rows"])' | grep -qx True ||
  fail "the report of training is not the requested one: $(cat "$scratch/run.out")"
[ "$(wc -l <"$scratch/t.csv")" = 7 ] || fail "the CSV of training has a wrong number of lines"
succeeds "${bench[@]}" --local all --train prompt --train deep-prompt
[ "$(grep -c 'forward+backward' "$scratch/run.out")" = 2 ] || fail "the table of training has wrong lines"

# Interrupted: its nodes end with it.
for sig in INT KILL; do
  start long "$bin/swarm" bench --model "$model" --nodes 2 --new-tokens 200 --prompt-tokens 9 --repeat 1000
  until=$(($(now_ms) + 60000))
  until [ "$(nodes_left | wc -l)" = 2 ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "its nodes have not started after 60 s"
    sleep 0.02
  done
  sleep 0.3
  signal long $sig
  wait_end long 60
  [ $sig = KILL ] || [ $rc = 130 ] || fail "interrupted, it ended with $rc"
  wait_no_nodes
done

# The swarm fails during a measurement.
start_node a "$fixtures/golden/llama" all
wait_ready a
start long "$bin/swarm" bench --model "$model" --join "${address[a]}" --sessions 3 --new-tokens 200 --prompt-tokens 9 --repeat 1000 --timeout 10
until=$(($(now_ms) + 60000))
until run "$bin/swarm" status --join "${address[a]}" --json && [ "$(query "$scratch/run.out" 'd["nodes"][0].get("sessions", 0)')" = 3 ]; do
  [ "$(now_ms)" -lt "$until" ] || fail "no sessions after 60 s"
  sleep 0.02
done
kill_node a
wait_end long 60
[ $rc = 1 ] || fail "without its swarm it ended with $rc"

refuses 2 "give one of --nodes N" "${bench[@]}"
refuses 2 "give one of --nodes N" "${bench[@]}" --nodes 2 --local all
refuses 2 "one session" "${bench[@]}" --local all --sessions 1,2
refuses 2 "sends nothing" "${bench[@]}" --local all --emulate-link 1gbit,1ms
refuses 2 "needs --nodes" "${bench[@]}" --local all --kill replay
refuses 2 "wire-dtype: .q4. must be f32, bf16, f16 or q8" "${bench[@]}" --nodes 2 --wire-dtype q4
refuses 2 "leave out --wire-dtype" "${bench[@]}" --nodes 2 --wire-dtype q8 --train lora
# One node: the client learns of the node that takes the place of the one that it lost.
succeeds "${bench[@]}" --nodes 1 --kill replay --json
query "$scratch/run.out" 'd["rows"][1]["same_text"] and d["rows"][1]["recovery_ms"] > 0' | grep -qx True || fail "a lost node changed the text"

# A case that fails: what was measured before it is reported and written. Two nodes cannot have one port.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
refuses 2 "did not start.*in use" "${bench[@]}" --nodes 1,2 --node-option="--listen=127.0.0.1:$port" --json-file "$scratch/part.json" --html-file "$scratch/part.html"
[ "$(query "$scratch/part.json" 'len(d["rows"]), "in use" in d["failure"]')" = "(1, True)" ] || fail "the report lacks what was measured"
grep -Eq '^ +1  speed' "$scratch/run.out" || fail "the table lacks what was measured: $(cat "$scratch/run.out")"
grep -q '<th>row<th>test' "$scratch/part.html" || fail "rows have no numbers"
grep -Eq 'training tok/s|recovery ms' "$scratch/part.html" && fail "the report has empty columns"

# Reports are tried before anything is measured, and replaced only with --force.
refuses 2 "json-file: .*part.json exists already.*--force" "$bin/swarm" bench --model /nonexistent --local all --json-file "$scratch/part.json"
succeeds "${bench[@]}" --local all --json-file "$scratch/part.json" --force
[ "$(query "$scratch/part.json" '"failure" in d')" = False ] || fail "--force does not replace a report"

refuses 2 "replay, replica, migration or none" "${bench[@]}" --nodes 2 --kill fire
refuses 2 "is no link" "${bench[@]}" --nodes 2 --emulate-link 1gbit
refuses 2 "draft: .oracle. must be auto, off, ngram or mtp" "${bench[@]}" --nodes 2 --draft oracle
refuses 2 "measures training only" "${bench[@]}" --local all --train lora --sessions 2
refuses 2 "train: .magic. must be prompt, deep-prompt, lora or head" "${bench[@]}" --local all --train magic
refuses 2 "16 virtual tokens exceed the context of this model, 256" "${bench[@]}" --local all --train lora --prompt-tokens 250
refuses 2 "has 4 blocks" "${bench[@]}" --nodes 5
refuses 2 "sessions: .x." "${bench[@]}" --nodes 2 --sessions 1,x
refuses 2 "exceed the context of this model, 256" "${bench[@]}" --nodes 2 --context 250
refuses 2 "nodes that --nodes starts" "${bench[@]}" --local all --node-option=--isa=c
refuses 2 "did not start.*toaster" "${bench[@]}" --nodes 1 --node-option=--isa=toaster
refuses 2 "cannot be written" "$bin/swarm" bench --model /nonexistent --local all --csv-file /nonexistent/b.csv

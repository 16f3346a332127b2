#!/usr/bin/env bash
# swarm bench runs, reports, ends its nodes, and refuses what does not go together. Figures are not looked at, but for being there.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$scratch/model # a path of its own, by which its nodes are found
cp -r "$fixtures/golden/llama" "$model"
bench=("$bin/swarm" bench --model "$model" --prompt-tokens 12 --new-tokens 6 --repeat 2)

nodes_left() { # their ids
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

# Nodes of its own, every list, every report.
succeeds "${bench[@]}" --nodes 2,1 --context 0,9 --sessions 1,3 --threads 1,2 --batch 2 --beside 20 --kill replay --link none \
  --link 1gbit,4ms,1ms --json "$scratch/b.json" --csv "$scratch/b.csv" --html "$scratch/b.html"
[ -z "$(nodes_left)" ] || fail "nodes outlive the benchmark"
[ "$(grep -c '^speed ' "$scratch/run.out")" = 6 ] || fail "the table has other lines than those asked for"
query "$scratch/b.json" 'all([
  [(r["what"], r["nodes"], r["threads"], r["link"], r["sessions"], r["context"]) for r in d["rows"]] == [
    ("speed", 2, 1, "none", 1, 0), ("speed", 2, 1, "none", 1, 9), ("speed", 2, 1, "none", 3, 0), ("speed", 2, 2, "none", 1, 0),
    ("speed", 1, 1, "none", 1, 0), ("forward", 2, 1, "none", 2, 0), ("beside", 2, 1, "none", 3, 0), ("replay", 2, 1, "none", 1, 0),
    ("speed", 2, 1, "1gbit,4ms,1ms", 1, 0), ("forward", 2, 1, "1gbit,4ms,1ms", 2, 0), ("beside", 2, 1, "1gbit,4ms,1ms", 3, 0), ("replay", 2, 1, "1gbit,4ms,1ms", 1, 0)],
  all(r["prefill_tok_s"] > 0 and r["decode_tok_s"] > 0 and r["ttft_ms"] > 0 for r in d["rows"] if r["what"] == "speed"),
  all(0 < r["itl_ms"]["p50"] <= r["itl_ms"]["p95"] <= r["itl_ms"]["p99"] for r in d["rows"] if r["what"] != "forward"),
  all(r["decode_tok_s_range"][0] <= r["decode_tok_s"] <= r["decode_tok_s_range"][1] for r in d["rows"] if r["what"] == "speed"),
  all(r["forward_tok_s"] > 0 for r in d["rows"] if r["what"] == "forward"),
  all(r["recovery_ms"] > 0 and r["same_text"] for r in d["rows"] if r["what"] == "replay"),
  [h["blocks"] for h in d["rows"][0]["hops"]] == ["0:2", "2:4"], len(d["rows"][4]["hops"]) == 1,
  all(sum(h["network_ms"] for h in r["hops"]) > 8 for r in d["rows"] if r["link"] != "none" and r["what"] == "speed"),
  d["machine"]["cores"] > 0, d["machine"]["cpu"], d["model"]["n_blocks"] == 4])' | grep -qx True ||
  fail "the report is not the one that was asked for: $(cat "$scratch/b.json")"
[ "$(wc -l <"$scratch/b.csv")" = 13 ] || fail "the CSV has other lines"
[ "$(head -1 "$scratch/b.csv" | tr ',' '\n' | wc -l)" = 37 ] || fail "the CSV has other columns"
python3 - "$scratch/b.html" <<'END' || fail "the HTML report is not whole"
import sys, xml.etree.ElementTree as tree
text = open(sys.argv[1]).read()
plots = text.split("<svg")[1:]
assert len(plots) == 4 * 2 + 8, len(plots)
for p in plots: tree.fromstring("<svg" + p.split("</svg>")[0] + "</svg>")
assert "src=" not in text and "href=" not in text
END

succeeds "${bench[@]}" --nodes 2 --kill handover --kill replica --prompt-tokens 5 --new-tokens 40 --repeat 3 --warmup 0 --json -
query "$scratch/run.out" '[r["what"] for r in d["rows"]] == ["speed", "handover", "replica"] and all(
  r["same_text"] and r["recovery_ms"] > 0 for r in d["rows"][1:])' | grep -qx True || fail "a loss changed the text"

# Texts with guesses and without, which must be the same.
succeeds "${bench[@]}" --nodes 2 --push --draft ngram --draft-model "$model" --draft-tokens 5 --new-tokens 30 --json -
query "$scratch/run.out" 'all([
  [(r["draft"], r["repeats"]) for r in d["rows"][1:]] == [(w, t) for t in (True, False) for w in ("off", "ngram", "model")],
  all(r["what"] == "draft" and r["same_text"] and r["decode_tok_s"] > 0 and r["decode_tokens"] == 2 * 29 for r in d["rows"][1:]),
  all(r["guessed_tokens"] == 0 and r["decode_steps"] == 2 * 29 for r in d["rows"] if r.get("draft") == "off"),
  all(r["guessed_right"] == r["guessed_tokens"] > 30 and r["decode_steps"] < 29 for r in d["rows"] if r.get("draft") == "model")])' |
  grep -qx True || fail "guesses changed a text, or none were made: $(cat "$scratch/run.out")"

# Local blocks, nodes that push, a swarm that runs: it stays.
succeeds "${bench[@]}" --local all --json -
[ "$(query "$scratch/run.out" 'd["rows"][0]["hops"][0]["node"]')" = local ] || fail "--local all measures something else"
succeeds "${bench[@]}" --nodes 3 --push --wire bf16 --json -
query "$scratch/run.out" 'd["rows"][0]["push"] and d["rows"][0]["wire"] == "BF16" and len(d["rows"][0]["hops"]) == 3' | grep -qx True || fail "--push does not push"
start_node a "$fixtures/golden/llama" all
wait_ready a
succeeds "${bench[@]}" --join "${address[a]}" --json -
stop_node a

# Training: there and back, over lists of its own.
succeeds "${bench[@]}" --nodes 1,3 --batch 2,3 --train lora --train head --csv "$scratch/t.csv" --html "$scratch/t.html" --json -
query "$scratch/run.out" '[(r["what"], r["method"], r["nodes"], r["sessions"]) for r in d["rows"]] == [("train", m, n, s)
  for m in ("lora", "head") for n, s in ((1, 2), (1, 3), (3, 2))] and all(
  0 < r["train_tok_s_range"][0] <= r["train_tok_s"] <= r["train_tok_s_range"][1] for r in d["rows"])' | grep -qx True ||
  fail "the report of training is not the one that was asked for: $(cat "$scratch/run.out")"
[ "$(wc -l <"$scratch/t.csv")" = 7 ] || fail "the CSV of training has other lines"
succeeds "${bench[@]}" --local all --train prompt --train deep-prompt
[ "$(grep -c 'there and back' "$scratch/run.out")" = 2 ] || fail "the table of training has other lines"

# Ended early: its nodes end with it.
for how in INT KILL; do
  start long "$bin/swarm" bench --model "$model" --nodes 2 --new-tokens 200 --prompt-tokens 9 --repeat 1000
  until=$(($(now_ms) + 60000))
  until [ "$(nodes_left | wc -l)" = 2 ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "its nodes are not there after 30 s"
    sleep 0.02
  done
  sleep 0.3
  signal long $how
  wait_end long 60
  [ $how = KILL ] || [ $rc = 130 ] || fail "interrupted, it ended with $rc"
  wait_no_nodes
done

# A swarm that dies under it.
start_node a "$fixtures/golden/llama" all
wait_ready a
start long "$bin/swarm" bench --model "$model" --join "${address[a]}" --sessions 3 --new-tokens 200 --prompt-tokens 9 --repeat 1000 --timeout 2
until=$(($(now_ms) + 30000))
until run "$bin/swarm" status --join "${address[a]}" --json && [ "$(query "$scratch/run.out" 'd["nodes"][0].get("sessions", 0)')" = 3 ]; do
  [ "$(now_ms)" -lt "$until" ] || fail "no sessions after 30 s"
  sleep 0.02
done
kill_node a
wait_end long 30
[ $rc = 1 ] || fail "its swarm gone, it ended with $rc"

refuses 2 "where the blocks are" "${bench[@]}"
refuses 2 "where the blocks are" "${bench[@]}" --nodes 2 --local all
refuses 2 "one session" "${bench[@]}" --local all --sessions 1,2
refuses 2 "nothing is sent" "${bench[@]}" --local all --link 1gbit,1ms
refuses 2 "needs --nodes" "${bench[@]}" --local all --kill replay
refuses 2 "choose f32, bf16, f16 or q8" "${bench[@]}" --nodes 2 --wire q4
refuses 2 "leave out --wire" "${bench[@]}" --nodes 2 --wire q8 --train lora
refuses 2 "replay, replica or handover" "${bench[@]}" --nodes 2 --kill fire
refuses 2 "is no link" "${bench[@]}" --nodes 2 --link 1gbit
refuses 2 "it is ngram" "${bench[@]}" --nodes 2 --draft oracle
refuses 2 "nothing but training" "${bench[@]}" --local all --train lora --sessions 2
refuses 2 "train: --method magic is unknown" "${bench[@]}" --local all --train magic
refuses 2 "16 virtual ones are beyond the 256" "${bench[@]}" --local all --train lora --prompt-tokens 250
refuses 2 "has 4 blocks" "${bench[@]}" --nodes 5
refuses 2 "sessions: .x." "${bench[@]}" --nodes 2 --sessions 1,x
refuses 2 "beyond the 256" "${bench[@]}" --nodes 2 --context 250
refuses 2 "nodes that --nodes starts" "${bench[@]}" --local all --node-option=--isa=c
refuses 2 "did not start.*toaster" "${bench[@]}" --nodes 1 --node-option=--isa=toaster
refuses 2 "cannot be written" "${bench[@]}" --local all --csv /nonexistent/b.csv

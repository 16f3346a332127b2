#!/usr/bin/env bash
# swarm bench --server measures a server that streams, and ends in time with one sentence at every server that does not. The server
# is a stub (openai_stub.py), which answers as the path says.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start stub python3 "$here/openai_stub.py"
until=$(($(now_ms) + 60000))
until [ -s "$scratch/stub.out" ]; do
  [ "$(now_ms)" -lt "$until" ] || fail "the stub did not start"
  pause 0.02
done
url=$(cat "$scratch/stub.out")
bench=("$bin/swarm" bench --prompt-tokens 20 --new-tokens 5 --repeat 2 --warmup 0 --server)

# A server that is right: every report, other prompts for every request, the same ones for the next server.
succeeds "${bench[@]}" "$url/good" --clients 1,8 --json-file "$scratch/s.json" --csv-file "$scratch/s.csv" --html-file "$scratch/s.html"
query "$scratch/s.json" 'all([[r["clients"] for r in d["rows"]] == [1, 8], d["server"]["model"] == "stub",
  all(r["tok_s"] > 0 and 0 < r["first_ms_p50"] <= r["first_ms_p99"] and r["errors"] == 0 for r in d["rows"]),
  all(r["prompt_tokens"] == 20 and r["answer_tokens"] == 10 and r["requests"] == 2 * r["clients"] for r in d["rows"])])' | grep -qx True ||
  fail "the report is not the requested one: $(cat "$scratch/s.json")"
[ "$(wc -l <"$scratch/s.csv")" = 3 ] || fail "the CSV has a wrong number of lines"
[ "$(grep -c '<svg' "$scratch/s.html")" = 2 ] || fail "the HTML report is not complete"
prompts() { python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1] + "/prompts").read().decode())' "$url/$1"; }
prompts good >"$scratch/first"
query "$scratch/first" 'len(d) == len(set(d)) == 18' | grep -qx True || fail "prompts are repeated: $(cat "$scratch/first")"
query "$scratch/first" 'len({" ".join(p.split()[:5]) for p in d}) == 18' | grep -qx True || fail "prompts begin alike"
succeeds "${bench[@]}" "$url/no_usage/v1/" --chat --clients 1,8 --json
query "$scratch/run.out" 'all(r["prompt_tokens"] == -1 and r["answer_tokens"] == 5 for r in d["rows"])' | grep -qx True || fail "tokens are miscounted"
prompts no_usage | cmp -s - "$scratch/first" || fail "another server got other prompts"

# A key.
echo sesame >"$scratch/key"
succeeds "${bench[@]}" "$url/key" --clients 1 --api-key-file "$scratch/key"
refuses 1 "status 401: the key is wrong" "${bench[@]}" "$url/key" --clients 1

# Some requests fail: they are counted, the others measured.
succeeds "${bench[@]}" "$url/half" --clients 4 --json
query "$scratch/run.out" 'd["rows"][0]["errors"] == 4 and "the queue is full" in d["rows"][0]["error"]' | grep -qx True || fail "errors are not counted"

# Servers that are wrong: one sentence, soon.
while read -r mode code sentence; do
  limit=()
  [[ $mode != silent* && $mode != comments ]] || limit=(--timeout 3)
  refuses "$code" "$sentence" "${bench[@]}" "$url/$mode" --clients 3 --repeat 1 "${limit[@]}"
  [ "$(grep -c . "$scratch/run.err")" = 1 ] || fail "$mode: not one sentence: $(cat "$scratch/run.err")"
done <<'END'
refuses 1 status 429: the queue is full
html 1 status 502: <html>bad gateway</html>
silent 1 sent no token for 3 seconds
comments 1 sent no token for 3 seconds
silent_list 1 Timeout was reached
no_model 2 lists no model
long_line 2 has more than 1048576 bytes
no_json 2 no JSON object
error 1 ended a stream with an error: a node is lost
endless 2 more tokens than the 5 that were asked for
cut 1 /v1/completions: 
unended 1 without .DONE.
END
refuses 2 "is not the address of a server" "${bench[@]}" "ftp://127.0.0.1" --clients 1
refuses 1 "127.0.0.1:1/v1/models" "${bench[@]}" "http://127.0.0.1:1" --clients 1
refuses 2 "leave out --model" "${bench[@]}" "$url" --model x
refuses 2 "model is missing" "$bin/swarm" bench --local all
